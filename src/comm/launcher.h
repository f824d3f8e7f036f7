/* launcher -- which program started this process, and as which rank. The only file that reads the
 * environment variables of MPI launchers and of Slurm; no library is called. */
#ifndef COMM_LAUNCHER_H
#define COMM_LAUNCHER_H
#include <stdbool.h>

struct launcher {
    const char *name; /* "Open MPI's mpirun", "srun", ...: for messages */
    int rank, size;
    int local_rank; /* among the ranks of this machine; -1 = unknown */
    int process;    /* that started this rank on its machine; scripts between them do not count */
};

/* false = not started by a launcher. */
bool launcher_find(struct launcher *launcher);

/* The index, below `count`, of the GPU of this machine that this process uses: ranks of a launcher
 * take turns, any other process uses the first. */
int launcher_gpu(int count);

/* The number of ranks on this machine, of `size` in all; `size` when the launcher does not say. */
int launcher_local_ranks(int size);
/* Whether the launcher has bound this process to CPUs: the launcher itself has others. */
bool launcher_has_bound(const struct launcher *launcher);
/* srun may start ranks without PMI or PMIx, so that they cannot find each other; some MPI libraries
 * then end the process with pages of messages. */
bool launcher_is_bare_srun(const struct launcher *launcher);

int launcher_slurm_nodes(void);       /* machines of the Slurm allocation; 1 outside of one */
double launcher_slurm_end_time(void); /* of the allocation, seconds since 1970; 0 = unknown */

#endif
