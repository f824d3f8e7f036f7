/* device -- memory, streams, events and copies of the device that a rank computes on; back ends
 * "cpu", "cuda", "dry" and "dry-gpu".
 *
 * Work on a stream runs in order. A plain CPU stream is *inline*: each call runs before it returns,
 * on the caller's OpenMP threads. A *worker* stream has a thread of its own and runs calls one
 * after the other in the background. A plain CUDA stream enqueues on the GPU. Streams wait for each
 * other through events. Functions that enqueue return void: the first failure stays with the
 * stream, later work on it is skipped, and stream_sync returns the failure. Memory is allocated at
 * start-up, by category and name, and freed at the end; enqueueing allocates nothing.
 *
 * The "dry" device counts memory and returns addresses that must not be touched. `sifr plan` builds
 * the real engine on it, so plan and run cannot disagree. "dry-gpu" is the same for a GPU, whose
 * memory is separate from the host's. Both can simulate time (device_keep_time): calls advance
 * virtual clocks.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/env.h"
#include "base/trace.h"

struct device;
struct stream;
struct event;

/* `index` selects one of several GPUs. The device borrows `env`. */
enum status device_create(struct env *env, const char *backend, int index, struct device **device);
/* NULL is fine; all blocks, streams and events must have been destroyed. */
void device_destroy(struct device *device);
struct env *device_env(const struct device *device);
const char *device_backend(const struct device *device); /* "cpu" */
bool device_is_dry(const struct device *device);
/* The compute capability of a GPU, 90 = 9.0; 0: no GPU, or a dry one of a kind that nobody named. */
int device_capability(const struct device *device);
/* Plan for this compute capability on a dry device. Call it before ops are created. */
void device_assume(struct device *device, int capability);
/* Whether the host may read and write device memory through its address; not on a dry device. */
bool device_on_host(const struct device *device);

/* Where blocks of device_alloc are counted; those of device_alloc_host count as host memory. */
enum mem_location device_memory(const struct device *device);
/* Bytes of GPU memory that came into use since the device was opened, by sifr or by the driver and
 * libraries. Without NVML, which knows what was in use before, all bytes in use. Ranks on the same
 * GPU see each other's. 0 = not a GPU, or unknown. */
size_t device_in_use(struct device *device);

/* A name of the GPU that is unique in a job: "0000:1b:00.0 of node3"; "" = the host. */
enum { DEVICE_GPU_BYTES = 112 };
const char *device_gpu(const struct device *device);

/* Sensors of a GPU; 0 = unknown. */
struct device_gauges {
    double clock_mhz; /* of the multiprocessors, now */
    double watts;     /* drawn, averaged over about a second */
    double celsius;
};
/* Takes up to a few milliseconds: do not call it every step. */
void device_read_gauges(struct device *device, struct device_gauges *gauges);

/* The devices of a back end on this machine. Opens nothing and never fails. index = -1 only counts
 * them. */
struct device_info {
    bool loaded;                    /* the back end's code is available */
    int count;                      /* devices; 0 = none, with the reason in `why` */
    char name[64];                  /* of device `index`: "NVIDIA H200"; "" = the host itself */
    char why[256];                  /* "" when there is a device */
    size_t free_bytes, total_bytes; /* of its own memory; 0 = none, or unknown */
    int capability;                 /* as device_capability */
};
void device_look(const char *backend, int index, struct device_info *info);
/* Whether the driver's library is installed. Loads nothing permanently. */
bool device_has_driver(const char *backend);

/* The CUDA installation: plugin, driver and GPUs, for `sifr doctor`. */
enum { DEVICE_GPUS = 16 };

struct device_gpu {
    char name[64];
    size_t bytes;
    int capability; /* 90 = 9.0 */
};

struct device_cuda_info {
    /* Why the CUDA back ends are not available; "" when they are, and only then the rest is set. */
    char missing[512];
    int driver;        /* latest CUDA version it supports, 13000 = 13.0; 0 = no driver */
    int runtime;       /* the CUDA version that the back ends were built with */
    int cublas, cudnn; /* versions of the loaded libraries: 91400 = 9.14.0 */
    int nccl;          /* 0 = built without */
    bool nvml;        /* libnvidia-ml.so.1 is available: clock, power, temperature, memory in use */
    char release[80]; /* version of the driver: "580.95.05"; "" = unknown */
    int gpu_count;    /* all GPUs; at most DEVICE_GPUS of them are described */
    struct device_gpu gpus[DEVICE_GPUS];
};

