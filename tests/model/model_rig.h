/* model_rig -- the minimum that runs a model's passes: params in one buffer each, shared or
 * separate activation buffers, no store and no engine.
 *
 * Buffers that a recompute mode does not keep are shared by all units and filled with NaN before
 * PASS_REBUILD, and scratch is filled with NaN before every pass, so that reading stale data is
 * noticed. When backward runs in two halves, buffers that are not declared to live until the second
 * half are filled with NaN before it, too.
 */
#ifndef TESTS_MODEL_MODEL_RIG_H
#define TESTS_MODEL_MODEL_RIG_H
#include <math.h>
#include "base/fixture.h"
#include "base/rng.h"
#include "model/model_impl.h"

enum { RIG_UNITS = 8, RIG_PARAMS = 64 };

struct rig {
    struct fixture fixture;
    struct env *env;
    struct device *device;
    struct stream *stream;
    struct ops *ops;
    struct model *model;
    const struct unit_graph *graph;
    struct comm *group; /* borrowed; NULL: one rank */
    struct unit_shape shape;
    enum keep rebuild; /* KEEP_NOT: everything is kept */
    bool parts;        /* backward in two halves */

    void *params[RIG_PARAMS];
    void *grads[RIG_UNITS][UNIT_MAX_USES];
    struct unit_buffer list[RIG_UNITS][UNIT_MAX_BUFFERS];
    int list_count[RIG_UNITS];
    void *buffers[RIG_UNITS][UNIT_MAX_BUFFERS];
    void *rooms[2], *gradient, *carry_gradient;
    const void *carries[RIG_UNITS]; /* that each unit gets from the one before it */
    float *statistic;
    int32_t *tokens, *labels;
    double *loss;
    struct step_scalars *scalars;
};

static inline void *rig_block(struct rig *r, size_t bytes)
{
    void *block;
    assert_int_equal(device_alloc(r->device, MEM_OTHER, "rig", bytes, &block), STATUS_OK);
    return block;
}

static inline size_t rig_param_bytes(const struct rig *r, int param)
{
    return (size_t)unit_param_count(r->graph, param) * dtype_bytes(r->ops->type);
}

static inline size_t rig_carry_bytes(const struct rig *r)
{
    return (size_t)r->graph->carry * dtype_bytes(r->ops->type);
}

static inline size_t rig_statistic_bytes(const struct rig *r)
{
    return (size_t)r->graph->statistics * sizeof(float);
}

static inline double rig_get(const struct rig *r, const void *values, int64_t i)
{
    return r->ops->type == DTYPE_F64 ? ((const double *)values)[i] : ((const float *)values)[i];
}

static inline void rig_set(const struct rig *r, void *values, int64_t i, double value)
{
    if (r->ops->type == DTYPE_F64)
        ((double *)values)[i] = value;
    else
        ((float *)values)[i] = (float)value;
}

/* Every tensor gets random values, biases and norms too, so that no gradient is zero by chance. A
 * value depends on the element's index in the whole tensor, not on this rank's part of it. */
static inline void rig_fill_params(struct rig *r, double deviation)
{
    for (int p = 0; p < r->graph->param_count; p++) {
        const struct unit_param *param = &r->graph->params[p];
        int64_t at = 0;
        for (int t = 0; t < param->tensor_count; t++) {
            const struct unit_tensor *tensor = &r->graph->tensors[param->first_tensor + t];
            struct rng rng = rng_stream(1, tensor->name);
            double mean = tensor->init == INIT_ONE ? 1 : 0;
            for (int64_t i = 0; i < unit_tensor_count(tensor); i++)
                rig_set(r, r->params[p], at++,
                        mean + deviation *
                                   rng_normal(rng, (uint64_t)unit_tensor_index(tensor, i, NULL)));
        }
    }
}

/* Whether a buffer lives from one half of backward to the other. */
static inline bool rig_lasts(const struct rig *r, int u, int b)
{
    return r->parts && (r->list[u][b].passes & UNIT_PARTS) == UNIT_PARTS;
}

