/* zero_sums -- updates that wait: for the sums of other ranks, or for state from far memory.
 *
 * Where several ranks hold a shard, each sums a part of its gradient: they exchange these sums, and
 * every one of them updates the shard. zero_update starts the exchange of all pieces, in the order
 * in which the next forward pass uses them. An update waits only for the sum of its own piece, and
 * for its own state where that is far (zero_offload.c).
 *
 * Where possible, updates are deferred: a piece is updated just before a pass reads it, or before
 * anything else needs its params, its state or the memory of its gradient.
 *
 *     gather    | sum 0 | sum 1 | sum 2 | sum 3 |
 *     compute     judge | update 0, forward 0 | update 1, forward 1 | update 2, forward 2 | ...
 *
 * This is so where a rank holds the whole state (ZeRO stage 0), and where state or sums are far.
 * Then the new params are also sent to other ranks piece by piece, all ranks in the order of the
 * pieces. Otherwise zero_update itself updates one piece after the other, while the sums of the
 * next ones arrive: with larger shard groups other ranks wait for the new params; Muon's rounds
 * need many pieces; and in a pipeline each PP stage would update after the stages before it, not at
 * the same time.
 */
#include "zero/zero_offload.h"

/* The same on every rank. */
static bool is_offloaded(const struct zero *zero)
{
    const struct zero_offload *o = &zero->config.offload;
    return o->optimizer != FAR_NONE || o->grads != FAR_NONE || o->params != FAR_NONE;
}

bool zero_defers_updates(const struct zero *zero)
{
    if (zero->muon || zero->pipe.comm)
        return false;
    return is_offloaded(zero) || (zero->replica_comm && !zero->gather_comm);
}

static void exchange_sums(struct zero *zero)
{
    for (int i = 0; i < zero->graph->piece_count; i++) {
        const struct zero_piece *piece = &zero->pieces[i];
        int64_t count = zero_reduce_shard_count(zero, i);
        if (piece->use_count == 0)
            continue;
        void *mine = zero_at(piece->total, zero->sum_type, comm_rank(zero->replica_comm) * count);
        if (mine != piece->uses[0].sum)
            device_copy(zero->stream, mine, piece->uses[0].sum,
                        (size_t)count * dtype_bytes(zero->sum_type));
    }
    event_record(zero->written, zero->stream);
    stream_wait(zero->gather_stream, zero->written);
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (zero->pieces[i].use_count == 0)
            continue;
        reduce_shards_to_replicas(zero, i);
        event_record(zero->pieces[i].summed, zero->gather_stream);
    }
}

void zero_begin_update(struct zero *zero)
{
    CHECK(!zero->updating);
    if (!zero->replica_comm && !is_offloaded(zero))
        return;
    if (zero->replica_comm)
        exchange_sums(zero);
    offload_begin_update(zero);
    for (int i = 0; i < zero->graph->piece_count; i++)
        zero->pieces[i].pending = !zero_is_frozen(zero, i);
    zero->updating = true;
    zero->next_pending = 0;
}

/* The new params of a piece to the ranks that compute with them. */
static void publish_piece(struct zero *zero, int piece)
{
    if (!zero->gather_comm || !zero_defers_updates(zero))
        return;
    event_record(zero->written, zero->stream);
    stream_wait(zero->gather_stream, zero->written);
    if (zero->sharding.params)
        return;
    shards_to_members(zero, piece, zero->pieces[piece].shard, zero->pieces[piece].full);
    event_record(zero->pieces[piece].published, zero->gather_stream);
}

static void update_now(struct zero *zero, int piece)
{
    struct zero_piece *p = &zero->pieces[piece];
    const struct trace_span span = {.lane = &trace_lane_compute,
                                    .name = "optimizer",
                                    .object = zero->graph->pieces[piece].name};
    if (!p->pending)
        return;
    p->pending = false;
    if (p->summed)
        stream_wait(zero->stream, p->summed);
    int64_t mark = stream_span_begin(zero->stream, &span);
    for (int b = 0; b < zero->batch_count; b++)
        zero_update_segments(zero, b, zero_run(zero, b, piece));
    offload_update_piece(zero, piece);
    stream_span_end(zero->stream, mark);
    publish_piece(zero, piece);
}

void zero_update_piece(struct zero *zero, int piece)
{
    if (!zero->pieces[piece].pending)
        return;
    int first = is_offloaded(zero) ? zero->next_pending : piece;
    for (zero->next_pending = first; zero->next_pending <= piece; zero->next_pending++)
        update_now(zero, zero->next_pending);
}

enum status zero_finish_update(struct zero *zero)
{
    if (!zero->updating)
        return STATUS_OK;
    for (int i = 0; i < zero->graph->piece_count; i++)
        zero_update_piece(zero, i);
    zero->updating = false;
    if (!zero->replica_comm)
        return STATUS_OK;
    return stream_sync(zero->gather_stream); /* it has passed all sums, or failed */
}
