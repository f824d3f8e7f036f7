/* engine -- the order of passes of a step.
 *
 *     for each round   forward of units 0 .. n-2, loss of the last, backward of n-2 .. 0
 *     then             the store's verdict on the sum of all gradients, and the update
 *
 * Each worker computes one micro-batch a round. Ranks without one (idle in the last round, or
 * servers) make the same calls to the store in the same order and compute nothing.
 *
 * The number of valid labels of the whole step is known before the first backward, and the loss
 * gradient enters divided by it: no average of averages. Losses are added in the order of the
 * micro-batches. In fp16 the gradient also enters multiplied by a scale (zero/loss_scale.h), which
 * the verdict and the update take out again before the next step has another.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/beside.h"
#include "engine/engine_impl.h"

static const char *const recompute_words[] = {"none", "selective", "full", NULL};

static const struct option options[] = {
    {.key = "engine.recompute",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct engine_config, recompute),
     .fallback = "none",
     .choices = recompute_words,
     .help = "activations to make again in the backward pass instead of keeping them"},
};

const struct option_table engine_options = {"engine", options, sizeof options / sizeof *options};

/* --- construction --------------------------------------------------------------------------- */

const struct roster *engine_roster(const struct engine *engine)
{
    return zero_roster(engine->zero);
}

int64_t engine_rounds(const struct engine *engine)
{
    if (engine->config.micro_batches == 0)
        return 1;
    return roster_rounds(zero_roster(engine->zero), engine->config.micro_batches);
}

int64_t engine_micro_batch(const struct engine *engine, int64_t round)
{
    return roster_micro_batch(zero_roster(engine->zero), engine->config.micro_batches, round);
}

static int64_t batch_rows(const struct engine *engine)
{
    return engine->config.micro_batch * engine->config.tokens;
}

/* Without backward passes nothing is kept, so every rank may as well have all rows of the stream:
 * logits need them. */
enum keep recompute_keeps_below(int recompute)
{
    switch (recompute) {
    case RECOMPUTE_SELECTIVE: return KEEP_UNLESS_SELECTIVE;
    case RECOMPUTE_FULL: return KEEP_UNLESS_FULL;
    default: return KEEP_NOT;
    }
}

static struct unit_shape batch_shape(const struct engine *engine)
{
    const struct engine_config *c = &engine->config;
    return (struct unit_shape){.batch = c->micro_batch,
                               .tokens = c->tokens,
                               .sequence = c->micro_batches > 0 ? engine->graph->sequence : 0};
}

size_t engine_stream_bytes(const struct engine *engine)
{
    int64_t rows = unit_stream_rows(batch_shape(engine));
    return (size_t)(rows * engine->graph->stream_width) * dtype_bytes(engine->ops->type);
}

static enum status alloc_batches(struct engine *engine)
{
    struct device *device = engine->ops->device;
    size_t places = (size_t)engine_rounds(engine), rows = (size_t)batch_rows(engine);
    size_t bytes = rows * sizeof(int32_t), losses = places * sizeof(double);
    TRY(mem_alloc(engine->env, MEM_LOADER, "tokens of a step", places * bytes, &engine->tokens));
    TRY(mem_alloc(engine->env, MEM_LOADER, "labels of a step", places * bytes, &engine->labels));
    TRY(mem_alloc(engine->env, MEM_LOADER, "losses of a step", losses, &engine->losses_host));
    TRY(mem_alloc_array(engine->env, MEM_LOADER, "losses of all ranks",
                        (size_t)zero_roster(engine->zero)->size, losses, &engine->all_losses));
    if (engine->config.group)
        TRY(mem_alloc_array(engine->env, MEM_LOADER, "votes",
                            (size_t)comm_size(engine->config.group), sizeof *engine->votes,
                            &engine->votes));
    TRY(device_alloc(device, MEM_LOADER, "tokens of a micro-batch", bytes, &engine->device_tokens));
    TRY(device_alloc(device, MEM_LOADER, "labels of a micro-batch", bytes, &engine->device_labels));
    return device_alloc(device, MEM_LOADER, "losses of micro-batches", losses, &engine->losses);
}

