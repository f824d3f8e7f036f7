/* engine_walk -- a micro-batch goes over units on this rank: each pass with what the store lends it, and
 * with its buffers.
 *
 *     acquire params -> pass -> release, and gradients to their owners where the pass wrote some
 *
 * Which passes, in which order, is for others to say: engine.c, or a pipeline's list.
 */
#include <stdio.h>

#include "base/progress.h"
#include "engine/engine_impl.h"

size_t engine_stream_bytes(const struct engine *engine)
{
    int64_t rows = unit_stream_rows(engine_batch_shape(engine));
    return (size_t)(rows * engine->graph->stream_width) * dtype_bytes(engine->ops->type);
}

struct walk engine_start_round(struct engine *engine, int64_t round, bool idle)
{
    int64_t rows = engine_batch_rows(engine);
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
                             .side_stream = engine->side_stream,
                             .shape = engine_batch_shape(engine),
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

void engine_note(struct engine *engine, const char *unit, const char *pass)
{
    char text[sizeof engine->label + UNIT_NAME + 16];
    struct comm *comm = engine_any_comm(engine);
    if ((!comm && !engine->env->progress) || device_is_dry(engine->ops->device))
        return;
    snprintf(text, sizeof text, "%s%s%s %s", engine->label, *engine->label ? ", " : "", unit, pass);
    progress_note(engine->env, text);
    if (comm)
        comm_note(comm, text);
}

void engine_draw(struct engine *engine, double start, const char *name, const char *object)
{
    trace_end(engine->env->trace, start,
              &(struct trace_span){.lane = &trace_lane_compute, .name = name, .object = object});
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
    CHECK(!engine->side_stream || engine->side_stream->open == 0);
    engine_draw(engine, start, unit->name, pass_word(pass));
}

void engine_run_pass(struct engine *engine, int u, enum pass pass, struct walk *walk)
{
    engine_note(engine, engine->graph->units[u].name, pass_word(pass));
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
        engine_note(engine, engine->graph->units[u].name, pass_word(PASS_BACKWARD_WEIGHT));
        if (!walk->idle)
            zero_grads(engine->zero, u, PASS_BACKWARD_WEIGHT, walk->round, &walk->run);
        compute(engine, u, PASS_BACKWARD_WEIGHT, walk);
        zero_reduce(engine->zero, u, PASS_BACKWARD_WEIGHT, walk->round);
    }
}
