/* zero_exchange -- shards to the ranks that compute with them, gradients to their owners.
 *
 * Both are one all-to-all over tables made at start-up, so all ranks take part in the same calls,
 * including owners that are not workers and workers that are not owners. What a rank keeps for
 * itself is not sent. Where several owners hold the same shard, each sums one reduce shard of it,
 * and they then exchange their sums.
 *
 * In fast mode the communication library may add gradients while it moves them (comm_library_sums):
 * where all ranks are workers, rank r sums reduce shard r, and no worker is idle in the round.
 */
#include "zero/zero_impl.h"

/* --- construction --------------------------------------------------------------------------- */

/* Several copies: gathers stay within a copy, and sums are exchanged between the owners of a
 * shard. */
static enum status split_comm(struct zero *zero)
{
    int size = zero->roster.size, *colours;
    bool gathers = zero->shards > 1 || zero->sharding.params;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "colours", (size_t)size, sizeof *colours, &colours));
    for (int rank = 0; rank < size; rank++)
        colours[rank] = roster_shard(&zero->roster, rank);
    enum status st = comm_split_known(zero->comm, colours, "replicas", &zero->replica_comm);
    for (int rank = 0; rank < size; rank++)
        colours[rank] = rank / zero->shards;
    if (st == STATUS_OK && gathers)
        st = comm_split_known(zero->comm, colours, "gather", &zero->gather_comm);
    mem_free(zero->env, colours);
    return st;
}

/* Between the ranks that have the same units. */
static enum status open_ranks_of_stage(struct zero *zero)
{
    struct device *device = zero->ops->device;
    int64_t largest = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero->pieces[i].use_count > 0 && zero_reduce_shard_count(zero, i) > largest)
            largest = zero_reduce_shard_count(zero, i);
    if (zero->reduce_shard >= 0 && zero->config.micro_batches > 0)
        TRY(device_alloc(device, MEM_COMM, "contributions of the workers",
                         (size_t)(largest * zero->roster.workers) * dtype_bytes(zero->type),
                         &zero->contributions));
    if (zero->roster.copies > 1)
        TRY(split_comm(zero));
    else
        TRY(comm_dup(zero->comm, "gather", &zero->gather_comm));
    TRY(comm_dup(zero->comm, "reduce", &zero->reduce_comm));
    TRY(device_alloc(device, MEM_COMM, "elements of all ranks", ZERO_STAGING * sizeof(float),
                     &zero->collected));
    if (zero->gather_comm)
        comm_set_lane(zero->gather_comm, &trace_lane_gather);
    if (zero->replica_comm)
        comm_set_lane(zero->replica_comm, &trace_lane_gather);
    comm_set_lane(zero->reduce_comm, &trace_lane_reduce);
    TRY(comm_stream_create(zero->comm, "gather", &zero->gather_stream));
    TRY(comm_stream_create(zero->comm, "reduce", &zero->reduce_stream));
    return event_create(device, &zero->written);
}

enum status exchange_open(struct zero *zero)
{
    if (!zero_alone(zero))
        TRY(open_ranks_of_stage(zero));
    if (!zero->pipe.comm)
        return STATUS_OK;
    TRY(comm_dup(zero->pipe.comm, "lend", &zero->lend_comm));
    TRY(comm_dup(zero->pipe.comm, "lent", &zero->lent_comm));
    comm_set_lane(zero->lend_comm, &trace_lane_gather);
    comm_set_lane(zero->lent_comm, &trace_lane_reduce);
    return STATUS_OK;
}

/* The tables of two ranks agree: rank a sends to b what b expects from a. */
static void fill_gather(const struct zero *zero, int piece, struct comm_parts *e)
{
    const struct roster *r = &zero->roster;
    int64_t count = zero_shard_count(zero, piece);
    for (int member = 0; member < zero->members; member++) {
        int rank = zero->first_member + member, shard = roster_shard(r, rank);
        bool other =
            rank != r->rank || zero->sharding.params; /* params that are not sharded are in place */
        e->send_counts[member] = zero->shard >= 0 && rank < r->workers && other ? count : 0;
        e->recv_counts[member] = zero->worker && shard >= 0 && other ? count : 0;
        e->recv_offsets[member] = shard >= 0 ? shard * count : 0;
    }
}

