/* gauges -- clock, power and temperature of a rank's GPU over a run.
 *
 * They are read between steps, at most once a second: a query takes up to a few milliseconds, in
 * which the GPU idles, and power is a mean over about a second anyway. A reading is used until the
 * next one.
 */
#ifndef TRAIN_GAUGES_H
#define TRAIN_GAUGES_H
#include "device/device.h"

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

bool gauges_known(const struct device_gauges *gauges); /* at least one of the three */
/* "1755 MHz, 640 W, 61 C" into `out`, without unknown figures. Returns out. */
char *gauges_words(const struct device_gauges *gauges, char *out, size_t bytes);

#endif
