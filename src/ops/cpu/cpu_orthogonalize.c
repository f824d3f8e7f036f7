/* cpu_orthogonalize -- Newton-Schulz iterations by products in f32.
 *
 * One iteration is three products: A = x x^T, then b A + c A^2, then a x + (b A + c A^2) x. The
 * sums are part of the products. A and b A + c A^2 are symmetric, so half of them is computed. A
 * matrix with more rows than columns is multiplied from the other side (A = x^T x), so nothing is
 * transposed. The norm is a sum of doubles in an order that follows from the number of elements.
 */
#include <math.h>
#include "ops/cpu/cpu_impl.h"

/* Scratch: the sums of the norm's blocks, the other of two matrices that x alternates with, A, and
 * b A + c A^2. */
struct work {
    double *sums;
    float *other, *square, *factor;
};

static struct work work_in(void *scratch, int64_t rows, int64_t columns)
{
    int64_t n = min64(rows, columns);
    struct work w = {.sums = scratch};
    w.other = (float *)(w.sums + ceil_div(rows * columns, OPS_BLOCK));
    w.square = w.other + rows * columns;
    w.factor = w.square + n * n;
    return w;
}

size_t cpu_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns)
{
    int64_t n = min64(rows, columns), count = rows * columns;
    return (size_t)ceil_div(count, OPS_BLOCK) * sizeof(double) +
           (size_t)(count + 2 * n * n) * sizeof(float);
}

static void scale_thread(int64_t count, const float *restrict x, double factor,
                         float *restrict scaled)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        for (int64_t k = i; k < min64(i + FLAT_CHUNK, count); k++)
            scaled[k] = (float)((double)x[k] * factor);
}

/* w.other = x / |x|; zeros if x is zero. In double, since |x| may be any float. */
static void normalize(struct ops *ops, struct stream *stream, int64_t count, const float *x,
                      struct work w)
{
    double norm;
    cpu_square_sums(ops, stream, DTYPE_F32, &(struct square_range){x, count, w.sums}, 1);
    ops->backend->sum(ops, stream, ceil_div(count, OPS_BLOCK), w.sums, &norm);
    double factor = norm > 0 ? 1 / sqrt(norm) : 0;
    IN_THREADS(cpu_threads(ops, count), scale_thread(count, x, factor, w.other));
}

/* next = a x + (b A + c A^2) x, or a x + x (b A + c A^2) */
static void iterate(struct ops *ops, int64_t rows, int64_t columns, const float *x, struct work w,
                    float *next)
{
    bool tall = rows > columns;
    int64_t n = min64(rows, columns);
    cpu_multiply(ops, &(struct cpu_product){.m = n,
                                            .n = n,
                                            .k = tall ? rows : columns,
                                            .a = x,
                                            .b = x,
                                            .a_transposed = tall,
                                            .b_transposed = !tall,
                                            .c = w.square,
                                            .symmetric = true});
    cpu_multiply(ops, &(struct cpu_product){.m = n,
                                            .n = n,
                                            .k = n,
                                            .a = w.square,
                                            .b = w.square,
                                            .c = w.factor,
                                            .start = w.square,
                                            .start_times = (float)OPS_NEWTON_SCHULZ_B,
                                            .times = (float)OPS_NEWTON_SCHULZ_C,
                                            .symmetric = true});
    cpu_multiply(ops, &(struct cpu_product){.m = rows,
                                            .n = columns,
                                            .k = n,
                                            .a = tall ? x : w.factor,
                                            .b = tall ? w.factor : x,
                                            .c = next,
                                            .start = x,
                                            .start_times = (float)OPS_NEWTON_SCHULZ_A,
                                            .times = 1});
}

void cpu_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                       void *x, void *scratch)
{
    _Static_assert(OPS_NEWTON_SCHULZ % 2 == 1, "the last iteration writes to x");
    struct work w = work_in(scratch, rows, columns);
    float *from = w.other, *to = x;
    normalize(ops, stream, rows * columns, x, w);
    for (int turn = 0; turn < OPS_NEWTON_SCHULZ; turn++) {
        iterate(ops, rows, columns, from, w, to);
        float *written = to;
        to = from;
        from = written;
    }
}
