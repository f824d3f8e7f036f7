/* host -- the machine that this process runs on: processors, memory, disks. Linux only; unknown
 * values are 0 or "". */
#ifndef BASE_HOST_H
#define BASE_HOST_H
#include <stddef.h>

struct machine {
    char cpu[128];  /* as in /proc/cpuinfo */
    int processors; /* online */
    int allowed;    /* in the affinity mask of this thread */
    char mask[128]; /* "0-3,8" */
    int cores;      /* that have a processor of the mask; fewer than `allowed` with hyper-threads */
    int nodes;      /* NUMA nodes of the mask, and their numbers as a list */
    char node_list[64];
    int all_nodes; /* of the machine, with processors */
    double quota;  /* processors granted by the control group; 0 = no limit */
    size_t memory_bytes, memory_free_bytes;
    size_t memory_limit_bytes; /* of the control group; 0 = none */
    size_t disk_free_bytes;    /* of the current folder */
    size_t shm_bytes;          /* of /dev/shm */
};

void machine_look(struct machine *machine);

/* Bytes available to processes: free memory, or the limit of the control group where that is
 * less. */
size_t machine_memory(void);

/* Processors in the affinity mask; at least 1. */
int machine_cpus(void);

/* RssAnon + RssShmem of this process now, in bytes; 0 = unknown. Allocates nothing. The account
 * (mem.h) counts what sifr allocates; this figure also includes libraries (MPI with its shared
 * segments, BLAS, the C library), but not file pages or memory that was never touched. */
size_t resident_bytes(void);

#endif
