/* cpu_attention_blas -- attention by OpenBLAS, for a machine without a kernel of our own and for one
 * query: of the T x T matrix, 64 queries by 256 keys exist at a time.
 *
 * Products are single-threaded sgemm calls directly on the packed qkv (strides, no copies). The
 * block of scores is in the thread's own memory and stays in its L2 cache. Keys after a block's
 * last query and before the window of its first are never read; in the blocks on the diagonal and
 * at the window's edge, masked scores become zeros after the exp.
 *
 *   forward   over key blocks: S = scale Q K^T; running maximum m and sum l of each row; P = exp(S -
 *             m); O = O exp(m_old - m) + P V; at the end O / l and lse = m + log l
 *   backward  over query heads and query blocks in order: P = exp(S - lse); dV += P^T dO; dP = dO
 *             V^T; dS = P (dP - rowsum(dO O)); dQ += scale dS K; dK += scale dS^T Q
 *
 * A cap changes S before all that, and dS is multiplied by its slope. A row of scores is padded: on
 * a Neoverse-V1, P V drops from 93 % to 69 % of the sgemm rate at a stride of exactly 256 floats.
 */
#include <cblas.h>
#include "ops/cpu/cpu_attention.h"
#include "ops/cpu/cpu_vector.h"

#define QUERIES CPU_ATTENTION_BLAS_ROWS
#define KEYS    256
/* Of a row of scores: room for a whole vector after the last key, and not a power of two */
#define STRIDE (KEYS + 16)

int64_t cpu_attention_blas_room(void)
{
    return 2 * QUERIES * STRIDE;
}

/* A factor of a product: rows `stride` floats apart */
struct factor {
    const float *x;
    int64_t stride;
    bool transposed;
};
#define AS_IS(x, stride)      ((struct factor){(x), (stride), false})
#define TRANSPOSED(x, stride) ((struct factor){(x), (stride), true})

struct result {
    float *x;
    int64_t stride;
    bool add; /* to what is there */
};
#define TO(x, stride)     ((struct result){(x), (stride), false})
#define ADD_TO(x, stride) ((struct result){(x), (stride), true})

/* c (m, n) = alpha a b, with a (m, k) and b (k, n) as they are or transposed */
static void product(int64_t m, int64_t n, int64_t k, float alpha, struct factor a, struct factor b,
                    struct result c)
{
    float beta = c.add ? 1.0f : 0.0f;
    if (m == 1 && b.transposed) /* one query: K times it */
        cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)n, (int)k, alpha, b.x, (int)b.stride, a.x, 1,
                    beta, c.x, 1);
    else if (m == 1 && !a.transposed)
        cblas_sgemv(CblasRowMajor, CblasTrans, (int)k, (int)n, alpha, b.x, (int)b.stride, a.x, 1,
                    beta, c.x, 1);
    else
        cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
                    b.transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a.x,
                    (int)a.stride, b.x, (int)b.stride, beta, c.x, (int)c.stride);
}

/* Columns of a block of scores: from .. end - 1. */
struct range {
    int64_t from, end;
};

static int64_t within(int64_t x, int64_t most)
{
    return x < 0 ? 0 : min64(x, most);
}

/* Keys of the block k0 .. k0 + keys - 1 that query row t sees */
static struct range visible(const struct cpu_head *h, int64_t t, int64_t k0, int64_t keys)
{
    int64_t at = h->past + t;
    return (struct range){within(ops_first_key(h->shape, at) - k0, keys),
                          within(at + 1 - k0, keys)};
}

/* The first key that a block of queries from row t0 on reads */
static int64_t first_read(const struct cpu_head *h, int64_t t0)
{
    return ops_first_key(h->shape, h->past + t0);
}

/* A row outside its range becomes 0. */
static void clear_outside(float *row, struct range in, int64_t keys)
{
    memset(row, 0, (size_t)in.from * sizeof(float));
    memset(row + in.end, 0, (size_t)(keys - in.end) * sizeof(float));
}

static float exp_one(float x)
{
    return v_exp(v_set(x))[0];
}

