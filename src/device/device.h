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
 * The "dry" device counts memory and returns addresses that must not be touched: `sifr plan` builds
 * the real engine on it, so that plan and run cannot disagree. "dry-gpu" is the same for a GPU,
 * whose memory is not the host's. Either can simulate time (device_keep_time): calls advance
 * virtual clocks.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/env.h"

struct device;
struct stream;
struct event;

/* `index` picks among several GPUs. The device borrows `env`. */
enum status device_create(struct env *env, const char *backend, int index, struct device **device);
void device_destroy(
    struct device *device); /* NULL is fine; all blocks, streams and events must be destroyed */
struct env *device_env(const struct device *device);
const char *device_backend(const struct device *device); /* "cpu" */
bool device_is_dry(const struct device *device);
/* Whether the host may read and write device memory through its address; not on a dry device. */
bool device_on_host(const struct device *device);

/* Where blocks of device_alloc are counted; those of device_alloc_host count as host memory. */
enum mem_location device_memory(const struct device *device);
/* Bytes of the GPU that came into use since the device was opened: what sifr counts, and what
 * driver and libraries allocate. Without NVML, which tells what was in use before, all bytes in
 * use. Ranks on one GPU see each other's. 0 = not a GPU, or unknown. */
size_t device_in_use(struct device *device);

/* A name of the GPU that is unique in a job: "0000:1b:00.0 of node3"; "" = the host. */
enum { DEVICE_GPU_BYTES = 112 };
const char *device_gpu(const struct device *device);

/* Sensors of a GPU; 0 = unknown. */
struct device_gauges {
    double clock_mhz; /* of its multiprocessors, now */
    double watts;     /* drawn, over about a second */
    double celsius;
};
/* Takes up to a few milliseconds: do not call it every step. */
void device_read_gauges(struct device *device, struct device_gauges *gauges);

/* The devices of a back end on this machine. Opens nothing and never fails. `index` -1: only counts
 * them. */
struct device_info {
    bool loaded;                    /* the back end's code is available */
    int count;                      /* devices; 0 = none, for the reason in `why` */
    char name[64];                  /* of device `index`: "NVIDIA H200"; "" = the host itself */
    char why[256];                  /* "" = there is one */
    size_t free_bytes, total_bytes; /* of its own memory; 0 = it has none, or it is not known */
};
void device_look(const char *backend, int index, struct device_info *info);
/* Whether the driver's library is installed. Loads nothing permanently. */
bool device_has_driver(const char *backend);

/* Zeroed memory on the device, aligned to 64 bytes at least. `out` is the address of any pointer.
 */
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
bool stream_is_worker(const struct stream *stream); /* it has a thread of its own */
enum status
stream_sync(struct stream *stream); /* wait for everything enqueued; the first failure, if any */
/* For back ends: record a failure, which FAIL has logged, unless the stream has failed already. */
void stream_fail(struct stream *stream, enum status st);
bool stream_failed(const struct stream *stream);

/* Run a function of the host in the stream's order: at once on an inline stream, by the stream's
 * thread on a worker, never on a dry device; a plain CUDA stream makes its caller wait for what is
 * before it. `args` is copied. Inside the task, calls on its own
 * stream run at once. A failed stream still runs tasks, since one may have something to hand back:
 * a task that does work asks stream_failed first. */
enum { STREAM_ARGS_BYTES = 192 };
typedef void stream_task_fn(struct stream *stream, const void *args);
void stream_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes);

/* --- events: points in one stream that another can wait for --------------------------------- */

enum status event_create(struct device *device, struct event **event);
void event_destroy(struct event *event); /* NULL is fine; waits until no stream needs it */
/* The event stands for everything enqueued on `stream` so far. Recorded again, it stands for the
 * new point only. A failed stream passes it like any other. */
void event_record(struct event *event, struct stream *stream);
/* Work enqueued on `stream` from now on starts after the point where `event` was last recorded; at
 * once when it never was, or when `stream` has failed. An inline stream makes its caller wait. */
void stream_wait(struct stream *stream, struct event *event);
double stream_waited(const struct stream *stream); /* seconds spent waiting for events so far */
/* Right now, and as far as the host knows it: is the stream waiting for an event, is somebody in
 * stream_sync for it? Any thread may ask. */
bool stream_is_waiting(const struct stream *stream);
bool stream_is_awaited(const struct stream *stream);

/* --- work ----------------------------------------------------------------------------------- */

/* Enqueued. Host and device pointers alike; regions do not overlap. A worker stream uses its one
 * thread. Memory of the host that is read belongs to the call until the stream has passed it; on a
 * stream that is not a worker ordinary (not pinned) memory has been read when the call returns. */
void device_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
void device_zero(struct stream *stream, void *dst, size_t bytes);
/* dst[i] += src[i], formed in fp32 (fp64 when dst is) and rounded once to dst_type; src_type f32,
 * bf16 or f16, or f64 when dst is. */
void device_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count);
/* The same of `parts` ranges one after the other; each begins `stride` elements behind the one
 * before. */
void device_accumulate_parts(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                             enum dtype src_type, int64_t count, int64_t stride, int parts);

/* --- recordings: work that is enqueued once and done many times ------------------------------ */

struct recording;
/* Work enqueued on a plain stream from here to the end of the recording is recorded and not
 * executed: copies, zeros, sums and work of ops; no tasks, events, other streams or waits.
 * Copies must be of memory from device_alloc or device_alloc_host. All memory is read when the
 * recording is replayed, so values that change between replays must be in memory. false = the
 * device cannot record, or not now; then do not call stream_record_end. */
bool stream_record_begin(struct stream *stream);
/* The recording, which the caller destroys; NULL when something could not be recorded: that has
 * been logged, the stream is as before, and nothing was executed. */
struct recording *stream_record_end(struct stream *stream);
/* Enqueue the recording on a stream of the same device. The memory it uses must still be
 * allocated. */
void stream_replay(struct stream *stream, struct recording *recording);
void recording_destroy(struct device *device, struct recording *recording); /* NULL is fine */

/* --- time on a dry device: src/device/dry/dry_time.c ----------------------------------------- */

/* The cost of the device's own work. */
struct device_pace {
    double call;                  /* seconds of any copy, zero or accumulate */
    double copy_bytes_per_second; /* read and written by these; 0: they take none */
    double theft; /* seconds of plain streams that each second on a worker takes, where they go on
                     beside it: 1 where the same cores do both */
};
/* From now on the host and every stream of a dry device have a clock, in seconds from here. A plain
 * stream of "dry" is the host itself; all others run beside it, begin work no earlier than it was
 * enqueued, and enqueueing costs nothing. */
void device_keep_time(struct device *device, const struct device_pace *pace);
double device_clock(const struct device *device); /* the host's: 0 where no time is kept */
/* The host does something itself, or waits until that time, if it is not past. */
void device_spend(struct device *device, double seconds);
void device_wait_until(struct device *device, double clock);
/* Work on the stream takes `seconds`. */
void stream_spend(struct stream *stream, double seconds);
/* When all that is enqueued on the stream will be done: now, if it is. On a device that is not
 * dry it is clock_seconds(), for who takes differences. */
double stream_clock(const struct stream *stream);
double stream_spent(const struct stream *stream); /* seconds of work so far, on a dry device */

#endif
