/* zero_sums -- where several ranks hold a shard, each sums a part of its gradient: they exchange
 * these sums, and every one of them updates the shard.
 *
 * zero_update starts the exchange of all pieces, in the order in which the next forward pass uses
 * them. An update waits only for the sum of its own piece. Where the rank holds the whole state
 * (ZeRO stage 0), the updates are deferred: a piece is updated just before a pass reads it, or
 * before anything else needs its params, its state or the memory of its gradient.
 *
 *     gather    | sum 0 | sum 1 | sum 2 | sum 3 |
 *     compute     judge | update 0, forward 0 | update 1, forward 1 | update 2, forward 2 | ...
 *
 * Otherwise zero_update itself updates one piece after the other, while the sums of the next ones
 * arrive: with larger shard groups other ranks wait for the new params; Muon's rounds need many
 * pieces; and in a pipeline each PP stage would update after the stages before it, not at the same
 * time.
 */
#include "zero/zero_impl.h"

bool zero_defers_updates(const struct zero *zero)
{
    return zero->replica_comm && !zero->gather_comm && !zero->muon && !zero->pipe.comm;
}

void zero_sums_exchange(struct zero *zero)
{
    CHECK(!zero->updating);
    if (!zero->replica_comm)
        return;
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
        struct zero_piece *piece = &zero->pieces[i];
        if (piece->use_count == 0)
            continue;
        reduce_shards_to_replicas(zero, i);
        event_record(piece->summed, zero->gather_stream);
        piece->pending = true;
    }
    zero->updating = true;
}

void zero_update_piece(struct zero *zero, int piece)
{
    struct zero_piece *p = &zero->pieces[piece];
    const struct trace_span span = {.lane = &trace_lane_compute,
                                    .name = "optimizer",
                                    .object = zero->graph->pieces[piece].name};
    if (!p->pending)
        return;
    p->pending = false;
    stream_wait(zero->stream, p->summed);
    double start = trace_begin(zero->env->trace);
    for (int b = 0; b < zero->batch_count; b++)
        zero_update_segments(zero, b, &zero->runs[b * zero->graph->piece_count + piece]);
    trace_end(zero->env->trace, start, &span);
}

enum status zero_finish_update(struct zero *zero)
{
    if (!zero->updating)
        return STATUS_OK;
    for (int i = 0; i < zero->graph->piece_count; i++)
        zero_update_piece(zero, i);
    TRY(stream_sync(zero->gather_stream)); /* does not wait: it has passed all sums, or failed */
    zero->updating = false;
    return STATUS_OK;
}
