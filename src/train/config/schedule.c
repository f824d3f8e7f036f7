/* schedule -- the end points are exact, not subject to rounding: t = warmup gives lr and t = steps
 * gives min_lr, so a printed curve has the numbers of the configuration.
 */
#include "train/config/schedule.h"
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include "base/clock.h"
#include "comm/launcher.h"

const char *const schedule_words[] = {"constant", "linear", "cosine", "wsd", NULL};

static const double pi = 3.14159265358979323846;

/* Linear interpolation: `from` at share 0, `to` at share 1, exact at both ends. */
static double mix(double from, double to, double share)
{
    return share <= 0 ? from : share >= 1 ? to : from + (to - from) * share;
}

/* The position of t between `first` and `last`, 0 to 1. */
static double share_between(int64_t first, int64_t last, int64_t t)
{
    if (t <= first)
        return 0;
    return t >= last ? 1 : (double)(t - first) / (double)(last - first);
}

double schedule_lr(const struct schedule *s, int64_t t)
{
    if (t > s->steps)
        t = s->steps;
    if (t < s->warmup)
        return s->lr * ((double)t / (double)s->warmup);

    int64_t top = s->warmup > 1 ? s->warmup : 1; /* the step with the peak rate */
    switch (s->kind) {
    case SCHEDULE_LINEAR: return mix(s->lr, s->min_lr, share_between(top, s->steps, t));
    case SCHEDULE_COSINE: {
        double share = share_between(top, s->steps, t);
        return mix(s->lr, s->min_lr, share >= 1 ? 1 : 0.5 * (1 - cos(pi * share)));
    }
    case SCHEDULE_WSD: {
        int64_t fall = s->steps - s->decay;
        return mix(s->lr, s->min_lr, share_between(fall > top ? fall : top, s->steps, t));
    }
    default: return s->lr;
    }
}

/* --- deadline ------------------------------------------------------------------------------- */

static const double SPARE_SECONDS =
    60; /* margin before the end of a job, for everything that is not measured */

static double unit_seconds(char unit)
{
    switch (unit) {
    case 'd': return 86400;
    case 'h': return 3600;
    case 'm': return 60;
    case 's': return 1;
    default: return 0;
    }
}

bool deadline_parse(const char *text, double *seconds)
{
    double last = INFINITY; /* units must be in descending order */
    *seconds = 0;
    while (*text) {
        char *end;
        if (!isdigit((unsigned char)*text))
            return false;
        double number = strtod(text, &end), unit = unit_seconds(*end);
        if (*end == '\0' && isinf(last))
            unit = 1;
        if (unit == 0 || unit >= last || !isfinite(number))
            return false;
        *seconds += number * unit;
        last = unit;
        text = *end ? end + 1 : end;
    }
    return true;
}

struct deadline deadline_start(const char *max_time)
{
    struct deadline deadline = {INFINITY, INFINITY};
    double seconds = 0, end = launcher_slurm_end_time();
    if (deadline_parse(max_time, &seconds) && seconds > 0)
        deadline.limit = clock_seconds() + seconds;
    if (end > clock_wall()) /* a time in the past belongs to another job */
        deadline.end = clock_seconds() + end - clock_wall();
    return deadline;
}

bool deadline_over(const struct deadline *deadline, double seconds)
{
    double now = clock_seconds();
    return now >= deadline->limit || now + seconds + SPARE_SECONDS >= deadline->end;
}
