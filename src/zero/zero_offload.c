/* zero_offload -- optimizer state and summed gradients in slower memory than the device's: in host
 * memory, or on disk (device/far.h).
 *
 * State. The masters and moments of a piece are divided into packets. A packet is one range of
 * bytes in far memory. It passes through a slot in device memory, where the update finds it:
 *
 *     in       | fetch 0 | fetch 1 | fetch 2 | fetch 3 | ...
 *     compute            | update 0, forward 0 | update 1, forward 1 | ...
 *     out                           | return 0 | return 1 | ...
 *
 * Packet p passes through slot p mod slots. As soon as the last packets of an update are back, the
 * first ones of the next update are fetched: the slots are always full when the verdict is there.
 * An update waits only for its own packet, and is enqueued when a pass needs the piece
 * (zero_sums.c), so fetches and returns overlap with the forward pass. config.share keeps the state
 * of the first pieces on the device: they are needed first, and have the least time to come.
 *
 * Sums. Where a rank has the sum of a piece to itself, the sum may be far, too. A gradient is added
 * part by part: a part of the sum is fetched to a slot, the gradient is added, and the part
 * returns. This runs behind the backward pass, on the reduce stream. In the last round the squares
 * of the sum are added up for the norm, block by block, while it is in the slot; the update then
 * fetches each packet's part of the sum with its state. Sums that are changed between the last
 * round and the norm stay on the device: those of tied pieces, of pieces that PP stages share, of
 * partial, gated and limited tensors, and those that the library's users see.
 *
 * With config.on_host the CPU updates far state where it is, instead (zero_offload_host.c). Params
 * may be far, too (zero_offload_params.c): packets then bring new ones there.
 *
 * Where something is decides about time only: the same operations run on the same values.
 */
#include "zero/zero_norm.h"
#include "zero/zero_offload.h"

#include <stdio.h>

#include "ops/ops.h"

enum { SLOT_SHARE = 8, LEAST_SLOTS = 3, SUM_SLOTS = 4 };
enum { ELEMENT_BYTES = 16 }; /* at most: master, two moments and a part of the sum */
/* Of a packet: copies of 100 MB reach the link's rate, and an update need not wait for more. A large
 * window has larger packets, since CUDA blocks the caller when about 1,000 calls wait on a stream,
 * and filling the slots makes three for each. */
enum { MOST_ELEMENTS = 8 << 20, MOST_SLOTS = 64 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t aligned(size_t bytes)
{
    return (bytes + FAR_ALIGN - 1) / FAR_ALIGN * FAR_ALIGN;
}

/* --- what is far ---------------------------------------------------------------------------- */

/* Is the sum inside the gradient, where no memory would be saved? (zero_memory.c) */
static bool sum_is_in_gradient(const struct zero *zero)
{
    bool one_round = roster_rounds(&zero->roster, zero->most_reductions) == 1;
    return !zero_alone(zero) && !zero->sharding.grads && one_round &&
           dtype_bytes(zero->sum_type) == dtype_bytes(zero->type);
}

static bool sum_goes(const struct zero *zero, int i)
{
    return zero->config.offload.grads != FAR_NONE && !zero->config.local &&
           zero->roster.copies == 1 && !sum_is_in_gradient(zero) && zero_is_learned(zero, i) &&
           !zero_sum_changes(zero, i);
}

static size_t state_bytes(const struct zero *zero, struct piece_range range)
{
    size_t masters = zero_piece_has_master(zero, range.piece) ? sizeof(float) : 0;
    return masters * (size_t)range.count + moments_bytes(zero, range, 0) +
           moments_bytes(zero, range, 1);
}

/* The state of the last pieces goes, until config.share of all bytes has gone. */
static void choose_state(struct zero *zero)
{
    double all = 0, gone = 0;
    if (zero->config.offload.optimizer == FAR_NONE || zero->shard < 0)
        return;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero_is_learned(zero, i))
            all += (double)state_bytes(zero, zero_shard_range(zero, i, zero->shard));
    for (int i = zero->graph->piece_count - 1; i >= 0; i--) {
        size_t bytes = zero_is_learned(zero, i)
                           ? state_bytes(zero, zero_shard_range(zero, i, zero->shard))
                           : 0;
        if (bytes == 0 || gone >= zero->config.offload.share * all)
            continue;
        zero->pieces[i].state_is_far = true;
        gone += (double)bytes;
    }
}

