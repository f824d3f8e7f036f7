/* plan_time -- how long a step of a run takes, before it: the engine walks it on a device that keeps
 * time.
 *
 * As memory and traffic are (plan.h), time is read off the real store and engine, built on a dry
 * device with a dry communicator: each call of an op or of a collective spends on its stream what it
 * would take (ops_price.h, comm_price.h), streams wait for each other by their events, and so what is
 * hidden behind what is seen and not assumed. Stages of a pipeline are walked one by one, and the
 * simulator puts their passes together (timetable_simulate.h).
 */
#ifndef PLAN_PLAN_TIME_H
#define PLAN_PLAN_TIME_H
#include "plan/machine.h"
#include "plan/plan.h"

struct plan_time {
    double step;      /* seconds */
    double compute;   /* of these, of the rank that computes most: passes and update */
    double in_flight; /* as in engine_traffic, of that rank */
    double waited;
    double update; /* after the last pass: norm, update, and what is sent with it */
    double bubble; /* idle / busy seconds of the pipeline: 0 without one */
    int64_t sent[TRAFFIC_PURPOSE_COUNT]; /* bytes of the rank that sends most */
};

double
plan_time_hidden(const struct plan_time *time); /* share of in_flight; 1 when nothing is sent */

enum status plan_time(struct env *env, const struct plan_request *request,
                      const struct machine_profile *machine, struct plan_time *time);

/* The calls of ops that a step of the request makes, each once, for measuring them: the rank's of
 * each stage of the pipeline. The caller frees *cases with mem_free. */
enum status plan_time_calls(struct env *env, const struct plan_request *request,
                            struct ops_case **cases, int *count);

/* Seconds of a forward and backward pass of each unit of the whole model, for a rank of a group of
 * tp, with what it says in that group: a bound from below for any layout. The loss counts as
 * backward. */
struct plan_unit_cost {
    double forward, backward; /* with recomputation, as the request has it */
    double input, weight;     /* of a backward pass in two parts (zero-bubble) */
    size_t activation_bytes;  /* what a micro-batch leaves in it from forward to backward */
    int64_t parameters;       /* this rank's part, of those that no unit before it uses */
};
/* costs (units of the model): units of one type and size have the same. The caller frees *costs. */
enum status plan_unit_costs(struct env *env, const struct plan_request *request,
                            const struct machine_profile *machine, struct plan_unit_cost **costs,
                            int *count);

#endif
