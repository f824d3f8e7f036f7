/* threads -- how many threads a rank computes with if nobody says.
 *
 * A thread that multiplies packed matrices keeps the units of a core busy. A second one, on the
 * core's other hyper-thread, has to share them and its caches. So the default is the number of
 * cores, not of CPUs. Bits do not depend on it. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H
#include "base/topology.h"

struct threads_share { /* open */
    int count;         /* of each rank; at least 1 */
    char why[32];      /* "one per core"; "" = one thread, since there are fewer cores than ranks */
};

/* The share of one of the `ranks` ranks of a machine. OMP_NUM_THREADS decides where it is set. Else
 * ranks divide the cores of the affinity mask, unless they are `bound`: then each has its mask for
 * itself. A CPU quota of the control group is always divided, and rounded down: the threads that
 * move data need time, too. */
struct threads_share threads_default(int ranks, bool bound);

/* The same for the CPUs `allowed` of a machine whose proc and sys are in the folder `root`. */
struct threads_share threads_of(const char *root, const cpu_set_t *allowed, const char *openmp,
                                int ranks, bool bound);

#endif
