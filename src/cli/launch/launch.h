/* launch -- starts the ranks of a job with the MPI library's own mpirun, or as one process, and
 * stays as their supervisor.
 *
 * The supervisor hides what mpirun does to a job that is stopped or fails (it kills the ranks a
 * second after SIGTERM, returns 1 and prints a banner). SIGINT, SIGTERM and SIGUSR1 become SIGUSR1
 * for the ranks, which stop and save; a second SIGINT kills them. The outcome is that of the first
 * rank that failed, with one message. If the supervisor dies, the ranks die. restarts.c decides
 * what to do about a rank that died.
 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H
#include "cli/command.h"

struct launch_order {
    int ranks;
    bool alone;        /* all ranks are one process: no mpirun is needed */
    int threads;       /* per rank, for the printed line */
    bool own_threads;  /* each rank finds its number itself; else it gets `threads` by argv */
    char *const *argv; /* a rank's program and arguments, NULL-terminated */
    bool stops;        /* a signal asks the ranks to stop; else it kills them */
    bool saves;        /* ranks that stop save; for the printed line */
    bool quiet;        /* do not print how the ranks are started */
    bool verbose;      /* print all output of the launcher */
    int input;         /* descriptor that becomes the standard input of rank 0; 0 = none */
};

struct launch_end {
    bool died;       /* a rank was killed, crashed or hung, and the job was not asked to stop */
    char words[512]; /* what happened, for the caller to log ... */
    bool said;       /* ... unless a rank has logged it */
};

/* Returns when all ranks have ended. A failure is logged, except for a death (*end). */
enum status launch_run(struct cli *cli, const struct launch_order *order, struct launch_end *end);

/* The same with this program and its arguments: order->argv is not used. `added` are flags that win
 * over those of the user, NULL-terminated; NULL = none. */
enum { LAUNCH_ADDED = 4 }; /* at most */
enum status launch_self(struct cli *cli, const struct launch_order *order, const char *const *added,
                        struct launch_end *end);

/* Ranks per machine: all of them, or those of one node of a Slurm job. */
int launch_local_ranks(int ranks);

/* --- mpi_launcher.c: the mpirun that belongs to the MPI library of this program --------------- */

enum mpi_kind { MPI_KIND_OPEN, MPI_KIND_HYDRA }; /* Hydra: MPICH, Intel MPI and derivatives */

enum { MPI_LAUNCHER_PATH = 512, MPI_LAUNCHER_WHY = 640 };

struct mpi_launcher {
    enum mpi_kind kind;
    char mpi[64];                 /* "Open MPI 4.1.4" */
    char path[MPI_LAUNCHER_PATH]; /* of its mpirun */
    bool named;                   /* by SIFR_MPIRUN, rather than found */
};

/* Try SIFR_MPIRUN ("none": use no mpirun). If it is not set, try the mpirun found when sifr was
 * configured, then the usual names in the absolute folders of PATH. The output of --version tells
 * to which library a candidate belongs. false = none belongs to ours; `why` then has the reason. */
bool mpi_launcher_look(struct mpi_launcher *launcher, char *why, size_t bytes);
/* The same, but fails if no launcher is found. */
enum status mpi_launcher_find(struct env *env, struct mpi_launcher *launcher);

/* In a child process: exec the launcher for `ranks` processes of `argv`. Ranks on other machines
 * also get the SIFR_ variables of this environment. Returns only on failure, with errno set. */
void mpi_launcher_exec(const struct mpi_launcher *launcher, int ranks, char *const *argv);

/* --- restarts.c ------------------------------------------------------------------------------- */

/* Restarts the ranks of a run from its last complete checkpoint after one of them died.
 *
 * Only deaths count (launch_end): a rank that was killed, crashed, or hung and was killed. A stop, a
 * refused configuration, divergence or a full disk would only happen again. After three restarts in
 * a row without progress (no larger step, no newer checkpoint) there is no further one.
 */

struct restarts_order {
    const char *folder; /* of the run */
    int64_t most;       /* restarts; 0 = none */
    bool fresh;         /* rename an earlier run in the folder, once */
    double max_seconds; /* of all attempts together; 0 = no limit */
};

struct restarts_attempt {
    bool again; /* a restart; then the values below override the user's */
    bool fresh;
    double max_seconds; /* that are left; 0 = no limit */
};

typedef enum status restarts_start_fn(void *user, const struct restarts_attempt *attempt,
                                      struct launch_end *end);

/* Call `start` until an attempt ends otherwise than by a death, or no restart is left. Logs one
 * line for each restart, and one for the failure that ends the run. */
enum status restarts_run(struct cli *cli, const struct restarts_order *order,
                         restarts_start_fn *start, void *user);

#endif
