#include "plan/scaling.h"

#include <math.h>
#include <string.h>

/* --- with a machine --------------------------------------------------------------------------- */

enum { MOST_ASKED = 32 }; /* the given batch, and the powers of two up to BATCH_LAW_MOST */

struct asking { /* the batches of one row */
    struct env *env;
    struct search_space space;
    struct plan_request request; /* of the space */
    struct search_result *searched;
    struct search_layout *layouts; /* (MOST_ASKED) the fastest of each batch */
    int64_t batches[MOST_ASKED];
    int count;
};

static void add_search(const struct search_result *one, struct search_result *sum)
{
    sum->parameters = one->parameters;
    sum->flops_per_token = one->flops_per_token;
    sum->widths = one->widths;
    sum->possible += one->possible;
    sum->too_large += one->too_large;
    sum->bounded += one->bounded;
    sum->timed += one->timed;
    sum->refused += one->refused;
}

static enum status ask(void *user, int64_t batch, double *seconds)
{
    struct asking *a = user;
    struct search_result result;
    a->space.global_batch = batch;
    TRY(search_layouts(a->env, &a->space, &result));
    add_search(&result, a->searched);
    *seconds = result.count > 0 ? result.layouts[0].time.step : INFINITY;
    if (result.count > 0) {
        CHECK(a->count < MOST_ASKED);
        a->batches[a->count] = batch;
        a->layouts[a->count++] = result.layouts[0];
    }
    search_result_free(a->env, &result);
    return STATUS_OK;
}

static struct scaling_point point_of(const struct asking *a, const struct batch_law *law,
                                     int64_t batch)
{
    for (int i = 0; i < a->count; i++)
        if (a->batches[i] == batch)
            return (struct scaling_point){.batch = batch,
                                          .seconds = batch_law_steps(law, (double)batch) *
                                                     a->layouts[i].time.step,
                                          .layout = a->layouts[i]};
    return (struct scaling_point){0};
}

static enum status make_row(struct asking *a, const struct search_space *space,
                            const struct batch_law *law, struct scaling_row *row)
{
    struct batch_choice best;
    int64_t unit = row->ranks;
    while (unit % 2 == 0)
        unit /= 2;
    if (space->fixed.micro_batch)
        unit *= space->request->engine.micro_batch;
    a->count = 0;
    a->request = *space->request;
    a->request.ranks = row->ranks;
    a->space = *space;
    a->space.request = &a->request;
    a->space.most = 1;
    a->space.optional = true;
    TRY(batch_law_best(law, space->global_batch, unit, ask, a, &best));
    row->given = point_of(a, law, space->global_batch);
    row->best = point_of(a, law, best.batch);
    return STATUS_OK;
}

enum status scaling_make(struct env *env, const struct search_space *space,
                         const struct batch_law *law, struct scaling *scaling)
{
    struct progress_task task;
    struct search_space shown = *space;
    struct asking a = {.env = env, .searched = &scaling->searched};
    int64_t ranks = space->request->ranks;
    *scaling = (struct scaling){0};
    for (int64_t n = 1; n < ranks; n *= 2)
        scaling->rows[scaling->count++].ranks = (int)n;
    scaling->rows[scaling->count++].ranks = (int)ranks;
    enum status st =
        mem_alloc_array(env, MEM_OTHER, "scaling", MOST_ASKED, sizeof *a.layouts, &a.layouts);
    progress_begin(&task, "searching", "numbers of ranks", (uint64_t)scaling->count);
    shown.task = &task;
    for (int i = 0; st == STATUS_OK && i < scaling->count; i++) {
        progress_reach(env, &task, (uint64_t)i);
        st = make_row(&a, &shown, law, &scaling->rows[i]);
        scaling->fits = scaling->fits || scaling->rows[i].best.batch > 0;
    }
    progress_end(env, &task);
    mem_free(env, a.layouts);
    return st;
}

/* --- without a machine ------------------------------------------------------------------------ */

void scaling_grow(const struct plan_request *request, struct scaling *scaling)
{
    int64_t micro = request->engine.micro_batch, ranks = request->ranks;
    int64_t batch = micro * request->engine.micro_batches;
    int64_t copy = (int64_t)plan_tp(request) * plan_pp_stages(request);
    int64_t least = copy * (1 + request->zero.servers); /* of ranks */
    int64_t most = ranks > SCALING_RANKS ? ranks : SCALING_RANKS;
    *scaling = (struct scaling){.fits = true};
    while (ranks % 2 == 0 && ranks / 2 >= least && batch % (2 * micro) == 0) {
        ranks /= 2;
        batch /= 2;
    }
    for (; ranks <= most && batch <= BATCH_LAW_MOST; ranks *= 2, batch *= 2)
        scaling->rows[scaling->count++] =
            (struct scaling_row){.ranks = (int)ranks, .best.batch = batch};
}

/* --- what it says ----------------------------------------------------------------------------- */

int scaling_enough(const struct scaling *scaling, const struct batch_law *law, double share)
{
    const struct scaling_row *last = NULL;
    double last_cost = 0;
    for (int i = 0; i < scaling->count; i++) {
        const struct scaling_row *row = &scaling->rows[i];
        const struct scaling_point *best = &row->best;
        double cost = best->seconds > 0 ? best->seconds : batch_law_steps(law, (double)best->batch);
        if (best->batch == 0)
            continue;
        /* the last row may have less than twice the ranks of the row before */
        if (last && cost > last_cost * pow(1 - share, log2((double)row->ranks / last->ranks)))
            return last->ranks;
        last = row;
        last_cost = cost;
    }
    return 0;
}
