/* search -- simulates layouts in the order of their lower bounds until no other can be faster.
 *
 *     bounds       1.00  1.02  1.05   1.05  1.31 ...
 *     simulated    1.09  1.04  (big)  1.12            stop: 1.31 exceeds the last one wanted
 *
 * Memory is checked only when a layout is fast enough to be kept: first the ranks of the first and
 * the last PP stage, which usually need the most, then all of them. If state may leave the device,
 * it is checked before the simulation, because time depends on what leaves. Layouts that a run
 * would refuse are left out; the refusals go to a log of their own, which is reported when nothing
 * else is left.
 */
#include "plan/search_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layouts whose times differ by less count as equally fast. */
static const double same_time = 1e-6;

struct best { /* the best layout of a mesh, or one layout if the mesh is fixed */
    struct search_point point;
    struct plan_time time;
    struct plan_room needs;
};

struct search {
    struct env *env;  /* the caller's */
    struct env quiet; /* the same with a log that prints nothing */
    const struct search_space *space;
    struct search_points points;
    struct best *best; /* fastest first */
    int count, room;
    struct search_result *out;
    struct progress_task task; /* layouts */
};

static void print_nothing(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

/* --- the list of the best --------------------------------------------------------------------- */

static int compare_best(const struct best *a, const struct best *b)
{
    double x = a->time.step, y = b->time.step;
    if (fabs(x - y) <= same_time * fmin(x, y))
        return search_simpler(&a->point, &b->point);
    return x < y ? -1 : 1;
}

/* The entry that the point would replace; -1: none. */
static int find_same(const struct search *s, const struct search_point *point)
{
    bool one_mesh = s->space->fixed.tp && s->space->fixed.pp; /* every layout counts */
    for (int i = 0; !one_mesh && i < s->count; i++)
        if (s->best[i].point.tp == point->tp && s->best[i].point.pp == point->pp)
            return i;
    return -1;
}

/* The longest step time with which this point would still be listed. */
static double limit_of(const struct search *s, const struct search_point *point)
{
    int same = find_same(s, point);
    double limit = s->count >= s->space->most ? s->best[s->space->most - 1].time.step : INFINITY;
    if (same >= 0 && s->best[same].time.step < limit)
        limit = s->best[same].time.step;
    return limit * (1 + same_time);
}

static enum status insert(struct search *s, const struct best *new)
{
    int at = find_same(s, &new->point);
    if (at < 0 && s->count == s->room) {
        int room = s->room > 0 ? 2 * s->room : 32;
        TRY(mem_grow_array(s->env, MEM_OTHER, "search", (size_t)room, sizeof *s->best, &s->best));
        s->room = room;
    }
    if (at < 0)
        at = s->count++;
    for (; at > 0 && compare_best(new, &s->best[at - 1]) < 0; at--)
        s->best[at] = s->best[at - 1];
    s->best[at] = *new;
    return STATUS_OK;
}

/* --- one layout ------------------------------------------------------------------------------- */

/* Turn a refusal into *refused; pass other errors on. */
static enum status judge(struct search *s, enum status st, bool *refused)
{
    *refused = st == STATUS_CONFIG || st == STATUS_USAGE;
    if (st == STATUS_OK || *refused)
        return STATUS_OK;
    return log_fail(s->env->log, st, __FILE__, __LINE__, "%s", log_first_error(s->quiet.log));
}

/* The memory of the ranks that usually need the most: of the first and the last PP stage. */
static enum status needed_at_ends(struct search *s, const struct plan_request *request,
                                  size_t *needed)
{
    int last = plan_pp_stages(request) - 1;
    *needed = 0;
    for (int p = 0; p <= last; p += last > 0 ? last : 1) {
        struct plan_rank rank;
        if (s->space->memory > 0 && *needed > s->space->memory)
            break;
        TRY(plan_rank_memory(&s->quiet, request, p * (int)request->parallel.tp, NULL, NULL, &rank));
        *needed = plan_needed_bytes(&rank) > *needed ? plan_needed_bytes(&rank) : *needed;
    }
    return STATUS_OK;
}

/* Count a layout that does not fit, or is refused. */
static void count_out(struct search *s, bool refused, bool fits)
{
    s->out->refused += refused;
    s->out->too_large += !refused && !fits;
}

/* Whether the layout fits; if so, new->needs is set. */
static enum status check_memory(struct search *s, const struct plan_request *request,
                                struct best *new, bool *fits)
{
    struct plan_room room = search_room(s->space);
    struct plan_zero_stage stage = {0};
    size_t needed;
    bool refused;
    *fits = false;
    TRY(judge(s, needed_at_ends(s, request, &needed), &refused));
    if (!refused && (room.memory == 0 || needed <= room.memory)) {
        TRY(judge(s, plan_worst_memory(&s->quiet, request, &stage), &refused));
        *fits = !refused && plan_fits(&stage, &room);
    }
    new->needs = plan_needs(&stage);
    count_out(s, refused, *fits);
    return STATUS_OK;
}

/* Raise the bound of a point, and find out what must leave the device, if that is open. */
static enum status refine(struct search *s, struct search_point *point, bool *fits)
{
    *fits = true;
    TRY(search_points_refine(&s->quiet, s->space, &s->points, point));
    if (!search_may_offload(s->space))
        return STATUS_OK;
    struct plan_room room = search_room(s->space);
    struct plan_request request = search_request(s->space, point);
    struct plan_zero_stage stage;
    bool refused;
    log_error_clear(s->quiet.log);
    TRY(judge(s, plan_offload(&s->quiet, &room, &s->space->fixed.offload, &request, &stage, fits),
              &refused));
    *fits = *fits && !refused;
    count_out(s, refused, *fits);
    search_place(point, &request.zero.offload);
    return STATUS_OK;
}

static struct search_layout layout_of(const struct search_space *space, const struct best *best)
{
    return (struct search_layout){.request = search_request(space, &best->point),
                                  .dp = best->point.dp,
                                  .rounds = search_rounds(space, &best->point),
                                  .time = best->time,
                                  .bound = best->point.bound,
                                  .needed_bytes = best->needs.memory,
                                  .host_bytes = best->needs.host,
                                  .disk_bytes = best->needs.disk};
}

static enum status simulate_point(struct search *s, const struct search_point *point)
{
    struct plan_request request = search_request(s->space, point);
    struct best new = {.point = *point};
    int same = find_same(s, point);
    bool refused, fits;
    log_error_clear(s->quiet.log);
    TRY(judge(s, plan_time(&s->quiet, &request, s->space->machine, &new.time), &refused));
    s->out->refused += refused;
    if (refused)
        return STATUS_OK;
    /* Most layouts are slower than those listed already: their memory does not matter. */
    bool slower = new.time.step > limit_of(s, point) ||
                  (same >= 0 && compare_best(&new, &s->best[same]) >= 0);
    if (!slower || s->space->exhaustive) {
        TRY(check_memory(s, &request, &new, &fits));
        if (!fits)
            return STATUS_OK;
    }
    s->out->timed++;
    if (s->space->visit) {
        bool exact = new.needs.memory > 0;
        struct search_layout layout = layout_of(s->space, &new);
        layout.needed_bytes = exact ? layout.needed_bytes : point->bytes;
        s->space->visit(s->space->user, &layout, exact);
    }
    return slower ? STATUS_OK : insert(s, &new);
}

/* --- all of them ------------------------------------------------------------------------------ */

static bool is_before(const struct search_point *a, const struct search_point *b)
{
    return a->bound != b->bound ? a->bound < b->bound : search_simpler(a, b) < 0;
}

/* Sink entry i of a heap of `count` points, which has the smallest bound on top. */
static void sink(struct search_point *heap, int64_t count, int64_t i)
{
    for (int64_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &heap[i]))
            return;
        struct search_point higher = heap[child];
        heap[child] = heap[i];
        heap[i] = higher;
    }
}

