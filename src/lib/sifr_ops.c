/* sifr_ops -- ops for users' units. */
#include "lib/lib_impl.h"

void sifr_linear(const struct sifr_run *run, int64_t rows, int64_t in, int64_t out, const float *x,
                 const float *w, const float *bias, float *y)
{
    struct linear l = {in, out, true};
    ops_linear(run->context->ops, run->context->stream, l, rows, x, w, bias, y);
}

void sifr_linear_backward(const struct sifr_run *run, int64_t rows, int64_t in, int64_t out,
                          const float *x, const float *w, const float *dy, float *dx, float *dw,
                          float *dbias)
{
    struct linear l = {in, out, true};
    ops_linear_dw(run->context->ops, run->context->stream, l, rows,
                  &(struct linear_dw){.x = x, .dy = dy, .dw = dw, .dbias = dbias});
    if (dx)
        ops_linear_dx(run->context->ops, run->context->stream, l, rows, dy, w, dx);
}

void sifr_cross_entropy(const struct sifr_run *run, int64_t vocab, float *logits, double *losses)
{
    struct step_scalars scalars = {.loss_scale = run->loss_scale};
    struct ops *ops = run->context->ops;
    struct stream *stream = run->context->stream;
    ops_cross_entropy(ops, stream, run->rows, vocab,
                      &(struct cross_entropy){.labels = run->labels,
                                              .gradient = run->gradient != NULL,
                                              .scalars = &scalars,
                                              .logits = logits,
                                              .losses = losses});
    ops_sum(ops, stream, run->rows, losses, run->loss);
}
