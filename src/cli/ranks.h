/* ranks -- how many ranks a command has, where they run, and what this process is among them. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H
#include "cli/command.h"
#include "comm/comm.h"

enum ranks_way {
    RANKS_ONE,     /* this process alone: no library is asked */
    RANKS_JOIN,    /* one rank of a job that a launcher started */
    RANKS_THREADS, /* all ranks, as threads of this process */
    RANKS_LAUNCH,  /* none: the supervisor of ranks to be started */
};

struct ranks_plan {
    enum ranks_way way;
    int size;
    int rank; /* of this process, as its launcher says; 0 unless joined */
};

/* From -n (0 = not given), comm.backend and the launcher's variables. */
enum status ranks_find(struct env *env, int64_t wanted, const char *backend,
                       struct ranks_plan *plan);

/* --- a rank that is a process ------------------------------------------------------------------- */

struct rank_seat {
    struct device *device;
    struct comm *comm;
    int rank;
    bool agreed; /* all ranks know how it ends */
};

/* Join the job. Every seat is left in the end, also when this fails. */
enum status rank_sit(struct cli *cli, const struct comm_config *config, int rank,
                     struct rank_seat *seat);
/* Processors for this rank: its mask's, divided by the ranks of this machine with the same mask.
 * Collective. */
enum status rank_threads(struct rank_seat *seat, int *threads);
/* Did all get here in good health? If not, the first rank that did not says why. Collective. */
enum status rank_agree(struct cli *cli, struct rank_seat *seat, enum status mine);
/* End as `st` says: the others and the supervisor are told. Collective when all is well. */
void rank_leave(struct cli *cli, struct rank_seat *seat, enum status st);

/* --- ranks that are threads ----------------------------------------------------------------------- */

typedef enum status ranks_main_fn(void *user, struct env *env, struct comm *comm);
/* Run `main` as each of `size` ranks, rank 0 on the calling thread and with its env. The others'
 * logs are shown with --verbose only. Returns the failure that made the job fail. */
enum status ranks_run_threads(struct cli *cli, int size, double timeout, ranks_main_fn *main,
                              void *user);

#endif
