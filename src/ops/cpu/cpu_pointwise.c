/* cpu_pointwise -- what is done to each element by itself: sums, activations, rotary embedding.
 *
 * Loops without exp are left to the compiler (every operation rounds in one way, so vector body and scalar tail agree);
 * those with exp run on cpu_vector.h, tails included.
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

static void add_chunk(int64_t n, const float *a, const float *b, float *sum)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i];
}

void cpu_add(struct ops *ops, struct stream *stream, int64_t count, const void *a, const void *b,
             void *sum)
{
    (void)stream;
    const float *x = a, *y = b;
    float *z = sum;
#pragma omp parallel for num_threads(cpu_team(ops, count)) schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        add_chunk(min64(FLAT_CHUNK, count - i), x + i, y + i, z + i);
}

void cpu_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y)
{
    (void)stream;
    const float *x = pre;
    float *out = y;
#pragma omp parallel for num_threads(cpu_team(ops, count)) schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        v_row_gelu(out + i, x + i, min64(FLAT_CHUNK, count - i));
}

void cpu_gelu_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                       const void *dy, void *dpre)
{
    (void)stream;
    const float *x = pre, *d = dy;
    float *out = dpre;
#pragma omp parallel for num_threads(cpu_team(ops, count)) schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        v_row_gelu_slope(out + i, d + i, x + i, min64(FLAT_CHUNK, count - i));
}

void cpu_swiglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                const void *gate_up, void *y)
{
    (void)stream;
    const float *in = gate_up;
    float *out = y;
#pragma omp parallel for num_threads(cpu_team(ops, rows *ff)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = in + r * 2 * ff, *up = gate + ff;
        float *to = out + r * ff;
        int64_t i = 0;
        for (; i + LANES <= ff; i += LANES) {
            vf g = v_load(gate + i);
            v_store(to + i, g * v_sigmoid(g) * v_load(up + i));
        }
        if (i < ff) {
            vf g = v_load_part(gate + i, ff - i, 0.0f);
            v_store_part(to + i, g * v_sigmoid(g) * v_load_part(up + i, ff - i, 0.0f), ff - i);
        }
    }
}

/* dgate = dy up s (1 + gate (1 - s)), dup = dy gate s, with s = sigmoid(gate) */
static void swiglu_gradient(vf gate, vf up, vf dy, vf *dgate, vf *dup)
{
    vf s = v_sigmoid(gate), one = v_set(1.0f);
    *dup = dy * gate * s;
    *dgate = dy * up * s * v_fma(gate, one - s, one);
}

void cpu_swiglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                         const void *gate_up, const void *dy, void *dgate_up)
{
    (void)stream;
    const float *in = gate_up, *d = dy;
    float *out = dgate_up;
#pragma omp parallel for num_threads(cpu_team(ops, rows *ff)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = in + r * 2 * ff, *up = gate + ff, *from = d + r * ff;
        float *to = out + r * 2 * ff;
        vf dgate, dup;
        int64_t i = 0;
        for (; i + LANES <= ff; i += LANES) {
            swiglu_gradient(v_load(gate + i), v_load(up + i), v_load(from + i), &dgate, &dup);
            v_store(to + i, dgate);
            v_store(to + ff + i, dup);
        }
        if (i < ff) {
            int64_t n = ff - i;
            swiglu_gradient(v_load_part(gate + i, n, 0.0f), v_load_part(up + i, n, 0.0f),
                            v_load_part(from + i, n, 0.0f), &dgate, &dup);
            v_store_part(to + i, dgate, n);
            v_store_part(to + ff + i, dup, n);
        }
    }
}

void cpu_rope(struct ops *ops, struct stream *stream, struct attention a, const float *table,
              int64_t first, bool inverse, void *qkv)
{
    (void)stream;
    int64_t half = a.head_width / 2, width = (a.heads + 2 * a.kv_heads) * a.head_width;
    int64_t rows = a.batch * a.tokens, turned = a.heads + a.kv_heads;
    float *base = qkv, sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(cpu_team(ops, rows *width)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *turn = table + (first + r % a.tokens) * half * 2;
        for (int64_t h = 0; h < turned; h++) {
            float *restrict x = base + r * width + h * a.head_width, *restrict y = x + half;
            for (int64_t i = 0; i < half; i++) {
                float c = turn[2 * i], s = sign * turn[2 * i + 1], xi = x[i], yi = y[i];
                x[i] = xi * c - yi * s;
                y[i] = yi * c + xi * s;
            }
        }
    }
}
