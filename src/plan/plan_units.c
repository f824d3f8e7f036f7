/* plan_units -- the time of each pass of each unit in isolation: no store, engine or pipeline.
 *
 * A unit's buffers are allocated on a dry device that keeps time, and its passes run as the engine
 * would run them. Units of the same type and size are alike: only one of them is timed.
 */
#include <string.h>

#include "plan/plan_impl.h"
#include "plan/plan_time.h"

/* What the units run on. */
struct bench {
    const struct plan_request *request;
    struct plan_parts *parts; /* without store and engine */
    const struct unit_graph *graph;
    struct unit_shape shape;
    enum keep own_below;                  /* as in activations_create */
    struct unit_side_stream *side_stream; /* NULL: one rank */
};

/* The buffers of a unit, to be freed together. */
struct taken {
    struct device *device;
    void *buffers[UNIT_MAX_BUFFERS + 2 * UNIT_MAX_USES + 10];
    int count;
};

static enum status take(struct taken *taken, size_t bytes, void **buffer)
{
    TRY(device_alloc(taken->device, MEM_OTHER, "unit", bytes, buffer));
    taken->buffers[taken->count++] = *buffer;
    return STATUS_OK;
}

/* Allocate everything that a pass may be given. Nothing is ever stored there. */
static enum status fill_run(const struct bench *b, const struct unit *unit,
                            const struct unit_buffer *buffers, int count, struct taken *taken,
                            struct unit_run *run)
{
    size_t carry_bytes = (size_t)b->graph->carry * dtype_bytes(b->parts->ops->type);
    size_t rows = (size_t)(b->shape.batch * b->shape.tokens);
    size_t stream = rows * (size_t)b->graph->stream_width * dtype_bytes(b->parts->ops->type);
    void *param, *residual, *pending, *tokens, *labels, *scalars, *loss, *carry = NULL;
    *run = (struct unit_run){.ops = b->parts->ops,
                             .stream = b->parts->stream,
                             .group = b->parts->comm,
                             .side_stream = b->side_stream,
                             .shape = b->shape,
                             .rebuild = b->own_below};
    for (int i = 0; i < count; i++)
        TRY(take(taken, buffers[i].bytes, &run->buffers[i]));
    for (int i = 0; i < unit->use_count; i++) {
        size_t bytes = (size_t)unit_param_room(b->graph, unit->uses[i]) * sizeof(double);
        TRY(take(taken, bytes, &param));
        TRY(take(taken, bytes, &run->grads[i]));
        run->params[i] = param;
    }
    TRY(take(taken, stream, &residual));
    TRY(take(taken, stream, &pending));
    TRY(take(taken, stream, &run->room));
    TRY(take(taken, stream, &run->gradient));
    TRY(take(taken, rows * sizeof(int32_t), &tokens));
    TRY(take(taken, rows * sizeof(int32_t), &labels));
    TRY(take(taken, sizeof(struct step_scalars), &scalars));
    TRY(take(taken, sizeof(double), &loss));
    if (carry_bytes > 0)
        TRY(take(taken, carry_bytes, &run->carry_gradient));
    if (unit->type->takes_carry)
        TRY(take(taken, carry_bytes, &carry));
    run->residual = residual;
    run->pending = pending;
    run->tokens = tokens;
    run->labels = labels;
    run->scalars = scalars;
    run->loss = loss;
    run->carry = carry;
    return STATUS_OK;
}

/* Seconds of a pass; 0 if the unit has no such pass. */
static double time_pass(const struct bench *b, const struct unit *unit, enum pass pass,
                        const struct unit_run *filled)
{
    struct unit_run run = *filled;
    double begin = stream_clock(b->parts->stream);
    run.pass = pass;
    if (unit->type->run[pass])
        unit_run_pass(unit, pass, &run);
    return stream_clock(b->parts->stream) - begin;
}

static enum status time_unit(const struct bench *b, const struct unit *unit,
                             struct plan_unit_cost *cost)
{
    struct unit_buffer buffers[UNIT_MAX_BUFFERS];
    struct unit_run run;
    struct taken taken = {.device = b->parts->device};
    int count = unit->type->buffers(unit, b->parts->ops, b->shape, buffers);
    bool rebuilds = false;
    size_t kept = 0;
    for (int i = 0; i < count; i++) {
        rebuilds = rebuilds || (buffers[i].keep >= b->own_below && buffers[i].keep != KEEP_NOT);
        kept += buffers[i].keep < b->own_below ? buffers[i].bytes : 0;
    }
    enum status st = fill_run(b, unit, buffers, count, &taken, &run);
    if (st == STATUS_OK) {
        cost->activation_bytes = kept;
        cost->forward = time_pass(b, unit, PASS_FORWARD, &run);
        double before = time_pass(b, unit, PASS_LOSS, &run) +
                        (rebuilds ? time_pass(b, unit, PASS_REBUILD, &run) : 0.0);
        cost->backward = before + time_pass(b, unit, PASS_BACKWARD, &run);
        bool parts = unit_has_parts(unit);
        cost->input =
            parts ? before + time_pass(b, unit, PASS_BACKWARD_INPUT, &run) : cost->backward;
        cost->weight = parts ? time_pass(b, unit, PASS_BACKWARD_WEIGHT, &run) : 0.0;
    }
    for (int i = 0; i < taken.count; i++)
        device_free(taken.device, taken.buffers[i]);
    return st;
}

