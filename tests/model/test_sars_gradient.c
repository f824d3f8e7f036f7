/* The gradients of both phases of SARS against finite differences in double, through the passes of
 * the units. A mask is a step, and the largest gate, which divides the others, has a kink: an
 * element counts only if no mask changes, and the largest stays the same, between the points of its
 * difference.
 *
 *     phase 1   the loss, by everything but prototypes and gates
 *     phase 2   the entropies of softmax(logits + G), by prototypes and gates. G is a constant: the
 *               test forms it from what the backward pass saw
 */
#include "model/model_rig.h"

enum { BATCH = 2, TOKENS = 5, ROWS = BATCH * TOKENS, WIDTH = 6, LAYERS = 3, SAMPLES = 4 };
enum { CHOICES = LAYERS * SARS_KINDS * (ROWS + 1) * WIDTH };
static const struct unit_shape SHAPE = {BATCH, TOKENS, 0};
static const double EPS = 1e-9;

/* Per layer, kind, row and neuron. */
struct routes {
    double shift[LAYERS][SARS_KINDS][ROWS][WIDTH]; /* what phase 2 adds to the logits */
    double goodness[LAYERS][SARS_KINDS][WIDTH];    /* sums of G over the rows */
    bool choices[CHOICES];                         /* masks, then which gates are the largest */
    bool flipped;                                  /* one of them has changed */
};

/* --- what a block has in its buffers -------------------------------------------------------- */

static const double *buffer(const struct rig *r, int unit, const char *name)
{
    for (int b = 0; b < r->list_count[unit]; b++)
        if (strcmp(r->list[unit][b].name, name) == 0)
            return r->buffers[unit][b];
    fail_msg("unit %d has no buffer '%s'", unit, name);
    return NULL;
}

/* Row `row` of a kind in a pair of buffers: one of q, k and v together, one of o. */
static const double *row_of(const double *qkv, const double *o, int kind, int row)
{
    return kind < 3 ? qkv + (row * 3 + kind) * WIDTH : o + row * WIDTH;
}

static const double *logits_of(const struct rig *r, int layer, int kind, int row)
{
    return row_of(buffer(r, 1 + layer, "routing logits of qkv"),
                  buffer(r, 1 + layer, "routing logits of o"), kind, row);
}

static double largest(const double *v, double factor)
{
    double most = 0;
    for (int c = 0; c < WIDTH; c++)
        most = fmax(most, fabs(v[c] * factor));
    return most;
}

static const double *gates_of(const struct rig *r, int layer, int kind)
{
    char name[UNIT_NAME];
    snprintf(name, sizeof name, "model.layers.%d.self_attn.q_proj.gate_param", layer);
    for (int p = 0; p < r->graph->param_count; p++)
        if (strcmp(r->graph->tensors[r->graph->params[p].first_tensor].name, name) == 0)
            return (const double *)r->params[p] + kind * WIDTH;
    fail_msg("the model has no %s", name);
    return NULL;
}

static void note_choices(const struct rig *r, bool *choices)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int kind = 0; kind < SARS_KINDS; kind++)
            for (int row = 0; row < ROWS; row++)
                for (int c = 0; c < WIDTH; c++)
                    *choices++ = logits_of(r, layer, kind, row)[c] > 0;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int kind = 0; kind < SARS_KINDS; kind++) {
            const double *g = gates_of(r, layer, kind);
            for (int c = 0; c < WIDTH; c++)
                *choices++ = fabs(g[c]) == largest(g, 1);
        }
}

static void watch_choices(const struct rig *r, struct routes *routes)
{
    bool now[CHOICES];
    note_choices(r, now);
    routes->flipped |= memcmp(now, routes->choices, sizeof now) != 0;
}

/* --- the two losses ------------------------------------------------------------------------- */

static double main_loss(struct rig *r, void *context)
{
    double loss = rig_mean_loss(r, NULL);
    watch_choices(r, context);
    return loss;
}