/* `count` elements of each reduce shard. */
static void fill_reduce(const struct zero *zero, int64_t count, int active, struct comm_parts *e)
{
    const struct roster *r = &zero->roster;
    for (int rank = 0; rank < r->size; rank++) {
        int reduce_shard = roster_reduce_shard(r, rank);
        e->send_counts[rank] = r->rank < active && reduce_shard >= 0 ? count : 0;
        e->send_offsets[rank] = reduce_shard >= 0 ? reduce_shard * count : 0;
        e->recv_counts[rank] = zero->reduce_shard >= 0 && rank < active ? count : 0;
        e->recv_offsets[rank] = rank * count;
    }
}

static struct comm_parts take(int64_t **counts, int size)
{
    struct comm_parts e = {*counts, *counts + size, *counts + 2 * size, *counts + 3 * size};
    *counts += 4 * size;
    return e;
}

/* The first piece with shards of the same length as those of piece i: their tables are equal. */
static int alike(const struct zero *zero, int i)
{
    int first = 0;
    while (zero->partition.piece_count[first] != zero->partition.piece_count[i])
        first++;
    return first;
}

void exchange_set_last_round(struct zero *zero)
{
    int64_t rounds = roster_rounds(&zero->roster, zero->reductions);
    int last = roster_active(&zero->roster, zero->reductions, rounds - 1);
    for (int i = 0; i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        int64_t shard = zero_reduce_shard_count(zero, i);
        fill_reduce(zero, shard, last, &piece->reduce[1]);
        if (piece->reduce_squares.send_counts)
            fill_reduce(zero, shard / OPS_BLOCK, last, &piece->reduce_squares);
    }
}

enum status exchange_tables_create(struct zero *zero)
{
    int size = zero->roster.size, pieces = zero->graph->piece_count, distinct = 0;
    bool squares = zero->config.noise && zero->config.local;
    size_t tables = squares ? 4 : 3;
    int64_t *counts;
    for (int i = 0; i < pieces; i++)
        distinct += alike(zero, i) == i;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "exchange tables",
                        (size_t)size * 4 * (tables * (size_t)distinct + 1), sizeof *counts,
                        &zero->exchange_counts));
    counts = zero->exchange_counts;
    zero->range = take(&counts, size);
    for (int i = 0; i < pieces; i++) {
        struct zero_piece *piece = &zero->pieces[i], *first = &zero->pieces[alike(zero, i)];
        if (first != piece) {
            piece->gather = first->gather;
            piece->reduce[0] = first->reduce[0];
            piece->reduce[1] = first->reduce[1];
            piece->reduce_squares = first->reduce_squares;
            continue;
        }
        piece->gather = take(&counts, size);
        piece->reduce[0] = take(&counts, size);
        piece->reduce[1] = take(&counts, size);
        fill_gather(zero, i, &piece->gather);
        fill_reduce(zero, zero_reduce_shard_count(zero, i), zero->roster.workers,
                    &piece->reduce[0]);
        if (squares)
            piece->reduce_squares = take(&counts, size);
    }
    if (zero->config.micro_batches > 0)
        exchange_set_last_round(zero);
    return STATUS_OK;
}

/* --- in a step ------------------------------------------------------------------------------ */

void shards_to_members(struct zero *zero, int piece, const void *shard, void *full)
{
    comm_label(zero->gather_comm, zero->graph->pieces[piece].name);
    comm_all_to_all_v(zero->gather_comm, shard, full, &zero->pieces[piece].gather, zero->type,
                      zero->gather_stream);
}

void reduce_shards_to_replicas(struct zero *zero, int piece)
{
    const struct zero_piece *p = &zero->pieces[piece];
    int64_t count = zero_reduce_shard_count(zero, piece);
    void *mine = zero_at(p->total, zero->sum_type, comm_rank(zero->replica_comm) * count);
    comm_label(zero->replica_comm, zero->graph->pieces[piece].name);
    comm_all_gather(zero->replica_comm, mine, p->total, count, zero->sum_type, zero->gather_stream);
}

