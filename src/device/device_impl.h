/* device_impl -- what a device back end implements; for src/device only.
 *
 * device.c and stream.c own the objects, the table of blocks and the sticky error of a stream, and
 * check arguments. A back end is one const table over structs that begin with `struct device`,
 * `struct stream` and `struct event`.
 */
#ifndef DEVICE_DEVICE_IMPL_H
#define DEVICE_DEVICE_IMPL_H
#include <pthread.h>
#include <stdatomic.h>
#include "device/device.h"
#include "device/far.h"

struct device_block;
struct far_disk;

struct device_backend {
    const char *name;
    bool dry;                   /* addresses must not be touched; work at most takes virtual time */
    bool on_host;               /* the host may access device memory */
    enum mem_location location; /* of device_alloc's blocks */
    size_t device_bytes;        /* of the back end's device struct, `struct device` first */
    size_t stream_bytes;        /* of its stream struct, `struct stream` first */
    size_t event_bytes;         /* of its event struct, `struct event` first */

    /* Set count and why, and name and bytes if GPU `index` exists. NULL: there is one device, the
     * host itself. */
    void (*look)(int index, struct device_info *info);
    enum status (*open)(struct device *device, int index); /* NULL: nothing to do */
    void (*close)(struct device *device);                  /* NULL: nothing to do */
    /* As device_in_use; NULL: unknown. */
    size_t (*in_use)(struct device *device);
    /* NULL: no sensors. */
    void (*read_gauges)(struct device *device, struct device_gauges *gauges);
    /* Allocate block->bytes zeroed bytes, on the host or device (block->host), counted with
     * device_count_block; set block->address. */
    enum status (*alloc)(struct device *device, struct device_block *block);
    void (*free)(struct device *device, const struct device_block *block);

    /* stream->worker is already set. NULL: nothing to do. */
    enum status (*stream_open)(struct stream *stream, const char *name);
    void (*stream_close)(struct stream *stream); /* NULL: nothing to do */
    /* NULL: work is done when its call returns. */
    enum status (*stream_sync)(struct stream *stream);

    enum status (*event_open)(struct event *event); /* NULL: nothing to do */
    void (*event_close)(struct event *event); /* waits until no stream needs it; NULL: nothing */

    /* `wait` is not called on a failed stream. */
    void (*enqueue)(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes);
    void (*record)(struct event *event, struct stream *stream);
    void (*wait)(struct stream *stream, struct event *event);

    /* Enqueued work; never called on a failed stream or with a count of zero. */
    /* `mark` = a span around the copy, or -1. */
    void (*copy)(struct stream *stream, void *dst, const void *src, size_t bytes, int64_t mark);
    /* All rows in one call; NULL: `copy` is called for each row. */
    void (*copy_rows)(struct stream *stream, void *dst, size_t dst_apart, const void *src,
                      size_t src_apart, size_t bytes, int64_t rows);
    void (*zero)(struct stream *stream, void *dst, size_t bytes);
    void (*accumulate)(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count);
    /* All ranges in one call; NULL: `accumulate` is called for each range. */
    void (*accumulate_parts)(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                             enum dtype src_type, int64_t count, int64_t stride, int parts);
    /* dst NULL: device_add_squares; `first` is false then. */
    void (*accumulate_squares)(struct stream *stream, float *dst, const void *src,
                               enum dtype src_type, int64_t count, bool first, double *sums,
                               double weight);

    /* Spans of env->trace; all NULL: none. `span_claim` returns a mark, or -1; `span_mark` enqueues
     * its start or end, in the stream's order. The others are as in device.h; NULL: times are in
     * the trace when the stream has passed the mark. */
    int64_t (*span_claim)(struct stream *stream, const struct trace_span *span);
    void (*span_mark)(struct stream *stream, int64_t mark, bool end);
    enum status (*spans_create)(struct device *device, int64_t spans);
    void (*spans_open)(struct device *device);
    void (*spans_close)(struct device *device);

    /* Recordings; all NULL: not supported. `record_end` returns NULL after a failure, which it has
     * logged. `forget` destroys a recording. Memory of recordings belongs to the back end and is
     * not accounted. */
    bool (*record_begin)(struct stream *stream);
    struct recording *(*record_end)(struct stream *stream);
    void (*replay)(struct stream *stream, struct recording *recording);
    void (*forget)(struct device *device, struct recording *recording);
};

/* One allocation. */
struct device_block {
    struct device_block *next; /* in its hash list */
    void *address;
    size_t bytes; /* at least 1 */
    bool host;    /* host memory with fast access for the device */
    enum mem_category category;
    char name[];
};

enum { DEVICE_LISTS = 1024 }; /* a power of two */