/* Elements of a packet: a slot is a fraction of the window. */
static int64_t packet_elements(const struct zero *zero)
{
    int64_t window = zero->config.offload.window / ELEMENT_BYTES;
    int64_t elements = least(window / SLOT_SHARE, MOST_ELEMENTS);
    elements = elements > window / MOST_SLOTS ? elements : window / MOST_SLOTS;
    elements = elements / OFFLOAD_ELEMENTS * OFFLOAD_ELEMENTS;
    return elements > 0 ? elements : OFFLOAD_ELEMENTS;
}

/* Lay out the state of a packet behind *bytes of far memory. */
static void place_packet(const struct zero *zero, struct zero_packet *packet, size_t *bytes)
{
    struct piece_range range = packet->range;
    if (!zero->pieces[range.piece].state_is_far)
        return;
    if (zero_piece_has_master(zero, range.piece))
        packet->m = aligned((size_t)range.count * sizeof(float));
    packet->v = packet->m + (moments_bytes(zero, range, 0) + 63) / 64 * 64;
    packet->bytes = aligned(packet->v + moments_bytes(zero, range, 1));
    packet->at = *bytes;
    *bytes += packet->bytes;
}

static bool updates_far_params(const struct zero *zero, int piece)
{
    return zero->pieces[piece].params_are_far && zero_is_learned(zero, piece);
}

static enum status make_packets(struct zero *zero)
{
    int64_t most = packet_elements(zero);
    int count = 0;
    size_t bytes = 0;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        piece->first_packet = count;
        if (piece->state_is_far || piece->sum_is_far || updates_far_params(zero, i))
            piece->packet_count = (int)((zero_shard_count(zero, i) + most - 1) / most);
        count += piece->packet_count;
    }
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "packets", (size_t)count, sizeof *zero->packets,
                        &zero->packets));
    zero->packet_count = count;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        struct piece_range shard = zero_shard_range(zero, i, zero->shard);
        for (int k = 0; k < zero->pieces[i].packet_count; k++) {
            struct zero_packet *packet = &zero->packets[zero->pieces[i].first_packet + k];
            int64_t first = k * most;
            packet->range =
                (struct piece_range){i, shard.first + first, least(most, shard.count - first)};
            place_packet(zero, packet, &bytes);
        }
    }
    return STATUS_OK;
}

void offload_choose(struct zero *zero)
{
    struct zero_offload *o = &zero->config.offload;
    enum far_kind *const kinds[] = {&o->optimizer, &o->grads, &o->params};
    for (int i = 0; i < 3; i++)
        if (*kinds[i] == FAR_HOST && far_host_is_near(zero->ops->device))
            *kinds[i] = FAR_NONE;
    if (zero->config.micro_batches == 0)
        o->optimizer = o->grads = FAR_NONE;
}

enum status offload_plan(struct zero *zero)
{
    far_params_plan(zero);
    if (zero->config.micro_batches == 0)
        return STATUS_OK;
    host_plan(zero);
    choose_state(zero);
    for (int i = 0; zero->reduce_shard >= 0 && i < zero->graph->piece_count; i++)
        zero->pieces[i].sum_is_far = sum_goes(zero, i);
    return zero->shard >= 0 ? make_packets(zero) : STATUS_OK;
}

/* --- memory --------------------------------------------------------------------------------- */

size_t offload_sum_bytes(const struct zero *zero, struct piece_range range)
{
    return aligned((size_t)range.count * dtype_bytes(zero_sum_type(zero, range.piece)));
}

static enum status create_far(struct zero *zero)
{
    const struct zero_offload *o = &zero->config.offload;
    struct far_config state = {.kind = o->optimizer,
                               .category = MEM_OPTIMIZER,
                               .name = "optimizer state",
                               .folder = o->folder,
                               .key = "offload.folder"};
    struct far_config sums = state;
    sums.kind = o->grads, sums.category = MEM_GRADS, sums.name = "summed gradients";
    for (int p = 0; p < zero->packet_count; p++)
        state.bytes += zero->packets[p].bytes;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        if (!piece->sum_is_far)
            continue;
        piece->sum_at = sums.bytes;
        sums.bytes += offload_sum_bytes(zero, zero_shard_range(zero, i, zero->shard));
    }
    if (state.bytes > 0)
        TRY(far_create(zero->ops->device, &state, &zero->far_state));
    return sums.bytes > 0 ? far_create(zero->ops->device, &sums, &zero->far_sums) : STATUS_OK;
}

