/* search_points -- enumerates every layout that divides ranks, model and batch, with its bounds.
 *
 * Loops from the outside: tp, pp, chunks, micro-batch, regather, recomputation; then schedule, ZeRO
 * stage, shard groups and where gradients are summed, which need no new sums. Costs of units are
 * computed once for each combination of the outer loops, and only where something may fit: once no
 * layout fits, no larger micro-batch does.
 */
#include "plan/search_impl.h"

#include <string.h>

#include "zero/partition.h"

enum { MOST_CHUNKS = 16, MOST_BATCHES = 4096 };

struct enumeration { /* state of the loops */
    struct env *env;
    const struct search_space *space;
    struct search_points *out;
    struct search_tp *tp_group; /* of the current tp */
    struct plan_optimizers optimizers;
};

/* --- a layout --------------------------------------------------------------------------------- */

int64_t search_rounds(const struct search_space *space, const struct search_point *point)
{
    int64_t workers = point->dp - space->request->zero.servers;
    int64_t micro_batches = space->global_batch / point->micro_batch;
    return (micro_batches + workers - 1) / workers;
}

struct plan_request search_request(const struct search_space *space,
                                   const struct search_point *point)
{
    struct plan_request request = *space->request;
    request.parallel.tp = point->tp;
    request.parallel.pp = point->pp;
    request.parallel.sequence = point->sequence;
    request.parallel.regather = point->regather;
    request.parallel.schedule = point->schedule;
    request.parallel.chunks = point->schedule == TIMETABLE_INTERLEAVED ? point->chunks : 0;
    request.zero.stage = point->stage;
    request.zero.shard_group = point->shard_group;
    request.zero.local = point->local;
    request.zero.snapshot = request.zero.snapshot || point->tp > 1; /* as the trainer does */
    request.engine.recompute = point->recompute;
    request.engine.micro_batch = point->micro_batch;
    request.engine.micro_batches = space->global_batch / point->micro_batch;
    request.zero.micro_batches = request.engine.micro_batches;
    request.zero.offload.optimizer = (enum far_kind)point->optimizer;
    request.zero.offload.grads = (enum far_kind)point->grads;
    request.zero.offload.params = (enum far_kind)point->params;
    request.zero.offload.share = point->share;
    return request;
}

struct plan_room search_room(const struct search_space *space)
{
    return (struct plan_room){.memory = space->memory, .host = space->host, .disk = space->disk};
}

bool search_may_offload(const struct search_space *space)
{
    struct plan_room room = search_room(space);
    return space->memory > 0 && plan_may_offload(space->request, &room, &space->fixed.offload);
}

struct zero_offload search_offload(const struct search_space *space)
{
    struct plan_room room = search_room(space);
    return search_may_offload(space)
               ? plan_offload_most(space->request, &room, &space->fixed.offload)
               : space->request->zero.offload;
}

void search_place(struct search_point *point, const struct zero_offload *offload)
{
    point->optimizer = (int8_t)offload->optimizer;
    point->grads = (int8_t)offload->grads;
    point->params = (int8_t)offload->params;
    point->share = offload->share;
}

/* Position in the order from simple to complex. */
static int schedule_order(int schedule)
{
    static const int order[] = {[TIMETABLE_1F1B] = 0,
                                [TIMETABLE_GPIPE] = 1,
                                [TIMETABLE_INTERLEAVED] = 2,
                                [TIMETABLE_ZERO_BUBBLE] = 3};
    return order[schedule];
}

int search_simpler(const struct search_point *a, const struct search_point *b)
{
    const int differences[] = {a->optimizer - b->optimizer,
                               a->grads - b->grads,
                               a->params - b->params,
                               a->tp - b->tp,
                               a->pp - b->pp,
                               a->local - b->local,
                               a->stage - b->stage,
                               (a->shard_group > 0) - (b->shard_group > 0),
                               a->recompute - b->recompute,
                               schedule_order(a->schedule) - schedule_order(b->schedule),
                               a->chunks - b->chunks,
                               a->regather - b->regather,
                               a->micro_batch - b->micro_batch};
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++)
        if (differences[i] != 0)
            return differences[i];
    return 0;
}

/* --- the list --------------------------------------------------------------------------------- */

