/* zero_memory -- what each rank holds, by ZeRO stage and role, and its allocation.
 *
 *                      params        gradients             sums           optimizer
 *     stage 0 worker   full          full, one per use     reduce shard   full
 *     stage 1 worker   full          full, one per use     reduce shard   shard
 *     stage 2 worker   full          two slots             reduce shard   shard
 *     stage 3 worker   shard, slots  two slots             reduce shard   shard
 *     server           shard         -                     reduce shard   shard
 *     one rank         full          (a slot)              full           full
 *
 * A reduce shard is a shard, unless several owners hold the same shard (roster.h); these also have
 * room for the sum of the whole shard. Stage 0 is one shard that all ranks hold. With one round per
 * step, the sums of stages 0 and 1 are inside the gradients where both have the same element size.
 * With one rank and one micro-batch per step, gradients and sums are the same memory where both
 * have the same type, which is the case for all but the first use of tied pieces (zero_use_type).
 * With config.local, workers of all stages have the sum of their own micro-batches, full, one per
 * use, in the type of sums. Where that is also the type of gradients it is sent from there, and the
 * owner's sum is inside it; otherwise it is sent from two slots.
 * Workers that are not owners, in jobs with servers, have no shards. Owners have room for one
 * reduce shard from every worker.
 *
 * The optimizer state is the moments that each tensor's optimizer keeps (zero_moments.c), and the
 * fp32 masters of 16-bit params. Pieces whose gradients no pass writes have params only.
 * Where units compute in fp32 and params have 16 bits, params are widened (unless a pass takes them
 * in bf16) and gradients written in fp32, for one unit at a time. Optimizer state and sums may be
 * in far memory (zero_offload.c), and params (zero_offload_params.c): these are then sharded and
 * gathered as in stage 3.
 */
#include "zero/zero_norm.h"
#include "zero/zero_offload.h"

#include <stdio.h>

/* --- uses of gradients ---------------------------------------------------------------------- */

/* The pieces that unit u writes gradients of, without duplicates; returns their number. */
static int written_pieces(const struct unit_graph *graph, int u, int pieces[UNIT_MAX_USES])
{
    int written = 0, count = unit_pieces(graph, u, pieces);
    for (int k = 0; k < count; k++)
        if (unit_writes_piece(graph, u, pieces[k]))
            pieces[written++] = pieces[k];
    return written;
}

/* A gradient of the piece that unit u writes. It joins the one before, unless both write the same
 * param: then that is tied, a piece of its own, and both gradients are added. */
static void add_use(struct zero *zero, int i, int u)
{
    struct zero_piece *piece = &zero->pieces[i];
    struct zero_use *last = piece->use_count > 0 ? &piece->uses[piece->use_count - 1] : NULL;
    if (!last || unit_share_param(zero->graph, u, last->last_unit, i)) {
        piece->uses[piece->use_count++] = (struct zero_use){.unit = u, .last_unit = u};
        return;
    }
    CHECK_EQ(unit_writing_passes(zero->graph, u, i), /* so that no other micro-batch intervenes */
             unit_writing_passes(zero->graph, last->unit, i));
    last->last_unit = u;
}

/* The uses of a piece are consecutive, in unit order. */
static enum status find_uses(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    size_t most = (size_t)graph->unit_count * UNIT_MAX_USES;
    int written[UNIT_MAX_USES];
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "gradient uses", most, sizeof *zero->uses,
                        &zero->uses));
    for (int u = 0; u < graph->unit_count; u++)
        for (int k = written_pieces(graph, u, written) - 1; k >= 0; k--)
            zero->pieces[written[k]].use_count++; /* at most */
    struct zero_use *next = zero->uses;
    for (int i = 0; i < graph->piece_count; i++) {
        zero->pieces[i].uses = next;
        next += zero->pieces[i].use_count;
        zero->pieces[i].use_count = 0;
    }
    for (int u = 0; u < graph->unit_count; u++)
        for (int k = written_pieces(graph, u, written) - 1; k >= 0; k--)
            add_use(zero, written[k], u);
    return STATUS_OK;
}

struct zero_use *zero_find_use(struct zero *zero, int piece, int u)
{
    struct zero_piece *p = &zero->pieces[piece];
    for (int k = 0; k < p->use_count; k++)
        if (p->uses[k].unit <= u && u <= p->uses[k].last_unit)
            return &p->uses[k];
    return NULL;
}

