/* plan -- reads the memory accounts and the traffic of ranks that were built on a dry device.
 *
 * Ranks with the same PP stage and the same role (worker or server) are a crew. They differ only in
 * what they own: all shards have the same length, but the copy of the state that a background save
 * makes has no padding, and tensors of one piece may have optimizers with different moments. So the
 * first rank, the last one and the one that owns the most bytes stand for a crew.
 */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan_impl.h"
#include "zero/partition.h"

/* --- one rank ------------------------------------------------------------------------------- */

static enum status run_step(const struct plan_parts *p, int number, int loop_votes)
{
    struct engine_result step;
    int64_t sum;
    TRY(engine_step(p->engine, number, 0.0, &step));
    for (int i = 0; i < loop_votes; i++)
        TRY(engine_vote(p->engine, 0, &sum));
    return zero_settle(p->zero);
}

/* Measure what a step sends and moves: the second one, because the first also fills the slots of
 * offloaded state. */
static enum status measure_step(const struct plan_parts *p, int loop_votes,
                                struct plan_rank *result)
{
    TRY(run_step(p, 1, loop_votes));
    struct traffic before = engine_traffic(p->engine);
    TRY(run_step(p, 2, loop_votes));
    struct traffic after = engine_traffic(p->engine);
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++) {
        result->sent[purpose] = after.sent[purpose] - before.sent[purpose];
        result->calls[purpose] = after.calls[purpose] - before.calls[purpose];
    }
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        result->moved[way] = after.moved[way] - before.moved[way];
    return STATUS_OK;
}

static void read_account(const struct mem *mem, bool gpu, struct plan_rank *result)
{
    struct mem_sums sums = mem_sums(mem, gpu ? MEM_GPU : MEM_HOST, false);
    memcpy(result->bytes, sums.bytes, sizeof result->bytes);
    result->total_bytes = sums.total_bytes;
    for (int location = 0; location < MEM_LOCATION_COUNT; location++) {
        sums = mem_sums(mem, (enum mem_location)location, false);
        result->state_bytes[location] =
            sums.bytes[MEM_PARAMS] + sums.bytes[MEM_GRADS] + sums.bytes[MEM_OPTIMIZER];
    }
    result->disk_bytes = mem_sums(mem, MEM_DISK, false).total_bytes;
    if (!gpu)
        return;
    result->host_bytes = mem_sums(mem, MEM_HOST, false).total_bytes;
    result->runtime_bytes = (size_t)formula_gpu_runtime();
}

/* What to find out about a rank in addition to its memory. */
struct look {
    bool traffic;        /* run a step and count what it sends */
    mem_visit_fn *visit; /* NULL: none */
    plan_graph_fn *graph;
    void *user;
    const struct plan_crew *crew; /* NULL: none */
    int largest;                  /* out: the rank of the crew that owns the most */
};

static size_t copied_bytes(const struct plan_parts *p, int rank)
{
    int tensors = model_graph(p->model)->tensor_count;
    size_t bytes = 0;
    for (int t = 0; t < tensors; t++)
        for (int s = 0; s < ZERO_STATES; s++) {
            enum zero_state state = (enum zero_state)s;
            struct zero_ranges ranges = zero_state_to_save(p->zero, state, t, rank);
            size_t width = dtype_bytes(zero_state_array(p->zero, state, t).type);
            for (int i = 0; i < ranges.count; i++)
                bytes += (size_t)ranges.at[i].count * width;
        }
    return bytes;
}

static int largest_of(const struct plan_parts *p, const struct plan_crew *crew, bool copies)
{
    size_t most = 0;
    int best = crew->first;
    bool vary = zero_moments_vary(p->zero);
    if (!vary && !copies)
        return best;
    for (int r = crew->first; r <= crew->last; r++) {
        if ((r - crew->first) % crew->over >= crew->tp_group)
            continue; /* it has another PP stage */
        size_t bytes = (vary ? zero_moments_of(p->zero, r) : 0) + (copies ? copied_bytes(p, r) : 0);
        if (bytes > most) {
            most = bytes;
            best = r;
        }
    }
    return best;
}