/* Loads the plugin; does not open a GPU. */
void device_cuda_info(struct device_cuda_info *info);

/* Zeroed memory on the device, aligned to at least 64 bytes. `out` is the address of any
 * pointer. */
enum status device_alloc(struct device *device, enum mem_category category, const char *name,
                         size_t bytes, void *out);
/* The same in host memory that is fastest for copies to and from the device (pinned for CUDA). */
enum status device_alloc_host(struct device *device, enum mem_category category, const char *name,
                              size_t bytes, void *out);
void device_free(struct device *device, void *block); /* of either kind; NULL is fine */

/* --- streams -------------------------------------------------------------------------------- */

enum status stream_create(struct device *device, const char *name, struct stream **stream);
/* A stream with a thread of its own, for work that overlaps with the caller's. A call returns
 * once its work is in the stream's ring; it blocks while the ring is full. */
enum status stream_create_worker(struct device *device, const char *name, struct stream **stream);
void stream_destroy(struct stream *stream); /* NULL is fine; waits */
struct device *stream_device(const struct stream *stream);
bool stream_is_worker(const struct stream *stream); /* has a thread of its own */
/* Wait for everything enqueued; returns the first failure, if any. */
enum status stream_sync(struct stream *stream);
/* For back ends: record a failure, which FAIL has logged, unless the stream has failed already. */
void stream_fail(struct stream *stream, enum status st);
bool stream_failed(const struct stream *stream);

/* Run a host function in the stream's order. An inline stream runs it immediately, a worker's
 * thread runs it in turn, and a dry device never runs it. On a plain CUDA stream the caller waits
 * for earlier work and then runs it. `args` is copied. Inside the task, calls on its own stream are
 * executed immediately. A failed stream still runs tasks, since a task may have to release
 * something: a task that does work checks stream_failed first. */
enum { STREAM_ARGS_BYTES = 192 };
typedef void stream_task_fn(struct stream *stream, const void *args);
void stream_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes);

/* --- events: points in one stream that another can wait for --------------------------------- */

enum status event_create(struct device *device, struct event **event);
void event_destroy(struct event *event); /* NULL is fine; waits until no stream needs it */
/* The event stands for everything enqueued on `stream` so far. Recording it again replaces the
 * point. On a failed stream, events complete as usual. */
void event_record(struct event *event, struct stream *stream);
/* Work enqueued on `stream` from now on starts after the point where `event` was last recorded.
 * Does not wait when the event was never recorded or `stream` has failed. On an inline stream the
 * caller waits. */
void stream_wait(struct stream *stream, struct event *event);
double stream_waited(const struct stream *stream); /* seconds spent waiting for events so far */
/* As far as the host knows, right now: is the stream waiting for an event, and is some thread in
 * stream_sync on it? Any thread may call these. */
bool stream_is_waiting(const struct stream *stream);
bool stream_is_awaited(const struct stream *stream);
/* For a thread that waits for the stream in a way of its own, to show its progress for example: in
 * between, the stream is awaited. */
void stream_await_begin(struct stream *stream);
void stream_await_end(struct stream *stream);

/* --- work ----------------------------------------------------------------------------------- */

/* Enqueued. Pointers may be to host or device memory; regions must not overlap. A worker stream
 * uses only its own thread. Host memory that is read belongs to the call until the stream has
 * passed it; but on a plain stream, ordinary (not pinned) memory has been read when the call
 * returns. */
void device_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
/* `rows` rows of `bytes` bytes each; they begin dst_apart and src_apart bytes after one another. In
 * device memory. */
void device_copy_rows(struct stream *stream, void *dst, size_t dst_apart, const void *src,
                      size_t src_apart, size_t bytes, int64_t rows);
void device_zero(struct stream *stream, void *dst, size_t bytes);
/* dst[i] += src[i], formed in fp32 (fp64 when dst is) and rounded once to dst_type; src_type f32,
 * bf16 or f16, or f64 when dst is. */
void device_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count);
/* The same for `parts` ranges of `src`, added in order; each starts `stride` elements after the
 * previous one. */
void device_accumulate_parts(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                             enum dtype src_type, int64_t count, int64_t stride, int parts);
/* sums[b] += weight * the sum of squares of elements 64 b .. 64 b + 63 of src, formed in fp64 with
 * the bits of ops_square_sums; the last block may be short. src_type f32, bf16 or f16. */
