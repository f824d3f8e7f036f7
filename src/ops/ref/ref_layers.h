/* ref_layers -- template: linear layers, activations, and LayerNorm and RMSNorm with the residual
 * add, for one REAL, included by ref.c.
 *
 * Letters: R rows, I inputs, O outputs. Every sum is a double and is rounded to REAL once.
 *
 * The statistics that forward saves for backward are float by contract. Up to f32, both use the
 * rounded values, so that y can be recomputed with the same bits. In f64 this rounding would limit
 * the precision of finite differences, so there the saved values are never read: each use computes
 * them again from the sum.
 */

/* Index of the element of W that connects input i with output o. */
static int64_t REF(weight)(struct linear l, int64_t i, int64_t o)
{
    return l.out_in ? o * l.in + i : i * l.out + o;
}

static void REF(linear)(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                        const void *x_, const void *w_, const void *bias_, void *y_)
{
    const REAL *x = x_ /* (R, I) */, *w = w_, *bias = bias_ /* (O) or NULL */;
    REAL *y = y_; /* (R, O) */
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < l.out; o++) {
            double sum = bias != NULL ? (double)GET(bias[o]) : 0;
            for (int64_t i = 0; i < l.in; i++)
                sum += (double)GET(x[r * l.in + i]) * GET(w[REF(weight)(l, i, o)]);
            y[r * l.y_stride + o] = PUT(sum);
        }
    }
}

static void REF(each)(int64_t count, const REAL *x, REAL *y, double (*function)(double))
{
    for (int64_t i = 0; i < count; i++)
        y[i] = PUT(function(GET(x[i])));
}

static void REF(each_slope)(int64_t count, const REAL *x, const REAL *dy, REAL *dx,
                            double (*slope)(double))
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = PUT(GET(dy[i]) * slope(GET(x[i])));
}

static void REF(gelu)(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                      void *y)
{
    REF(each)(count, pre, y, ref_gelu);
}

static void REF(gelu_backward)(struct ops *ops, struct stream *stream, int64_t count,
                               const void *pre, const void *dy, void *dpre)
{
    REF(each_slope)(count, pre, dy, dpre, ref_gelu_slope);
}

static void REF(gelu_exact)(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                            void *y)
{
    REF(each)(count, pre, y, ref_gelu_exact);
}

static void REF(gelu_exact_backward)(struct ops *ops, struct stream *stream, int64_t count,
                                     const void *pre, const void *dy, void *dpre)
{
    REF(each_slope)(count, pre, dy, dpre, ref_gelu_exact_slope);
}

static void REF(linear_gelu)(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                             const struct linear_gelu *a)
{
    REF(linear)(ops, stream, l, rows, a->x, a->w, a->bias, a->pre);
    REF(gelu)(ops, stream, rows * l.out, a->pre, a->y);
}

static void REF(linear_dx)(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const void *dy_, const void *w_, void *dx_)
{
    const REAL *dy = dy_ /* (R, O) */, *w = w_;
    REAL *dx = dx_; /* (R, I) */
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < l.in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < l.out; o++)
                sum += (double)GET(dy[r * l.y_stride + o]) * GET(w[REF(weight)(l, i, o)]);
            dx[r * l.in + i] = PUT(sum);
        }
    }
}

/* sums[c] (+)= sum over r of x[r][c]; rows are `stride` apart */
static void REF(column_sums)(int64_t rows, int64_t columns, int64_t stride, const REAL *x, bool add,
                             REAL *sums)
{
    for (int64_t c = 0; c < columns; c++) {
        double sum = add ? (double)GET(sums[c]) : 0;
        for (int64_t r = 0; r < rows; r++)
            sum += GET(x[r * stride + c]);
        sums[c] = PUT(sum);
    }
}

static void REF(linear_dx_dgelu)(struct ops *ops, struct stream *stream, struct linear l,
                                 int64_t rows, const struct linear_dx_dgelu *a)
{
    REF(linear_dx)(ops, stream, l, rows, a->dy, a->w, a->dpre);
    REF(gelu_backward)(ops, stream, rows * l.in, a->pre, a->dpre, a->dpre);
    if (a->dbias != NULL)
        REF(column_sums)(rows, l.in, l.in, a->dpre, false, a->dbias);
}

static void REF(linear_dw)(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const struct linear_dw *a)
{
    const REAL *x = a->x /* (R, I) */, *dy = a->dy /* (R, O) */;
    REAL *dw = a->dw;
    for (int64_t i = 0; dw != NULL && i < l.in; i++) {
        for (int64_t o = 0; o < l.out; o++) {
            REAL *to = &dw[REF(weight)(l, i, o)];
            double sum = a->add ? (double)GET(*to) : 0;
            for (int64_t r = 0; r < rows; r++)
                sum += (double)GET(x[r * l.in + i]) * GET(dy[r * l.y_stride + o]);
            *to = PUT(sum);
        }
    }
    if (a->dbias != NULL)
        REF(column_sums)(rows, l.out, l.y_stride, dy, a->add, a->dbias);
}