static void scale_row(int64_t n, float factor, float *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* Scores become exp(S - m); m, l and the rows of out so far are rescaled to the new maxima. */
static void soften(const struct cpu_head *h, int64_t t0, int64_t rows, int64_t k0, int64_t keys,
                   float *s, float *m, float *l)
{
    for (int64_t r = 0; r < rows; r++) {
        float *row = s + r * STRIDE;
        struct range in = visible(h, t0 + r, k0, keys);
        int64_t n = in.end - in.from;
        if (n > 0) {
            float *seen = row + in.from;
            if (h->cap > 0)
                v_row_softcap(seen, seen, h->cap, n);
            float max = v_row_max(seen, n);
            max = max > m[r] ? max : m[r];
            float sum = v_row_exp(seen, seen, max, n);
            if (l[r] > 0 && max > m[r]) {
                float shrink = exp_one(m[r] - max);
                l[r] *= shrink;
                scale_row(h->width, shrink, h->out + (t0 + r) * h->out_stride);
            }
            l[r] += sum;
            m[r] = max;
        }
        clear_outside(row, in, keys);
    }
}

void cpu_attention_blas_forward(const struct cpu_head *h, int64_t t0, float *s)
{
    float m[QUERIES], l[QUERIES];
    int64_t rows = min64(QUERIES, h->tokens - t0), seen = h->past + t0 + rows;
    int64_t first = first_read(h, t0);
    float *out = h->out + t0 * h->out_stride;
    for (int64_t r = 0; r < rows; r++) {
        m[r] = -INFINITY;
        l[r] = 0;
    }
    for (int64_t k0 = first; k0 < seen; k0 += KEYS) {
        int64_t keys = min64(KEYS, seen - k0);
        const float *k = h->k + k0 * h->kv_stride, *v = h->v + k0 * h->kv_stride;
        product(rows, keys, h->width, h->scale, AS_IS(h->q + t0 * h->q_stride, h->q_stride),
                TRANSPOSED(k, h->kv_stride), TO(s, STRIDE));
        soften(h, t0, rows, k0, keys, s, m, l);
        product(rows, h->width, keys, 1.0f, AS_IS(s, STRIDE), AS_IS(v, h->kv_stride),
                (struct result){out, h->out_stride, .add = k0 > first});
    }
    for (int64_t r = 0; r < rows; r++) {
        scale_row(h->width, 1.0f / l[r], out + r * h->out_stride);
        if (h->lse)
            h->lse[t0 + r] = m[r] + (float)log((double)l[r]);
    }
}

/* --- backward ------------------------------------------------------------------------------- */

/* S becomes P = exp(S - lse), dP becomes dS = P (dP - delta); both are 0 where the query does not
 * see the key. A query that sees one key has dS = 0 there, too: delta would only leave rounding. A
 * row is processed in whole vectors: the elements after its end are scratch, which is cleared or
 * never read. */
static void score_gradients(const struct cpu_head *h, int64_t t0, int64_t rows, int64_t k0,
                            int64_t keys, const float *delta, float *s, float *dp)
{
    float capped[STRIDE]; /* a row of S after the cap */
    for (int64_t r = 0; r < rows; r++) {
        float *p = s + r * STRIDE, *d = dp + r * STRIDE;
        struct range in = visible(h, t0 + r, k0, keys), sloped = in;
        if (ops_sees_one(h->shape, h->past + t0 + r))
            sloped = (struct range){0, 0};
        vf lse = v_set(h->lse[t0 + r]), shift = v_set(delta[r]);
        if (h->cap > 0) {
            v_row_softcap(p + in.from, p + in.from, h->cap, in.end - in.from);
            memcpy(capped + in.from, p + in.from, (size_t)(in.end - in.from) * sizeof(float));
        }
        for (int64_t i = in.from; i < in.end; i += LANES) {
            vf e = v_exp(v_load(p + i) - lse);
            v_store(p + i, e);
            v_store(d + i, e * (v_load(d + i) - shift));
        }
        if (h->cap > 0)
            v_row_softcap_slope(d + in.from, capped + in.from, h->cap, in.end - in.from);
        clear_outside(p, in, keys);
        clear_outside(d, sloped, keys);
    }
}

static void backward_block(const struct cpu_head *h, const struct cpu_head_gradient *g, int64_t t0,
                           float *s, float *dp)
{
    int64_t rows = min64(QUERIES, h->tokens - t0), first = first_read(h, t0), seen = t0 + rows;
    int64_t qs = h->q_stride, ks = h->kv_stride;
    const float *q = h->q + t0 * qs, *dout = g->dout + t0 * h->out_stride;
    float delta[QUERIES];
    for (int64_t r = 0; r < rows; r++)
        delta[r] = v_row_dot(dout + r * h->out_stride, h->out + (t0 + r) * h->out_stride, h->width);
    for (int64_t k0 = first; k0 < seen; k0 += KEYS) {
        int64_t keys = min64(KEYS, seen - k0);
        const float *k = h->k + k0 * ks, *v = h->v + k0 * ks;
        product(rows, keys, h->width, h->scale, AS_IS(q, qs), TRANSPOSED(k, ks), TO(s, STRIDE));
        product(rows, keys, h->width, 1.0f, AS_IS(dout, h->out_stride), TRANSPOSED(v, ks),
                TO(dp, STRIDE));
        score_gradients(h, t0, rows, k0, keys, delta, s, dp);
        product(keys, h->width, rows, 1.0f, TRANSPOSED(s, STRIDE), AS_IS(dout, h->out_stride),
                ADD_TO(g->dv + k0 * ks, ks));
        product(keys, h->width, rows, h->scale, TRANSPOSED(dp, STRIDE), AS_IS(q, qs),
                ADD_TO(g->dk + k0 * ks, ks));
        product(rows, h->width, keys, h->scale, AS_IS(dp, STRIDE), AS_IS(k, ks),
                (struct result){g->dq + t0 * qs, qs, .add = k0 > first});
    }
}

static void clear_rows(int64_t rows, int64_t width, int64_t stride, float *x)
{
    for (int64_t r = 0; r < rows; r++)
        memset(x + r * stride, 0, (size_t)width * sizeof(float));
}

/* On to the next query head of the group */
static void next_head(struct cpu_head *h, struct cpu_head_gradient *g)
{
    h->q += h->width;
    h->out += h->width;
    h->lse += h->tokens;
    g->dout += h->width;
    g->dq += h->width;
}

void cpu_attention_blas_backward(const struct cpu_head *first, const struct cpu_head_gradient *g,
                                 float *s)
{
    clear_rows(first->tokens, first->width, first->kv_stride, g->dk);
    clear_rows(first->tokens, first->width, first->kv_stride, g->dv);
    struct cpu_head h = *first;
    struct cpu_head_gradient of_head = *g;
    for (int64_t head = 0; head < cpu_head_group(h.shape); head++) {
        for (int64_t t0 = 0; t0 < h.tokens; t0 += QUERIES)
            backward_block(&h, &of_head, t0, s, s + QUERIES * STRIDE);
        next_head(&h, &of_head);
    }
}
