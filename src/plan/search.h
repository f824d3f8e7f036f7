/* search -- the layouts of a run that fit a cluster, fastest first.
 *
 * tp x pp x dp = ranks, with each ZeRO stage, micro-batch, recomputation and schedule: what the
 * request leaves open (search_space.fixed) is tried. A layout's time is plan_time's and its memory
 * plan.h's; a bound from below (search_bound.c) says which layouts need not be asked, so that a
 * hundred thousand ranks take seconds, and none that is faster is left out.
 *
 * A mesh (tp, pp) is shown once, by the fastest of its layouts that fits: the next lines are then
 * other ways to use the cluster, and not the same one with another detail. Where tp and pp are both
 * given, every layout counts by itself.
 */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H
#include "plan/plan_time.h"

/* What is not tried, but taken as the request has it. */
struct search_fixed {
    bool tp, pp, sequence, regather, stage, micro_batch, recompute, schedule, chunks, shard_group;
};

struct search_space {
    const struct plan_request *request; /* ranks, model, precision, what is fixed */
    int64_t global_batch;               /* sequences of a step: the same in every layout */
    const struct machine_profile *machine;
    int node;      /* ranks of a node: tp does not leave it */
    size_t memory; /* of a rank; 0: no limit */
    struct search_fixed fixed;
    int most;        /* layouts wanted */
    bool exhaustive; /* time every layout that fits: for tests of the bound */
};

struct search_layout {
    struct plan_request request;
    int dp;
    int64_t rounds; /* micro-batches of a copy of the model in a step */
    struct plan_time time;
    double bound;        /* seconds that it could not be faster than, before it was walked */
    size_t needed_bytes; /* of the rank that needs most */
    char why[200];       /* of the first: what it has over the next; of others: what they lose */
};

struct search_result {
    int64_t parameters;
    double flops_per_token;
    struct search_layout *layouts; /* fastest first */
    int count;
    int64_t possible;             /* layouts that divide ranks, model and batch; of these */
    int64_t too_large;            /* do not fit, by a bound or exactly */
    int64_t bounded;              /* cannot be faster than those that are told */
    int64_t timed;                /* were walked */
    int64_t refused;              /* the run would not take */
    struct search_layout nearest; /* when none fits: that which needs least; time is not set */
};

/* The caller frees *result. None that fits is not an error: count is 0. STATUS_CONFIG when there is
 * no layout at all, with the reason. */
enum status search_layouts(struct env *env, const struct search_space *space,
                           struct search_result *result);
void search_result_free(struct env *env, struct search_result *result);

/* Why the first is as it is, one reason a line: what it takes to fit, tp, pp or ZeRO, copies; and
 * what the next one would change. */
void search_explain(const struct search_space *space, const struct search_result *result,
                    struct text *text);

#endif
