/* ref_loss -- template: embedding and softmax cross-entropy for one REAL, included by ref.c. Tokens
 * and labels outside the vocabulary are a bug: the loader has rejected them before. */

static void REF(embedding)(struct ops *ops, struct stream *stream, struct embedding e,
                           const int32_t *tokens, const void *wte_, const void *wpe_,
                           struct past past, void *out_)
{
    const REAL *wte = wte_ /* (V, C) */, *wpe = wpe_ /* (positions, C) or NULL */;
    REAL *out = out_; /* (B, T, C) */
    for (int64_t row = 0; row < e.batch * e.tokens; row++) {
        int64_t position = past.count + row % e.tokens, at = tokens[row] - e.first_id;
        bool here = at >= 0 && at < e.vocab;
        CHECK_LE(0, tokens[row]);
        CHECK_LT(tokens[row], e.id_count ? e.id_count : e.vocab);
        for (int64_t c = 0; c < e.width; c++) {
            REAL token = here ? wte[at * e.width + c] : PUT(0);
            out[row * e.width + c] =
                wpe != NULL ? PUT(GET(token) + GET(wpe[position * e.width + c])) : token;
        }
    }
}

static void REF(embedding_backward)(struct ops *ops, struct stream *stream, struct embedding e,
                                    const int32_t *tokens, const void *dout_, void *dwte_,
                                    void *dwpe_, void *scratch)
{
    const REAL *dout = dout_;          /* (B, T, C) */
    REAL *dwte = dwte_, *dwpe = dwpe_; /* (V, C), (positions, C); either may be NULL */
    double *sums = scratch;            /* (C) */
    for (int64_t v = 0; dwte != NULL && v < e.vocab; v++) {
        for (int64_t c = 0; c < e.width; c++)
            sums[c] = 0;
        for (int64_t row = 0; row < e.batch * e.tokens; row++)
            for (int64_t c = 0; tokens[row] - e.first_id == v && c < e.width; c++)
                sums[c] += GET(dout[row * e.width + c]);
        for (int64_t c = 0; c < e.width; c++)
            dwte[v * e.width + c] = PUT(sums[c]);
    }
    for (int64_t t = 0; dwpe != NULL && t < e.positions; t++) {
        for (int64_t c = 0; c < e.width; c++) {
            double sum = 0;
            for (int64_t b = 0; t < e.tokens && b < e.batch; b++)
                sum += GET(dout[(b * e.tokens + t) * e.width + c]);
            dwpe[t * e.width + c] = PUT(sum);
        }
    }
}

static size_t REF(embedding_scratch)(const struct ops *ops, struct embedding e)
{
    return (size_t)e.width * sizeof(double);
}

/* A logit after the cap. */
static double REF(logit)(struct logits l, REAL x)
{
    return ref_softcap(l.cap, GET(x));
}

static void REF(cross_entropy)(struct ops *ops, struct stream *stream, struct logits l,
                               int64_t rows, const struct cross_entropy *a)
{
    const int64_t vocab = l.vocab;
    for (int64_t r = 0; r < rows; r++) {
        REAL *x = (REAL *)a->logits + r * l.stride; /* (V) */
        int64_t label = a->labels[r];
        bool valid = label != -1;
        double largest = -INFINITY, denominator = 0;
        CHECK(!valid || (label >= 0 && label < vocab));
        for (int64_t v = 0; v < vocab; v++) {
            double y = REF(logit)(l, x[v]);
            largest = y > largest ? y : largest;
        }
        for (int64_t v = 0; v < vocab; v++)
            denominator += exp(REF(logit)(l, x[v]) - largest);
        a->losses[r] = valid ? largest + log(denominator) - REF(logit)(l, x[label]) : 0;
        for (int64_t v = 0; a->gradient && v < vocab; v++) {
            double y = REF(logit)(l, x[v]);
            double d = exp(y - largest) / denominator - (v == label ? 1 : 0);
            x[v] = PUT(valid ? d * ref_softcap_slope(l.cap, y) * a->scalars->loss_scale : 0);
        }
    }
}

static void REF(cross_entropy_part)(struct ops *ops, struct stream *stream, struct logits l,
                                    int64_t rows, const int32_t *labels, const void *logits,
                                    double *parts)
{
    const int64_t vocab = l.vocab;
    for (int64_t r = 0; r < rows; r++) {
        const REAL *x = (const REAL *)logits + r * l.stride; /* (V) */
        int64_t label = labels[r] - l.first_id;
        double largest = -INFINITY, sum = 0;
        for (int64_t v = 0; v < vocab; v++) {
            double y = REF(logit)(l, x[v]);
            largest = y > largest ? y : largest;
        }
        for (int64_t v = 0; v < vocab; v++)
            sum += exp(REF(logit)(l, x[v]) - largest);
        parts[r * OPS_LOSS_PART] = largest;
        parts[r * OPS_LOSS_PART + 1] = sum;
        parts[r * OPS_LOSS_PART + 2] = label >= 0 && label < vocab ? REF(logit)(l, x[label]) : 0;
    }
}

static void REF(cross_entropy_join)(struct ops *ops, struct stream *stream, struct logits l,
                                    int64_t rows, int ranks, const double *parts,
                                    const struct cross_entropy *a)
{
    for (int64_t r = 0; r < rows; r++) {
        REAL *x = (REAL *)a->logits + r * l.stride; /* (V) */
        int64_t label = a->labels[r];
        bool valid = label != -1;
        struct ref_loss_row row = ref_join_row(rows, r, ranks, parts);
        a->losses[r] = valid ? row.largest + log(row.denominator) - row.wanted : 0;
        for (int64_t v = 0; a->gradient && v < l.vocab; v++) {
            double y = REF(logit)(l, x[v]);
            double d = exp(y - row.largest) / row.denominator - (l.first_id + v == label ? 1 : 0);
            x[v] = PUT(valid ? d * ref_softcap_slope(l.cap, y) * a->scalars->loss_scale : 0);
        }
    }
}

static void REF(softcap)(struct ops *ops, struct stream *stream, int64_t count, double cap,
                         void *x_)
{
    REAL *x = x_;
    for (int64_t i = 0; i < count; i++)
        x[i] = PUT(ref_softcap(cap, GET(x[i])));
}
