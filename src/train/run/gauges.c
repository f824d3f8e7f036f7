#include "train/run/gauges.h"
#include <math.h>
#include <stdio.h>
#include "base/clock.h"

static const double INTERVAL = 1.0; /* seconds */

void gauges_look(struct gauges *gauges, struct device *device)
{
    double now = clock_seconds();
    if (gauges->last > 0 && now - gauges->last < INTERVAL)
        return;
    gauges->last = now;
    device_read_gauges(device, &gauges->now);
    if (!gauges_known(&gauges->now))
        return;
    gauges->sum.clock_mhz += gauges->now.clock_mhz;
    gauges->sum.watts += gauges->now.watts;
    gauges->sum.celsius = fmax(gauges->sum.celsius, gauges->now.celsius);
    gauges->readings++;
}

struct device_gauges gauges_whole(const struct gauges *gauges)
{
    double n = gauges->readings > 0 ? (double)gauges->readings : 1;
    return (struct device_gauges){gauges->sum.clock_mhz / n, gauges->sum.watts / n,
                                  gauges->sum.celsius};
}

bool gauges_known(const struct device_gauges *gauges)
{
    return gauges->clock_mhz > 0 || gauges->watts > 0 || gauges->celsius > 0;
}

char *gauges_words(const struct device_gauges *gauges, char *out, size_t bytes)
{
    const struct {
        double value;
        const char *unit;
    } parts[] = {{gauges->clock_mhz, "MHz"}, {gauges->watts, "W"}, {gauges->celsius, "C"}};
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < 3; i++) {
        if (parts[i].value > 0 && used < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "%s%.0f %s", used > 0 ? ", " : "",
                                     parts[i].value, parts[i].unit);
    }
    return out;
}
