/* gauges -- clock, power and temperature of a rank's GPU over a run.
 *
 * They are read between steps, at most once a second: a query takes up to a few milliseconds, in
 * which the GPU idles, and power is a mean over about a second anyway. A reading is valid until the
 * next.
 */
#ifndef TRAIN_GAUGES_H
#define TRAIN_GAUGES_H
#include "device/device.h"

struct gauges { /* open; begins all zero */
    struct device_gauges now;
    struct device_gauges sum; /* of all readings; celsius: the highest */
    int64_t readings;
    double last; /* when, in seconds; 0 = never */
};

void gauges_look(struct gauges *gauges, struct device *device);
/* Mean clock and power, and the highest temperature. */
struct device_gauges gauges_whole(const struct gauges *gauges);

bool gauges_known(const struct device_gauges *gauges); /* any of the three is */
/* "1755 MHz, 640 W, 61 C" into `out`, without unknown figures. Returns out. */
char *gauges_words(const struct device_gauges *gauges, char *out, size_t bytes);

#endif
