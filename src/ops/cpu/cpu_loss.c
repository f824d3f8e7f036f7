/* cpu_loss -- softmax cross-entropy over rows of logits, with its gradient written over them.
 *
 * A row is read three times while it is in cache: for its maximum; for exp(x - max), stored in
 * place if the gradient is requested, and its sum; for the scaling. Each element costs one exp.
 * Sums are float within a chunk of columns and double over the chunks, so that a loss over 50,000
 * columns is accurate to 1e-7. If the columns of a row are split over ranks, each rank sums its own
 * columns relative to its own maximum, and needs a second exp for the gradient, relative to the
 * maximum of the whole row.
 *
 * With a cap, a chunk of columns is capped into a buffer each time it is read, so that the gradient
 * still finds the logits; the cap does not change which one is largest.
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

#define CHUNK 1024 /* columns summed in floats */

/* One logit after the cap; and the slope of the cap there. */
static float capped(struct logits l, float x)
{
    if (l.cap > 0)
        v_row_softcap(&x, &x, (float)l.cap, 1);
    return x;
}

static float cap_slope(struct logits l, float y)
{
    float slope = 1;
    if (l.cap > 0)
        v_row_softcap_slope(&slope, &y, (float)l.cap, 1);
    return slope;
}

/* The sum of exp(y - shift) of the capped logits y; with `keep`, these values, times the slope of
 * the cap, overwrite x. */
static double row_exp(struct logits l, float shift, bool keep, float *x)
{
    double sum = 0;
    float buffer[CHUNK];
    for (int64_t i = 0; i < l.vocab; i += CHUNK) {
        int64_t n = min64(CHUNK, l.vocab - i);
        const float *y = l.cap > 0 ? buffer : x + i;
        if (l.cap > 0)
            v_row_softcap(buffer, x + i, (float)l.cap, n);
        sum += (double)v_row_exp(keep ? x + i : NULL, y, shift, n);
        if (keep && l.cap > 0)
            v_row_softcap_slope(x + i, buffer, (float)l.cap, n);
    }
    return sum;
}

static double row_loss(struct logits l, int32_t label, bool gradient, float loss_scale, float *x)
{
    float max = capped(l, v_row_max(x, l.vocab)), wanted = capped(l, x[label]);
    double sum = row_exp(l, max, gradient, x);
    if (gradient) {
        float factor = (float)((double)loss_scale / sum);
        for (int64_t i = 0; i < l.vocab; i++)
            x[i] *= factor;
        x[label] -= loss_scale * cap_slope(l, wanted);
    }
    return log(sum) + (double)max - (double)wanted;
}

static void loss_thread(struct logits l, int64_t rows, const struct cross_entropy *a)
{
    float loss_scale = a->gradient ? a->scalars->loss_scale : 0.0f;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *x = (float *)a->logits + r * l.stride; /* (V) */
        if (a->labels[r] >= 0) {
            a->losses[r] = row_loss(l, a->labels[r], a->gradient, loss_scale, x);
            continue;
        }
        a->losses[r] = 0;
        if (a->gradient)
            memset(x, 0, (size_t)l.vocab * sizeof(float));
    }
}

void cpu_cross_entropy(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                       const struct cross_entropy *a)
{
    IN_THREADS(cpu_threads(ops, rows * l.vocab), loss_thread(l, rows, a));
}

/* --- in two halves, for columns that are split over ranks ----------------------------------- */

static void part_thread(struct logits l, int64_t rows, const int32_t *labels, const float *logits,
                        double *parts)
{
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *x = (float *)logits + r * l.stride; /* only read */
        float max = capped(l, v_row_max(x, l.vocab));
        int64_t label = labels[r] - l.first_id;
        parts[r * OPS_LOSS_PART] = (double)max;
        parts[r * OPS_LOSS_PART + 1] = row_exp(l, max, false, x);
        parts[r * OPS_LOSS_PART + 2] =
            label >= 0 && label < l.vocab ? (double)capped(l, x[label]) : 0;
    }
}

void cpu_cross_entropy_part(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            const int32_t *labels, const void *logits, double *parts)
{
    IN_THREADS(cpu_threads(ops, rows * l.vocab), part_thread(l, rows, labels, logits, parts));
}

/* Join the parts of a row, which are `stride` apart: returns its loss; *max is its largest logit,
 * *sum the sum of exp(logit - *max). */
static double join_parts(const double *part, int64_t stride, int ranks, double *max, double *sum)
{
    double wanted = 0;
    *max = part[0];
    *sum = 0;
    for (int k = 1; k < ranks; k++)
        *max = part[k * stride] > *max ? part[k * stride] : *max;
    for (int k = 0; k < ranks; k++) {
        *sum += part[k * stride + 1] * exp(part[k * stride] - *max);
        wanted += part[k * stride + 2];
    }
    return log(*sum) + *max - wanted;
}

static void row_gradient(struct logits l, int64_t label, double max, double sum, float loss_scale,
                         float *x)
{
    float factor = (float)((double)loss_scale / sum);
    bool here = label >= 0 && label < l.vocab;
    float wanted = here ? capped(l, x[label]) : 0;
    row_exp(l, (float)max, true, x);
    for (int64_t i = 0; i < l.vocab; i++)
        x[i] *= factor;
    if (here)
        x[label] -= loss_scale * cap_slope(l, wanted);
}

static void join_thread(struct logits l, int64_t rows, int ranks, const double *parts,
                        const struct cross_entropy *a)
{
    float loss_scale = a->gradient ? a->scalars->loss_scale : 0.0f;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        double max, sum;
        float *x = (float *)a->logits + r * l.stride; /* (V) */
        double loss =
            join_parts(parts + r * OPS_LOSS_PART, rows * OPS_LOSS_PART, ranks, &max, &sum);
        a->losses[r] = a->labels[r] >= 0 ? loss : 0;
        if (a->gradient && a->labels[r] >= 0)
            row_gradient(l, a->labels[r] - l.first_id, max, sum, loss_scale, x);
        else if (a->gradient)
            memset(x, 0, (size_t)l.vocab * sizeof(float));
    }
}

void cpu_cross_entropy_join(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            int ranks, const double *parts, const struct cross_entropy *a)
{
    IN_THREADS(cpu_threads(ops, rows * l.vocab), join_thread(l, rows, ranks, parts, a));
}

/* --- decoding ------------------------------------------------------------------------------- */

static void softcap_thread(int64_t count, float cap, float *x)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i += CHUNK)
        v_row_softcap(x + i, x + i, cap, min64(CHUNK, count - i));
}

void cpu_softcap(struct ops *ops, struct stream *stream, int64_t count, double cap, void *x)
{
    IN_THREADS(cpu_threads(ops, count), softcap_thread(count, (float)cap, x));
}
