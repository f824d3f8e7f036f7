/* zero_pass -- the params that a pass reads, and the gradients that it has written.
 *
 * Params that are not sharded are read in place, once the owners' newest values have arrived, or
 * once this rank has updated them (zero_sums.c).
 * Sharded params are gathered into slots ahead of their use, in the order of the slot table, and
 * the compute stream waits for them. Where units compute in fp32, 16-bit params are widened into a
 * slot for the current unit, unless the pass takes them in bf16. Gradients are written to a buffer
 * of their own or to a slot, and sent to their owners while the next unit computes. With one rank,
 * the first micro-batch is written directly into the sum where both have the same type. With a
 * single micro-batch they do, except for the first use of a tied piece. Otherwise a pass may add
 * gradients of matrices to fp32 sums itself, while it forms them (struct unit_sums).
 *
 *     the pass writes to             then sent, in zero->type          when
 *     where it is sent from          a full gradient, or a slot        ops and store have one type
 *     gradient_work, fp32            the same, rounded once            ops fp32, store 16 bits
 *     local (after the first round   once a step: local itself         config.local, sums and store
 *     gradient_work)                                                   have one type
 *     where it is sent from, or      once a step: local, the fp32      config.local, fp32 sums,
 *     gradient_work as above         sum of these, rounded             store 16 bits
 *
 * With config.local, one rank is a worker that sends to itself: its sum is `local`, and is rounded
 * like one that is sent, so that the bits are those of one worker and a server.
 */
#include "zero/zero_norm.h"
#include "zero/zero_offload.h"

#include <string.h>

/* --- params --------------------------------------------------------------------------------- */

/* The table of a walk. A forward walk, also one that ends early, is the first part of a longer
 * one. */
static const struct slot_table *find_walk(const struct zero *zero, int first, int end,
                                          enum walk_way way)
{
    for (int i = 0; i < zero->walk_count; i++) {
        struct slot_walk w = zero->walks[i].walk;
        bool same = w.way == way || (w.way == WALK_BOTH && way == WALK_FORWARD);
        if (same && w.first == first && (w.end == end || (w.end > end && way == WALK_FORWARD)))
            return &zero->walks[i];
    }
    CHECK(!"a walk that the store was not told of");
    return NULL;
}

void zero_walk(struct zero *zero, int first, int end, enum walk_way way)
{
    if (!zero->sharding.params)
        return;
    zero->walk = find_walk(zero, first, end, way);
    zero->next_residency = zero->ahead;
    zero->ahead = 0;
    zero->last_entry = way == WALK_FORWARD ? end - 1 - first : zero->walk->entries - 1;
    for (int s = 0; s < zero->slots; s++) /* also those that an unfinished walk left occupied */
        event_record(zero->slot_free[s], zero->stream);
}

static void gather(struct zero *zero, const struct residency *r)
{
    zero_update_piece(zero, r->piece);
    if (zero->config.offload.params != FAR_NONE) {
        far_params_gather(zero, r);
        return;
    }
    stream_wait(zero->gather_stream, zero->slot_free[r->slot]);
    shards_to_members(zero, r->piece, zero->pieces[r->piece].shard, zero->slot_at[r->slot]);
    event_record(zero->slot_ready[r->slot], zero->gather_stream);
}

/* Start every gather that is due when `entry` begins. */
static void gather_due(struct zero *zero, int entry)
{
    const struct slot_table *t = zero->walk;
    for (; zero->next_residency < t->residency_count; zero->next_residency++) {
        const struct residency *r = &t->residencies[zero->next_residency];
        if (r->issue > entry || r->first > zero->last_entry)
            return;
        gather(zero, r);
    }
}

/* The residency whose piece is in the slot in `entry`; NULL: none. */
static const struct residency *slot_user(const struct slot_table *t, int slot, int entry)
{
    for (int i = 0; i < t->residency_count; i++) {
        const struct residency *r = &t->residencies[i];
        if (r->slot == slot && r->first <= entry && entry <= r->last)
            return r;
    }
    return NULL;
}

/* A store that is only read repeats its walk, and its params do not change. So the first gathers of
 * the next walk start as soon as their slots are free: when the last entry of this one begins, or
 * when it is done (`entry` is beyond the last). A piece that is there already, because a tied param
 * is the first and the last to be used, stays. */
