/* rig -- a small model on a device with its store and engine, and seeded batches: for the
 * engine's tests. On a GPU (gpu.h) the compute type is that of parameters and gradients. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H
#include <unistd.h>

#include "testing.h"
#include "base/rng.h"
#include "gpu.h"
#include "engine/decoder.h"
#include "engine/engine.h"
#include "engine/spread.h"
#include "model/model.h"
#include "threads.h"

enum { RIG_SEED = 5 };

struct rig_config {
    struct model_config model;
    const char *device, *ops; /* NULL: test_device() */
    enum dtype compute;       /* of ops; f32 by default, on a GPU always `type` */
    int threads, recompute;
    int64_t batch, tokens, micro_batches;
    const int64_t *ramp;             /* borrowed: micro-batches of each step; NULL: always all */
    double clip, meta_clip, eps;     /* eps 0: 1e-8 */
    enum optimizer_kind optimizer;   /* with Nesterov momentum 0.95 where it has one */
    bool no_momentum;                /* sgd */
    const struct zero_group *groups; /* borrowed */
    int group_count;
    int stage, prefetch, servers, group;
    int64_t bucket;
    int unit_layers;
    bool local, noise;
    enum dtype type, sum_type;
    bool stochastic;      /* 16-bit params use stochastic rounding, seeded with RIG_SEED */
    int pp, chunks, kind; /* PP stages, chunks per stage and schedule; pp 0: no pipeline */
    int tp;               /* TP ranks; 0: one */
    bool sequence, regather;
    struct zero_offload offload; /* folder NULL: in memory, where possible */
    enum far_kind activations;
    double activations_share; /* 0 = 1 */
    bool snapshot;            /* allocate a copy of the state */
    bool eager;
    bool lumps;           /* every other unit has no split backward pass; only with a pipeline */
    bool rounds;          /* products round their operands to bf16 */
    bool widens;          /* passes take no params in bf16 */
    struct comm_hub *hub; /* borrowed; NULL: one rank */
    int rank;
    double delays;   /* injected around every collective */
    int64_t fail_at; /* number of the allocation after joining that fails; 0: none */
};

struct rig {
    struct env *env;
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    struct zero *zero;
    struct engine *engine;
    struct comm *comm; /* NULL: one rank */
    struct spread spread;
    struct unit_type types[8]; /* of units that the test changed */
    struct rig_config config;
};

/* Odd sizes on purpose: no width is a multiple of 64. */
static inline struct model_config rig_gpt2(void)
{
    return (struct model_config){.arch = MODEL_GPT2,
                                 .layers = 3,
                                 .heads = 3,
                                 .kv_heads = 3,
                                 .width = 36,
                                 .head_width = 12,
                                 .ff = 100,
                                 .context = 24,
                                 .vocab = 61,
                                 .tied = 1,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.08,
                                 .path = ""};
}

static inline struct model_config rig_llama(void)
{
    return (struct model_config){.arch = MODEL_LLAMA,
                                 .layers = 3,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .width = 40,
                                 .head_width = 10,
                                 .ff = 52,
                                 .context = 24,
                                 .vocab = 67,
                                 .tied = 0,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.08,
                                 .rope_theta = 10000.0,
                                 .path = ""};
}

static inline struct model_config rig_sars(void)
{
    return (struct model_config){.arch = MODEL_SARS,
                                 .layers = 3,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .width = 22,
                                 .head_width = 22,
                                 .context = 24,
                                 .vocab = 61,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.08,
                                 .path = "",
                                 .sars = {.meta_weight = 1, .clamp = 1e-3}};
}

static inline void rig_destroy(struct rig *rig)
{
    engine_destroy(rig->engine);
    zero_destroy(rig->zero);
    model_destroy(rig->model);
    stream_destroy(rig->stream);
    spread_free(&rig->spread);
    comm_destroy(rig->comm);
    ops_destroy(rig->ops);
    device_destroy(rig->device);
    rig->engine = NULL, rig->zero = NULL, rig->model = NULL;
    rig->stream = NULL, rig->ops = NULL, rig->device = NULL, rig->comm = NULL;
}

