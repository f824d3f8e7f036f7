/* zero_state -- the state as it is kept: masters, momentum and variance by tensor and element, for
 * who writes and reads checkpoints; and a copy of this rank's part of it, to be written while the
 * run goes on.
 *
 * Every element of a tensor is in exactly one rank's share (roster.h), also where several ranks hold
 * it; so ranks that write their shares write each element once, and about the same number each. What
 * a rank must read is all that it holds. Padding is in no range.
 */
#include "zero/zero_impl.h"

static struct zero_range range_of(struct place whole, struct place part)
{
    return (struct zero_range){part.count > 0 ? part.first - whole.first : 0, part.count};
}

struct zero_range zero_state_share(const struct zero *zero, int tensor, int rank)
{
    const struct unit_cut *cut = zero->pipe.cut;
    const struct partition *partition = cut ? &zero->whole : &zero->partition;
    int stages = cut ? comm_size(zero->pipe.comm) : 1;
    struct place whole = partition_tensor(partition, tensor);
    int share = roster_share(&zero->roster, rank / stages);
    if (share < 0 || (cut && cut->home[tensor] != rank % stages))
        return (struct zero_range){0};
    return range_of(whole, partition_clip(partition, whole, share));
}

/* Of a tensor of this graph. */
static struct zero_range held_range(const struct zero *zero, int own)
{
    struct place whole = partition_tensor(&zero->partition, own);
    if (zero->shard < 0 || zero_borrowed_from(zero, whole.piece) != UNIT_AT_HOME)
        return (struct zero_range){0};
    return range_of(whole, partition_clip_part(&zero->partition, whole, zero->shard, zero->shards));
}

struct zero_range zero_state_held(const struct zero *zero, int tensor)
{
    int own = zero_own_tensor(zero, tensor);
    return own < 0 ? (struct zero_range){0} : held_range(zero, own);
}

/* (shard) of a piece, on the device. */
static float *state_of(const struct zero_piece *piece, enum zero_state state)
{
    switch (state) {
    case ZERO_MASTER: return piece->master;
    case ZERO_MOMENTUM: return piece->m;
    default: return piece->v;
    }
}

/* Where an element that this rank holds is. */
static float *element_at(const struct zero *zero, enum zero_state state, int tensor, int64_t first,
                         int64_t count)
{
    int own = zero_own_tensor(zero, tensor);
    CHECK(own >= 0);
    struct place place = partition_tensor(&zero->partition, own);
    struct zero_range held = held_range(zero, own);
    CHECK(zero->config.micro_batches > 0);
    CHECK(first >= held.first && first + count <= held.first + held.count);
    int64_t shard_first = zero->shard * zero_shard_count(zero, place.piece);
    return state_of(&zero->pieces[place.piece], state) + place.first + first - shard_first;
}

enum status zero_state_read(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                            int64_t count, float *out)
{
    if (count > 0)
        device_copy(zero->stream, out, element_at(zero, state, tensor, first, count),
                    (size_t)count * sizeof *out);
    return stream_sync(zero->stream);
}

enum status zero_state_write(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                             int64_t count, const float *values)
{
    if (count > 0)
        device_copy(zero->stream, element_at(zero, state, tensor, first, count), values,
                    (size_t)count * sizeof *values);
    return stream_sync(zero->stream);
}

/* --- a copy --------------------------------------------------------------------------------- */

enum status zero_snapshot(struct zero *zero)
{
    CHECK(zero->config.snapshot);
    for (int i = 0; zero->share >= 0 && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        int64_t share = zero_share_count(zero, i);
        if (!piece->snapshot)
            continue;
        int64_t first = zero->share * share - zero->shard * zero_shard_count(zero, i);
        for (int state = 0; state < ZERO_STATES; state++)
            device_copy(zero->stream, piece->snapshot + state * share,
                        state_of(piece, (enum zero_state)state) + first,
                        (size_t)share * sizeof *piece->snapshot);
    }
    return stream_sync(zero->stream);
}

const float *zero_snapshot_at(const struct zero *zero, enum zero_state state, int tensor,
                              int64_t first)
{
    struct place place = partition_tensor(&zero->partition, zero_own_tensor(zero, tensor));
    int64_t share = zero_share_count(zero, place.piece);
    int64_t at = place.first + first - zero->share * share;
    CHECK(zero->config.snapshot && zero->share >= 0 && at >= 0 && at < share);
    return zero->pieces[place.piece].snapshot + state * share + at;
}
