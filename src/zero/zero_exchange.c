/* zero_exchange -- the two ways of a slice: from the members of the job to its owner, and back.
 *
 * Both are one all-to-all over tables made at start-up, so that all ranks, owners that do not work
 * and workers that do not own, take part in the same call. What a rank keeps for itself is not on
 * the wire.
 */
#include "zero/zero_impl.h"

/* Sums over the rows of the tables are the same on both sides: rank a sends to b what b expects. */
static void fill_gather(const struct zero *zero, int piece, struct exchange *e)
{
    const struct roster *r = &zero->roster;
    int64_t slice = partition_slice(&zero->partition, piece);
    for (int rank = 0; rank < r->size; rank++) {
        bool other = rank != r->rank || zero->sharding.params; /* in place where params are whole */
        int owner = rank - r->first_owner;
        e->send_counts[rank] = zero->owner >= 0 && rank < r->workers && other ? slice : 0;
        e->recv_counts[rank] = zero->worker && owner >= 0 && other ? slice : 0;
        e->recv_offsets[rank] = owner >= 0 ? owner * slice : 0;
    }
}

static void fill_reduce(const struct zero *zero, int piece, int active, struct exchange *e)
{
    const struct roster *r = &zero->roster;
    int64_t slice = partition_slice(&zero->partition, piece);
    for (int rank = 0; rank < r->size; rank++) {
        int owner = rank - r->first_owner;
        e->send_counts[rank] = r->rank < active && owner >= 0 ? slice : 0;
        e->send_offsets[rank] = owner >= 0 ? owner * slice : 0;
        e->recv_counts[rank] = zero->owner >= 0 && rank < active ? slice : 0;
        e->recv_offsets[rank] = rank * slice;
    }
}

static struct exchange take(int64_t **counts, int size)
{
    struct exchange e = {*counts, *counts + size, *counts + 2 * size, *counts + 3 * size};
    *counts += 4 * size;
    return e;
}

enum status exchange_tables_create(struct zero *zero)
{
    int size = zero->roster.size, pieces = zero->graph->piece_count;
    int64_t rounds = roster_rounds(&zero->roster, zero->config.micro_batches);
    int64_t *counts;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "exchange tables",
                        (size_t)size * 4 * (3 * (size_t)pieces + 1), sizeof *counts,
                        &zero->exchange_counts));
    counts = zero->exchange_counts;
    zero->range = take(&counts, size);
    for (int i = 0; i < pieces; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        piece->gather = take(&counts, size);
        piece->reduce[0] = take(&counts, size);
        piece->reduce[1] = take(&counts, size);
        fill_gather(zero, i, &piece->gather);
        if (rounds == 0)
            continue;
        fill_reduce(zero, i, zero->roster.workers, &piece->reduce[0]);
        fill_reduce(zero, i, roster_active(&zero->roster, zero->config.micro_batches, rounds - 1),
                    &piece->reduce[1]);
    }
    return STATUS_OK;
}

void slices_to_members(struct zero *zero, int piece, const float *slice, float *full)
{
    const struct exchange *e = &zero->pieces[piece].gather;
    comm_label(zero->gather_comm, zero->graph->pieces[piece].name);
    comm_all_to_all_v(zero->gather_comm, slice, e->send_counts, e->send_offsets, full,
                      e->recv_counts, e->recv_offsets, DTYPE_F32, zero->gather_stream);
}

void slices_to_owners(struct zero *zero, int piece, const float *full, int64_t round, float *sum)
{
    int active = roster_active(&zero->roster, zero->config.micro_batches, round);
    const struct exchange *e = &zero->pieces[piece].reduce[active < zero->roster.workers];
    int64_t slice = partition_slice(&zero->partition, piece);
    struct stream *stream = zero->reduce_stream;
    event_record(zero->written, zero->stream);
    stream_wait(stream, zero->written);
    comm_label(zero->reduce_comm, zero->graph->pieces[piece].name);
    comm_all_to_all_v(zero->reduce_comm, full, e->send_counts, e->send_offsets, zero->contributions,
                      e->recv_counts, e->recv_offsets, DTYPE_F32, stream);
    for (int w = 0; zero->owner >= 0 && w < active; w++) {
        const float *from = zero->contributions + w * slice;
        if (round == 0 && w == 0)
            device_copy(stream, sum, from, (size_t)slice * sizeof *sum);
        else
            device_accumulate(stream, sum, DTYPE_F32, from, DTYPE_F32, slice);
    }
}