/* dst = src. Adding to zero is exact, and rounds where dst is narrower. Ops may only use the
 * compute stream. */
static void store(struct zero *zero, struct stream *stream, void *dst, enum dtype dst_type,
                  const void *src, enum dtype src_type, int64_t count)
{
    size_t bytes = (size_t)count * dtype_bytes(dst_type);
    if (dst_type == src_type) {
        device_copy(stream, dst, src, bytes);
        return;
    }
    if (stream == zero->stream) {
        ops_cast(zero->ops, stream, dst, dst_type, src, src_type, count);
        return;
    }
    device_zero(stream, dst, bytes);
    device_accumulate(stream, dst, dst_type, src, src_type, count);
}

/* sum (+)= gradients of workers 0 .. active-1 in their order, `count` elements, in fp32. */
static void add_in_order(struct zero *zero, struct stream *stream, float *sum,
                         const void *gradients, int active, int64_t stride, int64_t count,
                         bool first)
{
    if (first && active > 0) {
        store(zero, stream, sum, DTYPE_F32, gradients, zero->type, count);
        gradients = zero_at(gradients, zero->type, stride);
        active--;
    }
    device_accumulate_parts(stream, sum, DTYPE_F32, gradients, zero->type, count, stride, active);
}

void add_contributions(struct zero *zero, struct stream *stream, void *sum, const void *gradients,
                       int active, int64_t stride, bool first)
{
    if (zero->sum_type == DTYPE_F32) {
        add_in_order(zero, stream, sum, gradients, active, stride, stride, first);
        return;
    }
    for (int64_t done = 0; done < stride; done += ZERO_STAGING) {
        int64_t part = stride - done < ZERO_STAGING ? stride - done : ZERO_STAGING;
        void *at = zero_at(sum, zero->sum_type, done);
        if (!first)
            store(zero, stream, zero->round_sum, DTYPE_F32, at, zero->sum_type, part);
        add_in_order(zero, stream, zero->round_sum, zero_at(gradients, zero->type, done), active,
                     stride, part, first);
        store(zero, stream, at, zero->sum_type, zero->round_sum, DTYPE_F32, part);
    }
}

/* The library adds, so the reduce shard arrives as a single gradient. */
static void reduce_to_shards(struct zero *zero, int piece, const void *full, bool first, void *sum)
{
    int64_t count = zero_reduce_shard_count(zero, piece);
    bool direct = first && zero->sum_type == zero->type;
    void *reduce_shard = direct ? sum : zero->contributions;
    comm_reduce_scatter(zero->reduce_comm, full, reduce_shard, count, zero->type, NULL,
                        zero->reduce_stream);
    if (!direct)
        add_contributions(zero, zero->reduce_stream, sum, reduce_shard, 1, count, first);
}

void reduce_shards_to_owners(struct zero *zero, int piece, const void *full, int64_t round,
                             const struct zero_use *use)
{
    int active = roster_active(&zero->roster, zero->reductions, round);
    const struct comm_parts *parts = &zero->pieces[piece].reduce[active < zero->roster.workers];
    struct stream *stream = zero->reduce_stream;
    event_record(zero->written, zero->stream);
    stream_wait(stream, zero->written);
    comm_label(zero->reduce_comm, zero->graph->pieces[piece].name);
    if (comm_library_sums(zero->reduce_comm, zero->type) && roster_is_even(&zero->roster) &&
        active == zero->roster.workers) {
        reduce_to_shards(zero, piece, full, round == 0, use->sum);
        return;
    }
    comm_all_to_all_v(zero->reduce_comm, full, zero->contributions, parts, zero->type, stream);
    if (zero->reduce_shard < 0)
        return;
    if (!zero->config.local)
        noise_add(zero, stream, piece, use, zero->contributions, active, round);
    add_contributions(zero, stream, use->sum, zero->contributions, active,
                      zero_reduce_shard_count(zero, piece), round == 0);
}
