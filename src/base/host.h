/* host -- what this process runs on: processors, memory, folders. Linux only; what cannot be
 * known is 0 or "". */
#ifndef BASE_HOST_H
#define BASE_HOST_H
#include <stddef.h>
#include <stdint.h>

struct machine {
    char cpu[128];  /* as the kernel names it */
    int processors; /* online */
    int allowed;    /* in this process's affinity mask */
    char mask[128]; /* "0-3,8" */
    double quota;   /* processors that the control group grants; 0 = no limit */
    size_t memory_bytes, memory_free_bytes;
    size_t memory_limit_bytes; /* of the control group; 0 = none */
    size_t disk_free_bytes;    /* of the current folder */
    size_t shm_bytes;          /* of /dev/shm */
};

void machine_look(struct machine *machine);

/* Bytes that processes can still have: what is free, or less where the control group has a
 * limit. */
size_t machine_memory(void);

/* Threads for `wanted` (0 = one for each processor in the mask), at least 1. */
int machine_threads(int64_t wanted);

#endif
