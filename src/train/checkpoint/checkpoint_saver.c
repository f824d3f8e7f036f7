/* checkpoint_saver -- runs a save: immediately, or on a worker thread in the background.
 *
 * For a background save the store copies this rank's shards (zero_snapshot) and the run continues;
 * the worker stream "save" writes the copy over its own communicator. Only one save is in progress
 * at a time, because the next one needs the snapshot buffer. The worker has its own log: it prints
 * nothing and cannot fail the run, which fetches the result between steps.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include "base/clock.h"
#include "base/progress.h"
#include "train/checkpoint/checkpoint_write.h"

struct checkpoint_saver {
    struct env *env; /* borrowed */
    struct env own;  /* a copy with its own log */
    struct checkpoint_setup setup;
    struct checkpoint_layout layout;
    struct comm *comm;     /* of the worker; NULL = use the communicator of the setup */
    struct stream *stream; /* NULL = saves are not in the background */
    void *room;            /* buffer for checkpoint_write */
    struct progress_task task;

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t news;  /* a save has ended */
    bool busy;            /* the worker has a save to do */
    bool ended;           /* `result` is valid and has not been fetched */
    struct checkpoint_result result;
};

bool checkpoint_due(const struct checkpoint_config *config, int64_t step, int64_t steps)
{
    bool every = config->every > 0 && step % config->every == 0;
    bool major = config->major > 0 && step % config->major == 0;
    return step < steps && (every || major);
}

static bool any_between(const struct checkpoint_config *config, int64_t steps)
{
    return (config->every > 0 && config->every < steps) ||
           (config->major > 0 && config->major < steps);
}

bool checkpoint_any(const struct checkpoint_config *config, int64_t steps)
{
    return config->final || any_between(config, steps);
}

bool checkpoint_in_background(const struct checkpoint_config *config, int64_t steps)
{
    return config->async && any_between(config, steps);
}

enum status checkpoint_saver_create(struct env *env, const struct checkpoint_setup *setup,
                                    struct checkpoint_saver **saver)
{
    struct checkpoint_saver *s;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "checkpoint saver", sizeof *s, &s));
    s->env = env;
    s->own = *env;
    s->own.trace = NULL; /* the trace belongs to the run's thread */
    s->setup = *setup;
    if (setup->background)
        s->own.view = NULL; /* the worker must not print; who waits for it does */
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->news, NULL);
    s->own.log = log_create(NULL, NULL, LOG_ERROR);
    if (!s->own.log) {
        st = FAIL(env, MEMORY, "out of memory for the log of a checkpoint");
        goto undo;
    }
    TRY_OR(undo, checkpoint_layout_create(env, setup->graph, setup->type, setup->config->file_bytes,
                                          setup->zero, &s->layout));
    TRY_OR(undo,
           mem_alloc(env, MEM_OTHER, "checkpoint saver",
                     checkpoint_write_room(setup->comm ? comm_size(setup->comm) : 1), &s->room));
    if (setup->background && setup->comm)
        TRY_OR(undo, comm_dup(setup->comm, "save", &s->comm));
    if (setup->background)
        TRY_OR(undo, stream_create_worker(setup->device, "save", &s->stream));
    *saver = s;
    return STATUS_OK;
undo:
    checkpoint_saver_destroy(s);
    return st;
}

void checkpoint_saver_destroy(struct checkpoint_saver *saver)
{
    if (!saver)
        return;
    stream_destroy(saver->stream);
    comm_destroy(saver->comm);
    mem_free(saver->env, saver->room);
    checkpoint_layout_free(&saver->layout);
    log_destroy(saver->own.log);
    pthread_cond_destroy(&saver->news);
    pthread_mutex_destroy(&saver->lock);
    mem_free(saver->env, saver);
}

void checkpoint_saver_set_folder(struct checkpoint_saver *saver, const char *folder)
{
    saver->setup.folder = folder;
}

uint64_t checkpoint_saver_bytes(const struct checkpoint_saver *saver)
{
    return saver->layout.bytes;
}

/* --- a save --------------------------------------------------------------------------------- */

struct task {
    struct checkpoint_saver *saver;
    struct checkpoint_progress progress;
    double started, stood;
};

static void run_task(struct stream *stream, const void *args)
{
    const struct task *task = args;
    struct checkpoint_saver *saver = task->saver;
    const struct checkpoint_job job = {.env = &saver->own,
                                       .setup = &saver->setup,
                                       .layout = &saver->layout,
                                       .comm = saver->comm ? saver->comm : saver->setup.comm,
                                       .progress = task->progress,
                                       .task = &saver->task,
                                       .stood = task->stood,
                                       .room = saver->room};
    struct checkpoint_result result;
    log_error_clear(saver->own.log);
    checkpoint_write(&job, &result);
    progress_end(&saver->own, &saver->task);
    if (saver->setup.from_snapshot)
        zero_snapshot_end(saver->setup.zero);
    result.seconds = clock_seconds() - task->started;
    if (!stream)
        result.stood = result.seconds;
    pthread_mutex_lock(&saver->lock);
    saver->result = result;
    saver->ended = true;
    saver->busy = false;
    pthread_cond_signal(&saver->news);
    pthread_mutex_unlock(&saver->lock);
}

enum status checkpoint_saver_save(struct checkpoint_saver *saver,
                                  const struct checkpoint_progress *progress)
{
    struct task task = {saver, *progress, clock_seconds(), 0};
    if (saver->stream)
        TRY(stream_sync(saver->stream)); /* the previous save may still read the snapshot */
    if (saver->setup.from_snapshot)
        TRY(zero_snapshot(saver->setup.zero));
    else /* ranks that save nothing, too: the gathers of pending updates need them */
        TRY(zero_settle(saver->setup.zero));
    progress_begin(&saver->task, "saving the checkpoint", NULL, saver->layout.bytes);
    if (!saver->stream) {
        run_task(NULL, &task);
        return saver->setup.comm ? comm_status(saver->setup.comm) : STATUS_OK;
    }
    task.stood = clock_seconds() - task.started;
    saver->busy = true; /* the worker is idle */
    stream_enqueue(saver->stream, run_task, &task, sizeof task);
    return saver->comm ? comm_status(saver->comm) : STATUS_OK;
}

/* Wait for the worker, and show how far it is. */
static void await_save(struct checkpoint_saver *saver)
{
    enum { LOOK_NS = 100000000 };
    struct timespec until;
    pthread_mutex_lock(&saver->lock);
    while (saver->busy) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&saver->news, &saver->lock, &until) == ETIMEDOUT)
            progress_show(saver->env, &saver->task);
    }
    pthread_mutex_unlock(&saver->lock);
    progress_end(saver->env, &saver->task);
}

bool checkpoint_saver_result(struct checkpoint_saver *saver, bool wait,
                             struct checkpoint_result *result)
{
    if (wait && saver->stream) {
        stream_await_begin(saver->stream); /* other ranks may ask where this one waits */
        await_save(saver);
        stream_await_end(saver->stream);
        stream_sync(saver->stream);
    }
    pthread_mutex_lock(&saver->lock);
    bool ended = saver->ended;
    if (ended)
        *result = saver->result;
    saver->ended = false;
    pthread_mutex_unlock(&saver->lock);
    return ended;
}
