/* device -- memory, streams and copies of the place where a rank computes; back ends "cpu" and
 * "dry".
 *
 * Work on a stream runs in order. A CPU stream runs each call before it returns; other devices
 * enqueue. Functions that enqueue return void: the first failure sticks to the stream with its
 * place, later calls on it do nothing, and stream_sync tells. Memory is taken at start-up, by
 * category and name, and given back at the end.
 *
 * The "dry" device counts memory and hands out addresses that must not be touched: `sifr plan`
 * builds the real engine on it, so that the plan and the run cannot drift apart.
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

/* `index` picks among several cards. The device borrows `env`. */
enum status device_create(struct env *env, const char *backend, int index, struct device **device);
void device_destroy(
    struct device *device); /* NULL is fine; everything allocated must be free by then */
struct env *device_env(const struct device *device);
const char *device_backend(const struct device *device); /* "cpu" */
bool device_is_dry(const struct device *device);

/* Zeroed memory on the device, aligned to 64 bytes at least. `out` is the address of any pointer.
 */
enum status device_alloc(struct device *device, enum mem_category category, const char *name,
                         size_t bytes, void *out);
void device_free(struct device *device, void *block); /* NULL is fine */

enum status stream_create(struct device *device, const char *name, struct stream **stream);
void stream_destroy(struct stream *stream); /* NULL is fine; waits */
struct device *stream_device(const struct stream *stream);
enum status
stream_sync(struct stream *stream); /* wait for everything enqueued; the first failure, if any */
/* For back ends: note a failure on the stream unless there is one already; it has been logged by
 * FAIL. */
void stream_fail(struct stream *stream, enum status st);
bool stream_failed(const struct stream *stream);

/* Enqueued. Host and device pointers alike; regions do not overlap. */
void device_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
void device_zero(struct stream *stream, void *dst, size_t bytes);
/* dst[i] += src[i], formed in fp32 (fp64 when dst is) and rounded once to dst_type; src_type f32,
 * bf16 or f16. */
void device_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count);

#endif