static enum status add(struct enumeration *w, const struct search_point *point)
{
    struct search_points *out = w->out;
    if (out->count == out->room) {
        int64_t room = out->room > 0 ? 2 * out->room : 1024;
        TRY(mem_grow_array(w->env, MEM_OTHER, "search", (size_t)room, sizeof *out->points,
                           &out->points));
        out->room = room;
    }
    out->points[out->count++] = *point;
    return STATUS_OK;
}

static void keep_least(struct search_points *out, const struct search_point *point)
{
    int i = out->least_count;
    if (i == SEARCH_LEAST && point->bytes >= out->least[i - 1].bytes)
        return;
    if (i < SEARCH_LEAST)
        out->least_count++;
    else
        i--;
    for (; i > 0 && out->least[i - 1].bytes > point->bytes; i--)
        out->least[i] = out->least[i - 1];
    out->least[i] = *point;
}

/* Add the point unless it is too large; *fits is set if it is not. */
static enum status look_at(struct enumeration *w, struct search_point *point, bool *fits)
{
    size_t memory = w->space->memory;
    bound_layout(w->space, &w->out->stages, point);
    w->out->possible++;
    keep_least(w->out, point);
    if (memory > 0 && point->bytes > memory) {
        w->out->too_large++;
        return STATUS_OK;
    }
    *fits = true;
    return add(w, point);
}

/* --- the loops, from the inside --------------------------------------------------------------- */

/* Gradients are sent after every micro-batch or, where workers have several, once per step. */
static enum status try_sums(struct enumeration *w, struct search_point point, bool *fits)
{
    const struct search_space *space = w->space;
    bool several = point.dp > 1 && search_rounds(space, &point) > 1;
    point.local = space->fixed.accumulate && space->request->zero.local;
    TRY(look_at(w, &point, fits));
    point.local = true;
    return several && !space->fixed.accumulate ? look_at(w, &point, fits) : STATUS_OK;
}

/* Copies of the model on a node, if sharding among these alone makes a different layout; otherwise
 * 0. */
static int node_group(const struct search_space *space, const struct search_point *point)
{
    int group = space->node / (point->tp * point->pp);
    if (space->request->zero.servers > 0 || group < 2 || group >= point->dp)
        return 0;
    return point->dp % group == 0 ? group : 0;
}

static enum status try_groups(struct enumeration *w, struct search_point point, bool *fits)
{
    const struct search_space *space = w->space;
    int set = space->request->zero.shard_group;
    if (space->fixed.shard_group && set > 0) {
        point.shard_group = set;
        return point.dp % set == 0 ? try_sums(w, point, fits) : STATUS_OK;
    }
    TRY(try_sums(w, point, fits));
    point.shard_group = node_group(space, &point);
    if (space->fixed.shard_group || point.shard_group == 0)
        return STATUS_OK;
    return try_sums(w, point, fits);
}

/* With one copy of the model there is nothing to shard: the lowest stage stands for all. */
static enum status try_zero_stages(struct enumeration *w, struct search_point point, bool *fits)
{
    const struct search_space *space = w->space;
    int first = space->fixed.stage ? space->request->zero.stage : 0;
    int last = space->fixed.stage || point.dp == 1 ? first : PLAN_ZERO_STAGES - 1;
    for (int stage = first; stage <= last; stage++) {
        bool cut = sharding_of(stage).optim;
        point.stage = (int8_t)stage;
        if (!cut && (space->request->zero.servers > 0 ||
                     (space->fixed.shard_group && space->request->zero.shard_group > 0)))
            continue;
        if (cut)
            TRY(try_groups(w, point, fits));
        else
            TRY(try_sums(w, point, fits));
    }
    return STATUS_OK;
}

/* point.chunks is set: interleaved if there are several, every other schedule if there is one. */
static enum status try_schedules(struct enumeration *w, struct search_point point, bool *fits)
{
    static const int kinds[] = {TIMETABLE_1F1B, TIMETABLE_ZERO_BUBBLE, TIMETABLE_GPIPE,
                                TIMETABLE_INTERLEAVED};
    const struct parallel_config *asked = &w->space->request->parallel;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        bool other = w->space->fixed.schedule && kinds[i] != asked->schedule;
        bool chunked = kinds[i] == TIMETABLE_INTERLEAVED;
        if (other || chunked != (point.chunks > 1) || (kinds[i] == TIMETABLE_GPIPE && asked->eager))
            continue;
        point.schedule = (int8_t)kinds[i];
        TRY(try_zero_stages(w, point, fits));
    }
    return STATUS_OK;
}

