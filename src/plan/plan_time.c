/* plan_time -- walks a step of each kind of rank with a clock, and puts their passes together.
 *
 * The first rank of a stage stands for all that have it: it is never idle, has the most messages of
 * the norm, and slices are all of one length. Stages with the same units take the same time, so one
 * of each kind is walked. Without a pipeline there is one kind, and each of its rounds counts as one
 * pass; with one, the passes of all stages are put into the lists and simulated: while a single stage
 * is walked, messages of others are there as soon as they have been asked for.
 *
 * Each rank walks two steps, and the second counts: it begins with what the first has left under way.
 * Rounds in the middle of a step are alike, so of many only some are walked, and the one in the
 * middle stands for those that are not.
 *
 *     rounds of the step     0 1 2 . . . . . . . . 61 62 63
 *     those that are walked  0 1 2 (3 3 3 3 3 3)    4  5  6
 */
#include "plan/plan_time.h"

#include <math.h>
#include <string.h>

#include "engine/timetable_simulate.h"
#include "plan/plan_impl.h"

enum { VERBS = TIMETABLE_WEIGHT + 1 }; /* of passes */
enum { WALKED_STEPS = 2 };

/* What happens from one point to another, on one rank. */
struct account {
    double clock, spent, in_flight, waited;
    int64_t sent[ENGINE_WAYS];
};

struct pass_time {
    double seconds;       /* of the pass itself */
    struct account share; /* from its begin to that of the next; its clock is not used */
};

/* One walked rank. */
struct walk_time {
    int walked, rounds, chunks;           /* rounds: of the whole step */
    struct pass_time *passes;             /* (VERBS, chunks, walked) */
    struct account before, judge, update; /* the first pass; after the last one, until all know the
                                             norm; after that */
};

/* --- one rank ------------------------------------------------------------------------------- */

/* The request of which so few rounds are walked that the rest is known from them. */
static struct plan_request shorten(struct plan_request request, int workers, int rounds, int walked)
{
    request.engine.micro_batches -= (int64_t)(rounds - walked) * workers;
    request.decode_tokens = 0;
    return request;
}

/* Enough for every stage to go forward and back by turns for a while. */
static int walked_rounds(const struct plan_request *request, int rounds)
{
    int enough = plan_pipe_stages(request) + 4;
    return rounds < enough ? rounds : enough;
}

/* The walked round that a round is like. */
static int like_round(const struct walk_time *w, int round)
{
    int half = w->walked / 2, from_end = w->rounds - round;
    if (round < half || w->walked == w->rounds)
        return round;
    return from_end <= w->walked - half ? w->walked - from_end : half;
}

static struct pass_time *pass_at(const struct walk_time *w, int verb, int chunk, int round)
{
    return &w->passes[((int64_t)verb * w->chunks + chunk) * w->walked + round];
}

static const struct pass_time *pass_like(const struct walk_time *w, int verb, int chunk, int round)
{
    return pass_at(w, verb, chunk, like_round(w, round));
}

struct watcher {
    const struct plan_parts *parts;
    struct walk_time *walk;
    struct account last;    /* at the newest point */
    struct account *so_far; /* what happens now belongs to */
    double begin;           /* of the pass under way */
};

static struct account read_account(const struct plan_parts *p)
{
    struct engine_traffic traffic = engine_traffic(p->engine);
    struct account a = {.clock = stream_clock(p->stream),
                        .spent = stream_spent(p->stream),
                        .in_flight = traffic.in_flight,
                        .waited = traffic.waited - traffic.stalled};
    memcpy(a.sent, traffic.sent, sizeof a.sent);
    return a;
}

static void add(struct account *sum, const struct account *more, double sign)
{
    sum->clock += sign * more->clock;
    sum->spent += sign * more->spent;
    sum->in_flight += sign * more->in_flight;
    sum->waited += sign * more->waited;
    for (int way = 0; way < ENGINE_WAYS; way++)
        sum->sent[way] += (int64_t)sign * more->sent[way];
}

/* What has happened since the last point is put where it belongs; what follows belongs to `next`. */
static void turn(struct watcher *w, struct account *next)
{
    struct account now = read_account(w->parts);
    add(w->so_far, &now, 1.0);
    add(w->so_far, &w->last, -1.0);
    w->last = now;
    w->so_far = next;
}

