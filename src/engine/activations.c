/* activations -- lays out the units' buffers and hands out their addresses.
 */
#include "engine/activations.h"

#include <stdio.h>

#include "engine/kept.h"

enum { ALIGNMENT = 64 };

enum region { OWN, SPLIT, SHARED, SCRATCH, REGIONS, NO_REGION = REGIONS };

struct unit_buffers {
    struct unit_buffer list[UNIT_MAX_BUFFERS];
    int count;
    struct unit_copies copies;
    char *own, *split; /* memory of this unit, one copy after another */
    size_t bytes[REGIONS];
    size_t offset[PASS_COUNT][UNIT_MAX_BUFFERS]; /* in the buffer's region */
    const void *carry; /* of the unit before, in the current micro-batch; NULL: it has none */
};

struct activations {
    struct ops *ops;                /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct env *env;                /* borrowed */
    enum keep own_below;
    bool parts; /* backward is split in two */
    struct unit_buffers *units;
    struct kept *kept; /* `own` of the units that move; NULL: none does */
    char *shared, *scratch;
    char *room[2]; /* (N, C) each: units write to them alternately */
    char *copy;    /* a residual copied out of `shared` where unit types change; or NULL */
    size_t stream_bytes;
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A unit without a backward pass keeps nothing. */
static enum keep own_below(const struct activations *a, int u)
{
    return u < a->graph->backward_from ? KEEP_ALWAYS : a->own_below;
}

/* The region of a buffer of unit u in a pass. */
static enum region region_of(const struct activations *a, int u, const struct unit_buffer *buffer,
                             enum pass pass)
{
    bool back = pass == PASS_REBUILD || pass == PASS_BACKWARD_INPUT || pass == PASS_BACKWARD_WEIGHT;
    bool both = (buffer->passes & UNIT_PARTS) == UNIT_PARTS;
    if (buffer->keep < own_below(a, u))
        return OWN;
    if (a->parts && unit_has_parts(&a->graph->units[u]) && back && both)
        return SPLIT;
    if (buffer->keep != KEEP_NOT)
        return SHARED;
    return buffer->passes >> pass & 1 ? SCRATCH : NO_REGION;
}

/* Consecutive passes have the same buffers in a region that outlives them, hence the same offsets.
 * Scratch is laid out for each pass. */
static void lay_out_unit(const struct activations *a, int i, uint32_t passes)
{
    struct unit_buffers *u = &a->units[i];
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        size_t end[REGIONS] = {0};
        for (int b = 0; b < u->count && passes >> pass & 1; b++) {
            enum region region = region_of(a, i, &u->list[b], pass);
            if (region == NO_REGION)
                continue;
            u->offset[pass][b] = end[region];
            size_t bytes = larger(u->list[b].bytes, 1); /* empty buffers get an address, too */
            end[region] += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
        for (int region = 0; region < REGIONS; region++)
            u->bytes[region] = larger(u->bytes[region], end[region]);
    }
}

static enum status alloc_copies(struct activations *a, const char *name, int copies, size_t bytes,
                                char **at)
{
    if (bytes == 0)
        return STATUS_OK;
    return device_alloc(a->ops->device, MEM_ACTIVATIONS, name, (size_t)copies * bytes, at);
}

static void lay_out_units(struct activations *a, struct unit_shape shape, uint32_t passes,
                          const struct unit_copies *copies)
{
    for (int i = 0; i < a->graph->unit_count; i++) {
        struct unit_buffers *u = &a->units[i];
        const struct unit *unit = &a->graph->units[i];
        u->copies = copies ? copies[i] : (struct unit_copies){1, 1};
        u->count = unit->type->buffers ? unit->type->buffers(unit, a->ops, shape, u->list) : 0;
        CHECK_LE(u->count, UNIT_MAX_BUFFERS);
        lay_out_unit(a, i, passes);
    }
}

static enum status create_kept(struct activations *a, double share)
{
    size_t count = (size_t)a->graph->unit_count, *bytes;
    TRY(mem_alloc_array(a->env, MEM_OTHER, "kept", count, sizeof *bytes, &bytes));
    for (int i = 0; i < a->graph->unit_count; i++) {
        CHECK_EQ(a->units[i].copies.own, 1);
        bytes[i] = a->units[i].bytes[OWN];
    }
    enum status st = kept_create(a->ops->device, bytes, a->graph->unit_count, share, &a->kept);
    mem_free(a->env, bytes);
    return st;
}

static enum status alloc_units(struct activations *a)
{
    size_t most_shared = 0, most_scratch = 0;
    struct device *device = a->ops->device;
    for (int i = 0; i < a->graph->unit_count; i++) {
        struct unit_buffers *u = &a->units[i];
        const char *name = a->graph->units[i].name;
        u->own = a->kept ? kept_at(a->kept, i) : NULL;
        if (!u->own)
            TRY(alloc_copies(a, name, u->copies.own, u->bytes[OWN], &u->own));
        TRY(alloc_copies(a, name, u->copies.split, u->bytes[SPLIT], &u->split));
        most_shared = larger(most_shared, u->bytes[SHARED]);
        most_scratch = larger(most_scratch, u->bytes[SCRATCH]);
    }
    if (most_shared > 0)
        TRY(device_alloc(device, MEM_ACTIVATIONS, "shared by units", most_shared, &a->shared));
    if (most_scratch > 0)
        TRY(device_alloc(device, MEM_SCRATCH, "units", most_scratch, &a->scratch));
    return STATUS_OK;
}

/* A unit may write its output residual to `shared`. A next unit with the same buffers reads it
 * before it overwrites it, since its input sum comes first. A unit with other buffers might not,
 * nor units of a type that differ in their buffers. */
static bool needs_copy(const struct activations *a, int u)
{
    return u + 1 < a->graph->unit_count && a->units[u].bytes[SHARED] > 0 &&
           a->units[u + 1].bytes[SHARED] > 0 &&
           (a->graph->units[u].type->buffers != a->graph->units[u + 1].type->buffers ||
            a->graph->units[u].type->differs);
}

enum status activations_create(struct ops *ops, const struct unit_graph *graph,
                               struct unit_shape shape, enum keep own_below, uint32_t passes,
                               const struct unit_copies *copies, enum far_kind kind, double share,
                               struct activations **activations)
{
    struct env *env = device_env(ops->device);
    struct activations *a;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "activations", sizeof *a, &a));
    *a = (struct activations){.ops = ops, .graph = graph, .env = env, .own_below = own_below};
    a->parts = passes >> PASS_BACKWARD_INPUT & 1;
    a->stream_bytes =
        (size_t)(unit_stream_rows(shape) * graph->stream_width) * dtype_bytes(ops->type);
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "activations", (size_t)graph->unit_count,
                                 sizeof *a->units, &a->units));
    lay_out_units(a, shape, passes, copies);
    if (kind != FAR_NONE)
        TRY_OR(undo, create_kept(a, share));
    TRY_OR(undo, alloc_units(a));
    for (int i = 0; i < 2; i++)
        TRY_OR(undo,
               device_alloc(ops->device, MEM_ACTIVATIONS, "stream", a->stream_bytes, &a->room[i]));
    for (int u = 0; u < graph->unit_count && !a->copy; u++)
        if (needs_copy(a, u))
            TRY_OR(undo,
                   device_alloc(ops->device, MEM_ACTIVATIONS, "stream", a->stream_bytes, &a->copy));
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
    for (int u = 0; a->units && u < a->graph->unit_count; u++) {
        if (!a->kept || !kept_at(a->kept, u))
            device_free(device, a->units[u].own);
        device_free(device, a->units[u].split);
    }
    kept_destroy(a->kept);
    device_free(device, a->shared);
    device_free(device, a->scratch);
    device_free(device, a->room[0]);
    device_free(device, a->room[1]);
    device_free(device, a->copy);
    mem_free(a->env, a->units);
    mem_free(a->env, a);
}

