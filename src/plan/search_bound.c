/* search_bound -- lower bounds of the time and memory of a layout, from a few sums.
 *
 * Time: rank p of a pipeline cannot begin before the first micro-batch has passed the stages before
 * it, and after its last backward pass these stages still have theirs to do:
 *
 *     forward of stages 0 .. p-1  |  all passes of rank p  |  backward of stages p-1 .. 0
 *
 * With zero-bubble the last part may overlap with passes and does not count. Messages may be hidden
 * completely, but messages of one purpose follow each other: a step takes at least as long as all
 * of them. After either, the owners update what they own; offloaded state is updated during the
 * next pass, while messages are sent. Memory: the state by the paper's formula, without what may
 * leave the device and has room elsewhere, and the activations of the micro-batches in flight.
 *
 * No bound may exceed the simulation: tests/plan/test_search.c checks that.
 */
#include "plan/search_impl.h"

#include <math.h>

#include "device/device.h"
#include "engine/spread.h"
#include "plan/plan_impl.h"
#include "zero/partition.h"

/* --- where the model is cut ------------------------------------------------------------------- */

static enum status read_work(struct env *env, const struct search_space *space,
                             const struct unit_graph *graph, struct bound_model *model)
{
    const struct engine_config *engine = &space->request->engine;
    struct unit_shape shape = {.batch = 1, .tokens = engine->tokens};
    size_t units = (size_t)graph->unit_count;
    model->unit_count = graph->unit_count;
    TRY(mem_alloc_array(env, MEM_OTHER, "search", units, sizeof *model->work, &model->work));
    TRY(mem_alloc_array(env, MEM_OTHER, "search", units + 1, sizeof *model->cuts, &model->cuts));
    for (size_t u = 0; u < units; u++)
        model->work[u] = unit_work(&graph->units[u], shape);
    return STATUS_OK;
}

enum status bound_model_open(struct env *env, const struct search_space *space, int tp,
                             struct bound_model *model)
{
    const struct model_part part = {.tp = tp};
    struct device *device = NULL;
    struct model *built = NULL;
    *model = (struct bound_model){0};
    enum status st = device_create(env, "dry", 0, &device);
    if (st == STATUS_OK)
        st = model_create_part(device, &space->request->model, &part, &built);
    if (st == STATUS_OK)
        st = read_work(env, space, model_graph(built), model);
    model_destroy(built);
    device_destroy(device);
    if (st != STATUS_OK)
        bound_model_close(env, model);
    return st;
}

void bound_model_close(struct env *env, struct bound_model *model)
{
    for (int stages = 0; model->cuts && stages <= model->unit_count; stages++)
        mem_free(env, model->cuts[stages]);
    mem_free(env, model->cuts);
    mem_free(env, model->work);
    *model = (struct bound_model){0};
}

/* The cut of spread_cut, computed once for each number of stages. */
static enum status find_cut(struct env *env, struct bound_model *model, int stages,
                            const int **first)
{
    struct pp_cut_task task = {
        .units = model->unit_count, .pp_stages = stages, .cost = model->work};
    CHECK(stages >= 1 && stages <= model->unit_count);
    *first = model->cuts[stages];
    if (*first)
        return STATUS_OK;
    TRY(mem_alloc_array(env, MEM_OTHER, "search", (size_t)stages + 1, sizeof **model->cuts,
                        &model->cuts[stages]));
    *first = model->cuts[stages];
    return pp_cut(env, &task, model->cuts[stages]);
}

/* --- stages ----------------------------------------------------------------------------------- */

enum status bound_pp_stages_open(struct env *env, int unit_count, struct bound_pp_stages *stages)
{
    size_t count = (size_t)unit_count;
    double *room;
    *stages = (struct bound_pp_stages){0};
    TRY(mem_alloc_array(env, MEM_OTHER, "search", 10 * count, sizeof *room, &room));
    stages->forward = room;
    stages->backward = room + count;
    stages->activations = room + 2 * count;
    stages->parameters = room + 3 * count;
    stages->input = room + 4 * count;
    stages->weight = room + 5 * count;
    stages->least = room + 6 * count;
    stages->most = room + 7 * count;
    stages->learned = room + 8 * count;
    stages->unread = room + 9 * count;
    enum status st =
        mem_alloc_array(env, MEM_OTHER, "search", count, sizeof *stages->units, &stages->units);
    if (st != STATUS_OK)
        bound_pp_stages_close(env, stages);
    return st;
}

