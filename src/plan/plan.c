/* plan -- reads the accounts of ranks that are built on nothing (plan_parts.c).
 *
 * Ranks of a kind take the same memory but for what they own, and slices are all of one length: the
 * first and the last worker and one server stand for all.
 */
#include "plan/plan.h"

#include <string.h>

#include "plan/plan_impl.h"
#include "zero/partition.h"

/* --- one rank ------------------------------------------------------------------------------- */

/* What one step sends: start-up has sent things as well. */
static enum status walk_step(const struct plan_parts *p, int loop_votes, struct plan_rank *result)
{
    struct engine_result step;
    struct engine_traffic before = engine_traffic(p->engine);
    int64_t sum;
    TRY(engine_step(p->engine, 1, 0.0, &step));
    for (int i = 0; i < loop_votes; i++)
        TRY(engine_vote(p->engine, 0, &sum));
    struct engine_traffic after = engine_traffic(p->engine);
    for (int way = 0; way < ENGINE_WAYS; way++)
        result->sent[way] = after.sent[way] - before.sent[way];
    return STATUS_OK;
}

static void read_account(const struct mem *mem, bool card, struct plan_rank *result)
{
    struct mem_sums sums = mem_sums(mem, card ? MEM_CARD : MEM_HOST, false);
    memcpy(result->bytes, sums.bytes, sizeof result->bytes);
    result->total_bytes = sums.total_bytes;
    if (!card)
        return;
    result->host_bytes = mem_sums(mem, MEM_HOST, false).total_bytes;
    result->runtime_bytes = (size_t)formula_card_runtime();
}

static enum status measure(struct env *own, const struct plan_request *request, int rank, bool walk,
                           struct plan_rank *result, struct plan_parts *parts)
{
    *result = (struct plan_rank){0};
    TRY(plan_parts_build(own, request, rank, NULL, parts));
    result->roster = *zero_roster(parts->zero);
    result->p = parts->spread.mesh.p;
    result->part = spread_count(&parts->spread);
    if (walk && request->ranks > 1)
        TRY(walk_step(parts, request->loop_votes, result));
    read_account(own->mem, request->card, result);
    return STATUS_OK;
}

