/* activations -- laying out buffers and handing out their addresses; see activations.h for the
 * three places. */
#include "engine/activations.h"

#include <stdio.h>

enum { ALIGNMENT = 64 };

struct unit_places {
    struct unit_buffer list[UNIT_MAX_BUFFERS];
    int count;
    char *own; /* memory of this unit: (copies) one after the other */
    size_t own_bytes;
    size_t offset[PASS_COUNT]
                 [UNIT_MAX_BUFFERS]; /* in own, shared or scratch, by the buffer's keep */
    bool has_shared;
};

struct activations {
    struct ops *ops;                /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct env *env;                /* borrowed */
    enum keep own_below;
    struct unit_places *units;
    char *shared, *scratch;
    char *room[2]; /* (B, T, C) each: units write alternately into them */
    char *carry;   /* a residual moved out of `shared`, where unit types change; or NULL */
    size_t stream_bytes;
};

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool is_own(const struct activations *a, const struct unit_buffer *buffer)
{
    return buffer->keep < a->own_below;
}

static bool is_shared(const struct activations *a, const struct unit_buffer *buffer)
{
    return buffer->keep != KEEP_NOT && !is_own(a, buffer);
}

/* Offsets of a unit's own and shared buffers are the same for all passes; scratch is laid out for
 * each. */
static void lay_out_unit(const struct activations *a, struct unit_places *u, uint32_t passes,
                         size_t *own, size_t *shared, size_t *scratch)
{
    *own = *shared = *scratch = 0;
    for (int b = 0; b < u->count; b++) {
        const struct unit_buffer *buffer = &u->list[b];
        if (buffer->keep == KEEP_NOT)
            continue;
        size_t *end = is_own(a, buffer) ? own : shared;
        for (int pass = 0; pass < PASS_COUNT; pass++)
            u->offset[pass][b] = *end;
        *end += aligned(buffer->bytes);
    }
    u->has_shared = *shared > 0;
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        size_t end = 0;
        for (int b = 0; b < u->count; b++) {
            if (u->list[b].keep != KEEP_NOT || !(u->list[b].passes >> pass & 1) ||
                !(passes >> pass & 1))
                continue;
            u->offset[pass][b] = end;
            end += aligned(u->list[b].bytes + !u->list[b].bytes); /* an address even if empty */
        }
        if (end > *scratch)
            *scratch = end;
    }
}

static enum status alloc_units(struct activations *a, struct unit_shape shape, uint32_t passes,
                               const int *copies)
{
    size_t most_shared = 0, most_scratch = 0;
    struct device *device = a->ops->device;
    for (int i = 0; i < a->graph->unit_count; i++) {
        struct unit_places *u = &a->units[i];
        const struct unit *unit = &a->graph->units[i];
        size_t shared, scratch, places = copies ? (size_t)copies[i] : 1;
        u->count = unit->type->buffers ? unit->type->buffers(unit, a->ops, shape, u->list) : 0;
        CHECK_LE(u->count, UNIT_MAX_BUFFERS);
        lay_out_unit(a, u, passes, &u->own_bytes, &shared, &scratch);
        if (u->own_bytes > 0)
            TRY(device_alloc(device, MEM_ACTIVATIONS, unit->name, places * u->own_bytes, &u->own));
        most_shared = shared > most_shared ? shared : most_shared;
        most_scratch = scratch > most_scratch ? scratch : most_scratch;
    }
    if (most_shared > 0)
        TRY(device_alloc(device, MEM_ACTIVATIONS, "shared by units", most_shared, &a->shared));
    if (most_scratch > 0)
        TRY(device_alloc(device, MEM_SCRATCH, "units", most_scratch, &a->scratch));
    return STATUS_OK;
}

/* A unit may put its output residual into `shared`. A next unit of the same type reads it there
 * before anything of its own overwrites it (its input sum comes first); one of another type that
 * also has shared buffers might not. */
static bool needs_carry(const struct activations *a, int u)
{
    return u + 1 < a->graph->unit_count && a->units[u].has_shared && a->units[u + 1].has_shared &&
           a->graph->units[u].type != a->graph->units[u + 1].type;
}

static enum status alloc_stream(struct activations *a)
{
    struct device *device = a->ops->device;
    TRY(device_alloc(device, MEM_ACTIVATIONS, "stream", a->stream_bytes, &a->room[0]));
    TRY(device_alloc(device, MEM_ACTIVATIONS, "stream", a->stream_bytes, &a->room[1]));
    for (int u = 0; u < a->graph->unit_count && !a->carry; u++)
        if (needs_carry(a, u))
            TRY(device_alloc(device, MEM_ACTIVATIONS, "stream", a->stream_bytes, &a->carry));
    return STATUS_OK;
}

enum status activations_create(struct ops *ops, const struct unit_graph *graph,
                               struct unit_shape shape, enum keep own_below, uint32_t passes,
                               const int *copies, struct activations **activations)
{
    struct env *env = device_env(ops->device);
    struct activations *a;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "activations", sizeof *a, &a));
    *a = (struct activations){.ops = ops, .graph = graph, .env = env, .own_below = own_below};
    a->stream_bytes =
        (size_t)(unit_stream_rows(shape) * graph->stream_width) * dtype_bytes(ops->type);
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "activations", (size_t)graph->unit_count,
                                 sizeof *a->units, &a->units));
    TRY_OR(undo, alloc_units(a, shape, passes, copies));
    TRY_OR(undo, alloc_stream(a));
    *activations = a;
    return STATUS_OK;
undo:
    activations_destroy(a);
    return st;
}

void activations_destroy(struct activations *a)
{
    if (!a)
        return;
    struct device *device = a->ops->device;
    for (int u = 0; a->units && u < a->graph->unit_count; u++)
        device_free(device, a->units[u].own);
    device_free(device, a->shared);
    device_free(device, a->scratch);
    device_free(device, a->room[0]);
    device_free(device, a->room[1]);
    device_free(device, a->carry);
    mem_free(a->env, a->units);
    mem_free(a->env, a);
}

void activations_bind(const struct activations *a, int u, int copy, enum pass pass,
                      struct unit_run *run)
{
    const struct unit_places *places = &a->units[u];
    for (int b = 0; b < places->count; b++) {
        const struct unit_buffer *buffer = &places->list[b];
        char *base = is_own(a, buffer)      ? places->own + (size_t)copy * places->own_bytes
                     : is_shared(a, buffer) ? a->shared
                                            : a->scratch;
        bool used = buffer->keep != KEEP_NOT || buffer->passes >> pass & 1;
        run->buffers[b] = used ? base + places->offset[pass][b] : NULL;
    }
    run->room = a->room[u % 2];
    run->rebuild = a->own_below;
}

void activations_advance(const struct activations *a, int u, struct unit_run *run)
{
    run->residual = run->out_residual;
    run->pending = run->out_pending;
    run->out_residual = run->out_pending = NULL;
    if (!needs_carry(a, u))
        return;
    size_t bytes = a->stream_bytes;
    device_copy(run->stream, a->carry, run->residual, bytes);
    run->residual = a->carry;
}

bool activations_needs_rebuild(const struct activations *a, int u)
{
    return a->units[u].has_shared;
}
