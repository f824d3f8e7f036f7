/* zero_exchange -- shards to the ranks that compute with them, gradients to their owners.
 *
 * Both are all-to-alls over tables made at start-up, so all ranks take part in the same calls,
 * including owners that are not workers and workers that are not owners. What a rank keeps for
 * itself is not sent. With config.bucket a large piece is exchanged in several messages, each with
 * the same range of all shards, so the owners need less room for what arrives:
 *
 *     piece    |  shard 0  |  shard 1  |  shard 2  |       three messages: a, b and the shorter c
 *              | a | b |c| | a | b |c| | a | b |c| |
 *
 * Where several owners hold the same shard, each sums one reduce shard of it, and they then exchange
 * their sums, in messages with the same range of all reduce shards.
 *
 * In fast mode the communication library may add gradients while it moves them (comm_library_sums):
 * where all ranks are workers, rank r sums reduce shard r, and no worker is idle in the round.
 */
#include "zero/zero_norm.h"
#include "zero/zero_offload.h"

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

/* Workers send squares of gradients along with their sums (zero_noise.c). */
static bool sends_squares(const struct zero *zero)
{
    return zero->config.noise && zero->config.local;
}

/* The most bytes that a worker sends to an owner at once. */
static size_t largest_message(const struct zero *zero)
{
    size_t most = 0;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        const struct zero_piece *piece = &zero->pieces[i];
        size_t bytes = (size_t)piece->reduce[0].count * dtype_bytes(zero->type);
        size_t squares = (size_t)(zero_reduce_shard_count(zero, i) / OPS_BLOCK) * sizeof(double);
        if (piece->use_count == 0)
            continue;
        most = bytes > most ? bytes : most;
        most = sends_squares(zero) && squares > most ? squares : most;
    }
    return most;
}

