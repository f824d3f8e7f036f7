/* ref_route -- template: routed layers (SARS) for one REAL, included by ref.c. The formulas are in
 * ops/ops.h. */

/* The index of the first largest |v| of C values. */
static int64_t REF(largest)(int64_t width, const REAL *v)
{
    int64_t at = 0;
    for (int64_t c = 1; c < width; c++)
        at = fabs((double)GET(v[c])) > fabs((double)GET(v[at])) ? c : at;
    return at;
}

/* The divisor of MAS */
static double REF(mas_divisor)(int64_t width, const REAL *v)
{
    return fabs((double)GET(v[REF(largest)(width, v)])) + OPS_MAS_EPS;
}

static void REF(mas)(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
                     const void *gate_, void *cost_)
{
    const REAL *gate = gate_; /* (K, C) */
    REAL *cost = cost_;       /* (K, C) */
    for (int64_t k = 0; k < groups; k++) {
        double divisor = REF(mas_divisor)(width, gate + k * width);
        for (int64_t c = k * width; c < (k + 1) * width; c++)
            cost[c] = PUT(GET(gate[c]) / divisor);
    }
}

static void REF(mas_backward)(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
                              const void *gate_, const float *dcost, void *dgate_)
{
    const REAL *gate = gate_; /* (K, C) */
    REAL *dgate = dgate_;     /* (K, C) */
    for (int64_t k = 0; k < groups; k++) {
        int64_t first = k * width, at = first + REF(largest)(width, gate + first);
        double divisor = REF(mas_divisor)(width, gate + first), dot = 0, top = GET(gate[at]);
        for (int64_t c = first; c < first + width; c++)
            dot += (double)dcost[c] * GET(gate[c]);
        double slope = top > 0 ? dot : top < 0 ? -dot : 0; /* of the divisor's reciprocal */
        for (int64_t c = first; c < first + width; c++)
            dgate[c] = PUT((dcost[c] - (c == at ? slope / divisor : 0)) / divisor);
    }
}

static void REF(route)(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
                       const struct route *a)
{
    const REAL *pre = a->pre, *match = a->match, *cost = a->cost; /* (R, K, C), cost (K, C) */
    REAL *logits = a->logits, *out = a->out;                      /* (R, K, C) */
    int64_t width = n.groups * n.width;
    double scale = ops_route_scale(n);
    for (int64_t i = 0; i < rows * width; i++) {
        REAL chosen = PUT(scale * GET(match[i]) - GET(cost[i % width]));
        double x = GET(pre[i]);
        logits[i] = chosen;
        out[i] = PUT(GET(chosen) > 0 ? ref_gated(x, 1) : 0);
    }
}

/* G of one group of neurons of a row, whose x has that norm */
static void REF(goodness)(int64_t width, double norm, const REAL *dout, const REAL *logits,
                          double *g)
{
    double most = fabs((double)GET(dout[REF(largest)(width, dout)]));
    double divisor = REF(mas_divisor)(width, logits);
    for (int64_t c = 0; c < width; c++) {
        double d = fabs((double)GET(dout[c])), importance = d / (most + OPS_MAS_EPS);
        double effort = d * norm / (most * norm + OPS_MAS_EPS);
        g[c] = importance * (GET(logits[c]) / divisor - effort);
    }
}

/* Group k of row r. It writes dpre and dmatch last, each element after it was read. */
static void REF(route_group)(struct routing n, int64_t r, int64_t k, double norm,
                             const struct route_backward *a, const struct ref_route *sums)
{
    int64_t at = (r * n.groups + k) * n.width;
    const REAL *dout = (const REAL *)a->dout + at, *pre = (const REAL *)a->pre + at;
    const REAL *logits = (const REAL *)a->logits + at;
    REAL *dpre = (REAL *)a->dpre + at, *dmatch = (REAL *)a->dmatch + at;
    double *z = sums->z, *slope = sums->slope, scale = ops_route_scale(n), weight = a->weight;
    REF(goodness)(n.width, norm, dout, logits, z);
    for (int64_t c = 0; c < n.width; c++)
        sums->goodness[k * n.width + c] += z[c];
    if (n.standardise)
        ref_standardise(n.width, z);
    for (int64_t c = 0; c < n.width; c++)
        z[c] = GET(logits[c]) + (n.minus ? -z[c] : z[c]);
    sums->entropy[k] += ref_entropy(n.width, z, slope);
    for (int64_t c = 0; c < n.width; c++) {
        bool active = GET(logits[c]) > 0;
        sums->active[k * n.width + c] += active;
        sums->dcost[k * n.width + c] -= weight * slope[c];
        dmatch[c] = PUT(scale * weight * slope[c]);
        dpre[c] = PUT(active ? GET(dout[c]) * ref_silu_slope(GET(pre[c])) : 0);
    }
}

static size_t REF(route_scratch)(const struct ops *ops, struct routing n, int64_t rows)
{
    return (size_t)(3 * n.groups * n.width + n.groups + 2 * n.width) * sizeof(double);
}

static void REF(route_backward)(struct ops *ops, struct stream *stream, struct routing n,
                                int64_t rows, const struct route_backward *a)
{
    const REAL *x = a->x; /* (R, I) */
    int64_t width = n.groups * n.width;
    double *all = a->scratch;
    double *buffers = all + 3 * width + n.groups;
    struct ref_route sums = {.goodness = all,
                             .active = all + width,
                             .dcost = all + 2 * width,
                             .entropy = all + 3 * width,
                             .z = buffers,
                             .slope = buffers + n.width};
    memset(all, 0, (size_t)(3 * width + n.groups) * sizeof *all);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t i = r * n.in; i < (r + 1) * n.in; i++)
            squares += (double)GET(x[i]) * GET(x[i]);
        for (int64_t k = 0; k < n.groups; k++)
            REF(route_group)(n, r, k, sqrt(squares), a, &sums);
    }
    for (int64_t c = 0; c < width; c++) {
        a->goodness[c] = (float)sums.goodness[c];
        a->active[c] = (float)sums.active[c];
        a->dcost[c] = (float)sums.dcost[c];
    }
    for (int64_t k = 0; k < n.groups; k++)
        a->entropy[k] = (float)sums.entropy[k];
}
