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

/* (virtual stages) costs in operations, which serve as seconds. */
struct costs {
    double *forward, *input, *weight;
};

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

/* Fill in first (stages + 1) and costs (stages). */
static enum status find_costs(struct env *env, const struct plan_request *request, int *first,
                              const struct costs *costs)
{
    struct timetable_shape shape = shape_of(request, 1);
    int stages = timetable_pp_stages(&shape);
    struct look look = {.request = request, .first = first};
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", (size_t)stages, sizeof *look.cost, &look.cost));
    enum status st = plan_look(env, request, look_at, &look);
    for (int s = 0; st == STATUS_OK && s < stages; s++) {
        double work = (double)look.cost[s], loss = s == stages - 1 ? look.loss : 0.0;
        costs->forward[s] = work - loss;
        costs->input[s] = work + loss;
        costs->weight[s] = work;
    }
    mem_free(env, look.cost);
    return st;
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

static enum status run_lists(struct env *env, const struct plan_request *request, int64_t rounds,
                             const struct costs *costs, struct simulated *s)
{
    struct timetable_shape shape = shape_of(request, rounds);
    const struct timetable_costs told = {.forward = costs->forward,
                                         .input = costs->input,
                                         .weight = costs->weight,
                                         .transfers = TIMETABLE_LINKS};
    TRY(timetable_create(env, &shape, &s->table));
    return timetable_simulate(env, &s->table, &told, &s->times);
}

/* first: as in find_costs. The caller frees *s. */
static enum status simulate(struct env *env, const struct plan_request *request, int64_t rounds,
                            int *first, struct simulated *s)
{
    struct timetable_shape shape = shape_of(request, rounds);
    size_t stages = (size_t)timetable_pp_stages(&shape);
    double *seconds;
    *s = (struct simulated){0};
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", 3 * stages, sizeof *seconds, &seconds));
    struct costs costs = {seconds, seconds + stages, seconds + 2 * stages};
    enum status st = find_costs(env, request, first, &costs);
    if (st == STATUS_OK)
        st = run_lists(env, request, rounds, &costs, s);
    mem_free(env, seconds);
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

/* --- pictures ------------------------------------------------------------------------------- */

static enum status draw_lists(struct env *env, const struct plan_request *request, int64_t rounds,
                              int *first, struct text *text)
{
    struct simulated simulated;
    TRY(simulate(env, request, rounds, first, &simulated));
    text_add(text, "\na step: 0-9 forward of a micro-batch, a-j its backward, . nothing\n");
    timetable_print_times(&simulated.table, &simulated.times, 0.0, simulated.times.end,
                          PICTURE_WIDTH, text);
    simulated_free(env, &simulated);
    return STATUS_OK;
}

enum status plan_pipe_draw(struct env *env, const struct plan_request *request, int64_t rounds,
                           struct text *text)
{
    struct timetable_shape shape = shape_of(request, rounds);
    struct mesh mesh;
    int *first;
    TRY(mesh_of(env, request->ranks, 0, plan_tp(request), shape.pp, &mesh));
    mesh_print(&mesh, text);
    if (shape.pp > MOST_PP_STAGES || rounds > MOST_ROUNDS)
        return STATUS_OK;
    TRY(mem_alloc_array(env, MEM_OTHER, "plan", (size_t)timetable_pp_stages(&shape) + 1,
                        sizeof *first, &first));
    enum status st = draw_lists(env, request, rounds, first, text);
    mem_free(env, first);
    return st;
}
