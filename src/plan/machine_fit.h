/* machine_fit -- fits the few figures of a profile to measurements.
 *
 * The fit minimizes the sum of |log(predicted / measured)|: every measurement counts by its ratio,
 * and a disturbed one counts linearly, not squared.
 */
#ifndef PLAN_MACHINE_FIT_H
#define PLAN_MACHINE_FIT_H
#include "plan/machine.h"

struct fit_call { /* one call of an op */
    double flops, bytes, seconds;
};
/* seconds = call + max(flops / flops_per_second, bytes / bytes_per_second). Without calls: all 0.
 */
struct ops_rate machine_fit_rate(const struct fit_call *calls, int count);

struct fit_message { /* a collective in which each rank sends `bytes` in `messages` messages */
    int messages;
    double bytes, seconds;
};
/* seconds = latency + messages * message + bytes / bytes_per_second. If all calls have the same
 * number of messages, as with two ranks, latency and messages cannot be told apart: each gets half.
 */
struct comm_wire machine_fit_wire(const struct fit_message *calls, int count);

/* The worst ratio of predicted to measured seconds, or its inverse: 1.2 is 20 % off. */
double machine_fit_rate_error(struct ops_rate rate, const struct fit_call *calls, int count);
double machine_fit_wire_error(struct comm_wire wire, const struct fit_message *calls, int count);

/* The median of `count` values, which are sorted; the upper of two. */
double machine_fit_median(double *values, int count);

#endif
