/* cpu_route -- routed layers (SARS) and the gate on their gradients.
 *
 * In the backward pass a group of neurons of one row is read several times while it is in the L1
 * cache: for its largest values, for G and z, for exp(z), for the entropy and its slope, and for
 * the gradients. Two buffers hold z, then p, and the slope. Sums over rows run over blocks of rows
 * (cpu_impl.h); each block has its own buffers and partial sums in scratch. Tails run through the
 * same vectors (cpu_vector.h).
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

#define EPS ((float)OPS_MAS_EPS)

static vf zero_unless(vi mask, vf x)
{
    return v_from_bits(mask & (vi)x);
}

/* --- forward ---------------------------------------------------------------------------------- */

static void route_thread(struct routing n, int64_t rows, const struct route *a)
{
    const float *pre = a->pre, *match = a->match, *cost = a->cost; /* (R, K, C), cost (K, C) */
    float *logits = a->logits, *out = a->out;                      /* (R, K, C) */
    int64_t width = n.groups * n.width;
    vf scale = v_set(ops_route_scale(n));
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t at = r * width + c, left = width - c;
            vf chosen = v_fma(v_get(match + at, left), scale, -v_get(cost + c, left));
            vf x = v_get(pre + at, left);
            v_put(logits + at, chosen, left);
            v_put(out + at, zero_unless(chosen > 0.0f, x * v_sigmoid(x)), left);
        }
    }
}

void cpu_route(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
               const struct route *a)
{
    IN_THREADS(cpu_threads(ops, rows * n.groups * n.width), route_thread(n, rows, a));
}

/* --- backward --------------------------------------------------------------------------------- */

enum { SUMS = 3 }; /* goodness, active, dcost */

/* Floats of a block of rows in scratch: partial sums (SUMS, K, C), then z and slope (C) */
static int64_t block_floats(struct routing n)
{
    return (SUMS * n.groups + 2) * n.width;
}

/* Before them, the sums of the entropies (blocks, K), doubles. */
size_t cpu_route_scratch(const struct ops *ops, struct routing n, int64_t rows)
{
    int64_t blocks = ceil_div(rows, cpu_block_rows(rows));
    return (size_t)(blocks * n.groups) * sizeof(double) +
           (size_t)(blocks * block_floats(n)) * sizeof(float);
}

/* One group of neurons of one row */
struct group {
    int64_t width;
    float norm;                       /* of x */
    float scale, weight, sign;        /* of the match, of the entropy, of G */
    const float *dout, *pre, *logits; /* (C) */
    float *dpre, *dmatch;             /* (C) */
    float *goodness, *active, *dcost; /* (C) partial sums */
    float *z, *slope;                 /* (C) buffers */
};

/* z = G, also added to the partial sums */
static void form_goodness(const struct group *g)
{
    float most = v_row_max_abs(g->dout, g->width), longest = v_row_max_abs(g->logits, g->width);
    vf norm = v_set(g->norm), importance = v_set(most + EPS), effort = v_set(most * g->norm + EPS);
    vf belief = v_set(longest + EPS);
    for (int64_t c = 0; c < g->width; c += LANES) {
        int64_t left = g->width - c;
        vf d = v_abs(v_get(g->dout + c, left));
        vf good = d / importance * (v_get(g->logits + c, left) / belief - d * norm / effort);
        v_put(g->z + c, good, left);
        v_put(g->goodness + c, v_get(g->goodness + c, left) + good, left);
    }
}

/* z = logits + factor (z - center) */
static void form_z(const struct group *g, float center, float factor)
{
    for (int64_t c = 0; c < g->width; c += LANES) {
        int64_t left = g->width - c;
        vf good = (v_get(g->z + c, left) - v_set(center)) * v_set(factor);
        v_put(g->z + c, v_get(g->logits + c, left) + good, left);
    }
}

/* From z, p = softmax(z) in its place and e = -log q + eps / q in slope, with q = p + eps: 1 more
 * than dH/dp, which changes nothing below and does not cancel. Returns H; *mean is the sum of p e.
 * In a tail p is 0. */
static float form_entropy(const struct group *g, float *mean)
{
    vf factor = v_set(1.0f / v_row_exp(g->z, g->z, v_row_max(g->z, g->width), g->width));
    vf entropy = {0}, sum = {0}, eps = v_set(EPS);
    for (int64_t c = 0; c < g->width; c += LANES) {
        int64_t left = g->width - c;
        vf p = v_get(g->z + c, left) * factor, q = p + eps, surprise = -v_log(q);
        vf e = surprise + eps / q;
        entropy = v_fma(p, surprise, entropy);
        sum = v_fma(p, e, sum);
        v_put(g->z + c, p, left);
        v_put(g->slope + c, e, left);
    }
    *mean = v_fold_sum(sum);
    return v_fold_sum(entropy);
}

/* dpre, dmatch and the partial sums of the mask and of dcost; each element is read before it is
 * written */
static void form_gradients(const struct group *g, float mean)
{
    vf one = v_set(1.0f);
    for (int64_t c = 0; c < g->width; c += LANES) {
        int64_t left = g->width - c;
        vf d = v_get(g->z + c, left) * (v_get(g->slope + c, left) - v_set(mean)) * v_set(g->weight);
        vf x = v_get(g->pre + c, left), s = v_sigmoid(x);
        vi active = v_get(g->logits + c, left) > 0.0f;
        vf dx = v_get(g->dout + c, left) * s * v_fma(x, one - s, one);
        v_put(g->dpre + c, zero_unless(active, dx), left);
        v_put(g->dmatch + c, d * v_set(g->scale), left);
        v_put(g->active + c, v_get(g->active + c, left) + zero_unless(active, one), left);
        v_put(g->dcost + c, v_get(g->dcost + c, left) - d, left);
    }
}

