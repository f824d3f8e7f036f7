/* search -- the layouts of a run that fit a cluster, fastest first.
 *
 * tp x pp x dp = ranks, with each ZeRO stage, micro-batch, recomputation and schedule, and with
 * gradients sent after every micro-batch or once per step: everything that the request leaves open
 * (search_space.fixed) is tried. The time of a layout comes from
 * plan_time and its memory from plan.h. A lower bound (search_bound.c) tells which layouts need not
 * be simulated, so a search over a hundred thousand ranks takes seconds and still misses no faster
 * layout.
 *
 * Where a layout does not fit, as little of its state as possible goes to the host or the disk
 * (plan_offload), if the space has room there. Who updates that state and the window it passes
 * through are chosen for the layouts that are listed (search_tune.c).
 *
 * Each mesh (tp, pp) is listed once, with the fastest of its layouts that fits: the next lines then
 * show other ways to use the cluster rather than variations of one. If tp and pp are both fixed,
 * every layout is listed.
 */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H
#include "base/progress.h"
#include "plan/plan_time.h"

/* What is taken from the request and not varied. */
struct search_fixed {
    bool tp, pp, sequence, regather, stage, micro_batch, recompute, schedule, chunks, shard_group,
        accumulate, window, update, activations;
    struct plan_offload_fixed offload;
};

struct search_layout;
/* A layout that was simulated and was not found to be too large. `exact`: so is its memory;
 * otherwise it is a lower bound, since the layout is slower than those that are listed. */
typedef void search_visit_fn(void *user, const struct search_layout *layout, bool exact);

struct search_space {
    const struct plan_request *request; /* ranks, model, precision, and the values of what is fixed
                                           */
    int64_t global_batch;               /* sequences per step, the same in every layout */
    int64_t batch_divisor; /* micro-batches divide it, too: there are smaller steps; 0 = none */
    const struct machine_profile *machine;
    int node;          /* ranks per node; a TP group never spans nodes */
    size_t memory;     /* per rank; 0: no limit */
    size_t host, disk; /* per rank, for state that leaves the device; 0: none does */
    struct search_fixed fixed;
    int most;                   /* number of layouts wanted */
    bool exhaustive;            /* simulate every layout that fits: for tests of the bound */
    struct progress_task *task; /* of a caller that searches several spaces; NULL = own */
    search_visit_fn *visit;     /* may be NULL */
    void *user;
    bool optional; /* no layout, or none that fits, is a result like any other: nothing is
                        explained */
};

struct search_layout {
    struct plan_request request;
    int dp;
    int64_t rounds; /* micro-batches per copy of the model and step */
    struct plan_time time;
    double bound;                  /* its lower bound in seconds */
    size_t needed_bytes;           /* of the rank that needs the most */
    size_t host_bytes, disk_bytes; /* the same in other locations */
    double each;   /* of the first, if its workers sum locally: seconds of the same layout if
                            they did not; 0: not known */
    double device; /* of the first, if state has left the device: seconds of the same layout
                            if it had not; 0: not known */
    char why[200]; /* of the first: its advantage over the next; of others: what they lose */
};

struct search_result {
    int64_t parameters;
    double flops_per_token;
    struct state_widths widths;
    struct search_layout *layouts; /* fastest first */
    int count;
    int64_t possible;  /* layouts that divide ranks, model and batch; of these: */
    int64_t too_large; /* do not fit, by the bound or exactly */
    int64_t bounded;   /* cannot be faster than those listed */
    int64_t timed;     /* were simulated and fit */
    int64_t refused;   /* would be refused by the run */
    struct search_layout
        nearest; /* if none fits: the one for which the least is missing; its time is
                                     not set */
};

/* The caller frees *result. If no layout fits, count is 0, which is not an error. STATUS_CONFIG if
 * there is no layout at all, with the reason, unless that is optional. */
enum status search_layouts(struct env *env, const struct search_space *space,
                           struct search_result *result);
void search_result_free(struct env *env, struct search_result *result);

/* Explain the first layout, one reason per line: memory, tp, pp, ZeRO, copies; and what the next
 * layout would change. */
void search_explain(const struct search_space *space, const struct search_result *result,
                    struct text *text);

#endif
