/* plan_time -- how long a step of a run takes, before it starts.
 *
 * Like memory and traffic (plan.h), time is read off the real store and engine on a dry device with
 * a dry communicator. Each call of an op or a collective advances its stream by the time it would
 * take (ops_price.h, comm_price.h), and streams wait for each other through events, so overlap is
 * simulated, not assumed. PP stages run one by one, and the timetable simulator puts their passes
 * together (timetable_simulate.h).
 */
#ifndef PLAN_PLAN_TIME_H
#define PLAN_PLAN_TIME_H
#include "plan/machine.h"
#include "plan/plan.h"

struct plan_time {
    double step;      /* seconds */
    double compute;   /* of these, passes and update of the rank that computes most */
    double in_flight; /* as in engine_traffic, of that rank */
    double waited;
    double update; /* after the last pass: norm, update, and their communication; an update that the
                      store defers counts as part of the passes */
    double bubble; /* idle / busy seconds of the pipeline: 0 without one */
    int64_t sent[TRAFFIC_PURPOSE_COUNT]; /* bytes of the rank that sends most */
    int64_t moved[TRAFFIC_WAY_COUNT];    /* the most that a rank moves of offloaded state */
};

double
plan_time_hidden(const struct plan_time *time); /* overlapped fraction of in_flight; 1 when nothing
                                                   is sent */

enum status plan_time(struct env *env, const struct plan_request *request,
                      const struct machine_profile *machine, struct plan_time *time);

/* The distinct calls of ops in a step of the request, so that they can be measured: of one rank of
 * each PP stage. The caller frees *cases with mem_free. */
enum status plan_time_calls(struct env *env, const struct plan_request *request,
                            struct ops_case **cases, int *count);

/* Seconds of a forward and a backward pass of each unit of the whole model, for a rank of a TP
 * group of tp, including the group's communication: a lower bound for any layout. The loss counts
 * as backward. */
struct plan_unit_cost {
    double forward, backward; /* with the request's recomputation */
    double input, weight;     /* of a split backward pass (zero-bubble) */
    size_t activation_bytes;  /* kept from forward to backward, per micro-batch */
    int64_t parameters;       /* this rank's part of those that no earlier unit uses */
    int64_t learned;          /* of these, those whose gradient it writes */
    int64_t unread;           /* of these, those that its backward pass does not read, if it reads
                                 others */
};
/* costs (units of the model): units of the same type and size have the same. The caller frees
 * *costs. */
enum status plan_unit_costs(struct env *env, const struct plan_request *request,
                            const struct machine_profile *machine, struct plan_unit_cost **costs,
                            int *count);

#endif
