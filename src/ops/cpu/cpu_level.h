/* cpu_level -- the vector code of this folder, compiled for several sets of instructions
 * (cmake/cpu_levels.cmake). The set of kernels in use names one (cpu_kernel.h).
 *
 * Levels have different bits where they have different `vectors`: sums over a row depend on the
 * width of a register, and SSE2 has no fused multiply-add.
 */
#ifndef OPS_CPU_CPU_LEVEL_H
#define OPS_CPU_CPU_LEVEL_H
#include <stdbool.h>
#include "ops/ops_impl.h"

struct cpu_level {
    const char *name; /* "avx2"; "": what every CPU of the kind has */
    bool (*runs)(void);
    ops_fill_fn *fill;            /* overrides ref's table */
    const char *(*vectors)(void); /* "AVX2" */
};

/* The level of this name, or NULL: it does not run here. A build for one CPU (SIFR_NATIVE) has one
 * level, which every name stands for. */
const struct cpu_level *cpu_level_find(const char *name);
/* The one in use */
const struct cpu_level *cpu_level(void);

#endif
