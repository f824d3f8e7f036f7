/* ref_attention -- template: rotary embedding and causal attention for one REAL, included by ref.c.
 *
 * A row of qkv has (H + 2G) D elements: H query heads, G key heads, G value heads. The forward pass
 * reads the keys twice for each query (largest score; weights and output), so no row of scores is
 * stored. The backward pass recomputes one row of probabilities at a time from q and k, and needs
 * neither `out` nor `lse`, which is rounded to float.
 */

static double REF(dot)(const REAL *a, const REAL *b, int64_t width)
{
    double sum = 0;
    for (int64_t d = 0; d < width; d++)
        sum += (double)GET(a[d]) * GET(b[d]);
    return sum;
}

static int64_t REF(qkv_width)(struct attention a)
{
    return (a.heads + 2 * a.kv_heads) * a.head_width;
}

static void REF(rope)(struct ops *ops, struct stream *stream, struct attention a,
                      const float *table, struct past past, bool inverse, void *qkv)
{
    int64_t half = a.rotary / 2;
    for (int64_t row = 0; row < a.batch * a.tokens; row++) {
        const float *turn = table + (past.count + row % a.tokens) * half * 2; /* (N/2, 2) */
        REAL *x = (REAL *)qkv + row * REF(qkv_width)(a);
        for (int64_t head = 0; head < a.heads + a.kv_heads; head++, x += a.head_width) {
            for (int64_t i = 0; i < half; i++) {
                double c = turn[2 * i], s = inverse ? -turn[2 * i + 1] : turn[2 * i + 1];
                double x1 = GET(x[i]), x2 = GET(x[i + half]);
                x[i] = PUT(x1 * c - x2 * s);
                x[i + half] = PUT(x2 * c + x1 * s);
            }
        }
    }
}

static double REF(score)(struct attention a, const REAL *q, const REAL *key)
{
    return ref_softcap(a.cap, ops_attention_scale(a) * REF(dot)(q, key, a.head_width));
}

/* The query q (D) at position `at` over its keys and values, rows `stride` apart; out (D). Returns
 * the log of the softmax's denominator. The width is processed in parts so that the sums fit on the
 * stack. */
static double REF(attend)(struct attention a, const REAL *q, const REAL *keys, const REAL *values,
                          int64_t stride, int64_t at, REAL *out)
{
    enum { PART = 64 };
    int64_t width = a.head_width, first_key = ops_first_key(a, at);
    double largest = -INFINITY, denominator = 0;
    for (int64_t j = first_key; j <= at; j++)
        largest = fmax(largest, REF(score)(a, q, keys + j * stride));
    for (int64_t first = 0; first < width; first += PART) {
        int64_t part = first + PART < width ? PART : width - first;
        double sums[PART] = {0};
        denominator = 0;
        for (int64_t j = first_key; j <= at; j++) {
            double p = exp(REF(score)(a, q, keys + j * stride) - largest);
            denominator += p;
            for (int64_t d = 0; d < part; d++)
                sums[d] += p * GET(values[j * stride + first + d]);
        }
        for (int64_t d = 0; d < part; d++)
            out[first + d] = PUT(sums[d] / denominator);
    }
    return largest + log(denominator);
}

static void REF(attention)(struct ops *ops, struct stream *stream, struct attention a,
                           const void *qkv_, void *out_, float *lse, void *scratch)
{
    int64_t D = a.head_width, stride = REF(qkv_width)(a), group = a.heads / a.kv_heads;
    for (int64_t b = 0; b < a.batch; b++) {
        const REAL *qkv = (const REAL *)qkv_ + b * a.tokens * stride; /* (T, (H + 2G) D) */
        REAL *out = (REAL *)out_ + b * a.tokens * a.heads * D;        /* (T, H D) */
        for (int64_t h = 0; h < a.heads; h++) {
            const REAL *keys = qkv + (a.heads + h / group) * D, *values = keys + a.kv_heads * D;
            for (int64_t t = 0; t < a.tokens; t++)
                lse[(b * a.heads + h) * a.tokens + t] =
                    (float)REF(attend)(a, qkv + t * stride + h * D, keys, values, stride, t,
                                       out + (t * a.heads + h) * D);
        }
    }
}

/* Gradients of query t of head h in one sequence. dk and dv (T, D) are added to, the query's
 * columns of dqkv are written; p and dp have room for T values. With P the probabilities: dv += P
 * dout; dP = dout . v; ds = P (dP - sum P dP) times scale and the slope of the cap; dq = ds k; dk +=
 * ds q. A query that sees one key has ds = 0: the sum of one term is exact. */