static enum status create_slots(struct zero *zero, const char *name, size_t bytes, int count,
                                struct transit_slot **slots)
{
    struct device *device = zero->ops->device;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "transit slots", (size_t)count, sizeof **slots,
                        slots));
    for (int s = 0; s < count; s++) {
        struct transit_slot *slot = &(*slots)[s];
        if (bytes > 0)
            TRY(device_alloc(device, MEM_SLOTS, name, bytes, &slot->at));
        TRY(event_create(device, &slot->fetched));
        TRY(event_create(device, &slot->used));
        TRY(event_create(device, &slot->returned));
    }
    return STATUS_OK;
}

static void free_slots(struct zero *zero, struct transit_slot *slots, int count)
{
    for (int s = 0; slots && s < count; s++) {
        device_free(zero->ops->device, slots[s].at);
        event_destroy(slots[s].fetched);
        event_destroy(slots[s].used);
        event_destroy(slots[s].returned);
    }
    mem_free(zero->env, slots);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* As many slots of the largest packet as the window has room for. */
static enum status create_transit_slots(struct zero *zero)
{
    size_t state = 0, sum = 0, params = 0, host = host_find_slot(zero);
    for (int p = 0; p < zero->packet_count; p++) {
        const struct zero_packet *packet = &zero->packets[p];
        if (host_updates(zero, p))
            continue;
        state = larger(state, packet->bytes);
        if (zero->pieces[packet->range.piece].sum_is_far)
            sum = larger(sum, offload_sum_bytes(zero, packet->range));
        if (zero->pieces[packet->range.piece].params_are_far)
            params = larger(params, far_params_bytes(zero, packet->range));
    }
    int64_t count = zero->config.offload.window / (int64_t)(state + sum + params + host);
    count = least(count > LEAST_SLOTS ? count : LEAST_SLOTS, zero->packet_count);
    zero->transit_grad = state;
    zero->transit_params = state + sum;
    zero->transit_slot_count = (int)count;
    for (int p = 0; p < zero->packet_count; p++)
        zero->packets[p].slot = p % (int)count;
    TRY(create_slots(zero, "state on its way", state + sum + params, (int)count,
                     &zero->transit_slots));
    return host_create(zero);
}

enum status offload_create_stream(struct zero *zero, const char *name, struct stream **stream)
{
    const struct zero_offload *o = &zero->config.offload;
    enum far_kind slowest = o->optimizer > o->grads ? o->optimizer : o->grads;
    slowest = o->params > slowest ? o->params : slowest;
    return o->on_host ? stream_create_worker(zero->ops->device, name, stream)
                      : far_stream_create(zero->ops->device, slowest, name, stream);
}

/* Parts of sums, and the stream that adds where no other rank does. */
static enum status create_sum_slots(struct zero *zero)
{
    struct device *device = zero->ops->device;
    size_t most = 0;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        if (!piece->sum_is_far)
            continue;
        size_t bytes = offload_sum_bytes(zero, zero->packets[piece->first_packet].range);
        most = bytes > most ? bytes : most;
        TRY(event_create(device, &piece->sum_returned));
        TRY(device_alloc(device, MEM_GRADS, "squares of sums",
                         (size_t)(zero_shard_count(zero, i) / OPS_BLOCK) * sizeof(double),
                         &piece->uses[0].sum_squares));
    }
    zero->sum_slot_count = SUM_SLOTS;
    TRY(create_slots(zero, "sums on their way", most, SUM_SLOTS, &zero->sum_slots));
    if (!zero_alone(zero))
        return STATUS_OK;
    if (!zero->written)
        TRY(event_create(device, &zero->written));
    return offload_create_stream(zero, "reduce", &zero->reduce_stream);
}

enum status offload_create_sender(struct zero *zero)
{
    return zero->from_far ? STATUS_OK
                          : device_alloc(zero->ops->device, MEM_COMM, "elements from far memory",
                                         ZERO_STAGING * sizeof(float), &zero->from_far);
}

enum status offload_create(struct zero *zero)
{
    TRY(create_far(zero));
    if (zero->packet_count == 0)
        return STATUS_OK;
    TRY(offload_create_stream(zero, "offload in", &zero->in_stream));
    TRY(offload_create_stream(zero, "offload out", &zero->out_stream));
    if (!zero_alone(zero) || zero->far_state)
        TRY(offload_create_sender(zero));
    TRY(create_transit_slots(zero));
    return zero->far_sums ? create_sum_slots(zero) : STATUS_OK;
}

