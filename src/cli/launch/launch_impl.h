/* launch_impl -- a job and its supervisor from inside: launch.c starts and watches it,
 * launch_outcome.c says how it ended. */
#ifndef CLI_LAUNCH_IMPL_H
#define CLI_LAUNCH_IMPL_H
#include "cli/launch/launch.h"
#include "cli/launch/mpi_launcher.h"
#include "cli/rank_report.h"

struct job {
    struct cli *cli;
    const struct launch_order *order;
    struct mpi_launcher launcher;
    struct rank_book *book;
    pid_t pid;                   /* of mpirun */
    int out, err, signals;       /* descriptors; -1 = at its end */
    bool last_words;             /* of the launcher, on stdout: the ranks are dead */
    struct text line;            /* of stderr, not complete */
    struct text said, kept;      /* ours, shown; the launcher's, kept back */
    double started, first_word;  /* when; of a rank, 0 = none yet */
    double interrupted;          /* the first SIGINT; 0 = none */
    double failed;               /* when a failure was first seen; 0 = none */
    double ending;               /* when mpirun was told to end; 0 = it was not */
    bool stop_wanted, stop_sent; /* SIGUSR1 */
    bool quit;                   /* by a second SIGINT */
    bool done;                   /* mpirun has ended, as `wait_status` says */
    int wait_status;
};

/* Ranks that report: one for all, where they are one process. */
static inline int launch_reporters(const struct launch_order *order)
{
    return order->alone ? 1 : order->ranks;
}

/* Nothing of the job is alive any more. */
enum status launch_outcome(const struct job *job, struct launch_end *end);

#endif
