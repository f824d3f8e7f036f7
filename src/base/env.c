/* env -- creates and destroys the bundle. */
#include "base/env.h"

enum status env_create(struct env *env, log_sink_fn *sink, void *user, enum log_level level,
                       int threads)
{
    CHECK_LE(1, threads);
    *env = (struct env){.threads = threads};
    env->log = log_create(sink, user, level);
    env->mem = mem_create();
    if (env->log && env->mem)
        return STATUS_OK;
    env_destroy(env);
    return STATUS_MEMORY;
}

void env_destroy(struct env *env)
{
    mem_destroy(env->mem);
    log_destroy(env->log);
    *env = (struct env){0};
}