static void REF(linear_dw_sum)(struct ops *ops, struct stream *stream, struct linear l,
                               int64_t rows, const struct linear_dw_sum *a)
{
    const struct linear_dw gradient = {.x = a->x, .dy = a->dy, .dw = a->dw, .dbias = a->dbias};
    const REAL *dw = a->dw;
    REF(linear_dw)(ops, stream, l, rows, &gradient);
    for (int64_t i = 0; i < l.in * l.out; i++) {
        float r = ref_rounded((double)GET(dw[i]), a->type);
        a->sum[i] = a->add ? a->sum[i] + r : r;
    }
}

static void REF(swiglu)(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                        const void *gate_up_, void *y_)
{
    const REAL *gate_up = gate_up_; /* (R, 2F) */
    REAL *y = y_;                   /* (R, F) */
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t f = 0; f < ff; f++) {
            double gate = GET(gate_up[r * 2 * ff + f]), up = GET(gate_up[r * 2 * ff + ff + f]);
            y[r * ff + f] = PUT(ref_gated(gate, up));
        }
    }
}

static void REF(swiglu_backward)(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                                 const void *gate_up_, const void *dy_, void *dgate_up_, void *act_)
{
    const REAL *gate_up = gate_up_ /* (R, 2F) */, *dy = dy_ /* (R, F) */;
    REAL *dgate_up = dgate_up_ /* (R, 2F) */, *act = act_ /* (R, F) or NULL */;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t f = 0; f < ff; f++) {
            int64_t at_gate = r * 2 * ff + f, at_up = at_gate + ff;
            double gate = GET(gate_up[at_gate]), up = GET(gate_up[at_up]), d = GET(dy[r * ff + f]);
            double s = ref_sigmoid(gate);
            dgate_up[at_gate] = PUT(d * up * s * (1 + gate * (1 - s)));
            dgate_up[at_up] = PUT(d * gate * s);
            if (act != NULL)
                act[r * ff + f] = PUT(ref_gated(gate, up));
        }
    }
}

static void REF(geglu)(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                       const void *gate_up_, void *y_)
{
    const REAL *gate_up = gate_up_; /* (R, 2F) */
    REAL *y = y_;                   /* (R, F) */
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t f = 0; f < ff; f++) {
            double gate = GET(gate_up[r * 2 * ff + f]), up = GET(gate_up[r * 2 * ff + ff + f]);
            y[r * ff + f] = PUT(ref_gelu(gate) * up);
        }
    }
}

static void REF(geglu_backward)(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                                const void *gate_up_, const void *dy_, void *dgate_up_, void *act_)
{
    const REAL *gate_up = gate_up_ /* (R, 2F) */, *dy = dy_ /* (R, F) */;
    REAL *dgate_up = dgate_up_ /* (R, 2F) */, *act = act_ /* (R, F) or NULL */;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t f = 0; f < ff; f++) {
            int64_t at_gate = r * 2 * ff + f, at_up = at_gate + ff;
            double gate = GET(gate_up[at_gate]), up = GET(gate_up[at_up]), d = GET(dy[r * ff + f]);
            dgate_up[at_gate] = PUT(d * up * ref_gelu_slope(gate));
            dgate_up[at_up] = PUT(d * ref_gelu(gate));
            if (act != NULL)
                act[r * ff + f] = PUT(ref_gelu(gate) * up);
        }
    }
}

static void REF(scale)(struct ops *ops, struct stream *stream, int64_t count, double factor,
                       void *x_)
{
    REAL *x = x_;
    for (int64_t i = 0; i < count; i++)
        x[i] = PUT(GET(x[i]) * factor);
}

/* --- norms ---------------------------------------------------------------------------------- */

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
        y[c] = PUT((GET(x[c]) - s.mean) * s.rstd * (GET(weight[c]) + n.offset) +
                   (bias != NULL ? GET(bias[c]) : 0));
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
        double xhat = (GET(x[c]) - s.mean) * s.rstd,
               dhat = (double)GET(dy[c]) * (GET(weight[c]) + n.offset);
        mean_d += dhat / (double)n.width;
        mean_dx += dhat * xhat / (double)n.width;
        dweight[c] += GET(dy[c]) * xhat;
        dbias[c] += GET(dy[c]);
    }
    if (n.kind == NORM_RMS)
        mean_d = 0; /* no mean was subtracted */
    for (int64_t c = 0; c < n.width; c++) {
        double xhat = (GET(x[c]) - s.mean) * s.rstd,
               dhat = (double)GET(dy[c]) * (GET(weight[c]) + n.offset);
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
        REF(column_sums)(rows, n.width, n.width, a->dsum, false, a->dsum_columns);
    for (int64_t r = 0; r < rows; r++)
        REF(norm_row_backward)(n, r, a, weight_sums, bias_sums);
    for (int64_t c = 0; c < n.width; c++) {
        if (dweight != NULL)
            dweight[c] = PUT(weight_sums[c]);
        if (dbias != NULL)
            dbias[c] = PUT(bias_sums[c]);
    }
    if (a->out_columns != NULL)
        REF(column_sums)(rows, n.width, n.width, a->dsum_out, false, a->out_columns);
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
