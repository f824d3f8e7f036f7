/* Models whose layers several ranks compute together, as threads: losses and gradients, put
 * together from the parts, against one rank; the same bits whatever is recomputed and from run to run; what
 * goes over the wire; what is refused. */
#include <pthread.h>
#include "comm/comm.h"
#include "model/model_rig.h"

enum { MOST_RANKS = 4, MODES = 3 };

/* Tensor parallel; with sequence parallel, inputs kept gathered, or gathered again. */
static const struct {
    const char *name;
    bool sequence, regather;
} modes[MODES] = {{"tensor", false, false}, {"keep", true, false}, {"regather", true, true}};

struct setting {
    struct model_config config;
    const char *backend;
    enum dtype type;
    int64_t batch, tokens;
    int tp, mode;
    enum keep rebuild;
    bool parts;   /* backward is in two */
    double delay; /* the most, around calls */
};

/* --- models: sizes that divide by 4, but for the vocabulary --------------------------------- */

static struct model_config gpt2(void)
{
    struct model_config c = rig_gpt2();
    c.width = 16;
    c.heads = c.kv_heads = 4;
    c.ff = 24;
    return c;
}

static struct model_config llama(int64_t kv_heads)
{
    struct model_config c = rig_llama();
    c.width = 16;
    c.heads = 8;
    c.kv_heads = kv_heads;
    c.ff = 20;
    return c;
}

static struct model_config untied(struct model_config c)
{
    c.tied = 0;
    c.layers = 3;
    return c;
}

enum { MODELS = 5 };
static struct model_config model_at(int i)
{
    switch (i) {
    case 0: return gpt2();
    case 1: return untied(gpt2());
    case 2: return llama(4);
    case 3: return llama(2); /* fewer than ranks */
    default: return untied(llama(1));
    }
}

/* --- ranks ---------------------------------------------------------------------------------- */

struct rank {
    const struct setting *setting;
    struct comm_hub *hub;
    void (*work)(struct rank *rank);
    pthread_t thread;
    int number;
    struct rig rig;
    double loss, evaluated;
    int64_t bytes[COMM_KIND_COUNT]; /* of the gradients */
    void *logits;
};

static struct model_part part_of(const struct setting *s, int rank)
{
    return (struct model_part){.tp = s->tp,
                               .t = rank,
                               .sequence = modes[s->mode].sequence,
                               .regather = modes[s->mode].regather};
}

static void open_rig(struct rank *rank, bool sequence)
{
    const struct setting *s = rank->setting;
    struct model_part part = part_of(s, rank->number);
    struct unit_shape shape = {s->batch, s->tokens, 0};
    if (sequence && part.sequence && s->tp > 1)
        shape.sequence = s->tp;
    rig_open_part(&rank->rig, &s->config, s->backend, s->type, shape, s->rebuild, s->parts, &part);
    rig_fill_params(&rank->rig, 0.3);
}

static void *rank_main(void *argument)
{
    struct rank *rank = argument;
    struct comm_config config = {.backend = "threads", .timeout = 120};
    if (rank->setting->tp > 1) {
        assert_int_equal(
            comm_join(rank->hub, rank->number, &config, rank->rig.device, &rank->rig.group),
            STATUS_OK);
        comm_inject_delays(rank->rig.group, rank->setting->delay, (uint64_t)rank->number);
    }
    rank->work(rank);
    comm_destroy(rank->rig.group);
    return NULL;
}

