/* ranks -- how many ranks a command has, where they run, and which of them this process is. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H
#include "base/threads.h"
#include "cli/command.h"
#include "train/config/config.h"
#include "train/session.h"

enum ranks_way {
    RANKS_ONE,     /* this process alone, without MPI */
    RANKS_JOIN,    /* one rank of a job that a launcher started */
    RANKS_THREADS, /* all ranks, as threads of this process */
    RANKS_LAUNCH,  /* no rank: this process starts and supervises them */
};

struct ranks_plan {
    enum ranks_way way;
    int size;
    int rank;                   /* of this process, from its launcher; 0 unless joined */
    int local;                  /* ranks on this machine */
    int local_rank;             /* of this process among them; -1 = unknown */
    bool bound;                 /* the launcher has bound this rank to CPUs */
    struct threads_share share; /* the threads of a rank if run.threads is 0 */
    int slice;     /* set by ranks_bind: threads of a rank with CPUs of its own; 0 = none has */
    bool near_gpu; /* set by ranks_bind: ranks with GPUs keep near them */
    char why_threads
        [640]; /* why ranks are threads although comm.backend is not "threads"; else "" */
};

/* Decide from -n (0 = not given), comm.backend, the launcher's variables, and whether there is an
 * mpirun: without one, "auto" and "nccl" run ranks as threads. */
enum status ranks_find(struct env *env, int64_t wanted, const char *backend,
                       struct ranks_plan *plan);
/* Log one line if the ranks are threads because there is no mpirun. */
void ranks_say_choice(struct env *env, const struct ranks_plan *plan);

/* By run.bind and run.device, each rank of `threads` threads keeps to its own CPUs of this machine
 * (base/placement.h). A rank that is a process does it now, so it must not have started threads;
 * ranks that are threads do it in ranks_run_threads. Ranks with GPUs do it when they open them
 * (session_ranks.near_gpu). */
void ranks_bind(struct ranks_plan *plan, int threads, int bind, int device);

/* Outcomes that all ranks reach together. */
static inline bool ranks_is_orderly(enum status st)
{
    return st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_SAVED || st == STATUS_DIVERGED;
}

/* End a rank that is a process. With a supervisor, report to it: it sets the exit code of the job,
 * and the returned status is for the launcher. Without one, a rank other than 0 prints an error
 * that only it knows. `met`: the rank had begun to join the others. */
enum status ranks_leave(struct cli *cli, const struct ranks_plan *plan, enum status st, bool met);

/* For session_ranks.failing: report a failure before the rank ends. */
void ranks_report_failure(int rank, enum status st, const char *error);

typedef enum status ranks_main_fn(void *user, struct env *env, const struct session_ranks *ranks);
/* Run `main` in a thread for each rank of the plan, rank 0 with the caller's env. Logs of the others are
 * printed only with --verbose. `member` is copied for every rank, except for hub and rank. Returns
 * the first failure; if a rank does not return after it, the process ends (cli->quit). */
enum status ranks_run_threads(struct cli *cli, const struct ranks_plan *plan,
                              const struct session_ranks *member, ranks_main_fn *main, void *user);

#endif
