/* cpu_gemm -- products by our own kernels: cpu_matmul.c describes a product and calls
 * cpu_gemm_thread in each thread.
 */
#ifndef OPS_CPU_CPU_GEMM_H
#define OPS_CPU_CPU_GEMM_H
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_kernel.h"

/* Of the packed panels, which are in the ops' workspace */
size_t cpu_gemm_bytes(void);

enum { CPU_GEMM_RUNS = 64 }; /* with more threads, some share one */

/* How one product is cut, and the state that its threads share */
struct cpu_gemm {
    const struct cpu_product *p;
    const struct cpu_kernel *kernel;
    char *packed;
    int64_t part, parts;        /* of k: each has its own sums; parts in a phase */
    int64_t depth, depth_count; /* of a phase; phases from the first k to the last */
    int64_t rows, cols;         /* of a block of c */
    bool rows_first;     /* the next block is below, and shares b; else right, and shares a */
    int64_t inner_count; /* blocks that share these panels */
    bool keeps;          /* they take turns, so panels are packed once */
    int64_t phases;
    int64_t tile_rows, tile_cols;
    int64_t strip;   /* tiles side by side */
    bool reads_rows; /* of a, where they are: only panels that are not whole are packed */
    int64_t next[2]; /* chunks of the phase that are not tiles */
    int runs;        /* of tiles, one for each thread */
    struct {
        _Alignas(64) int64_t next[2]; /* tiles of this run */
    } run[CPU_GEMM_RUNS];
};
/* For `threads` threads; panels are packed in the workspace. */
struct cpu_gemm cpu_gemm_plan(const struct cpu_product *p, const struct cpu_kernel *kernel,
                              int threads, void *workspace);

/* Work that is done before the first tiles: run(context, chunk) once for each chunk */
struct cpu_gemm_side {
    void (*run)(const void *context, int64_t chunk);
    const void *context;
    int64_t chunks;
};
/* The part of one thread; all threads of a parallel region call it. Others may not be done when it
 * returns. `side` may be NULL. */
void cpu_gemm_thread(struct cpu_gemm *g, const struct cpu_gemm_side *side);

/* cpu_matmul.c: elements from row to row */
int64_t cpu_product_lda(const struct cpu_product *p);
int64_t cpu_product_ldb(const struct cpu_product *p);
int64_t cpu_product_ldc(const struct cpu_product *p);
/* What the tile of `rows` x `cols` elements from (i, j) has before the product is added; false:
 * nothing. */
bool cpu_product_start(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                       int64_t cols);
/* What follows the sums of the tile */
void cpu_product_finish(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                        int64_t cols);

#endif
