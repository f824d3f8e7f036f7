/* advice -- finds the smallest change of a request that fits, in the order of what it costs:
 * traffic, then time, then money. Offload takes time: it is tried when nothing else fits.
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
                                .offload = request->zero.offload,
                                .stage = request->zero.stage,
                                .recompute = request->engine.recompute,
                                .prefetch = request->zero.prefetch,
                                .shard_group = request->zero.shard_group,
                                .micro_batch = request->engine.micro_batch,
                                .ranks = request->ranks};
}

/* What fits, and how it is tried. */
struct advising {
    struct env *env;
    const struct plan_room *room;
    bool offload; /* state may leave the device */
    struct plan_offload_fixed fixed;
};

static enum status try(const struct advising *a, struct plan_request *request, bool *yes)
{
    struct plan_request other = *request;
    struct plan_zero_stage stage;
    if (a->offload) {
        TRY(plan_offload(a->env, a->room, &a->fixed, &other, &stage, yes));
    } else {
        TRY(plan_worst_memory(a->env, &other, &stage));
        *yes = plan_fits(&stage, a->room);
    }
    if (*yes)
        *request = other;
    return STATUS_OK;
}

/* Try the request as it is, then without prefetch. If that fits, the request is changed. */
static enum status fits(const struct advising *a, struct plan_request *request, bool *yes)
{
    struct plan_request other = *request;
    TRY(try(a, request, yes));
    if (*yes || request->zero.prefetch == 0 || request->ranks == 1)
        return STATUS_OK;
    other.zero.prefetch = 0;
    TRY(try(a, &other, yes));
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

/* The same ranks. */
static enum status search(const struct advising *a, struct plan_request *request, bool *yes)
{
    int64_t whole = request->engine.micro_batch;
    TRY(fits(a, request, yes));
    while (!*yes && request->zero.shard_group > 0) {
        widen_group(request);
        TRY(fits(a, request, yes));
    }
    while (!*yes && request->engine.recompute < RECOMPUTE_FULL) {
        request->engine.recompute++;
        TRY(fits(a, request, yes));
    }
    while (!*yes && request->engine.micro_batch > 1) {
        shrink(request, whole);
        TRY(fits(a, request, yes));
    }
    return STATUS_OK;
}

static enum status search_all(struct advising *a, const struct plan_request *request,
                              struct plan_advice *advice)
{
    const struct zero_offload *asked = &request->zero.offload;
    struct plan_request plain = *request, offloaded = *request;
    bool yes;
    a->fixed = (struct plan_offload_fixed){.optimizer = asked->optimizer != FAR_NONE,
                                           .grads = asked->grads != FAR_NONE,
                                           .params = asked->params != FAR_NONE,
                                           .share = asked->optimizer != FAR_NONE};
    TRY(search(a, &plain, &yes));
    a->offload = !yes && plan_may_offload(request, a->room, &a->fixed);
    if (a->offload) {
        TRY(search(a, &offloaded, &yes));
        if (yes)
            plain = offloaded;
    }
    while (!yes && add_ranks(&plain))
        TRY(fits(a, &plain, &yes));
    *advice = yes ? advice_of(&plain) : (struct plan_advice){0};
    return STATUS_OK;
}

enum status plan_advise(struct env *env, const struct plan_request *request,
                        const struct plan *plan, const struct plan_room *room,
                        struct plan_advice *advice)
{
    struct plan_request other = *request;
    bool cuts = request->ranks > plan_spread_over(request);
    for (other.zero.stage = 0; other.zero.stage < PLAN_ZERO_STAGES; other.zero.stage++) {
        const struct plan_zero_stage *stage = &plan->stages[other.zero.stage];
        if (!cuts && other.zero.stage != request->zero.stage)
            continue;
        if (!stage->possible || !plan_fits(stage, room))
            continue;
        *advice = advice_of(&other);
        return STATUS_OK;
    }
    other.zero.stage = cuts ? PLAN_ZERO_STAGES - 1 : request->zero.stage;
    return search_all(&(struct advising){.env = env, .room = room}, &other, advice);
}
