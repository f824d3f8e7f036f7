/* engine_walk -- runs passes of a micro-batch over units of this rank.
 *
 *     for each unit   acquire its params -> pass -> release; reduce gradients if the pass wrote any
 *
 * Which passes run, and in which order, is decided by engine.c or by a pipeline's timetable.
 */
#include "engine/engine_impl.h"

const struct roster *engine_roster(const struct engine *engine)
{
    return zero_roster(engine->zero);
}

static int64_t rounds_of(const struct engine *engine, int64_t micro_batches)
{
    int64_t eval_rounds = engine->config.eval_rounds > 0 ? engine->config.eval_rounds : 1;
    return micro_batches == 0 ? eval_rounds
                              : roster_rounds(zero_roster(engine->zero), micro_batches);
}

int64_t engine_rounds(const struct engine *engine)
{
    return rounds_of(engine, engine->micro_batches);
}

int64_t engine_most_rounds(const struct engine *engine)
{
    return rounds_of(engine, engine->config.micro_batches);
}

int64_t engine_micro_batch(const struct engine *engine, int64_t round)
{
    return roster_micro_batch(zero_roster(engine->zero), engine->micro_batches, round);
}

size_t engine_stream_bytes(const struct engine *engine)
{
    int64_t rows = unit_stream_rows(engine_batch_shape(engine));
    return (size_t)(rows * engine->graph->stream_width) * dtype_bytes(engine->ops->type);
}

struct walk engine_start_round(struct engine *engine, int64_t round, bool idle)
{
    struct engine_inputs *in = &engine->inputs;
    bool language = !engine->graph->inputs;
    for (int i = 0; !idle && i < in->count; i++)
        device_copy(engine->stream, in->device[i], in->host[i] + (size_t)round * in->bytes[i],
                    in->bytes[i]);
    return (struct walk){.round = round,
                         .idle = idle,
                         .run = {
                             .ops = engine->ops,
                             .stream = engine->stream,
                             .group = engine->config.group,
                             .side_stream = engine->side_stream,
                             .shape = engine_batch_shape(engine),
                             .inputs = (const void *const *)in->device,
                             .tokens = language ? in->device[INPUT_TOKENS] : NULL,
                             .labels = language ? in->device[INPUT_LABELS] : NULL,
                             .scalars = zero_scalars(engine->zero),
                             .gradient = engine->gradient,
                             .carry_gradient = engine->carry_gradient,
                             .step_rows = engine->micro_batches * engine_batch_rows(engine),
                             .loss = engine->losses + round,
                         }};
}

struct walk engine_start_walk(struct engine *engine, int64_t round, bool idle, int first, int end,
                              enum walk_way way)
{
    zero_walk(engine->zero, first, end, way);
    return engine_start_round(engine, round, idle);
}

/* Other ranks learn about the pass before it waits for params; the trace shows computing only. */
static void begin_unit(struct engine *engine, int u, enum pass pass)
{
    scope_begin(&engine->scopes,
                &(struct scope){.words = engine->graph->units[u].name, .object = pass_word(pass)});
}

/* The params and gradients that the pass needs are in walk->run. */
static void compute(struct engine *engine, int u, enum pass pass, struct walk *walk)
{
    const struct unit *unit = &engine->graph->units[u];
    struct scope scope = {
        .span = {.lane = &trace_lane_compute, .name = unit->name, .object = pass_word(pass)},
        .stream = engine->stream};
    if (walk->idle)
        return;
    scope_begin(&engine->scopes, &scope);
    activations_bind(engine->activations, u, walk->round, pass, &walk->run);
    bool adds = engine->in_step && unit->statistic_count > 0 && pass != PASS_REBUILD;
    walk->run.statistic =
        adds ? engine->statistics + walk->round * engine->graph->statistics + unit->first_statistic
             : NULL;
    activations_begin(engine->activations, u, engine->stream);
    unit_run_pass(unit, pass, &walk->run);
    if (engine->in_step)
        activations_end(engine->activations, u, pass, engine->stream);
    CHECK(!engine->side_stream || engine->side_stream->open == 0);
    scope_end(&engine->scopes, &scope);
}

void engine_run_pass(struct engine *engine, int u, enum pass pass, struct walk *walk)
{
    begin_unit(engine, u, pass);
    zero_acquire(engine->zero, u, pass, &walk->run);
    compute(engine, u, pass, walk);
    zero_release(engine->zero, u, pass);
}

void engine_run_pass_with_gradients(struct engine *engine, int u, enum pass pass, struct walk *walk)
{
    if (!walk->idle)
        zero_grads(engine->zero, u, pass, walk->round, &walk->run);
    engine_run_pass(engine, u, pass, walk);
    zero_reduce(engine->zero, u, pass, walk->round, walk->idle ? 0 : walk->run.sums.added);
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
            engine_run_pass(engine, u, PASS_BACKWARD_INPUT, walk);
        else
            engine_run_pass_with_gradients(engine, u, PASS_BACKWARD, walk);
    }
}

void engine_backward_weight(struct engine *engine, int first, int end, struct walk *walk)
{
    for (int u = end - 1; u >= first; u--) {
        if (!unit_has_parts(&engine->graph->units[u]))
            continue;
        begin_unit(engine, u, PASS_BACKWARD_WEIGHT);
        if (!walk->idle)
            zero_grads(engine->zero, u, PASS_BACKWARD_WEIGHT, walk->round, &walk->run);
        compute(engine, u, PASS_BACKWARD_WEIGHT, walk);
        zero_reduce(engine->zero, u, PASS_BACKWARD_WEIGHT, walk->round,
                    walk->idle ? 0 : walk->run.sums.added);
    }
}
