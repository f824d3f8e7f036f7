/* search -- the layouts of a run that fit a cluster, fastest first.
 *
 * tp x pp x dp = ranks, with each ZeRO stage, micro-batch, recomputation and schedule: what the
 * request leaves open (search_space.fixed) is tried. A layout's time is plan_time's and its memory
 * plan.h's; a bound from below (plan_unit_costs) says which layouts need not be asked, so that a
 * hundred thousand ranks take seconds.
 */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H
#include "plan/plan_time.h"

/* What is not tried, but taken as the request has it. */
struct search_fixed {
    bool tp, pp, sequence, stage, micro_batch, recompute, schedule, chunks, shard_group;
};

struct search_space {
    const struct plan_request *request; /* ranks, model, precision, what is fixed */
    int64_t global_batch;               /* sequences of a step: the same in every layout */
    const struct machine_profile *machine;
    int node;      /* ranks of a node: tp does not leave it */
    size_t memory; /* of a rank */
    struct search_fixed fixed;
    int most; /* layouts wanted */
};

struct search_layout {
    struct plan_request request;
    int dp;
    int64_t rounds;
    struct plan_time time;
    size_t needed_bytes;
    int rank;      /* 0 is the fastest */
    char why[160]; /* what it has over the next, or what holds it back */
};

struct search_result {
    struct search_layout *layouts; /* fastest first */
    int count;
    int64_t possible, bounded, timed, too_large; /* layouts: that divide; left out by the bound;
                                                    walked; that do not fit */
    struct search_layout nearest;                /* when none fits: that which needs least */
};

/* The caller frees *result. None that fits is not an error: count is 0. */
enum status search_layouts(struct env *env, const struct search_space *space,
                           struct search_result *result);
void search_result_free(struct env *env, struct search_result *result);

#endif
