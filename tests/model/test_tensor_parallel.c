/* Tensor-parallel models: losses, gradients and logits, assembled from the ranks' parts, against
 * one rank; equal bits with any recomputation and from run to run. */
#include "model/tensor_rig.h"

/* --- assembled results ---------------------------------------------------------------------- */

/* Gradients of the uses of a unit, tensor after tensor as wholes, and of the stream. */
struct result {
    double loss;
    double *uses[RIG_UNITS][UNIT_MAX_USES];
    double *stream; /* (R, C) at the first block */
    int64_t rows, width;
};

static int64_t whole_count(const struct unit_graph *g, int param)
{
    int64_t count = 0;
    for (int t = 0; t < g->params[param].tensor_count; t++)
        count += unit_tensor_whole(&g->tensors[g->params[param].first_tensor + t]);
    return count;
}

/* Add one rank's part of a tensor's gradient. Partial sums are added in rank order; complete
 * replicas must have equal bits. */
static void join_tensor(const struct rig *r, const struct unit_tensor *t, const void *grad,
                        int64_t at, double *whole)
{
    const struct unit_split *split = &t->split;
    for (int64_t i = 0; i < unit_tensor_count(t); i++) {
        double value = rig_get(r, grad, at + i), *element = &whole[unit_tensor_index(t, i, NULL)];
        if (split->partial && !unit_tensor_answers(t))
            *element += value;
        else if (unit_tensor_answers(t))
            *element = value;
        else if (memcmp(element, &value, sizeof value) != 0)
            fail_msg("%s[%lld]: %.17g on replica %d, not %.17g", t->name, (long long)i, value,
                     split->replica, *element);
    }
}

static void join_use(const struct rig *r, int unit, int use, double *whole)
{
    const struct unit_graph *g = r->graph;
    const struct unit_param *param = &g->params[g->units[unit].uses[use]];
    int64_t at = 0;
    for (int k = 0; k < param->tensor_count; k++) {
        const struct unit_tensor *t = &g->tensors[param->first_tensor + k];
        join_tensor(r, t, r->grads[unit][use], at, whole);
        at += unit_tensor_count(t);
        whole += unit_tensor_whole(t);
    }
}

static void join_stream(const struct rank *rank, struct result *result)
{
    const struct rig *r = &rank->rig;
    int64_t own = unit_stream_rows(r->shape), count = own * result->width;
    double *to = result->stream + (r->shape.sequence ? rank->number * count : 0);
    for (int64_t i = 0; i < count; i++) {
        double value = rig_get(r, r->gradient, i);
        if (rank->number > 0 && !r->shape.sequence)
            assert_memory_equal(&to[i], &value, sizeof value);
        to[i] = value;
    }
}

static double *doubles(int64_t count)
{
    double *block = calloc((size_t)count, sizeof *block);
    assert_non_null(block);
    return block;
}

static struct result join(const struct rank *ranks, int count)
{
    const struct unit_graph *g = ranks[0].rig.graph;
    struct unit_shape shape = ranks[0].rig.shape;
    struct result result = {
        .loss = ranks[0].loss, .rows = shape.batch * shape.tokens, .width = g->stream_width};
    result.stream = doubles(result.rows * result.width);
    for (int r = 0; r < count; r++) {
        assert_memory_equal(&ranks[r].loss, &result.loss, sizeof result.loss);
        join_stream(&ranks[r], &result);
    }
    for (int u = 0; u < g->unit_count; u++)
        for (int i = 0; i < g->units[u].use_count; i++) {
            result.uses[u][i] = doubles(whole_count(g, g->units[u].uses[i]));
            for (int r = 0; r < count; r++)
                join_use(&ranks[r].rig, u, i, result.uses[u][i]);
        }
    return result;
}

static void free_result(struct result *result)
{
    free(result->stream);
    for (int u = 0; u < RIG_UNITS; u++)
        for (int i = 0; i < UNIT_MAX_USES; i++)
            free(result->uses[u][i]);
}

static struct result gradients_of(const struct setting *s)
{
    struct rank ranks[MOST_RANKS];
    run_ranks(s, true, work_gradients, ranks);
    struct result result = join(ranks, s->tp);
    close_ranks(ranks, s->tp);
    return result;
}

/* --- comparisons ---------------------------------------------------------------------------- */

static double relative(const double *a, const double *b, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    assert_true(norm > 0);
    return sqrt(difference / norm);
}

/* Sums in another order differ by rounding errors, a few for each layer on the way to the loss and
 * back to the unit. */
static double bound(const struct setting *s, const struct unit_graph *g, int unit)
{
    int depth = 2 * g->unit_count - unit;
    return 20 * (s->type == DTYPE_F64 ? 0x1p-53 : 0x1p-24) * depth;
}