/* Fill in points->stages. */
static enum status cut_pp_stages(struct env *env, const struct search_space *space,
                                 struct search_points *points, struct search_tp *tp_group,
                                 const struct search_point *point, int batch)
{
    int kind = point->regather * PLAN_RECOMPUTES + point->recompute, count;
    struct plan_unit_cost **costs = &tp_group->costs[batch * SEARCH_KINDS + kind];
    if (!*costs) {
        struct plan_request request = search_request(space, point);
        TRY(plan_unit_costs(env, &request, space->machine, costs, &count));
        CHECK_EQ(count, tp_group->model.unit_count);
    }
    return bound_pp_stages_cut(env, &tp_group->model, *costs, point->pp * point->chunks,
                               &points->stages);
}

static enum status try_recomputes(struct enumeration *w, struct search_point point, int batch,
                                  bool *fits)
{
    const struct search_space *space = w->space;
    int asked = space->request->engine.recompute;
    for (int r = 0; r < PLAN_RECOMPUTES; r++) {
        if (space->fixed.recompute && r != asked)
            continue;
        point.recompute = (int8_t)r;
        TRY(cut_pp_stages(w->env, space, w->out, w->tp_group, &point, batch));
        if (point.pp == 1) /* no pipeline, no schedule */
            TRY(try_zero_stages(w, point, fits));
        else
            TRY(try_schedules(w, point, fits));
    }
    return STATUS_OK;
}

/* Sequence parallelism is used wherever the rows divide: it sends the same and needs less memory.
 */
static enum status try_batch(struct enumeration *w, struct search_point point, int batch,
                             bool *fits)
{
    const struct search_space *space = w->space;
    const struct parallel_config *asked = &space->request->parallel;
    int64_t rows = w->out->batches[batch] * space->request->engine.tokens;
    point.micro_batch = (int32_t)w->out->batches[batch];
    point.sequence = point.tp > 1 && rows % point.tp == 0;
    if (space->fixed.sequence && point.tp > 1) {
        if (asked->sequence && !point.sequence)
            return STATUS_OK;
        point.sequence = asked->sequence;
    }
    for (int again = 0; again <= (point.sequence ? 1 : 0); again++) {
        point.regather = again;
        if (!space->fixed.regather || again == (asked->regather && point.sequence))
            TRY(try_recomputes(w, point, batch, fits));
    }
    return STATUS_OK;
}

static enum status try_chunks(struct enumeration *w, struct search_point point)
{
    const struct search_space *space = w->space;
    int64_t workers = point.dp - space->request->zero.servers;
    for (int b = 0; b < w->out->batch_count; b++) {
        bool fits = false;
        bool idle = space->global_batch / w->out->batches[b] < workers;
        if (idle && b > 0 && !space->fixed.micro_batch) /* a smaller micro-batch keeps more workers
                                                           busy */
            break;
        TRY(try_batch(w, point, b, &fits));
        if (!fits && space->memory > 0)
            break;
    }
    return STATUS_OK;
}

/* Chunks are tried in powers of two; a fixed number is taken as it is. */
static enum status try_pipelines(struct enumeration *w, struct search_point point)
{
    const struct search_space *space = w->space;
    int asked = spread_chunks(&space->request->parallel);
    for (int chunks = 1; chunks <= (point.pp > 1 ? MOST_CHUNKS : 1); chunks *= 2) {
        bool given = space->fixed.chunks && point.pp > 1;
        point.chunks = (int16_t)(given ? asked : chunks);
        if (point.pp * point.chunks <= w->tp_group->model.unit_count)
            TRY(try_chunks(w, point));
        if (given)
            break;
    }
    return STATUS_OK;
}

static enum status try_meshes(struct enumeration *w, int tp)
{
    const struct search_space *space = w->space;
    int groups = space->request->ranks / tp;
    bool whole = model_limits(space->request->model.arch)->pp != NULL ||
                 plan_is_far(space->request, space->request->engine.activations);
    int most = whole ? 1 : groups;
    for (int pp = 1; pp <= most && pp <= w->tp_group->model.unit_count; pp++) {
        struct search_point point = {.tp = (int16_t)tp,
                                     .pp = pp,
                                     .dp = groups / pp,
                                     .chunks = 1,
                                     .schedule = TIMETABLE_1F1B};
        search_place(&point, &space->request->zero.offload);
        if (groups % pp != 0 || (space->fixed.pp && pp != space->request->parallel.pp) ||
            point.dp <= space->request->zero.servers)
            continue;
        TRY(try_pipelines(w, point));
    }
    return STATUS_OK;
}

