/* cpu_kernel -- the inner loops of products, one file for each set of instructions, chosen when the
 * program runs.
 *
 * A kernel multiplies a panel of a (some rows, `depth` columns) by a panel of b (`depth` rows, some
 * columns). Panels are packed, in fp32 or rounded to bf16 (but see multiply_rows):
 *
 *     value k of row i of a panel is at  (k / step) (width step) + i step + k % step
 *
 * with the kernel's rows or cols as `width`. Fp32 kernels have step 1. They have the same bits on
 * every machine. Each element is
 *
 *     sum = 0;  sum = fma(a[i][0], b[0][j], sum);  sum = fma(a[i][1], b[1][j], sum); ...
 *
 * and then c = times sum, or c = fma(times, sum, c). Vectors and tiles only decide which elements
 * are computed at the same time. The instructions for bf16 add in orders of their own. Each has a
 * model in plain C (cpu_kernel_models.c) that has its bits.
 */
#ifndef OPS_CPU_CPU_KERNEL_H
#define OPS_CPU_CPU_KERNEL_H
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"

/* What a panel is packed from: `valid` rows and `depth` values of each. The other rows, and values
 * up to a multiple of the kernel's `depth_unit`, become 0. */
struct cpu_panel {
    int64_t depth, valid;
    const float *from;
    const uint16_t *from_bf16; /* or NULL; in place of `from`; only of b, for bf16 kernels */
    int64_t stride;            /* of the source: elements between two of its rows */
};

struct cpu_kernel {
    const char *name;
    const struct cpu_kernel *model; /* plain C with the same bits; NULL: this is one */
    int64_t rows, cols;             /* of the part of c that one call computes */
    int64_t depth_unit;             /* the depth of a call is a multiple of it */
    int64_t packed_bytes;           /* of a packed value */
    /* a, b: packed; c: rows `stride` elements apart */
    void (*multiply)(int64_t depth, const void *a, const void *b, float times, bool add, float *c,
                     int64_t stride);
    /* NULL, or the same for a whole panel of a that is not packed: rows `a_stride` elements apart.
     * Only where depth_unit is 1. */
    void (*multiply_rows)(int64_t depth, const float *a, int64_t a_stride, const void *b,
                          float times, bool add, float *c, int64_t stride);
    /* 0 and NULL, or the same for the first `few` rows of a packed panel only: for panels that are
     * not full. Only where depth_unit is 1. */
    int64_t few;
    void (*multiply_few)(int64_t depth, const void *a, const void *b, float times, bool add,
                         float *c, int64_t stride);
    /* Pack a panel of a or b. `along`: a row of the source has the values of one step of the
     * depth. `across`: it has one value of each step. */
    void (*pack_a_along)(const struct cpu_panel *p, void *to);
    void (*pack_a_across)(const struct cpu_panel *p, void *to);
    void (*pack_b_along)(const struct cpu_panel *p, void *to);
    void (*pack_b_across)(const struct cpu_panel *p, void *to);
    /* NULL, or called by each thread before and after its calls of `multiply` */
    void (*begin)(void);
    void (*end)(void);
};

/* `multiply` for a packed panel of a of which `rows` rows count; the others may be computed, too. */
static inline void cpu_kernel_multiply(const struct cpu_kernel *kernel, int64_t rows, int64_t depth,
                                       const void *a, const void *b, float times, bool add,
                                       float *c, int64_t stride)
{
    if (kernel->few == 0 || rows > kernel->rows - kernel->few) {
        kernel->multiply(depth, a, b, times, add, c, stride);
        return;
    }
    for (int64_t i = 0; i < rows; i += kernel->few)
        kernel->multiply_few(depth, (const float *)a + i, b, times, add, c + i * stride, stride);
}

/* The fastest kernel of this machine for fp32; NULL: it has none, and products are OpenBLAS's. */
const struct cpu_kernel *cpu_kernel(void);
/* The fastest for operands rounded to bf16, or NULL. */
const struct cpu_kernel *cpu_kernel_bf16(void);

/* The name of the set that they are from, which ops_cpu_use chose, or the fastest */
const char *cpu_kernel_set(void);

/* Refuses names of kernels that do not exist or do not run here. */
enum status cpu_kernel_check(struct env *env);
/* cpu_blas.c: whether ops are open in this process */
bool cpu_blas_is_open(void);
/* Why a faster kernel is not used; "": none is known */
const char *cpu_kernel_note(void);

/* Those that were compiled in, the fastest first; some may not run on this machine. Ends with
 * NULL. */
extern const struct cpu_kernel *const cpu_kernels[];
bool cpu_kernel_runs(const struct cpu_kernel *kernel);

extern const struct cpu_kernel cpu_kernel_plain, cpu_kernel_neon, cpu_kernel_avx2,
    cpu_kernel_avx512;
extern const struct cpu_kernel cpu_kernel_bfmmla, cpu_kernel_avx512_bf16, cpu_kernel_amx;
/* cpu_kernel_models.c: the order of the sums of bfmmla, vdpbf16ps and tdpbf16ps */
extern const struct cpu_kernel cpu_kernel_bfmmla_model, cpu_kernel_avx512_bf16_model,
    cpu_kernel_amx_model;

#endif