/* Units with types of their own, before the graph is cut and its pieces are merged. The units are
 * the model's own table. */
static inline void rig_change(struct rig *rig, const struct unit_graph *graph)
{
    assert_true(graph->unit_count <= (int)(sizeof rig->types / sizeof *rig->types));
    for (int u = 0; u < graph->unit_count; u++) {
        struct unit_type *type = &rig->types[u];
        *type = *graph->units[u].type;
        if (rig->config.lumps && u % 2 == 0) {
            type->run[PASS_BACKWARD_INPUT] = type->run[PASS_BACKWARD_WEIGHT] = NULL;
            type->reads[PASS_BACKWARD_INPUT] = type->writes[PASS_BACKWARD_WEIGHT] = 0;
        }
        if (rig->config.widens)
            memset(type->takes_bf16, 0, sizeof type->takes_bf16);
        ((struct unit *)graph->units)[u].type = type;
    }
}

static inline enum status rig_build(struct rig *rig)
{
    const struct rig_config *c = &rig->config;
    struct zero_config zero = {.optimizer.kind = c->optimizer,
                               .optimizer.momentum = c->no_momentum ? 0 : 0.95,
                               .optimizer.nesterov = true,
                               .optimizer.beta1 = 0.9,
                               .optimizer.beta2 = 0.95,
                               .optimizer.eps = c->eps > 0 ? c->eps : 1e-8,
                               .weight_decay = 0.1,
                               .groups = c->groups,
                               .group_count = c->group_count,
                               .clip = c->clip,
                               .meta_clip = c->meta_clip,
                               .micro_batches = c->micro_batches,
                               .stage = c->stage,
                               .prefetch = c->prefetch,
                               .bucket = c->bucket,
                               .unit_layers = c->unit_layers,
                               .servers = c->servers,
                               .shard_group = c->group,
                               .local = c->local,
                               .noise = c->noise,
                               .type = c->type,
                               .sum_type = c->sum_type,
                               .stochastic = c->stochastic,
                               .seed = RIG_SEED,
                               .offload = c->offload,
                               .snapshot = c->snapshot};
    const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    zero.offload.folder = c->offload.folder ? c->offload.folder : folder;
    const struct comm_config comm = {.backend = "threads", .timeout = 60};
    struct engine_config engine = {.recompute = c->recompute,
                                   .activations = c->activations,
                                   .activations_share = c->activations_share,
                                   .micro_batch = c->batch,
                                   .tokens = c->tokens,
                                   .micro_batches = c->micro_batches};
    const char *ops = c->ops ? c->ops : test_device();
    bool on_host = strcmp(ops, "cpu") == 0 || strcmp(ops, "ref") == 0;
    const char *device = c->device ? c->device : on_host ? "cpu" : ops;
    TRY(device_create(rig->env, device, 0, &rig->device));
    if (c->hub) {
        TRY(comm_join(c->hub, c->rank, &comm, rig->device, &rig->comm));
        if (c->delays > 0)
            comm_inject_delays(rig->comm, c->delays, (uint64_t)c->rank);
    }
    if (c->fail_at > 0)
        mem_fail_at(rig->env->mem, c->fail_at);
    TRY(ops_create(rig->device, ops, on_host ? c->compute : c->type, &rig->ops));
    if (c->rounds)
        ops_multiply_in(rig->ops, DTYPE_BF16);
    TRY(stream_create(rig->device, "compute", &rig->stream));
    struct parallel_config parallel = {.tp = c->tp,
                                       .sequence = c->sequence,
                                       .regather = c->regather,
                                       .pp = c->pp,
                                       .chunks = c->chunks,
                                       .schedule = c->kind,
                                       .eager = c->eager};
    struct unit_shape shape = {.batch = c->batch, .tokens = c->tokens};
    struct model_part part;
    TRY(spread_part(rig->env, rig->comm, shape, &parallel, &part));
    TRY(model_create_part(rig->device, &c->model, &part, &rig->model));
    if (c->lumps || c->widens)
        rig_change(rig, model_graph(rig->model));
    TRY(spread_create(rig->env, rig->comm, model_graph(rig->model), shape, &parallel, &zero,
                      &rig->spread));
    spread_configure_store(&rig->spread, &zero);
    spread_configure_engine(&rig->spread, &engine);
    const struct unit_graph *graph = rig->spread.graph;
    TRY(zero_create(rig->ops, rig->stream, rig->spread.copies, graph, &zero, &rig->zero));
    return engine_create(rig->ops, rig->stream, graph, rig->zero, &engine, &rig->engine);
}

