/* ref_norm -- template: LayerNorm and RMSNorm with the residual add for one REAL, included by
 * ref.c.
 *
 * The statistics that forward saves for backward are float by contract. Up to f32, both use the
 * rounded values, so that y can be recomputed with the same bits. In f64 this rounding would limit
 * the precision of finite differences, so there the saved values are never read: each use computes
 * them again from the sum.
 */

/* Statistics of one row x (C). The variance is biased; for RMSNorm the mean is 0. */
static struct ref_statistics REF(measure)(struct norm n, const REAL *x)
{
    double mean = 0, squares = 0;
    if (n.kind == NORM_LAYER) {
        for (int64_t c = 0; c < n.width; c++)
            mean += GET(x[c]);
        mean /= (double)n.width;
    }
    for (int64_t c = 0; c < n.width; c++)
        squares += (GET(x[c]) - mean) * (GET(x[c]) - mean);
    double rstd = 1 / sqrt(squares / (double)n.width + n.eps);
    if (sizeof(REAL) != sizeof(double))
        return (struct ref_statistics){(float)mean, (float)rstd};
    return (struct ref_statistics){mean, rstd};
}

/* Statistics of row r for backward: the saved ones up to f32, recomputed in f64. */
static struct ref_statistics REF(recall)(struct norm n, int64_t r, const REAL *x, const float *mean,
                                         const float *rstd)
{
    if (sizeof(REAL) == sizeof(double))
        return REF(measure)(n, x);
    return (struct ref_statistics){n.kind == NORM_LAYER ? mean[r] : 0, rstd[r]};
}

static void REF(norm_row)(struct norm n, struct ref_statistics s, const REAL *x, const REAL *weight,
                          const REAL *bias, REAL *y)
{
    for (int64_t c = 0; c < n.width; c++)
        y[c] =
            PUT((GET(x[c]) - s.mean) * s.rstd * GET(weight[c]) + (bias != NULL ? GET(bias[c]) : 0));
}

static void REF(add_norm)(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                          const struct add_norm *a)
{
    const REAL *residual = a->residual, *branch = a->branch; /* (R, C) */
    REAL *sum = a->sum, *y = a->y;                           /* (R, C) */
    for (int64_t r = 0; r < rows; r++) {
        const REAL *x = residual + r * n.width;
        for (int64_t c = 0; sum != NULL && c < n.width; c++)
            sum[r * n.width + c] =
                branch != NULL ? PUT(GET(x[c]) + GET(branch[r * n.width + c])) : x[c];
        if (sum != NULL)
            x = sum + r * n.width;
        struct ref_statistics s = REF(measure)(n, x);
        REF(norm_row)(n, s, x, a->weight, a->bias, y + r * n.width);
        if (n.kind == NORM_LAYER)
            a->mean[r] = (float)s.mean;
        a->rstd[r] = (float)s.rstd;
    }
}

static void REF(norm_apply)(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                            const struct norm_apply *a)
{
    for (int64_t r = 0; r < rows; r++) {
        const REAL *x = (const REAL *)a->sum + r * n.width;
        struct ref_statistics s = REF(recall)(n, r, x, a->mean, a->rstd);
        REF(norm_row)(n, s, x, a->weight, a->bias, (REAL *)a->y + r * n.width);
    }
}

/* Row r: adds to dweight and dbias (C), and writes dsum_out = dsum + gradient, which may overwrite
 * dsum or dy. */
static void REF(norm_row_backward)(struct norm n, int64_t r, const struct norm_backward *a,
                                   double *dweight, double *dbias)
{
    const REAL *dy = (const REAL *)a->dy + r * n.width, *x = (const REAL *)a->sum + r * n.width;
    const REAL *dsum = a->dsum != NULL ? (const REAL *)a->dsum + r * n.width : NULL;
    const REAL *weight = a->weight;
    REAL *dsum_out = (REAL *)a->dsum_out + r * n.width;
    struct ref_statistics s = REF(recall)(n, r, x, a->mean, a->rstd);
    double mean_d = 0, mean_dx = 0; /* means of dhat and of dhat * xhat, dhat = dy * weight */
    for (int64_t c = 0; c < n.width; c++) {
        double xhat = (GET(x[c]) - s.mean) * s.rstd, dhat = (double)GET(dy[c]) * GET(weight[c]);
        mean_d += dhat / (double)n.width;
        mean_dx += dhat * xhat / (double)n.width;
        dweight[c] += GET(dy[c]) * xhat;
        dbias[c] += GET(dy[c]);
    }
    if (n.kind == NORM_RMS)
        mean_d = 0; /* no mean was subtracted */
    for (int64_t c = 0; c < n.width; c++) {
        double xhat = (GET(x[c]) - s.mean) * s.rstd, dhat = (double)GET(dy[c]) * GET(weight[c]);
        double dx = s.rstd * (dhat - mean_d - xhat * mean_dx);
        dsum_out[c] = PUT(dsum != NULL ? GET(dsum[c]) + dx : dx);
    }
}

static void REF(norm_backward)(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                               const struct norm_backward *a)
{
    REAL *dweight = a->dweight, *dbias = a->dbias;                        /* (C) or NULL */
    double *weight_sums = a->scratch, *bias_sums = weight_sums + n.width; /* (C) */
    for (int64_t c = 0; c < n.width; c++)
        weight_sums[c] = bias_sums[c] = 0;
    if (a->dsum_columns != NULL) /* first: dsum_out may be dsum */
        REF(column_sums)(rows, n.width, a->dsum, false, a->dsum_columns);
    for (int64_t r = 0; r < rows; r++)
        REF(norm_row_backward)(n, r, a, weight_sums, bias_sums);
    for (int64_t c = 0; c < n.width; c++) {
        if (dweight != NULL)
            dweight[c] = PUT(weight_sums[c]);
        if (dbias != NULL)
            dbias[c] = PUT(bias_sums[c]);
    }
    if (a->out_columns != NULL)
        REF(column_sums)(rows, n.width, a->dsum_out, false, a->out_columns);
}

static size_t REF(norm_scratch)(const struct ops *ops, struct norm n, int64_t rows)
{
    return 2 * (size_t)n.width * sizeof(double);
}

static void REF(add)(struct ops *ops, struct stream *stream, int64_t count, const void *a_,
                     const void *b_, void *sum_)
{
    const REAL *a = a_, *b = b_;
    REAL *sum = sum_;
    for (int64_t i = 0; i < count; i++)
        sum[i] = PUT(GET(a[i]) + GET(b[i]));
}
