/* stream_cuda -- streams and events of the CUDA device, for the back end's table. */
#ifndef DEVICE_CUDA_STREAM_CUDA_H
#define DEVICE_CUDA_STREAM_CUDA_H
#include "device/cuda/cuda.h"
#include "device/tickets.h"

/* Each ticket belongs to one of a few CUDA events, used in rotation, and has passed when that CUDA
 * event has been enqueued. */
enum { CUDA_EVENT_POINTS = 8 };

struct cuda_event {
    struct event base;
    struct tickets tickets;
    cudaEvent_t points[CUDA_EVENT_POINTS];
};

enum status cuda_stream_open(struct stream *stream, const char *name);
void cuda_stream_close(struct stream *stream);
enum status cuda_stream_sync(struct stream *stream);
enum status cuda_event_open(struct event *event);
void cuda_event_close(struct event *event);
void cuda_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes);
void cuda_record(struct event *event, struct stream *stream);
void cuda_wait(struct stream *stream, struct event *event);

/* record_cuda.c */
bool cuda_record_begin(struct stream *stream);
struct recording *cuda_record_end(struct stream *stream);
void cuda_replay(struct stream *stream, struct recording *recording);
void cuda_forget(struct device *device, struct recording *recording);

/* Device work: `work` enqueues on the stream's CUDA stream. It is called immediately on a plain
 * stream, and by the thread of a worker. Inside a task, cuda_work also waits for the work. */
void cuda_work(struct stream *stream, stream_task_fn *work, const void *args, size_t bytes);

/* A copy from ordinary host memory on a plain stream: enqueued in chunks through pinned memory, so
 * that `src` has been read when the call returns. */
void cuda_copy_staged(struct stream *stream, char *dst, const char *src, size_t bytes);
/* Wait for everything on the CUDA stream; a failure sticks to the stream. */
void cuda_settle(struct stream *stream);

#endif