static void gather_ahead(struct zero *zero, int entry)
{
    const struct slot_table *t = zero->walk;
    if (zero->config.micro_batches > 0 || zero->walk_count > 1)
        return;
    for (; zero->ahead < t->residency_count; zero->ahead++) {
        const struct residency *r = &t->residencies[zero->ahead];
        const struct residency *user = slot_user(t, r->slot, entry);
        if (r->issue > 0 || (user && user->piece != r->piece))
            return;
        if (!user)
            gather(zero, r);
    }
}

/* The piece stays in its slot for the next walk. */
static bool stays(const struct zero *zero, const struct residency *r)
{
    for (int i = 0; i < zero->ahead; i++)
        if (zero->walk->residencies[i].piece == r->piece &&
            zero->walk->residencies[i].slot == r->slot)
            return true;
    return false;
}

/* The start of the params of `piece` for a pass in `entry`; the compute stream waits for them. */
static const void *piece_params(struct zero *zero, int piece, int entry)
{
    struct zero_piece *p = &zero->pieces[piece];
    if (!zero->sharding.params) {
        if (p->published)
            stream_wait(zero->stream, p->published);
        return p->full;
    }
    int found = slot_find_residency(zero->walk, piece, entry);
    CHECK(found >= 0);
    const struct residency *r = &zero->walk->residencies[found];
    stream_wait(zero->stream, zero->slot_ready[r->slot]);
    return zero->slot_at[r->slot];
}

/* Offset of `piece` in the fp32 params or gradients of unit u. The unit's parts of its pieces are
 * consecutive there: of all of them or, for gradients, of those that it writes. */
static int64_t work_offset(const struct zero *zero, int piece, int u, bool gradients)
{
    int pieces[UNIT_MAX_USES], count = unit_pieces(zero->graph, u, pieces);
    int64_t offset = 0;
    for (int k = 0; k < count && pieces[k] < piece; k++)
        if (!gradients || unit_writes_piece(zero->graph, u, pieces[k]))
            offset += zero_part_of_unit(zero, pieces[k], u).count;
    return offset;
}

/* Where products round to bf16 anyway, params that a pass takes in bf16 are not made wider. */
static bool stays_bf16(const struct zero *zero, const struct unit *unit, enum pass pass)
{
    return unit->type->takes_bf16[pass] != 0 && zero_widens(zero) && zero->type == DTYPE_BF16 &&
           ops_takes_bf16(zero->ops);
}

/* The params of unit u's part of a piece for a pass: those that it reads, in the compute type. */
static void compute_params(struct zero *zero, struct piece_range part, int u, enum pass pass,
                           int entry, struct unit_run *run)
{
    const struct unit *unit = &zero->graph->units[u];
    const void *params = zero_at(piece_params(zero, part.piece, entry), zero->type, part.first);
    float *wide = zero->compute_slot;
    if (zero_widens(zero))
        wide += work_offset(zero, part.piece, u, false);
    for (int use = 0; use < unit->use_count; use++) {
        int param = unit->uses[use];
        if (zero->graph->params[param].piece != part.piece || !unit_reads(unit, pass, use))
            continue;
        int64_t at = zero->partition.param_offset[param] - part.first;
        run->params[use] = zero_at(params, zero->type, at);
        if (!zero_widens(zero) || (run->bf16 && unit->type->takes_bf16[pass] >> use & 1))
            continue;
        ops_cast(zero->ops, zero->stream, wide + at, DTYPE_F32, run->params[use], zero->type,
                 unit_param_count(zero->graph, param));
        run->params[use] = wide + at;
    }
}

/* Update the pieces of a unit and, where new params are sent to other ranks, those of the next one,
 * which arrive while this one computes. All ranks do so in the same order, servers included. */
static void update_ahead(struct zero *zero, int u)
{
    int end = u + (zero->gather_comm ? 2 : 1);
    end = end < zero->graph->unit_count ? end : zero->graph->unit_count;
    for (; u < end; u++) {
        int pieces[UNIT_MAX_USES], count = unit_pieces(zero->graph, u, pieces);
        for (int k = 0; k < count; k++)
            zero_update_piece(zero, pieces[k]);
    }
}