/* Rigs stay open. */
static void run_ranks(const struct setting *s, bool sequence, void (*work)(struct rank *),
                      struct rank *ranks)
{
    struct env env;
    struct comm_hub *hub;
    assert_int_equal(env_create(&env, hear, &(struct heard){0}, LOG_INFO, 1), STATUS_OK);
    assert_int_equal(comm_hub_create(&env, s->tp, &hub), STATUS_OK);
    for (int r = 0; r < s->tp; r++) {
        ranks[r] = (struct rank){.setting = s, .hub = hub, .work = work, .number = r};
        open_rig(&ranks[r], sequence);
    }
    for (int r = 0; r < s->tp; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    for (int r = 0; r < s->tp; r++)
        pthread_join(ranks[r].thread, NULL);
    comm_hub_destroy(hub);
    env_destroy(&env);
}

static void close_ranks(struct rank *ranks, int count)
{
    for (int r = 0; r < count; r++) {
        if (ranks[r].logits)
            device_free(ranks[r].rig.device, ranks[r].logits);
        rig_close(&ranks[r].rig);
    }
}

static void work_gradients(struct rank *rank)
{
    rank->loss = rig_gradients(&rank->rig);
    for (int kind = 0; rank->rig.group && kind < COMM_KIND_COUNT; kind++)
        rank->bytes[kind] = comm_counted(rank->rig.group, (enum comm_kind)kind).bytes;
}

/* --- results put together ------------------------------------------------------------------- */

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

/* One rank's share of a tensor's gradient. Shares are added, in rank order; what replicas have
 * whole must be the same bits. */
static void join_tensor(const struct rig *r, const struct unit_tensor *t, const void *grad,
                        int64_t at, double *whole)
{
    const struct unit_split *split = &t->split;
    for (int64_t i = 0; i < unit_tensor_count(t); i++) {
        double value = rig_get(r, grad, at + i), *place = &whole[unit_tensor_place(t, i, NULL)];
        if (split->partial && !unit_tensor_answers(t))
            *place += value;
        else if (unit_tensor_answers(t))
            *place = value;
        else if (memcmp(place, &value, sizeof value) != 0)
            fail_msg("%s[%lld]: %.17g on replica %d, not %.17g", t->name, (long long)i, value,
                     split->replica, *place);
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

/* Sums in other orders differ by roundings, a few for each layer that a value has gone through: up
 * to the loss and back to its unit. */
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

static struct setting setting_of(struct model_config config, const char *backend, enum dtype type)
{
    return (struct setting){.config = config,
                            .backend = backend,
                            .type = type,
                            .batch = 2,
                            .tokens = 8,
                            .tp = 1,
                            .rebuild = KEEP_NOT};
}

/* The graph of one rank, for names and sizes. */
struct lone {
    struct fixture fixture;
    struct device *device;
    struct model *model;
    const struct unit_graph *graph;
};

static void open_lone(struct lone *l, const struct model_config *config,
                      const struct model_part *part)
{
    fixture_open(&l->fixture);
    assert_int_equal(device_create(&l->fixture.env, "dry", 0, &l->device), STATUS_OK);
    assert_int_equal(model_create_part(l->device, config, part, &l->model), STATUS_OK);
    l->graph = model_graph(l->model);
}

static void close_lone(struct lone *l)
{
    model_destroy(l->model);
    device_destroy(l->device);
    fixture_close(&l->fixture);
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

/* Three ranks, and rows and widths that fill no whole blocks. */
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

/* A part for one rank is the model: the same bits, keys of parallelism or not. */
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

/* Recomputation, delays between ranks and a backward pass in two parts change no bit; nor does
 * another run. */
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

/* Several chunks of a loss: rows of all ranks in each under sequence parallel. */
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
        run.past = past;
        run.cache_tokens = tokens;
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

/* --- parts ---------------------------------------------------------------------------------- */

/* Every element of the whole is on as many ranks as its tensor says, once on each. */
static void check_parts(const struct model_config *config, int tp)
{
    struct lone lone[MOST_RANKS] = {0};
    for (int r = 0; r < tp; r++)
        open_lone(&lone[r], config, &(struct model_part){.tp = tp, .t = r, .sequence = true});
    for (int t = 0; t < lone[0].graph->tensor_count; t++) {
        const struct unit_tensor *first = &lone[0].graph->tensors[t];
        int64_t whole = unit_tensor_whole(first), answered = 0;
        int *held = calloc((size_t)whole, sizeof *held);
        assert_non_null(held);
        for (int r = 0; r < tp; r++) {
            const struct unit_tensor *tensor = &lone[r].graph->tensors[t];
            int64_t count = unit_tensor_count(tensor), run = 0, place = 0;
            assert_string_equal(tensor->name, first->name);
            assert_memory_equal(tensor->shape, first->shape, sizeof first->shape);
            for (int64_t i = 0; i < count; i += run) {
                place = unit_tensor_place(tensor, i, &run);
                assert_true(run >= 1 && i + run <= count);
                assert_int_equal(unit_tensor_place(tensor, i + run - 1, NULL), place + run - 1);
                for (int64_t k = 0; k < run; k++)
                    held[place + k]++;
            }
            answered += unit_tensor_answers(tensor) ? count : 0;
        }
        int replicas = first->split.replicas > 0 ? first->split.replicas : 1;
        for (int64_t i = 0; i < whole; i++)
            assert_int_equal(held[i], replicas);
        assert_int_equal(answered, whole);
        free(held);
    }
    assert_int_equal(unit_graph_count(lone[tp - 1].graph), unit_graph_count(lone[0].graph));
    for (int r = 0; r < tp; r++)
        close_lone(&lone[r]);
}

static void test_parts(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int tp = 1; tp <= MOST_RANKS; tp *= 2) {
            struct model_config c = model_at(m);
            check_parts(&c, tp);
            c.vocab = 4; /* a row each */
            check_parts(&c, tp);
        }
    struct model_config c = gpt2();
    c.vocab = 50257; /* in blocks of 64 rows */
    struct team team = {.size = 4};
    check_parts(&c, 4);
    for (int r = 0; r < 4; r++)
        assert_int_equal(part_of_vocab(&team, c.vocab, r).first % 64, 0);
}

static const struct unit_split *split_of(const struct lone *l, const char *name)
{
    for (int t = 0; t < l->graph->tensor_count; t++)
        if (strcmp(l->graph->tensors[t].name, name) == 0)
            return &l->graph->tensors[t].split;
    fail_msg("there is no %s", name);
    return NULL;
}

/* What is repeated, and of what every rank has but a share of the gradient. */
static void test_replicas(void **state)
{
    (void)state;
    struct lone l;
    struct model_config c = llama(2), g = gpt2();
    open_lone(&l, &c, &(struct model_part){.tp = 4, .t = 3});
    const struct unit_split *key = split_of(&l, "model.layers.1.self_attn.k_proj.weight");
    const struct unit_split *norm = split_of(&l, "model.layers.0.input_layernorm.weight");
    assert_int_equal(key->first, 1);
    assert_int_equal(key->count, 1);
    assert_int_equal(key->replicas, 2);
    assert_int_equal(key->replica, 1);
    assert_true(key->partial && !norm->partial);
    assert_int_equal(norm->replicas, 4);
    assert_int_equal(l.graph->sequence, 0);
    close_lone(&l);
    open_lone(&l, &g, &(struct model_part){.tp = 2, .t = 1, .sequence = true});
    assert_true(split_of(&l, "transformer.ln_f.bias")->partial);
    assert_false(split_of(&l, "transformer.h.0.mlp.c_proj.bias")->partial);
    assert_int_equal(split_of(&l, "transformer.h.0.attn.c_attn.weight")->sections, 3);
    assert_int_equal(l.graph->sequence, 2);
    close_lone(&l);
}

/* --- the wire ------------------------------------------------------------------------------- */

/* In shares (t - 1) / t of an activation (R, C): a layer sends 8, or 10 when inputs are gathered
 * again, the two ends together 4; and three doubles a row to every other rank for the loss. */
static void check_wire(const struct setting *s, const int64_t *bytes)
{
    int64_t rows = s->batch * s->tokens, layers = s->config.layers, total = 0;
    int64_t share = rows * s->config.width * (int64_t)dtype_bytes(s->type) / s->tp * (s->tp - 1);
    int64_t parts = rows * 3 * 8 * (s->tp - 1), a_layer = modes[s->mode].regather ? 10 : 8;
    bool sequence = modes[s->mode].sequence;
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++)
        total += bytes[kind];
    assert_int_equal(total, (a_layer * layers + 4) * share + parts);
    assert_int_equal(bytes[COMM_ALL_REDUCE], sequence ? 0 : (4 * layers + 2) * 2 * share);
    assert_int_equal(bytes[COMM_REDUCE_SCATTER], sequence ? (4 * layers + 2) * share : 0);
}

static void test_wire(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int tp = 2; tp <= MOST_RANKS; tp *= 2)
            for (int mode = 0; mode < MODES; mode++) {
                struct setting s = setting_of(model_at(m), "cpu", DTYPE_F32);
                struct rank ranks[MOST_RANKS];
                s.tp = tp;
                s.mode = mode;
                run_ranks(&s, true, work_gradients, ranks);
                for (int r = 0; r < tp; r++)
                    check_wire(&s, ranks[r].bytes);
                close_ranks(ranks, tp);
            }
}

#define DRY_BYTES ((size_t)1 << 36) /* more than any buffer has */

/* One pass on a dry device: pointers are addresses that nobody touches, those of buffers apart. */
static void dry_pass(const struct unit *unit, enum pass pass, void *address, struct unit_run *run)
{
    struct unit_buffer list[UNIT_MAX_BUFFERS];
    int count = unit->type->buffers(unit, run->ops, run->shape, list);
    for (int b = 0; b < count; b++)
        run->buffers[b] = (char *)address + (size_t)(b + 1) * DRY_BYTES;
    for (int i = 0; i < unit->use_count; i++) {
        run->params[i] = unit_reads(unit, pass, i) ? address : NULL;
        run->grads[i] = unit_writes(unit, pass, i) ? address : NULL;
    }
    unit_run_pass(unit, pass, run);
    run->residual = run->out_residual;
    run->pending = run->out_pending;
}

static void walk_dry(const struct setting *s, int rank, int64_t *bytes)
{
    struct lone l;
    struct ops *ops;
    struct stream *stream;
    struct comm *group;
    void *address;
    struct model_part part = part_of(s, rank);
    open_lone(&l, &s->config, &part);
    assert_int_equal(ops_create(l.device, "cpu", s->type, &ops), STATUS_OK);
    assert_int_equal(stream_create(l.device, "dry", &stream), STATUS_OK);
    assert_int_equal(comm_create_dry(l.device, rank, s->tp, false, &group), STATUS_OK);
    assert_int_equal(
        device_alloc(l.device, MEM_OTHER, "dry", (UNIT_MAX_BUFFERS + 1) * DRY_BYTES, &address),
        STATUS_OK);
    struct unit_run run = {.ops = ops,
                           .stream = stream,
                           .group = group,
                           .shape = {s->batch, s->tokens, l.graph->sequence},
                           .tokens = address,
                           .labels = address,
                           .scalars = address,
                           .room = address,
                           .gradient = address,
                           .loss = address};
    int last = l.graph->unit_count - 1;
    for (int u = 0; u < last; u++)
        dry_pass(&l.graph->units[u], PASS_FORWARD, address, &run);
    dry_pass(&l.graph->units[last], PASS_LOSS, address, &run);
    for (int u = last - 1; u >= 0; u--)
        dry_pass(&l.graph->units[u], PASS_BACKWARD, address, &run);
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++)
        bytes[kind] = comm_counted(group, (enum comm_kind)kind).bytes;
    device_free(l.device, address);
    comm_destroy(group);
    stream_destroy(stream);
    ops_destroy(ops);
    close_lone(&l);
}

