/* machine_fit -- the few figures of a profile that come nearest to what was measured.
 *
 * Nearest is by the sum of |log(predicted / measured)|: every measurement counts by its ratio, and
 * one that was disturbed counts once and not squared.
 */
#ifndef PLAN_MACHINE_FIT_H
#define PLAN_MACHINE_FIT_H
#include "plan/machine.h"

struct fit_call { /* of an op */
    double flops, bytes, seconds;
};
/* call + max(flops / flops_per_second, bytes / bytes_per_second). Without calls: all 0. */
struct ops_rate machine_fit_rate(const struct fit_call *calls, int count);

struct fit_message { /* a call between ranks, in which each sends `bytes` in `messages` */
    int messages;
    double bytes, seconds;
};
/* latency + messages * message + bytes / bytes_per_second. Where all have as many messages, what a
 * call takes beside its bytes is half latency and half its messages': two ranks cannot tell. */
struct comm_wire machine_fit_wire(const struct fit_message *calls, int count);

/* Predicted seconds over measured, at the worst: 1.2 is 20 % off, in either direction. */
double machine_fit_rate_error(struct ops_rate rate, const struct fit_call *calls, int count);
double machine_fit_wire_error(struct comm_wire wire, const struct fit_message *calls, int count);

/* The middle one of `count` values, which are put in order; the upper of two. */
double machine_fit_median(double *values, int count);

#endif