static enum status alloc_activations(struct engine *engine)
{
    const struct engine_config *c = &engine->config;
    struct unit_shape shape = batch_shape(engine);
    uint32_t passes = 1u << PASS_FORWARD | 1u << PASS_EVAL | 1u << PASS_LOGITS;
    if (c->micro_batches > 0) {
        passes |= 1u << PASS_REBUILD | 1u << PASS_BACKWARD | 1u << PASS_LOSS;
        if (engine->pipeline && pipeline_has_parts(engine->pipeline))
            passes |= UNIT_PARTS;
        if (!engine->pipeline)
            TRY(device_alloc(engine->ops->device, MEM_ACTIVATIONS, "gradient of the stream",
                             engine_stream_bytes(engine), &engine->gradient));
    }
    return activations_create(
        engine->ops, engine->graph, shape,
        c->micro_batches == 0 ? KEEP_ALWAYS : recompute_keeps_below(c->recompute), passes,
        engine->pipeline ? pipeline_copies(engine->pipeline) : NULL, &engine->activations);
}

/* A communicator with others, if there are any: for what is said to all of the job. */
static struct comm *any_comm(const struct engine *engine)
{
    if (engine->pipeline)
        return pipeline_comm(engine->pipeline);
    return zero_comm(engine->zero) ? zero_comm(engine->zero) : engine->config.group;
}

static void tell_compute(const struct engine *engine, const struct stream *stream)
{
    if (any_comm(engine))
        comm_set_compute(any_comm(engine), stream);
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
    *e = (struct engine){
        .ops = ops, .stream = stream, .graph = graph, .zero = zero, .env = env, .config = *config};
    e->scale = zero_wants_scaling(zero) ? loss_scale_start() : (struct loss_scale){.scale = 1.0};
    TRY_OR(undo, alloc_batches(e));
    if (config->pipe)
        TRY_OR(undo, pipeline_create(e, config->pipe, &e->pipeline));
    e->config.pipe = NULL;
    if (worker) { /* servers compute nothing */
        TRY_OR(undo, alloc_activations(e));
        if (config->group && config->micro_batches > 0)
            TRY_OR(undo, beside_create(ops->device, config->group, &e->beside));
    }
    tell_compute(e, stream);
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
    tell_compute(engine, NULL);
    beside_destroy(device, engine->beside);
    pipeline_destroy(engine->pipeline);
    activations_destroy(engine->activations);
    device_free(device, engine->gradient);
    device_free(device, engine->device_tokens);
    device_free(device, engine->device_labels);
    device_free(device, engine->losses);
    mem_free(engine->env, engine->votes);
    mem_free(engine->env, engine->all_losses);
    mem_free(engine->env, engine->losses_host);
    mem_free(engine->env, engine->labels);
    mem_free(engine->env, engine->tokens);
    mem_free(engine->env, engine);
}

void engine_batch(struct engine *engine, int64_t round, int32_t **tokens, int32_t **labels)
{
    CHECK(round >= 0 && round < engine_rounds(engine));
    *tokens = engine->tokens + round * batch_rows(engine);
    *labels = engine->labels + round * batch_rows(engine);
}

void engine_label(struct engine *engine, const char *what)
{
    snprintf(engine->label, sizeof engine->label, "%s", what);
}

void engine_watch(struct engine *engine, engine_watch_fn *watch, void *user)
{
    engine->watch = watch;
    engine->watch_user = user;
}

void engine_tell(const struct engine *engine, enum engine_point point,
                 const struct timetable_action *pass)
{
    if (engine->watch)
        engine->watch(engine->watch_user, point, pass);
}

/* --- one micro-batch ------------------------------------------------------------------------ */

static int64_t count_labels(const int32_t *labels, int64_t count)
{
    int64_t valid = 0;
    for (int64_t i = 0; i < count; i++)
        valid += labels[i] >= 0;
    return valid;
}

struct walk engine_start_round(struct engine *engine, int64_t round, bool idle)
{
    int64_t rows = batch_rows(engine);
    size_t bytes = (size_t)rows * sizeof(int32_t);
    if (!idle) {
        device_copy(engine->stream, engine->device_tokens, engine->tokens + round * rows, bytes);
        device_copy(engine->stream, engine->device_labels, engine->labels + round * rows, bytes);
    }
    return (struct walk){.round = round,
                         .idle = idle,
                         .run = {
                             .ops = engine->ops,
                             .stream = engine->stream,
                             .group = engine->config.group,
                             .beside = engine->beside,
                             .shape = batch_shape(engine),
                             .tokens = engine->device_tokens,
                             .labels = engine->device_labels,
                             .scalars = zero_scalars(engine->zero),
                             .gradient = engine->gradient,
                             .loss = engine->losses + round,
                         }};
}

struct walk engine_start_walk(struct engine *engine, int64_t round, bool idle, int first, int end,
                              enum walk_way way)
{
    zero_walk(engine->zero, first, end, way);
    return engine_start_round(engine, round, idle);
}

