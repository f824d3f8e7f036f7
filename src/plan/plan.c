/* plan -- builds ranks of a run on nothing and reads their accounts.
 *
 * Ranks of a kind take the same memory but for what they own, and slices are all of one length: the
 * first and the last worker and one server stand for all.
 */
#include "plan/plan.h"

#include <string.h>

#include "engine/decoder.h"
#include "zero/partition.h"

struct parts {
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct comm *comm; /* NULL: one rank */
    struct model *model;
    struct zero *zero;
    struct engine *engine;
    struct decoder *decoder;
};

/* --- one rank ------------------------------------------------------------------------------- */

static enum status build_model(struct env *env, const struct plan_request *request, struct parts *p)
{
    TRY(device_create(env, request->card ? "dry-card" : "dry", 0, &p->device));
    return model_create(p->device, &request->model, &p->model);
}

static enum status build(struct env *env, const struct plan_request *request, int rank,
                         struct parts *p)
{
    struct zero_config store = request->zero;
    store.micro_batches = request->engine.micro_batches;
    TRY(build_model(env, request, p));
    TRY(ops_create(p->device, request->ops, request->compute, &p->ops));
    TRY(stream_create(p->device, "compute", &p->stream));
    if (request->ranks > 1)
        TRY(comm_create_dry(p->device, rank, request->ranks, request->staged, &p->comm));
    const struct unit_graph *graph = model_graph(p->model);
    TRY(zero_create(p->ops, p->stream, p->comm, graph, &store, &p->zero));
    TRY(engine_create(p->ops, p->stream, graph, p->zero, &request->engine, &p->engine));
    if (request->decode_tokens == 0)
        return STATUS_OK;
    return decoder_create(p->ops, p->stream, graph, p->zero, request->decode_tokens,
                          request->decode_chunk, &p->decoder);
}

static void tear_down(struct parts *p)
{
    decoder_destroy(p->decoder);
    engine_destroy(p->engine);
    zero_destroy(p->zero);
    model_destroy(p->model);
    comm_destroy(p->comm);
    stream_destroy(p->stream);
    ops_destroy(p->ops);
    device_destroy(p->device);
}

/* What one step sends: start-up has sent things as well. */
static enum status walk_step(const struct parts *p, int loop_sums, struct plan_rank *result)
{
    struct engine_result step;
    int64_t sum;
    for (int way = 0; way < ZERO_WAY_COUNT; way++)
        result->sent[way] = -zero_counted(p->zero, (enum zero_way)way).bytes;
    TRY(engine_step(p->engine, 1, 0.0, &step));
    for (int i = 0; i < loop_sums; i++)
        TRY(engine_sum(p->engine, 0, &sum));
    for (int way = 0; way < ZERO_WAY_COUNT; way++)
        result->sent[way] += zero_counted(p->zero, (enum zero_way)way).bytes;
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

/* An account of its own, so that what is counted is the run's alone. */
static enum status open_account(const struct env *env, int threads, struct env *own)
{
    *own = (struct env){.log = env->log, .mem = mem_create(), .threads = threads};
    return own->mem ? STATUS_OK : STATUS_MEMORY;
}

static enum status measure(struct env *own, const struct plan_request *request, int rank, bool walk,
                           struct plan_rank *result, struct parts *parts)
{
    *result = (struct plan_rank){0};
    TRY(build(own, request, rank, parts));
    result->roster = *zero_roster(parts->zero);
    if (walk && request->ranks > 1)
        TRY(walk_step(parts, request->loop_sums, result));
    read_account(own->mem, request->card, result);
    return STATUS_OK;
}

enum status plan_rank(struct env *env, const struct plan_request *request, int rank,
                      struct plan_rank *result)
{
    struct env own;
    struct parts parts = {0};
    TRY(open_account(env, request->threads, &own));
    enum status st = measure(&own, request, rank, true, result, &parts);
    tear_down(&parts);
    mem_destroy(own.mem);
    return st;
}

enum status plan_rank_memory(struct env *env, const struct plan_request *request, int rank,
                             mem_visit_fn *visit, void *user, struct plan_rank *result)
{
    struct env own;
    struct parts parts = {0};
    TRY(open_account(env, request->threads, &own));
    enum status st = measure(&own, request, rank, false, result, &parts);
    if (st == STATUS_OK && visit)
        mem_visit(own.mem, visit, user);
    tear_down(&parts);
    mem_destroy(own.mem);
    return st;
}

enum status plan_model(struct env *env, const struct plan_request *request, int64_t *parameters,
                       double *flops_per_token)
{
    struct env own;
    struct parts parts = {0};
    TRY(open_account(env, request->threads, &own));
    enum status st = build_model(&own, request, &parts);
    if (st == STATUS_OK) {
        *parameters = unit_graph_count(model_graph(parts.model));
        *flops_per_token = model_flops_per_token(parts.model, request->engine.tokens);
    }
    tear_down(&parts);
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

static enum status make_stage(struct env *env, struct plan_request request, int stage,
                              struct plan_stage *result)
{
    int workers = request.ranks - request.zero.servers;
    request.zero.stage = stage;
    TRY(plan_rank(env, &request, 0, &result->worker));
    if (workers > 1) {
        struct plan_rank last;
        TRY(plan_rank_memory(env, &request, workers - 1, NULL, NULL, &last));
        memcpy(last.sent, result->worker.sent, sizeof last.sent);
        if (last.total_bytes > result->worker.total_bytes)
            result->worker = last;
    }
    if (request.zero.servers > 0)
        TRY(plan_rank(env, &request, request.ranks - 1, &result->server));
    return STATUS_OK;
}

/* Without the others, and with one micro-batch a step. */
static struct plan_request alone(struct plan_request request)
{
    request.ranks = 1;
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

/* Activations do not depend on who else there is. */
static enum status make_recomputes(struct env *env, struct plan_request request, struct plan *plan)
{
    struct plan_rank rank;
    for (int r = 0; r < PLAN_RECOMPUTES; r++) {
        request.engine.recompute = r;
        TRY(plan_rank_memory(env, &request, 0, NULL, NULL, &rank));
        plan->activation_bytes[r] = rank.bytes[MEM_ACTIVATIONS];
    }
    return STATUS_OK;
}

/* Servers and groups need something that is cut. */
static bool is_possible(const struct zero_config *store, int stage)
{
    return sharding_of(stage).optim || (store->servers == 0 && store->shard_group == 0);
}

enum status plan_make(struct env *env, const struct plan_request *request, struct plan *plan)
{
    int64_t micro_batches = request->engine.micro_batches;
    struct roster roster = roster_of(0, request->ranks, request->zero.servers);
    *plan = (struct plan){0};
    TRY(plan_model(env, request, &plan->parameters, &plan->flops_per_token));
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        struct plan_stage *result = &plan->stages[stage];
        result->possible = is_possible(&request->zero, stage);
        if (result->possible || stage == request->zero.stage) /* the store says why it is not */
            TRY(make_stage(env, *request, stage, result));
    }
    plan->rounds =
        roster_rounds(&roster, micro_batches); /* the store has seen that there are workers */
    plan->idle_workers = roster.workers - roster_active(&roster, micro_batches, plan->rounds - 1);
    TRY(make_unsharded(env, alone(*request), plan));
    return make_recomputes(env, alone(*request), plan);
}
