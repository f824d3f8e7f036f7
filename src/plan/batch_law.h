/* batch_law -- how many steps and samples a run needs to reach the same loss with another batch.
 *
 * The law of McCandlish et al. 2018, "An Empirical Model of Large-Batch Training". With a batch of
 * b sequences and the gradient noise scale B:
 *
 *     steps    S(b) = S_min (1 + B / b)       S_min: as b grows without limit
 *     samples  E(b) = b S(b) = E_min (1 + b / B)        E_min = S_min B: as b approaches 0
 *
 * At b = B, the critical batch, both are twice their minimum. The law holds when the learning rate
 * suits each batch.
 */
#ifndef PLAN_BATCH_LAW_H
#define PLAN_BATCH_LAW_H
#include <stdint.h>

#include "base/status.h"

enum { BATCH_LAW_MOST = 1000000000 }; /* sequences: the limit of train.global_batch */

struct batch_law {
    double noise_scale; /* B, in sequences */
    double least_steps; /* S_min */
};

/* The law of a run that takes `steps` steps of `batch` sequences. */
struct batch_law batch_law_of(double noise_scale, int64_t batch, double steps);
double batch_law_steps(const struct batch_law *law, double batch);   /* S(b) */
double batch_law_samples(const struct batch_law *law, double batch); /* E(b) / E_min */

/* *seconds = the time of a step of `batch` sequences: INFINITY if no such step is possible. Among
 * the batches unit * 2^k it never falls as the batch grows. */
typedef enum status batch_seconds_fn(void *user, int64_t batch, double *seconds);

struct batch_choice {
    int64_t batch;        /* 0: no step is possible */
    double step, seconds; /* of one step, and to the same loss */
};

/* The batch with the shortest time to the same loss: `given`, or unit * 2^k for any k. Asks for the
 * time of a batch at most once, of `given` first, and only if the batch may be the best. */
enum status batch_law_best(const struct batch_law *law, int64_t given, int64_t unit,
                           batch_seconds_fn *ask, void *user, struct batch_choice *best);

#endif
