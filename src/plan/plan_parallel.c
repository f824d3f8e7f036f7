/* plan_parallel -- checks that ranks, model and layout fit together, and suggests numbers that
 * would.
 *
 * The mesh knows the ranks, the model its sizes, the cut its units, and each refuses what it cannot
 * do. A number that one accepts another may refuse, so suggestions are made here, where everything
 * is known: every suggested number passes every check.
 */
#include <inttypes.h>
#include <stdio.h>
#include "plan/plan.h"

struct layout {
    const struct model_config *model;
    int ranks, tp, pp, chunks;
};

static bool tp_fits(const struct layout *l, int tp)
{
    return l->ranks % tp == 0 && model_can_split(l->model, tp);
}

/* Every chunk needs a unit; the embedding and the head are units, too. */
static bool pp_fits(const struct layout *l, int pp)
{
    int64_t units = l->model->layers + 2;
    bool possible = !model_limits(l->model->arch)->pp && pp <= units / l->chunks;
    return l->ranks / l->tp % pp == 0 && (pp == 1 || possible);
}

/* "2", or "2 or 4": the nearest numbers below and above `value` that fit. 1 always fits. */
static void suggest(const struct layout *l, bool fits(const struct layout *, int), int value,
                    char out[32])
{
    int below = value < l->ranks ? value : l->ranks, above = value;
    while (below > 1 && !fits(l, below))
        below--;
    while (above <= l->ranks && !fits(l, above))
        above++;
    if (above <= l->ranks)
        snprintf(out, 32, "%d or %d", below, above);
    else
        snprintf(out, 32, "%d", below);
}

static enum status refuse_tp(struct env *env, const struct layout *l)
{
    char others[32];
    int64_t size;
    const char *key = model_cannot_split(l->model, l->tp, &size);
    suggest(l, tp_fits, l->tp, others);
    if (l->tp > l->ranks)
        return FAIL(env, CONFIG,
                    "parallel.tp=%d needs %d ranks, but there %s %d; start more (-n) or try %s",
                    l->tp, l->tp, l->ranks == 1 ? "is" : "are", l->ranks, others);
    if (l->ranks % l->tp != 0)
        return FAIL(env, CONFIG, "parallel.tp=%d does not divide %d ranks; try %s", l->tp, l->ranks,
                    others);
    return FAIL(env, CONFIG,
                "parallel.tp=%d cannot split model.%s=%" PRId64 "%s; with %d ranks try %s", l->tp,
                key, size, model_split_reason(l->model, l->tp, key), l->ranks, others);
}

static enum status refuse_pp(struct env *env, const struct layout *l)
{
    char others[32], groups[64];
    int count = l->ranks / l->tp;
    suggest(l, pp_fits, l->pp, others);
    if (l->tp == 1)
        snprintf(groups, sizeof groups, "%d rank%s", count, count == 1 ? "" : "s");
    else
        snprintf(groups, sizeof groups, "%d group%s of parallel.tp=%d", count,
                 count == 1 ? "" : "s", l->tp);
    if (l->pp > count)
        return FAIL(env, CONFIG,
                    "parallel.pp=%d needs %d ranks or more, and there are %s; start more (-n) or "
                    "try %s",
                    l->pp, l->pp * l->tp, groups, others);
    if (count % l->pp != 0)
        return FAIL(env, CONFIG, "parallel.pp=%d does not divide %s; try %s", l->pp, groups,
                    others);
    if (l->chunks > 1)
        return FAIL(env, CONFIG,
                    "parallel.pp=%d with %d chunks per stage exceeds the %" PRId64
                    " units of the model; try parallel.pp=%s or fewer parallel.chunks",
                    l->pp, l->chunks, l->model->layers + 2, others);
    return FAIL(env, CONFIG, "parallel.pp=%d exceeds the %" PRId64 " units of the model; try %s",
                l->pp, l->model->layers + 2, others);
}

enum status plan_check_parallel(struct env *env, const struct model_config *model, int ranks,
                                const struct parallel_config *parallel)
{
    const struct layout l = {.model = model,
                             .ranks = ranks,
                             .tp = parallel->tp > 0 ? (int)parallel->tp : 1,
                             .pp = parallel->pp > 0 ? (int)parallel->pp : 1,
                             .chunks = parallel->pp > 1 ? spread_chunks(parallel) : 1};
    TRY(model_check_limits(env, model, false, l.tp, l.pp));
    if (!tp_fits(&l, l.tp))
        return refuse_tp(env, &l);
    return pp_fits(&l, l.pp) ? STATUS_OK : refuse_pp(env, &l);
}