struct piece_range zero_part_of_unit(const struct zero *zero, int piece, int u)
{
    const struct unit_piece *p = &zero->graph->pieces[piece];
    const struct unit *unit = &zero->graph->units[u];
    int end = p->first_param + p->param_count, first = end, last = -1;
    for (int use = 0; use < unit->use_count; use++) {
        int param = unit->uses[use];
        if (zero->graph->params[param].piece != piece)
            continue;
        first = param < first ? param : first;
        last = param > last ? param : last;
    }
    CHECK_LE(first, last);
    const int64_t *offsets = zero->partition.param_offset;
    int64_t after = last + 1 < end ? offsets[last + 1] : zero->partition.piece_count[piece];
    return (struct piece_range){piece, offsets[first], after - offsets[first]};
}

bool zero_sum_changes(const struct zero *zero, int piece)
{
    int t, end;
    if (zero->pieces[piece].use_count > 1 || zero_lent_to(zero, piece) != UNIT_NO_STAGE ||
        zero_is_partial(zero, piece) || zero->config.gradient)
        return true;
    for (zero_piece_tensors(zero->graph, piece, &t, &end); t < end; t++)
        if (zero->graph->tensors[t].gated || zero->graph->tensors[t].limit > 0)
            return true;
    return false;
}

static enum status find_frozen(struct zero *zero)
{
    const struct unit_graph *whole = zero_whole_graph(zero);
    bool *of_pieces;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "frozen tensors", (size_t)whole->tensor_count,
                        sizeof *zero->frozen, &zero->frozen));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "frozen pieces", (size_t)whole->piece_count,
                        sizeof *of_pieces, &of_pieces));
    unit_find_frozen(whole, of_pieces);
    for (int i = 0, t, end; i < whole->piece_count; i++)
        for (zero_piece_tensors(whole, i, &t, &end); t < end; t++)
            zero->frozen[t] = of_pieces[i];
    mem_free(zero->env, of_pieces);
    return STATUS_OK;
}

/* --- pieces --------------------------------------------------------------------------------- */

static enum status alloc_elements(struct zero *zero, enum mem_category category, const char *what,
                                  const char *piece, int64_t count, enum dtype type, void *out)
{
    char name[3 * UNIT_NAME];
    snprintf(name, sizeof name, "%s %s", piece, what);
    return device_alloc(zero->ops->device, category, name, (size_t)count * dtype_bytes(type), out);
}

static enum status alloc_params(struct zero *zero, int i)
{
    struct zero_piece *piece = &zero->pieces[i];
    const char *name = zero->graph->pieces[i].name;
    int64_t shard = zero_shard_count(zero, i);
    bool whole = zero->worker && !zero->sharding.params;
    if (whole)
        TRY(alloc_elements(zero, MEM_PARAMS, "params", name, zero->partition.piece_count[i],
                           zero->type, &piece->full));
    if (piece->params_are_far)
        return STATUS_OK;
    if (zero->shard >= 0 && whole)
        piece->shard = zero_at(piece->full, zero->type, zero->shard * shard);
    else if (zero->shard >= 0)
        TRY(alloc_elements(zero, MEM_PARAMS, "params", name, shard, zero->type, &piece->shard));
    if (zero_alone(zero) || zero->sharding.params)
        return STATUS_OK;
    return event_create(zero->ops->device, &piece->published);
}

static enum status alloc_optimizer(struct zero *zero, int i)
{
    struct zero_piece *piece = &zero->pieces[i];
    const char *name = zero->graph->pieces[i].name;
    int64_t shard = zero_shard_count(zero, i);
    if (zero->shard < 0 || zero_borrowed_from(zero, i) != UNIT_NO_STAGE || piece->state_is_far)
        return STATUS_OK;
    if (zero_piece_has_master(zero, i))
        TRY(alloc_elements(zero, MEM_OPTIMIZER, "master", name, shard, DTYPE_F32, &piece->master));
    return moments_alloc(zero, i);
}

static enum status alloc_snapshot(struct zero *zero, int i)
{
    struct zero_piece *piece = &zero->pieces[i];
    if (!zero->config.snapshot || zero->reduce_shard < 0 ||
        zero_borrowed_from(zero, i) != UNIT_NO_STAGE)
        return STATUS_OK;
    size_t bytes = zero_snapshot_bytes(zero, i);
    TRY(device_alloc_host(zero->ops->device, MEM_SNAPSHOT, "state to be saved", bytes,
                          &piece->snapshot));
    if (device_on_host(zero->ops->device))
        device_zero(zero->stream, piece->snapshot,
                    bytes); /* touch its pages before the first snapshot */
    return STATUS_OK;
}

