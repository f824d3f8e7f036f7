/* launcher -- which program started this process, and as which rank; from environment variables,
 * before any library is asked. */
#ifndef COMM_LAUNCHER_H
#define COMM_LAUNCHER_H
#include <stdbool.h>

struct launcher {
    const char *name; /* "Open MPI's mpirun", ...: for messages */
    int rank, size;
    int local_rank; /* among the ranks of this machine; -1 = not said */
};

/* false = started by hand. */
bool launcher_find(struct launcher *launcher);

/* Which of the `count` GPUs of this machine a process uses when a launcher started it as one of
 * several ranks; otherwise the first. */
int launcher_gpu(int count);

#endif