static inline void rig_alloc_buffers(struct rig *r)
{
    const struct unit_graph *g = r->graph;
    for (int u = 0; u < g->unit_count; u++) {
        const struct unit *unit = &g->units[u];
        r->list_count[u] = unit->type->buffers(unit, r->ops, r->shape, r->list[u]);
        for (int b = 0; b < r->list_count[u]; b++) {
            bool shared = r->list[u][b].keep >= r->rebuild && r->list[u][b].keep != KEEP_NOT;
            bool again =
                shared && !rig_lasts(r, u, b) && u > 1 && g->units[u - 1].type == unit->type;
            r->buffers[u][b] = again ? r->buffers[u - 1][b] : rig_block(r, r->list[u][b].bytes);
        }
        for (int i = 0; i < unit->use_count; i++)
            r->grads[u][i] = rig_block(r, rig_param_bytes(r, unit->uses[i]));
    }
}

/* The part of a model that rank part->t computes; its passes need r->group. */
static inline void rig_open_part(struct rig *r, const struct model_config *config,
                                 const char *backend, enum dtype type, struct unit_shape shape,
                                 enum keep rebuild, bool parts, const struct model_part *part)
{
    memset(r, 0, sizeof *r);
    r->parts = parts;
    r->env = fixture_open(&r->fixture);
    r->shape = shape;
    r->rebuild = rebuild;
    assert_int_equal(device_create(r->env, "cpu", 0, &r->device), STATUS_OK);
    assert_int_equal(stream_create(r->device, "rig", &r->stream), STATUS_OK);
    assert_int_equal(ops_create(r->device, backend, type, &r->ops), STATUS_OK);
    assert_int_equal(model_create_part(r->device, config, part, &r->model), STATUS_OK);
    r->graph = model_graph(r->model);
    assert_true(r->graph->unit_count <= RIG_UNITS && r->graph->param_count <= RIG_PARAMS);
    for (int p = 0; p < r->graph->param_count; p++)
        r->params[p] = rig_block(r, rig_param_bytes(r, p));
    rig_alloc_buffers(r);

    int64_t rows = shape.batch * shape.tokens;
    size_t stream = (size_t)(unit_stream_rows(shape) * r->graph->stream_width) * dtype_bytes(type);
    r->rooms[0] = rig_block(r, stream);
    r->rooms[1] = rig_block(r, stream);
    r->gradient = rig_block(r, stream);
    r->carry_gradient = rig_block(r, rig_carry_bytes(r));
    r->statistic = rig_block(r, rig_statistic_bytes(r));
    r->tokens = rig_block(r, (size_t)rows * sizeof *r->tokens);
    r->labels = rig_block(r, (size_t)rows * sizeof *r->labels);
    r->loss = rig_block(r, sizeof *r->loss);
    r->scalars = rig_block(r, sizeof *r->scalars);

    /* Repeated tokens, some masked labels. */
    struct rng rng = rng_stream(2, "batch");
    int64_t valid = 0;
    for (int64_t i = 0; i < rows; i++) {
        r->tokens[i] = (int32_t)rng_below(rng, (uint64_t)(2 * i), (uint64_t)config->vocab);
        r->labels[i] =
            i % 5 == 3 ? -1
                       : (int32_t)rng_below(rng, (uint64_t)(2 * i + 1), (uint64_t)config->vocab);
        valid += r->labels[i] >= 0;
    }
    r->scalars->loss_scale = (float)(1.0 / (double)valid);
}

static inline void rig_open(struct rig *r, const struct model_config *config, const char *backend,
                            enum dtype type, struct unit_shape shape, enum keep rebuild)
{
    struct model_part whole = {.tp = 1};
    rig_open_part(r, config, backend, type, shape, rebuild, false, &whole);
}

static inline void rig_close(struct rig *r)
{
    const struct unit_graph *g = r->graph;
    for (int u = 0; u < g->unit_count; u++) {
        for (int b = 0; b < r->list_count[u]; b++)
            if (u == 0 || r->buffers[u][b] != r->buffers[u - 1][b])
                device_free(r->device, r->buffers[u][b]);
        for (int i = 0; i < g->units[u].use_count; i++)
            device_free(r->device, r->grads[u][i]);
    }
    for (int p = 0; p < g->param_count; p++)
        device_free(r->device, r->params[p]);
    void *blocks[] = {r->rooms[0], r->rooms[1], r->gradient, r->carry_gradient, r->statistic,
                      r->tokens,   r->labels,   r->loss,     r->scalars};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        device_free(r->device, blocks[i]);
    model_destroy(r->model);
    ops_destroy(r->ops);
    stream_destroy(r->stream);
    device_destroy(r->device);
    fixture_close(&r->fixture);
}

