/* cpu_pointwise -- element-wise ops: sums, activations, rotary embedding.
 *
 * The compiler vectorizes loops without exp (every operation is exactly rounded, so vector body and
 * scalar tail agree); loops with exp use cpu_vector.h, also for their tails.
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

static void add_thread(int64_t count, const float *a, const float *b, float *sum)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        for (int64_t k = i; k < min64(i + FLAT_CHUNK, count); k++)
            sum[k] = a[k] + b[k];
}

void cpu_add(struct ops *ops, struct stream *stream, int64_t count, const void *a, const void *b,
             void *sum)
{
    IN_THREADS(cpu_threads(ops, count), add_thread(count, a, b, sum));
}

static void gelu_thread(int64_t count, const float *pre, float *y)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        v_row_gelu(y + i, pre + i, min64(FLAT_CHUNK, count - i));
}

void cpu_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y)
{
    IN_THREADS(cpu_threads(ops, count), gelu_thread(count, pre, y));
}

static void gelu_backward_thread(int64_t count, const float *pre, const float *dy, float *dpre)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        v_row_gelu_slope(dpre + i, dy + i, pre + i, min64(FLAT_CHUNK, count - i));
}

void cpu_gelu_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                       const void *dy, void *dpre)
{
    IN_THREADS(cpu_threads(ops, count), gelu_backward_thread(count, pre, dy, dpre));
}

/* With erff: few models have the exact form, and it is as good as the vector functions. */
static void gelu_exact_thread(int64_t count, const float *pre, float *y)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i++)
        y[i] = 0.5f * pre[i] * (1.0f + erff(pre[i] * 0.70710678f));
}

void cpu_gelu_exact(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y)
{
    IN_THREADS(cpu_threads(ops, count), gelu_exact_thread(count, pre, y));
}

static void gelu_exact_backward_thread(int64_t count, const float *pre, const float *dy,
                                       float *dpre)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        float x = pre[i], bell = expf(-0.5f * x * x) * 0.39894228f;
        dpre[i] = dy[i] * (0.5f * (1.0f + erff(x * 0.70710678f)) + x * bell);
    }
}

void cpu_gelu_exact_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                             const void *dy, void *dpre)
{
    IN_THREADS(cpu_threads(ops, count), gelu_exact_backward_thread(count, pre, dy, dpre));
}

/* silu(gate) up, or gelu(gate) up */
static inline vf gated(bool gelu, vf gate, vf up)
{
    return (gelu ? v_gelu(gate) : gate * v_sigmoid(gate)) * up;
}

static inline void gate_thread(bool gelu, int64_t rows, int64_t ff, const float *gate_up, float *y)
{
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = gate_up + r * 2 * ff, *up = gate + ff;
        float *to = y + r * ff;
        int64_t i = 0;
        for (; i + LANES <= ff; i += LANES)
            v_store(to + i, gated(gelu, v_load(gate + i), v_load(up + i)));
        if (i < ff) {
            int64_t n = ff - i;
            v_store_part(to + i,
                         gated(gelu, v_load_part(gate + i, n, 0.0f), v_load_part(up + i, n, 0.0f)),
                         n);
        }
    }
}

void cpu_swiglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                const void *gate_up, void *y)
{
    IN_THREADS(cpu_threads(ops, rows * ff), gate_thread(false, rows, ff, gate_up, y));
}

/* silu: dgate = dy up s (1 + gate (1 - s)), dup = dy gate s, with s = sigmoid(gate) */
static inline void gate_gradient(bool gelu, vf gate, vf up, vf dy, vf *dgate, vf *dup)
{
    if (gelu) {
        *dup = dy * v_gelu(gate);
        *dgate = dy * up * v_gelu_slope(gate);
        return;
    }
    vf s = v_sigmoid(gate), one = v_set(1.0f);
    *dup = dy * gate * s;
    *dgate = dy * up * s * v_fma(gate, one - s, one);
}

static inline void gate_backward_thread(bool gelu, int64_t rows, int64_t ff, const float *gate_up,
                                        const float *dy, float *dgate_up, float *act)
{
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = gate_up + r * 2 * ff, *up = gate + ff, *from = dy + r * ff;
        float *to = dgate_up + r * 2 * ff, *again = act ? act + r * ff : NULL;
        vf dgate, dup;
        int64_t i = 0;
        for (; i + LANES <= ff; i += LANES) {
            vf g = v_load(gate + i), u = v_load(up + i);
            gate_gradient(gelu, g, u, v_load(from + i), &dgate, &dup);
            if (again)
                v_store(again + i, gated(gelu, g, u));
            v_store(to + i, dgate);
            v_store(to + ff + i, dup);
        }
        if (i < ff) {
            int64_t n = ff - i;
            vf g = v_load_part(gate + i, n, 0.0f), u = v_load_part(up + i, n, 0.0f);
            gate_gradient(gelu, g, u, v_load_part(from + i, n, 0.0f), &dgate, &dup);
            if (again)
                v_store_part(again + i, gated(gelu, g, u), n);
            v_store_part(to + i, dgate, n);
            v_store_part(to + ff + i, dup, n);
        }
    }
}

void cpu_swiglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                         const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    IN_THREADS(cpu_threads(ops, rows * ff),
               gate_backward_thread(false, rows, ff, gate_up, dy, dgate_up, act));
}

void cpu_geglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
               const void *gate_up, void *y)
{
    IN_THREADS(cpu_threads(ops, rows * ff), gate_thread(true, rows, ff, gate_up, y));
}

void cpu_geglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                        const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    IN_THREADS(cpu_threads(ops, rows * ff),
               gate_backward_thread(true, rows, ff, gate_up, dy, dgate_up, act));
}

static void scale_thread(int64_t count, float factor, float *x)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        for (int64_t k = i; k < min64(i + FLAT_CHUNK, count); k++)
            x[k] *= factor;
}

void cpu_scale(struct ops *ops, struct stream *stream, int64_t count, double factor, void *x)
{
    IN_THREADS(cpu_threads(ops, count), scale_thread(count, (float)factor, x));
}

static void rope_thread(struct attention a, const float *table, int64_t first, bool inverse,
                        float *qkv)
{
    int64_t half = a.rotary / 2, width = (a.heads + 2 * a.kv_heads) * a.head_width;
    float sign = inverse ? -1.0f : 1.0f;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < a.batch * a.tokens; r++) {
        const float *turn = table + (first + r % a.tokens) * half * 2;
        for (int64_t h = 0; h < a.heads + a.kv_heads; h++) {
            float *restrict x = qkv + r * width + h * a.head_width, *restrict y = x + half;
            for (int64_t i = 0; i < half; i++) {
                float c = turn[2 * i], s = sign * turn[2 * i + 1], xi = x[i], yi = y[i];
                x[i] = xi * c - yi * s;
                y[i] = yi * c + xi * s;
            }
        }
    }
}

void cpu_rope(struct ops *ops, struct stream *stream, struct attention a, const float *table,
              struct past past, bool inverse, void *qkv)
{
    int64_t elements = a.batch * a.tokens * (a.heads + a.kv_heads) * a.head_width;
    IN_THREADS(cpu_threads(ops, elements), rope_thread(a, table, past.count, inverse, qkv));
}