/* Tell the others where this rank is: "step 12, block 3 backward". */
static void note(struct engine *engine, const char *unit, const char *pass)
{
    char text[sizeof engine->label + UNIT_NAME + 16];
    struct comm *comm = any_comm(engine);
    if (!comm || device_is_dry(engine->ops->device))
        return;
    snprintf(text, sizeof text, "%s%s%s %s", engine->label, *engine->label ? ", " : "", unit, pass);
    comm_note(comm, text);
}

static void draw(struct engine *engine, double start, const char *name, const char *object)
{
    trace_end(engine->env->trace, start,
              &(struct trace_span){.lane = TRACE_COMPUTE, .name = name, .object = object});
}

/* The pass itself, with what the run has been given of params and gradients. */
static void compute(struct engine *engine, int u, enum pass pass, struct walk *walk)
{
    const struct unit *unit = &engine->graph->units[u];
    if (walk->idle)
        return;
    double start = trace_begin(engine->env->trace);
    activations_bind(engine->activations, u, walk->round, pass, &walk->run);
    unit_run_pass(unit, pass, &walk->run);
    CHECK(!engine->beside || engine->beside->open == 0);
    draw(engine, start, unit->name, pass_word(pass));
}

void engine_run_pass(struct engine *engine, int u, enum pass pass, struct walk *walk)
{
    note(engine, engine->graph->units[u].name, pass_word(pass));
    zero_acquire(engine->zero, u, pass, &walk->run);
    compute(engine, u, pass, walk);
    zero_release(engine->zero, u, pass);
}

void engine_run_pass_with_gradients(struct engine *engine, int u, enum pass pass, struct walk *walk)
{
    if (!walk->idle)
        zero_grads(engine->zero, u, pass, walk->round, &walk->run);
    engine_run_pass(engine, u, pass, walk);
    zero_reduce(engine->zero, u, pass, walk->round);
}

void engine_forward(struct engine *engine, int first, int end, struct walk *walk)
{
    for (int u = first; u < end; u++) {
        engine_run_pass(engine, u, PASS_FORWARD, walk);
        if (!walk->idle)
            activations_advance(engine->activations, u, &walk->run);
    }
}

void engine_backward(struct engine *engine, int first, int end, struct walk *walk)
{
    for (int u = end - 1; u >= first; u--) {
        if (!walk->idle && activations_needs_rebuild(engine->activations, u))
            engine_run_pass(engine, u, PASS_REBUILD, walk);
        if (walk->parts && unit_has_parts(&engine->graph->units[u]))
            engine_run_pass(engine, u, PASS_INPUT, walk);
        else
            engine_run_pass_with_gradients(engine, u, PASS_BACKWARD, walk);
    }
}

void engine_backward_weight(struct engine *engine, int first, int end, struct walk *walk)
{
    for (int u = end - 1; u >= first; u--) {
        if (!unit_has_parts(&engine->graph->units[u]))
            continue;
        note(engine, engine->graph->units[u].name, pass_word(PASS_WEIGHT));
        if (!walk->idle)
            zero_grads(engine->zero, u, PASS_WEIGHT, walk->round, &walk->run);
        compute(engine, u, PASS_WEIGHT, walk);
        zero_reduce(engine->zero, u, PASS_WEIGHT, walk->round);
    }
}

static void forward_and_backward(struct engine *engine, int64_t round)
{
    bool idle = engine_micro_batch(engine, round) < 0;
    int last = engine->graph->unit_count - 1;
    const struct timetable_action whole = {.verb = TIMETABLE_FORWARD, .round = (int32_t)round};
    engine_tell(engine, ENGINE_PASS_BEGIN, &whole);
    struct walk walk = engine_start_walk(engine, round, idle, 0, last + 1, WALK_BOTH);
    engine_forward(engine, 0, last, &walk);
    engine_run_pass_with_gradients(engine, last, PASS_LOSS, &walk);
    engine_backward(engine, 0, last, &walk);
    engine_tell(engine, ENGINE_PASS_END, &whole);
}

/* --- over all ranks ------------------------------------------------------------------------- */

/* all (ranks, count) = everybody's `mine`. */
static enum status exchange(struct engine *engine, const void *mine, size_t bytes, void *all)
{
    struct comm *comm = zero_comm(engine->zero);
    if (comm)
        return comm_exchange(comm, mine, bytes, all);
    memcpy(all, mine, bytes);
    return STATUS_OK;
}

/* all_losses is not in use and has room. */
enum status engine_sum(struct engine *engine, int64_t mine, int64_t *sum)
{
    int64_t *all = (int64_t *)engine->all_losses;
    TRY(exchange(engine, &mine, sizeof mine, all));
    *sum = 0;
    for (int rank = 0; rank < zero_roster(engine->zero)->size; rank++)
        *sum += all[rank];
    return STATUS_OK;
}