/* When a point reaches the top its bound is refined first, and the point is sorted in again. */
static enum status simulate_points(struct search *s)
{
    struct search_point *heap = s->points.points;
    int64_t count = s->points.count;
    for (int64_t i = count / 2 - 1; i >= 0; i--)
        sink(heap, count, i);
    s->task.total = (uint64_t)count;
    while (count > 0) {
        bool useless = !s->space->exhaustive && heap[0].bound > limit_of(s, &heap[0]);
        bool fits = true, simulated = !useless && heap[0].refined;
        struct search_point point = heap[0];
        if (!useless && !simulated)
            TRY(refine(s, &heap[0], &fits));
        if (useless || simulated || !fits)
            heap[0] = heap[--count];
        sink(heap, count, 0);
        s->out->bounded += useless;
        if (simulated)
            TRY(simulate_point(s, &point));
        if (s->space->task)
            progress_advance(s->env, s->space->task, 0);
        else
            progress_reach(s->env, &s->task, s->task.total - (uint64_t)count);
    }
    return STATUS_OK;
}

static enum status time_other(struct search *s, const struct plan_request *request, double *seconds)
{
    struct plan_time time = {0};
    bool refused;
    TRY(judge(s, plan_time(&s->quiet, request, s->space->machine, &time), &refused));
    *seconds = time.step;
    return STATUS_OK;
}

/* How long a layout takes whose workers sum locally if gradients are sent after every micro-batch
 * instead, as the same bits for every number of workers need. */
static enum status time_each(struct search *s, struct search_layout *layout)
{
    struct plan_request request = layout->request;
    if (!request.zero.local)
        return STATUS_OK;
    request.zero.local = false;
    return time_other(s, &request, &layout->each);
}

/* How long a layout takes if all stays on the device, where it does not fit. */
static enum status time_on_device(struct search *s, struct search_layout *layout)
{
    struct plan_request request = layout->request;
    struct zero_offload *offload = &request.zero.offload;
    if (!plan_moves_anything(&request))
        return STATUS_OK;
    offload->optimizer = offload->grads = offload->params = FAR_NONE;
    request.engine.activations = FAR_NONE;
    return time_other(s, &request, &layout->device);
}

