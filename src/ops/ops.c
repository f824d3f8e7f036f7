/* ops -- back ends by name; what a call does on a dry device. */
#include "ops/ops.h"
#include <stdio.h>
#include <string.h>
#include "base/plugin.h"
#include "ops/ops_face.h"

/* The back ends, compiled in or in a plugin. Each table starts as a copy of ref's. */
static const struct {
    const char *name;
    ops_fill_fn *fill; /* NULL: ref itself, or from the plugin of that name */
    const char *entry; /* of the plugin, or NULL */
} backends[] = {
    {"ref", NULL, NULL},
    {"cpu", ops_cpu_fill, NULL},
    {"cuda", NULL, OPS_CUDA_ENTRY},
};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

struct ops_with_table {
    struct ops base;
    struct ops_backend table;
};

static enum status fail_unknown(struct env *env, const char *name)
{
    char known[128] = "";
    size_t used = 0;
    for (int i = 0; i < BACKEND_COUNT; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 backends[i].name);
        CHECK_LT(used, sizeof known);
    }
    return FAIL(env, CONFIG, "unknown ops back end '%s'; use one of: %s", name, known);
}

static enum status fill_table(const struct device *device, const char *name, enum dtype type,
                              struct ops_backend *table)
{
    struct env *env = device_env(device);
    int found = 0;
    while (found < BACKEND_COUNT && strcmp(backends[found].name, name) != 0)
        found++;
    if (found == BACKEND_COUNT)
        return fail_unknown(env, name);
    ops_fill_fn *fill = backends[found].fill;
    if (backends[found].entry != NULL)
        TRY(plugin_find(env, name, backends[found].entry, &fill));
    ops_ref_fill(table, ops_is_real(type) ? type : DTYPE_F32);
    if (fill != NULL)
        fill(table);
    if (!table->supports(type))
        return FAIL(env, CONFIG, "ops back end '%s' does not support %s", name, dtype_name(type));
    if (!device_is_dry(device) && device_on_host(device) != table->on_host)
        return FAIL(env, CONFIG, "ops back end '%s' does not run on the device '%s'", table->name,
                    device_backend(device));
    return STATUS_OK;
}

enum status ops_create(struct device *device, const char *backend, enum dtype type,
                       struct ops **ops)
{
    enum status st;
    struct env *env = device_env(device);
    struct ops_with_table *o;
    TRY(mem_alloc(env, MEM_OTHER, "ops", sizeof *o, &o));
    TRY_OR(undo_self, fill_table(device, backend, type, &o->table));
    o->base = (struct ops){.backend = &o->table,
                           .device = device,
                           .type = type,
                           .products = DTYPE_F32,
                           .threads = env->threads};
    if (o->table.workspace_bytes > 0)
        TRY_OR(undo_self, device_alloc(device, MEM_SCRATCH, "library workspace",
                                       o->table.workspace_bytes, &o->base.workspace));
    if (o->table.open != NULL && !device_is_dry(device))
        TRY_OR(undo_workspace, o->table.open(&o->base));
    *ops = &o->base;
    return STATUS_OK;
undo_workspace:
    device_free(device, o->base.workspace);
undo_self:
    mem_free(env, o);
    return st;
}

void ops_be_fast(struct ops *ops)
{
    ops->fast = true;
}

void ops_multiply_in(struct ops *ops, enum dtype type)
{
    ops->products = type;
}

bool ops_takes_bf16(const struct ops *ops)
{
    return ops->backend->takes_bf16 != NULL && ops->backend->takes_bf16(ops);
}

void ops_destroy(struct ops *ops)
{
    if (ops == NULL)
        return;
    if (ops->backend->close != NULL && !device_is_dry(ops->device))
        ops->backend->close(ops);
    device_free(ops->device, ops->workspace);
    mem_free(device_env(ops->device), ops);
}

int64_t ops_chunk_logits(const struct ops *ops)
{
    return ops->backend->chunk_logits;
}

int64_t ops_row_stride(const struct ops *ops, int64_t width)
{
    int64_t unit = ops->backend->row_bytes / (int64_t)dtype_bytes(ops->type);
    return unit > 1 ? (width + unit - 1) / unit * unit : width;
}

void ops_spend(struct ops *ops, struct stream *stream, const struct ops_case *c)
{
    if (ops->meter != NULL && !stream_failed(stream))
        ops->meter->spend(ops, stream, c);
}

bool ops_must_run(struct ops *ops, struct stream *stream, const struct ops_case *c)
{
    CHECK(stream_device(stream) == ops->device);
    if (!device_is_dry(ops->device))
        return !stream_failed(stream);
    ops_spend(ops, stream, c);
    return false;
}