static enum status look_at_rank(struct env *env, const struct plan_request *request, int rank,
                                struct look *look, struct plan_rank *result)
{
    struct env own;
    struct plan_parts parts = {0};
    enum status st;
    TRY(plan_account_open(env, request->threads, &own));
    *result = (struct plan_rank){.rank = rank};
    TRY_OR(undo, plan_parts_build(&own, request, rank, NULL, &parts));
    result->roster = *zero_roster(parts.zero);
    result->p = parts.spread.mesh.p;
    result->part = spread_count(&parts.spread, parts.zero);
    if (look->traffic && (request->ranks > 1 || plan_moves_anything(request)))
        TRY_OR(undo, measure_step(&parts, request->loop_votes, result));
    read_account(own.mem, request->gpu, result);
    if (look->visit)
        mem_visit(own.mem, look->visit, look->user);
    if (look->graph)
        TRY_OR(undo, look->graph(look->user, &own, result, parts.spread.graph));
    if (look->crew)
        look->largest = largest_of(&parts, look->crew, request->zero.snapshot && !request->gpu);
undo:
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

enum status plan_rank(struct env *env, const struct plan_request *request, int rank,
                      struct plan_rank *result)
{
    return look_at_rank(env, request, rank, &(struct look){.traffic = true}, result);
}

enum status plan_rank_memory(struct env *env, const struct plan_request *request, int rank,
                             mem_visit_fn *visit, void *user, struct plan_rank *result)
{
    return look_at_rank(env, request, rank, &(struct look){.visit = visit, .user = user}, result);
}

enum status plan_rank_graph(struct env *env, const struct plan_request *request, int rank,
                            plan_graph_fn *look, void *user)
{
    struct plan_rank result;
    return look_at_rank(env, request, rank, &(struct look){.graph = look, .user = user}, &result);
}

enum status plan_look(struct env *env, const struct plan_request *request, plan_look_fn *look,
                      void *user)
{
    struct env own;
    struct plan_parts parts = {0};
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = plan_parts_model(&own, request, &parts);
    if (st == STATUS_OK)
        st = look(user, &own, model_graph(parts.model));
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

enum status plan_model(struct env *env, const struct plan_request *request, int64_t *parameters,
                       double *flops_per_token)
{
    struct env own;
    struct plan_parts parts = {0};
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = plan_parts_model(&own, request, &parts);
    if (st == STATUS_OK) {
        *parameters = unit_graph_count(model_graph(parts.model));
        *flops_per_token = model_flops_per_token(parts.model, request->engine.tokens);
    }
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

struct state_widths plan_widths(const struct zero_config *store)
{
    struct state_widths widths = store->type == DTYPE_F32 ? state_fp32 : state_mixed;
    widths.local = store->local ? (double)dtype_bytes(store->sum_type) : 0;
    return widths;
}

struct optimizers_look {
    const struct plan_request *request;
    struct plan_optimizers *result;
};

/* What the optimizer of a tensor that is not frozen adds; *state grows by the bytes of its state.
 */
static void add_optimizer(const struct zero_config *store, const struct unit_tensor *tensor,
                          double *state, struct plan_optimizers *result)
{
    struct optimizer optimizer = zero_optimizer_of(store, tensor);
    double masters = store->type == DTYPE_F32 ? 0 : sizeof(float);
    double bytes = masters + optimizer_bytes(&optimizer);
    *state += bytes * (double)unit_tensor_whole(tensor);
    result->least = fmin(result->least, bytes);
    result->muon |= optimizer.kind == OPTIMIZER_MUON;
}

static enum status look_at_optimizers(void *user, struct env *env, const struct unit_graph *graph)
{
    const struct optimizers_look *look = user;
    const struct zero_config *store = &look->request->zero;
    struct plan_optimizers *result = look->result;
    double all = (double)unit_graph_count(graph), learned = 0, state = 0;
    bool *frozen;
    TRY(mem_alloc_array(env, MEM_OTHER, "frozen pieces", (size_t)graph->piece_count, sizeof *frozen,
                        &frozen));
    unit_find_frozen(graph, frozen);
    *result = (struct plan_optimizers){.widths = plan_widths(store), .least = INFINITY};
    for (int p = 0; p < graph->param_count; p++) {
        const struct unit_param *param = &graph->params[p];
        if (frozen[param->piece])
            continue;
        learned += (double)unit_param_whole(graph, p);
        for (int t = param->first_tensor; t < param->first_tensor + param->tensor_count; t++)
            add_optimizer(store, &graph->tensors[t], &state, result);
    }
    result->widths.grad *= learned / all;
    result->widths.local *= learned / all;
    result->widths.optimizer = state / all;
    mem_free(env, frozen);
    return STATUS_OK;
}

enum status plan_optimizers(struct env *env, const struct plan_request *request,
                            struct plan_optimizers *result)
{
    struct optimizers_look look = {request, result};
    return plan_look(env, request, look_at_optimizers, &look);
}

/* --- all stages ----------------------------------------------------------------------------- */

size_t plan_state_bytes(const struct plan_rank *rank)
{
    size_t bytes = 0;
    for (int location = 0; location < MEM_LOCATION_COUNT; location++)
        bytes += rank->state_bytes[location];
    return bytes;
}

size_t plan_needed_bytes(const struct plan_rank *rank)
{
    return rank->total_bytes + rank->runtime_bytes;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct plan_room plan_needs(const struct plan_zero_stage *stage)
{
    const struct plan_rank *a = &stage->worker, *b = &stage->server;
    return (struct plan_room){.memory = larger(plan_needed_bytes(a), plan_needed_bytes(b)),
                              .host = larger(a->host_bytes, b->host_bytes),
                              .disk = larger(a->disk_bytes, b->disk_bytes)};
}

bool plan_fits(const struct plan_zero_stage *stage, const struct plan_room *room)
{
    struct plan_room needs = plan_needs(stage);
    return (room->memory == 0 || needs.memory <= room->memory) &&
           (room->host == 0 || needs.host <= room->host) &&
           (room->disk == 0 || needs.disk <= room->disk);
}

int plan_pp_stages(const struct plan_request *request)
{
    return request->parallel.pp > 0 ? (int)request->parallel.pp : 1;
}

int plan_tp(const struct plan_request *request)
{
    return request->parallel.tp > 0 ? (int)request->parallel.tp : 1;
}

/* --- crews ---------------------------------------------------------------------------------- */

/* The workers or servers of PP stage p. */
static struct plan_crew crew_of(const struct plan_request *request, int p, bool servers)
{
    int over = plan_spread_over(request), tp_group = plan_tp(request);
    int copies = request->ranks / over, workers = copies - (int)request->zero.servers;
    int first = servers ? workers : 0, last = servers ? copies - 1 : workers - 1;
    return (struct plan_crew){.first = first * over + p * tp_group,
                              .last = last * over + p * tp_group + tp_group - 1,
                              .over = over,
                              .tp_group = tp_group};
}

static void keep_worse(struct plan_rank *worst, const struct plan_rank *other)
{
    size_t host = larger(worst->host_bytes, other->host_bytes);
    size_t disk = larger(worst->disk_bytes, other->disk_bytes);
    if (other->total_bytes > worst->total_bytes)
        *worst = *other;
    worst->host_bytes = host;
    worst->disk_bytes = disk;
}

/* *worst = the rank of the crew that needs the most memory, with the part and the traffic of the
 * first rank. */
static enum status worst_of(struct env *env, const struct plan_request *request,
                            const struct plan_crew *crew, bool traffic, struct plan_rank *worst)
{
    struct look first = {.traffic = traffic, .crew = crew}, other = {0};
    struct plan_rank rank, sender;
    TRY(look_at_rank(env, request, crew->first, &first, &sender));
    *worst = sender;
    if (crew->last > crew->first) {
        TRY(look_at_rank(env, request, crew->last, &other, &rank));
        keep_worse(worst, &rank);
    }
    if (first.largest != crew->first && first.largest != crew->last) {
        TRY(look_at_rank(env, request, first.largest, &other, &rank));
        keep_worse(worst, &rank);
    }
    memcpy(worst->sent, sender.sent, sizeof sender.sent);
    memcpy(worst->calls, sender.calls, sizeof sender.calls);
    memcpy(worst->moved, sender.moved, sizeof sender.moved);
    worst->part = sender.part;
    return STATUS_OK;
}

/* workers (pp), may be NULL: the worst worker of each PP stage. */
static enum status worst_of_all(struct env *env, const struct plan_request *request, bool traffic,
                                struct plan_rank *workers, struct plan_zero_stage *result)
{
    for (int p = 0; p < plan_pp_stages(request); p++) {
        struct plan_crew crew = crew_of(request, p, false);
        struct plan_rank rank;
        TRY(worst_of(env, request, &crew, traffic, &rank));
        keep_worse(&result->worker, &rank);
        if (workers)
            workers[p] = rank;
        if (request->zero.servers == 0)
            continue;
        crew = crew_of(request, p, true);
        TRY(worst_of(env, request, &crew, traffic, &rank));
        keep_worse(&result->server, &rank);
    }
    return STATUS_OK;
}

enum status plan_worst_memory(struct env *env, const struct plan_request *request,
                              struct plan_zero_stage *result)
{
    *result = (struct plan_zero_stage){.possible = true};
    return worst_of_all(env, request, false, NULL, result);
}

/* --- activations ------------------------------------------------------------------------------ */

/* One TP group: one copy of the model without a pipeline, one micro-batch per step. */
static struct plan_request one_tp_group(struct plan_request request)
{
    const struct parallel_config *parallel = &request.parallel;
    request.ranks = plan_tp(&request);
    request.parallel = (struct parallel_config){.pp = 1,
                                                .tp = parallel->tp,
                                                .sequence = parallel->sequence,
                                                .regather = parallel->regather};
    request.zero.servers = request.zero.shard_group = 0;
    request.engine.micro_batches = 1;
    return request;
}

struct block_line { /* one line of a memory account */
    char name[UNIT_NAME];
    size_t bytes;
};

/* The first unit that is neither the first nor the last of the model; without one the name stays
 * empty. */
static enum status name_block(void *user, struct env *env, const struct unit_graph *graph)
{
    struct block_line *line = user;
    (void)env;
    if (graph->unit_count > 2)
        snprintf(line->name, sizeof line->name, "%s", graph->units[1].name);
    return STATUS_OK;
}

static void find_block(void *user, const struct mem_line *line)
{
    struct block_line *block = user;
    if (line->category == MEM_ACTIVATIONS && strcmp(line->name, block->name) == 0)
        block->bytes += line->bytes;
}

/* What a rank keeps on its device of a micro-batch from forward to backward, for every mode of recomputation: in
 * total, and for one block, which formula_activations predicts.
 * Activations depend on no other ranks except the PP stages and the TP group. */
static enum status find_activations(struct env *env, const struct plan_request *wanted,
                                    struct plan *plan)
{
    struct plan_request request = *wanted;
    int pp = plan_pp_stages(&request), tp = plan_tp(&request);
    struct plan_request tp_group = one_tp_group(request);
    struct block_line block = {0};
    TRY(plan_look(env, &request, name_block, &block));
    for (int r = 0; r < PLAN_RECOMPUTES; r++) {
        size_t *most = &plan->activation_bytes[r];
        struct plan_rank rank;
        request.engine.recompute = tp_group.engine.recompute = r;
        block.bytes = 0;
        tp_group.engine.activations = FAR_NONE; /* a block has memory of its own then */
        TRY(plan_rank_memory(env, &tp_group, 0, find_block, &block, &rank));
        plan->block_bytes[r] = block.bytes;
        tp_group.engine.activations = request.engine.activations;
        if (pp == 1 && request.engine.activations != FAR_NONE)
            TRY(plan_rank_memory(env, &tp_group, 0, NULL, NULL, &rank));
        if (pp == 1)
            *most = rank.bytes[MEM_ACTIVATIONS];
        for (int p = 0; pp > 1 && p < pp; p++) {
            TRY(plan_rank_memory(env, &request, p * tp, NULL, NULL, &rank));
            *most = rank.bytes[MEM_ACTIVATIONS] > *most ? rank.bytes[MEM_ACTIVATIONS] : *most;
        }
    }
    return STATUS_OK;
}

/* --- a whole plan ----------------------------------------------------------------------------- */

static enum status fill(struct env *env, const struct plan_request *request, struct plan *plan)
{
    TRY(plan_check_parallel(env, &request->model, request->ranks, &request->parallel));
    struct plan_optimizers optimizers;
    TRY(plan_model(env, request, &plan->parameters, &plan->flops_per_token));
    TRY(plan_optimizers(env, request, &optimizers));
    plan->widths = optimizers.widths;
    if (plan->rounds > 0)
        TRY(plan_pipe_make(env, request, plan->rounds, &plan->pipe));
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
        struct plan_zero_stage *result = &plan->stages[stage];
        struct plan_request one = *request;
        bool chosen = stage == request->zero.stage;
        bool needs_shards = request->zero.servers > 0 || request->zero.shard_group > 0;
        one.zero.stage = stage;
        result->possible = sharding_of(stage).optim || !needs_shards;
        if (result->possible || chosen) /* the store reports why a chosen stage is impossible */
            TRY(worst_of_all(env, &one, true, chosen ? plan->pipe.workers : NULL, result));
    }
    struct plan_request single = *request;
    struct plan_rank rank;
    single.parallel = (struct parallel_config){0};
    single = one_tp_group(single);
    TRY(plan_rank_memory(env, &single, 0, NULL, NULL, &rank));
    plan->unsharded_bytes = plan_state_bytes(&rank);
    return find_activations(env, request, plan);
}

enum status plan_make(struct env *env, const struct plan_request *request, struct plan *plan)
{
    int64_t micro_batches = request->engine.micro_batches;
    struct roster roster =
        roster_of(0, request->ranks / plan_spread_over(request), request->zero.servers);
    *plan = (struct plan){0};
    if (roster.workers > 0) { /* otherwise the store reports an error */
        plan->rounds = roster_rounds(&roster, micro_batches);
        plan->idle_workers =
            roster.workers - roster_active(&roster, micro_batches, plan->rounds - 1);
    }
    enum status st = fill(env, request, plan);
    if (st != STATUS_OK)
        plan_free(env, plan);
    return st;
}

void plan_free(struct env *env, struct plan *plan)
{
    plan_pipe_free(env, &plan->pipe);
}

/* --- closed formulas (formula.h) for a rank of a plan ----------------------------------------- */

static double rows_of(const struct plan_request *request)
{
    return (double)(request->engine.micro_batch * request->engine.tokens);
}

double plan_sent_formula(const struct plan_request *request, int64_t rounds,
                         const struct plan_rank *rank, int stage, enum traffic_purpose purpose)
{
    const struct zero_config *store = &request->zero;
    double stream =
        rows_of(request) * (double)request->model.width * (double)dtype_bytes(request->compute);
    bool rows = request->parallel.sequence && plan_tp(request) > 1;
    const struct spread_counts *part = &rank->part;
    const struct layers layers =
        formula_layers(part, &request->parallel, request->engine.recompute);
    const struct volume volume = {
        .parameters = (double)part->parameters,
        .frozen = (double)part->frozen,
        .once = (double)part->once,
        .rounds = rounds,
        .reductions = store->local ? 1 : rounds,
        .value = (double)dtype_bytes(store->type),
        .total = (double)dtype_bytes(store->sum_type),
        .muon = part->muon,
        .direction = (double)dtype_bytes(request->compute),
        .borrowed = (double)part->borrowed,
        .lent = (double)part->lent,
        .messages = spread_messages(&request->parallel, rank->p),
        .message_bytes = rows ? stream / plan_tp(request) : stream,
        .tp = plan_tp(request),
        .meetings = formula_meetings(&layers),
        .stream_bytes = stream,
        .loss_rows = part->last ? rows_of(request) : 0.0,
        .partial = part->partial,
        .norms = part->first && rank->roster.rank == roster_reduce_shard_rank(&rank->roster, 0)};
    return formula_sent(&rank->roster, plan_sharding(request, stage), &volume, purpose);
}

double plan_block_formula(const struct plan_request *request, int recompute)
{
    const struct activation_shape shape = {.tokens = (double)request->engine.tokens,
                                           .batch = (double)request->engine.micro_batch,
                                           .width = (double)request->model.width,
                                           .heads = (double)request->model.heads,
                                           .value = (double)dtype_bytes(request->compute),
                                           .tp = plan_tp(request),
                                           .sequence = request->parallel.sequence};
    return formula_activations(&shape, recompute);
}