/* Create everything on `env`, with parameters from seed 1. */
static inline enum status rig_create(struct env *env, struct rig_config config, struct rig *rig)
{
    *rig = (struct rig){.env = env, .config = config};
    env->threads = config.threads > 0 ? config.threads : 1;
    enum status st = rig_build(rig);
    if (st == STATUS_OK && !device_is_dry(rig->device))
        st = zero_init(rig->zero, 1);
    if (st != STATUS_OK && rig->comm)
        comm_abort(rig->comm, "a rank failed");
    if (st != STATUS_OK)
        rig_destroy(rig);
    return st;
}

/* Fill the buffers of `round` with micro-batch m of step `step`: random tokens, about one label in
 * eight masked. */
static inline void rig_fill_round(struct rig *rig, int64_t step, int64_t m, int64_t round)
{
    int32_t *tokens, *labels;
    struct rng rng = rng_stream(99, "batch");
    int64_t rows = rig->config.batch * rig->config.tokens;
    uint64_t vocab = (uint64_t)rig->config.model.vocab;
    engine_batch(rig->engine, round, &tokens, &labels);
    for (int64_t i = 0; i < rows; i++) {
        uint64_t at = (uint64_t)((step * 100 + m) * rows + i) * 2;
        tokens[i] = (int32_t)rng_below(rng, at, vocab);
        labels[i] = (int32_t)rng_below(rng, at + 1, vocab + vocab / 8);
        if (labels[i] >= (int32_t)vocab)
            labels[i] = -1;
    }
}

static inline void rig_fill(struct rig *rig, int64_t step, int64_t m)
{
    rig_fill_round(rig, step, m, m);
}

static inline struct engine_result rig_step(struct rig *rig, int64_t step)
{
    struct engine_result result;
    if (rig->config.ramp)
        assert_ok(engine_set_micro_batches(rig->engine, rig->config.ramp[step]));
    for (int64_t round = 0; round < engine_rounds(rig->engine); round++) {
        int64_t m = engine_micro_batch(rig->engine, round);
        if (m >= 0)
            rig_fill_round(rig, step, m, round);
    }
    assert_ok(engine_step(rig->engine, step + 1, 1e-2, &result));
    return result;
}

/* All parameters, concatenated; free() it. */
static inline float *rig_params(struct rig *rig, int64_t *count)
{
    const struct unit_graph *graph = model_graph(rig->model);
    *count = unit_graph_count(graph);
    float *all = malloc((size_t)*count * sizeof *all), *next = all;
    assert_non_null(all);
    for (int t = 0; t < graph->tensor_count; t++) {
        int64_t n = unit_tensor_whole(&graph->tensors[t]);
        assert_ok(zero_read(rig->zero, t, 0, n, next));
        next += n;
    }
    return all;
}

/* Run body(&jobs[rank]) for all ranks of one job, one thread each. A job of `bytes` begins with its
 * rig_config, which is given hub and rank. */
static inline void rig_run_ranks(void *(*body)(void *), void *jobs, int ranks, size_t bytes)
{
    struct env env = testing_env(1);
    struct comm_hub *hub = NULL;
    if (ranks > 1)
        assert_ok(comm_hub_create(&env, ranks, &hub));
    for (int r = 0; r < ranks; r++) {
        struct rig_config *config = (void *)((char *)jobs + (size_t)r * bytes);
        config->hub = hub;
        config->rank = r;
    }
    threads_run(body, jobs, ranks, bytes);
    comm_hub_destroy(hub);
    env_destroy(&env);
}

#endif
