/* device -- back ends by name and the list of blocks; streams and events are in stream.c.
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
    CHECK_EQ(device->event_count, 0);
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
