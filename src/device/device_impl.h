/* device_impl -- what a device back end fills in; for src/device only.
 *
 * The face in device.c owns the objects, the table of blocks and the sticky error of a stream, and
 * checks arguments; a back end is one const table over structs that begin with `struct device` and
 * `struct stream`.
 */
#ifndef DEVICE_DEVICE_IMPL_H
#define DEVICE_DEVICE_IMPL_H
#include <stdatomic.h>
#include "device/device.h"

struct device_block;

struct device_backend {
    const char *name;
    bool dry;                   /* addresses must not be touched: work takes time at most */
    bool on_host;               /* the host may touch them */
    enum mem_location location; /* of its own blocks */
    size_t device_bytes;        /* of the back end's device struct, `struct device` first */
    size_t stream_bytes;        /* of its stream struct, `struct stream` first */
    size_t event_bytes;         /* of its event struct, `struct event` first */

    /* Fill in count and why, and name and bytes of `index` where there is one of that number. NULL:
     * one device, the host itself. */
    void (*look)(int index, struct device_info *info);
    enum status (*open)(struct device *device, int index); /* NULL: nothing to do */
    void (*close)(struct device *device);                  /* NULL: nothing to do */
    /* What is in use of the device's memory, as device_in_use tells; NULL: it is not known. */
    size_t (*in_use)(struct device *device);
    /* NULL: nothing is known. */
    void (*read_gauges)(struct device *device, struct device_gauges *gauges);
    /* Take block->bytes zeroed bytes (see block->host), counted by device_count_block; set
     * block->address. */
    enum status (*alloc)(struct device *device, struct device_block *block);
    void (*free)(struct device *device, const struct device_block *block);

    enum status (*stream_open)(struct stream *stream,
                               const char *name); /* sees stream->worker; NULL: nothing to do */
    void (*stream_close)(struct stream *stream);  /* NULL: nothing to do */
    enum status (*stream_sync)(
        struct stream *stream); /* NULL: work is done when its call returns */

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
    /* Many ranges at once; NULL: by `accumulate`, one by one. */
    void (*accumulate_parts)(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                             enum dtype src_type, int64_t count, int64_t stride, int parts);

    /* Recordings; NULL, all of them: there are none. `record_end` gives NULL after a failure, which it
     * has said; `forget` destroys what it gave, which is the back end's own and not accounted. */
    bool (*record_begin)(struct stream *stream);
    struct recording *(*record_end)(struct stream *stream);
    void (*replay)(struct stream *stream, struct recording *recording);
    void (*forget)(struct device *device, struct recording *recording);
};

/* One allocation. */
struct device_block {
    struct device_block *next; /* in its list */
    void *address;
    size_t bytes; /* at least 1 */
    bool host;    /* memory of the host that the device reaches fast */
    enum mem_category category;
    char name[];
};

enum { DEVICE_LISTS = 1024 }; /* a power of two */

struct device {
    const struct device_backend *backend;
    struct env *env;                           /* borrowed */
    struct device_block *blocks[DEVICE_LISTS]; /* what is allocated now, by address */
    int64_t block_count;                       /* of all lists */
    int stream_count;                          /* streams that exist now */
    int event_count;                           /* events that exist now */
    char gpu[DEVICE_GPU_BYTES];                /* see device_gpu; for `open` to fill in */
};

struct stream {
    struct device *device;     /* borrowed */
    bool worker;               /* has a thread of its own */
    _Atomic int error;         /* enum status of the first failure */
    _Atomic int64_t waited_ns; /* spent waiting for events */
    _Atomic bool waiting;      /* for one now */
    _Atomic int syncs;         /* threads in stream_sync */
};

struct event {
    struct device *device; /* borrowed */
};

/* Count a block where it is, under its category and name; on a GPU to the end of its page. */
enum status device_count_block(struct device *device, const struct device_block *block);
void device_uncount_block(struct device *device, const struct device_block *block);

/* Pinned memory of a plain stream of a GPU. */
enum { DEVICE_STREAM_STAGE = 2 << 20 };

extern const struct device_backend device_cpu;
extern const struct device_backend device_dry;
extern const struct device_backend device_dry_gpu;
/* The entry of libsifr-cuda for device: a const struct device_backend. */
#define DEVICE_CUDA_ENTRY "sifr_device_cuda"

#endif
