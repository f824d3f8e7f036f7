/* plan_pipe -- a pipeline before it runs: where the model is cut, how many micro-batches are in
 * flight in each PP stage, and how long stages wait for each other.
 *
 * The cut and the lists are those of the engine (engine/spread.h, engine/timetable.h), and the
 * lists are simulated. The time of a pass is not known here: a forward pass counts as its
 * arithmetic, a backward pass as twice that, the loss as both at once.
 */
#include "engine/timetable_simulate.h"
#include "plan/plan.h"

/* Larger pictures would be unreadable. */
enum { MOST_PP_STAGES = 16, MOST_ROUNDS = 32, PICTURE_WIDTH = 88 };

static struct timetable_shape shape_of(const struct plan_request *request, int64_t rounds)
{
    return (struct timetable_shape){.kind = request->parallel.schedule,
                                    .pp = plan_pp_stages(request),
                                    .chunks = spread_chunks(&request->parallel),
                                    .rounds = (int)rounds,
                                    .eager = request->parallel.eager};
}

/* --- how long passes take ------------------------------------------------------------------- */

struct look { /* what to find out about the model */
    const struct plan_request *request;
    int *first;
    int64_t *cost;
    double loss; /* the arithmetic of the last unit */
};

static enum status look_at(void *user, struct env *env, const struct unit_graph *graph)
{
    struct look *look = user;
    const struct engine_config *engine = &look->request->engine;
    struct unit_shape shape = {.batch = engine->micro_batch, .tokens = engine->tokens};
    look->loss = (double)unit_work(&graph->units[graph->unit_count - 1], shape);
    return spread_cut(env, graph, shape, &look->request->parallel, look->first, look->cost);
}

/* --- the simulation ------------------------------------------------------------------------- */

struct simulated {
    struct timetable table;
    struct timetable_times times;
};

static void simulated_free(struct env *env, struct simulated *s)
{
    timetable_times_free(env, &s->times);
    timetable_free(env, &s->table);
}

/* Fill in first (virtual stages + 1) and simulate a step whose costs are operations, which serve as
 * seconds. The caller frees *s. */
static enum status simulate(struct env *env, const struct plan_request *request, int64_t rounds,
                            int *first, struct simulated *s)
{
    struct timetable_shape shape = shape_of(request, rounds);
    int stages = timetable_pp_stages(&shape);
    struct look look = {.request = request, .first = first};
    double *forward = NULL, *input, *weight; /* (virtual stages) */
    enum status st;
    *s = (struct simulated){0};
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", (size_t)stages, sizeof *look.cost, &look.cost));
    TRY_OR(done,
           mem_alloc_array(env, MEM_OTHER, "plan", 3 * (size_t)stages, sizeof *forward, &forward));
    TRY_OR(done, plan_look(env, request, look_at, &look));
    input = forward + stages;
    weight = input + stages;
    for (int p = 0; p < stages; p++) {
        double work = (double)look.cost[p], loss = p == stages - 1 ? look.loss : 0.0;
        forward[p] = work - loss;
        input[p] = work + loss;
        weight[p] = work;
    }
    const struct timetable_costs costs = {
        .forward = forward, .input = input, .weight = weight, .transfers = TIMETABLE_LINKS};
    TRY_OR(done, timetable_create(env, &shape, &s->table));
    st = timetable_simulate(env, &s->table, &costs, &s->times);
done:
    mem_free(env, forward);
    mem_free(env, look.cost);
    if (st != STATUS_OK)
        simulated_free(env, s);
    return st;
}

/* --- results -------------------------------------------------------------------------------- */

static enum status fill(struct env *env, const struct plan_request *request, int64_t rounds,
                        struct plan_pipe *pipe)
{
    struct timetable_shape shape = shape_of(request, rounds);
    struct simulated simulated;
    size_t pp = (size_t)shape.pp, stages = (size_t)timetable_pp_stages(&shape);
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", stages + 1, sizeof *pipe->first, &pipe->first));
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", pp, sizeof *pipe->workers, &pipe->workers));
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", pp, sizeof *pipe->in_flight, &pipe->in_flight));
    for (int p = 0; p < shape.pp; p++)
        for (int c = 0; c < shape.chunks; c++)
            pipe->in_flight[p] += timetable_in_flight(&shape, p, c);
    TRY(simulate(env, request, rounds, pipe->first, &simulated));
    pipe->bubble = simulated.times.bubble;
    simulated_free(env, &simulated);
    return STATUS_OK;
}

enum status plan_pipe_make(struct env *env, const struct plan_request *request, int64_t rounds,
                           struct plan_pipe *pipe)
{
    struct timetable_shape shape = shape_of(request, rounds);
    struct mesh mesh;
    *pipe = (struct plan_pipe){.pp = shape.pp, .chunks = shape.chunks};
    TRY(mesh_of(env, request->ranks, 0, plan_tp(request), shape.pp, &mesh));
    if (shape.pp == 1)
        return STATUS_OK;
    TRY(timetable_validate(env, &shape));
    enum status st = fill(env, request, rounds, pipe);
    if (st != STATUS_OK)
        plan_pipe_free(env, pipe);
    return st;
}

void plan_pipe_free(struct env *env, struct plan_pipe *pipe)
{
    mem_free(env, pipe->first);
    mem_free(env, pipe->workers);
    mem_free(env, pipe->in_flight);
    *pipe = (struct plan_pipe){0};
}

/* --- every action --------------------------------------------------------------------------- */

enum status plan_pipe_visit(struct env *env, const struct plan_request *request, int64_t rounds,
                            plan_pipe_fn *visit, void *user)
{
    struct timetable_shape shape = shape_of(request, rounds);
    struct simulated s;
    int *first;
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", (size_t)timetable_pp_stages(&shape) + 1,
                        sizeof *first, &first));
    enum status st = simulate(env, request, rounds, first, &s);
    mem_free(env, first);
    TRY(st);
    for (int p = 0; p < shape.pp; p++)
        for (int64_t i = s.table.first[p]; i < s.table.first[p + 1]; i++)
            visit(user, p, &s.table.actions[i], s.times.spans[i].begin / s.times.end,
                  s.times.spans[i].end / s.times.end);
    simulated_free(env, &s);
    return STATUS_OK;
}

/* --- pictures ------------------------------------------------------------------------------- */

enum status plan_pipe_draw(struct env *env, const struct plan_request *request, int64_t rounds,
                           struct text *text)
{
    struct timetable_shape shape = shape_of(request, rounds);
    struct simulated simulated;
    struct mesh mesh;
    int *first;
    TRY(mesh_of(env, request->ranks, 0, plan_tp(request), shape.pp, &mesh));
    mesh_print(&mesh, text);
    if (shape.pp > MOST_PP_STAGES || rounds > MOST_ROUNDS)
        return STATUS_OK;
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", (size_t)timetable_pp_stages(&shape) + 1,
                        sizeof *first, &first));
    enum status st = simulate(env, request, rounds, first, &simulated);
    mem_free(env, first);
    TRY(st);
    text_add(text, "\na step: 0-9 forward of a micro-batch, a-j its backward, . nothing\n");
    timetable_print_times(&simulated.table, &simulated.times, 0.0, simulated.times.end,
                          PICTURE_WIDTH, text);
    simulated_free(env, &simulated);
    return STATUS_OK;
}