/* --- passes --------------------------------------------------------------------------------- */
static inline void rig_spoil(struct rig *r, int u, enum pass pass)
{
    for (int b = 0; b < r->list_count[u]; b++) {
        enum keep keep = r->list[u][b].keep;
        bool spent = keep == KEEP_NOT || (pass == PASS_REBUILD && keep >= r->rebuild);
        if (pass == PASS_BACKWARD_WEIGHT ? !rig_lasts(r, u, b) : spent)
            memset(r->buffers[u][b], 0xff, r->list[u][b].bytes);
    }
}

static inline void rig_pass(struct rig *r, int u, enum pass pass, struct unit_run *run)
{
    const struct unit *unit = &r->graph->units[u];
    rig_spoil(r, u, pass);
    for (int b = 0; b < r->list_count[u]; b++)
        run->buffers[b] = r->buffers[u][b];
    for (int i = 0; i < unit->use_count; i++) {
        run->params[i] = unit_reads(unit, pass, i) ? r->params[unit->uses[i]] : NULL;
        run->grads[i] = unit_writes(unit, pass, i) ? r->grads[u][i] : NULL;
        if (run->grads[i])
            memset(run->grads[i], 0xff, rig_param_bytes(r, unit->uses[i]));
    }
    run->room = r->rooms[u % 2];
    run->rebuild = r->rebuild;
    run->carry = r->carries[u];
    run->out_carry = NULL;
    bool counts = pass == PASS_FORWARD || pass == PASS_BACKWARD || pass == PASS_LOSS;
    run->statistic = counts ? r->statistic + unit->first_statistic : NULL;
    unit_run_pass(unit, pass, run);
    if ((pass == PASS_FORWARD || pass == PASS_DECODE) && u + 1 < r->graph->unit_count)
        r->carries[u + 1] = run->out_carry;
}

static inline struct unit_run rig_run(struct rig *r)
{
    return (struct unit_run){.ops = r->ops,
                             .stream = r->stream,
                             .group = r->group,
                             .shape = r->shape,
                             .tokens = r->tokens,
                             .labels = r->labels,
                             .scalars = r->scalars,
                             .gradient = r->gradient,
                             .carry_gradient = r->carry_gradient,
                             .step_rows = r->shape.batch * r->shape.tokens,
                             .loss = r->loss};
}

static inline void rig_forward(struct rig *r, enum pass pass, struct unit_run *run)
{
    for (int u = 0; u < r->graph->unit_count - 1; u++) {
        rig_pass(r, u, pass, run);
        run->residual = run->out_residual;
        run->pending = run->out_pending;
    }
}

static inline double rig_eval(struct rig *r)
{
    struct unit_run run = rig_run(r);
    rig_forward(r, PASS_FORWARD, &run);
    rig_pass(r, r->graph->unit_count - 1, PASS_EVAL, &run);
    assert_int_equal(stream_sync(r->stream), STATUS_OK);
    return *r->loss;
}

static inline double rig_gradients(struct rig *r)
{
    struct unit_run run = rig_run(r);
    int last = r->graph->unit_count - 1;
    memset(r->statistic, 0, rig_statistic_bytes(r));
    memset(r->carry_gradient, 0, rig_carry_bytes(r));
    rig_forward(r, PASS_FORWARD, &run);
    rig_pass(r, last, PASS_LOSS, &run);
    for (int u = last - 1; u >= 0; u--) {
        if (r->rebuild != KEEP_NOT && r->graph->units[u].type->run[PASS_REBUILD])
            rig_pass(r, u, PASS_REBUILD, &run);
        rig_pass(r, u, r->parts ? PASS_BACKWARD_INPUT : PASS_BACKWARD, &run);
    }
    run.gradient = NULL;
    for (int u = last - 1; u >= 0 && r->parts; u--)
        rig_pass(r, u, PASS_BACKWARD_WEIGHT, &run);
    assert_int_equal(stream_sync(r->stream), STATUS_OK);
    return *r->loss;
}