/* Of every tensor-parallel rank. */
static enum status vote_of_group(struct engine *engine, int64_t *sum)
{
    struct comm *group = engine->config.group;
    int64_t mine = *sum;
    if (!group)
        return STATUS_OK;
    TRY(comm_exchange(group, &mine, sizeof mine, engine->votes));
    *sum = 0;
    for (int rank = 0; rank < comm_size(group); rank++)
        *sum += engine->votes[rank];
    return STATUS_OK;
}

enum status engine_vote(struct engine *engine, int64_t mine, int64_t *sum)
{
    TRY(engine_sum(engine, mine, sum));
    if (engine->pipeline)
        TRY(pipeline_sum(engine->pipeline, *sum, sum));
    return vote_of_group(engine, sum);
}

/* The losses of all micro-batches of `rounds` rounds, `count` in all, are added in their order. */
static enum status add_own_losses(struct engine *engine, int64_t rounds, int64_t count, double *sum)
{
    size_t bytes = (size_t)rounds * sizeof(double);
    device_copy(engine->stream, engine->losses_host, engine->losses, bytes);
    TRY(stream_sync(engine->stream));
    TRY(exchange(engine, engine->losses_host, bytes, engine->all_losses));
    int workers = zero_roster(engine->zero)->workers;
    for (int64_t m = 0; m < count; m++)
        *sum += engine->all_losses[m % workers * rounds + m / workers];
    return STATUS_OK;
}

/* The same, whichever stage has the loss. */
static enum status add_losses(struct engine *engine, int64_t rounds, int64_t count, double *sum)
{
    if (!engine->pipeline)
        return add_own_losses(engine, rounds, count, sum);
    TRY(pipeline_settle(engine->pipeline));
    if (pipeline_has_loss(engine->pipeline))
        TRY(add_own_losses(engine, rounds, count, sum));
    return pipeline_share(engine->pipeline, sum);
}

/* --- a step --------------------------------------------------------------------------------- */

static int64_t own_labels(const struct engine *engine)
{
    int64_t count = 0, rows = batch_rows(engine);
    for (int64_t round = 0; round < engine_rounds(engine); round++)
        if (engine_micro_batch(engine, round) >= 0)
            count += count_labels(engine->labels + round * rows, rows);
    return count;
}

static enum status gradients(struct engine *engine, struct engine_result *result,
                             struct zero_verdict *verdict)
{
    int64_t count, rounds = engine_rounds(engine);
    double loss_sum = 0.0;
    TRY(engine_sum(engine, own_labels(engine), &count));
    if (device_is_dry(engine->ops->device)) /* nobody has filled in labels: any count will do */
        count = 1;
    if (count == 0)
        return FAIL(engine->env, FORMAT,
                    "no label of this step counts: every one is masked; check the data");
    zero_loss_scale(engine->zero, engine->scale.scale, count);
    if (engine->pipeline)
        pipeline_step(engine->pipeline);
    for (int64_t round = 0; !engine->pipeline && round < rounds; round++)
        forward_and_backward(engine, round);
    engine_tell(engine, ENGINE_PASSES_DONE, NULL);
    note(engine, "gradient", "norm");
    double start = trace_begin(engine->env->trace);
    TRY(zero_judge(engine->zero, engine->scale.scale, verdict));
    draw(engine, start, "judge", NULL);
    if (engine->beside)
        TRY(stream_sync(engine->beside->stream)); /* all is done by now, or has failed */
    engine_tell(engine, ENGINE_JUDGED, NULL);
    TRY(add_losses(engine, rounds, engine->config.micro_batches,
                   &loss_sum)); /* waits for nothing */
    *result = (struct engine_result){
        .loss = loss_sum / (double)count,
        .grad_norm = verdict->grad_norm,
        .label_count = count,
        .bad_tensor = verdict->bad_tensor,
        .bad_index = verdict->bad_index,
        .loss_scale = engine->scale.scale,
        .next_loss_scale = engine->scale.scale,
    };
    result->skipped = !isfinite(result->loss) || !isfinite(result->grad_norm);
    return STATUS_OK;
}

enum status engine_gradients(struct engine *engine, struct engine_result *result)
{
    struct zero_verdict verdict;
    return gradients(engine, result, &verdict);
}

