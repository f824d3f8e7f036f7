/* env -- creates and destroys the bundle. */
#include "base/env.h"

#include <sched.h>
#include <unistd.h>

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

/* With more CPUs than cpu_set_t can represent there is no mask; then count those online. */
int env_available_threads(void)
{
    cpu_set_t mask;
    long count = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask)
                                                               : sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
}