static void REF(attend_backward)(struct attention a, int64_t h, int64_t t, const REAL *qkv,
                                 const REAL *dout, REAL *dqkv, double *scratch)
{
    int64_t D = a.head_width, stride = REF(qkv_width)(a), first = ops_first_key(a, t);
    double *p = scratch, *dp = p + a.tokens, *dk = dp + a.tokens, *dv = dk + a.tokens * D;
    const REAL *q = qkv + t * stride + h * D;                            /* (D) */
    const REAL *keys = qkv + (a.heads + h / (a.heads / a.kv_heads)) * D; /* rows `stride` apart */
    const REAL *values = keys + a.kv_heads * D;
    REAL *dq = dqkv + t * stride + h * D;
    double largest = -INFINITY, denominator = 0, mean = 0;
    dout += (t * a.heads + h) * D;
    for (int64_t j = first; j <= t; j++) {
        p[j] = REF(score)(a, q, keys + j * stride);
        dp[j] = REF(dot)(dout, values + j * stride, D);
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = first; j <= t; j++)
        denominator += exp(p[j] - largest);
    for (int64_t j = first; j <= t; j++)
        mean += exp(p[j] - largest) / denominator * dp[j];
    for (int64_t j = first; j <= t; j++) {
        double slope = ops_attention_scale(a) * ref_softcap_slope(a.cap, p[j]);
        p[j] = exp(p[j] - largest) / denominator;
        dp[j] = p[j] * (dp[j] - mean) * slope; /* ds */
    }
    for (int64_t d = 0; d < D; d++) {
        double sum = 0;
        for (int64_t j = first; j <= t; j++) {
            sum += dp[j] * GET(keys[j * stride + d]);
            dk[j * D + d] += dp[j] * GET(q[d]);
            dv[j * D + d] += p[j] * GET(dout[d]);
        }
        dq[d] = PUT(sum);
    }
}

static void REF(attention_backward)(struct ops *ops, struct stream *stream, struct attention a,
                                    const struct attention_backward *g)
{
    int64_t D = a.head_width, T = a.tokens, stride = REF(qkv_width)(a);
    int64_t group = a.heads / a.kv_heads;
    double *dk = (double *)g->scratch + 2 * T, *dv = dk + T * D; /* (T, D) each, after p and dp */
    for (int64_t b = 0; b < a.batch; b++) {
        const REAL *qkv = (const REAL *)g->qkv + b * T * stride;        /* (T, (H + 2G) D) */
        const REAL *dout = (const REAL *)g->dout + b * T * a.heads * D; /* (T, H D) */
        REAL *dqkv = (REAL *)g->dqkv + b * T * stride;                  /* (T, (H + 2G) D) */
        for (int64_t kv = 0; kv < a.kv_heads; kv++) {
            int64_t at_key = (a.heads + kv) * D, at_value = at_key + a.kv_heads * D;
            for (int64_t i = 0; i < T * D; i++)
                dk[i] = dv[i] = 0;
            for (int64_t h = kv * group; h < (kv + 1) * group; h++)
                for (int64_t t = 0; t < T; t++)
                    REF(attend_backward)(a, h, t, qkv, dout, dqkv, g->scratch);
            for (int64_t i = 0; i < T * D; i++) {
                dqkv[i / D * stride + at_key + i % D] = PUT(dk[i]);
                dqkv[i / D * stride + at_value + i % D] = PUT(dv[i]);
            }
        }
    }
    if (g->rope)
        REF(rope)(ops, stream, a, g->rope, (struct past){0}, true, g->dqkv);
    if (g->dbias)
        REF(column_sums)(a.batch * T, stride, stride, g->dqkv, false, g->dbias);
}

static size_t REF(attention_scratch)(const struct ops *ops, struct attention a)
{
    return 2 * (size_t)a.tokens * ((size_t)a.head_width + 1) * sizeof(double);
}

static void REF(attention_cached)(struct ops *ops, struct stream *stream, struct attention a,
                                  const struct attention_cached *c)
{
    int64_t D = a.head_width, stride = REF(qkv_width)(a), kv_stride = a.kv_heads * D;
    int64_t group = a.heads / a.kv_heads, past = c->past.count;
    for (int64_t b = 0; b < a.batch; b++) {
        REAL *keys = (REAL *)c->cache_k + b * c->room * kv_stride; /* (room, G D) */
        REAL *values = (REAL *)c->cache_v + b * c->room * kv_stride;
        for (int64_t t = 0; t < a.tokens; t++) {
            const REAL *q = (const REAL *)c->qkv + (b * a.tokens + t) * stride;
            REAL *out = (REAL *)c->out + (b * a.tokens + t) * a.heads * D; /* (H D) */
            const REAL *k = q + a.heads * D, *v = k + kv_stride;
            for (int64_t i = 0; i < kv_stride; i++) {
                keys[(past + t) * kv_stride + i] = k[i];
                values[(past + t) * kv_stride + i] = v[i];
            }
            for (int64_t h = 0; h < a.heads; h++)
                REF(attend)
            (a, q + h * D, keys + h / group * D, values + h / group * D, kv_stride, past + t,
             out + h * D);
        }
    }
}
