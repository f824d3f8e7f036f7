/* schedule -- the end points are exact, not subject to rounding: t = warmup gives lr and t = steps
 * gives min_lr, so a printed curve has the numbers of the configuration.
 */
#include "train/config/schedule.h"
#include <math.h>
#include <stddef.h>

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