/* A rank of a group that is not there counts the same, also at sizes that nobody runs here. */
static void test_dry(void **state)
{
    (void)state;
    int64_t bytes[COMM_KIND_COUNT];
    struct setting s = setting_of(llama(2), "cpu", DTYPE_F32);
    for (s.mode = 0; s.mode < MODES; s.mode++) {
        s.tp = 4;
        walk_dry(&s, 3, bytes);
        check_wire(&s, bytes);
    }
    s.config.layers = 32;
    s.config.width = 4096;
    s.config.heads = 32;
    s.config.kv_heads = s.tp = 8;
    s.config.head_width = 128;
    s.config.ff = 14336;
    s.config.context = 8192;
    s.config.vocab = 128256;
    s.batch = 1;
    s.tokens = 8192;
    for (s.mode = 0; s.mode < MODES; s.mode++) {
        walk_dry(&s, 5, bytes);
        check_wire(&s, bytes);
    }
}

/* What a block keeps for its backward pass, in bytes. */
static size_t kept_bytes(const struct model_config *config, const struct model_part *part)
{
    struct lone l;
    struct ops *ops;
    struct unit_buffer list[UNIT_MAX_BUFFERS];
    struct unit_shape shape = {2, 8, part->sequence ? part->tp : 0};
    size_t bytes = 0;
    open_lone(&l, config, part);
    assert_int_equal(ops_create(l.device, "cpu", DTYPE_F32, &ops), STATUS_OK);
    const struct unit *unit = &l.graph->units[1];
    int count = unit->type->buffers(unit, ops, shape, list);
    for (int b = 0; b < count; b++)
        bytes += list[b].keep != KEEP_NOT ? list[b].bytes : 0;
    ops_destroy(ops);
    close_lone(&l);
    return bytes;
}

