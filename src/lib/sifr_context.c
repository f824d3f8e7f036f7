/* sifr_context -- the public library's context: an env, a device, its ops, a stream. */
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