void offload_free(struct zero *zero)
{
    free_slots(zero, zero->transit_slots, zero->transit_slot_count);
    free_slots(zero, zero->sum_slots, zero->sum_slot_count);
    for (int i = 0; zero->pieces && i < zero->graph->piece_count; i++)
        if (zero->pieces[i].sum_is_far) {
            device_free(zero->ops->device, zero->pieces[i].uses[0].sum_squares);
            event_destroy(zero->pieces[i].sum_returned);
        }
    host_free(zero);
    device_free(zero->ops->device, zero->from_far);
    far_destroy(zero->far_state);
    far_destroy(zero->far_sums);
    mem_free(zero->env, zero->packets);
}

/* --- packets in a step ---------------------------------------------------------------------- */

size_t offload_sum_at(const struct zero *zero, struct piece_range range)
{
    const struct zero_piece *piece = &zero->pieces[range.piece];
    int64_t first = range.first - zero->shard * zero_shard_count(zero, range.piece);
    return piece->sum_at + (size_t)first * dtype_bytes(zero_sum_type(zero, range.piece));
}

/* A part of the state of a packet, once its slot is free; what was changed has returned then. */
static void fetch_state(struct zero *zero, int p, size_t at, size_t bytes)
{
    const struct zero_packet *packet = &zero->packets[p];
    const struct transit_slot *slot = &zero->transit_slots[packet->slot];
    stream_wait(zero->in_stream, slot->returned);
    if (bytes > 0)
        far_read(zero->in_stream, zero->far_state, packet->at + at, slot->at + at, bytes);
    event_record(slot->fetched, zero->in_stream);
}

/* Its part of the sum, which is final. */
static void fetch_sum(struct zero *zero, int p)
{
    const struct zero_packet *packet = &zero->packets[p];
    const struct transit_slot *slot = &zero->transit_slots[packet->slot];
    if (!zero->pieces[packet->range.piece].sum_is_far)
        return;
    far_read(zero->in_stream, zero->far_sums, offload_sum_at(zero, packet->range),
             slot->at + zero->transit_grad, offload_sum_bytes(zero, packet->range));
    event_record(slot->fetched, zero->in_stream);
}

/* Params that are their own masters. And all where Muon updates some tensors of a packet, but not
 * all at once: the packet returns as a whole. */
static void fetch_params(struct zero *zero, int p)
{
    const struct zero_packet *packet = &zero->packets[p];
    const struct transit_slot *slot = &zero->transit_slots[packet->slot];
    int piece = packet->range.piece;
    bool needed = zero->muon || !zero_piece_has_master(zero, piece);
    if (!zero->pieces[piece].params_are_far || !needed)
        return;
    far_read(zero->in_stream, zero->far_params, far_params_at(zero, packet->range),
             slot->at + zero->transit_params, far_params_bytes(zero, packet->range));
    event_record(slot->fetched, zero->in_stream);
}

/* Fill the slots with the first packets of the next update. The CPU's must wait for the verdict. */
static void fetch_ahead(struct zero *zero)
{
    int p = zero->packets_fetched;
    for (; p < zero->transit_slot_count && !host_updates(zero, p); p++) {
        fetch_state(zero, p, 0, zero->packets[p].bytes);
        fetch_params(zero, p);
    }
    zero->packets_fetched = p;
}

/* The next packet of the current update. */
static void fetch_next(struct zero *zero)
{
    int p = zero->packets_fetched++;
    if (host_updates(zero, p)) {
        host_start(zero, p);
        return;
    }
    fetch_state(zero, p, 0, zero->packets[p].bytes);
    fetch_params(zero, p);
    fetch_sum(zero, p);
}

void offload_begin_update(struct zero *zero)
{
    if (zero->packet_count == 0)
        return;
    fetch_ahead(zero);
    for (int i = 0; i < zero->sum_slot_count; i++) /* what the last round added is there */
        stream_wait(zero->in_stream, zero->sum_slots[i].returned);
    for (int p = 0; p < zero->packets_fetched; p++)
        fetch_sum(zero, p);
    host_begin_update(zero);
    while (zero->packets_fetched < zero->transit_slot_count)
        fetch_next(zero);
}

