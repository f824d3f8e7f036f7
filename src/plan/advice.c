/* advice -- finds the smallest change of a request that fits, in the order of what it costs:
 * traffic, then time, then money.
 *
 * Prefetching gathers (zero.prefetch) hides traffic and needs slots: at every point of the search
 * it is also tried without. Ranks are added only while each has a micro-batch. Where a single rank
 * has a whole copy of the model, or of its part of it, ZeRO stages shard nothing, and the requested
 * stage stays until there are more ranks.
 */
#include "plan/plan_impl.h"

enum { MOST_RANKS = 4096 };

static struct plan_advice advice_of(const struct plan_request *request)
{
    return (struct plan_advice){.found = true,
                                .stage = request->zero.stage,
                                .recompute = request->engine.recompute,
                                .prefetch = request->zero.prefetch,
                                .shard_group = request->zero.shard_group,
                                .micro_batch = request->engine.micro_batch,
                                .ranks = request->ranks};
}

/* Try the request as it is, then without prefetch. If that fits, the request is changed. */
static enum status fits(struct env *env, struct plan_request *request, size_t memory, bool *yes)
{
    struct plan_request other = *request;
    struct plan_zero_stage stage;
    TRY(plan_worst_memory(env, request, &stage));
    *yes = plan_fits(&stage, memory);
    if (*yes || request->zero.prefetch == 0 || request->ranks == 1)
        return STATUS_OK;
    other.zero.prefetch = 0;
    TRY(plan_worst_memory(env, &other, &stage));
    *yes = plan_fits(&stage, memory);
    if (*yes)
        *request = other;
    return STATUS_OK;
}

/* The next larger shard group that divides the ranks; 0 = all of them. */
static void widen_group(struct plan_request *request)
{
    int group = request->zero.shard_group + 1;
    while (request->ranks % group != 0)
        group++;
    request->zero.shard_group = group < request->ranks ? group : 0;
}

/* The next smaller micro-batch that divides `whole`, with the same number of sequences per step. */
static void shrink(struct plan_request *request, int64_t whole)
{
    struct engine_config *engine = &request->engine;
    int64_t sequences = engine->micro_batch * engine->micro_batches;
    do
        engine->micro_batch--;
    while (whole % engine->micro_batch != 0);
    engine->micro_batches = sequences / engine->micro_batch;
}

/* Double the ranks if all of them have a micro-batch. */
static bool add_ranks(struct plan_request *request)
{
    int64_t workers = request->ranks - request->zero.servers;
    if (2 * workers > request->engine.micro_batches || 2 * request->ranks > MOST_RANKS)
        return false;
    request->ranks *= 2;
    request->zero.stage = PLAN_ZERO_STAGES - 1;
    request->zero.servers *= 2;
    return true;
}

static enum status search(struct env *env, struct plan_request request, size_t memory,
                          struct plan_advice *advice)
{
    bool yes = false;
    int64_t whole = request.engine.micro_batch;
    TRY(fits(env, &request, memory, &yes));
    while (!yes && request.zero.shard_group > 0) {
        widen_group(&request);
        TRY(fits(env, &request, memory, &yes));
    }
    while (!yes && request.engine.recompute < RECOMPUTE_FULL) {
        request.engine.recompute++;
        TRY(fits(env, &request, memory, &yes));
    }
    while (!yes && request.engine.micro_batch > 1) {
        shrink(&request, whole);
        TRY(fits(env, &request, memory, &yes));
    }
    while (!yes && add_ranks(&request))
        TRY(fits(env, &request, memory, &yes));
    *advice = yes ? advice_of(&request) : (struct plan_advice){0};
    return STATUS_OK;
}

enum status plan_advise(struct env *env, const struct plan_request *request,
                        const struct plan *plan, size_t memory, struct plan_advice *advice)
{
    struct plan_request other = *request;
    bool cuts = request->ranks > plan_spread_over(request);
    for (other.zero.stage = 0; other.zero.stage < PLAN_ZERO_STAGES; other.zero.stage++) {
        const struct plan_zero_stage *stage = &plan->stages[other.zero.stage];
        if (!cuts && other.zero.stage != request->zero.stage)
            continue;
        if (!stage->possible || !plan_fits(stage, memory))
            continue;
        *advice = advice_of(&other);
        return STATUS_OK;
    }
    other.zero.stage = cuts ? PLAN_ZERO_STAGES - 1 : request->zero.stage;
    return search(env, other, memory, advice);
}