static enum status try_tp(struct enumeration *w, int tp)
{
    struct search_points *out = w->out;
    w->tp_group = &out->tp_groups[out->tp_count++];
    w->tp_group->tp = tp;
    TRY(bound_model_open(w->env, w->space, tp, &w->tp_group->model));
    if (!out->stages.units)
        TRY(bound_pp_stages_open(w->env, w->tp_group->model.unit_count, &out->stages));
    out->stages.optimizer = w->optimizers.least;
    TRY(mem_alloc_array(w->env, MEM_OTHER, "search", (size_t)(out->batch_count * SEARCH_KINDS),
                        sizeof *w->tp_group->costs, &w->tp_group->costs));
    return try_meshes(w, tp);
}

/* The ranks of a TP group are adjacent and on one node. Muon needs whole matrices. */
static bool tp_is_possible(const struct enumeration *w, int tp)
{
    const struct search_space *space = w->space;
    int ranks = space->request->ranks;
    if (w->optimizers.muon && tp > 1)
        return false;
    if (space->fixed.tp && tp != space->request->parallel.tp)
        return false;
    return ranks % tp == 0 && (ranks <= space->node || space->node % tp == 0) &&
           model_can_split(&space->request->model, tp);
}

static enum status find_batches(struct enumeration *w)
{
    const struct search_space *space = w->space;
    struct search_points *out = w->out;
    int64_t most = space->global_batch, asked = space->request->engine.micro_batch;
    TRY(mem_alloc_array(w->env, MEM_OTHER, "search", MOST_BATCHES, sizeof *out->batches,
                        &out->batches));
    for (int64_t b = 1; b <= most && out->batch_count < MOST_BATCHES; b++)
        if (most % b == 0 && space->batch_divisor % b == 0 &&
            (!space->fixed.micro_batch || b == asked))
            out->batches[out->batch_count++] = b;
    return STATUS_OK;
}

static enum status try_all(struct enumeration *w)
{
    int most = w->space->node;
    TRY(plan_optimizers(w->env, w->space->request, &w->optimizers));
    TRY(find_batches(w));
    TRY(mem_alloc_array(w->env, MEM_OTHER, "search", (size_t)most, sizeof *w->out->tp_groups,
                        &w->out->tp_groups));
    for (int tp = 1; tp <= most; tp++)
        if (tp_is_possible(w, tp))
            TRY(try_tp(w, tp));
    return STATUS_OK;
}

enum status search_points_make(struct env *env, const struct search_space *space,
                               struct search_points *points)
{
    struct enumeration w = {.env = env, .space = space, .out = points};
    *points = (struct search_points){0};
    enum status st = try_all(&w);
    if (st != STATUS_OK)
        search_points_free(env, points);
    return st;
}

void search_points_free(struct env *env, struct search_points *points)
{
    for (int t = 0; t < points->tp_count; t++) {
        struct search_tp *tp_group = &points->tp_groups[t];
        for (int i = 0; tp_group->costs && i < points->batch_count * SEARCH_KINDS; i++)
            mem_free(env, tp_group->costs[i]);
        mem_free(env, tp_group->costs);
        bound_model_close(env, &tp_group->model);
    }
    mem_free(env, points->tp_groups);
    mem_free(env, points->batches);
    bound_pp_stages_close(env, &points->stages);
    mem_free(env, points->points);
    *points = (struct search_points){0};
}

enum status search_points_refine(struct env *env, const struct search_space *space,
                                 struct search_points *points, struct search_point *point)
{
    int t = 0, batch = 0;
    point->refined = true;
    if (point->pp == 1)
        return STATUS_OK;
    while (points->tp_groups[t].tp != point->tp)
        t++;
    while (points->batches[batch] != point->micro_batch)
        batch++;
    TRY(cut_pp_stages(env, space, points, &points->tp_groups[t], point, batch));
    return bound_simulate(env, space, &points->stages, point);
}