static void compare(const struct setting *s, const struct unit_graph *g, const struct result *found,
                    const struct result *expected, double *worst)
{
    assert_true(fabs(found->loss - expected->loss) <= 1e-6 * expected->loss);
    double error = relative(found->stream, expected->stream, found->rows * found->width);
    if (!(error <= bound(s, g, 0)))
        fail_msg("%s: tp %d %s: gradient of the stream is off by %.2e", s->backend, s->tp,
                 modes[s->mode].name, error);
    for (int u = 0; u < g->unit_count; u++)
        for (int i = 0; i < g->units[u].use_count; i++) {
            const struct unit_param *param = &g->params[g->units[u].uses[i]];
            int64_t at = 0;
            for (int k = 0; k < param->tensor_count; k++) {
                const struct unit_tensor *t = &g->tensors[param->first_tensor + k];
                int64_t count = unit_tensor_whole(t);
                error = relative(found->uses[u][i] + at, expected->uses[u][i] + at, count);
                error /= strstr(t->name, "k_norm") ? 4 : 1; /* large summands cancel */
                if (!(error <= bound(s, g, u)))
                    fail_msg("%s: tp %d %s: %s of %s is off by %.2e, more than %.2e", s->backend,
                             s->tp, modes[s->mode].name, t->name, g->units[u].name, error,
                             bound(s, g, u));
                *worst = error / bound(s, g, u) > *worst ? error / bound(s, g, u) : *worst;
                at += count;
            }
        }
}

static void assert_same_bits(const struct unit_graph *g, const struct result *a,
                             const struct result *b)
{
    assert_memory_equal(&a->loss, &b->loss, sizeof a->loss);
    assert_memory_equal(a->stream, b->stream, (size_t)(a->rows * a->width) * sizeof(double));
    for (int u = 0; u < g->unit_count; u++)
        for (int i = 0; i < g->units[u].use_count; i++)
            assert_memory_equal(a->uses[u][i], b->uses[u][i],
                                (size_t)whole_count(g, g->units[u].uses[i]) * sizeof(double));
}
static void check_agreement(const char *backend, enum dtype type)
{
    double worst = 0;
    for (int m = 0; m < MODELS; m++) {
        struct setting s = setting_of(model_at(m), backend, type);
        struct model_part whole = {.tp = 1};
        struct lone lone;
        open_lone(&lone, &s.config, &whole);
        struct result expected = gradients_of(&s);
        for (s.tp = 2; s.tp <= MOST_RANKS; s.tp *= 2)
            for (s.mode = 0; s.mode < MODES; s.mode++) {
                struct result found = gradients_of(&s);
                compare(&s, lone.graph, &found, &expected, &worst);
                free_result(&found);
            }
        free_result(&expected);
        close_lone(&lone);
    }
    print_message("%s %s: %.0f%% of the bound\n", backend, dtype_name(type), 100 * worst);
}

static void test_agrees_with_one_rank(void **state)
{
    (void)state;
    check_agreement("ref", DTYPE_F64);
    check_agreement("cpu", DTYPE_F32);
}

/* Three ranks, with rows and widths that are no multiples of a block. */
static void test_three_ranks(void **state)
{
    (void)state;
    struct model_config configs[] = {rig_gpt2(), rig_llama(), rig_llama()};
    double worst = 0;
    configs[0].ff = 21;
    configs[1].ff = configs[2].ff = 9;
    configs[1].kv_heads = 3;
    configs[2].kv_heads = 1;
    for (int m = 0; m < 3; m++) {
        struct setting s = setting_of(configs[m], "ref", DTYPE_F64);
        struct model_part whole = {.tp = 1};
        struct lone lone;
        s.tokens = 9;
        open_lone(&lone, &s.config, &whole);
        struct result expected = gradients_of(&s);
        s.tp = 3;
        for (s.mode = 0; s.mode < MODES; s.mode++) {
            struct result found = gradients_of(&s);
            compare(&s, lone.graph, &found, &expected, &worst);
            free_result(&found);
        }
        free_result(&expected);
        close_lone(&lone);
    }
}

/* A part for a single rank is the whole model: equal bits, with or without parallel keys. */
static void test_one_rank(void **state)
{
    (void)state;
    struct setting s = setting_of(gpt2(), "cpu", DTYPE_F32), other = s;
    struct model_part whole = {.tp = 1};
    struct lone lone;
    open_lone(&lone, &s.config, &whole);
    other.mode = 2;
    struct result a = gradients_of(&s), b = gradients_of(&other);
    assert_same_bits(lone.graph, &a, &b);
    free_result(&b);
    free_result(&a);
    close_lone(&lone);
}

/* Recomputation, delays between ranks, a backward pass in two halves and a second run change no
 * bits. */
static void test_same_bits(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int mode = 0; mode < MODES; mode++) {
            struct setting s = setting_of(model_at(m), "cpu", DTYPE_F32);
            struct model_part whole = {.tp = 1};
            struct lone lone;
            open_lone(&lone, &s.config, &whole);
            s.tp = m % 2 ? 4 : 2;
            s.mode = mode;
            struct result first = gradients_of(&s);
            s.delay = 1e-4;
            for (s.rebuild = KEEP_UNLESS_FULL; s.rebuild <= KEEP_NOT; s.rebuild++) {
                for (int parts = 0; parts < 2; parts++) {
                    s.parts = parts;
                    struct result again = gradients_of(&s);
                    assert_same_bits(lone.graph, &first, &again);
                    free_result(&again);
                }
            }
            free_result(&first);
            close_lone(&lone);
        }
}

