/* stream_cuda -- plain and worker streams of a GPU, events between them, and recordings.
 *
 * A plain stream is a CUDA stream on which the caller enqueues work without waiting. A worker
 * stream is a thread with a ring of tasks and a CUDA stream of its own: the thread takes copies and
 * sums from the ring in order and enqueues them on that CUDA stream. Tasks are host functions that
 * read and write bytes (MPI through bounce buffers), so these rules hold:
 *
 *     - before a task runs, the CUDA stream of its stream is empty: the thread that runs it waits;
 *     - inside a task, work on its own stream is done when the call returns;
 *     - everything else only enqueues.
 *
 * Events are recorded and waited for on CUDA streams, but a worker reaches its record later than
 * the call, and the ticket tells when. So a wait has two parts. First, the waiting thread (a
 * worker's thread, or the caller of a plain stream) sleeps until the ticket has passed. Then its
 * CUDA stream waits for the CUDA event. By the first rule, tasks of a worker that follow a wait
 * also start after the event. Between plain streams no thread sleeps: the ticket passes in the
 * call.
 *
 * Deadlock is impossible, because work on the GPU only waits for work that is already on the GPU.
 * For the same reason it is harmless when a CUDA event has been recorded again before a waiter
 * reaches it: the waiter only waits longer than necessary. Each event has several CUDA events, used
 * in rotation, which makes that rare.
 *
 * Copies. A copy from pinned host memory reads it later, so the memory belongs to the stream until
 * the stream has passed the copy. For ordinary memory CUDA guarantees nothing ("might be
 * synchronous"), so on plain streams we read it ourselves, through a staging buffer: two halves of
 * pinned memory, filled alternately, each reused only after the GPU has read it. A copy to host
 * memory is complete after stream_sync.
 */
#include "device/cuda/accumulate.h"
#include "device/cuda/cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE_HALF = DEVICE_STREAM_STAGE / 2 };

static struct cuda_stream *own(struct stream *stream)
{
    return (struct cuda_stream *)stream;
}

/* --- errors --------------------------------------------------------------------------------- */

/* A failure shows at the next call or wait, so the message lists what was enqueued last. */
static enum status fail(struct stream *stream, cudaError_t error, const char *what)
{
    struct cuda_stream *cuda = own(stream);
    char noted[256] = "nothing";
    size_t used = 0;
    unsigned first = cuda->noted_count > CUDA_NOTED ? cuda->noted_count - CUDA_NOTED : 0;
    for (unsigned i = cuda->noted_count; i > first && used < sizeof noted; i--)
        used += (size_t)snprintf(noted + used, sizeof noted - used, "%s%s", used ? ", " : "",
                                 cuda->noted[(i - 1) % CUDA_NOTED]);
    (void)cudaGetLastError();
    return FAIL(stream->device->env, DEVICE,
                "%s failed on GPU %d: %s; enqueued last, newest first: %s (with "
                "CUDA_LAUNCH_BLOCKING=1 the newest is the one that failed)",
                what, cuda_device_of(stream->device)->index, cudaGetErrorString(error), noted);
}

/* Whether a call succeeded; a failure sticks to the stream. */
static bool accepted(struct stream *stream, cudaError_t error, const char *what)
{
    if (error != cudaSuccess && !stream_failed(stream))
        stream_fail(stream, fail(stream, error, what));
    return error == cudaSuccess;
}

bool cuda_enqueued(struct stream *stream, cudaError_t error, const char *what)
{
    struct cuda_stream *cuda = own(stream);
    cuda->noted[cuda->noted_count++ % CUDA_NOTED] = what;
    return accepted(stream, error, what);
}

