/* ref_linear -- template: linear layers and activations for one REAL, included by ref.c.
 *
 * Letters: R rows, I inputs, O outputs. Every sum is a double and is rounded to REAL once.
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
            y[r * l.out + o] = PUT(sum);
        }
    }
}

static void REF(gelu)(struct ops *ops, struct stream *stream, int64_t count, const void *pre_,
                      void *y_)
{
    const REAL *pre = pre_;
    REAL *y = y_;
    for (int64_t i = 0; i < count; i++)
        y[i] = PUT(ref_gelu(GET(pre[i])));
}

static void REF(gelu_backward)(struct ops *ops, struct stream *stream, int64_t count,
                               const void *pre_, const void *dy_, void *dpre_)
{
    const REAL *pre = pre_, *dy = dy_;
    REAL *dpre = dpre_;
    for (int64_t i = 0; i < count; i++)
        dpre[i] = PUT(GET(dy[i]) * ref_gelu_slope(GET(pre[i])));
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
                sum += (double)GET(dy[r * l.out + o]) * GET(w[REF(weight)(l, i, o)]);
            dx[r * l.in + i] = PUT(sum);
        }
    }
}

/* sums[c] (+)= sum over r of x[r][c] */
static void REF(column_sums)(int64_t rows, int64_t columns, const REAL *x, bool add, REAL *sums)
{
    for (int64_t c = 0; c < columns; c++) {
        double sum = add ? (double)GET(sums[c]) : 0;
        for (int64_t r = 0; r < rows; r++)
            sum += GET(x[r * columns + c]);
        sums[c] = PUT(sum);
    }
}

static void REF(linear_dx_dgelu)(struct ops *ops, struct stream *stream, struct linear l,
                                 int64_t rows, const struct linear_dx_dgelu *a)
{
    REF(linear_dx)(ops, stream, l, rows, a->dy, a->w, a->dpre);
    REF(gelu_backward)(ops, stream, rows * l.in, a->pre, a->dpre, a->dpre);
    if (a->dbias != NULL)
        REF(column_sums)(rows, l.in, a->dpre, false, a->dbias);
}

static void REF(linear_dw)(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const struct linear_dw *a)
{
    const REAL *x = a->x /* (R, I) */, *dy = a->dy /* (R, O) */;
    REAL *dw = a->dw;
    for (int64_t i = 0; i < l.in; i++) {
        for (int64_t o = 0; o < l.out; o++) {
            REAL *to = &dw[REF(weight)(l, i, o)];
            double sum = a->add ? (double)GET(*to) : 0;
            for (int64_t r = 0; r < rows; r++)
                sum += (double)GET(x[r * l.in + i]) * GET(dy[r * l.out + o]);
            *to = PUT(sum);
        }
    }
    if (a->dbias != NULL)
        REF(column_sums)(rows, l.out, dy, a->add, a->dbias);
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