void bound_pp_stages_close(struct env *env, struct bound_pp_stages *stages)
{
    mem_free(env, stages->forward);
    mem_free(env, stages->units);
    *stages = (struct bound_pp_stages){0};
}

enum status bound_pp_stages_cut(struct env *env, struct bound_model *model,
                                const struct plan_unit_cost *costs, int count,
                                struct bound_pp_stages *stages)
{
    const int *first;
    TRY(find_cut(env, model, count, &first));
    stages->count = count;
    for (int s = 0; s < count; s++) {
        stages->forward[s] = stages->backward[s] = 0;
        stages->input[s] = stages->weight[s] = 0;
        stages->least[s] = INFINITY;
        stages->most[s] = 0;
        stages->activations[s] = stages->parameters[s] = 0;
        stages->learned[s] = stages->unread[s] = 0;
        stages->units[s] = first[s + 1] - first[s];
        for (int u = first[s]; u < first[s + 1]; u++) {
            stages->forward[s] += costs[u].forward;
            stages->backward[s] += costs[u].backward;
            stages->input[s] += costs[u].input;
            stages->weight[s] += costs[u].weight;
            stages->least[s] = fmin(stages->least[s], (double)costs[u].parameters);
            stages->most[s] = fmax(stages->most[s], (double)costs[u].parameters);
            stages->activations[s] += (double)costs[u].activation_bytes;
            stages->parameters[s] += (double)costs[u].parameters;
            stages->learned[s] += (double)costs[u].learned;
            stages->unread[s] += (double)costs[u].unread;
        }
    }
    return STATUS_OK;
}

static struct timetable_shape shape_of(const struct search_space *space,
                                       const struct search_point *point)
{
    return (struct timetable_shape){.kind = point->schedule,
                                    .pp = point->pp,
                                    .chunks = point->chunks,
                                    .rounds = (int)search_rounds(space, point),
                                    .eager = space->request->parallel.eager};
}

/* --- time ------------------------------------------------------------------------------------- */

static double pass_seconds(const struct bound_pp_stages *stages, const struct search_point *point,
                           double rounds)
{
    double least = 0, before = 0, after = 0;
    for (int p = 0; p < point->pp; p++) {
        double busy = 0;
        for (int s = p; s < stages->count; s += point->pp)
            busy += stages->forward[s] + stages->backward[s];
        bool filled = point->schedule == TIMETABLE_ZERO_BUBBLE;
        least = fmax(least, before + rounds * busy + (filled ? 0 : after));
        before += stages->forward[p];
        after += stages->backward[p];
    }
    return least;
}

/* Seconds of `calls` calls in which a rank sends `bytes` in total to the other `size` - 1 ranks,
 * which are `stride` apart, with the prices of comm_price. */
static double call_seconds(const struct comm_prices *prices, int size, int stride, double calls,
                           double bytes)
{
    int node = prices->node > 0 ? prices->node : size * stride;
    int near = node / stride < size ? node / stride : size; /* ranks of them on one node, at most */
    double part = bytes / (size > 1 ? size - 1 : 1);
    near = near > 0 ? near - 1 : 0;
    int far = size - 1 - near;
    const struct comm_wire *in = &prices->inside, *out = &prices->between;
    return fmax(calls * near * in->message + part * near / in->bytes_per_second,
                calls * far * out->message + part * far / out->bytes_per_second);
}

/* What a rank of one PP stage has, over all its chunks. */
struct holding {
    double parameters, most; /* most: the sum over the chunks of the largest unit's parameters */
    double learned, unread;  /* of the parameters: as in plan_unit_cost */
    int units, chunks;
};

/* Gradients are sent to their owners after every micro-batch, or once. Sharded params are gathered
 * for forward and for backward, except where a unit needs them only once, or still has them where a
 * walk turns around. Frozen params have no gradients. Gathers and reductions are on streams of
 * their own. Where pieces may be merged, there may be one for all units. */
