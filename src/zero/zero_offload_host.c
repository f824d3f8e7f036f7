/* zero_offload_host -- the CPU updates far state where it is, in host memory.
 *
 * A packet's part of the summed gradient is copied to a slot in host memory, unless the sum is far
 * in host memory itself: then it is read in place. The CPU runs the rule, with the bits of every
 * back end (ops.h), and writes the new 16-bit params to the slot, from which they are copied to the
 * params' shard on the device. So 4 (or 2) + 2 bytes of each parameter move instead of 12 + 12.
 *
 *     out      | gradient 0 | gradient 1 | gradient 2 | ...
 *     host                  | update 0      | update 1      | update 2 ...
 *     in                                    | params 0 |    | params 1 |
 *     compute  verdict                                 | forward 0 |   | forward 1 | ...
 *
 * All three have threads of their own, since each waits for the one before. The slots are those of
 * zero_offload.c, which calls host_start where it would fetch the state of a packet. An update
 * changes state, so it starts after the verdict, not before. Packets whose sum is far while their
 * state stays on the device pass through the device as usual.
 */
#include "zero/zero_offload.h"

#include "ops/ops_cases.h"

static const struct trace_lane lane_update = {.row = 10, .word = "host update"};

/* --- the decision --------------------------------------------------------------------------- */

/* Why the CPU cannot update; NULL: it can. The same on every rank. */
static const char *find_obstacle(const struct zero *zero)
{
    if (zero->config.offload.optimizer != FAR_HOST)
        return "optimizer state is not offloaded to host memory (offload.optimizer: host, on a "
               "GPU)";
    if (!zero_has_masters(zero))
        return "in fp32 the device needs the parameters themselves (precision.mode: bf16 or fp16)";
    for (int b = 0; b < zero->batch_count; b++)
        if (!zero_in_one_call(zero, b))
            return "muon works on whole matrices (optimizer.kind)";
    return NULL;
}

void host_plan(struct zero *zero)
{
    const char *obstacle = find_obstacle(zero);
    bool says = (!zero->comm || comm_rank(zero->comm) == 0) && !device_is_dry(zero->ops->device);
    if (!zero->config.offload.on_host || !obstacle)
        return;
    zero->config.offload.on_host = false;
    if (says)
        log_warn(zero->env, "offload.update: host has no effect, the device updates: %s", obstacle);
}

/* --- memory --------------------------------------------------------------------------------- */

/* Is a packet's part of the sum copied to its slot? */
static bool copies_sum(const struct zero *zero, struct piece_range range)
{
    return !zero->pieces[range.piece].sum_is_far || zero->config.offload.grads == FAR_DISK;
}

/* Does the CPU write new params where they stay? */
static bool writes_in_place(const struct zero *zero, int piece)
{
    return zero->pieces[piece].params_are_far && zero->config.offload.params == FAR_HOST;
}

size_t host_find_slot(struct zero *zero)
{
    struct zero_host *host = &zero->host;
    size_t grad = 0;
    int64_t most = 0;
    for (int p = 0; p < zero->packet_count; p++) {
        struct piece_range range = zero->packets[p].range;
        if (!host_updates(zero, p))
            continue;
        size_t bytes = copies_sum(zero, range) ? offload_sum_bytes(zero, range) : FAR_ALIGN;
        grad = bytes > grad ? bytes : grad;
        if (!writes_in_place(zero, range.piece))
            most = range.count > most ? range.count : most;
    }
    size_t copy = (size_t)most * dtype_bytes(zero->type);
    host->copy_at = grad;
    host->slot_bytes = grad + (copy + FAR_ALIGN - 1) / FAR_ALIGN * FAR_ALIGN;
    return host->slot_bytes;
}

enum status host_create(struct zero *zero)
{
    struct zero_host *host = &zero->host;
    if (host->slot_bytes == 0)
        return STATUS_OK;
    const struct far_config slots = {.kind = FAR_HOST,
                                     .category = MEM_SLOTS,
                                     .name = "gradients and params on their way",
                                     .bytes = host->slot_bytes * (size_t)zero->transit_slot_count};
    TRY(far_create(zero->ops->device, &slots, &host->slots));
    TRY(event_create(zero->ops->device, &host->judged));
    return stream_create_worker(zero->ops->device, "host update", &host->stream);
}

void host_keep(struct zero *zero, struct update_segment *segments,
               struct update_location *locations)
{
    zero->host.segments = segments;
    zero->host.locations = locations;
}

void host_free(struct zero *zero)
{
    far_destroy(zero->host.slots);
    event_destroy(zero->host.judged);
    mem_free(zero->env, zero->host.segments);
    mem_free(zero->env, zero->host.locations);
}

static size_t slot_at(const struct zero *zero, int packet)
{
    return (size_t)zero->packets[packet].slot * zero->host.slot_bytes;
}