enum { DEVICE_SQUARES = 64 };
void device_add_squares(struct stream *stream, double *sums, const void *src, enum dtype src_type,
                        int64_t count, double weight);
/* device_accumulate to f32 and device_add_squares with the same bits, reading src once. `first`:
 * dst[i] = src[i], also where it is -0, and the sums are overwritten. */
void device_accumulate_squares(struct stream *stream, float *dst, const void *src,
                               enum dtype src_type, int64_t count, bool first, double *sums,
                               double weight);

/* --- spans of the trace (base/trace.h), timed when a stream reaches them -------------------- */

/* A span on the device's own clock: it begins when the stream has done what was enqueued before,
 * and ends when it has done everything enqueued in between. So waits between spans are gaps.
 * Returns a mark for stream_span_end, and -1 when nothing is traced: without a trace, outside its
 * window, on a dry device, and while the stream records. */
int64_t stream_span_begin(struct stream *stream, const struct trace_span *span);
void stream_span_end(struct stream *stream, int64_t mark);
/* The caller waited for other streams from `start` (trace_begin) until now. Shown on the compute
 * lane where the caller computes, and on the host's where a GPU does. */
void stream_trace_wait(const struct stream *stream, double start);

/* Prepare for `spans` spans, after env->trace was set; a GPU has a limited number. At most once. */
enum status device_spans_create(struct device *device, int64_t spans);
/* The window of the trace opens: compare the clocks of device and host. */
void device_spans_open(struct device *device);
/* Before the trace is written: compare the clocks again, and give the trace the times of all spans
 * that have ended. At most once. */
void device_spans_close(struct device *device);

/* --- recordings: work that is recorded once and replayed many times ------------------------- */

struct recording;
/* Work enqueued on a plain stream from here to stream_record_end is recorded and not executed:
 * copies, zeros, sums and ops. Tasks, events, waits and other streams are not allowed. Copies must
 * be between blocks of device_alloc or device_alloc_host. Memory is read when the recording is
 * replayed, so values that change between replays must be in memory. false = the device cannot
 * record, or not now; then do not call stream_record_end. */
bool stream_record_begin(struct stream *stream);
/* Returns the recording, which the caller destroys. NULL when something could not be recorded: this
 * has been logged, nothing was executed, and the stream is as before. */
struct recording *stream_record_end(struct stream *stream);
/* Enqueue the recording on a stream of the same device. The memory it uses must still be
 * allocated. */
void stream_replay(struct stream *stream, struct recording *recording);
void recording_destroy(struct device *device, struct recording *recording); /* NULL is fine */

/* --- simulated time of a dry device --------------------------------------------------------- */

/* The cost of the device's own work. */
struct device_pace {
    double call;                  /* seconds for any copy, zero or sum */
    double copy_bytes_per_second; /* bytes read plus written; 0 = they take no time */
    double theft; /* seconds that plain streams lose for each second of a worker's work that
                     overlaps with theirs: 1 where the same cores do both */
    /* Far memory (far.h); 0 = its bytes take no time. Two streams have the full rate each. */
    double link_bytes_per_second; /* between host and GPU, each way */
    double disk_read_bytes_per_second, disk_write_bytes_per_second;
    double host_update_bytes_per_second; /* read and written by the CPU of a GPU machine */
};
/* From now on the host and every stream of a dry device have a clock, in seconds from this call.
 * Plain streams of "dry" share the host's clock. All other streams overlap with the host: their
 * work starts no earlier than it was enqueued, and enqueueing takes no time. */
void device_keep_time(struct device *device, const struct device_pace *pace);
double device_clock(const struct device *device); /* of the host; 0 when time is not simulated */
/* The host works for `seconds`, or waits until `clock` unless that has passed. */
void device_spend(struct device *device, double seconds);
void device_wait_until(struct device *device, double clock);
/* Work on the stream takes `seconds`. */
void stream_spend(struct stream *stream, double seconds);
/* The CPU reads and writes `bytes` of host memory, in the stream's order. */
void stream_spend_on_host(struct stream *stream, double bytes);
/* The time at which everything enqueued on the stream will be done; now, if it is done already. On
 * other devices clock_seconds(), so that differences are meaningful. */
double stream_clock(const struct stream *stream);
double stream_spent(const struct stream *stream); /* seconds of work so far, on a dry device */

#endif