/* Count the parameters that no earlier unit uses. used (params) marks those in use; the call marks
 * the unit's own. */
static void count_parameters(const struct unit_graph *graph, int u, bool *used,
                             struct plan_unit_cost *cost)
{
    const struct unit *unit = &graph->units[u];
    uint32_t reads = unit->type->reads[PASS_REBUILD] | unit->type->reads[PASS_BACKWARD];
    cost->parameters = cost->learned = cost->unread = 0;
    for (int i = 0; i < unit->use_count; i++) {
        int param = unit->uses[i], piece = graph->params[param].piece;
        int64_t count = used[param] ? 0 : unit_param_count(graph, param);
        cost->parameters += count;
        cost->learned += unit_writes_piece(graph, u, piece) ? count : 0;
        cost->unread += reads == 0 || unit_uses_piece(graph, u, reads, piece) ? 0 : count;
    }
    for (int i = 0; i < unit->use_count; i++)
        used[unit->uses[i]] = true;
}

static enum status time_units(const struct bench *b, bool *used, struct plan_unit_cost *costs)
{
    const struct unit *units = b->graph->units;
    for (int u = 0; u < b->graph->unit_count; u++) {
        int like = 0;
        while (like < u && (units[like].type != units[u].type || units[like].self != units[u].self))
            like++;
        if (like < u)
            costs[u] = costs[like];
        else
            TRY(time_unit(b, &units[u], &costs[u]));
        count_parameters(b->graph, u, used, &costs[u]);
    }
    return STATUS_OK;
}

/* The model of the first rank of a TP group that is alone. */
static enum status build(struct env *env, const struct plan_request *request,
                         const struct plan_clock *clock, struct plan_parts *p)
{
    struct model_part part = plan_first_part(request);
    TRY(plan_device_create(env, request, clock, &p->device));
    if (part.tp > 1) {
        TRY(comm_create_dry(p->device, 0, part.tp, request->staged, &p->comm));
        comm_set_prices(p->comm, &clock->machine->comm);
    }
    TRY(model_create_part(p->device, &request->model, &part, &p->model));
    TRY(ops_create(p->device, request->ops, request->compute, &p->ops));
    p->ops->meter = clock->meter;
    return stream_create(p->device, "compute", &p->stream);
}

enum status plan_unit_costs(struct env *env, const struct plan_request *request,
                            const struct machine_profile *machine, struct plan_unit_cost **costs,
                            int *count)
{
    const struct engine_config *engine = &request->engine;
    struct env own = {0};
    struct plan_parts parts = {0};
    struct plan_clock clock = {.machine = machine};
    struct bench bench = {.request = request,
                          .parts = &parts,
                          .shape = {.batch = engine->micro_batch, .tokens = engine->tokens},
                          .own_below = recompute_keeps_below(engine->recompute)};
    bool *used = NULL;
    enum status st;
    *costs = NULL;
    TRY(ops_meter_create(env, &machine->ops, &clock.meter));
    TRY_OR(undo_meter, plan_account_open(env, request->threads, &own));
    TRY_OR(undo_parts, build(&own, request, &clock, &parts));
    bench.graph = model_graph(parts.model);
    bench.shape.sequence = bench.graph->sequence;
    *count = bench.graph->unit_count;
    if (parts.comm)
        TRY_OR(undo_parts, unit_side_stream_create(parts.device, parts.comm, &bench.side_stream));
    TRY_OR(undo_stream,
           mem_alloc_array(env, MEM_OTHER, "unit costs", (size_t)*count, sizeof **costs, costs));
    TRY_OR(undo_stream, mem_alloc_array(env, MEM_OTHER, "params used",
                                        (size_t)bench.graph->param_count, sizeof *used, &used));
    st = time_units(&bench, used, *costs);
undo_stream:
    mem_free(env, used);
    if (st != STATUS_OK) {
        mem_free(env, *costs);
        *costs = NULL;
    }
    unit_side_stream_destroy(parts.device, bench.side_stream);
undo_parts:
    plan_parts_free(&parts);
    mem_destroy(own.mem);
undo_meter:
    ops_meter_destroy(clock.meter);
    return st;
}