static void watch(void *user, enum engine_point point, const struct timetable_action *pass)
{
    struct watcher *w = user;
    struct pass_time *time = pass ? pass_at(w->walk, pass->verb, pass->chunk, pass->round) : NULL;
    switch (point) {
    case ENGINE_PASS_BEGIN:
        turn(w, &time->share);
        w->begin = w->last.clock;
        break;
    case ENGINE_PASS_END: time->seconds = stream_clock(w->parts->stream) - w->begin; break;
    case ENGINE_PASSES_DONE: turn(w, &w->walk->judge); break;
    case ENGINE_JUDGED: turn(w, &w->walk->update); break;
    }
}

static void clear(struct walk_time *w)
{
    memset(w->passes, 0, (size_t)(VERBS * w->chunks * w->walked) * sizeof *w->passes);
    w->before = w->judge = w->update = (struct account){0};
}

static enum status walk_steps(const struct plan_parts *parts, int loop_votes, struct walk_time *w)
{
    struct engine_result result;
    int64_t sum;
    struct watcher watcher = {.parts = parts, .walk = w};
    engine_watch(parts->engine, watch, &watcher);
    for (int t = 1; t <= WALKED_STEPS; t++) {
        clear(w);
        watcher.last = read_account(parts);
        watcher.so_far = &w->before;
        TRY(engine_step(parts->engine, t, 0.0, &result));
        for (int i = 0; i < loop_votes; i++)
            TRY(engine_vote(parts->engine, 0, &sum));
        turn(&watcher, NULL);
    }
    return STATUS_OK;
}

/* --- kinds of stages ------------------------------------------------------------------------ */

/* Which stages are alike, and the step that they take part in. */
struct layout {
    int pp, chunks, rounds, workers;
    int *like; /* (pp) the first stage with the same units */
    double message_bytes;
};

static bool same_unit(const struct unit *a, const struct unit *b)
{
    return a->type == b->type && a->self == b->self;
}

/* first (stages + 1): see spread_cut. */
static bool are_alike(const struct unit_graph *graph, const struct layout *l, const int *first,
                      int p, int q)
{
    for (int c = 0; c < l->chunks; c++) {
        int a = c * l->pp + p, b = c * l->pp + q, count = first[a + 1] - first[a];
        if (first[b + 1] - first[b] != count)
            return false;
        for (int u = 0; u < count; u++)
            if (!same_unit(&graph->units[first[a] + u], &graph->units[first[b] + u]))
                return false;
    }
    return true;
}

static enum status find_alike(struct env *env, const struct plan_request *request,
                              const struct unit_graph *graph, struct layout *l)
{
    struct unit_shape shape = {.batch = request->engine.micro_batch,
                               .tokens = request->engine.tokens,
                               .sequence = graph->sequence};
    int *first;
    l->message_bytes = (double)unit_stream_rows(shape) * (double)graph->stream_width *
                       (double)dtype_bytes(request->compute);
    if (l->pp == 1)
        return STATUS_OK;
    shape.sequence = 0; /* the cut is that of spread_create */
    TRY(mem_alloc_array(env, MEM_OTHER, "stages", (size_t)(l->pp * l->chunks) + 1, sizeof *first,
                        &first));
    enum status st = spread_cut(env, graph, shape, &request->parallel, first, NULL);
    for (int p = 0; st == STATUS_OK && p < l->pp; p++) {
        l->like[p] = 0;
        while (l->like[p] < p && !are_alike(graph, l, first, l->like[p], p))
            l->like[p]++;
    }
    mem_free(env, first);
    return st;
}

static enum status look_at_stages(struct env *own, const struct plan_request *request,
                                  struct layout *l)
{
    struct plan_parts parts = {0};
    struct model_part part = plan_first_part(request);
    enum status st;
    TRY_OR(done, plan_device_create(own, request, NULL, &parts.device));
    TRY_OR(done, model_create_part(parts.device, &request->model, &part, &parts.model));
    st = find_alike(own, request, model_graph(parts.model), l);
done:
    plan_parts_free(&parts);
    return st;
}

/* like (pp) is the caller's. */
static enum status lay_out(struct env *env, const struct plan_request *request, int *like,
                           struct layout *l)
{
    struct env own;
    int pp = plan_pipe_stages(request);
    struct mesh mesh;
    TRY(mesh_of(env, request->ranks, 0, plan_spread_over(request) / pp, pp, &mesh));
    struct roster roster = roster_of(0, mesh.dp, request->zero.servers);
    if (roster.workers < 1 || request->engine.micro_batches < 1)
        return FAIL(env, CONFIG, "a step of no micro-batch takes no time: %d ranks, %d servers",
                    mesh.dp, request->zero.servers);
    *l = (struct layout){.pp = pp,
                         .chunks = pp > 1 ? spread_chunks(&request->parallel) : 1,
                         .rounds = (int)roster_rounds(&roster, request->engine.micro_batches),
                         .workers = roster.workers,
                         .like = like};
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = look_at_stages(&own, request, l);
    mem_destroy(own.mem);
    return st;
}

