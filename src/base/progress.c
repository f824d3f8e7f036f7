/* progress -- relaxed atomic stores, which a signal handler may read at any time. */
#include "base/progress.h"
#include "base/clock.h"
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

void progress_begin(struct progress_task *task, const char *what, const char *noun, uint64_t total)
{
    double now = clock_seconds();
    task->what = what;
    task->noun = noun;
    task->total = total;
    task->begin = task->shown = now;
    task->figure[0] = 0;
    atomic_store_explicit(&task->done, 0, memory_order_relaxed);
}

void progress_show(const struct env *env, struct progress_task *task)
{
    if (env->view)
        env->view->show(env->view->user, task, clock_seconds());
}

void progress_advance(const struct env *env, struct progress_task *task, uint64_t amount)
{
    atomic_fetch_add_explicit(&task->done, amount, memory_order_relaxed);
    progress_add(env);
    progress_show(env, task);
}

void progress_reach(const struct env *env, struct progress_task *task, uint64_t done)
{
    uint64_t before = atomic_load_explicit(&task->done, memory_order_relaxed);
    progress_advance(env, task, done > before ? done - before : 0);
}

void progress_end(const struct env *env, const struct progress_task *task)
{
    if (env->view && task->shown > task->begin)
        env->view->clear(env->view->user);
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
