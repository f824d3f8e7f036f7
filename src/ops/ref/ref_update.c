/* ref_update -- reference for updates: the rules of ops.h, one element after the other, and the
 * orthogonalization of a matrix. Parameters and moments are f32 whatever the compute type is. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "ops/ops_code8.h"
#include "ops/ref/ref_impl.h"

/* --- the rules ------------------------------------------------------------------------------ */

/* The factors of one segment. */
struct factors {
    float beta1, rest1, beta2, rest2, eps, rate;
    const struct step_scalars *now;
};

static struct factors factors_of(const struct update *update, const struct step_scalars *scalars,
                                 const struct update_segment *s)
{
    return (struct factors){.beta1 = (float)update->beta1,
                            .rest1 = (float)(1 - update->beta1),
                            .beta2 = (float)update->beta2,
                            .rest2 = (float)(1 - update->beta2),
                            .eps = (float)update->eps,
                            .rate = scalars->lr * s->lr_mul,
                            .now = scalars};
}

static float gradient(const struct factors *f, const struct update_segment *s, int64_t i)
{
    return ref_element(s->grad, s->grad_type, i) * f->now->grad_scale;
}

/* Updates m, v and param of one element. */
static void adamw_element(const struct factors *f, const struct update_segment *s, int64_t i,
                          float *m, float *v)
{
    float g = gradient(f, s, i);
    *m = f->beta1 * *m + f->rest1 * g;
    *v = f->beta2 * *v + f->rest2 * (g * g);
    float step = *m / f->now->correction1 / (sqrtf(*v / f->now->correction2) + f->eps);
    s->param[i] -= f->rate * (step + s->decay * s->param[i]);
}

static void adamw(const struct factors *f, const struct update_segment *s)
{
    float *m = s->m, *v = s->v;
    for (int64_t i = 0; i < s->count; i++)
        adamw_element(f, s, i, &m[i], &v[i]);
}

/* Elements first .. end-1 of a segment, which are one block. */
static void adamw8_block(const struct factors *f, const struct update_segment *s, int64_t number,
                         int64_t first, int64_t end, int64_t block)
{
    float m[OPS_BLOCK], root[OPS_BLOCK];
    uint8_t *m_codes = s->m, *v_codes = s->v;
    uint32_t most_m = 0, most_root = 0;
    for (int64_t i = first, k = 0; i < end; i++, k++) {
        m[k] = f32_from_bits(code8_decode(m_codes[i] & 0x7fu, s->m_scale[block], CODE8_TOP_M) |
                             (uint32_t)(m_codes[i] & 0x80u) << 24);
        float u = f32_from_bits(code8_decode(v_codes[i], s->v_scale[block], CODE8_TOP_V)),
              v = u * u;
        adamw_element(f, s, i, &m[k], &v);
        root[k] = sqrtf(v);
        uint32_t a = code8_magnitude(f32_bits(m[k])), b = code8_magnitude(f32_bits(root[k]));
        most_m = a > most_m ? a : most_m;
        most_root = b > most_root ? b : most_root;
    }
    s->m_scale[block] = code8_scale(most_m);
    s->v_scale[block] = code8_scale(most_root);
    for (int64_t i = first, k = 0; i < end; i++, k++) {
        uint32_t a = code8_magnitude(f32_bits(m[k])), b = code8_magnitude(f32_bits(root[k]));
        int32_t random = code8_random(s->key, (uint64_t)(s->first + i), (uint64_t)number);
        uint32_t m_code = code8_encode(a, s->m_scale[block], CODE8_TOP_M, -1);
        uint32_t v_code = code8_encode(b, s->v_scale[block], CODE8_TOP_V, random);
        m_codes[i] = (uint8_t)code8_signed(m_code, f32_bits(m[k]) >> 24);
        v_codes[i] = (uint8_t)(v_code == 0 && b > 0 ? 1 : v_code);
    }
}

static void adamw8(const struct factors *f, const struct update_segment *s, int64_t number)
{
    for (int64_t first = 0, block = 0, end; first < s->count; first = end, block++) {
        end = (block + 1) * OPS_BLOCK - s->skip;
        end = end < s->count ? end : s->count;
        adamw8_block(f, s, number, first, end, block);
    }
}

static void sgd(const struct factors *f, const struct update_segment *s, bool nesterov)
{
    float *m = s->m;
    for (int64_t i = 0; i < s->count; i++) {
        float g = gradient(f, s, i) + s->decay * s->param[i];
        if (m) {
            m[i] = f->beta1 * m[i] + g;
            g = nesterov ? g + f->beta1 * m[i] : m[i];
        }
        s->param[i] -= f->rate * g;
    }
}