enum status plan_rank(struct env *env, const struct plan_request *request, int rank,
                      struct plan_rank *result)
{
    struct env own;
    struct plan_parts parts = {0};
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = measure(&own, request, rank, true, result, &parts);
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

enum status plan_rank_memory(struct env *env, const struct plan_request *request, int rank,
                             mem_visit_fn *visit, void *user, struct plan_rank *result)
{
    struct env own;
    struct plan_parts parts = {0};
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = measure(&own, request, rank, false, result, &parts);
    if (st == STATUS_OK && visit)
        mem_visit(own.mem, visit, user);
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

static enum status look_at_model(struct env *own, const struct plan_request *request,
                                 plan_look_fn *look, void *user)
{
    struct plan_parts parts = {0};
    enum status st = plan_parts_model(own, request, &parts);
    if (st == STATUS_OK)
        st = look(user, own, model_graph(parts.model));
    plan_parts_free(&parts);
    return st;
}

enum status plan_look(struct env *env, const struct plan_request *request, plan_look_fn *look,
                      void *user)
{
    struct env own;
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = look_at_model(&own, request, look, user);
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

/* --- all stages ----------------------------------------------------------------------------- */

size_t plan_state_bytes(const struct plan_rank *rank)
{
    return rank->bytes[MEM_PARAMS] + rank->bytes[MEM_GRADS] + rank->bytes[MEM_OPTIMIZER];
}

size_t plan_needed_bytes(const struct plan_rank *rank)
{
    return rank->total_bytes + rank->runtime_bytes;
}

bool plan_fits(const struct plan_stage *stage, size_t memory)
{
    return memory == 0 || (plan_needed_bytes(&stage->worker) <= memory &&
                           plan_needed_bytes(&stage->server) <= memory);
}

int plan_pipe_stages(const struct plan_request *request)
{
    return request->parallel.pp > 0 ? (int)request->parallel.pp : 1;
}

int plan_team(const struct plan_request *request)
{
    return request->parallel.tp > 0 ? (int)request->parallel.tp : 1;
}

/* The first and the last worker with stage p of the pipeline stand for all that have it, with their
 * first and last of tensor-parallel ranks. */
static enum status make_worker(struct env *env, const struct plan_request *request, int p,
                               struct plan_rank *worker)
{
    int over = plan_spread_over(request), workers = request->ranks / over - request->zero.servers;
    int tp = over / plan_pipe_stages(request), first = p * tp;
    struct plan_rank last;
    TRY(plan_rank(env, request, first, worker));
    if (workers * tp < 2)
        return STATUS_OK;
    TRY(plan_rank_memory(env, request, (workers - 1) * over + first + tp - 1, NULL, NULL, &last));
    memcpy(last.sent, worker->sent, sizeof last.sent);
    if (last.total_bytes > worker->total_bytes)
        *worker = last;
    return STATUS_OK;
}

static void keep_worse(struct plan_rank *worst, const struct plan_rank *other)
{
    if (other->total_bytes > worst->total_bytes)
        *worst = *other;
}

/* workers (NULL: not wanted): of each stage of the pipeline. */
static enum status make_stage(struct env *env, struct plan_request request, int stage,
                              struct plan_rank *workers, struct plan_stage *result)
{
    int pp = plan_pipe_stages(&request), over = plan_spread_over(&request);
    request.zero.stage = stage;
    for (int p = 0; p < pp; p++) {
        struct plan_rank rank;
        TRY(make_worker(env, &request, p, &rank));
        keep_worse(&result->worker, &rank);
        if (workers)
            workers[p] = rank;
        if (request.zero.servers == 0)
            continue;
        TRY(plan_rank(env, &request, request.ranks - over + p * (over / pp), &rank));
        keep_worse(&result->server, &rank);
    }
    return STATUS_OK;
}

enum status plan_worst_memory(struct env *env, const struct plan_request *request,
                              struct plan_stage *result)
{
    int pp = plan_pipe_stages(request), over = plan_spread_over(request);
    *result = (struct plan_stage){.possible = true};
    for (int p = 0; p < pp; p++) {
        struct plan_rank rank;
        int first = p * (over / pp);
        TRY(plan_rank_memory(env, request, first, NULL, NULL, &rank));
        keep_worse(&result->worker, &rank);
        if (request->zero.servers == 0)
            continue;
        TRY(plan_rank_memory(env, request, request->ranks - over + first, NULL, NULL, &rank));
        keep_worse(&result->server, &rank);
    }
    return STATUS_OK;
}

/* Without the others, and with one micro-batch a step. */
static struct plan_request alone(struct plan_request request)
{
    request.ranks = 1;
    request.parallel = (struct parallel_config){.pp = 1};
    request.zero.servers = request.zero.shard_group = 0;
    request.engine.micro_batches = 1;
    return request;
}

static enum status make_unsharded(struct env *env, struct plan_request request, struct plan *plan)
{
    struct plan_rank rank;
    TRY(plan_rank_memory(env, &request, 0, NULL, NULL, &rank));
    plan->unsharded_bytes = plan_state_bytes(&rank);
    return STATUS_OK;
}

/* Servers and groups need something that is cut. */
static bool is_possible(const struct zero_config *store, int stage)
{
    return sharding_of(stage).optim || (store->servers == 0 && store->shard_group == 0);
}

static enum status fill(struct env *env, const struct plan_request *request, struct plan *plan)
{
    TRY(plan_check_parallel(env, &request->model, request->ranks, &request->parallel));
    TRY(plan_model(env, request, &plan->parameters, &plan->flops_per_token));
    if (plan->rounds > 0)
        TRY(plan_pipe_make(env, request, plan->rounds, &plan->pipe));
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        struct plan_stage *result = &plan->stages[stage];
        bool chosen = stage == request->zero.stage;
        result->possible = is_possible(&request->zero, stage);
        if (result->possible || chosen) /* the store says why it is not */
            TRY(make_stage(env, *request, stage, chosen ? plan->pipe.workers : NULL, result));
    }
    TRY(make_unsharded(env, alone(*request), plan));
    return plan_activations_make(env, request, plan);
}

enum status plan_make(struct env *env, const struct plan_request *request, struct plan *plan)
{
    int64_t micro_batches = request->engine.micro_batches;
    struct roster roster =
        roster_of(0, request->ranks / plan_spread_over(request), request->zero.servers);
    *plan = (struct plan){0};
    if (roster.workers > 0) { /* if not, the store says so */
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