/* Walk the first rank of stage p. `w` has no passes yet. */
static enum status walk_stage(struct env *env, const struct plan_request *request,
                              const struct layout *l, const struct plan_clock *clock, int p,
                              struct walk_time *w)
{
    struct env own;
    struct plan_parts parts = {0};
    enum status st;
    *w = (struct walk_time){
        .walked = walked_rounds(request, l->rounds), .rounds = l->rounds, .chunks = l->chunks};
    struct plan_request some = shorten(*request, l->workers, l->rounds, w->walked);
    TRY(mem_alloc_array(env, MEM_OTHER, "passes", (size_t)(VERBS * w->chunks * w->walked),
                        sizeof *w->passes, &w->passes));
    TRY(plan_account_open(env, request->threads, &own));
    st = plan_parts_build(&own, &some, p * (plan_spread_over(request) / l->pp), clock, &parts);
    if (st == STATUS_OK)
        st = walk_steps(&parts, request->loop_votes, w);
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

/* --- a whole step --------------------------------------------------------------------------- */

/* All that a rank does in a step, rounds that were not walked included. */
static struct account sum_of(const struct walk_time *w)
{
    struct account sum = w->before;
    add(&sum, &w->judge, 1.0);
    add(&sum, &w->update, 1.0);
    for (int verb = 0; verb < VERBS; verb++)
        for (int chunk = 0; chunk < w->chunks; chunk++)
            for (int round = 0; round < w->rounds; round++)
                add(&sum, &pass_like(w, verb, chunk, round)->share, 1.0);
    return sum;
}

static int64_t total_sent(const int64_t *sent)
{
    int64_t sum = 0;
    for (int way = 0; way < ENGINE_WAYS; way++)
        sum += sent[way];
    return sum;
}

/* The rank that computes most, and the one that sends most. */
static void take_most(const struct account *rank, struct plan_time *time)
{
    if (rank->spent >= time->compute) {
        time->compute = rank->spent;
        time->in_flight = rank->in_flight;
        time->waited = rank->waited;
    }
    if (total_sent(rank->sent) >= total_sent(time->sent))
        memcpy(time->sent, rank->sent, sizeof time->sent);
}

static void time_whole(const struct walk_time *w, struct plan_time *time)
{
    struct account sum = sum_of(w);
    take_most(&sum, time);
    time->step = sum.clock;
    time->update = w->judge.clock + w->update.clock;
}

/* Whether stages that speak to each other are on different nodes. */
static bool crosses_nodes(const struct plan_request *request, const struct layout *l, int node)
{
    int tp = plan_spread_over(request) / l->pp;
    return node > 0 && (l->pp - 1) * tp / node > 0;
}

static enum status simulate(struct env *env, const struct plan_request *request,
                            const struct layout *l, const struct walk_time *walks,
                            const struct comm_prices *comm, const struct timetable *table,
                            double *each, struct timetable_times *times)
{
    bool far = crosses_nodes(request, l, comm->node);
    const struct comm_wire *wire = far ? &comm->between : &comm->inside;
    double rate = wire->bytes_per_second;
    const struct timetable_costs costs = {.each = each,
                                          .latency = wire->latency + wire->message,
                                          .transfer = rate > 0 ? l->message_bytes / rate : 0.0,
                                          .transfers = TIMETABLE_LINKS};
    for (int p = 0; p < l->pp; p++)
        for (int64_t i = table->first[p]; i < table->first[p + 1]; i++) {
            struct timetable_action a = table->actions[i];
            if (!timetable_is_message(a.verb))
                each[i] = pass_like(&walks[l->like[p]], a.verb, a.chunk, a.round)->seconds;
        }
    return timetable_simulate(env, table, &costs, times);
}

/* When each stage has done its last pass, all meet for the norm; then each updates what it has. */
static void put_together(const struct layout *l, const struct walk_time *walks,
                         const struct timetable *table, const struct timetable_times *times,
                         struct plan_time *time)
{
    double met = 0.0, update = 0.0, before = 0.0, last = 0.0;
    for (int p = 0; p < l->pp; p++) {
        const struct walk_time *w = &walks[l->like[p]];
        double done = 0.0;
        for (int64_t i = table->first[p]; i < table->first[p + 1]; i++)
            if (!timetable_is_message(table->actions[i].verb))
                done = fmax(done, times->spans[i].end);
        before = fmax(before, w->before.clock);
        last = fmax(last, done);
        met = fmax(met, done + w->judge.clock);
        update = fmax(update, w->update.clock);
    }
    time->step = before + met + update;
    time->update = met - last + update;
    time->bubble = times->bubble;
}

static enum status time_pipe(struct env *env, const struct plan_request *request,
                             const struct layout *l, const struct walk_time *walks,
                             const struct comm_prices *comm, struct plan_time *time)
{
    struct timetable_shape shape = {.kind = request->parallel.schedule,
                                    .pp = l->pp,
                                    .chunks = l->chunks,
                                    .rounds = l->rounds,
                                    .eager = request->parallel.eager};
    struct timetable table = {0};
    struct timetable_times times = {0};
    double *each = NULL;
    enum status st;
    TRY_OR(done, timetable_create(env, &shape, &table));
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "passes", (size_t)table.first[l->pp], sizeof *each,
                                 &each));
    TRY_OR(done, simulate(env, request, l, walks, comm, &table, each, &times));
    for (int p = 0; p < l->pp; p++) {
        if (l->like[p] != p)
            continue;
        struct account sum = sum_of(&walks[p]);
        take_most(&sum, time);
    }
    put_together(l, walks, &table, &times, time);
