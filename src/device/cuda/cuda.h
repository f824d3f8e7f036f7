/* cuda -- shared by the CUDA back ends of device, ops and comm: the GPU behind a device, the handle
 * behind a stream, and error handling.
 *
 * Only folders named cuda and nccl include it. All of them are in one shared object, libsifr-cuda,
 * which is loaded when a run asks for a GPU (base/plugin.h). It has its own copies of base and
 * device, which have no global state.
 */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H
#include <cuda_runtime_api.h>
#include "device/device_impl.h"

struct nvml { /* all zero = not available */
    void *object;
    void *gpu;
};

struct cuda_device {
    struct device base;
    int index;      /* of the GPU; callers of the driver must make it current */
    int processors; /* multiprocessors */
    char name[64];  /* "NVIDIA H200" */
    struct nvml nvml;
    size_t others_bytes; /* in use by others before this process opened the GPU; 0 without NVML */
    struct cuda_spans *spans; /* spans_cuda.c; NULL without a trace */
};

struct worker;

enum { CUDA_NOTED = 4 }; /* recent launches that a stream remembers for error messages */

struct cuda_stream {
    struct stream base;
    cudaStream_t handle;
    struct worker *worker; /* NULL on a plain stream */
    bool in_task;          /* plain: the caller is running a task of this stream */
    char *stage;           /* plain: pinned staging buffer in two halves (stream_cuda.c) */
    size_t stage_used;     /* bytes used of the current half */
    int stage_half;
    cudaEvent_t stage_read[2];     /* recorded after the GPU's last read of each half */
    const char *noted[CUDA_NOTED]; /* ring of recently enqueued work */
    unsigned noted_count;
};

static inline struct cuda_device *cuda_device_of(struct device *device)
{
    return (struct cuda_device *)device;
}

static inline cudaStream_t cuda_handle(struct stream *stream)
{
    return ((struct cuda_stream *)stream)->handle;
}

/* Exported from the shared object. */
#define CUDA_ENTRY __attribute__((visibility("default")))

/* Call it after enqueueing `what` (a string literal: the pointer is kept) on the stream. false = it
 * was refused; the error, with the driver's text, then sticks to the stream. */
bool cuda_enqueued(struct stream *stream, cudaError_t error, const char *what);
/* The same for calls at start-up: STATUS_OK, or STATUS_DEVICE (STATUS_MEMORY when out of memory),
 * which has been logged. */
enum status cuda_status(struct env *env, cudaError_t error, const char *what);

/* --- stream_cuda.c: streams, events and recordings ------------------------------------------ */

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
bool cuda_record_begin(struct stream *stream);
struct recording *cuda_record_end(struct stream *stream);
void cuda_replay(struct stream *stream, struct recording *recording);
void cuda_forget(struct device *device, struct recording *recording);

/* Call `issue`, which enqueues on the stream's CUDA stream: immediately on a plain stream, and by
 * the thread of a worker. */
void cuda_issue(struct stream *stream, stream_task_fn *issue, const void *args, size_t bytes);
/* The same for device work. Inside a task, it also waits for the work. */
void cuda_work(struct stream *stream, stream_task_fn *work, const void *args, size_t bytes);

/* A copy from ordinary host memory on a plain stream: enqueued in chunks through pinned memory, so
 * that `src` has been read when the call returns. */
void cuda_copy_staged(struct stream *stream, char *dst, const char *src, size_t bytes);
/* Wait for everything on the CUDA stream; a failure sticks to the stream. */
void cuda_settle(struct stream *stream);

/* --- spans_cuda.c: spans of the trace (device_impl.h) --------------------------------------- */

struct cuda_spans;
enum status cuda_spans_create(struct device *device, int64_t count);
void cuda_spans_destroy(struct device *device); /* fine without any */
void cuda_spans_open(struct device *device);
void cuda_spans_close(struct device *device);
int64_t cuda_span_claim(struct stream *stream, const struct trace_span *span);
void cuda_span_mark(struct stream *stream, int64_t mark, bool end);
/* On the thread that enqueues on the CUDA stream; mark -1: nothing. */
void cuda_note_span(struct stream *stream, int64_t mark, bool end);

/* --- nvml.c --------------------------------------------------------------------------------- */

/* Figures of a GPU from the driver's management library, libnvidia-ml.so.1. It comes with the
 * driver and is loaded at run time, so nothing links to it, and a machine without it only has fewer
 * figures. It identifies a GPU by its PCI bus id, sees the memory of all processes, and needs no
 * context on the GPU. */

/* GPU `index` of the CUDA runtime; -1 = only the library. false = no library, or it does not know
 * the GPU; then there is nothing to close. */
bool nvml_open(int index, struct nvml *nvml);
void nvml_close(struct nvml *nvml);

/* Memory of all processes, without the driver's own reserve. */
bool nvml_memory(const struct nvml *nvml, size_t *used, size_t *free);
void nvml_gauges(const struct nvml *nvml, struct device_gauges *gauges);
void nvml_driver(const struct nvml *nvml, char *version, size_t bytes); /* "580.95.05"; or "" */

#endif
