/* mpi_launcher -- the mpirun that belongs to the MPI library of this program, and how it is to be
 * called. */
#ifndef CLI_MPI_LAUNCHER_H
#define CLI_MPI_LAUNCHER_H
#include <stdbool.h>
#include "base/env.h"

enum mpi_kind { MPI_KIND_OPEN, MPI_KIND_HYDRA }; /* Hydra: MPICH, Intel MPI and their relatives */

enum { MPI_LAUNCHER_PATH = 512, MPI_LAUNCHER_WHY = 640 };

struct mpi_launcher {
    enum mpi_kind kind;
    char mpi[64];                 /* "Open MPI 4.1.4" */
    char path[MPI_LAUNCHER_PATH]; /* of its mpirun */
    bool named;                   /* by SIFR_MPIRUN */
};

/* SIFR_MPIRUN ("none": no mpirun is to be used), else the one found when sifr was configured, else
 * by name in the absolute folders of PATH; each is asked whose it is. false = none belongs to the library, and `why`. */
bool mpi_launcher_look(struct mpi_launcher *launcher, char *why, size_t bytes);
/* The same; refused when there is none. */
enum status mpi_launcher_find(struct env *env, struct mpi_launcher *launcher);

/* In a child: become the launcher of `ranks` processes of `argv`, on other machines too with the
 * SIFR_ variables of this environment. Returns only when that fails, with errno. */
void mpi_launcher_exec(const struct mpi_launcher *launcher, int ranks, char *const *argv);

#endif
