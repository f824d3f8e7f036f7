/* cpu_norm -- LayerNorm and RMSNorm, fused with the residual add, and their backward pass.
 *
 * A row is added, summed and normalized while it is in the L1 cache. Row sums are those of
 * cpu_vector.h. The gradients of weight and bias are summed over blocks of rows into scratch, one
 * pair of partial sums for each block (cpu_impl.h).
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

size_t cpu_norm_scratch(const struct ops *ops, struct norm n, int64_t rows)
{
    return (size_t)(ceil_div(rows, cpu_block_rows(rows)) * 2 * n.width) * sizeof(float);
}

/* y = (x - mean) rstd (weight + offset) + bias: the same expression in the forward pass and in
 * recomputation */
static void normalize(struct norm n, const float *x, float mean, float rstd, const float *weight,
                      const float *bias, float *y)
{
    float offset = (float)n.offset;
    if (bias)
        for (int64_t c = 0; c < n.width; c++)
            y[c] = (x[c] - mean) * rstd * (weight[c] + offset) + bias[c];
    else
        for (int64_t c = 0; c < n.width; c++)
            y[c] = (x[c] - mean) * rstd * (weight[c] + offset);
}

static void add_row(int64_t width, const float *a, const float *b, float *sum)
{
    for (int64_t c = 0; c < width; c++)
        sum[c] = a[c] + b[c];
}

static void add_norm_thread(struct norm n, int64_t rows, const struct add_norm *a)
{
    const float *residual = a->residual, *branch = a->branch; /* (R, C) */
    float *sum = a->sum, *y = a->y;                           /* (R, C) */
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * n.width;
        const float *x = residual + at;
        if (branch) {
            add_row(n.width, residual + at, branch + at, sum + at);
            x = sum + at;
        } else if (sum && sum != residual) {
            memcpy(sum + at, x, (size_t)n.width * sizeof(float));
        }
        float center = 0;
        if (n.kind == NORM_LAYER) {
            center = v_row_sum(x, n.width) / (float)n.width;
            a->mean[r] = center;
        }
        double variance = (double)v_row_squares(x, center, n.width) / (double)n.width;
        a->rstd[r] = (float)(1.0 / sqrt(variance + n.eps));
        normalize(n, x, center, a->rstd[r], a->weight, a->bias, y + at);
    }
}

void cpu_add_norm(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                  const struct add_norm *a)
{
    IN_THREADS(cpu_threads(ops, rows * n.width), add_norm_thread(n, rows, a));
}

static void apply_thread(struct norm n, int64_t rows, const struct norm_apply *a)
{
    const float *sum = a->sum; /* (R, C) */
    float *y = a->y;           /* (R, C) */
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        normalize(n, sum + r * n.width, n.kind == NORM_LAYER ? a->mean[r] : 0.0f, a->rstd[r],
                  a->weight, a->bias, y + r * n.width);
}

void cpu_norm_apply(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                    const struct norm_apply *a)
{
    IN_THREADS(cpu_threads(ops, rows * n.width), apply_thread(n, rows, a));
}

/* One row of the backward pass: g = dy (weight + offset), xhat = (x - mean) rstd */
struct row {
    int64_t width;
    const float *dy, *x, *weight; /* (C) */
    float mean, rstd, offset;
    float mean_g, mean_gx; /* of g and of g xhat, from row_sums */
};

/* What a row adds: dweight += dy xhat, dbias += dy; and its means of g and of g xhat. */
static void row_sums(struct row *row, float *dweight, float *dbias)
{
    const int64_t width = row->width;
    const float *dy = row->dy, *x = row->x, *weight = row->weight, mean = row->mean,
                rstd = row->rstd;
    vf offset = v_set(row->offset);
    vf sum_g[2] = {{0}}, sum_gx[2] = {{0}};
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES)
        for (int k = 0; k < 2; k++) {
            int64_t i = c + k * LANES;
            vf d = v_load(dy + i), xhat = (v_load(x + i) - v_set(mean)) * v_set(rstd),
               g = d * (v_load(weight + i) + offset);
            sum_g[k] += g;
            sum_gx[k] = v_fma(g, xhat, sum_gx[k]);
            v_store(dweight + i, v_fma(d, xhat, v_load(dweight + i)));
            v_store(dbias + i, v_load(dbias + i) + d);
        }
    for (; c < width; c += LANES) {
        int64_t n = min64(LANES, width - c);
        vf d = v_load_part(dy + c, n, 0.0f),
           xhat = (v_load_part(x + c, n, 0.0f) - v_set(mean)) * v_set(rstd);
        vf g = d * (v_load_part(weight + c, n, 0.0f) + offset);
        sum_g[0] += g;
        sum_gx[0] = v_fma(g, xhat, sum_gx[0]);
        v_store_part(dweight + c, v_fma(d, xhat, v_load_part(dweight + c, n, 0.0f)), n);
        v_store_part(dbias + c, v_load_part(dbias + c, n, 0.0f) + d, n);
    }
    row->mean_g = v_fold_sum(sum_g[0] + sum_g[1]) / (float)width;
    row->mean_gx = v_fold_sum(sum_gx[0] + sum_gx[1]) / (float)width;
}

