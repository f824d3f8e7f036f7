/* zero_pass -- what a pass gets and what becomes of what it wrote.
 *
 * Params that are not sharded are read in place, once the owners' newest values have arrived.
 * Sharded ones are gathered into slots ahead of their use, in the order of the slot table, and
 * the compute stream waits for them. Gradients are written to a buffer of their own or a slot
 * and sent to their owners while the next unit computes. One rank alone writes its first
 * micro-batch straight into the sum.
 */
#include "zero/zero_impl.h"

#include <string.h>

/* --- params ----------------------------------------------------------------------------------- */

void zero_walk(struct zero *zero, bool backward)
{
    zero->next_residency = 0;
    zero->last_entry = backward ? zero->slots.entries - 1 : zero->graph->unit_count - 1;
    for (int s = 0; s < zero->slots.slots; s++) /* also those that an unfinished walk held */
        event_record(zero->slot_free[s], zero->stream);
}

static void gather(struct zero *zero, const struct residency *r)
{
    stream_wait(zero->gather_stream, zero->slot_free[r->slot]);
    slices_to_members(zero, r->piece, zero->pieces[r->piece].slice, zero->slot_at[r->slot]);
    event_record(zero->slot_ready[r->slot], zero->gather_stream);
}

/* Start every gather that is due when `entry` begins. */
static void gather_due(struct zero *zero, int entry)
{
    const struct slot_table *t = &zero->slots;
    for (; zero->next_residency < t->residency_count; zero->next_residency++) {
        const struct residency *r = &t->residencies[zero->next_residency];
        if (r->issue > entry || r->first > zero->last_entry)
            return;
        gather(zero, r);
    }
}

/* The start of the params of `piece` for a pass in `entry`; the compute stream waits for them. */
static const float *piece_params(struct zero *zero, int piece, int entry)
{
    struct zero_piece *p = &zero->pieces[piece];
    if (!zero->sharding.params) {
        if (p->published)
            stream_wait(zero->stream, p->published);
        return p->full;
    }
    const struct residency *r =
        &zero->slots.residencies[slot_residency(&zero->slots, piece, entry)];
    stream_wait(zero->stream, zero->slot_ready[r->slot]);
    return zero->slot_at[r->slot];
}

void zero_acquire(struct zero *zero, int u, enum pass pass, struct unit_run *run)
{
    const struct unit *unit = &zero->graph->units[u];
    int entry = slot_entry(zero->graph, u, pass);
    if (zero->sharding.params)
        gather_due(zero, entry);
    for (int use = 0; zero->worker && use < unit->use_count; use++) {
        int param = unit->uses[use];
        run->params[use] = NULL;
        if (unit_reads(unit, pass, use))
            run->params[use] = piece_params(zero, zero->graph->params[param].piece, entry) +
                               zero->partition.param_offset[param];
    }
}

/* In checked builds what is released is made unusable, so that reading it later shows. */
static void poison(struct zero *zero, int slot)
{
#ifdef SIFR_CHECKED
    if (zero->slot_at[slot] && strcmp(device_backend(zero->ops->device), "cpu") == 0)
        memset(zero->slot_at[slot], 0xff, (size_t)zero->slots.slot_count[slot] * sizeof(float));
#else
    (void)zero, (void)slot;
#endif
}

void zero_release(struct zero *zero, int u, enum pass pass)
{
    if (!zero->sharding.params || pass == PASS_REBUILD) /* backward of the same unit follows */
        return;
    int entry = slot_entry(zero->graph, u, pass);
    for (int i = 0; i < zero->slots.residency_count; i++) {
        const struct residency *r = &zero->slots.residencies[i];
        bool over = r->last == entry ||
                    (r->first <= entry && entry == zero->last_entry && entry <= r->last);
        if (!over)
            continue;
        poison(zero, r->slot);
        event_record(zero->slot_free[r->slot], zero->stream);
    }
}

/* --- gradients --------------------------------------------------------------------------------- */