/* Element i of param p's gradient, summed over its uses. */
static inline double rig_gradient(const struct rig *r, int p, int64_t i)
{
    double sum = 0;
    for (int u = 0; u < r->graph->unit_count; u++)
        for (int k = 0; k < r->graph->units[u].use_count; k++)
            if (r->graph->units[u].uses[k] == p)
                sum += rig_get(r, r->grads[u][k], i);
    return sum;
}

/* --- finite differences --------------------------------------------------------------------- */

typedef double rig_value_fn(struct rig *r, void *context);

static inline double rig_mean_loss(struct rig *r, void *context)
{
    (void)context;
    return rig_eval(r) * r->scalars->loss_scale;
}

/* d value / d(param p, element i) by the five-point rule with step h. Statistics of norms are kept
 * in fp32, which makes values a staircase with steps of 1e-8: h must be much wider. */
static inline double rig_difference(struct rig *r, int p, int64_t i, double h, rig_value_fn *value,
                                    void *context)
{
    double middle = rig_get(r, r->params[p], i), f[4];
    const double at[4] = {-2 * h, -h, h, 2 * h};
    for (int k = 0; k < 4; k++) {
        rig_set(r, r->params[p], i, middle + at[k]);
        f[k] = value(r, context);
    }
    rig_set(r, r->params[p], i, middle);
    return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
}

/* An element of a tensor. If the tensor has a row for each token, an element in a label's row: the
 * others have almost no gradient. */
static inline int64_t rig_sample(const struct rig *r, const struct unit_tensor *tensor,
                                 uint64_t random)
{
    int64_t elements = unit_tensor_count(tensor), i = (int64_t)(random % (uint64_t)elements);
    if (tensor->shape[0] != r->graph->vocab)
        return i;
    int64_t width = tensor->shape[1];
    int32_t label = r->labels[random % (uint64_t)(r->shape.batch * r->shape.tokens)];
    return (label < 0 ? 0 : label) * width + i % width;
}

/* --- models --------------------------------------------------------------------------------- */
static inline struct model_config rig_gpt2(void)
{
    return (struct model_config){.arch = MODEL_GPT2,
                                 .layers = 2,
                                 .width = 12,
                                 .heads = 3,
                                 .kv_heads = 3,
                                 .head_width = 4,
                                 .ff = 19,
                                 .context = 9,
                                 .vocab = 13,
                                 .tied = 1,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.02};
}

static inline struct model_config rig_llama(void)
{
    return (struct model_config){.arch = MODEL_LLAMA,
                                 .layers = 2,
                                 .width = 12,
                                 .heads = 6,
                                 .kv_heads = 2,
                                 .head_width = 2,
                                 .ff = 7,
                                 .context = 9,
                                 .vocab = 13,
                                 .tied = 1,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.02,
                                 .rope_theta = 100};
}

static inline struct model_config rig_sars(void)
{
    return (struct model_config){.arch = MODEL_SARS,
                                 .layers = 3,
                                 .width = 6,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_width = 6,
                                 .context = 9,
                                 .vocab = 13,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.02,
                                 .rope_theta = 100,
                                 .sars = {.meta_weight = 1}};
}

/* A relative of Llama, with everything that its layers can have. */
static inline struct model_config rig_relative(enum model_arch arch)
{
    const struct model_traits *traits = model_traits(arch);
    struct model_config c = rig_llama();
    c.arch = arch;
    c.head_width = 4;
    c.attention_bias = traits->attention_bias && !traits->nope; /* without positions, the bias of
                                                                   keys has no gradient */
    c.mlp_bias = traits->mlp_bias;
    c.nope_every = traits->nope ? 2 : 0;
    c.window = traits->window ? 3 : 0;
    c.full_every = traits->window_some ? 2 : 0;
    c.rope.local = arch == MODEL_GEMMA3 ? 20 : 0;
    c.query_scalar = traits->caps ? 3 : 0;
    c.score_cap = traits->caps ? 2 : 0;
    c.logit_cap = traits->caps ? 1.5 : 0;
    return c;
}

#endif