/* A part of the state of a packet, and its params where the update has written them. */
static void return_state(struct zero *zero, int p, size_t at, size_t bytes, bool params)
{
    const struct zero_packet *packet = &zero->packets[p];
    const struct transit_slot *slot = &zero->transit_slots[packet->slot];
    const struct zero_piece *piece = &zero->pieces[packet->range.piece];
    event_record(slot->used, zero->stream);
    stream_wait(zero->out_stream, slot->used);
    if (bytes > 0)
        far_write(zero->out_stream, zero->far_state, packet->at + at, slot->at + at, bytes);
    if (params && piece->params_are_far) {
        far_write(zero->out_stream, zero->far_params, far_params_at(zero, packet->range),
                  slot->at + zero->transit_params, far_params_bytes(zero, packet->range));
        event_record(piece->params_returned, zero->out_stream);
    }
    event_record(slot->returned, zero->out_stream);
}

void offload_hold(struct zero *zero, int first)
{
    pthread_mutex_lock(&zero->hold_lock);
    zero->first_held = first;
    pthread_cond_broadcast(&zero->released);
    pthread_mutex_unlock(&zero->hold_lock);
}

void offload_await_release(struct zero *zero, int piece)
{
    pthread_mutex_lock(&zero->hold_lock);
    while (piece >= zero->first_held)
        pthread_cond_wait(&zero->released, &zero->hold_lock);
    pthread_mutex_unlock(&zero->hold_lock);
}

/* A packet is in its slot. The CPU has updated its own, and the new params are on the device. */
static void use_packet(struct zero *zero, int k)
{
    const struct zero_piece *piece = &zero->pieces[zero->packets[k].range.piece];
    stream_wait(zero->stream, zero->transit_slots[zero->packets[k].slot].fetched);
    if (host_updates(zero, k)) {
        if (piece->params_are_far)
            event_record(piece->params_returned, zero->stream);
        return;
    }
    for (int b = 0; b < zero->batch_count; b++)
        zero_update_segments(zero, b, zero_run(zero, b, zero->graph->piece_count + k));
    return_state(zero, k, 0, zero->packets[k].bytes, true);
}

void offload_update_piece(struct zero *zero, int piece)
{
    const struct zero_piece *p = &zero->pieces[piece];
    if (p->state_is_far || (p->params_are_far && !zero_piece_has_master(zero, piece)))
        offload_await_release(zero, piece);
    for (int k = p->first_packet; k < p->first_packet + p->packet_count; k++) {
        CHECK_EQ(k, zero->packets_used);
        use_packet(zero, k);
        zero->packets_used++;
        if (zero->packets_fetched < zero->packet_count)
            fetch_next(zero);
    }
    if (p->packet_count == 0 || zero->packets_used < zero->packet_count)
        return;
    zero->packets_used = zero->packets_fetched = 0;
    if (!zero->muon) /* which needs the slots first */
        fetch_ahead(zero);
}

/* The bytes of a packet's masters, or of its moments. */
static void find_part(const struct zero_packet *packet, bool masters, size_t *at, size_t *bytes)
{
    *at = masters ? 0 : packet->m;
    *bytes = masters ? packet->m : packet->bytes - packet->m;
}

void offload_visit(struct zero *zero, int packet, bool masters)
{
    size_t at, bytes;
    if (packet < 0)
        return;
    find_part(&zero->packets[packet], masters, &at, &bytes);
    fetch_state(zero, packet, at, bytes);
    if (masters)
        fetch_params(zero, packet);
    else
        fetch_sum(zero, packet);
    stream_wait(zero->stream, zero->transit_slots[zero->packets[packet].slot].fetched);
}

void offload_leave(struct zero *zero, int packet, bool masters)
{
    size_t at, bytes;
    if (packet < 0)
        return;
    find_part(&zero->packets[packet], masters, &at, &bytes);
    return_state(zero, packet, at, bytes, masters);
}

/* --- sums in a step ------------------------------------------------------------------------- */