/* dx = rstd (g - mean_g - xhat mean_gx) (+ dsum); reads each element before it is written, so dx
 * may be any input */
static void row_gradient(const struct row *row, const float *dsum, float *dx)
{
    const int64_t width = row->width;
    const float *dy = row->dy, *x = row->x, *weight = row->weight, mean = row->mean,
                rstd = row->rstd, mean_g = row->mean_g, mean_gx = row->mean_gx;
    vf offset = v_set(row->offset);
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) {
        vf xhat = (v_load(x + c) - v_set(mean)) * v_set(rstd),
           g = v_load(dy + c) * (v_load(weight + c) + offset);
        vf d = v_fma(-xhat, v_set(mean_gx), g - v_set(mean_g)) * v_set(rstd);
        v_store(dx + c, dsum ? v_load(dsum + c) + d : d);
    }
    if (c < width) {
        int64_t n = width - c;
        vf xhat = (v_load_part(x + c, n, 0.0f) - v_set(mean)) * v_set(rstd);
        vf g = v_load_part(dy + c, n, 0.0f) * (v_load_part(weight + c, n, 0.0f) + offset);
        vf d = v_fma(-xhat, v_set(mean_gx), g - v_set(mean_g)) * v_set(rstd);
        v_store_part(dx + c, dsum ? v_load_part(dsum + c, n, 0.0f) + d : d, n);
    }
}

/* partials (blocks, 2, C): each block's sums of dweight and dbias */
static void backward_thread(struct norm n, int64_t rows, const struct norm_backward *a,
                            float *partials)
{
    const float *dy = a->dy, *x = a->sum, *dsum = a->dsum; /* (R, C), dsum or NULL */
    float *dsum_out = a->dsum_out;                         /* (R, C) */
    int64_t step = cpu_block_rows(rows), width = n.width;
#pragma omp for schedule(static)
    for (int64_t block = 0; block < ceil_div(rows, step); block++) {
        float *pw = partials + block * 2 * width, *pb = pw + width;
        memset(pw, 0, (size_t)(2 * width) * sizeof(float));
        for (int64_t r = block * step; r < min64((block + 1) * step, rows); r++) {
            int64_t at = r * width;
            struct row row = {.width = width, .dy = dy + at, .x = x + at, .weight = a->weight};
            row.mean = n.kind == NORM_LAYER ? a->mean[r] : 0.0f;
            row.rstd = a->rstd[r];
            row.offset = (float)n.offset;
            row_sums(&row, pw, pb);
            if (n.kind == NORM_RMS)
                row.mean_g = 0;
            row_gradient(&row, dsum ? dsum + at : NULL, dsum_out + at);
        }
    }
}

void cpu_norm_backward(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                       const struct norm_backward *a)
{
    int64_t blocks = ceil_div(rows, cpu_block_rows(rows));
    float *partials = a->scratch;
    if (a->dsum_columns)
        cpu_column_sums(ops, rows, n.width, a->dsum, a->dsum_columns);
    IN_THREADS(cpu_threads(ops, rows * n.width), backward_thread(n, rows, a, partials));
    if (a->dweight)
        cpu_sum_partials(blocks, 2 * n.width, n.width, partials, a->dweight);
    if (a->dbias)
        cpu_sum_partials(blocks, 2 * n.width, n.width, partials + n.width, a->dbias);
    if (a->out_columns)
        cpu_column_sums(ops, rows, n.width, a->dsum_out, a->out_columns);
}