struct device {
    const struct device_backend *backend;
    struct env *env;                           /* borrowed */
    struct device_block *blocks[DEVICE_LISTS]; /* current blocks, hashed by address */
    int64_t block_count;                       /* in all lists */
    int stream_count;                          /* existing streams */
    int event_count;                           /* existing events */
    struct far_disk *far_disk;                 /* of far memory on disk (far_disk.c); or NULL */
    char gpu[DEVICE_GPU_BYTES];                /* as device_gpu; set by `open` */
    int capability;                            /* as device_capability; set by `open` */
};

struct stream {
    struct device *device;     /* borrowed */
    bool worker;               /* has a thread of its own */
    _Atomic int error;         /* enum status of the first failure */
    _Atomic int64_t waited_ns; /* spent waiting for events */
    _Atomic bool waiting;      /* in a wait for an event now */
    _Atomic int syncs;         /* threads in stream_sync */
    bool records;              /* between stream_record_begin and stream_record_end */
};

struct event {
    struct device *device; /* borrowed */
};

/* Count a block in its location, under its category and name; on a GPU with the unused end of its
 * last page. */
enum status device_count_block(struct device *device, const struct device_block *block);
void device_uncount_block(struct device *device, const struct device_block *block);

/* stream_span_begin in two parts: claim a span when work is enqueued, mark its start and end when a
 * task does the work. */
int64_t stream_span_claim(struct stream *stream, const struct trace_span *span);
void stream_span_mark(struct stream *stream, int64_t mark, bool end);
/* device_copy with a span around it. It takes one place in a worker's ring, as without. */
void device_copy_traced(struct stream *stream, void *dst, const void *src, size_t bytes,
                        const struct trace_span *span);

/* Pinned staging buffer of a plain stream of a GPU. */
enum { DEVICE_STREAM_STAGE = 2 << 20 };

/* --- tickets.c: the host side of an event, for any kind of stream --------------------------- */

/* A record takes the next ticket and passes it when its stream reaches the record. A wait is for
 * the newest ticket at the time the wait was enqueued, so recording an event twice before a stream
 * reaches it loses nothing. Records and waits that streams have not reached yet are the event's
 * users; closing waits for all of them. The back end defines what passing a ticket means. */
struct tickets {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t recorded, passed; /* newest ticket taken, newest ticket passed */
    int users;                /* records and waits that streams have not reached */
};

void tickets_open(struct tickets *tickets);
void tickets_close(struct tickets *tickets); /* waits until there are no users */

/* The caller becomes a user, with a new ticket or with the newest. */
int64_t tickets_record(struct tickets *tickets);
int64_t tickets_newest(struct tickets *tickets);
/* End a use: the stream has reached the record, or its wait is over. */
void tickets_pass(struct tickets *tickets, int64_t ticket);
void tickets_leave(struct tickets *tickets);
/* Sleep until the ticket has passed; returns immediately when the stream has failed. The time
 * counts as waiting time of the stream. */
void tickets_await(struct tickets *tickets, int64_t ticket, struct stream *stream);

/* --- worker.c: a thread that runs tasks one after the other from a bounded ring ------------- */

/* Nothing is allocated after worker_create: arguments are copied into the ring. Any thread may add
 * tasks; tasks of one thread run in order. */
struct worker;

enum {
    WORKER_RING = 256,                         /* capacity in tasks */
    WORKER_ARGS_BYTES = STREAM_ARGS_BYTES + 16 /* arguments of a task, and a back end's own */
};

/* Tasks are called with `stream`, which outlives the worker. The thread blocks signals. */
enum status worker_create(struct env *env, const char *name, struct stream *stream,
                          struct worker **worker);
void worker_destroy(struct worker *worker); /* after running all tasks in the ring */
/* Blocks while the ring is full. The worker's own thread must not call it. */
void worker_add(struct worker *worker, stream_task_fn *task, const void *args, size_t bytes);
void worker_drain(struct worker *worker); /* waits for all tasks added so far */
bool worker_is_me(const struct worker *worker);

/* --- device_dry.c: simulated time of far memory (far.h) ------------------------------------- */

void dry_copy_far(struct stream *stream, enum far_kind kind, bool write, size_t bytes);

/* --- the back ends -------------------------------------------------------------------------- */

extern const struct device_backend device_cpu;
extern const struct device_backend device_dry;
extern const struct device_backend device_dry_gpu;
/* The symbol in libsifr-cuda: a const struct device_backend. */
#define DEVICE_CUDA_ENTRY "sifr_device_cuda"
/* For device_cuda_info, also there: one sets everything but `missing` and `nccl`, the other returns
 * NCCL's version. */
#define DEVICE_CUDA_LOOK "sifr_cuda_look"
#define DEVICE_NCCL_LOOK "sifr_nccl_look"
typedef void device_cuda_look_fn(struct device_cuda_info *info);
typedef int device_nccl_look_fn(void);

#endif
