/* cpu_kernel_ahead -- prefetches of packing. A panel is a narrow part of a matrix, so the hardware
 * sees short runs in many rows and fetches little ahead. Addresses past the end of a matrix do no
 * harm. */
#ifndef OPS_CPU_CPU_KERNEL_AHEAD_H
#define OPS_CPU_CPU_KERNEL_AHEAD_H
#include <stdint.h>

enum {
    AHEAD_ROWS = 32,   /* of a source that is read along its rows */
    AHEAD_VALUES = 64, /* of each row of a source that is read across its rows */
    AHEAD_LINE = 64    /* bytes of a line of cache */
};

/* What is at `from` will be needed. */
static inline __attribute__((always_inline)) void ahead(const void *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += AHEAD_LINE)
        __builtin_prefetch((const char *)from + i);
}

#endif
