/* machine_fit -- coordinate descent: one figure at a time is multiplied or divided by a factor,
 * which shrinks. There are at most three figures, and the sums are short. */
#include "plan/machine.h"
#include <math.h>
#include <stdlib.h>

enum { MOST_FIGURES = 3, MOST_ROUNDS = 10000 };

struct fit {
    const void *calls;
    int count;
    double (*ratio)(const double *figures, const void *calls, int index); /* predicted / measured */
};

static double total_error(const struct fit *fit, const double *figures)
{
    double sum = 0;
    for (int i = 0; i < fit->count; i++)
        sum += fabs(log(fit->ratio(figures, fit->calls, i)));
    return sum;
}

/* Multiply or divide one figure by `factor` if that reduces the error. */
static bool improve(const struct fit *fit, double *figure, const double *figures, double factor,
                    double *error)
{
    double before = *figure;
    for (int down = 0; down < 2; down++) {
        *figure = down ? before / factor : before * factor;
        double now = total_error(fit, figures);
        if (now < *error * (1 - 1e-9)) {
            *error = now;
            return true;
        }
    }
    *figure = before;
    return false;
}

static void descend(const struct fit *fit, double *figures, int figure_count)
{
    double factor = 2, error = total_error(fit, figures);
    for (int round = 0; round < MOST_ROUNDS && factor > 1.0005; round++) {
        bool better = false;
        for (int f = 0; f < figure_count; f++)
            better = improve(fit, &figures[f], figures, factor, &error) || better;
        if (!better)
            factor = sqrt(factor);
    }
}

static double worst_error(const struct fit *fit, const double *figures)
{
    double worst = 1;
    for (int i = 0; i < fit->count; i++) {
        double ratio = fit->ratio(figures, fit->calls, i);
        worst = fmax(worst, fmax(ratio, 1 / ratio));
    }
    return worst;
}

/* --- ops ------------------------------------------------------------------------------------ */

static double call_ratio(const double *figures, const void *calls, int index)
{
    const struct fit_call *c = (const struct fit_call *)calls + index;
    return (figures[0] + fmax(c->flops / figures[1], c->bytes / figures[2])) / c->seconds;
}

struct ops_rate machine_fit_rate(const struct fit_call *calls, int count)
{
    struct fit fit = {calls, count, call_ratio};
    double figures[MOST_FIGURES] = {INFINITY, 1, 1}; /* start with the best of each that was
                                                        measured */
    if (count == 0)
        return (struct ops_rate){0};
    for (int i = 0; i < count; i++) {
        figures[0] = fmin(figures[0], calls[i].seconds / 2);
        figures[1] = fmax(figures[1], calls[i].flops / calls[i].seconds);
        figures[2] = fmax(figures[2], calls[i].bytes / calls[i].seconds);
    }
    descend(&fit, figures, MOST_FIGURES);
    return (struct ops_rate){figures[0], figures[1], figures[2]};
}

double machine_fit_rate_error(struct ops_rate rate, const struct fit_call *calls, int count)
{
    struct fit fit = {calls, count, call_ratio};
    return worst_error(&fit, (double[]){rate.call, rate.flops_per_second, rate.bytes_per_second});
}

/* --- messages ------------------------------------------------------------------------------- */

static double message_ratio(const double *figures, const void *calls, int index)
{
    const struct fit_message *c = (const struct fit_message *)calls + index;
    return (figures[0] + c->bytes / figures[1] + c->messages * figures[2]) / c->seconds;
}

struct comm_wire machine_fit_wire(const struct fit_message *calls, int count)
{
    struct fit fit = {calls, count, message_ratio};
    double figures[MOST_FIGURES] = {INFINITY, 1, 0};
    bool differ = false;
    if (count == 0)
        return (struct comm_wire){0};
    for (int i = 0; i < count; i++) {
        figures[0] = fmin(figures[0], calls[i].seconds);
        figures[1] = fmax(figures[1], calls[i].bytes / calls[i].seconds);
        differ = differ || calls[i].messages != calls[0].messages;
    }
    if (differ) {
        figures[0] /= 2;
        figures[2] = figures[0] / calls[0].messages;
    }
    descend(&fit, figures, differ ? 3 : 2);
    if (!differ) {
        figures[0] /= 2;
        figures[2] = figures[0] / calls[0].messages;
    }
    return (struct comm_wire){figures[0], figures[2], figures[1]};
}

double machine_fit_wire_error(struct comm_wire wire, const struct fit_message *calls, int count)
{
    struct fit fit = {calls, count, message_ratio};
    return worst_error(&fit, (double[]){wire.latency, wire.bytes_per_second, wire.message});
}

/* --- many measurements ---------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double machine_fit_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[count / 2];
}
