/* launcher -- which program started this process, and as which rank: from environment variables,
 * before any library is initialized. */
#ifndef COMM_LAUNCHER_H
#define COMM_LAUNCHER_H
#include <stdbool.h>

struct launcher {
    const char *name; /* "Open MPI's mpirun", ...: for messages */
    int rank, size;
    int local_rank; /* among the ranks of this machine; -1 = unknown */
};

/* false = not started by a launcher. */
bool launcher_find(struct launcher *launcher);

/* The index, of the `count` GPUs of this machine, that this process uses: by local rank when a
 * launcher started several ranks, otherwise 0. */
int launcher_gpu(int count);

#endif