static double sent_seconds(const struct search_space *space, const struct search_point *point,
                           const struct holding *held, double rounds)
{
    const struct zero_config *store = &space->request->zero;
    const struct comm_prices *prices = &space->machine->comm;
    int dp = point->dp, stride = point->tp * point->pp;
    int shards = point->shard_group > 0 ? point->shard_group : dp, once = point->pp == 1 ? 3 : 2;
    bool merged = store->bucket > 0 || store->unit_layers > 1;
    double n = merged ? held->chunks : held->units;
    double width = (double)dtype_bytes(store->type), all = held->parameters;
    double reductions = point->local ? 1 : rounds;
    if (dp < 2 || store->servers > 0)
        return 0;
    double reduce =
        reductions * call_seconds(prices, dp, stride, n, held->learned * width * (dp - 1) / dp);
    if (!sharding_of(point->stage).params)
        return reduce;
    double gathered = merged ? all : fmax(all, 2 * all - held->unread - once * held->most);
    double calls = fmax(n, 2 * n - once * held->chunks);
    return fmax(reduce, rounds * call_seconds(prices, shards, stride, calls,
                                              gathered * width * (shards - 1) / shards));
}

/* An update reads the gradient, in 2 bytes or more, and reads and writes a parameter in fp32 and
 * the optimizer state. Masters, which these parameters may be, count as state. */
