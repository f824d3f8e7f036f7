#include "cli/curve.h"
#include <math.h>
#include <string.h>

static void halve(struct curve *curve)
{
    for (int i = 0; i < CURVE_POINTS / 2; i++) {
        const struct plot_point *a = &curve->points[2 * i], *b = a + 1;
        curve->points[i] = (struct plot_point){(a->x + b->x) / 2, (a->y + b->y) / 2};
    }
    curve->count = CURVE_POINTS / 2;
    curve->stride *= 2;
}

static struct plot_point pending_mean(const struct curve *curve)
{
    return (struct plot_point){curve->sum.x / (double)curve->pending,
                               curve->sum.y / (double)curve->pending};
}

void curve_add(struct curve *curve, double x, double y)
{
    if (!isfinite(y))
        return;
    if (curve->stride == 0)
        curve->stride = 1;
    curve->sum.x += x;
    curve->sum.y += y;
    if (++curve->pending < curve->stride)
        return;
    struct plot_point mean = pending_mean(curve);
    curve->sum = (struct plot_point){0};
    curve->pending = 0;
    if (curve->count == CURVE_POINTS)
        halve(curve);
    curve->points[curve->count++] = mean;
}

int curve_points(const struct curve *curve, struct plot_point *out)
{
    int count = curve->count;
    memcpy(out, curve->points, (size_t)count * sizeof *out);
    if (curve->pending && count < CURVE_POINTS)
        out[count++] = pending_mean(curve);
    return count;
}