/* Between the ranks that have the same units. */
static enum status open_ranks_of_stage(struct zero *zero)
{
    struct device *device = zero->ops->device;
    if (zero->reduce_shard >= 0 && zero->config.micro_batches > 0)
        TRY(device_alloc(device, MEM_COMM, "contributions of the workers",
                         (size_t)zero->roster.workers * largest_message(zero),
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
    TRY(event_create(device, &zero->early));
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

/* The tables of two ranks agree: rank a sends to b what b expects from a. A message has `part`
 * elements of each shard. */
static void fill_gather(const struct zero *zero, int piece, int64_t part, struct comm_parts *e)
{
    const struct roster *r = &zero->roster;
    int64_t count = zero_shard_count(zero, piece);
    bool in_place = !zero->sharding.params || zero->config.offload.params != FAR_NONE;
    for (int member = 0; member < zero->members; member++) {
        int rank = zero->first_member + member, shard = roster_shard(r, rank);
        bool other = rank != r->rank || !in_place;
        e->send_counts[member] = zero->shard >= 0 && rank < r->workers && other ? part : 0;
        e->recv_counts[member] = zero->worker && shard >= 0 && other ? part : 0;
        e->recv_offsets[member] = shard >= 0 ? shard * count : 0;
    }
}

/* `part` of the `count` elements of each reduce shard. */
static void fill_reduce(const struct zero *zero, int64_t count, int64_t part, int active,
                        struct comm_parts *e)
{
    const struct roster *r = &zero->roster;
    for (int rank = 0; rank < r->size; rank++) {
        int reduce_shard = roster_reduce_shard(r, rank);
        e->send_counts[rank] = r->rank < active && reduce_shard >= 0 ? part : 0;
        e->send_offsets[rank] = reduce_shard >= 0 ? reduce_shard * count : 0;
        e->recv_counts[rank] = zero->reduce_shard >= 0 && rank < active ? part : 0;
        e->recv_offsets[rank] = rank * part;
    }
}

/* The same for sums, which each owner of the shard has in its place. */
static void fill_sums(const struct zero *zero, int64_t count, int64_t part, struct comm_parts *e)
{
    const struct roster *r = &zero->roster;
    for (int copy = 0; copy < r->copies; copy++) {
        bool other = copy != r->rank / zero->shards;
        e->send_counts[copy] = e->recv_counts[copy] = other ? part : 0;
        e->recv_offsets[copy] = copy * count;
    }
}

static struct comm_parts take(int64_t **counts, int size)
{
    struct comm_parts e = {*counts, *counts + size, *counts + 2 * size, *counts + 3 * size};
    *counts += 4 * size;
    return e;
}

/* Gradients are added by the communication library while it moves them: whole reduce shards. */
static bool library_adds(const struct zero *zero)
{
    return !zero_alone(zero) && comm_library_sums(zero->comm, zero->type) &&
           roster_is_even(&zero->roster);
}

/* Elements of each of `shards` shards in a message: all messages but the last have as many, a
 * multiple of `block`. */
static int64_t message_count(const struct zero *zero, enum dtype type, int64_t shard, int shards,
                             int64_t block)
{
    int64_t blocks = (shard + block - 1) / block;
    int64_t most = zero->config.bucket / (int64_t)dtype_bytes(type) / shards / block;
    if (zero->config.bucket == 0)
        return shard;
    int64_t messages = most > 0 ? (blocks + most - 1) / most : blocks;
    int64_t count = (blocks + messages - 1) / messages * block;
    return count < shard ? count : shard;
}

/* The tables of a piece, from memory at *counts: one for each message and, where that is shorter,
 * one for the last. */
static void make_gather(struct zero *zero, int i, int64_t **counts)
{
    struct zero_messages *m = &zero->pieces[i].gather;
    int64_t shard = zero_shard_count(zero, i);
    m->count = message_count(zero, zero->type, shard, zero->shards, OPS_BLOCK);
    m->each = m->last = take(counts, zero->roster.size);
    fill_gather(zero, i, m->count, &m->each);
    if (shard % m->count == 0)
        return;
    m->last = take(counts, zero->roster.size);
    fill_gather(zero, i, shard % m->count, &m->last);
}

static void make_reduce(struct zero *zero, int i, struct zero_messages *m, int64_t **counts)
{
    int64_t shard = zero_reduce_shard_count(zero, i);
    int64_t block = zero->config.offload.grads != FAR_NONE ? OFFLOAD_ELEMENTS : OPS_BLOCK;
    m->count = library_adds(zero)
                   ? shard
                   : message_count(zero, zero->type, shard, zero->roster.owners, block);
    m->each = m->last = take(counts, zero->roster.size);
    if (shard % m->count != 0)
        m->last = take(counts, zero->roster.size);
}

/* Tables only where there are several messages. */
static void make_sums(struct zero *zero, int i, int64_t **counts)
{
    struct zero_messages *m = &zero->pieces[i].sums;
    int64_t shard = zero_reduce_shard_count(zero, i);
    m->count = message_count(zero, zero->sum_type, shard, zero->roster.copies, OPS_BLOCK);
    if (m->count == shard)
        return;
    m->each = m->last = take(counts, zero->roster.copies);
    fill_sums(zero, shard, m->count, &m->each);
    if (shard % m->count == 0)
        return;
    m->last = take(counts, zero->roster.copies);
    fill_sums(zero, shard, shard % m->count, &m->last);
}

static void fill_messages(struct zero *zero, int i, int active, struct zero_messages *m)
{
    int64_t shard = zero_reduce_shard_count(zero, i);
    fill_reduce(zero, shard, m->count, active, &m->each);
    if (shard % m->count != 0)
        fill_reduce(zero, shard, shard % m->count, active, &m->last);
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
        int64_t blocks = zero_reduce_shard_count(zero, i) / OPS_BLOCK;
        fill_messages(zero, i, last, &piece->reduce[1]);
        if (sends_squares(zero))
            fill_reduce(zero, blocks, blocks, last, &piece->reduce_squares);
    }
}

enum status exchange_tables_create(struct zero *zero)
{
    int size = zero->roster.size, pieces = zero->graph->piece_count, distinct = 0;
    int64_t *counts;
    size_t tables = (zero->config.bucket > 0 ? 8 : 3) + sends_squares(zero); /* of a piece */
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
            piece->sums = first->sums;
            continue;
        }
        make_gather(zero, i, &counts);
        if (zero->config.micro_batches == 0)
            continue;
        make_reduce(zero, i, &piece->reduce[0], &counts);
        make_reduce(zero, i, &piece->reduce[1], &counts);
        fill_messages(zero, i, zero->roster.workers, &piece->reduce[0]);
        make_sums(zero, i, &counts);
        if (sends_squares(zero))
            piece->reduce_squares = take(&counts, size);
    }
    if (zero->config.micro_batches > 0)
        exchange_set_last_round(zero);
    return STATUS_OK;
}

