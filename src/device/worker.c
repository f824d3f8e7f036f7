/* worker -- the ring and its thread.
 *
 *     done            added
 *      v               v
 *     | running | ... | free ...         a task keeps its slot until it is done, so `added - done`
 *                                        tasks are in the ring and arguments stay in place
 *
 * One lock guards both counters. The thread sleeps on `work`, producers and drainers on `moved`,
 * which is signalled only when a thread sleeps there.
 */
#include <stdio.h>
#include "base/thread.h"
#include "device/device_impl.h"

struct task {
    stream_task_fn *call;
    _Alignas(16) unsigned char args[WORKER_ARGS_BYTES];
};

struct worker {
    struct env *env;       /* borrowed */
    struct stream *stream; /* borrowed */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* a task was added, or `ending` was set */
    pthread_cond_t moved; /* a task is done */
    int sleepers;         /* threads that wait on `moved` */
    bool ending;
    uint64_t added, done;
    struct task ring[WORKER_RING];
};

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (worker->done == worker->added && !worker->ending)
            pthread_cond_wait(&worker->work, &worker->lock);
        if (worker->done == worker->added)
            break;
        struct task *task = &worker->ring[worker->done % WORKER_RING];
        pthread_mutex_unlock(&worker->lock);
        task->call(worker->stream, task->args);
        pthread_mutex_lock(&worker->lock);
        worker->done++;
        if (worker->sleepers > 0)
            pthread_cond_broadcast(&worker->moved);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

enum status worker_create(struct env *env, const char *name, struct stream *stream,
                          struct worker **worker)
{
    struct worker *w;
    TRY(mem_alloc(env, MEM_OTHER, "stream rings", sizeof *w, &w));
    w->env = env;
    w->stream = stream;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->moved, NULL);
    int error = thread_start(&w->thread, worker_main, w);
    if (error != 0)
        goto undo_self;
    char short_name[16];
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(w->thread, short_name);
    *worker = w;
    return STATUS_OK;
undo_self:
    pthread_cond_destroy(&w->moved);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    mem_free(env, w);
    return FAIL(env, DEVICE, "cannot start a thread for the stream '%s': %s; see ulimit -u", name,
                strerror(error));
}

void worker_destroy(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->ending = true;
    pthread_cond_signal(&worker->work);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->moved);
    pthread_cond_destroy(&worker->work);
    pthread_mutex_destroy(&worker->lock);
    mem_free(worker->env, worker);
}

bool worker_is_me(const struct worker *worker)
{
    return pthread_equal(pthread_self(), worker->thread);
}

/* With the lock held: sleep until `done` has reached `target`. */
static void wait_done(struct worker *worker, uint64_t target)
{
    worker->sleepers++;
    while (worker->done < target)
        pthread_cond_wait(&worker->moved, &worker->lock);
    worker->sleepers--;
}

void worker_add(struct worker *worker, stream_task_fn *call, const void *args, size_t bytes)
{
    CHECK_LE(bytes, WORKER_ARGS_BYTES);
    pthread_mutex_lock(&worker->lock);
    while (worker->added - worker->done == WORKER_RING)
        wait_done(worker, worker->done + 1);
    struct task *task = &worker->ring[worker->added % WORKER_RING];
    task->call = call;
    if (bytes > 0)
        memcpy(task->args, args, bytes);
    worker->added++;
    pthread_cond_signal(&worker->work);
    pthread_mutex_unlock(&worker->lock);
}

void worker_drain(struct worker *worker)
{
    CHECK(!worker_is_me(worker));
    pthread_mutex_lock(&worker->lock);
    wait_done(worker, worker->added);
    pthread_mutex_unlock(&worker->lock);
}