/* The squares of the blocks of a sum that is complete, param by param, to skip padding. */
static void add_squares(struct zero *zero, struct stream *stream, struct piece_range range,
                        const char *sum)
{
    const struct unit_piece *piece = &zero->graph->pieces[range.piece];
    const struct zero_use *use = &zero->pieces[range.piece].uses[0];
    enum dtype type = zero_sum_type(zero, range.piece);
    int64_t shard = zero->shard * zero_shard_count(zero, range.piece);
    for (int q = piece->first_param; q < piece->first_param + piece->param_count; q++) {
        int64_t from = zero->partition.param_offset[q];
        int64_t to = from + norm_answered_count(zero->graph, q, unit_param_phase(zero->graph, q));
        from = from > range.first ? from : range.first;
        to = least(to, range.first + range.count);
        if (from >= to)
            continue;
        double *squares = use->sum_squares + (from - shard) / OPS_BLOCK;
        device_zero(stream, squares,
                    (size_t)((to - from + OPS_BLOCK - 1) / OPS_BLOCK) * sizeof *squares);
        device_add_squares(stream, squares, zero_at(sum, type, from - range.first), type, to - from,
                           1);
    }
}

/* One part of the range, through the next slot. */
static void add_part(struct zero *zero, struct stream *stream, struct piece_range part,
                     const void *gradients, int active, int64_t stride, bool first, bool last)
{
    const struct transit_slot *slot = &zero->sum_slots[zero->next_sum_slot++ % SUM_SLOTS];
    size_t at = offload_sum_at(zero, part), bytes = offload_sum_bytes(zero, part);
    if (!first) {
        stream_wait(zero->in_stream, slot->returned);
        far_read(zero->in_stream, zero->far_sums, at, slot->at, bytes);
        event_record(slot->fetched, zero->in_stream);
    }
    stream_wait(stream, first ? slot->returned : slot->fetched);
    if (zero_sum_type(zero, part.piece) == zero->sum_type)
        add_contributions(zero, stream, slot->at, gradients, active, stride, part.count, first);
    else /* a single gradient is its own sum */
        device_copy(stream, slot->at, gradients, (size_t)part.count * dtype_bytes(zero->type));
    if (last)
        add_squares(zero, stream, part, slot->at);
    event_record(slot->used, stream);
    stream_wait(zero->out_stream, slot->used);
    far_write(zero->out_stream, zero->far_sums, at, slot->at, bytes);
    event_record(slot->returned, zero->out_stream);
}

void offload_add(struct zero *zero, struct stream *stream, struct piece_range range,
                 const void *gradients, int active, int64_t round)
{
    bool last = round + 1 == roster_rounds(&zero->roster, zero->reductions);
    const struct zero_piece *piece = &zero->pieces[range.piece];
    int64_t shard = zero->shard * zero_shard_count(zero, range.piece);
    int64_t most = zero->packets[piece->first_packet].range.count;
    CHECK_EQ((range.first - shard) % OFFLOAD_ELEMENTS, 0);
    stream_wait(zero->in_stream, piece->sum_returned); /* of the round before */
    for (int64_t done = 0, n; done < range.count; done += n) {
        n = least(most, range.count - done);
        struct piece_range part = {range.piece, range.first + done, n};
        add_part(zero, stream, part, zero_at(gradients, zero->type, done), active, range.count,
                 round == 0, last);
    }
    event_record(piece->sum_returned, zero->out_stream);
}

/* --- views ---------------------------------------------------------------------------------- */

int offload_packet(const struct zero *zero, int piece, int64_t element)
{
    const struct zero_piece *p = &zero->pieces[piece];
    if (p->packet_count == 0)
        return -1;
    int64_t first = element - zero->shard * zero_shard_count(zero, piece);
    return p->first_packet + (int)(first / zero->packets[p->first_packet].range.count);
}

struct piece_range offload_first(const struct zero *zero, struct piece_range range, int *packet)
{
    *packet = offload_packet(zero, range.piece, range.first);
    if (*packet >= 0) {
        struct piece_range held = zero->packets[*packet].range;
        range.count = least(range.count, held.first + held.count - range.first);
    }
    return range;
}

