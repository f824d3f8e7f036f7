/* pace -- the median is computed from stored rates of steps. When the array is full, every second
 * one is dropped, and the sampling interval doubles; so the stored rates always cover the whole run
 * evenly. The remaining time is estimated from elapsed time, which includes evaluations and text
 * samples, because they will recur. Everything is per token, because steps may differ in size.
 */
#include "train/run/pace.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/clock.h"

enum { ROOM = 4096 };

struct pace {
    struct env *env; /* borrowed */
    int64_t steps;   /* seen */
    int64_t tokens;  /* of the steps that count */
    int64_t stride;  /* one in `stride` steps is stored */
    int count;
    double start; /* end of the warm-up */
    double kept[ROOM];
    double sorted[ROOM];
};

enum status pace_create(struct env *env, struct pace **pace)
{
    TRY(mem_alloc(env, MEM_OTHER, "step rates", sizeof **pace, pace));
    (*pace)->env = env;
    (*pace)->stride = 1;
    return STATUS_OK;
}

void pace_destroy(struct pace *pace)
{
    if (pace != NULL)
        mem_free(pace->env, pace);
}

void pace_add(struct pace *pace, int64_t tokens, double seconds, double now)
{
    int64_t counted = pace->steps++ - PACE_WARMUP;
    if (counted < 0) {
        pace->start = now;
        return;
    }
    pace->tokens += tokens;
    if (counted % pace->stride != 0)
        return;
    if (pace->count == ROOM) { /* drop every second one */
        for (int i = 0; i < ROOM / 2; i++)
            pace->kept[i] = pace->kept[2 * i];
        pace->count = ROOM / 2;
        pace->stride *= 2;
    }
    if (counted % pace->stride == 0)
        pace->kept[pace->count++] = (double)tokens / seconds;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double pace_median(struct pace *pace)
{
    int n = pace->count;
    if (n == 0)
        return NAN;
    for (int i = 0; i < n; i++)
        pace->sorted[i] = pace->kept[i];
    qsort(pace->sorted, (size_t)n, sizeof *pace->sorted, compare);
    return 0.5 * (pace->sorted[(n - 1) / 2] + pace->sorted[n / 2]);
}

double pace_left(const struct pace *pace, int64_t tokens, double now)
{
    return pace->tokens < 1 ? NAN : (now - pace->start) / (double)pace->tokens * (double)tokens;
}

/* --- gauges --------------------------------------------------------------------------------- */

static const double INTERVAL = 1.0; /* seconds */

void gauges_look(struct gauges *gauges, struct device *device)
{
    double now = clock_seconds();
    if (gauges->last > 0 && now - gauges->last < INTERVAL)
        return;
    gauges->last = now;
    device_read_gauges(device, &gauges->now);
    if (gauges->now.clock_mhz <= 0 && gauges->now.watts <= 0 && gauges->now.celsius <= 0)
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
