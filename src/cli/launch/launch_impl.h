/* launch_impl -- a job and its supervisor: launch.c starts and watches the job, launch_outcome.c
 * finds out how it ended. */
#ifndef CLI_LAUNCH_IMPL_H
#define CLI_LAUNCH_IMPL_H
#include "cli/launch/launch.h"
#include "cli/rank_report.h"

struct job {
    struct cli *cli;
    const struct launch_order *order;
    struct mpi_launcher launcher;
    struct rank_book *book;
    pid_t pid;              /* of mpirun */
    int out, err, signals;  /* descriptors; -1 = closed */
    bool last_words;        /* the launcher has printed its banner on stdout: the ranks are dead */
    struct text line;       /* an incomplete line of stderr */
    struct text said, kept; /* lines of the ranks, printed; lines of the launcher, held back */
    double started, first_word;  /* times; first_word: of the first report, 0 = none */
    double interrupted;          /* time of the first SIGINT; 0 = none */
    double failed;               /* time at which a failure was first seen; 0 = none */
    double ending;               /* time at which mpirun was asked to end; 0 = never */
    bool stop_wanted, stop_sent; /* SIGUSR1 */
    bool quit;                   /* by a second SIGINT */
    bool done;                   /* mpirun has ended, as `wait_status` says */
    int wait_status;
};

/* Processes that report: one if all ranks are one process. */
static inline int launch_reporters(const struct launch_order *order)
{
    return order->alone ? 1 : order->ranks;
}

/* After all processes of the job have ended. */
enum status launch_outcome(const struct job *job, struct launch_end *end);

#endif