static double entropy(const double *logits, const double *shift)
{
    double e[WIDTH], sum = 0, result = 0;
    for (int c = 0; c < WIDTH; c++)
        sum += e[c] = exp(logits[c] + shift[c]);
    for (int c = 0; c < WIDTH; c++)
        result -= e[c] / sum * log(e[c] / sum + EPS);
    return result;
}

static double meta_loss(struct rig *r, void *context)
{
    struct routes *routes = context;
    double sum = 0;
    rig_eval(r);
    watch_choices(r, routes);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int kind = 0; kind < SARS_KINDS; kind++)
            for (int row = 0; row < ROWS; row++)
                sum += entropy(logits_of(r, layer, kind, row), routes->shift[layer][kind][row]);
    return sum;
}

/* --- goodness ------------------------------------------------------------------------------- */

static void standardise(double *g)
{
    double mean = 0, variance = 0;
    for (int c = 0; c < WIDTH; c++)
        mean += g[c] / WIDTH;
    for (int c = 0; c < WIDTH; c++)
        variance += (g[c] - mean) * (g[c] - mean) / WIDTH;
    for (int c = 0; c < WIDTH; c++)
        g[c] = (g[c] - mean) / sqrt(variance + 1e-5);
}

/* G of one row of a kind, with its input and the gradient of its output. */
static void form_goodness(const double *x, const double *dout, const double *logits, double *g)
{
    double norm = 0;
    for (int i = 0; i < WIDTH; i++)
        norm = hypot(norm, x[i]);
    for (int c = 0; c < WIDTH; c++) {
        double importance = fabs(dout[c]) / (largest(dout, 1) + EPS);
        double cost = fabs(dout[c] * norm) / (largest(dout, norm) + EPS);
        g[c] = importance * (logits[c] / (largest(logits, 1) + EPS) - cost);
    }
}

/* Backward of one block. It overwrites the inputs and the logits, so copies are made. */
static void block_backward(struct rig *r, int layer, struct unit_run *run, struct routes *routes)
{
    static double normed[ROWS * WIDTH], attended[ROWS * WIDTH], dout[ROWS * WIDTH];
    static double logits[SARS_KINDS][ROWS][WIDTH];
    const struct sars_config *rule = &model_config(r->model)->sars;
    memcpy(normed, buffer(r, 1 + layer, "normed"), sizeof normed);
    memcpy(attended, buffer(r, 1 + layer, "attention"), sizeof attended);
    memcpy(dout, r->gradient, sizeof dout);
    for (int kind = 0; kind < SARS_KINDS; kind++)
        for (int row = 0; row < ROWS; row++)
            memcpy(logits[kind][row], logits_of(r, layer, kind, row), sizeof logits[kind][row]);
    rig_pass(r, 1 + layer, PASS_BACKWARD, run);
    const double *d_qkv = buffer(r, 1 + layer, "gradient of qkv");
    for (int kind = 0; kind < SARS_KINDS; kind++)
        for (int row = 0; row < ROWS; row++) {
            double *g = routes->shift[layer][kind][row];
            form_goodness((kind < 3 ? normed : attended) + row * WIDTH,
                          row_of(d_qkv, dout, kind, row), logits[kind][row], g);
            for (int c = 0; c < WIDTH; c++)
                routes->goodness[layer][kind][c] += g[c];
            if (rule->standardise)
                standardise(g);
            for (int c = 0; c < WIDTH; c++)
                g[c] *= rule->sign ? -1 : 1;
        }
}

/* All gradients; notes choices, G and its sums. */
static void both_phases(struct rig *r, struct routes *routes)
{
    struct unit_run run = rig_run(r);
    int last = r->graph->unit_count - 1;
    memset(r->statistic, 0, rig_statistic_bytes(r));
    memset(r->carry_gradient, 0, rig_carry_bytes(r));
    rig_forward(r, PASS_FORWARD, &run);
    note_choices(r, routes->choices);
    rig_pass(r, last, PASS_LOSS, &run);
    for (int layer = LAYERS - 1; layer >= 0; layer--)
        block_backward(r, layer, &run, routes);
    rig_pass(r, 0, PASS_BACKWARD, &run);
    assert_int_equal(stream_sync(r->stream), STATUS_OK);
}

