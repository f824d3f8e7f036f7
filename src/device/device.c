/* device -- the faces: back ends by name, the list of blocks, sticky stream errors, argument
 * checks.
 *
 * Every block is in the device's list from device_alloc to device_free, so a block freed twice,
 * freed on the wrong device or forgotten is found at once. Blocks are few and are taken at
 * start-up: a list is enough. A device is allocated from and freed to by one thread at a time;
 * its streams may be used by different threads.
 */
#include "device/device.h"
#include <stdio.h>
#include <string.h>
#include "device/device_impl.h"

/* The back ends compiled in: the only place that knows their names. */
static const struct device_backend *const backends[] = {&device_cpu, &device_dry};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

/* --- the device ----------------------------------------------------------------------------- */

static const struct device_backend *find_backend(const char *name)
{
    for (int i = 0; i < BACKEND_COUNT; i++) {
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    }
    return NULL;
}

static enum status fail_unknown(struct env *env, const char *name)
{
    char known[128] = "";
    size_t used = 0;
    for (int i = 0; i < BACKEND_COUNT; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 backends[i]->name);
        CHECK_LT(used, sizeof known);
    }
    return FAIL(env, CONFIG, "there is no device '%s'; there are: %s", name, known);
}

enum status device_create(struct env *env, const char *backend, int index, struct device **device)
{
    enum status st;
    const struct device_backend *table = find_backend(backend);
    struct device *d;
    if (table == NULL)
        return fail_unknown(env, backend);
    TRY(mem_alloc(env, MEM_OTHER, "device", table->device_bytes, &d));
    d->backend = table;
    d->env = env;
    if (table->open != NULL)
        TRY_OR(undo_self, table->open(d, index));
    *device = d;
    return STATUS_OK;
undo_self:
    mem_free(env, d);
    return st;
}

void device_destroy(struct device *device)
{
    if (device == NULL)
        return;
    CHECK(device->blocks == NULL);
    CHECK_EQ(device->stream_count, 0);
    if (device->backend->close != NULL)
        device->backend->close(device);
    mem_free(device->env, device);
}

struct env *device_env(const struct device *device)
{
    return device->env;
}

const char *device_backend(const struct device *device)
{
    return device->backend->name;
}

bool device_is_dry(const struct device *device)
{
    return device->backend->dry;
}

/* --- memory --------------------------------------------------------------------------------- */

enum status device_alloc(struct device *device, enum mem_category category, const char *name,
                         size_t bytes, void *out)
{
    enum status st;
    struct device_block *block;
    void *const nothing = NULL;
    size_t name_bytes = strlen(name) + 1;
    memcpy(out, &nothing, sizeof nothing);
    TRY(mem_alloc(device->env, MEM_OTHER, "device blocks", sizeof *block + name_bytes, &block));
    block->bytes = bytes == 0 ? 1 : bytes;
    block->category = category;
    memcpy(block->name, name, name_bytes);
    TRY_OR(undo_block, device->backend->alloc(device, block));
    CHECK(block->address != NULL);
    block->next = device->blocks;
    device->blocks = block;
    memcpy(out, &block->address, sizeof block->address);
    return STATUS_OK;
undo_block:
    mem_free(device->env, block);
    return st;
}

void device_free(struct device *device, void *address)
{
    if (address == NULL)
        return;
    struct device_block **link = &device->blocks;
    while (*link != NULL && (*link)->address != address)
        link = &(*link)->next;
    struct device_block *block = *link;
    CHECK(block != NULL); /* not ours, or already freed */
    *link = block->next;
    device->backend->free(device, block);
    mem_free(device->env, block);
}

/* --- streams -------------------------------------------------------------------------------- */

enum status stream_create(struct device *device, const char *name, struct stream **stream)
{
    enum status st;
    struct stream *s;
    TRY(mem_alloc(device->env, MEM_OTHER, name, device->backend->stream_bytes, &s));
    s->device = device;
    atomic_init(&s->error, STATUS_OK);
    if (device->backend->stream_open != NULL)
        TRY_OR(undo_self, device->backend->stream_open(s));
    device->stream_count++;
    *stream = s;
    return STATUS_OK;
undo_self:
    mem_free(device->env, s);
    return st;
}

void stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    struct device *device = stream->device;
    stream_sync(stream);
    if (device->backend->stream_close != NULL)
        device->backend->stream_close(stream);
    device->stream_count--;
    mem_free(device->env, stream);
}

struct device *stream_device(const struct stream *stream)
{
    return stream->device;
}

enum status stream_sync(struct stream *stream)
{
    const struct device_backend *backend = stream->device->backend;
    if (backend->stream_sync != NULL)
        stream_fail(stream, backend->stream_sync(stream));
    return (enum status)atomic_load(&stream->error);
}

void stream_fail(struct stream *stream, enum status st)
{
    int none = STATUS_OK;
    atomic_compare_exchange_strong(&stream->error, &none, (int)st);
}

bool stream_failed(const struct stream *stream)
{
    return atomic_load_explicit(&stream->error, memory_order_relaxed) != STATUS_OK;
}

/* --- enqueued work -------------------------------------------------------------------------- */

/* Nothing is to be done on this stream: it failed before, or its device is dry. */
static bool idle(const struct stream *stream)
{
    return stream_failed(stream) || stream->device->backend->dry;
}

static bool is_apart(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return first + a_bytes <= second || second + b_bytes <= first;
}

void device_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return;
    CHECK(dst != NULL && src != NULL);
    CHECK(is_apart(dst, bytes, src, bytes));
    if (!idle(stream))
        stream->device->backend->copy(stream, dst, src, bytes);
}

void device_zero(struct stream *stream, void *dst, size_t bytes)
{
    if (bytes == 0)
        return;
    CHECK(dst != NULL);
    if (!idle(stream))
        stream->device->backend->zero(stream, dst, bytes);
}

void device_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count)
{
    CHECK_LE(0, count);
    if (count == 0)
        return;
    CHECK(dst != NULL && src != NULL);
    CHECK(dst_type == DTYPE_F32 || dst_type == DTYPE_F64 || dst_type == DTYPE_BF16 ||
          dst_type == DTYPE_F16);
    CHECK(src_type == DTYPE_F32 || src_type == DTYPE_BF16 || src_type == DTYPE_F16);
    CHECK(is_apart(dst, (size_t)count * dtype_bytes(dst_type), src,
                   (size_t)count * dtype_bytes(src_type)));
    if (!idle(stream))
        stream->device->backend->accumulate(stream, dst, dst_type, src, src_type, count);
}
