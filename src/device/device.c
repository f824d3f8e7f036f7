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
#include "base/plugin.h"
#include "device/device_impl.h"

/* The back ends, compiled in or in a plugin: the only place that knows their names. */
static const struct {
    const char *name;
    const struct device_backend *table; /* NULL: in the plugin of that name */
    const char *entry;
    const char *driver; /* without this library there is nothing to find; NULL: needs none */
} backends[] = {
    {"cpu", &device_cpu, NULL, NULL},
    {"cuda", NULL, DEVICE_CUDA_ENTRY, "libcuda.so.1"},
    {"dry", &device_dry, NULL, NULL},
};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

/* --- the device ----------------------------------------------------------------------------- */

static enum status fail_unknown(struct env *env, const char *name)
{
    char known[128] = "";
    size_t used = 0;
    for (int i = 0; i < BACKEND_COUNT; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 backends[i].name);
        CHECK_LT(used, sizeof known);
    }
    return FAIL(env, CONFIG, "there is no device '%s'; there are: %s", name, known);
}

static int backend_number(const char *name)
{
    int found = 0;
    while (found < BACKEND_COUNT && strcmp(backends[found].name, name) != 0)
        found++;
    return found;
}

static enum status find_backend(struct env *env, const char *name,
                                const struct device_backend **table)
{
    int found = backend_number(name);
    if (found == BACKEND_COUNT)
        return fail_unknown(env, name);
    *table = backends[found].table;
    return *table != NULL ? STATUS_OK : plugin_find(env, name, backends[found].entry, table);
}

enum status device_create(struct env *env, const char *backend, int index, struct device **device)
{
    enum status st;
    const struct device_backend *table;
    struct device *d;
    TRY(find_backend(env, backend, &table));
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

bool device_on_host(const struct device *device)
{
    return device->backend->on_host;
}

bool device_has_driver(const char *backend)
{
    int found = backend_number(backend);
    CHECK_LT(found, BACKEND_COUNT);
    return backends[found].driver == NULL || plugin_is_there(backends[found].driver);
}

void device_look(const char *backend, int index, struct device_info *info)
{
    const struct device_backend *table = NULL;
    int found = backend_number(backend);
    *info = (struct device_info){0};
    CHECK_LT(found, BACKEND_COUNT);
    if (backends[found].table != NULL)
        table = backends[found].table;
    else if (!plugin_look(backend, backends[found].entry, &table, info->why, sizeof info->why))
        return;
    info->loaded = true;
    if (table->look != NULL)
        table->look(index, info);
    else
        info->count = 1;
}

/* --- memory --------------------------------------------------------------------------------- */

static enum status alloc(struct device *device, bool host, enum mem_category category,
                         const char *name, size_t bytes, void *out)
{
    enum status st;
    struct device_block *block;
    void *const nothing = NULL;
    size_t name_bytes = strlen(name) + 1;
    memcpy(out, &nothing, sizeof nothing);
    TRY(mem_alloc(device->env, MEM_OTHER, "device blocks", sizeof *block + name_bytes, &block));
    block->bytes = bytes == 0 ? 1 : bytes;
    block->host = host;
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

enum status device_alloc(struct device *device, enum mem_category category, const char *name,
                         size_t bytes, void *out)
{
    return alloc(device, false, category, name, bytes, out);
}

enum status device_alloc_host(struct device *device, enum mem_category category, const char *name,
                              size_t bytes, void *out)
{
    return alloc(device, true, category, name, bytes, out);
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
