/* sifr_context -- the public library's context: an env, a device, its ops for users' units, a
 * stream. */
#include <stdlib.h>

#include "base/host.h"
#include "lib/lib_impl.h"

const char *sifr_version(void)
{
    return SIFR_VERSION;
}

static void forward_line(void *user, enum log_level level, const char *line)
{
    struct sifr_context *context = user;
    (void)level;
    if (context->log)
        context->log(context->user, line);
}

static enum status open_device(struct sifr_context *context)
{
    TRY(device_create(&context->env, "cpu", 0, &context->device));
    TRY(ops_create(context->device, "cpu", DTYPE_F32, &context->ops));
    return stream_create(context->device, "compute", &context->stream);
}

int sifr_context_create(int threads, void (*log)(void *user, const char *line), void *user,
                        struct sifr_context **context)
{
    struct sifr_context *c = calloc(1, sizeof *c); /* there is no env yet to count it */
    if (!c)
        return STATUS_MEMORY;
    c->log = log;
    c->user = user;
    enum status st = env_create(&c->env, forward_line, c, LOG_INFO, machine_threads(threads));
    if (st != STATUS_OK) {
        free(c);
        return st;
    }
    st = open_device(c);
    if (st != STATUS_OK) {
        sifr_context_destroy(c);
        return st;
    }
    *context = c;
    return STATUS_OK;
}

void sifr_context_destroy(struct sifr_context *context)
{
    if (!context)
        return;
    stream_destroy(context->stream);
    ops_destroy(context->ops);
    device_destroy(context->device);
    env_destroy(&context->env);
    free(context);
}

const char *sifr_error(const struct sifr_context *context)
{
    return log_first_error(context->env.log);
}

/* --- ops for users' units ------------------------------------------------------------------- */

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
