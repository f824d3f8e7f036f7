/* device -- back ends by name and the table of blocks; streams and events are in stream.c.
 *
 * Every block is in the device's table from device_alloc to device_free, so a block that is freed
 * twice, freed on the wrong device or never freed is detected. A model with many layers has tens of
 * thousands of blocks, freed in any order, so the table is hashed by address. One thread at a time
 * allocates from or frees to a device; its streams may be used by different threads.
 */
#include "device/device.h"
#include <stdio.h>
#include <string.h>
#include "base/plugin.h"
#include "device/device_impl.h"

/* All back ends, compiled in or in a plugin. Only this table knows their names. */
static const struct {
    const char *name;
    const struct device_backend *table; /* NULL = in the plugin of that name */
    const char *entry;
    const char *driver; /* library without which there can be no device; NULL = needs none */
} backends[] = {
    {"cpu", &device_cpu, NULL, NULL},
    {"cuda", NULL, DEVICE_CUDA_ENTRY, "libcuda.so.1"},
    {"dry", &device_dry, NULL, NULL},
    {"dry-gpu", &device_dry_gpu, NULL, NULL},
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
    return FAIL(env, CONFIG, "unknown device '%s'; use one of: %s", name, known);
}

static int backend_number(const char *name)
{
    int found = 0;
    while (found < BACKEND_COUNT && strcmp(backends[found].name, name) != 0)
        found++;
    return found;
}

enum status device_create(struct env *env, const char *backend, int index, struct device **device)
{
    enum status st;
    struct device *d;
    int found = backend_number(backend);
    if (found == BACKEND_COUNT)
        return fail_unknown(env, backend);
    const struct device_backend *table = backends[found].table;
    if (table == NULL)
        TRY(plugin_find(env, backend, backends[found].entry, &table));
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
    CHECK_EQ(device->block_count, 0);
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

int device_capability(const struct device *device)
{
    return device->capability;
}

void device_assume(struct device *device, int capability)
{
    CHECK(device_is_dry(device));
    device->capability = capability;
}

bool device_on_host(const struct device *device)
{
    return device->backend->on_host;
}

enum mem_location device_memory(const struct device *device)
{
    return device->backend->location;
}

const char *device_gpu(const struct device *device)
{
    return device->gpu;
}

size_t device_in_use(struct device *device)
{
    return device->backend->in_use != NULL ? device->backend->in_use(device) : 0;
}

void device_read_gauges(struct device *device, struct device_gauges *gauges)
{
    *gauges = (struct device_gauges){0};
    if (device->backend->read_gauges != NULL)
        device->backend->read_gauges(device, gauges);
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

/* Only the plugin links CUDA. */
void device_cuda_info(struct device_cuda_info *info)
{
    device_cuda_look_fn *look;
    device_nccl_look_fn *look_nccl;
    char why[256];
    *info = (struct device_cuda_info){.gpu_count = 0};
    if (!plugin_look("cuda", DEVICE_CUDA_LOOK, &look, info->missing, sizeof info->missing))
        return;
    look(info);
    if (plugin_look("cuda", DEVICE_NCCL_LOOK, &look_nccl, why, sizeof why))
        info->nccl = look_nccl();
}

/* --- memory --------------------------------------------------------------------------------- */

/* A GPU's driver allocates blocks of 1 MiB and more in whole pages of 2 MiB, and packs smaller ones
 * together. Measured on an H200: with this rule, the memory in use beyond the account was constant
 * to within 2 MiB for models of 22 to 62 GiB in 102 to 318 blocks. */
static size_t page_rest(const struct device_block *block, enum mem_location location)
{
    const size_t page = (size_t)2 << 20;
    return location != MEM_GPU || block->bytes < page / 2 ? 0 : (page - block->bytes % page) % page;
}

static const char page_line[] = "ends of pages";

static enum mem_location location_of(const struct device *device, const struct device_block *block)
{
    return block->host ? MEM_HOST : device->backend->location;
}

enum status device_count_block(struct device *device, const struct device_block *block)
{
    enum status st;
    enum mem_location location = location_of(device, block);
    size_t rest = page_rest(block, location);
    TRY(mem_count(device->env, location, block->category, block->name, block->bytes));
    if (rest > 0)
        TRY_OR(undo_block, mem_count(device->env, location, MEM_OTHER, page_line, rest));
    return STATUS_OK;
undo_block:
    mem_uncount(device->env, location, block->category, block->name, block->bytes);
    return st;
}

void device_uncount_block(struct device *device, const struct device_block *block)
{
    enum mem_location location = location_of(device, block);
    size_t rest = page_rest(block, location);
    mem_uncount(device->env, location, block->category, block->name, block->bytes);
    if (rest > 0)
        mem_uncount(device->env, location, MEM_OTHER, page_line, rest);
}

/* Head of the hash list for this address. */
static struct device_block **list_of(struct device *device, const void *address)
{
    uint64_t hash = (uint64_t)(uintptr_t)address * 0x9e3779b97f4a7c15u;
    return &device->blocks[hash >> 32 & (DEVICE_LISTS - 1)];
}

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
    struct device_block **list = list_of(device, block->address);
    block->next = *list;
    *list = block;
    device->block_count++;
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
    struct device_block **link = list_of(device, address);
    while (*link != NULL && (*link)->address != address)
        link = &(*link)->next;
    struct device_block *block = *link;
    CHECK(block != NULL); /* not a block of this device, or already freed */
    *link = block->next;
    device->block_count--;
    device->backend->free(device, block);
    mem_free(device->env, block);
}