/* --- in a step ------------------------------------------------------------------------------ */

/* A message's part of a buffer that this rank may not have. */
static void *part_at(const struct zero *zero, const void *base, int64_t first)
{
    return base ? zero_at(base, zero->type, first) : NULL;
}

void shards_to_members(struct zero *zero, int piece, const void *shard, void *full)
{
    const struct zero_messages *m = &zero->pieces[piece].gather;
    int64_t count = zero_shard_count(zero, piece);
    for (int64_t done = 0; done < count; done += m->count) {
        comm_label(zero->gather_comm, zero->graph->pieces[piece].name);
        comm_all_to_all_v(zero->gather_comm, part_at(zero, shard, done), part_at(zero, full, done),
                          count - done < m->count ? &m->last : &m->each, zero->type,
                          zero->gather_stream);
    }
}

void reduce_shards_to_replicas(struct zero *zero, int piece)
{
    const struct zero_piece *p = &zero->pieces[piece];
    const struct zero_messages *m = &p->sums;
    enum dtype type = zero->sum_type;
    int64_t count = zero_reduce_shard_count(zero, piece);
    void *mine = zero_at(p->total, type, comm_rank(zero->replica_comm) * count);
    for (int64_t done = 0; done < count; done += m->count) {
        comm_label(zero->replica_comm, zero->graph->pieces[piece].name);
        if (m->count == count) /* libraries have better algorithms for it */
            comm_all_gather(zero->replica_comm, mine, p->total, count, type, zero->gather_stream);
        else
            comm_all_to_all_v(
                zero->replica_comm, zero_at(mine, type, done), zero_at(p->total, type, done),
                count - done < m->count ? &m->last : &m->each, type, zero->gather_stream);
    }
}

/* Can `store` do without adding to zero? Ops may only use the compute stream. */
static bool stores_directly(const struct zero *zero, const struct stream *stream,
                            enum dtype dst_type, enum dtype src_type)
{
    return dst_type == src_type || stream == zero->stream;
}

/* dst = src. Adding to zero is exact, and rounds where dst is narrower, but -0 becomes 0. */
static void store(struct zero *zero, struct stream *stream, void *dst, enum dtype dst_type,
                  const void *src, enum dtype src_type, int64_t count)
{
    size_t bytes = (size_t)count * dtype_bytes(dst_type);
    if (!stores_directly(zero, stream, dst_type, src_type)) {
        device_zero(stream, dst, bytes);
        device_accumulate(stream, dst, dst_type, src, src_type, count);
    } else if (dst_type == src_type) {
        device_copy(stream, dst, src, bytes);
    } else {
        ops_cast(zero->ops, stream, dst, dst_type, src, src_type, count);
    }
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
                       int active, int64_t stride, int64_t count, bool first)
{
    if (zero->sum_type == DTYPE_F32) {
        add_in_order(zero, stream, sum, gradients, active, stride, count, first);
        return;
    }
    if (active == 1 && !first) { /* the same bits in one call: it adds in fp32 and rounds once */
        device_accumulate(stream, sum, zero->sum_type, gradients, zero->type, count);
        return;
    }
    if (active == 1 && zero->sum_type == zero->type) {
        store(zero, stream, sum, zero->sum_type, gradients, zero->type, count);
        return;
    }
    float *round_sum = zero->round_sum[stream == zero->reduce_stream];
    for (int64_t done = 0; done < count; done += ZERO_STAGING) {
        int64_t part = count - done < ZERO_STAGING ? count - done : ZERO_STAGING;
        void *at = zero_at(sum, zero->sum_type, done);
        if (!first)
            store(zero, stream, round_sum, DTYPE_F32, at, zero->sum_type, part);
        add_in_order(zero, stream, round_sum, zero_at(gradients, zero->type, done), active, stride,
                     part, first);
        store(zero, stream, at, zero->sum_type, round_sum, DTYPE_F32, part);
    }
}

/* sum (+)= one gradient of `range`, and squares (+)= its squares where elements count. It is read
 * once. */