/* Among the points with the lowest memory bounds, find the one for which the least is missing. */
static enum status find_nearest(struct search *s)
{
    struct plan_room room = search_room(s->space);
    double least = INFINITY;
    for (int i = 0; i < s->points.least_count; i++) {
        struct best other = {.point = s->points.least[i]};
        struct plan_request request = search_request(s->space, &other.point);
        struct plan_zero_stage stage = {0};
        bool refused, fits;
        log_error_clear(s->quiet.log);
        TRY(judge(s,
                  plan_offload(&s->quiet, &room, &s->space->fixed.offload, &request, &stage, &fits),
                  &refused));
        if (refused || plan_missing(&stage, &room) >= least)
            continue;
        least = plan_missing(&stage, &room);
        search_place(&other.point, &request.zero.offload);
        other.needs = plan_needs(&stage);
        s->out->nearest = layout_of(s->space, &other);
    }
    return STATUS_OK;
}

/* No layout exists: report why the run refuses the request as it is, or else blame batch or node.
 * If the ZeRO stage is open and shard groups or servers are set, stage 0 was not what the user
 * meant. */
static enum status report_none(struct search *s)
{
    struct plan_request asked = *s->space->request, *request = &asked;
    struct plan_rank rank;
    if (!s->space->fixed.stage && (asked.zero.shard_group > 0 || asked.zero.servers > 0))
        asked.zero.stage = PLAN_ZERO_STAGES - 1;
    TRY(plan_rank_memory(s->env, request, 0, NULL, NULL, &rank));
    if (s->out->refused > 0)
        return FAIL(s->env, CONFIG, "no layout of %d ranks is possible: %s", request->ranks,
                    log_first_error(s->quiet.log));
    return FAIL(
        s->env, CONFIG,
        "no layout of %d ranks on nodes of %d is possible with these settings; leave "
        "parallel.tp, parallel.pp, zero.servers, zero.shard_group or train.micro_batch open",
        request->ranks, s->space->node);
}

/* Tuning has changed some times. The order of equally fast ones stays. */
static void sort_layouts(struct search_layout *layouts, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && layouts[k].time.step < layouts[k - 1].time.step * (1 - same_time);
             k--) {
            struct search_layout faster = layouts[k];
            layouts[k] = layouts[k - 1];
            layouts[k - 1] = faster;
        }
}

static enum status finish(struct search *s)
{
    int count = s->count < s->space->most ? s->count : s->space->most;
    struct search_result *out = s->out;
    out->possible = s->points.possible;
    out->too_large += s->points.too_large;
    if (count == 0 && s->space->optional)
        return STATUS_OK;
    if (count == 0 && out->refused + (out->possible == 0) > 0 &&
        out->refused == out->possible - out->too_large)
        return report_none(s);
    if (count == 0)
        return find_nearest(s);
    TRY(mem_alloc_array(s->env, MEM_OTHER, "search", (size_t)count, sizeof *out->layouts,
                        &out->layouts));
    out->count = count;
    for (int i = 0; i < count; i++) {
        out->layouts[i] = layout_of(s->space, &s->best[i]);
        TRY(search_tune(&s->quiet, s->space, &out->layouts[i]));
    }
    sort_layouts(out->layouts, count);
    search_say_why(out);
    TRY(time_each(s, &out->layouts[0]));
    return time_on_device(s, &out->layouts[0]);
}

enum status search_layouts(struct env *env, const struct search_space *space,
                           struct search_result *result)
{
    struct search s = {.env = env, .quiet = *env, .space = space, .out = result};
    *result = (struct search_result){0};
    CHECK(space->most >= 1 && space->node >= 1 && space->global_batch >= 1);
    s.quiet.log = log_create(print_nothing, NULL, LOG_ERROR);
    if (!s.quiet.log)
        return STATUS_MEMORY;
    progress_begin(&s.task, "searching", "layouts", 0);
    struct plan_optimizers optimizers;
    bool refused = false;
    enum status st;
    TRY_OR(undo, plan_model(env, space->request, &result->parameters, &result->flops_per_token));
    TRY_OR(undo, plan_optimizers(env, space->request, &optimizers));
    result->widths = optimizers.widths;
    TRY_OR(undo, judge(&s, search_points_make(&s.quiet, space, &s.points), &refused));
    if (!refused)
        TRY_OR(undo, simulate_points(&s));
    st = finish(&s);
undo:
    progress_end(env, &s.task);
    search_points_free(&s.quiet, &s.points);
    mem_free(env, s.best);
    log_destroy(s.quiet.log);
    if (st != STATUS_OK)
        search_result_free(env, result);
    return st;
}

void search_result_free(struct env *env, struct search_result *result)
{
    mem_free(env, result->layouts);
    *result = (struct search_result){0};
}
