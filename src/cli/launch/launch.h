/* launch -- starts the ranks of a job with the MPI library's own mpirun, or as one process, and
 * stays as their supervisor.
 *
 * What mpirun does to a job that is stopped or fails (kills it a second after SIGTERM, reports 1,
 * prints a banner) is hidden: SIGINT, SIGTERM and SIGUSR1 become SIGUSR1 for the ranks, which end
 * in good order; a second SIGINT ends them at once; the outcome is that of the first rank that
 * failed, with one message. When the supervisor dies, the ranks do. What is to be done about a rank
 * that died is left to who asked for the job: restarts.h.
 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H
#include "cli/command.h"

struct launch_order {
    int ranks;
    bool alone;        /* they are one process: no mpirun is needed */
    int threads;       /* of a rank, for the line that is shown; the ranks are told in argv */
    char *const *argv; /* a rank's program and arguments, NULL-terminated */
    bool stops;        /* a signal asks the ranks to stop and save; else it ends them at once */
    bool quiet;        /* no line about what was chosen */
    bool verbose;      /* show all that the launcher says */
};

struct launch_end {
    bool died;       /* a rank was killed, crashed or hung, and nobody had asked the job to stop */
    char words[512]; /* what happened to it, for who calls to say ... */
    bool said;       /* ... unless a rank has */
};

/* Until no rank has a process any more. A job that fails has said why, but for a death. */
enum status launch_run(struct cli *cli, const struct launch_order *order, struct launch_end *end);

/* Ranks on this machine: all, or those of one node of a Slurm job. */
int launch_local_ranks(int ranks);

#endif
