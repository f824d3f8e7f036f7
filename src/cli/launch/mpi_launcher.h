/* mpi_launcher -- finds and calls the mpirun that belongs to the MPI library of this program. */
#ifndef CLI_MPI_LAUNCHER_H
#define CLI_MPI_LAUNCHER_H
#include <stdbool.h>
#include "base/env.h"

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
/* The same, but an error if there is none. */
enum status mpi_launcher_find(struct env *env, struct mpi_launcher *launcher);

/* In a child process: exec the launcher for `ranks` processes of `argv`. Ranks on other machines
 * also get the SIFR_ variables of this environment. Returns only on failure, with errno set. */
void mpi_launcher_exec(const struct mpi_launcher *launcher, int ranks, char *const *argv);

#endif
