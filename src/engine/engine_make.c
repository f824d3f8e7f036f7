/* engine_make -- options, creation and destruction of an engine.
 */
#include "engine/pipeline_impl.h"

static const char *const recompute_words[] = {"none", "selective", "full", NULL};
_Static_assert(sizeof recompute_words / sizeof *recompute_words == RECOMPUTE_COUNT + 1, "one each");

const char *recompute_word(int recompute)
{
    CHECK(recompute >= 0 && recompute < RECOMPUTE_COUNT);
    return recompute_words[recompute];
}

static const struct option options[] = {
    {.key = "engine.recompute",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct engine_config, recompute),
     .fallback = "none",
     .choices = recompute_words,
     .help = "activations to recompute in the backward pass instead of keeping them"},
    {.key = "engine.keep_swiglu",
     .type = OPTION_BOOL,
     .removed = "the backward pass always computes SwiGLU again; results are the same"},
};

const struct option_table engine_options = {"engine", options, sizeof options / sizeof *options};

enum keep recompute_keeps_below(int recompute)
{
    switch (recompute) {
    case RECOMPUTE_SELECTIVE: return KEEP_UNLESS_SELECTIVE;
    case RECOMPUTE_FULL: return KEEP_UNLESS_FULL;
    default: return KEEP_NOT;
    }
}

static enum status alloc_inputs(struct engine *engine)
{
    const struct unit_graph *graph = engine->graph;
    size_t ids = (size_t)engine->config.tokens * sizeof(int32_t);
    const struct unit_input language[] = {
        [INPUT_TOKENS] = {"tokens", ids}, [INPUT_LABELS] = {"labels", ids}};
    const struct unit_input *inputs = graph->inputs ? graph->inputs : language;
    struct engine_inputs *in = &engine->inputs;
    in->count = graph->inputs ? graph->input_count : 2;
    for (int i = 0; i < in->count; i++) {
        in->bytes[i] = (size_t)engine->config.micro_batch * inputs[i].bytes;
        TRY(mem_alloc(engine->env, MEM_LOADER, "data of a step",
                      (size_t)engine_most_rounds(engine) * in->bytes[i], &in->host[i]));
        TRY(device_alloc(engine->ops->device, MEM_LOADER, "data of a micro-batch", in->bytes[i],
                         &in->device[i]));
    }
    return STATUS_OK;
}

static bool has_gates(const struct unit_graph *graph)
{
    for (int t = 0; t < graph->tensor_count; t++)
        if (graph->tensors[t].gated)
            return true;
    return false;
}

static enum status alloc_statistics(struct engine *engine)
{
    const struct roster *roster = zero_roster(engine->zero);
    size_t ranks = (size_t)roster->size,
           count = (size_t)(engine_most_rounds(engine) * engine->graph->statistics);
    if (count == 0 || engine->config.micro_batches == 0)
        return STATUS_OK;
    if (engine->pipeline && (size_t)comm_size(engine->pipeline->comm) > ranks)
        ranks = (size_t)comm_size(engine->pipeline->comm);
    TRY(mem_alloc_array(engine->env, MEM_LOADER, "statistics", count, sizeof(float),
                        &engine->statistics_host));
    TRY(mem_alloc_array(engine->env, MEM_LOADER, "statistics", ranks * count, sizeof(float),
                        &engine->all_statistics));
    if (has_gates(engine->graph))
        TRY(device_alloc(engine->ops->device, MEM_LOADER, "sum of statistics",
                         (size_t)engine->graph->statistics * sizeof(float), &engine->gates));
    if (!roster_is_worker(roster))
        return STATUS_OK;
    return device_alloc(engine->ops->device, MEM_LOADER, "statistics", count * sizeof(float),
                        &engine->statistics);
}

static enum status alloc_losses(struct engine *engine)
{
    size_t bytes = (size_t)engine_most_rounds(engine) * sizeof(double);
    TRY(mem_alloc(engine->env, MEM_LOADER, "losses of a step", bytes, &engine->losses_host));
    TRY(mem_alloc_array(engine->env, MEM_LOADER, "losses of all ranks",
                        (size_t)zero_roster(engine->zero)->size, bytes, &engine->all_losses));
    if (engine->config.group)
        TRY(mem_alloc_array(engine->env, MEM_LOADER, "votes",
                            (size_t)comm_size(engine->config.group), sizeof *engine->votes,
                            &engine->votes));
    return device_alloc(engine->ops->device, MEM_LOADER, "losses of micro-batches", bytes,
                        &engine->losses);
}

