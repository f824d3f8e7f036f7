/* stream_cpu -- inline and worker streams, and events between them.
 *
 * Everything enqueued is a task: an inline stream runs it at once, and so does a worker's own
 * thread (a task may use its own stream); from elsewhere it goes into the worker's ring. An event
 * is its tickets, and is recorded on one stream at a time.
 */
#include "device/cpu/stream_cpu.h"
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

static struct tickets *tickets_of(struct event *event)
{
    return &((struct cpu_event *)event)->tickets;
}

enum status cpu_event_open(struct event *event)
{
    tickets_open(tickets_of(event));
    return STATUS_OK;
}

void cpu_event_close(struct event *event)
{
    tickets_close(tickets_of(event));
}

/* What a record or a wait takes along. */
struct point {
    struct tickets *tickets; /* borrowed */
    int64_t ticket;
};

static void pass(struct stream *stream, const void *args)
{
    const struct point *point = args;
    (void)stream;
    tickets_pass(point->tickets, point->ticket);
}

static void await(struct stream *stream, const void *args)
{
    const struct point *point = args;
    tickets_await(point->tickets, point->ticket, stream);
    tickets_leave(point->tickets);
}

void cpu_record(struct event *event, struct stream *stream)
{
    struct point point = {tickets_of(event), tickets_record(tickets_of(event))};
    cpu_enqueue(stream, pass, &point, sizeof point);
}

void cpu_wait(struct stream *stream, struct event *event)
{
    struct point point = {tickets_of(event), tickets_newest(tickets_of(event))};
    cpu_enqueue(stream, await, &point, sizeof point);
}