void zero_acquire(struct zero *zero, int u, enum pass pass, struct unit_run *run)
{
    int entry = zero->sharding.params ? slot_entry(zero->walk->walk, u, pass) : 0;
    if (zero->sharding.params)
        gather_due(zero, entry);
    else if (zero->updating)
        update_ahead(zero, u);
    if (zero->sharding.params && entry == zero->last_entry)
        gather_ahead(zero, entry);
    if (!zero->worker)
        return;
    const struct unit *unit = &zero->graph->units[u];
    uint32_t reads = unit->type->reads[pass];
    int pieces[UNIT_MAX_USES], count = unit_pieces(zero->graph, u, pieces);
    for (int use = 0; use < unit->use_count; use++)
        run->params[use] = NULL;
    run->bf16 = stays_bf16(zero, unit, pass);
    for (int k = 0; k < count; k++) {
        if (!unit_uses_piece(zero->graph, u, reads, pieces[k]))
            continue;
        compute_params(zero, zero_part_of_unit(zero, pieces[k], u), u, pass, entry, run);
    }
}

/* In checked builds, make released memory unusable so that later reads show. */
static void poison(struct zero *zero, void *at, size_t bytes)
{
#ifdef SIFR_CHECKED
    if (at && device_on_host(zero->ops->device))
        memset(at, 0xff, bytes);
#else
    (void)zero, (void)at, (void)bytes;
#endif
}

static void free_slot(struct zero *zero, const struct residency *r)
{
    if (zero->worker) /* a server may still be sending what is there */
        poison(zero, zero->slot_at[r->slot],
               (size_t)zero->slot_count[r->slot] * dtype_bytes(zero->type));
    event_record(zero->slot_free[r->slot], zero->stream);
}

void zero_release(struct zero *zero, int u, enum pass pass)
{
    poison(zero, zero->compute_slot, (size_t)zero->compute_count * sizeof(float));
    if (!zero->sharding.params || pass == PASS_REBUILD) /* backward of the same unit follows */
        return;
    int entry = slot_entry(zero->walk->walk, u, pass);
    if (entry == zero->last_entry) { /* the walk ends: free every slot that is in use */
        for (int i = 0; i < zero->walk->residency_count; i++) {
            const struct residency *r = &zero->walk->residencies[i];
            if (r->first <= entry && entry <= r->last && !stays(zero, r))
                free_slot(zero, r);
        }
        gather_ahead(zero, zero->walk->entries);
        return;
    }
    int pieces[UNIT_MAX_USES], count = unit_pieces(zero->graph, u, pieces);
    for (int k = 0; k < count; k++) {
        int found = slot_find_residency(zero->walk, pieces[k], entry);
        if (found >= 0 && zero->walk->residencies[found].last == entry)
            free_slot(zero, &zero->walk->residencies[found]);
    }
}

/* --- gradients ------------------------------------------------------------------------------ */

/* Is a gradient written where another stream may still read the one before? Gradients leave the
 * compute stream to other ranks, or to sums in far memory; one that is its own sum has no slot. */
static bool waits_for_wire(const struct zero *zero, int piece, const struct zero_use *use)
{
    return !zero_alone(zero) || (zero->far_sums && !zero_sum_is_gradient(zero, piece, use));
}

/* A worker sends the sum of its own micro-batches from where it is. */
static bool sends_local(const struct zero *zero, const struct zero_use *use)
{
    return use->local && zero_local_is_sent(zero);
}

/* Where a gradient of `piece` is sent from. */
static void *wire_address(struct zero *zero, int piece, const struct zero_use *use)
{
    if (zero_sum_is_gradient(zero, piece, use))
        return use->sum;
    if (use->full)
        return use->full;
    if (sends_local(zero, use))
        return use->local;
    return zero_at(zero->gradient_slots[use->slot].at, zero->type, use->slot_offset);
}

static void *wire_part(struct zero *zero, struct piece_range part, const struct zero_use *use)
{
    return zero_at(wire_address(zero, part.piece, use), zero->type, part.first);
}

static struct event *wire_free(struct zero *zero, const struct zero_use *use)
{
    return use->full ? use->free : zero->gradient_slots[use->slot].free;
}

/* Where this rank's micro-batch of `round` writes the gradient of unit u's part of a piece, in the
 * compute type. */
static void *gradient_address(struct zero *zero, struct piece_range part, int u, int64_t round)
{
    struct zero_use *use = zero_find_use(zero, part.piece, u);
    CHECK(use != NULL);
    enum dtype type = zero->ops->type;
    if (use->local && type == zero->sum_type && round == 0)
        return zero_at(use->local, type, part.first);
    if (sends_local(zero, use) || zero_widens(zero))
        return zero_at(zero->gradient_work, type, work_offset(zero, part.piece, u, true));
    if (zero_alone(zero) && use->sum && zero_use_type(zero, part.piece, use) == zero->type &&
        round == 0)
        return zero_at(use->sum, zero->type, part.first);
    return wire_part(zero, part, use);
}

