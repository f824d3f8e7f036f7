/* ranks -- how many ranks a command has, where they run, and what this process is among them. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H
#include "cli/command.h"
#include "train/session.h"

enum ranks_way {
    RANKS_ONE,     /* this process alone: no library is asked */
    RANKS_JOIN,    /* one rank of a job that a launcher started */
    RANKS_THREADS, /* all ranks, as threads of this process */
    RANKS_LAUNCH,  /* none: the supervisor of ranks to be started */
};

struct ranks_plan {
    enum ranks_way way;
    int size;
    int rank;    /* of this process, as its launcher says; 0 unless joined */
    int local;   /* ranks on this machine */
    int threads; /* for each rank, if nobody says otherwise: the CPUs it may use, shared out */
    char why_threads[640]; /* the ranks are threads though nobody asked for that; "" = otherwise */
};

/* From -n (0 = not given), comm.backend, the launcher's variables, and whether there is an mpirun to
 * start ranks with: without one "auto" and "nccl" have theirs as threads. */
enum status ranks_find(struct env *env, int64_t wanted, const char *backend,
                       struct ranks_plan *plan);
/* One line where the ranks are threads for want of an mpirun. */
void ranks_say_choice(struct env *env, const struct ranks_plan *plan);

/* All ranks end this way together. */
static inline bool ranks_is_orderly(enum status st)
{
    return st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_SAVED || st == STATUS_DIVERGED;
}

/* How a rank that is a process ends: its supervisor, if it has one, is told, and then gives the
 * exit code (what comes back is for the launcher); otherwise a rank other than 0 says what no other
 * rank can know. `met`: it had set out to meet the others. */
enum status ranks_leave(struct cli *cli, const struct ranks_plan *plan, enum status st, bool met);

typedef enum status ranks_main_fn(void *user, struct env *env, const struct session_ranks *ranks);
/* Run `main` as each of `size` threads, rank 0 with the caller's env. The others' logs are shown with
 * --verbose only. `member` is every rank's, but for the hub and the number. Returns the failure that
 * made the job fail; where a rank does not come back after it, the process ends (cli->quit). */
enum status ranks_run_threads(struct cli *cli, int size, const struct session_ranks *member,
                              ranks_main_fn *main, void *user);

#endif
