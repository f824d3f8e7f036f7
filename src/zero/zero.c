/* zero -- what the store holds and how a pass gets at it. Initial values and files are in
 * zero_values.c, the end of a step in zero_update.c, the layout in partition.c.
 *
 * With one owner a slice is the whole piece: params are read in place, the first micro-batch's
 * gradient is written straight into the sum, and later ones go through a slot and are added.
 */
#include "zero/zero_impl.h"

#include <stdio.h>
#include <string.h>

/* --- construction --------------------------------------------------------------------------- */

static bool unit_writes_piece(const struct unit_graph *graph, const struct unit *unit, int piece)
{
    for (int use = 0; use < unit->use_count; use++) {
        if (graph->params[unit->uses[use]].piece != piece)
            continue;
        for (int pass = 0; pass < PASS_COUNT; pass++)
            if (unit_writes(unit, pass, use))
                return true;
    }
    return false;
}

static enum status find_uses(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    size_t most = (size_t)graph->unit_count * UNIT_MAX_USES;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "gradient uses", most, sizeof *zero->uses,
                        &zero->uses));
    struct zero_use *next = zero->uses;
    for (int i = 0; i < graph->piece_count; i++) {
        zero->pieces[i].uses = next;
        for (int u = 0; u < graph->unit_count; u++)
            if (unit_writes_piece(graph, &graph->units[u], i))
                *next++ = (struct zero_use){.unit = u};
        zero->pieces[i].use_count = (int)(next - zero->pieces[i].uses);
    }
    return STATUS_OK;
}

static enum status alloc_floats(struct zero *zero, enum mem_category category, const char *what,
                                const char *piece, int64_t count, float **out)
{
    char name[3 * UNIT_NAME];
    snprintf(name, sizeof name, "%s %s", piece, what);
    return device_alloc(zero->ops->device, category, name, (size_t)count * sizeof(float), out);
}

static enum status alloc_piece(struct zero *zero, int i)
{
    struct zero_piece *piece = &zero->pieces[i];
    const char *name = zero->graph->pieces[i].name;
    int64_t slice = partition_slice(&zero->partition, i);
    TRY(alloc_floats(zero, MEM_PARAMS, "params", name, zero->partition.piece_count[i],
                     &piece->params));
    if (zero->config.micro_batches == 0)
        return STATUS_OK;
    TRY(alloc_floats(zero, MEM_OPTIMIZER, "momentum", name, slice, &piece->m));
    TRY(alloc_floats(zero, MEM_OPTIMIZER, "variance", name, slice, &piece->v));
    for (int k = 0; k < piece->use_count; k++) {
        const char *unit = zero->graph->units[piece->uses[k].unit].name;
        char what[UNIT_NAME + 16];
        snprintf(what, sizeof what, "gradient, %s", unit);
        TRY(alloc_floats(zero, MEM_GRADS, what, name, slice, &piece->uses[k].sum));
    }
    return STATUS_OK;
}

/* Elements of all pieces that one pass of `unit` writes: they lie one after the other in the slot.
 */
static int64_t slot_count(const struct zero *zero, int u)
{
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (unit_writes_piece(zero->graph, &zero->graph->units[u], i))
            count += zero->partition.piece_count[i];
    return count;
}

static enum status alloc_slot(struct zero *zero)
{
    int64_t most = 0;
    for (int u = 0; u < zero->graph->unit_count; u++)
        if (slot_count(zero, u) > most)
            most = slot_count(zero, u);
    return device_alloc(zero->ops->device, MEM_SLOTS, "gradient slot", (size_t)most * sizeof(float),
                        &zero->gradient_slot);
}

static enum status alloc_small(struct zero *zero)
{
    struct device *device = zero->ops->device;
    size_t sums = ZERO_CHUNK_BLOCKS * sizeof(double);
    TRY(device_alloc(device, MEM_OTHER, "step scalars", sizeof *zero->scalars, &zero->scalars));
    TRY(mem_alloc(zero->env, MEM_OTHER, "staging", ZERO_STAGING * sizeof(float), &zero->staging));
    if (zero->config.micro_batches == 0)
        return STATUS_OK;
    TRY(device_alloc(device, MEM_SCRATCH, "norm block sums", sums, &zero->block_sums));
    TRY(mem_alloc(zero->env, MEM_OTHER, "norm block sums", sums, &zero->block_sums_host));
    return device_alloc(device, MEM_SCRATCH, "non-finite index", sizeof *zero->nonfinite,
                        &zero->nonfinite);
}

static enum status alloc_all(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    TRY(partition_create(zero->env, graph, 1, &zero->partition));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "pieces", (size_t)graph->piece_count,
                        sizeof *zero->pieces, &zero->pieces));
    TRY(find_uses(zero));
    for (int i = 0; i < graph->piece_count; i++)
        TRY(alloc_piece(zero, i));
    TRY(alloc_small(zero));
    if (zero->config.micro_batches > 1)
        TRY(alloc_slot(zero));
    if (zero->config.micro_batches > 0)
        TRY(zero_segments_create(zero));
    return STATUS_OK;
}