static void add_with_squares(struct zero *zero, struct stream *stream, struct piece_range range,
                             float *sum, double *squares, const void *gradient, double weight,
                             bool first)
{
    for (int64_t done = 0; done < range.count;) {
        struct zero_range r = noise_next(zero, range, done);
        add_in_order(zero, stream, sum + done, zero_at(gradient, zero->type, done), 1, range.count,
                     r.first - done, first); /* what does not count */
        device_accumulate_squares(stream, sum + r.first, zero_at(gradient, zero->type, r.first),
                                  zero->type, r.count, first, squares + r.first / OPS_BLOCK,
                                  weight);
        done = r.first + r.count;
    }
}

/* The same for all workers. Blocks without elements that count keep the zeros they began with. */
static void add_all_with_squares(struct zero *zero, struct stream *stream, struct piece_range range,
                                 float *sum, double *squares, const void *gradients, int active,
                                 int64_t round)
{
    bool first = round == 0;
    if (first && !stores_directly(zero, stream, DTYPE_F32, zero->type)) { /* the bits of `store` */
        device_zero(stream, sum, (size_t)range.count * sizeof *sum);
        device_zero(stream, squares, (size_t)(range.count / OPS_BLOCK) * sizeof *squares);
        first = false;
    }
    for (int worker = 0; worker < active; worker++)
        add_with_squares(zero, stream, range, sum, squares,
                         zero_at(gradients, zero->type, worker * range.count),
                         noise_weight(zero, round, worker), first && worker == 0);
}

void add_gradients(struct zero *zero, struct stream *stream, struct piece_range range,
                   const struct zero_use *use, const void *gradients, int active, int64_t round)
{
    int64_t at = range.first - zero->reduce_shard * zero_reduce_shard_count(zero, range.piece);
    void *sum = use->sum ? zero_at(use->sum, zero_use_type(zero, range.piece, use), at) : NULL;
    bool squared = use->squares && !zero->config.local, added = sum == gradients;
    double *squares = squared ? use->squares + at / OPS_BLOCK : NULL;
    bool far = zero->pieces[range.piece].sum_is_far;
    if (squared && !added && !far && zero->sum_type == DTYPE_F32) {
        add_all_with_squares(zero, stream, range, sum, squares, gradients, active, round);
        return;
    }
    if (squared)
        noise_add(zero, stream, range, squares, gradients, active, round);
    if (far)
        offload_add(zero, stream, range, gradients, active, round);
    else if (!added)
        add_contributions(zero, stream, sum, gradients, active, range.count, range.count,
                          round == 0);
}

/* The library adds, so the reduce shard arrives as a single gradient. */
static void reduce_to_shards(struct zero *zero, int piece, const void *full, int64_t round,
                             const struct zero_use *use)
{
    int64_t count = zero_reduce_shard_count(zero, piece);
    bool direct = use->sum && round == 0 && zero->sum_type == zero->type;
    void *reduce_shard = direct ? use->sum : zero->contributions;
    comm_label(zero->reduce_comm, zero->graph->pieces[piece].name);
    comm_reduce_scatter(zero->reduce_comm, full, reduce_shard, count, zero->type, NULL,
                        zero->reduce_stream);
    if (!direct)
        add_gradients(zero, zero->reduce_stream,
                      (struct piece_range){piece, zero->reduce_shard * count, count}, use,
                      reduce_shard, 1, round);
}

void reduce_shards_to_owners(struct zero *zero, int piece, const void *full, int64_t round,
                             const struct zero_use *use)
{
    int active = roster_active(&zero->roster, zero->reductions, round);
    const struct zero_messages *m = &zero->pieces[piece].reduce[active < zero->roster.workers];
    int64_t count = zero_reduce_shard_count(zero, piece);
    struct stream *stream = zero->reduce_stream;
    event_record(zero->written, zero->stream);
    stream_wait(stream, zero->written);
    if (library_adds(zero) && active == zero->roster.workers) {
        reduce_to_shards(zero, piece, full, round, use);
        return;
    }
    for (int64_t done = 0; done < count; done += m->count) {
        int64_t part = count - done < m->count ? count - done : m->count;
        comm_label(zero->reduce_comm, zero->graph->pieces[piece].name);
        comm_all_to_all_v(zero->reduce_comm, part_at(zero, full, done), zero->contributions,
                          part < m->count ? &m->last : &m->each, zero->type, stream);
        if (zero->reduce_shard < 0)
            continue;
        struct piece_range range = {piece, zero->reduce_shard * count + done, part};
        add_gradients(zero, stream, range, use, zero->contributions, active, round);
    }
}