enum status cuda_status(struct env *env, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return FAIL(env, MEMORY, "%s: the GPU is out of memory", what);
    return FAIL(env, DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

void cuda_settle(struct stream *stream)
{
    accepted(stream, cudaStreamSynchronize(own(stream)->handle), "work");
}

/* --- streams -------------------------------------------------------------------------------- */

static void make_current(struct stream *stream, const void *args)
{
    (void)args;
    cudaError_t error = cudaSetDevice(cuda_device_of(stream->device)->index);
    stream_fail(stream, cuda_status(stream->device->env, error, "a stream's thread"));
}

static enum status open_stage(struct stream *stream)
{
    struct cuda_stream *cuda = own(stream);
    struct env *env = stream->device->env;
    for (int i = 0; i < 2; i++)
        TRY(cuda_status(env, cudaEventCreateWithFlags(&cuda->stage_read[i], cudaEventDisableTiming),
                        "an event of a stream"));
    return device_alloc_host(stream->device, MEM_OTHER, "stream stage", DEVICE_STREAM_STAGE,
                             &cuda->stage);
}

enum status cuda_stream_open(struct stream *stream, const char *name)
{
    enum status st;
    struct cuda_stream *cuda = own(stream);
    struct env *env = stream->device->env;
    TRY(cuda_status(env, cudaStreamCreateWithFlags(&cuda->handle, cudaStreamNonBlocking),
                    "a stream"));
    TRY_OR(undo,
           stream->worker ? worker_create(env, name, stream, &cuda->worker) : open_stage(stream));
    if (stream->worker)
        worker_add(cuda->worker, make_current, NULL, 0);
    return STATUS_OK;
undo:
    cuda_stream_close(stream);
    return st;
}

void cuda_stream_close(struct stream *stream)
{
    struct cuda_stream *cuda = own(stream);
    if (cuda->worker != NULL)
        worker_destroy(cuda->worker);
    device_free(stream->device, cuda->stage);
    for (int i = 0; i < 2; i++) {
        if (cuda->stage_read[i] != NULL)
            cudaEventDestroy(cuda->stage_read[i]);
    }
    cudaStreamDestroy(cuda->handle);
}

static bool inside_task(const struct cuda_stream *cuda)
{
    return cuda->worker != NULL ? worker_is_me(cuda->worker) : cuda->in_task;
}

enum status cuda_stream_sync(struct stream *stream)
{
    struct cuda_stream *cuda = own(stream);
    if (cuda->worker != NULL && !inside_task(cuda))
        worker_drain(cuda->worker);
    cuda_settle(stream);
    return STATUS_OK;
}

/* --- tasks and work ------------------------------------------------------------------------- */

struct host_task {
    stream_task_fn *task;
    _Alignas(16) unsigned char args[STREAM_ARGS_BYTES];
};
_Static_assert(sizeof(struct host_task) <= WORKER_ARGS_BYTES, "a task does not fit in the ring");

static void run_host_task(struct stream *stream, const void *args)
{
    const struct host_task *host = args;
    cuda_settle(stream);
    host->task(stream, host->args);
}

void cuda_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes)
{
    struct cuda_stream *cuda = own(stream);
    if (inside_task(cuda)) {
        task(stream, args);
    } else if (cuda->worker != NULL) {
        struct host_task host = {.task = task};
        if (bytes > 0)
            memcpy(host.args, args, bytes);
        worker_add(cuda->worker, run_host_task, &host, offsetof(struct host_task, args) + bytes);
    } else {
        cuda_settle(stream);
        cuda->in_task = true;
        task(stream, args);
        cuda->in_task = false;
    }
}

void cuda_issue(struct stream *stream, stream_task_fn *issue, const void *args, size_t bytes)
{
    struct cuda_stream *cuda = own(stream);
    if (cuda->worker != NULL && !inside_task(cuda))
        worker_add(cuda->worker, issue, args, bytes);
    else
        issue(stream, args);
}

void cuda_work(struct stream *stream, stream_task_fn *work, const void *args, size_t bytes)
{
    cuda_issue(stream, work, args, bytes);
    if (inside_task(own(stream)))
        cuda_settle(stream);
}

void cuda_copy_staged(struct stream *stream, char *dst, const char *src, size_t bytes)
{
    struct cuda_stream *cuda = own(stream);
    bool small = bytes <= CUDA_SMALL_COPY;
    while (bytes > 0 && !stream_failed(stream)) {
        size_t chunk = bytes < STAGE_HALF ? bytes : STAGE_HALF;
        if (cuda->stage_used + chunk > STAGE_HALF) {
            accepted(stream, cudaEventRecord(cuda->stage_read[cuda->stage_half], cuda->handle),
                     "stage");
            cuda->stage_half ^= 1;
            cuda->stage_used = 0;
            accepted(stream, cudaEventSynchronize(cuda->stage_read[cuda->stage_half]), "stage");
        }
        char *stage = cuda->stage + (size_t)cuda->stage_half * STAGE_HALF + cuda->stage_used;
        memcpy(stage, src, chunk);
        cuda_enqueued(
            stream,
            small ? cuda_small_copy(cuda->handle, dst, stage, chunk)
                  : cudaMemcpyAsync(dst, stage, chunk, cudaMemcpyHostToDevice, cuda->handle),
            "copy");
        cuda->stage_used += (chunk + 63) / 64 * 64;
        src += chunk;
        dst += chunk;
        bytes -= chunk;
    }
}

/* --- events --------------------------------------------------------------------------------- */

enum status cuda_event_open(struct event *event)
{
    struct cuda_event *cuda = (struct cuda_event *)event;
    enum status st = STATUS_OK;
    int made = 0;
    for (; made < CUDA_EVENT_POINTS && st == STATUS_OK; made++)
        st = cuda_status(event->device->env,
                         cudaEventCreateWithFlags(&cuda->points[made], cudaEventDisableTiming),
                         "an event");
    if (st != STATUS_OK) {
        for (int i = 0; i < made - 1; i++)
            cudaEventDestroy(cuda->points[i]);
        return st;
    }
    tickets_open(&cuda->tickets);
    return STATUS_OK;
}

void cuda_event_close(struct event *event)
{
    struct cuda_event *cuda = (struct cuda_event *)event;
    tickets_close(&cuda->tickets);
    for (int i = 0; i < CUDA_EVENT_POINTS; i++)
        cudaEventDestroy(cuda->points[i]);
}

/* The arguments of a record or a wait. */
struct point {
    struct cuda_event *event; /* borrowed */
    int64_t ticket;
};

static cudaEvent_t point_of(const struct point *point)
{
    return point->event->points[point->ticket % CUDA_EVENT_POINTS];
}

static void pass(struct stream *stream, const void *args)
{
    const struct point *point = args;
    if (!stream_failed(stream))
        accepted(stream, cudaEventRecord(point_of(point), own(stream)->handle), "event");
    tickets_pass(&point->event->tickets, point->ticket);
}

static void await(struct stream *stream, const void *args)
{
    const struct point *point = args;
    tickets_await(&point->event->tickets, point->ticket, stream);
    if (!stream_failed(stream))
        accepted(stream, cudaStreamWaitEvent(own(stream)->handle, point_of(point), 0), "wait");
    tickets_leave(&point->event->tickets);
}

void cuda_record(struct event *event, struct stream *stream)
{
    struct cuda_event *cuda = (struct cuda_event *)event;
    struct point point = {cuda, tickets_record(&cuda->tickets)};
    cuda_work(stream, pass, &point, sizeof point);
}

void cuda_wait(struct stream *stream, struct event *event)
{
    struct cuda_event *cuda = (struct cuda_event *)event;
    struct point point = {cuda, tickets_newest(&cuda->tickets)};
    cuda_work(stream, await, &point, sizeof point);
}

/* --- recordings ----------------------------------------------------------------------------- */

/* A recording is a CUDA graph, captured from a plain stream. Only work enqueued on the stream is
 * captured. A call that would wait or allocate fails, and so does the capture. Memory that the
 * driver allocates for a graph is not in our account.
 *
 * Environment, read at each recording, for tests: SIFR_CUDA_GRAPH=off disables recordings. */

bool cuda_record_begin(struct stream *stream)
{
    const char *way = getenv("SIFR_CUDA_GRAPH");
    struct cuda_stream *cuda = (struct cuda_stream *)stream;
    if ((way && !strcmp(way, "off")) || cuda->in_task ||
        cudaSetDevice(cuda_device_of(stream->device)->index) != cudaSuccess)
        return false;
    bool begun =
        cudaStreamBeginCapture(cuda->handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    if (!begun)
        (void)cudaGetLastError();
    return begun;
}

/* Instantiate the captured graph and upload it. */
static enum status make(struct stream *stream, cudaGraph_t captured, cudaGraphExec_t *graph)
{
    struct env *env = stream->device->env;
    TRY(cuda_status(env, cudaGraphInstantiate(graph, captured, 0), "making a graph"));
    cudaError_t error = cudaGraphUpload(*graph, cuda_handle(stream));
    if (error != cudaSuccess)
        cudaGraphExecDestroy(*graph);
    return cuda_status(env, error, "a graph on its way to the GPU");
}

/* A recording is the driver's graph object itself. */
struct recording *cuda_record_end(struct stream *stream)
{
    cudaGraph_t captured = NULL;
    cudaGraphExec_t graph;
    enum status st =
        cuda_status(stream->device->env, cudaStreamEndCapture(cuda_handle(stream), &captured),
                    "recording work of a stream");
    if (st == STATUS_OK && !stream_failed(stream))
        st = make(stream, captured, &graph);
    else
        st = STATUS_DEVICE;
    if (captured != NULL)
        cudaGraphDestroy(captured);
    return st == STATUS_OK ? (struct recording *)graph : NULL;
}

void cuda_replay(struct stream *stream, struct recording *recording)
{
    cuda_enqueued(stream, cudaGraphLaunch((cudaGraphExec_t)recording, cuda_handle(stream)),
                  "a recording");
}

void cuda_forget(struct device *device, struct recording *recording)
{
    cudaSetDevice(cuda_device_of(device)->index);
    cudaGraphExecDestroy((cudaGraphExec_t)recording);
}