/* The copy for a round. */
static char *copy_of(char *at, int copies, size_t bytes, int64_t round)
{
    return at ? at + (size_t)(round % copies) * bytes : NULL;
}

void activations_bind(const struct activations *a, int u, int64_t round, enum pass pass,
                      struct unit_run *run)
{
    const struct unit_buffers *p = &a->units[u];
    char *const bases[REGIONS] = {
        [OWN] = copy_of(p->own, p->copies.own, p->bytes[OWN], round),
        [SPLIT] = copy_of(p->split, p->copies.split, p->bytes[SPLIT], round),
        [SHARED] = a->shared,
        [SCRATCH] = a->scratch,
    };
    for (int b = 0; b < p->count; b++) {
        enum region region = region_of(a, u, &p->list[b], pass);
        run->buffers[b] = region == NO_REGION ? NULL : bases[region] + p->offset[pass][b];
    }
    run->room = a->room[u % 2];
    run->carry = p->carry;
    run->out_carry = NULL;
    run->rebuild = own_below(a, u);
}

void activations_advance(const struct activations *a, int u, struct unit_run *run)
{
    run->residual = run->out_residual;
    run->pending = run->out_pending;
    run->out_residual = run->out_pending = NULL;
    if (u + 1 < a->graph->unit_count)
        a->units[u + 1].carry = run->out_carry;
    if (!needs_copy(a, u) || (a->graph->units[u].type->differs && !run->pending))
        return; /* in the second case the residual is in `room` */
    size_t bytes =
        a->stream_bytes / (size_t)a->graph->stream_width * (size_t)unit_out_width(a->graph, u);
    device_copy(run->stream, a->copy, run->residual, bytes);
    run->residual = a->copy;
}

bool activations_needs_rebuild(const struct activations *a, int u)
{
    return a->units[u].bytes[SHARED] > 0;
}

void activations_begin(struct activations *a, int u, struct stream *stream)
{
    if (!a->kept)
        return;
    kept_await(a->kept, u, stream);
    if (a->units[u].carry) /* it is in a buffer of the unit before */
        kept_await(a->kept, u - 1, stream);
}

void activations_end(struct activations *a, int u, enum pass pass, struct stream *stream)
{
    if (!a->kept)
        return;
    if (pass == PASS_FORWARD)
        kept_save(a->kept, u, stream);
    else if (pass == PASS_BACKWARD || pass == PASS_LOSS)
        kept_release(a->kept, u, stream);
}

enum status activations_check(const struct activations *a)
{
    return a ? kept_check(a->kept) : STATUS_OK;
}

const struct far *activations_far(const struct activations *a)
{
    return a ? kept_far(a->kept) : NULL;
}
