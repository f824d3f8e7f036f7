/* gauges -- clock, power and temperature of a rank's GPU over a run.
 *
 * They are read between steps, and at most once a second: asking takes up to a few milliseconds, in
 * which the GPU rests, and power is a mean over about a second anyway. A reading stands until the
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
/* Clock and power on average and the highest temperature. */
struct device_gauges gauges_whole(const struct gauges *gauges);

bool gauges_known(const struct device_gauges *gauges); /* any of them */
/* "1755 MHz, 640 W, 61 C" into `out`, without what is not known. Returns out. */
char *gauges_words(const struct device_gauges *gauges, char *out, size_t bytes);

#endif
