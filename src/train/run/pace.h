/* pace -- how long steps take: the median rate, and when the run will end. Fixed memory for any
 * number of steps. */
#ifndef TRAIN_PACE_H
#define TRAIN_PACE_H
#include <stdint.h>
#include "base/env.h"

struct pace;

enum status pace_create(struct env *env, struct pace **pace);
void pace_destroy(struct pace *pace); /* NULL is fine */

/* A step took `seconds` and ended at `now` on the monotonic clock. The first PACE_WARMUP steps
 * are not counted: pages are touched and caches filled in them. */
#define PACE_WARMUP 2
void pace_add(struct pace *pace, double seconds, double now);

double pace_median(struct pace *pace); /* seconds of a step; NAN = none counted */
double pace_left(const struct pace *pace, int64_t steps,
                 double now); /* seconds for `steps` more; NAN = not known */

#endif