/* Where a pass may add the gradients of unit u's part of a piece itself; NULL: it may not. */
static float *open_sum(struct zero *zero, struct piece_range part, int u, int64_t round)
{
    const struct zero_use *use = zero_find_use(zero, part.piece, u);
    if (!zero_alone(zero) || zero->config.local || !use->sum || use->squares ||
        zero->pieces[part.piece].sum_is_far || zero_use_type(zero, part.piece, use) != DTYPE_F32)
        return NULL;
    float *sum = (float *)use->sum + part.first;
    return gradient_address(zero, part, u, round) == sum ? NULL : sum;
}

void zero_grads(struct zero *zero, int u, enum pass pass, int64_t round, struct unit_run *run)
{
    const struct unit *unit = &zero->graph->units[u];
    run->sums = (struct unit_sums){
        .type = zero->type, .add = round > 0, .several = zero->micro_batches > 1};
    for (int use = 0; use < unit->use_count; use++) {
        int param = unit->uses[use], piece = zero->graph->params[param].piece;
        run->grads[use] = NULL;
        if (!unit_writes(unit, pass, use))
            continue;
        zero_update_piece(zero, piece); /* its gradient may be in the memory of this one */
        const struct zero_use *sent = zero_find_use(zero, piece, u);
        if (waits_for_wire(zero, piece, sent) && (!zero_widens(zero) || sends_local(zero, sent)))
            stream_wait(zero->stream, wire_free(zero, sent));
        struct piece_range part = zero_part_of_unit(zero, piece, u);
        int64_t at = zero->partition.param_offset[param] - part.first;
        float *sum = open_sum(zero, part, u, round);
        run->grads[use] = zero_at(gradient_address(zero, part, u, round), zero->ops->type, at);
        run->sums.at[use] = sum ? sum + at : NULL;
    }
}

/* Round this rank's contribution once, to where it is sent from. Passes in 16 bits write it there
 * themselves. */
static void round_gradient(struct zero *zero, struct piece_range part, int u, int64_t round)
{
    struct zero_use *use = zero_find_use(zero, part.piece, u);
    const void *from = use->local ? zero_at(use->local, zero->sum_type, part.first)
                                  : gradient_address(zero, part, u, round);
    if (use->local ? sends_local(zero, use) : !zero_widens(zero))
        return;
    if (waits_for_wire(zero, part.piece, use))
        stream_wait(zero->stream, wire_free(zero, use));
    ops_cast(zero->ops, zero->stream, wire_part(zero, part, use), zero->type, from,
             use->local ? zero->sum_type : DTYPE_F32, part.count);
}

/* Send the gradient when unit u is the last of its units that writes it. */
static void send_gradient(struct zero *zero, int piece, int u, int64_t round)
{
    struct zero_use *use = zero_find_use(zero, piece, u);
    if (use->unit != u)
        return;
    const void *from = zero->worker ? wire_address(zero, piece, use) : NULL;
    reduce_shards_to_owners(zero, piece, from, round, use);
    if (zero->worker)
        event_record(wire_free(zero, use), zero->reduce_stream);
    if (zero->config.local)
        noise_send_local(zero, piece, use);
}

static bool has_gradient(const struct zero *zero, int64_t round)
{
    return roster_micro_batch(&zero->roster, zero->micro_batches, round) >= 0;
}

/* Gradients stay on the worker until the last round; then their sum is sent as if it were a single
 * gradient. Each addition is formed in fp32 and rounded once to the type of sums. */
static void reduce_local(struct zero *zero, struct piece_range part, int u, int64_t round)
{
    struct zero_use *use = zero_find_use(zero, part.piece, u);
    enum dtype type = zero->ops->type, sum = zero->sum_type;
    if (has_gradient(zero, round)) {
        const void *from = gradient_address(zero, part, u, round);
        void *local = zero_at(use->local, sum, part.first);
        noise_add_local(zero, part, use, from, round);
        if (from != local && round == 0) /* otherwise the first is there already */
            ops_cast(zero->ops, zero->stream, local, sum, from, type, part.count);
        else if (from != local)
            device_accumulate(zero->stream, local, sum, from, type, part.count);
    }
    if (round + 1 < roster_rounds(&zero->roster, zero->micro_batches))
        return;
    if (has_gradient(zero, 0))
        round_gradient(zero, part, u, round);
    if (zero_alone(zero))
        add_gradients(zero, zero->stream, part, use, wire_part(zero, part, use), 1, 0);
    else
        send_gradient(zero, part.piece, u, 0);
}

