/* launch -- starts the ranks of a job with the MPI library's own mpirun, or as one process, and
 * stays as their supervisor.
 *
 * The supervisor hides what mpirun does to a job that is stopped or fails (it kills the ranks a
 * second after SIGTERM, returns 1 and prints a banner). SIGINT, SIGTERM and SIGUSR1 become SIGUSR1
 * for the ranks, which stop and save; a second SIGINT kills them. The outcome is that of the first
 * rank that failed, with one message. If the supervisor dies, the ranks die. restarts.h decides
 * what to do about a rank that died.
 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H
#include "cli/command.h"

struct launch_order {
    int ranks;
    bool alone;        /* all ranks are one process: no mpirun is needed */
    int threads;       /* per rank, for the printed line; the ranks get it from argv */
    char *const *argv; /* a rank's program and arguments, NULL-terminated */
    bool stops;        /* a signal asks the ranks to stop and save; else it kills them */
    bool quiet;        /* do not print how the ranks are started */
    bool verbose;      /* print all output of the launcher */
};

struct launch_end {
    bool died;       /* a rank was killed, crashed or hung, and the job was not asked to stop */
    char words[512]; /* what happened, for the caller to log ... */
    bool said;       /* ... unless a rank has logged it */
};

/* Returns when all ranks have ended. A failure is logged, except for a death (*end). */
enum status launch_run(struct cli *cli, const struct launch_order *order, struct launch_end *end);

/* Ranks per machine: all of them, or those of one node of a Slurm job. */
int launch_local_ranks(int ranks);

#endif