/* Memory for a worker's own gradient of a use, or for the sum of its gradients. */
static enum status alloc_gradient(struct zero *zero, int i, const char *what, struct zero_use *use)
{
    const char *piece = zero->graph->pieces[i].name;
    int64_t count = zero->partition.piece_count[i];
    bool local = zero->config.local && !zero_alone(zero);
    if (local && !zero_local_is_sent(zero))
        return alloc_elements(zero, MEM_GRADS, what, piece, count, zero->sum_type, &use->local);
    if (!local && zero->sharding.grads)
        return STATUS_OK;
    TRY(alloc_elements(zero, MEM_GRADS, what, piece, count, zero->type, &use->full));
    if (local)
        use->local = use->full;
    return event_create(zero->ops->device, &use->free);
}

/* Memory for the sum of use k of piece i: a reduce shard, inside the gradient where that is no
 * longer needed. The first use, which becomes the sum of all uses, needs the whole shard where
 * several owners hold it. */
static enum status alloc_sum(struct zero *zero, int i, const char *what, int k)
{
    struct zero_piece *piece = &zero->pieces[i];
    struct zero_use *use = &piece->uses[k];
    enum dtype type = zero_use_type(zero, i, use);
    bool one_round = roster_rounds(&zero->roster, zero->most_reductions) == 1;
    bool in_gradient = use->full && dtype_bytes(type) == dtype_bytes(zero->type);
    bool shared = k == 0 && zero->roster.copies > 1;
    int64_t reduce_shard = zero_reduce_shard_count(zero, i), shard = zero_shard_count(zero, i);
    if (in_gradient && one_round) {
        use->sum = zero_at(use->full, type, zero->reduce_shard * reduce_shard);
    } else {
        bool whole_shard = shared && !in_gradient;
        TRY(alloc_elements(zero, MEM_GRADS, what, zero->graph->pieces[i].name,
                           whole_shard ? shard : reduce_shard, type, &use->sum_block));
        int64_t first = whole_shard ? zero->reduce_shard * reduce_shard - zero->shard * shard : 0;
        use->sum = zero_at(use->sum_block, type, first);
    }
    if (k == 0)
        piece->total = !shared       ? use->sum
                       : in_gradient ? zero_at(use->full, type, zero->shard * shard)
                                     : use->sum_block;
    return STATUS_OK;
}

static enum status alloc_piece(struct zero *zero, int i)
{
    TRY(alloc_params(zero, i));
    if (!zero_piece_has_master(zero, i))
        zero->pieces[i].master = zero->pieces[i].shard;
    if (zero->config.micro_batches == 0)
        return STATUS_OK;
    TRY(alloc_optimizer(zero, i));
    TRY(alloc_snapshot(zero, i));
    if (zero->roster.copies > 1 && zero->pieces[i].use_count > 0)
        TRY(event_create(zero->ops->device, &zero->pieces[i].summed));
    for (int k = 0; k < zero->pieces[i].use_count; k++) {
        struct zero_use *use = &zero->pieces[i].uses[k];
        char what[UNIT_NAME + 16];
        snprintf(what, sizeof what, "gradient, %s", zero->graph->units[use->unit].name);
        if (zero->worker)
            TRY(alloc_gradient(zero, i, what, use));
        if (zero->reduce_shard >= 0 && !zero->pieces[i].sum_is_far)
            TRY(alloc_sum(zero, i, what, k));
        if (zero->config.local && zero_alone(zero))
            use->local = use->sum;
    }
    if (zero->reduce_shard < 0 || zero_lent_to(zero, i) == UNIT_NO_STAGE || zero_is_frozen(zero, i))
        return STATUS_OK;
    return alloc_elements(zero, MEM_GRADS, "gradient, of another stage",
                          zero->graph->pieces[i].name, zero_reduce_shard_count(zero, i),
                          zero_type_of_sum(zero, false), &zero->pieces[i].lent_sum);
}

/* --- slots ---------------------------------------------------------------------------------- */

/* Elements that a unit writes of all pieces. */
static int64_t written_count(const struct zero *zero, int u)
{
    int pieces[UNIT_MAX_USES];
    int64_t count = 0;
    for (int k = written_pieces(zero->graph, u, pieces) - 1; k >= 0; k--)
        count += zero_part_of_unit(zero, pieces[k], u).count;
    return count;
}