static void muon(const struct factors *f, const struct update_segment *s, bool nesterov)
{
    float *m = s->m;
    for (int64_t i = 0; i < s->count; i++) {
        float g = gradient(f, s, i);
        m[i] = f->beta1 * m[i] + f->rest1 * g;
        float direction = nesterov ? f->beta1 * m[i] + f->rest1 * g : m[i];
        dtype_convert((char *)s->copy + (size_t)i * dtype_bytes(s->copy_type), s->copy_type,
                      &direction, DTYPE_F32, 1);
    }
}

static void apply(const struct factors *f, const struct update_segment *s)
{
    for (int64_t i = 0; i < s->count; i++)
        s->param[i] -=
            f->rate * (s->scale * ref_element(s->grad, s->grad_type, i) + s->decay * s->param[i]);
}

static void copy_at_random(const struct update_segment *s, const struct update_location *location,
                           int64_t number)
{
    uint16_t *copy = s->copy;
    for (int64_t i = 0; i < s->count; i++) {
        uint32_t random = rng_word((struct rng){location->key},
                                   (uint64_t)ops_whole_element(location, i), (uint64_t)number);
        copy[i] = s->copy_type == DTYPE_BF16 ? f32_to_bf16_random(s->param[i], random)
                                             : f32_to_f16_random(s->param[i], random);
    }
}

void ref_update(struct ops *ops, struct stream *stream, const struct update *update,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count)
{
    for (int i = 0; i < segment_count; i++) {
        const struct update_segment *s = &segments[i];
        ops_check_segment(update, s);
        struct factors f = factors_of(update, scalars, s);
        switch (update->rule) {
        case UPDATE_ADAMW8: adamw8(&f, s, update->number); break;
        case UPDATE_SGD: sgd(&f, s, update->nesterov); break;
        case UPDATE_MUON: muon(&f, s, update->nesterov); break;
        case UPDATE_APPLY: apply(&f, s); break;
        default: adamw(&f, s); break;
        }
        if (ops_rounds_at_random(update, s))
            copy_at_random(s, &update->locations[i], update->number);
        else if (s->copy && update->rule != UPDATE_MUON)
            dtype_convert(s->copy, s->copy_type, s->param, DTYPE_F32, s->count);
    }
}

/* --- orthogonalization ---------------------------------------------------------------------- */

/* In double: x with at most as many rows as columns (transposed if need be), A = x x^T, and b A + c
 * A^2. */
size_t ref_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns)
{
    int64_t least = rows < columns ? rows : columns;
    return (size_t)(2 * rows * columns + 2 * least * least) * sizeof(double);
}

/* out (n, m) = left (n, k) right (k, m); with `transposed`, right is stored (m, k) */
static void product(double *out, const double *left, const double *right, int64_t n, int64_t k,
                    int64_t m, bool transposed)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += left[i * k + l] * (transposed ? right[j * k + l] : right[l * m + j]);
            out[i * m + j] = sum;
        }
}

void ref_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                       void *x, void *scratch)
{
    bool tall = rows > columns;
    int64_t n = tall ? columns : rows, m = tall ? rows : columns, count = rows * columns;
    double *work = scratch, *next = work + count, *square = next + count, *factor = square + n * n;
    double norm = 0;
    dtype_convert(next, DTYPE_F64, x, ops->type, count);
    for (int64_t i = 0; i < count; i++)
        norm += next[i] * next[i];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            work[i * m + j] =
                (tall ? next[j * n + i] : next[i * m + j]) / (norm > 0 ? sqrt(norm) : 1);
    for (int turn = 0; turn < OPS_NEWTON_SCHULZ; turn++) {
        product(square, work, work, n, m, n, true);
        product(factor, square, square, n, n, n, false);
        for (int64_t i = 0; i < n * n; i++)
            factor[i] = OPS_NEWTON_SCHULZ_B * square[i] + OPS_NEWTON_SCHULZ_C * factor[i];
        product(next, factor, work, n, n, m, false);
        for (int64_t i = 0; i < count; i++)
            work[i] = OPS_NEWTON_SCHULZ_A * work[i] + next[i];
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            next[i * columns + j] = tall ? work[j * m + i] : work[i * m + j];
    dtype_convert(x, ops->type, next, DTYPE_F64, count);
}