static double update_seconds(const struct search_space *space, const struct search_point *point,
                             double state, double parameters)
{
    double masters = space->request->zero.type == DTYPE_F32 ? 0 : sizeof(float);
    double bytes = 2 + 2 * (sizeof(float) + state - masters);
    double rate = space->machine->ops.rates[OPS_KIND_MEMORY].bytes_per_second;
    int shards = point->shard_group > 0 ? point->shard_group : point->dp;
    if (sharding_of(point->stage).optim)
        parameters /= shards;
    return rate > 0 ? parameters * bytes / rate : 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Bytes of the state that an offload leaves on the device. */
static double state_left(const struct search_space *space, const struct search_point *point,
                         const struct zero_offload *offload, struct sharding cut, double state,
                         const struct holding *held)
{
    const struct plan_request *request = space->request;
    struct zero_config store = request->zero;
    store.local = point->local;
    struct state_widths learned = plan_widths(&store), any = {.param = learned.param};
    learned.param = 0;
    any.param = plan_is_far(request, offload->params) ? 0 : any.param;
    learned.optimizer = plan_is_far(request, offload->optimizer) && offload->share > 0 ? 0 : state;
    learned.grad = plan_is_far(request, offload->grads) ? 0 : learned.grad;
    struct roster roster = roster_of(0, point->dp, store.servers);
    if (point->shard_group > 0)
        roster.copies = point->dp / point->shard_group;
    return formula_state(&roster, cut, held->parameters, any) +
           formula_state(&roster, cut, held->learned, learned);
}

/* At least what cannot leave, and what has no room elsewhere. */
static double state_bytes(const struct search_space *space, const struct search_point *point,
                          double state, const struct holding *held)
{
    struct zero_offload offload = search_offload(space), none = {0};
    struct sharding cut = sharding_of(point->stage);
    double left = state_left(space, point, &offload, cut, state, held);
    if (!search_may_offload(space))
        return left;
    cut.params = cut.params || plan_is_far(space->request, offload.params);
    double all = state_left(space, point, &none, cut, state, held);
    return fmax(left, all - (double)space->host - (double)space->disk);
}

static double activation_bytes(const struct search_space *space,
                               const struct bound_pp_stages *stages,
                               const struct search_point *point,
                               const struct timetable_shape *shape, int p)
{
    double bytes = 0;
    bool stay = !plan_is_far(space->request, space->request->engine.activations);
    for (int c = 0; stay && c < shape->chunks; c++)
        bytes += stages->activations[c * point->pp + p] *
                 (point->pp > 1 ? timetable_in_flight(shape, p, c) : 1);
    return bytes;
}

void bound_layout(const struct search_space *space, const struct bound_pp_stages *stages,
                  struct search_point *point)
{
    int64_t rounds = search_rounds(space, point);
    struct timetable_shape shape = shape_of(space, point);
    double sent = 0, update = 0, bytes = 0;
    for (int p = 0; p < point->pp; p++) {
        struct holding held = {.chunks = point->chunks};
        for (int s = p; s < stages->count; s += point->pp) {
            held.parameters += stages->parameters[s];
            held.learned += stages->learned[s];
            held.unread += stages->unread[s];
            held.most += stages->most[s];
            held.units += stages->units[s];
        }
        sent = fmax(sent, sent_seconds(space, point, &held, (double)rounds));
        update = fmax(update, update_seconds(space, point, stages->optimizer, held.learned));
        bytes = fmax(bytes, state_bytes(space, point, stages->optimizer, &held) +
                                activation_bytes(space, stages, point, &shape, p));
    }
    struct zero_offload offload = search_offload(space);
    double passes = pass_seconds(stages, point, (double)rounds);
    if (offload.optimizer == FAR_NONE && offload.grads == FAR_NONE && offload.params == FAR_NONE) {
        point->update = update;
        point->bound = fmax(passes, sent) + update;
    } else {
        point->update = 0;
        point->bound = fmax(passes + (offload.on_host ? 0 : update), sent);
    }
    point->bytes = (size_t)(bytes + (space->request->gpu ? formula_gpu_runtime() : 0));
}

/* --- the lists of a pipeline ------------------------------------------------------------------ */

enum { MOST_PASSES = 200000 }; /* for longer lists the sums are close enough */

/* Where params are sharded and a walk begins with other units than the previous one ended with,
 * compute waits for the first gather. */
static double first_gather(const struct search_space *space, const struct search_point *point,
                           double parameters)
{
    const struct zero_config *store = &space->request->zero;
    int shards = point->shard_group > 0 ? point->shard_group : point->dp;
    double bytes = parameters * (double)dtype_bytes(store->type);
    if (!sharding_of(point->stage).params || shards < 2 || store->servers > 0)
        return 0;
    return call_seconds(&space->machine->comm, shards, point->tp * point->pp, 1,
                        bytes * (shards - 1) / shards);
}

/* seconds (3, stages): of forward, backward-input and backward-weight passes. */
static void pass_costs(const struct search_space *space, const struct bound_pp_stages *stages,
                       const struct search_point *point, double *seconds)
{
    bool split = point->schedule == TIMETABLE_ZERO_BUBBLE;
    int count = stages->count;
    for (int s = 0; s < count; s++) {
        double wait = first_gather(space, point, stages->least[s]);
        seconds[s] = stages->forward[s] + wait;
        if (s == 0 && stages->units[s] == 1) /* backward does not read an embedding */
            wait = 0;
        seconds[count + s] = (split ? stages->input[s] : stages->backward[s]) + wait;
        seconds[2 * count + s] = split ? stages->weight[s] : 0;
    }
}

static struct timetable_costs costs_of(const struct search_space *space, double *seconds, int count,
                                       const struct search_point *point)
{
    const struct plan_request *request = space->request;
    double rows = (double)(point->micro_batch * request->engine.tokens);
    double bytes = rows / (point->sequence ? point->tp : 1) * (double)request->model.width *
                   (double)dtype_bytes(request->compute);
    struct timetable_costs costs =
        plan_message_costs(&space->machine->comm, point->pp, point->tp, bytes);
    costs.forward = seconds;
    costs.input = seconds + count;
    costs.weight = seconds + 2 * count;
    return costs;
}

enum status bound_simulate(struct env *env, const struct search_space *space,
                           const struct bound_pp_stages *stages, struct search_point *point)
{
    struct timetable_shape shape = shape_of(space, point);
    struct timetable table = {0};
    struct timetable_times times = {0};
    double *passes;
    enum status st;
    if (search_rounds(space, point) * stages->count > MOST_PASSES)
        return STATUS_OK;
    TRY(mem_alloc_array(env, MEM_OTHER, "search", 3 * (size_t)stages->count, sizeof *passes,
                        &passes));
    pass_costs(space, stages, point, passes);
    struct timetable_costs costs = costs_of(space, passes, stages->count, point);
    TRY_OR(done, timetable_create(env, &shape, &table));
    TRY_OR(done, timetable_simulate(env, &table, &costs, &times));
    point->bound = fmax(point->bound, times.end + point->update);
done:
    timetable_times_free(env, &times);
    timetable_free(env, &table);
    mem_free(env, passes);
    return st;
}