/* Is a gradient sent from a slot? One rank sends nothing, but adds from a slot. */
static bool needs_gradient_slot(const struct zero *zero, int piece, const struct zero_use *use)
{
    if (zero->config.local && zero_local_is_sent(zero))
        return false;
    if (zero_alone(zero))
        return !zero_sum_is_gradient(zero, piece, use);
    return zero->config.local || zero->sharding.grads;
}

/* Units take the slots in turn; units that write one piece have the same turn. In a slot, the
 * pieces of a turn are consecutive. most (slots): elements of the largest turn. With one rank
 * nothing is in flight, unless sums are far, and one slot serves all units. */
static void place_gradients(struct zero *zero, int slots, int64_t *most)
{
    int64_t count = 0; /* of the turn */
    bool needed = false;
    for (int u = 0, turn = -1, end = 0; u < zero->graph->unit_count; u++) {
        int pieces[UNIT_MAX_USES], written = written_pieces(zero->graph, u, pieces);
        if (u >= end) {
            turn++, end = u + 1;
            count = 0, needed = false;
        }
        for (int w = 0; w < written; w++) {
            struct zero_use *use = zero_find_use(zero, pieces[w], u);
            if (use->unit != u)
                continue;
            use->slot = turn % slots;
            use->slot_offset = count;
            count += zero->partition.piece_count[pieces[w]];
            needed = needed || needs_gradient_slot(zero, pieces[w], use);
            end = use->last_unit >= end ? use->last_unit + 1 : end;
        }
        if (needed && count > most[turn % slots])
            most[turn % slots] = count;
    }
}

static enum status alloc_gradient_slots(struct zero *zero)
{
    int slots = zero_alone(zero) && !zero->far_sums ? 1 : GRADIENT_SLOTS;
    int64_t most[GRADIENT_SLOTS] = {0};
    place_gradients(zero, slots, most);
    for (int s = 0; s < slots; s++) {
        struct gradient_slot *slot = &zero->gradient_slots[s];
        if (most[s] == 0)
            continue;
        TRY(device_alloc(zero->ops->device, MEM_SLOTS, "gradients",
                         (size_t)most[s] * dtype_bytes(zero->type), &slot->at));
        TRY(event_create(zero->ops->device, &slot->free));
    }
    return STATUS_OK;
}

/* Gradients of one unit, where passes cannot write them where they are sent from. */
static enum status alloc_gradient_work(struct zero *zero)
{
    bool adds = zero->config.local && zero->config.micro_batches > zero->roster.workers;
    int64_t most = 0;
    if (!zero_widens(zero) && (!adds || !zero_local_is_sent(zero)))
        return STATUS_OK;
    for (int u = 0; u < zero->graph->unit_count; u++)
        most = written_count(zero, u) > most ? written_count(zero, u) : most;
    return device_alloc(zero->ops->device, MEM_SLOTS, "gradients of a unit",
                        (size_t)most * dtype_bytes(zero->ops->type), &zero->gradient_work);
}

/* fp32 params of one unit. */
static enum status alloc_compute_slot(struct zero *zero)
{
    int pieces[UNIT_MAX_USES];
    for (int u = 0; u < zero->graph->unit_count; u++) {
        int64_t count = 0;
        for (int k = unit_pieces(zero->graph, u, pieces) - 1; k >= 0; k--)
            count += zero_part_of_unit(zero, pieces[k], u).count;
        zero->compute_count = count > zero->compute_count ? count : zero->compute_count;
    }
    return device_alloc(zero->ops->device, MEM_SLOTS, "params of a unit",
                        (size_t)zero->compute_count * sizeof(float), &zero->compute_slot);
}

/* The tables of all walks, and slots that are large enough for each of them. */
static enum status make_walks(struct zero *zero)
{
    const struct zero_config *c = &zero->config;
    int chunks = c->chunk_count;
    bool both = c->micro_batches > 0; /* a store that only reads is only walked forward */
    int walks = chunks == 0 ? 1 : both ? 2 * chunks : chunks;
    size_t most = 0;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slot tables", (size_t)walks, sizeof *zero->walks,
                        &zero->walks));
    for (int i = 0; i < walks; i++) {
        struct slot_walk walk = {0, zero->graph->unit_count, both ? WALK_BOTH : WALK_FORWARD};
        const struct zero_chunk *chunk = chunks > 0 ? &c->chunks[i % chunks] : NULL;
        if (chunk)
            walk = (struct slot_walk){chunk->first, chunk->end,
                                      i < chunks ? WALK_FORWARD : WALK_BACKWARD};
        TRY(slot_table_create(zero->env, &zero->partition, walk, c->prefetch, &zero->walks[i]));
        zero->walk_count++;
        most = (size_t)zero->walks[i].slots > most ? (size_t)zero->walks[i].slots : most;
    }
    zero->slots = (int)most;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slots", most, sizeof *zero->slot_count,
                        &zero->slot_count));
    for (int i = 0; i < walks; i++)
        for (int s = 0; s < zero->walks[i].slots; s++)
            if (zero->walks[i].slot_count[s] > zero->slot_count[s])
                zero->slot_count[s] = zero->walks[i].slot_count[s];
    return STATUS_OK;
}

