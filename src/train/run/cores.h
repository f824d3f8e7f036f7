/* cores -- which CPUs the ranks of a job may use, compared when a run starts: do ranks of a machine
 * share CPUs, and do any have more threads than CPUs? */
#ifndef TRAIN_CORES_H
#define TRAIN_CORES_H
#include <sched.h>
#include "comm/comm.h"

/* What a rank tells the others. */
struct cores_report {
    uint64_t host; /* equal on one machine */
    int64_t threads;
    cpu_set_t mask;
};

struct cores {  /* open */
    int ranks;  /* on the machine of rank 0 */
    bool apart; /* no two of them share a CPU */
    /* The first rank whose CPUs have more threads than there are of them, counting all ranks with
     * no other CPUs; -1 = none. */
    int crowded;
    int also;          /* another of these ranks; -1 = none */
    int threads, cpus; /* of theirs */
};

/* The verdict on all ranks. */
struct cores cores_judge(const struct cores_report *all, int size);

/* Compare the CPUs of the calling threads of all ranks. `comm` is NULL for one rank. Collective. */
enum status cores_compare(struct env *env, struct comm *comm, struct cores *cores);

#endif