/* The same on one rank, where the sum is in far memory. */
static void send_to_far(struct zero *zero, int piece, int u, int64_t round)
{
    struct zero_use *use = zero_find_use(zero, piece, u);
    struct piece_range whole = {piece, 0, zero->partition.piece_count[piece]};
    const void *from = wire_address(zero, piece, use);
    if (use->unit != u)
        return;
    event_record(zero->written, zero->stream);
    stream_wait(zero->reduce_stream, zero->written);
    add_gradients(zero, zero->reduce_stream, whole, use, from, 1, round);
    event_record(wire_free(zero, use), zero->reduce_stream);
}

/* The first gradient in `part`, from element `at` on, that unit u has added; count 0: none. */
static struct piece_range next_added(const struct zero *zero, struct piece_range part, int64_t at,
                                     int u, uint32_t added)
{
    const struct unit *unit = &zero->graph->units[u];
    struct piece_range next = {part.piece, part.first + part.count, 0};
    for (int use = 0; use < unit->use_count; use++) {
        int param = unit->uses[use];
        int64_t first = zero->partition.param_offset[param];
        if (added >> use & 1 && zero->graph->params[param].piece == part.piece && first >= at &&
            first < next.first)
            next = (struct piece_range){part.piece, first, unit_param_count(zero->graph, param)};
    }
    return next;
}

/* On one rank: add what the pass has not added itself. Where other sums are far, their gradients
 * may still be in the slot. */
static void add_others(struct zero *zero, struct piece_range part, int u, int64_t round,
                       uint32_t added)
{
    struct zero_use *use = zero_find_use(zero, part.piece, u);
    const void *written = gradient_address(zero, part, u, round);
    if (zero_widens(zero) && waits_for_wire(zero, part.piece, use))
        stream_wait(zero->stream, wire_free(zero, use));
    for (int64_t at = part.first; at < part.first + part.count;) {
        struct piece_range next = next_added(zero, part, at, u, added);
        struct piece_range others = {part.piece, at, next.first - at};
        const void *from = zero_at(written, zero->ops->type, at - part.first);
        at = next.first + next.count;
        if (others.count == 0)
            continue;
        if (zero_widens(zero)) {
            void *rounded = wire_part(zero, others, use);
            ops_cast(zero->ops, zero->stream, rounded, zero->type, from, DTYPE_F32, others.count);
            from = rounded;
        }
        add_gradients(zero, zero->stream, others, use, from, 1, round);
    }
}

static void reduce_each(struct zero *zero, struct piece_range part, int u, int64_t round,
                        uint32_t added)
{
    bool far = zero->pieces[part.piece].sum_is_far;
    if (zero_alone(zero) && !far) {
        add_others(zero, part, u, round, added);
        return;
    }
    if (has_gradient(zero, round))
        round_gradient(zero, part, u, round);
    if (zero_alone(zero))
        send_to_far(zero, part.piece, u, round);
    else
        send_gradient(zero, part.piece, u, round);
}

void zero_reduce(struct zero *zero, int u, enum pass pass, int64_t round, uint32_t added)
{
    uint32_t writes = unit_written_uses(&zero->graph->units[u], pass);
    int pieces[UNIT_MAX_USES], count = unit_pieces(zero->graph, u, pieces);
    if (u == zero->graph->backward_from && zero->early) /* the last gradients of this round */
        event_record(zero->early, zero->reduce_stream);
    for (int k = 0; k < count; k++) {
        if (!unit_uses_piece(zero->graph, u, writes, pieces[k]))
            continue;
        zero_update_piece(zero, pieces[k]); /* an idle rank has not called zero_grads */
        struct piece_range part = zero_part_of_unit(zero, pieces[k], u);
        if (zero->config.local)
            reduce_local(zero, part, u, round);
        else
            reduce_each(zero, part, u, round, added);
    }
}

/* --- scalars -------------------------------------------------------------------------------- */

const struct step_scalars *zero_scalars(const struct zero *zero)
{
    return zero->scalars;
}

void zero_loss_scale(struct zero *zero, double scale, double count)
{
    zero->scalars_host->loss_scale = (float)(scale / count);
    device_copy(zero->stream, zero->scalars, zero->scalars_host, sizeof *zero->scalars_host);
}