/* Gathered again, all that is kept divides by tp; kept gathered, all but two activations; without
 * sequence parallel, all but the stream, the norms and their statistics. */
static void test_kept(void **state)
{
    (void)state;
    struct model_config c = gpt2();
    size_t activation = 2 * 8 * 16 * 4, statistics = 2 * (2 * 2 * 8) * 4;
    size_t whole = kept_bytes(&c, &(struct model_part){.tp = 1});
    for (int tp = 2; tp <= 4; tp *= 2) {
        struct model_part part = {.tp = tp, .sequence = true, .regather = true};
        size_t share = (whole - 4 * activation - statistics) / (size_t)tp;
        assert_int_equal(kept_bytes(&c, &part), whole / (size_t)tp);
        part.regather = false;
        assert_int_equal(kept_bytes(&c, &part),
                         whole / (size_t)tp + 2 * activation - 2 * activation / (size_t)tp);
        part.sequence = false;
        /* act also holds the attention branch, of all rows */
        size_t act = (size_t)(c.ff / tp > 3 * c.width / tp ? c.ff : 3 * c.width) / (size_t)tp;
        size_t room = act < 16 ? (16 - act) * 2 * 8 * 4 : 0;
        assert_int_equal(kept_bytes(&c, &part), 4 * activation + statistics + share + room);
    }
}