static enum status alloc_param_slots(struct zero *zero)
{
    struct device *device = zero->ops->device;
    size_t size = sizeof(void *);
    TRY(make_walks(zero));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slots", (size_t)zero->slots, size, &zero->slot_at));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slots", (size_t)zero->slots, size,
                        &zero->slot_ready));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slots", (size_t)zero->slots, size,
                        &zero->slot_free));
    bool far = zero->config.offload.params != FAR_NONE;
    for (int s = 0; s < zero->slots; s++) {
        size_t bytes = (size_t)zero->slot_count[s] * dtype_bytes(zero->type);
        if (!zero->worker) /* a server reads its shards there */
            bytes = far ? bytes / (size_t)zero->shards : 0;
        if (bytes > 0) /* far params come in multiples of FAR_ALIGN */
            TRY(device_alloc(device, MEM_SLOTS, "params", bytes + (far ? FAR_ALIGN : 0),
                             &zero->slot_at[s]));
        TRY(event_create(device, &zero->slot_ready[s]));
        TRY(event_create(device, &zero->slot_free[s]));
    }
    return STATUS_OK;
}

/* --- all memory of a store ------------------------------------------------------------------ */

/* Values are rounded one chunk at a time where they are written to 16-bit params without masters.
 */
static enum status alloc_rounding(struct zero *zero)
{
    for (int i = 0; zero_is_narrow(zero) && i < zero->graph->piece_count; i++)
        if (!zero_piece_has_master(zero, i))
            return device_alloc(zero->ops->device, MEM_SCRATCH, "elements in fp32",
                                ZERO_STAGING * sizeof(float), &zero->rounding);
    return STATUS_OK;
}

/* A rank alone adds on its own stream, and far sums behind it. */
static enum status alloc_round_sums(struct zero *zero)
{
    const bool adds[2] = {zero_alone(zero), zero->reduce_stream != NULL};
    for (int i = 0; i < 2; i++)
        if (adds[i])
            TRY(device_alloc(zero->ops->device, MEM_COMM, "sum of a round",
                             ZERO_STAGING * sizeof(float), &zero->round_sum[i]));
    return STATUS_OK;
}

enum status zero_memory_create(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    struct device *device = zero->ops->device;
    TRY(partition_create(zero->env, graph, zero->roster.owners, &zero->partition));
    if (zero->pipe.cut)
        TRY(partition_create(zero->env, zero->pipe.cut->whole, zero->roster.owners, &zero->whole));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "pieces", (size_t)graph->piece_count,
                        sizeof *zero->pieces, &zero->pieces));
    TRY(find_uses(zero));
    TRY(find_frozen(zero));
    if (zero->config.micro_batches > 0) {
        TRY(zero_batches_create(zero));
        TRY(moments_create(zero));
    }
    TRY(offload_plan(zero));
    TRY(exchange_tables_create(zero));
    TRY(tp_group_create(zero));
    for (int i = 0; i < graph->piece_count; i++)
        TRY(alloc_piece(zero, i));
    size_t scalars = (size_t)(1 + zero->batch_count) * sizeof *zero->scalars;
    TRY(device_alloc(device, MEM_OTHER, "step scalars", scalars, &zero->scalars));
    TRY(mem_alloc(zero->env, MEM_OTHER, "step scalars", scalars, &zero->scalars_host));
    TRY(mem_alloc(zero->env, MEM_OTHER, "staging", ZERO_STAGING * sizeof(float), &zero->staging));
    TRY(alloc_rounding(zero));
    if (zero->sharding.params)
        TRY(alloc_param_slots(zero));
    if (zero->worker && zero_widens(zero))
        TRY(alloc_compute_slot(zero));
    TRY(exchange_open(zero));
    TRY(far_params_create(zero));
    if (zero->config.micro_batches > 0)
        TRY(offload_create(zero));
    if (zero->worker && zero->config.micro_batches > 0) {
        TRY(alloc_gradient_work(zero));
        TRY(alloc_gradient_slots(zero));
    }
    if (zero->config.micro_batches == 0)
        return STATUS_OK;
    if (zero->sum_type != DTYPE_F32 && zero->reduce_shard >= 0)
        TRY(alloc_round_sums(zero));
    TRY(norm_create(zero));
    TRY(noise_create(zero));
    TRY(device_alloc(device, MEM_SCRATCH, "non-finite index", sizeof *zero->nonfinite,
                     &zero->nonfinite));
    return zero_segments_create(zero);
}

