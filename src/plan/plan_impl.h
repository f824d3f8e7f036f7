/* plan_impl -- ranks of a run built on a dry device. Private to src/plan. */
#ifndef PLAN_PLAN_IMPL_H
#define PLAN_PLAN_IMPL_H
#include "engine/timetable_simulate.h"
#include "plan/machine.h"
#include "plan/plan.h"

struct decoder;

struct plan_parts {
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct comm *comm; /* NULL: one rank */
    struct comm *save; /* for checkpoints in the background; NULL: none */
    struct model *model;
    struct spread spread;
    struct zero *zero;
    struct engine *engine;
    struct decoder *decoder;
};

/* The ranks r in first .. last with (r - first) % over < tp_group: all workers, or all servers, of
 * one PP stage. */
struct plan_crew {
    int first, last, over, tp_group;
};

/* The prices of calls, if time is kept. */
struct plan_clock {
    const struct machine_profile
        *machine;            /* borrowed; NULL: no time passes, calls of ops are only recorded */
    struct ops_meter *meter; /* borrowed */
};

/* Open a separate memory account, so that only the run is counted. mem_destroy(own->mem) ends it.
 */
enum status plan_account_open(const struct env *env, int threads, struct env *own);

/* Build a whole rank; `clock` NULL: no time passes. *p must be all zero. The caller frees it, also
 * after an error. */
enum status plan_parts_build(struct env *env, const struct plan_request *request, int rank,
                             const struct plan_clock *clock, struct plan_parts *p);
/* Build only the whole model. */
enum status plan_parts_model(struct env *env, const struct plan_request *request,
                             struct plan_parts *p);
void plan_parts_free(struct plan_parts *p);

/* A dry device, which keeps time if there is a clock. */
enum status plan_device_create(struct env *env, const struct plan_request *request,
                               const struct plan_clock *clock, struct device **device);

/* The part of the model that the first TP rank has. */
struct model_part plan_first_part(const struct plan_request *request);
/* Costs of messages between PP stages: of the slower wire if any stage is on another node. The
 * caller fills in the costs of passes. */
struct timetable_costs plan_message_costs(const struct comm_prices *prices, int pp, int tp,
                                          double bytes);
int plan_spread_over(const struct plan_request *request); /* ranks of one copy of the model */

/* --- a step of one rank: plan_step.c -------------------------------------------------------- */
/* One rank's store and engine run a step on a dry device that keeps time. The result says how long
 * each pass takes, and what the rank sends and waits for meanwhile.
 *
 * Two steps are simulated and the second counts, because it begins with what the first left in
 * flight. Rounds in the middle of a step are alike, so only some are simulated, and the one in the
 * middle stands for those that are left out:
 *
 *     rounds of the step     0 1 2 . . . . . . . . 61 62 63
 *     simulated rounds       0 1 2 (3 3 3 3 3 3)    4  5  6
 */
enum { PLAN_VERBS = TIMETABLE_WEIGHT + 1 }; /* kinds of passes */

/* What one rank spends between two points of a step. */
struct plan_account {
    double clock, spent;    /* seconds that passed, and those in which the rank computed */
    struct traffic traffic; /* `waited` without what the pipeline stalls */
};

struct plan_pass {
    double seconds;                 /* of the pass itself */
    struct plan_account until_next; /* from the beginning of the pass to that of the next */
};

struct plan_step {
    int rounds, simulated;      /* of the whole step, and of these simulated */
    int chunks;                 /* of the rank */
    struct plan_pass *passes;   /* (PLAN_VERBS, chunks, simulated) */
    struct plan_account before; /* until the first pass */
    struct plan_account judge;  /* from the last pass until all ranks know the norm */
    struct plan_account update; /* after that */
};

/* A step of `rounds` rounds and `workers` workers. The caller frees *step, also after an error. */
enum status plan_step_simulate(struct env *env, const struct plan_request *request,
                               const struct plan_clock *clock, int rank, int chunks, int rounds,
                               int workers, struct plan_step *step);
void plan_step_free(struct env *env, struct plan_step *step);
/* A pass of any round of the step. */
const struct plan_pass *plan_step_pass(const struct plan_step *step, int verb, int chunk,
                                       int round);
struct plan_account plan_step_sum(const struct plan_step *step); /* of the whole step */

#endif