/* --- refusals ------------------------------------------------------------------------------- */

static void refused(struct model_config c, int tp, const char *words)
{
    struct fixture f;
    struct device *device;
    struct model *model = NULL;
    fixture_open(&f);
    assert_int_equal(device_create(&f.env, "dry", 0, &device), STATUS_OK);
    assert_int_equal(model_create_part(device, &c, &(struct model_part){.tp = tp}, &model),
                     STATUS_CONFIG);
    assert_contains(f.heard.line, words);
    device_destroy(device);
    fixture_close(&f);
}

static void test_refusals(void **state)
{
    (void)state;
    struct model_config c = gpt2(), odd = gpt2(), few = gpt2();
    refused(c, 3, "parallel.tp: 3 ranks cannot share model.heads 4; 2 or 4 could");
    refused(c, 8, "parallel.tp: 8 ranks cannot share model.heads 4; 4 could");
    odd.ff = 26;
    refused(odd, 4, "4 ranks cannot share model.ff 26; 2 could");
    few.vocab = 3;
    refused(few, 4, "cannot share model.vocab 3");
    struct model_config three = llama(1);
    three.heads = 12;
    three.kv_heads = 6;
    refused(three, 4, "4 ranks cannot share model.kv_heads 6; 2 could");

    struct fixture f;
    struct model_part part = {.tp = 4, .sequence = true};
    fixture_open(&f);
    assert_int_equal(model_part_check_rows(&f.env, &part, 2, 6), STATUS_OK);
    assert_int_equal(model_part_check_rows(&f.env, &part, 3, 6), STATUS_CONFIG);
    assert_contains(f.heard.line, "parallel.sequence: 4 ranks cannot share the 18 rows");
    assert_contains(f.heard.line, "take 2 sequences, a multiple of 4 tokens");
    part.sequence = false;
    assert_int_equal(model_part_check_rows(&f.env, &part, 3, 6), STATUS_OK);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),     cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_kept),      cmocka_unit_test(test_agrees_with_one_rank),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_chunked_loss),
        cmocka_unit_test(test_logits),    cmocka_unit_test(test_wire),
        cmocka_unit_test(test_dry),       cmocka_unit_test(test_three_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
