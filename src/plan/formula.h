/* formula -- the ZeRO paper's arithmetic: model state and volume of one rank by stage, in closed
 * form.
 *
 * Psi parameters, no padding, no buffers: what a plan's exact figures are held against. A rank that
 * computes has whatever its stage does not cut; an owner has its share of what is cut.
 */
#ifndef PLAN_FORMULA_H
#define PLAN_FORMULA_H
#include "zero/roster.h"
#include "zero/zero.h"

/* Bytes of one parameter. */
struct state_widths {
    double param, grad, optimizer;
};
extern const struct state_widths state_fp32;  /* 4, 4 and 8: momentum and variance */
extern const struct state_widths state_mixed; /* 2, 2 and 12: a master copy too; the paper's K */

/* Bytes of params, gradients and optimizer state at `roster`'s rank. */
double formula_state(const struct roster *roster, int stage, double parameters,
                     struct state_widths widths);

/* Elements that the rank sends in a step of `rounds` micro-batches a worker, each reduced by itself.
 * Params are gathered once a step, or twice a micro-batch where they are cut. Of control there is
 * no formula: 0. */
double formula_sent(const struct roster *roster, int stage, double parameters, int64_t rounds,
                    enum zero_way way);

#endif
