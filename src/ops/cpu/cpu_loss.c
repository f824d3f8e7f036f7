/* cpu_loss -- softmax cross-entropy over rows of logits, with its gradient written over them.
 *
 * A row is read three times while it is in cache: its maximum; exp(x - max), kept in place when the
 * gradient is wanted, and its sum; the scaling. Each element costs one exp. Sums run in floats over
 * pieces of a row and in double over the pieces, so that a loss over 50,000 columns is good to
 * 1e-7.
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

#define PIECE 1024 /* columns summed in floats */

static double row_loss(int64_t vocab, int32_t label, bool gradient, float loss_scale, float *x)
{
    float max = v_row_max(x, vocab), wanted = x[label];
    double sum = 0;
    for (int64_t i = 0; i < vocab; i += PIECE)
        sum += (double)v_row_exp(gradient ? x + i : NULL, x + i, max, min64(PIECE, vocab - i));
    if (gradient) {
        float factor = (float)((double)loss_scale / sum);
        for (int64_t i = 0; i < vocab; i++)
            x[i] *= factor;
        x[label] -= loss_scale;
    }
    return log(sum) + (double)max - (double)wanted;
}

static void loss_share(int64_t rows, int64_t vocab, const int32_t *labels, bool gradient,
                       float loss_scale, float *logits, double *losses)
{
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        if (labels[r] >= 0) {
            losses[r] = row_loss(vocab, labels[r], gradient, loss_scale, logits + r * vocab);
            continue;
        }
        losses[r] = 0;
        if (gradient)
            memset(logits + r * vocab, 0, (size_t)vocab * sizeof(float));
    }
}

void cpu_cross_entropy(struct ops *ops, struct stream *stream, int64_t rows, int64_t vocab,
                       const int32_t *labels, bool gradient, const struct step_scalars *scalars,
                       void *logits, double *losses)
{
    (void)stream;
    float loss_scale = gradient ? scalars->loss_scale : 0.0f;
    IN_TEAM(cpu_team(ops, rows * vocab),
            loss_share(rows, vocab, labels, gradient, loss_scale, logits, losses));
}