/* --- the tests ------------------------------------------------------------------------------ */

static void check_goodness(const struct rig *r, const struct routes *routes)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < SARS_KINDS * WIDTH; i++) {
            const float *found =
                r->statistic + layer * sars_statistic_at(SARS_STATISTICS, WIDTH) + i;
            double exact = routes->goodness[layer][i / WIDTH][i % WIDTH];
            assert_true(fabs(*found - exact) < 1e-5 * (1 + fabs(exact)));
        }
}

/* SAMPLES elements of tensor t, which begins at element `first` of param p. Returns the sum of the
 * squares of their differences. */
static double check_tensor(struct rig *r, int p, int t, int64_t first, struct routes *routes)
{
    const struct unit_tensor *tensor = &r->graph->tensors[t];
    struct rng rng = rng_stream(3, tensor->name);
    rig_value_fn *loss = tensor->phase == PHASE_META ? meta_loss : main_loss;
    /* Prototypes pass through norms in fp32, but change the logits of one neuron only. */
    double h = strstr(tensor->name, "proto_weight") ? 1e-2 : 1e-3;
    double squares = 0;
    int checked = 0;
    for (int s = 0; checked < SAMPLES; s++) {
        if (s > 100 * SAMPLES)
            fail_msg("%s: every element changes a mask", tensor->name);
        int64_t i = first + rig_sample(r, tensor, rng_below(rng, (uint64_t)s, 1u << 30));
        routes->flipped = false;
        double found = rig_gradient(r, p, i), expected = rig_difference(r, p, i, h, loss, routes);
        if (routes->flipped)
            continue;
        squares += expected * expected;
        checked++;
        if (!(fabs(found - expected) < 5e-5 * (1 + fabs(expected))))
            fail_msg("%s[%lld]: backward %.9g, finite difference %.9g", tensor->name,
                     (long long)(i - first), found, expected);
    }
    return squares;
}

static void check(struct sars_config rule, int64_t heads)
{
    struct rig r;
    static struct routes routes;
    double squares[PHASE_COUNT] = {0};
    bool frozen[64];
    struct model_config config = rig_sars();
    config.heads = config.kv_heads = heads;
    config.head_width = WIDTH / heads;
    config.sars = rule;
    config.sars.meta_weight = (double)(SARS_KINDS * LAYERS * ROWS); /* the sum of all entropies */
    routes = (struct routes){.flipped = false};
    assert_true(config.width == WIDTH && config.layers == LAYERS);
    rig_open(&r, &config, "ref", DTYPE_F64, SHAPE, KEEP_NOT);
    rig_fill_params(&r, 0.3);
    both_phases(&r, &routes);
    check_goodness(&r, &routes);
    assert_true(r.graph->piece_count <= (int)(sizeof frozen / sizeof *frozen));
    unit_find_frozen(r.graph, frozen);
    for (int p = 0; p < r.graph->param_count; p++) {
        const struct unit_param *param = &r.graph->params[p];
        int64_t first = 0;
        for (int i = 0; i < param->tensor_count; i++) {
            int t = param->first_tensor + i;
            if (!frozen[param->piece])
                squares[r.graph->tensors[t].phase] += check_tensor(&r, p, t, first, &routes);
            first += unit_tensor_count(&r.graph->tensors[t]);
        }
    }
    assert_true(squares[PHASE_MAIN] > 1e-3 && squares[PHASE_META] > 1e-3);
    rig_close(&r);
}

static void test_plain(void **state)
{
    (void)state;
    check((struct sars_config){0}, 1);
    check((struct sars_config){0}, 3);
}

static void test_variants(void **state)
{
    (void)state;
    check((struct sars_config){.sign = 1}, 1);
    check((struct sars_config){.standardise = true}, 1);
    check((struct sars_config){.rope = true}, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