struct state_view host_view(const struct zero *zero, int packet)
{
    const struct zero_packet *k = &zero->packets[packet];
    char *state = far_address(zero->far_state) + k->at;
    char *slot = far_address(zero->host.slots) + slot_at(zero, packet);
    char *params = writes_in_place(zero, k->range.piece)
                       ? far_address(zero->far_params) + far_params_at(zero, k->range)
                       : slot + zero->host.copy_at;
    return (struct state_view){.held = k->range,
                               .master = state,
                               .master_first = k->range.first,
                               .m = state + k->m,
                               .v = state + k->v,
                               .grad = copies_sum(zero, k->range)
                                           ? slot
                                           : far_address(zero->far_sums) +
                                                 offload_sum_at(zero, k->range),
                               .grad_first = k->range.first,
                               .copy = params,
                               .copy_first = k->range.first};
}

/* --- packets in a step ---------------------------------------------------------------------- */

void host_begin_update(struct zero *zero)
{
    if (!zero->host.stream)
        return;
    event_record(zero->host.judged, zero->stream);
    stream_wait(zero->out_stream, zero->host.judged);
}

/* Bring a packet's part of the sum to host memory; sums that are there have returned on the same
 * stream. */
static void take_sum(struct zero *zero, int packet)
{
    struct piece_range range = zero->packets[packet].range;
    const struct zero_piece *piece = &zero->pieces[range.piece];
    int64_t shard = zero->shard * zero_shard_count(zero, range.piece);
    enum dtype type = zero_sum_type(zero, range.piece);
    if (piece->summed)
        stream_wait(zero->out_stream, piece->summed);
    if (!copies_sum(zero, range))
        return;
    if (piece->sum_is_far)
        far_read(zero->out_stream, zero->far_sums, offload_sum_at(zero, range),
                 far_address(zero->host.slots) + slot_at(zero, packet),
                 offload_sum_bytes(zero, range));
    else
        far_write(zero->out_stream, zero->host.slots, slot_at(zero, packet),
                  zero_at(piece->total, type, range.first - shard),
                  (size_t)range.count * dtype_bytes(type));
}

struct update_args {
    struct zero *zero;
    int packet;
};

/* On the thread of the host stream. Without its gradient a packet stays as it was. */
static void update_task(struct stream *stream, const void *args)
{
    const struct update_args *a = args;
    struct zero *zero = a->zero;
    int piece = zero->packets[a->packet].range.piece;
    offload_await_release(zero, piece);
    if (stream_failed(stream) || stream_failed(zero->out_stream))
        return;
    const struct trace_span span = {
        .lane = &lane_update, .name = "optimizer", .object = zero->graph->pieces[piece].name};
    double start = trace_begin(zero->env->trace);
    for (int b = 0; b < zero->batch_count; b++) {
        const struct segment_run *run = zero_run(zero, b, zero->graph->piece_count + a->packet);
        const struct update_location *locations =
            zero_rounds_at_random(zero) ? zero->host.locations : NULL;
        struct update update = zero_update_of(zero, b, run, locations);
        ops_update_on_host(zero->env->threads, &update, &zero->scalars_host[1 + b],
                           zero->host.segments + run->first, run->count);
    }
    trace_end(zero->env->trace, start, &span);
}

/* A dry device runs no tasks. */
static void spend(struct zero *zero, int packet)
{
    for (int b = 0; b < zero->batch_count; b++) {
        const struct segment_run *run = zero_run(zero, b, zero->graph->piece_count + packet);
        const struct ops_case price = zero_update_case(zero, b, run);
        struct ops_call call = {0};
        if (run->count == 0)
            continue;
        ops_find_op(price.op)->describe(zero->ops, &price, &call);
        stream_spend_on_host(zero->host.stream, ops_call_bytes(&call));
    }
}

/* The new params to the device, or to where they are far; in host memory they are there already. */
static void take_params(struct zero *zero, int packet)
{
    struct piece_range range = zero->packets[packet].range;
    const struct zero_piece *piece = &zero->pieces[range.piece];
    int64_t shard = zero->shard * zero_shard_count(zero, range.piece);
    size_t at = slot_at(zero, packet) + zero->host.copy_at;
    if (!piece->params_are_far)
        far_read(zero->in_stream, zero->host.slots, at,
                 zero_at(piece->shard, zero->type, range.first - shard),
                 (size_t)range.count * dtype_bytes(zero->type));
    else if (!writes_in_place(zero, range.piece))
        far_write(zero->in_stream, zero->far_params, far_params_at(zero, range),
                  far_address(zero->host.slots) + at, far_params_bytes(zero, range));
}

void host_start(struct zero *zero, int packet)
{
    const struct transit_slot *slot = &zero->transit_slots[zero->packets[packet].slot];
    const struct update_args args = {zero, packet};
    stream_wait(zero->out_stream, slot->fetched); /* the params that were in the slot */
    take_sum(zero, packet);
    event_record(slot->used, zero->out_stream);
    stream_wait(zero->host.stream, slot->used);
    stream_enqueue(zero->host.stream, update_task, &args, sizeof args);
    if (device_is_dry(zero->ops->device))
        spend(zero, packet);
    event_record(slot->returned, zero->host.stream);
    stream_wait(zero->in_stream, slot->returned);
    take_params(zero, packet);
    event_record(slot->fetched, zero->in_stream);
}