static enum status alloc_activations(struct engine *engine)
{
    const struct engine_config *c = &engine->config;
    struct unit_shape shape = engine_batch_shape(engine);
    uint32_t passes = 1u << PASS_FORWARD | 1u << PASS_EVAL | 1u << PASS_LOGITS;
    if (c->micro_batches > 0) {
        passes |= 1u << PASS_REBUILD | 1u << PASS_BACKWARD | 1u << PASS_LOSS;
        if (engine->pipeline && timetable_splits(&engine->pipeline->table.shape))
            passes |= UNIT_PARTS;
        if (!engine->pipeline)
            TRY(device_alloc(engine->ops->device, MEM_ACTIVATIONS, "gradient of the stream",
                             engine_stream_bytes(engine), &engine->gradient));
        if (engine->graph->carry > 0)
            TRY(device_alloc(engine->ops->device, MEM_ACTIVATIONS, "gradient of the carry",
                             engine_carry_bytes(engine), &engine->carry_gradient));
    }
    enum far_kind kind =
        c->micro_batches == 0 || far_host_is_near(engine->ops->device) ? FAR_NONE : c->activations;
    if (kind != FAR_NONE && engine->pipeline)
        return FAIL(engine->env, CONFIG,
                    "offload.activations=host does not work in a pipeline (parallel.pp=%d), where "
                    "several micro-batches are in flight; set parallel.pp=1, or "
                    "offload.activations=none with engine.recompute=selective or full",
                    comm_size(engine->pipeline->comm));
    return activations_create(
        engine->ops, engine->graph, shape,
        c->micro_batches == 0 ? KEEP_ALWAYS : recompute_keeps_below(c->recompute), passes,
        engine->pipeline ? engine->pipeline->unit_copies : NULL, kind,
        c->activations_share > 0 ? c->activations_share : 1, &engine->activations);
}

/* Other ranks must know which stream computes, so that they can tell whether this rank is itself
 * waiting. */
static void set_compute_stream(const struct engine *engine, const struct stream *stream)
{
    if (engine->scopes.comm)
        comm_set_compute_stream(engine->scopes.comm, stream);
}

enum status engine_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                          struct zero *zero, const struct engine_config *config,
                          struct engine **engine)
{
    struct env *env = device_env(ops->device);
    struct engine *e;
    enum status st;
    bool worker = roster_is_worker(zero_roster(zero));
    CHECK(config->micro_batch > 0 && config->tokens > 0 && config->tokens <= graph->context);
    TRY(mem_alloc(env, MEM_OTHER, "engine", sizeof *e, &e));
    *e = (struct engine){.ops = ops,
                         .stream = stream,
                         .graph = graph,
                         .zero = zero,
                         .env = env,
                         .config = *config,
                         .micro_batches = config->micro_batches};
    e->scale = zero_wants_scaling(zero) ? loss_scale_start() : (struct loss_scale){.scale = 1.0};
    TRY_OR(undo, alloc_inputs(e));
    TRY_OR(undo, alloc_losses(e));
    CHECK(!config->pipe || graph->carry == 0); /* PP stages do not send it */
    if (config->pipe)
        TRY_OR(undo, pipeline_create(e, config->pipe, &e->pipeline));
    TRY_OR(undo, alloc_statistics(e));
    e->config.pipe = NULL;
    struct comm *any = e->pipeline ? e->pipeline->comm : zero_comm(zero);
    e->scopes = (struct scopes){
        .env = env, .comm = any ? any : config->group, .silent = device_is_dry(ops->device)};
    if (worker) { /* servers compute nothing */
        TRY_OR(undo, alloc_activations(e));
        if (config->group && config->micro_batches > 0)
            TRY_OR(undo, unit_side_stream_create(ops->device, config->group, &e->side_stream));
    }
    set_compute_stream(e, stream);
    *engine = e;
    return STATUS_OK;
undo:
    engine_destroy(e);
    return st;
}

void engine_destroy(struct engine *engine)
{
    if (!engine)
        return;
    struct device *device = engine->ops->device;
    set_compute_stream(engine, NULL);
    unit_side_stream_destroy(device, engine->side_stream);
    pipeline_destroy(engine->pipeline);
    activations_destroy(engine->activations);
    device_free(device, engine->gradient);
    device_free(device, engine->carry_gradient);
    for (int i = 0; i < engine->inputs.count; i++) {
        device_free(device, engine->inputs.device[i]);
        mem_free(engine->env, engine->inputs.host[i]);
    }
    device_free(device, engine->losses);
    device_free(device, engine->statistics);
    device_free(device, engine->gates);
    mem_free(engine->env, engine->statistics_host);
    mem_free(engine->env, engine->all_statistics);
    mem_free(engine->env, engine->votes);
    mem_free(engine->env, engine->all_losses);
    mem_free(engine->env, engine->losses_host);
    mem_free(engine->env, engine);
}
