/* cpu_kernel -- the inner loops of products, one file for each set of instructions, chosen when the
 * program runs.
 *
 * A kernel multiplies a panel of a (some rows, `depth` columns) by a panel of b (`depth` rows, some
 * columns). Panels are packed: the values for one step of the depth are adjacent. The result has
 * the same bits on every kernel. Each element is
 *
 *     sum = 0;  sum = fma(a[i][0], b[0][j], sum);  sum = fma(a[i][1], b[1][j], sum); ...
 *
 * and then c = times sum, or c = fma(times, sum, c). Vectors and tiles only decide which elements
 * are computed at the same time.
 */
#ifndef OPS_CPU_CPU_KERNEL_H
#define OPS_CPU_CPU_KERNEL_H
#include <stdbool.h>
#include <stdint.h>

/* A panel has `width` values for each step of the depth: `width` is a kernel's rows or cols. Of
 * these, `valid` come from the source, the others are 0. */
struct cpu_panel {
    int64_t depth, valid;
    const float *from;
    int64_t stride; /* of the source: elements between two of its rows */
};

struct cpu_kernel {
    const char *name;
    int64_t rows, cols; /* of the part of c that one call computes */
    /* a: (depth, rows), b: (depth, cols), c: rows `stride` elements apart */
    void (*multiply)(int64_t depth, const float *a, const float *b, float times, bool add, float *c,
                     int64_t stride);
    /* Pack a panel of a or b. `along`: a row of the source has the values of one step of the
     * depth. `across`: it has one value of each step. */
    void (*pack_a_along)(const struct cpu_panel *p, float *to);
    void (*pack_a_across)(const struct cpu_panel *p, float *to);
    void (*pack_b_along)(const struct cpu_panel *p, float *to);
    void (*pack_b_across)(const struct cpu_panel *p, float *to);
};

/* The fastest kernel of this machine; NULL: it has none, and products are OpenBLAS's. The variable
 * SIFR_CPU_KERNEL names another ("openblas": none). */
const struct cpu_kernel *cpu_kernel(void);

/* Those that were compiled in; some may not run on this machine. Ends with NULL. */
extern const struct cpu_kernel *const cpu_kernels[];
bool cpu_kernel_runs(const struct cpu_kernel *kernel);

/* cpu_kernel_plain.c: the definition above in plain C, for tests */
extern const struct cpu_kernel cpu_kernel_plain;
extern const struct cpu_kernel cpu_kernel_neon, cpu_kernel_avx2, cpu_kernel_avx512;

#endif
