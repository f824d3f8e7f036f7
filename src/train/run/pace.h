/* pace -- how fast a run goes: the rate of its steps (its median, and an estimate of the remaining
 * time), and the clock, power and temperature of a rank's GPU. Uses fixed memory for any number of
 * steps. */
#ifndef TRAIN_PACE_H
#define TRAIN_PACE_H
#include <stdint.h>
#include "base/env.h"
#include "device/device.h"

struct pace;

enum status pace_create(struct env *env, struct pace **pace);
void pace_destroy(struct pace *pace); /* NULL is fine */

/* Record a step of `tokens` tokens that took `seconds` and ended at `now` on the monotonic clock.
 * The first PACE_WARMUP steps are not counted, because they touch pages and fill caches for the
 * first time. */
#define PACE_WARMUP 2
void pace_add(struct pace *pace, int64_t tokens, double seconds, double now);

double pace_median(struct pace *pace); /* of steps, in tokens per second; NAN = none counted */
/* Estimated seconds for `tokens` more tokens; NAN = not known. */
double pace_left(const struct pace *pace, int64_t tokens, double now);

/* --- gauges --------------------------------------------------------------------------------- */

/* The gauges are read between steps, at most once a second: a query takes up to a few milliseconds,
 * in which the GPU idles, and power is a mean over about a second anyway. A reading is used until
 * the next one. */
struct gauges { /* open; zero-initialized */
    struct device_gauges now;
    struct device_gauges sum; /* over all readings; celsius: the maximum */
    int64_t readings;
    double last; /* time of the last reading (clock_seconds); 0 = never */
};

/* Read the gauges if the last reading is old enough. */
void gauges_look(struct gauges *gauges, struct device *device);
/* Mean clock and power over the run, and the highest temperature. */
struct device_gauges gauges_whole(const struct gauges *gauges);

/* "1755 MHz, 640 W, 61 C" into `out`, without unknown figures. Returns out. */
char *gauges_words(const struct device_gauges *gauges, char *out, size_t bytes);

#endif