done:
    timetable_times_free(env, &times);
    mem_free(env, each);
    timetable_free(env, &table);
    return st;
}

/* walks (pp): one of each kind, in the place of its first stage. */
static enum status walk_kinds(struct env *env, const struct plan_request *request,
                              const struct layout *l, const struct plan_clock *clock,
                              struct walk_time *walks)
{
    for (int p = 0; p < l->pp; p++)
        if (l->like[p] == p)
            TRY(walk_stage(env, request, l, clock, p, &walks[p]));
    return STATUS_OK;
}

static void free_walks(struct env *env, struct walk_time *walks, int pp)
{
    for (int p = 0; walks && p < pp; p++)
        mem_free(env, walks[p].passes);
    mem_free(env, walks);
}

/* Everything that plan_time and plan_time_calls need; `time` NULL: calls are noted only. */
static enum status walk_all(struct env *env, const struct plan_request *request,
                            const struct plan_clock *clock, struct plan_time *time)
{
    size_t pp = (size_t)plan_pipe_stages(request);
    struct walk_time *walks = NULL;
    struct layout layout;
    int *like = NULL;
    enum status st;
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "stages", pp, sizeof *like, &like));
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "walks", pp, sizeof *walks, &walks));
    TRY_OR(done, lay_out(env, request, like, &layout));
    TRY_OR(done, walk_kinds(env, request, &layout, clock, walks));
    if (time && pp == 1)
        time_whole(walks, time);
    else if (time)
        st = time_pipe(env, request, &layout, walks, &clock->machine->comm, time);
done:
    free_walks(env, walks, (int)pp);
    mem_free(env, like);
    return st;
}

enum status plan_time(struct env *env, const struct plan_request *request,
                      const struct machine_profile *machine, struct plan_time *time)
{
    struct plan_clock clock = {.machine = machine};
    *time = (struct plan_time){0};
    TRY(ops_meter_create(env, &machine->ops, &clock.meter));
    enum status st = walk_all(env, request, &clock, time);
    ops_meter_destroy(clock.meter);
    return st;
}

double plan_time_hidden(const struct plan_time *time)
{
    if (time->in_flight <= 0)
        return 1.0;
    double hidden = 1.0 - time->waited / time->in_flight;
    return hidden > 0 ? hidden : 0.0;
}

/* --- the calls of a step -------------------------------------------------------------------- */

static enum status copy_calls(struct env *env, const struct ops_meter *meter,
                              struct ops_case **cases, int *count)
{
    bool all;
    *count = ops_meter_count(meter, &all);
    if (!all)
        return FAIL(env, INTERNAL, "a step has more than %d different calls", *count);
    TRY(mem_alloc_array(env, MEM_OTHER, "calls", (size_t)*count, sizeof **cases, cases));
    for (int i = 0; i < *count; i++)
        (*cases)[i] = *ops_meter_case(meter, i);
    return STATUS_OK;
}

enum status plan_time_calls(struct env *env, const struct plan_request *request,
                            struct ops_case **cases, int *count)
{
    struct plan_clock clock = {0};
    TRY(ops_meter_create(env, NULL, &clock.meter));
    enum status st = walk_all(env, request, &clock, NULL);
    if (st == STATUS_OK)
        st = copy_calls(env, clock.meter, cases, count);
    ops_meter_destroy(clock.meter);
    return st;
}