enum status engine_step(struct engine *engine, int64_t t, double lr, struct engine_result *result)
{
    struct zero_verdict verdict;
    TRY(gradients(engine, result, &verdict));
    if (!result->skipped) {
        note(engine, "optimizer", "update");
        double start = trace_begin(engine->env->trace);
        TRY(zero_update(engine->zero, t, lr, result->loss_scale, &verdict));
        draw(engine, start, "optimizer", NULL);
    }
    if (zero_wants_scaling(engine->zero)) {
        bool explained = loss_scale_update(&engine->scale, result->skipped);
        result->overflow = explained && isfinite(result->loss);
        result->next_loss_scale = engine->scale.scale;
    }
    return STATUS_OK;
}

struct loss_scale engine_loss_scale(const struct engine *engine)
{
    return engine->scale;
}

void engine_set_loss_scale(struct engine *engine, struct loss_scale scale)
{
    if (zero_wants_scaling(engine->zero))
        engine->scale = scale;
}

/* --- without gradients ---------------------------------------------------------------------- */

int64_t engine_eval_rounds(const struct engine *engine)
{
    return engine->pipeline ? engine_rounds(engine) : 1;
}

static void evaluate(struct engine *engine, int64_t count)
{
    int last = engine->graph->unit_count - 1;
    bool idle = roster_micro_batch(zero_roster(engine->zero), count, 0) < 0;
    struct walk walk = engine_start_walk(engine, 0, idle, 0, last + 1, WALK_FORWARD);
    engine_forward(engine, 0, last, &walk);
    engine_run_pass(engine, last, PASS_EVAL, &walk);
}

enum status engine_eval(struct engine *engine, int64_t count, double *loss_sum,
                        int64_t *label_count)
{
    const struct roster *roster = zero_roster(engine->zero);
    int64_t rounds = roster_rounds(roster, count), rows = batch_rows(engine), labels = 0;
    CHECK_LE(rounds, engine_eval_rounds(engine));
    if (engine->pipeline)
        pipeline_eval(engine->pipeline, rounds, count);
    else
        evaluate(engine, count);
    for (int64_t round = 0; round < rounds; round++)
        if (roster_micro_batch(roster, count, round) >= 0)
            labels += count_labels(engine->labels + round * rows, rows);
    TRY(engine_sum(engine, labels, &labels));
    *label_count += labels;
    return add_losses(engine, rounds, count, loss_sum);
}

enum status engine_logits(struct engine *engine, int64_t count, float *logits)
{
    struct device *device = engine->ops->device;
    enum dtype type = engine->ops->type;
    int64_t total = engine->config.micro_batch * count * engine->graph->vocab;
    int last = engine->graph->unit_count - 1;
    struct walk walk = engine_start_walk(engine, 0, false, 0, last + 1, WALK_FORWARD);
    float *wide;
    enum status st;
    TRY(device_alloc(device, MEM_OTHER, "logits", (size_t)total * sizeof *wide, &wide));
    TRY_OR(undo_wide, device_alloc(device, MEM_OTHER, "logits", (size_t)total * dtype_bytes(type),
                                   &walk.run.logits));
    walk.run.logit_tokens = count;
    engine_forward(engine, 0, last, &walk);
    engine_run_pass(engine, last, PASS_LOGITS, &walk);
    ops_cast(engine->ops, engine->stream, wide, DTYPE_F32, walk.run.logits, type, total);
    device_copy(engine->stream, logits, wide, (size_t)total * sizeof *wide);
    st = stream_sync(engine->stream);
    device_free(device, walk.run.logits);
undo_wide:
    device_free(device, wide);
    return st;
}

/* --- what goes over the wire ---------------------------------------------------------------- */

const char *engine_way_word(enum engine_way way)
{
    static const char *const words[ENGINE_WAYS] = {"gather", "reduce", "pipe", "tensor", "control"};
    CHECK_LT((unsigned)way, ENGINE_WAYS);
    return words[way];
}

struct engine_traffic engine_traffic(const struct engine *engine)
{
    struct zero_traffic store = zero_traffic(engine->zero);
    struct engine_traffic all = {.sent = {[ENGINE_GATHER] = store.gather,
                                          [ENGINE_REDUCE] = store.reduce,
                                          [ENGINE_TENSOR] = store.tensor,
                                          [ENGINE_CONTROL] = store.control},
                                 .in_flight = store.in_flight,
                                 .waited = store.waited,
                                 .tensor_in_flight = store.tensor_in_flight,
                                 .tensor_waited = store.tensor_blocked};
    if (engine->beside)
        all.tensor_waited += engine->beside->waited;
    if (!engine->pipeline)
        return all;
    struct comm_counter pipe = pipeline_counted(engine->pipeline);
    all.sent[ENGINE_PIPE] = pipe.bytes;
    all.in_flight += pipe.seconds;
    all.stalled = pipeline_stalled(engine->pipeline);
    return all;
}