enum status zero_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                        const struct zero_config *config, struct zero **zero)
{
    struct env *env = device_env(ops->device);
    struct zero *z;
    CHECK_EQ(ops->type, DTYPE_F32);
    unit_graph_check(graph);
    TRY(mem_alloc(env, MEM_OTHER, "store", sizeof *z, &z));
    *z = (struct zero){.ops = ops, .stream = stream, .graph = graph, .env = env, .config = *config};
    enum status st = alloc_all(z);
    if (st != STATUS_OK) {
        zero_destroy(z);
        return st;
    }
    z->config.groups = NULL;
    *zero = z;
    return STATUS_OK;
}

void zero_destroy(struct zero *zero)
{
    if (!zero)
        return;
    struct device *device = zero->ops->device;
    for (int i = 0; zero->pieces && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        for (int k = 0; k < piece->use_count; k++)
            device_free(device, piece->uses[k].sum);
        device_free(device, piece->v);
        device_free(device, piece->m);
        device_free(device, piece->params);
    }
    device_free(device, zero->segments);
    device_free(device, zero->gradient_slot);
    device_free(device, zero->nonfinite);
    device_free(device, zero->block_sums);
    device_free(device, zero->scalars);
    mem_free(zero->env, zero->block_sums_host);
    mem_free(zero->env, zero->staging);
    mem_free(zero->env, zero->uses);
    mem_free(zero->env, zero->pieces);
    partition_free(zero->env, &zero->partition);
    mem_free(zero->env, zero);
}

/* --- a pass --------------------------------------------------------------------------------- */

void zero_acquire(struct zero *zero, int u, enum pass pass, struct unit_run *run)
{
    const struct unit *unit = &zero->graph->units[u];
    for (int use = 0; use < unit->use_count; use++) {
        int param = unit->uses[use];
        const float *piece = zero->pieces[zero->graph->params[param].piece].params;
        run->params[use] =
            unit_reads(unit, pass, use) ? piece + zero->partition.param_offset[param] : NULL;
    }
}

void zero_release(struct zero *zero, int u, enum pass pass)
{
    /* One owner holds every param for good: there is nothing to give back. */
    (void)zero, (void)u, (void)pass;
}

static struct zero_use *find_use(struct zero *zero, int piece, int u)
{
    struct zero_piece *p = &zero->pieces[piece];
    for (int k = 0; k < p->use_count; k++)
        if (p->uses[k].unit == u)
            return &p->uses[k];
    return NULL;
}

/* Where micro-batch m of unit u writes the gradient of `piece`. */
static float *gradient_place(struct zero *zero, int piece, int u, int64_t m)
{
    struct zero_use *use = find_use(zero, piece, u);
    CHECK(use != NULL);
    if (m == 0)
        return use->sum;
    float *place = zero->gradient_slot;
    for (int i = 0; i < piece; i++)
        if (find_use(zero, i, u))
            place += zero->partition.piece_count[i];
    return place;
}

void zero_grads(struct zero *zero, int u, enum pass pass, int64_t m, struct unit_run *run)
{
    const struct unit *unit = &zero->graph->units[u];
    CHECK_LT(m, zero->config.micro_batches);
    for (int use = 0; use < unit->use_count; use++) {
        int param = unit->uses[use], piece = zero->graph->params[param].piece;
        run->grads[use] = NULL;
        if (unit_writes(unit, pass, use))
            run->grads[use] =
                gradient_place(zero, piece, u, m) + zero->partition.param_offset[param];
    }
}

void zero_reduce(struct zero *zero, int u, enum pass pass, int64_t m)
{
    const struct unit *unit = &zero->graph->units[u];
    if (m == 0)
        return; /* written straight into the sum */
    for (int use = 0; use < unit->use_count; use++) {
        if (!unit_writes(unit, pass, use))
            continue;
        int param = unit->uses[use], piece = zero->graph->params[param].piece;
        int64_t offset = zero->partition.param_offset[param];
        device_accumulate(zero->stream, find_use(zero, piece, u)->sum + offset, DTYPE_F32,
                          gradient_place(zero, piece, u, m) + offset, DTYPE_F32,
                          unit_param_count(zero->graph, param));
    }
}

/* --- scalars -------------------------------------------------------------------------------- */

const struct step_scalars *zero_scalars(const struct zero *zero)
{
    return zero->scalars;
}

void zero_loss_scale(struct zero *zero, double scale, int64_t label_count)
{
    zero->scalars_host.loss_scale = (float)(scale / (double)label_count);
    device_copy(zero->stream, zero->scalars, &zero->scalars_host, sizeof zero->scalars_host);
}
