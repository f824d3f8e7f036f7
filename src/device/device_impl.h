/* device_impl -- what a device back end fills in; for src/device only.
 *
 * The face in device.c owns the objects, the list of blocks and the sticky error of a stream, and
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
    bool dry;            /* addresses must not be touched: the face drops all enqueued work */
    size_t device_bytes; /* of the back end's device struct, `struct device` first */
    size_t stream_bytes; /* of its stream struct, `struct stream` first */

    enum status (*open)(struct device *device, int index); /* NULL: nothing to do */
    void (*close)(struct device *device);                  /* NULL: nothing to do */
    /* Take block->bytes zeroed bytes, counted under the block's category and name; set
     * block->address. */
    enum status (*alloc)(struct device *device, struct device_block *block);
    void (*free)(struct device *device, struct device_block *block);

    enum status (*stream_open)(struct stream *stream); /* NULL: nothing to do */
    void (*stream_close)(struct stream *stream);       /* NULL: nothing to do */
    enum status (*stream_sync)(
        struct stream *stream); /* NULL: work is done when its call returns */

    /* Enqueued work; never called on a dry device, on a failed stream or with a count of zero. */
    void (*copy)(struct stream *stream, void *dst, const void *src, size_t bytes);
    void (*zero)(struct stream *stream, void *dst, size_t bytes);
    void (*accumulate)(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count);
};

/* One allocation. */
struct device_block {
    struct device_block *next;
    void *address;
    size_t bytes; /* at least 1 */
    enum mem_category category;
    char name[];
};

struct device {
    const struct device_backend *backend;
    struct env *env;             /* borrowed */
    struct device_block *blocks; /* what is allocated now, newest first */
    int stream_count;            /* streams that exist now */
};

struct stream {
    struct device *device; /* borrowed */
    _Atomic int error;     /* enum status of the first failure */
};

extern const struct device_backend device_cpu;
extern const struct device_backend device_dry;

#endif
