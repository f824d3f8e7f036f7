/* stream_cpu -- inline and worker streams, and events between them.
 *
 * Everything enqueued is a task: an inline stream runs it at once, and so does a worker's own
 * thread (a task may use its own stream); from elsewhere it goes into the worker's ring. Events
 * are condition variables with a counter of tickets, so an event recorded twice before anybody
 * came to it loses nothing. An event is recorded on one stream at a time.
 */
#include "device/cpu/stream_cpu.h"
#include "base/clock.h"
#include "base/trace.h"
#include "device/worker.h"

/* --- streams -------------------------------------------------------------------------------- */

enum status cpu_stream_open(struct stream *stream, const char *name)
{
    struct cpu_stream *cpu = (struct cpu_stream *)stream;
    return stream->worker ? worker_create(stream->device->env, name, stream, &cpu->worker)
                          : STATUS_OK;
}

void cpu_stream_close(struct stream *stream)
{
    if (stream->worker)
        worker_destroy(((struct cpu_stream *)stream)->worker);
}

enum status cpu_stream_sync(struct stream *stream)
{
    if (stream->worker)
        worker_drain(((struct cpu_stream *)stream)->worker);
    return STATUS_OK;
}

void cpu_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes)
{
    struct cpu_stream *cpu = (struct cpu_stream *)stream;
    if (!stream->worker || worker_is_me(cpu->worker))
        task(stream, args);
    else
        worker_add(cpu->worker, task, args, bytes);
}

/* --- events --------------------------------------------------------------------------------- */

enum status cpu_event_open(struct event *event)
{
    struct cpu_event *cpu = (struct cpu_event *)event;
    pthread_mutex_init(&cpu->lock, NULL);
    pthread_cond_init(&cpu->changed, NULL);
    return STATUS_OK;
}

void cpu_event_close(struct event *event)
{
    struct cpu_event *cpu = (struct cpu_event *)event;
    pthread_mutex_lock(&cpu->lock);
    while (cpu->users > 0)
        pthread_cond_wait(&cpu->changed, &cpu->lock);
    pthread_mutex_unlock(&cpu->lock);
    pthread_cond_destroy(&cpu->changed);
    pthread_mutex_destroy(&cpu->lock);
}

/* What a record or a wait takes along. */
struct point {
    struct cpu_event *event; /* borrowed */
    int64_t ticket;
};

static void pass(struct stream *stream, const void *args)
{
    const struct point *point = args;
    struct cpu_event *event = point->event;
    (void)stream;
    pthread_mutex_lock(&event->lock);
    if (event->passed < point->ticket)
        event->passed = point->ticket;
    event->users--;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

/* Only compute is seen waiting: a worker has nothing better to do. */
static const struct trace_span trace_wait = {
    .lane = TRACE_COMPUTE, .category = "wait", .name = "wait"};

static void await(struct stream *stream, const void *args)
{
    const struct point *point = args;
    struct cpu_event *event = point->event;
    pthread_mutex_lock(&event->lock);
    if (event->passed < point->ticket && !stream_failed(stream)) {
        struct trace *trace = stream->worker ? NULL : stream->device->env->trace;
        double start = clock_seconds(), traced = trace_begin(trace);
        while (event->passed < point->ticket)
            pthread_cond_wait(&event->changed, &event->lock);
        atomic_fetch_add_explicit(&stream->waited_ns, (int64_t)(1e9 * (clock_seconds() - start)),
                                  memory_order_relaxed);
        trace_end(trace, traced, &trace_wait);
    }
    event->users--;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

void cpu_record(struct event *event, struct stream *stream)
{
    struct cpu_event *cpu = (struct cpu_event *)event;
    pthread_mutex_lock(&cpu->lock);
    struct point point = {cpu, ++cpu->recorded};
    cpu->users++;
    pthread_mutex_unlock(&cpu->lock);
    cpu_enqueue(stream, pass, &point, sizeof point);
}

void cpu_wait(struct stream *stream, struct event *event)
{
    struct cpu_event *cpu = (struct cpu_event *)event;
    pthread_mutex_lock(&cpu->lock);
    struct point point = {cpu, cpu->recorded};
    cpu->users++;
    pthread_mutex_unlock(&cpu->lock);
    cpu_enqueue(stream, await, &point, sizeof point);
}