/* --- freeing -------------------------------------------------------------------------------- */

static void free_piece(struct zero *zero, struct zero_piece *piece)
{
    struct device *device = zero->ops->device;
    for (int k = 0; k < piece->use_count; k++) {
        struct zero_use *use = &piece->uses[k];
        device_free(device, use->sum_block);
        if (use->local != use->full && use->local != use->sum)
            device_free(device, use->local);
        device_free(device, use->full);
        event_destroy(use->free);
    }
    device_free(device, piece->lent_sum);
    device_free(device, piece->snapshot);
    device_free(device, piece->v);
    device_free(device, piece->m);
    if (piece->master != piece->shard)
        device_free(device, piece->master);
    if (!piece->full)
        device_free(device, piece->shard);
    device_free(device, piece->full);
    event_destroy(piece->published);
    event_destroy(piece->summed);
}

static void free_slots(struct zero *zero)
{
    struct device *device = zero->ops->device;
    for (int s = 0; s < zero->slots; s++) {
        if (zero->slot_at)
            device_free(device, zero->slot_at[s]);
        if (zero->slot_ready)
            event_destroy(zero->slot_ready[s]);
        if (zero->slot_free)
            event_destroy(zero->slot_free[s]);
    }
    mem_free(zero->env, zero->slot_at);
    mem_free(zero->env, zero->slot_ready);
    mem_free(zero->env, zero->slot_free);
    mem_free(zero->env, zero->slot_count);
    for (int i = 0; i < zero->walk_count; i++)
        slot_table_free(zero->env, &zero->walks[i]);
    mem_free(zero->env, zero->walks);
    device_free(device, zero->compute_slot);
    device_free(device, zero->gradient_work);
    for (int s = 0; s < GRADIENT_SLOTS; s++) {
        device_free(device, zero->gradient_slots[s].at);
        event_destroy(zero->gradient_slots[s].free);
    }
}

void zero_memory_free(struct zero *zero)
{
    struct device *device = zero->ops->device;
    noise_free(zero);
    offload_free(zero);
    far_params_free(zero);
    for (int i = 0; zero->pieces && i < zero->graph->piece_count; i++)
        free_piece(zero, &zero->pieces[i]);
    free_slots(zero);
    zero_muon_free(zero);
    event_destroy(zero->written);
    event_destroy(zero->early);
    device_free(device, zero->contributions);
    device_free(device, zero->round_sum[0]);
    device_free(device, zero->round_sum[1]);
    device_free(device, zero->segments);
    device_free(device, zero->segment_locations);
    device_free(device, zero->nonfinite);
    device_free(device, zero->block_sums);
    device_free(device, zero->parts);
    device_free(device, zero->parts_host);
    device_free(device, zero->collected);
    device_free(device, zero->rounding);
    device_free(device, zero->scalars);
    mem_free(zero->env, zero->scalars_host);
    mem_free(zero->env, zero->batches);
    mem_free(zero->env, zero->batch_of);
    mem_free(zero->env, zero->runs);
    mem_free(zero->env, zero->optimizers);
    mem_free(zero->env, zero->frozen);
    mem_free(zero->env, zero->codes);
    mem_free(zero->env, zero->nodes);
    mem_free(zero->env, zero->nodes_taken);
    mem_free(zero->env, zero->nodes_joined);
    mem_free(zero->env, zero->all_bad);
    mem_free(zero->env, zero->first_block);
    mem_free(zero->env, zero->staged);
    mem_free(zero->env, zero->pp_stage_nodes);
    mem_free(zero->env, zero->staging);
    mem_free(zero->env, zero->exchange_counts);
    mem_free(zero->env, zero->uses);
    mem_free(zero->env, zero->pieces);
    tp_group_free(zero);
    partition_free(zero->env, &zero->partition);
    partition_free(zero->env, &zero->whole);
}
