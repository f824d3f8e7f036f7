/* device_impl -- what a device back end implements; for src/device only.
 *
 * device.c and stream.c own the objects, the table of blocks and the sticky error of a stream, and
 * check arguments. A back end is one const table over structs that begin with `struct device`,
 * `struct stream` and `struct event`.
 */
#ifndef DEVICE_DEVICE_IMPL_H
#define DEVICE_DEVICE_IMPL_H
#include <stdatomic.h>
#include "device/device.h"

struct device_block;

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
    void (*copy)(struct stream *stream, void *dst, const void *src, size_t bytes);
    void (*zero)(struct stream *stream, void *dst, size_t bytes);
    void (*accumulate)(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count);
    /* All ranges in one call; NULL: `accumulate` is called for each range. */
    void (*accumulate_parts)(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                             enum dtype src_type, int64_t count, int64_t stride, int parts);

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
    char gpu[DEVICE_GPU_BYTES];                /* as device_gpu; set by `open` */
};

struct stream {
    struct device *device;     /* borrowed */
    bool worker;               /* has a thread of its own */
    _Atomic int error;         /* enum status of the first failure */
    _Atomic int64_t waited_ns; /* spent waiting for events */
    _Atomic bool waiting;      /* in a wait for an event now */
    _Atomic int syncs;         /* threads in stream_sync */
};

struct event {
    struct device *device; /* borrowed */
};

/* Count a block in its location, under its category and name; on a GPU with the unused end of its
 * last page. */
enum status device_count_block(struct device *device, const struct device_block *block);
void device_uncount_block(struct device *device, const struct device_block *block);

/* Pinned staging buffer of a plain stream of a GPU. */
enum { DEVICE_STREAM_STAGE = 2 << 20 };

extern const struct device_backend device_cpu;
extern const struct device_backend device_dry;
extern const struct device_backend device_dry_gpu;
/* The symbol in libsifr-cuda: a const struct device_backend. */
#define DEVICE_CUDA_ENTRY "sifr_device_cuda"

#endif