struct state_view offload_view(const struct zero *zero, int piece, int packet)
{
    const struct zero_piece *p = &zero->pieces[piece];
    struct piece_range shard = zero_shard_range(zero, piece, zero->shard);
    struct state_view view = {.held = shard,
                              .m = p->m,
                              .v = p->v,
                              .master = p->master,
                              .master_first = shard.first,
                              .grad = p->total,
                              .grad_first = shard.first,
                              .copy = p->shard,
                              .copy_first = shard.first};
    if (packet < 0)
        return view;
    if (host_updates(zero, packet))
        return host_view(zero, packet);
    const struct zero_packet *k = &zero->packets[packet];
    char *slot = zero->transit_slots[k->slot].at;
    bool has_master = zero_piece_has_master(zero, piece);
    if (p->state_is_far) {
        view.held = k->range;
        view.m = slot + k->m;
        view.v = slot + k->v;
    }
    if (p->state_is_far && has_master) {
        view.master = slot;
        view.master_first = k->range.first;
    }
    if (p->params_are_far) {
        view.copy = slot + zero->transit_params;
        view.copy_first = k->range.first;
    }
    if (p->params_are_far && !has_master) {
        view.master = view.copy;
        view.master_first = k->range.first;
    }
    if (p->sum_is_far) {
        view.grad = slot + zero->transit_grad;
        view.grad_first = k->range.first;
    }
    return view;
}

/* --- outside of a step ---------------------------------------------------------------------- */

enum status offload_check(struct zero *zero)
{
    struct stream *const streams[] = {zero->in_stream, zero->out_stream, zero->params_stream,
                                      zero->host.stream};
    for (int i = 0; i < 4; i++)
        if (streams[i] && stream_failed(streams[i]))
            return stream_sync(streams[i]);
    return STATUS_OK;
}

enum status offload_settle(struct zero *zero)
{
    if (zero->packet_count == 0)
        return STATUS_OK;
    if (zero->far_sums)
        TRY(stream_sync(zero->reduce_stream));
    if (zero->host.stream)
        TRY(stream_sync(zero->host.stream));
    TRY(stream_sync(zero->in_stream));
    return stream_sync(zero->out_stream);
}

enum status offload_read(struct zero *zero, int packet, size_t at, void *out, size_t bytes)
{
    return far_get(zero->far_state, zero->packets[packet].at + at, out, bytes);
}

enum status offload_write(struct zero *zero, int packet, size_t at, const void *values,
                          size_t bytes)
{
    CHECK_EQ(zero->packets_used, 0);
    zero->packets_fetched = 0;
    return far_put(zero->far_state, zero->packets[packet].at + at, values, bytes);
}

enum status offload_read_masters(struct zero *zero, struct piece_range range, void *out)
{
    for (int64_t done = 0; done < range.count;) {
        struct piece_range left = {range.piece, range.first + done, range.count - done};
        int packet;
        struct piece_range part = offload_first(zero, left, &packet);
        size_t at = (size_t)(part.first - zero->packets[packet].range.first) * sizeof(float);
        TRY(offload_read(zero, packet, at, (float *)out + done,
                         (size_t)part.count * sizeof(float)));
        done += part.count;
    }
    return STATUS_OK;
}

enum status offload_read_sum(struct zero *zero, struct piece_range range, void *out)
{
    TRY(offload_settle(zero));
    return far_get(zero->far_sums, offload_sum_at(zero, range), out,
                   (size_t)range.count * dtype_bytes(zero_sum_type(zero, range.piece)));
}

enum status offload_fetch_sum(struct zero *zero, int packet, const void **sum)
{
    struct piece_range range = zero->packets[packet].range;
    TRY(offload_settle(zero));
    far_read(zero->in_stream, zero->far_sums, offload_sum_at(zero, range), zero->sum_slots[0].at,
             offload_sum_bytes(zero, range));
    *sum = zero->sum_slots[0].at;
    return stream_sync(zero->in_stream);
}

enum status offload_publish(struct zero *zero, int piece)
{
    const struct zero_piece *p = &zero->pieces[piece];
    int64_t shard = zero->shard * zero_shard_count(zero, piece);
    TRY(offload_settle(zero));
    CHECK_EQ(zero->packets_used, 0);
    zero->packets_fetched = 0;
    for (int k = p->first_packet; k < p->first_packet + p->packet_count; k++) {
        const struct zero_packet *packet = &zero->packets[k];
        for (int64_t done = 0, n; done < packet->range.count; done += n) {
            n = least(packet->range.count - done, ZERO_STAGING);
            far_read(zero->in_stream, zero->far_state, packet->at + (size_t)done * sizeof(float),
                     zero->from_far, aligned((size_t)n * sizeof(float)));
            TRY(stream_sync(zero->in_stream));
            ops_cast(zero->ops, zero->stream,
                     zero_at(p->shard, zero->type, packet->range.first + done - shard), zero->type,
                     zero->from_far, DTYPE_F32, n);
            TRY(stream_sync(zero->stream));
        }
    }
    return STATUS_OK;
}
