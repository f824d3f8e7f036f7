/* run_noise -- the gradient noise scale that a run has measured, from its folder. */
#ifndef TRAIN_RUN_NOISE_H
#define TRAIN_RUN_NOISE_H
#include <stdint.h>
#include "base/env.h"

struct run_noise {
    double scale; /* in sequences; 0 = the run has measured none */
    int64_t step; /* after which it was measured */
};

/* The last noise_scale in metrics.jsonl, or else that of summary.json. The run may still be
 * running. STATUS_CONFIG if `folder` has neither file. */
enum status run_noise_find(struct env *env, const char *folder, struct run_noise *noise);

#endif
