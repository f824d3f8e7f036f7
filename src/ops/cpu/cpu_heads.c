/* cpu_heads -- RMS norms of the queries and keys in qkv, and their backward pass.
 *
 * Rows are divided among threads. The gradients of the weights are summed over blocks of rows into
 * scratch, one partial sum for each block (cpu_impl.h).
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

static int64_t row_width(struct head_rms n)
{
    return (n.heads + 2 * n.kv_heads) * n.head_width;
}

static int64_t kept_width(struct head_rms n)
{
    return (n.heads + n.kv_heads) * n.head_width;
}

static int threads_of(const struct ops *ops, struct head_rms n)
{
    return cpu_threads(ops, n.rows * kept_width(n));
}

static float rstd_of(struct head_rms n, struct head_span span, double squares)
{
    return (float)(1 / sqrt(squares / span.total + n.eps));
}

/* sum of dy (weight + offset) x */
static double dot(struct head_rms n, int64_t count, const float *x, const float *dy,
                  const float *weight)
{
    float offset = (float)n.offset;
    double sum = 0;
    for (int64_t c = 0; c < count; c++)
        sum += (double)(dy[c] * (weight[c] + offset)) * x[c];
    return sum;
}

static void sums_thread(struct head_rms n, const struct head_sums *a)
{
    int64_t groups = ops_head_groups(n), x_row = a->dy ? kept_width(n) : row_width(n);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < n.rows; r++)
        for (int64_t s = 0; s < groups; s++) {
            struct head_span span = ops_head_span(n, s);
            const float *x = (const float *)a->x + r * x_row + span.first;
            const float *dy = (const float *)a->dy;
            a->sums[r * groups + s] = dy ? dot(n, span.count, x, dy + r * row_width(n) + span.first,
                                               span.key ? a->k : a->q)
                                         : (double)v_row_squares(x, 0.0f, span.count);
        }
}

void cpu_head_sums(struct ops *ops, struct stream *stream, struct head_rms n,
                   const struct head_sums *a)
{
    IN_THREADS(threads_of(ops, n), sums_thread(n, a));
}

static void rms_thread(struct head_rms n, const struct head_rms_forward *a)
{
    int64_t groups = ops_head_groups(n);
    float offset = (float)n.offset;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < n.rows; r++) {
        float *x = (float *)a->qkv + r * row_width(n);
        if (a->kept)
            memcpy((float *)a->kept + r * kept_width(n), x, (size_t)kept_width(n) * sizeof(float));
        for (int64_t s = 0; s < groups; s++) {
            struct head_span span = ops_head_span(n, s);
            const float *weight = span.key ? a->k : a->q;
            float rstd = rstd_of(n, span, a->squares[r * groups + s]), *y = x + span.first;
            for (int64_t c = 0; c < span.count; c++)
                y[c] = y[c] * rstd * (weight[c] + offset);
        }
    }
}

void cpu_head_rms(struct ops *ops, struct stream *stream, struct head_rms n,
                  const struct head_rms_forward *a)
{
    IN_THREADS(threads_of(ops, n), rms_thread(n, a));
}

static void row_backward(struct head_rms n, int64_t r, const struct head_rms_backward *a, float *dq,
                         float *dk)
{
    int64_t groups = ops_head_groups(n);
    float offset = (float)n.offset;
    for (int64_t s = 0; s < groups; s++) {
        struct head_span span = ops_head_span(n, s);
        float *d = (float *)a->dqkv + r * row_width(n) + span.first;
        const float *x = (const float *)a->kept + r * kept_width(n) + span.first;
        const float *weight = span.key ? a->k : a->q;
        float *dweight = span.key ? dk : dq;
        float rstd = rstd_of(n, span, a->squares[r * groups + s]);
        float mean = (float)(a->dots[r * groups + s] / span.total) * rstd;
        for (int64_t c = 0; c < span.count; c++) {
            float xhat = x[c] * rstd, dy = d[c];
            dweight[c] += dy * xhat;
            d[c] = rstd * (dy * (weight[c] + offset) - xhat * mean);
        }
    }
}

/* partials (blocks, Q + K): each block's sums of the gradients of the weights */
static void backward_thread(struct head_rms n, const struct head_rms_backward *a)
{
    int64_t query = ops_head_weight(n, false), width = query + ops_head_weight(n, true);
    int64_t step = cpu_block_rows(n.rows);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < ceil_div(n.rows, step); block++) {
        float *partial = (float *)a->scratch + block * width;
        memset(partial, 0, (size_t)width * sizeof(float));
        for (int64_t r = block * step; r < min64((block + 1) * step, n.rows); r++)
            row_backward(n, r, a, partial, partial + query);
    }
}

void cpu_head_rms_backward(struct ops *ops, struct stream *stream, struct head_rms n,
                           const struct head_rms_backward *a)
{
    int64_t query = ops_head_weight(n, false), key = ops_head_weight(n, true);
    int64_t blocks = ceil_div(n.rows, cpu_block_rows(n.rows));
    const float *partials = a->scratch;
    IN_THREADS(threads_of(ops, n), backward_thread(n, a));
    if (a->dq)
        cpu_sum_partials(blocks, query + key, query, partials, a->dq);
    if (a->dk)
        cpu_sum_partials(blocks, query + key, key, partials + query, a->dk);
}

size_t cpu_head_rms_scratch(const struct ops *ops, struct head_rms n)
{
    int64_t width = ops_head_weight(n, false) + ops_head_weight(n, true);
    return (size_t)(ceil_div(n.rows, cpu_block_rows(n.rows)) * width) * sizeof(float);
}
