/* pace -- measures step times: the median, and an estimate of the remaining time. Uses fixed memory
 * for any number of steps. */
#ifndef TRAIN_PACE_H
#define TRAIN_PACE_H
#include <stdint.h>
#include "base/env.h"

struct pace;

enum status pace_create(struct env *env, struct pace **pace);
void pace_destroy(struct pace *pace); /* NULL is fine */

/* Record a step that took `seconds` and ended at `now` on the monotonic clock. The first
 * PACE_WARMUP steps are not counted, because they touch pages and fill caches for the first
 * time. */
#define PACE_WARMUP 2
void pace_add(struct pace *pace, double seconds, double now);

double pace_median(struct pace *pace); /* seconds per step; NAN = no step counted */
/* Estimated seconds for `steps` more steps; NAN = not known. */
double pace_left(const struct pace *pace, int64_t steps, double now);

#endif
