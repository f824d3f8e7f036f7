/* plan_time -- simulates a step of each kind of rank (plan_step.c) and puts their passes together.
 *
 * The first rank of a PP stage stands for all ranks of the stage: it is never idle, sends the most
 * messages for the norm, and all shards have the same length. PP stages with the same units take
 * the same time, so only one stage of each kind is simulated. Without a pipeline there is one kind,
 * and each of its rounds counts as one pass. With a pipeline, the passes of all stages are put into
 * the timetable, which is simulated: while a single stage runs alone, messages from other stages
 * arrive as soon as they are requested.
 */
#include "plan/plan_time.h"

#include <math.h>
#include <string.h>

#include "plan/plan_impl.h"

/* --- kinds of stages ------------------------------------------------------------------------ */

/* Which PP stages are alike, and the step they take part in. */
struct layout {
    int pp, chunks, rounds, workers;
    int *like; /* (pp) the first stage with the same units */
    double message_bytes;
};

/* first (stages + 1): see spread_cut. */
static bool are_alike(const struct unit_graph *graph, const struct layout *l, const int *first,
                      int p, int q)
{
    for (int c = 0; c < l->chunks; c++) {
        int a = c * l->pp + p, b = c * l->pp + q, count = first[a + 1] - first[a];
        if (first[b + 1] - first[b] != count)
            return false;
        for (int u = 0; u < count; u++) {
            const struct unit *x = &graph->units[first[a] + u], *y = &graph->units[first[b] + u];
            if (x->type != y->type || x->self != y->self)
                return false;
        }
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
    shape.sequence = 0; /* the same cut as spread_create's */
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

/* like (pp) belongs to the caller. */
static enum status lay_out(struct env *env, const struct plan_request *request, int *like,
                           struct layout *l)
{
    struct env own;
    int pp = plan_pp_stages(request);
    struct mesh mesh;
    TRY(mesh_of(env, request->ranks, 0, plan_spread_over(request) / pp, pp, &mesh));
    struct roster roster = roster_of(0, mesh.dp, request->zero.servers);
    if (roster.workers < 1 || request->engine.micro_batches < 1)
        return FAIL(
            env, CONFIG,
            "no worker has a micro-batch: %d copies of the model, %d servers; use fewer servers",
            mesh.dp, request->zero.servers);
    *l = (struct layout){.pp = pp,
                         .chunks = pp > 1 ? spread_chunks(&request->parallel) : 1,
                         .rounds = (int)roster_rounds(&roster, request->engine.micro_batches),
                         .workers = roster.workers,
                         .like = like};
    struct plan_parts parts = {0};
    struct model_part part = plan_first_part(request);
    enum status st;
    TRY(plan_account_open(env, request->threads, &own));
    TRY_OR(done, plan_device_create(&own, request, NULL, &parts.device));
    TRY_OR(done, model_create_part(parts.device, &request->model, &part, &parts.model));
    st = find_alike(&own, request, model_graph(parts.model), l);
done:
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

/* --- a whole step --------------------------------------------------------------------------- */

static int64_t total_sent(const int64_t *sent)
{
    int64_t sum = 0;
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        sum += sent[purpose];
    return sum;
}

/* Keep the rank that computes most, the one that sends most, and the most that any moves. */
static void take_most(const struct plan_account *rank, struct plan_time *time)
{
    if (rank->spent >= time->compute) {
        time->compute = rank->spent;
        time->in_flight = rank->traffic.in_flight;
        time->waited = rank->traffic.waited;
    }
    if (total_sent(rank->traffic.sent) >= total_sent(time->sent))
        memcpy(time->sent, rank->traffic.sent, sizeof time->sent);
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        if (rank->traffic.moved[way] > time->moved[way])
            time->moved[way] = rank->traffic.moved[way];
}

static enum status simulate(struct env *env, const struct plan_request *request,
                            const struct layout *l, const struct plan_step *steps,
                            const struct comm_prices *comm, const struct timetable *table,
                            double *each, struct timetable_times *times)
{
    struct timetable_costs costs =
        plan_message_costs(comm, l->pp, plan_tp(request), l->message_bytes);
    costs.each = each;
    for (int p = 0; p < l->pp; p++)
        for (int64_t i = table->first[p]; i < table->first[p + 1]; i++) {
            struct timetable_action a = table->actions[i];
            if (!timetable_is_message(a.verb))
                each[i] = plan_step_pass(&steps[l->like[p]], a.verb, a.chunk, a.round)->seconds;
        }
    return timetable_simulate(env, table, &costs, times);
}

/* After its last pass each stage joins the norm; then each updates what it owns. */
static void put_together(const struct layout *l, const struct plan_step *steps,
                         const struct timetable *table, const struct timetable_times *times,
                         struct plan_time *time)
{
    double met = 0.0, update = 0.0, before = 0.0, last = 0.0;
    for (int p = 0; p < l->pp; p++) {
        const struct plan_step *w = &steps[l->like[p]];
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
                             const struct layout *l, const struct plan_step *steps,
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
    TRY_OR(done, simulate(env, request, l, steps, comm, &table, each, &times));
    for (int p = 0; p < l->pp; p++) {
        if (l->like[p] != p)
            continue;
        struct plan_account sum = plan_step_sum(&steps[p]);
        take_most(&sum, time);
    }
    put_together(l, steps, &table, &times, time);
done:
    timetable_times_free(env, &times);
    mem_free(env, each);
    timetable_free(env, &table);
    return st;
}

/* The common part of plan_time and plan_time_calls. `time` NULL: calls are only recorded. */
static enum status simulate_all(struct env *env, const struct plan_request *request,
                                const struct plan_clock *clock, struct plan_time *time)
{
    size_t pp = (size_t)plan_pp_stages(request);
    struct plan_step *steps = NULL; /* (pp) one per kind, at the index of its first stage */
    struct layout l = {0};
    int *like = NULL;
    enum status st;
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "stages", pp, sizeof *like, &like));
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "steps", pp, sizeof *steps, &steps));
    TRY_OR(done, lay_out(env, request, like, &l));
    for (int p = 0; p < l.pp; p++)
        if (like[p] == p)
            TRY_OR(done, plan_step_simulate(env, request, clock, p * plan_tp(request), l.chunks,
                                            l.rounds, l.workers, &steps[p]));
    if (time && pp == 1) {
        struct plan_account sum = plan_step_sum(steps);
        take_most(&sum, time);
        time->step = sum.clock;
        time->update = steps->judge.clock + steps->update.clock;
    } else if (time)
        st = time_pipe(env, request, &l, steps, &clock->machine->comm, time);
done:
    for (size_t p = 0; steps && p < pp; p++)
        plan_step_free(env, &steps[p]);
    mem_free(env, steps);
    mem_free(env, like);
    return st;
}

enum status plan_time(struct env *env, const struct plan_request *request,
                      const struct machine_profile *machine, struct plan_time *time)
{
    struct plan_clock clock = {.machine = machine};
    *time = (struct plan_time){0};
    TRY(ops_meter_create(env, &machine->ops, &clock.meter));
    enum status st = simulate_all(env, request, &clock, time);
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

enum status plan_time_calls(struct env *env, const struct plan_request *request,
                            struct ops_case **cases, int *count)
{
    struct plan_clock clock = {0};
    enum status st;
    bool all;
    TRY(ops_meter_create(env, NULL, &clock.meter));
    TRY_OR(done, simulate_all(env, request, &clock, NULL));
    *count = ops_meter_count(clock.meter, &all);
    if (!all)
        st = FAIL(env, INTERNAL, "a step has more than %d distinct calls", *count);
    TRY_OR(done, st);
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "calls", (size_t)*count, sizeof **cases, cases));
    for (int i = 0; i < *count; i++)
        (*cases)[i] = *ops_meter_case(clock.meter, i);
done:
    ops_meter_destroy(clock.meter);
    return st;
}