/* A loss in several chunks: under sequence parallel each has rows of all ranks. */
static void test_chunked_loss(void **state)
{
    (void)state;
    struct setting s = setting_of(gpt2(), "cpu", DTYPE_F32);
    struct model_part whole = {.tp = 1};
    struct lone lone;
    double worst = 0;
    s.config.layers = 1;
    s.config.vocab = 65537;
    s.batch = 60;
    s.tokens = 9;
    open_lone(&lone, &s.config, &whole);
    struct result expected = gradients_of(&s);
    s.tp = 2;
    for (s.mode = 0; s.mode < 2; s.mode++) {
        struct result found = gradients_of(&s);
        compare(&s, lone.graph, &found, &expected, &worst);
        free_result(&found);
    }
    free_result(&expected);
    close_lone(&lone);
}

/* --- logits and decoding -------------------------------------------------------------------- */

static void work_logits(struct rank *rank)
{
    struct rig *r = &rank->rig;
    int64_t vocab = rank->setting->config.vocab;
    struct unit_run run = rig_run(r);
    run.logits = rank->logits = rig_block(r, (size_t)(r->shape.batch * r->shape.tokens * vocab) *
                                                 dtype_bytes(r->ops->type));
    run.logit_tokens = r->shape.tokens;
    rig_forward(r, PASS_FORWARD, &run);
    rig_pass(r, r->graph->unit_count - 1, PASS_LOGITS, &run);
    rank->evaluated = rig_eval(r);
}

/* The same through the cache, three tokens and then the rest: the last logits of each chunk. */
static void work_decode(struct rank *rank)
{
    struct rig *r = &rank->rig;
    int64_t batch = r->shape.batch, tokens = r->shape.tokens, vocab = rank->setting->config.vocab;
    void *caches[RIG_UNITS] = {NULL};
    int32_t fed[32];
    rank->logits = rig_block(r, (size_t)(2 * batch * vocab) * dtype_bytes(r->ops->type));
    for (int u = 0; u < r->graph->unit_count; u++) {
        const struct unit *unit = &r->graph->units[u];
        if (unit->type->cache_bytes)
            caches[u] = rig_block(r, unit->type->cache_bytes(unit, r->ops, batch, tokens));
    }
    for (int64_t c = 0, past = 0, count = 3; c < 2; c++, past += count, count = tokens - past) {
        struct unit_run run = rig_run(r);
        for (int64_t b = 0; b < batch; b++)
            memcpy(fed + b * count, r->tokens + b * tokens + past, (size_t)count * sizeof *fed);
        run.shape.tokens = count;
        run.tokens = fed;
        run.past = (struct past){past, NULL};
        run.cache_tokens = tokens;
        run.text_tokens = tokens;
        run.logits = (char *)rank->logits + (size_t)(c * batch * vocab) * dtype_bytes(r->ops->type);
        run.logit_tokens = 1;
        for (int u = 0; u < r->graph->unit_count; u++) {
            run.cache = caches[u];
            rig_pass(r, u, u < r->graph->unit_count - 1 ? PASS_DECODE : PASS_LOGITS, &run);
            run.residual = run.out_residual;
            run.pending = run.out_pending;
        }
    }
    for (int u = 0; u < r->graph->unit_count; u++)
        device_free(r->device, caches[u]);
}

/* Every rank gets the logits of the whole vocabulary. */
static void check_logits(void (*work)(struct rank *), int64_t rows)
{
    for (int m = 0; m < MODELS; m++) {
        struct setting s = setting_of(model_at(m), "ref", DTYPE_F64);
        struct rank one[1], ranks[MOST_RANKS];
        int64_t count = rows * s.config.vocab;
        run_ranks(&s, false, work, one);
        s.mode = m % MODES; /* what the stream does in training does not matter here */
        for (s.tp = 2; s.tp <= MOST_RANKS; s.tp *= 2) {
            run_ranks(&s, false, work, ranks);
            for (int r = 0; r < s.tp; r++) {
                assert_true(relative(ranks[r].logits, one[0].logits, count) < 1e-6);
                assert_true(fabs(ranks[r].evaluated - one[0].evaluated) <= 1e-6 * one[0].evaluated);
            }
            close_ranks(ranks, s.tp);
        }
        close_ranks(one, 1);
    }
}

static void test_logits(void **state)
{
    (void)state;
    check_logits(work_logits, 16);
    check_logits(work_decode, 4);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),  cmocka_unit_test(test_agrees_with_one_rank),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_chunked_loss),
        cmocka_unit_test(test_logits),    cmocka_unit_test(test_three_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