static struct zero_use *find_use(struct zero *zero, int piece, int u)
{
    struct zero_piece *p = &zero->pieces[piece];
    for (int k = 0; k < p->use_count; k++)
        if (p->uses[k].unit == u)
            return &p->uses[k];
    return NULL;
}

/* Where in a slot the gradient of `piece` begins: the pieces of a unit lie one after the other. */
static int64_t slot_offset(struct zero *zero, int piece, int u)
{
    int64_t offset = 0;
    for (int i = 0; i < piece; i++)
        if (find_use(zero, i, u))
            offset += zero->partition.piece_count[i];
    return offset;
}

static struct gradient_slot *slot_of_unit(struct zero *zero, int u)
{
    return &zero->gradient_slots[zero_alone(zero) ? 0 : u % GRADIENT_SLOTS];
}

/* Where this rank's micro-batch of `round` writes the gradient that unit u has of `piece`. */
static float *gradient_place(struct zero *zero, int piece, int u, int64_t round)
{
    struct zero_use *use = find_use(zero, piece, u);
    CHECK(use != NULL);
    if (use->full)
        return use->full;
    if (zero_alone(zero) && round == 0)
        return use->sum;
    return slot_of_unit(zero, u)->at + slot_offset(zero, piece, u);
}

void zero_grads(struct zero *zero, int u, enum pass pass, int64_t round, struct unit_run *run)
{
    const struct unit *unit = &zero->graph->units[u];
    for (int use = 0; use < unit->use_count; use++) {
        int param = unit->uses[use], piece = zero->graph->params[param].piece;
        run->grads[use] = NULL;
        if (!unit_writes(unit, pass, use))
            continue;
        struct zero_use *owned = find_use(zero, piece, u);
        if (!zero_alone(zero))
            stream_wait(zero->stream, owned->full ? owned->free : slot_of_unit(zero, u)->free);
        run->grads[use] =
            gradient_place(zero, piece, u, round) + zero->partition.param_offset[param];
    }
}

/* One rank: the first micro-batch is in its place, the others are added. */
static void add_locally(struct zero *zero, const struct unit *unit, int u, enum pass pass,
                        int64_t round)
{
    for (int use = 0; round > 0 && use < unit->use_count; use++) {
        if (!unit_writes(unit, pass, use))
            continue;
        int param = unit->uses[use], piece = zero->graph->params[param].piece;
        int64_t offset = zero->partition.param_offset[param];
        device_accumulate(zero->stream, find_use(zero, piece, u)->sum + offset, DTYPE_F32,
                          gradient_place(zero, piece, u, round) + offset, DTYPE_F32,
                          unit_param_count(zero->graph, param));
    }
}

static bool pass_writes_piece(const struct zero *zero, const struct unit *unit, enum pass pass,
                              int piece)
{
    for (int use = 0; use < unit->use_count; use++)
        if (zero->graph->params[unit->uses[use]].piece == piece && unit_writes(unit, pass, use))
            return true;
    return false;
}

void zero_reduce(struct zero *zero, int u, enum pass pass, int64_t round)
{
    const struct unit *unit = &zero->graph->units[u];
    if (zero_alone(zero)) {
        add_locally(zero, unit, u, pass, round);
        return;
    }
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!pass_writes_piece(zero, unit, pass, i))
            continue;
        struct zero_use *use = find_use(zero, i, u);
        const float *from = zero->worker ? gradient_place(zero, i, u, round) : NULL;
        slices_to_owners(zero, i, from, round, use->sum);
        if (zero->worker)
            event_record(use->full ? use->free : slot_of_unit(zero, u)->free, zero->reduce_stream);
    }
}

/* --- scalars ----------------------------------------------------------------------------------- */

const struct step_scalars *zero_scalars(const struct zero *zero)
{
    return zero->scalars;
}

void zero_loss_scale(struct zero *zero, double scale, int64_t label_count)
{
    zero->scalars_host.loss_scale = (float)(scale / (double)label_count);
    device_copy(zero->stream, zero->scalars, &zero->scalars_host, sizeof zero->scalars_host);
}