/* Returns the entropy. */
static float group_backward(const struct group *g, bool standardise)
{
    float center = 0, factor = g->sign, mean;
    form_goodness(g);
    if (standardise) {
        center = v_row_sum(g->z, g->width) / (float)g->width;
        factor /= sqrtf(v_row_squares(g->z, center, g->width) / (float)g->width +
                        (float)OPS_STANDARDISE_EPS);
    }
    form_z(g, center, factor);
    float entropy = form_entropy(g, &mean);
    form_gradients(g, mean);
    return entropy;
}

static void row_backward(struct routing n, int64_t r, const struct route_backward *a, float *block,
                         double *entropy)
{
    int64_t width = n.groups * n.width;
    float norm = sqrtf(v_row_squares((const float *)a->x + r * n.in, 0.0f, n.in));
    for (int64_t k = 0; k < n.groups; k++) {
        int64_t column = k * n.width, at = r * width + column;
        struct group g = {.width = n.width,
                          .norm = norm,
                          .scale = ops_route_scale(n),
                          .weight = a->weight,
                          .sign = n.minus ? -1.0f : 1.0f,
                          .dout = (const float *)a->dout + at,
                          .pre = (const float *)a->pre + at,
                          .logits = (const float *)a->logits + at,
                          .dpre = (float *)a->dpre + at,
                          .dmatch = (float *)a->dmatch + at,
                          .goodness = block + column,
                          .active = block + width + column,
                          .dcost = block + 2 * width + column,
                          .z = block + SUMS * width,
                          .slope = block + SUMS * width + n.width};
        entropy[k] += (double)group_backward(&g, n.standardise);
    }
}

static void backward_thread(struct routing n, int64_t rows, const struct route_backward *a,
                            double *entropies, float *floats)
{
    int64_t step = cpu_block_rows(rows);
#pragma omp for schedule(static)
    for (int64_t b = 0; b < ceil_div(rows, step); b++) {
        float *block = floats + b * block_floats(n);
        double *entropy = entropies + b * n.groups;
        memset(block, 0, (size_t)block_floats(n) * sizeof *block);
        memset(entropy, 0, (size_t)n.groups * sizeof *entropy);
        for (int64_t r = b * step; r < min64((b + 1) * step, rows); r++)
            row_backward(n, r, a, block, entropy);
    }
}

void cpu_route_backward(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
                        const struct route_backward *a)
{
    int64_t blocks = ceil_div(rows, cpu_block_rows(rows)), width = n.groups * n.width;
    int64_t stride = block_floats(n);
    double *entropies = a->scratch;                           /* (blocks, K) */
    float *floats = (float *)(entropies + blocks * n.groups); /* (blocks, stride) */
    IN_THREADS(cpu_threads(ops, rows * width), backward_thread(n, rows, a, entropies, floats));
    cpu_sum_partials(blocks, stride, width, floats, a->goodness);
    cpu_sum_partials(blocks, stride, width, floats + width, a->active);
    cpu_sum_partials(blocks, stride, width, floats + 2 * width, a->dcost);
    for (int64_t k = 0; k < n.groups; k++) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; b++)
            sum += entropies[b * n.groups + k];
        a->entropy[k] = (float)sum;
    }
}

/* --- the gate --------------------------------------------------------------------------------- */

static float gated(float x, bool kept, float limit)
{
    float clamped = x < -limit ? -limit : x > limit ? limit : x;
    return !isfinite(x) ? x : kept ? clamped : 0.0f;
}

/* Elements [from, to) of the range, all in one row */
static void gate_run(enum dtype type, const struct gate_rows *a, int64_t from, int64_t to,
                     bool kept)
{
    float *x = a->x;
    uint16_t *bits = a->x;
    if (type == DTYPE_F32)
        for (int64_t i = from; i < to; i++)
            x[i] = gated(x[i], kept, a->limit);
    else if (type == DTYPE_BF16)
        for (int64_t i = from; i < to; i++)
            bits[i] = f32_to_bf16(gated(bf16_to_f32(bits[i]), kept, a->limit));
    else
        for (int64_t i = from; i < to; i++)
            bits[i] = f32_to_f16(gated(f16_to_f32(bits[i]), kept, a->limit));
}

static void gate_thread(enum dtype type, const struct gate_rows *a)
{
    int64_t columns = a->columns > 0 ? a->columns : INT64_MAX;
#pragma omp for schedule(static)
    for (int64_t first = 0; first < a->count; first += FLAT_CHUNK) {
        int64_t end = min64(first + FLAT_CHUNK, a->count);
        for (int64_t i = first, to; i < end; i = to) {
            int64_t row = (a->first + i) / columns, left = columns - (a->first + i) % columns;
            to = left < end - i ? i + left : end;
            gate_run(type, a, i, to, !a->goodness || a->goodness[row] > 0);
        }
    }
}

void cpu_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                   const struct gate_rows *a)
{
    IN_THREADS(cpu_threads(ops, a->count), gate_thread(type, a));
}
