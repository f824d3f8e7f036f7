/* progress -- relaxed atomic stores, which a signal handler may read at any time. */
#include "base/progress.h"
#include "base/env.h"

void progress_add(const struct env *env)
{
    if (env->progress != NULL)
        atomic_fetch_add_explicit(&env->progress->count, 1, memory_order_relaxed);
}

/* Ranks that are threads share one note; when two write at the same time, their texts may mix. */
void progress_note(const struct env *env, const char *what)
{
    if (env->progress == NULL)
        return;
    progress_add(env);
    atomic_char *to = env->progress->doing;
    for (int i = 0; i < PROGRESS_BYTES - 1; i++) {
        atomic_store_explicit(&to[i], what[i], memory_order_relaxed);
        if (what[i] == 0)
            return;
    }
}

void progress_expect(const struct env *env, double seconds)
{
    if (env->progress == NULL)
        return;
    long long ms = (long long)(1e3 * seconds), known = atomic_load(&env->progress->expected_ms);
    while (known < ms && !atomic_compare_exchange_weak(&env->progress->expected_ms, &known, ms))
        ;
}

uint64_t progress_count(const struct progress *progress)
{
    return atomic_load_explicit(&progress->count, memory_order_relaxed);
}

void progress_words(const struct progress *progress, char out[PROGRESS_BYTES])
{
    for (int i = 0; i < PROGRESS_BYTES; i++)
        out[i] = atomic_load_explicit(&progress->doing[i], memory_order_relaxed);
    out[PROGRESS_BYTES - 1] = 0;
}
