/* ref_heads -- template: RMS norms of the queries and keys in qkv, for one REAL, included by ref.c.
 *
 * Letters: R rows, H query heads and G key/value heads of width D. Sums are double, here and in the
 * arrays between the two calls of a pass.
 */

static void REF(head_sums)(struct ops *ops, struct stream *stream, struct head_rms n,
                           const struct head_sums *a)
{
    int64_t groups = ops_head_groups(n), row = (n.heads + 2 * n.kv_heads) * n.head_width;
    int64_t x_row = a->dy != NULL ? (n.heads + n.kv_heads) * n.head_width : row;
    for (int64_t r = 0; r < n.rows; r++) {
        for (int64_t s = 0; s < groups; s++) {
            struct head_span span = ops_head_span(n, s);
            const REAL *x = (const REAL *)a->x + r * x_row + span.first;
            const REAL *dy = (const REAL *)a->dy, *weight = span.key ? a->k : a->q;
            double sum = 0;
            for (int64_t c = 0; c < span.count; c++) {
                double other = GET(x[c]);
                if (dy != NULL)
                    other = (double)GET(dy[r * row + span.first + c]) *
                            ((double)GET(weight[c]) + n.offset);
                sum += GET(x[c]) * other;
            }
            a->sums[r * groups + s] = sum;
        }
    }
}

static void REF(head_rms)(struct ops *ops, struct stream *stream, struct head_rms n,
                          const struct head_rms_forward *a)
{
    int64_t groups = ops_head_groups(n), row = (n.heads + 2 * n.kv_heads) * n.head_width;
    int64_t kept_row = (n.heads + n.kv_heads) * n.head_width;
    for (int64_t r = 0; r < n.rows; r++) {
        for (int64_t s = 0; s < groups; s++) {
            struct head_span span = ops_head_span(n, s);
            REAL *x = (REAL *)a->qkv + r * row + span.first;
            REAL *kept = a->kept != NULL ? (REAL *)a->kept + r * kept_row + span.first : NULL;
            const REAL *weight = span.key ? a->k : a->q;
            double rstd = 1 / sqrt(a->squares[r * groups + s] / span.total + n.eps);
            for (int64_t c = 0; c < span.count; c++) {
                if (kept != NULL)
                    kept[c] = x[c];
                x[c] = PUT(GET(x[c]) * rstd * ((double)GET(weight[c]) + n.offset));
            }
        }
    }
}

/* Row r: adds to the gradients of the weights, and overwrites the gradient of y by that of x. */
static void REF(head_row_backward)(struct head_rms n, int64_t r, const struct head_rms_backward *a,
                                   double *dq, double *dk)
{
    int64_t groups = ops_head_groups(n), row = (n.heads + 2 * n.kv_heads) * n.head_width;
    int64_t kept_row = (n.heads + n.kv_heads) * n.head_width;
    for (int64_t s = 0; s < groups; s++) {
        struct head_span span = ops_head_span(n, s);
        REAL *d = (REAL *)a->dqkv + r * row + span.first;
        const REAL *x = (const REAL *)a->kept + r * kept_row + span.first;
        const REAL *weight = span.key ? a->k : a->q;
        double *dweight = span.key ? dk : dq;
        double rstd = 1 / sqrt(a->squares[r * groups + s] / span.total + n.eps);
        double mean = a->dots[r * groups + s] / span.total;
        for (int64_t c = 0; c < span.count; c++) {
            double dy = GET(d[c]), xhat = GET(x[c]) * rstd;
            dweight[c] += dy * xhat;
            d[c] = PUT(rstd * (dy * ((double)GET(weight[c]) + n.offset) - xhat * rstd * mean));
        }
    }
}

static void REF(head_rms_backward)(struct ops *ops, struct stream *stream, struct head_rms n,
                                   const struct head_rms_backward *a)
{
    int64_t query = ops_head_weight(n, false), key = ops_head_weight(n, true);
    double *dq = a->scratch, *dk = dq + query;
    memset(dq, 0, (size_t)(query + key) * sizeof *dq);
    for (int64_t r = 0; r < n.rows; r++)
        REF(head_row_backward)(n, r, a, dq, dk);
    for (int64_t c = 0; a->dq != NULL && c < query; c++)
        ((REAL *)a->dq)[c] = PUT(dq[c]);
    for (int64_t c = 0; a->dk != NULL && c < key; c++)
        ((REAL *)a->dk)[c] = PUT(dk[c]);
}

static size_t REF(head_rms_scratch)(const struct ops *ops, struct head_rms n)
{
    return (size_t)(ops_head_weight(n, false) + ops_head_weight(n, true)) * sizeof(double);
}
