/* zero_params -- reading and writing parameters: initial values, and element ranges for files and
 * tests.
 *
 * Everything goes through a staging buffer of one chunk, so no tensor exists twice. Values are read
 * from their owners, and every rank gets them.
 */
#include "zero/zero_offload.h"

#include "base/rng.h"

/* --- writing -------------------------------------------------------------------------------- */

/* The part of `range` that this rank holds. */
static struct piece_range held_part(const struct zero *zero, struct piece_range range)
{
    if (zero->shard < 0)
        return (struct piece_range){range.piece, range.first, 0};
    return partition_clip_part(&zero->partition, range, zero->shard, zero->shards);
}

/* Initial values of elements first .. first + count - 1 of a whole tensor. */
static void initial_values(const struct unit_tensor *tensor, struct rng rng, int64_t first,
                           int64_t count, float *out)
{
    double scale = tensor->init_scale;
    if (tensor->init == INIT_NORMAL)
        rng_normals(rng, (uint64_t)first, count, scale, out);
    for (int64_t i = 0; i < count && tensor->init != INIT_NORMAL; i++)
        out[i] = tensor->init == INIT_ZERO ? 0.0f
                 : tensor->init == INIT_ONE
                     ? 1.0f
                     : (float)(scale * (2.0 * rng_uniform(rng, (uint64_t)(first + i)) - 1.0));
}

/* Of the part of it that is here, which may be many runs. */
static void initial_part(const struct unit_tensor *tensor, struct rng rng, int64_t first,
                         int64_t count, float *out)
{
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t index = unit_tensor_index(tensor, first + done, &run);
        run = run < count - done ? run : count - done;
        initial_values(tensor, rng, index, run, out + done);
    }
}

/* Elements first .. first + count of a tensor, as a range of its piece. */
static struct piece_range element_range(const struct zero *zero, int tensor, int64_t first,
                                        int64_t count)
{
    struct piece_range range = partition_tensor(&zero->partition, tensor);
    CHECK(first >= 0 && count >= 0 && first + count <= range.count);
    return (struct piece_range){range.piece, range.first + first, count};
}

/* One chunk at a time. */
enum status zero_write_rounded(struct zero *zero, void *dst, const float *values, int64_t count)
{
    for (int64_t done = 0; done < count; done += ZERO_STAGING) {
        int64_t part = count - done < ZERO_STAGING ? count - done : ZERO_STAGING;
        device_copy(zero->stream, zero->rounding, values + done, (size_t)part * sizeof *values);
        ops_cast(zero->ops, zero->stream, zero_at(dst, zero->type, done), zero->type,
                 zero->rounding, DTYPE_F32, part);
        TRY(stream_sync(zero->stream));
    }
    return STATUS_OK;
}

/* For a tensor of this store's graph. */
static enum status write_own(struct zero *zero, int tensor, int64_t first, int64_t count,
                             const float *values)
{
    struct piece_range range = element_range(zero, tensor, first, count);
    struct piece_range mine = held_part(zero, range);
    if (zero_borrowed_from(zero, range.piece) != UNIT_NO_STAGE) /* zero_publish sends it */
        return STATUS_OK;
    if (mine.count == 0)
        return stream_sync(zero->stream);
    struct zero_range part = {mine.first - partition_tensor(&zero->partition, tensor).first,
                              mine.count};
    return zero_write_masters(zero, tensor, part, values + (mine.first - range.first));
}

enum status zero_write(struct zero *zero, int tensor, int64_t first, int64_t count,
                       const float *values)
{
    int own = zero_own_tensor(zero, tensor);
    TRY(zero_settle(zero));
    if (own < 0)
        return STATUS_OK;
    const struct unit_tensor *t = &zero->graph->tensors[own];
    struct zero_range part = tp_group_part(t, (struct zero_range){first, count});
    for (int64_t done = 0, n; done < part.count; done += n) {
        n = part.count - done < ZERO_STAGING ? part.count - done : ZERO_STAGING;
        TRY(write_own(zero, own, part.first + done, n,
                      tp_group_pack(t, part.first + done, n, first, values, zero->staging)));
    }
    return STATUS_OK;
}

/* Initialize the elements of a tensor that this rank holds, one chunk at a time. */
enum { INIT_BLOCK = 4096 };
static enum status init_tensor(struct zero *zero, int t, uint64_t seed)
{
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    struct rng rng = rng_stream(seed, tensor->name);
    struct piece_range whole = partition_tensor(&zero->partition, t);
    struct piece_range mine = held_part(zero, whole);
    int64_t begin = mine.first - whole.first, end = begin + mine.count;
    float *values = zero->staging;
    for (int64_t first = begin; first < end; first += ZERO_STAGING) {
        int64_t part = end - first < ZERO_STAGING ? end - first : ZERO_STAGING;
#pragma omp parallel for num_threads(zero->env->threads) schedule(static)
        for (int64_t at = 0; at < part; at += INIT_BLOCK)
            initial_part(tensor, rng, first + at, part - at < INIT_BLOCK ? part - at : INIT_BLOCK,
                         values + at);
        TRY(write_own(zero, t, first, part, values));
    }
    return STATUS_OK;
}

enum status zero_init(struct zero *zero, uint64_t seed)
{
    TRY(zero_settle(zero));
    for (int t = 0; t < zero->graph->tensor_count; t++)
        TRY(init_tensor(zero, t, seed));
    return zero_publish(zero, 0);
}

/* --- reading -------------------------------------------------------------------------------- */

/* Which ranks hold the parts of something: params and masters are in shards, sums in reduce
 * shards. */
struct holders {
    struct comm *comm;
    struct stream *stream;
    int size, first_rank; /* the ranks of comm */
    int parts;
    int (*part)(const struct roster *roster, int rank);
    enum dtype type;
    /* Where this rank's part is far: copies a range of it to host memory. NULL: it is on the
     * device. */
    enum status (*read_far)(struct zero *zero, struct piece_range range, void *out);
};

/* Collect a chunk of a piece from its holders; `own` is this rank's part. */
static enum status collect(struct zero *zero, const struct holders *h, struct piece_range range,
                           const void *own, void *out)
{
    const struct comm_parts *e = &zero->range;
    int part = h->part(&zero->roster, zero->roster.rank);
    int64_t part_count = zero->partition.piece_count[range.piece] / h->parts;
    struct piece_range mine = {0};
    if (part >= 0)
        mine = partition_clip_part(&zero->partition, range, part, h->parts);
    for (int i = 0; i < h->size; i++) {
        int theirs_part = h->part(&zero->roster, h->first_rank + i);
        struct piece_range theirs = {0};
        if (theirs_part >= 0)
            theirs = partition_clip_part(&zero->partition, range, theirs_part, h->parts);
        e->send_counts[i] = mine.count;
        e->send_offsets[i] = mine.count > 0 && !h->read_far ? mine.first - part * part_count : 0;
        e->recv_counts[i] = theirs.count;
        e->recv_offsets[i] = theirs.count > 0 ? theirs.first - range.first : 0;
    }
    if (h->read_far && mine.count > 0) {
        TRY(h->read_far(zero, mine, zero->staging));
        device_copy(zero->stream, zero->from_far, zero->staging,
                    (size_t)mine.count * dtype_bytes(h->type));
        own = zero->from_far;
    }
    TRY(stream_sync(zero->stream));
    comm_all_to_all_v(h->comm, own, zero->collected, e, h->type, h->stream);
    device_copy(h->stream, out, zero->collected, (size_t)range.count * dtype_bytes(h->type));
    return stream_sync(h->stream);
}

/* Read elements that the ranks hold in parts, in fp32; `own` is NULL on ranks that hold none. */
static enum status read_parts(struct zero *zero, const struct holders *h, struct piece_range range,
                              const void *own, float *out)
{
    bool here = !h->comm || (h->parts == 1 && zero->roster.workers == zero->roster.size);
    for (int64_t done = 0; done < range.count; done += ZERO_STAGING) {
        int64_t part = range.count - done < ZERO_STAGING ? range.count - done : ZERO_STAGING;
        struct piece_range chunk = {range.piece, range.first + done, part};
        void *to = h->type == DTYPE_F32 ? out + done : zero->staging;
        if (here && h->read_far) {
            TRY(h->read_far(zero, chunk, to));
        } else if (here) {
            device_copy(zero->stream, to, zero_at(own, h->type, chunk.first),
                        (size_t)part * dtype_bytes(h->type));
            TRY(stream_sync(zero->stream));
        } else {
            TRY(collect(zero, h, chunk, own, to));
        }
        if (h->type != DTYPE_F32)
            dtype_convert(out + done, DTYPE_F32, to, h->type, part);
    }
    return STATUS_OK;
}

static enum status read_own(struct zero *zero, int tensor, int64_t first, int64_t count, float *out)
{
    struct piece_range range = element_range(zero, tensor, first, count);
    struct holders holders = {zero->gather_comm,
                              zero->gather_stream,
                              zero->members,
                              zero->first_member,
                              zero->shards,
                              roster_shard,
                              zero_master_type(zero, range.piece),
                              NULL};
    const struct zero_piece *piece = &zero->pieces[range.piece];
    if (piece->state_is_far && zero_piece_has_master(zero, range.piece))
        holders.read_far = offload_read_masters;
    else if (piece->params_are_far && !zero_piece_has_master(zero, range.piece))
        holders.read_far = far_params_read;
    return read_parts(zero, &holders, range, zero->pieces[range.piece].master, out);
}

static enum status read_own_gradient(struct zero *zero, int tensor, int64_t first, int64_t count,
                                     float *out)
{
    struct piece_range range = element_range(zero, tensor, first, count);
    const struct zero_piece *piece = &zero->pieces[range.piece];
    struct holders holders = {zero->reduce_comm,
                              zero->reduce_stream,
                              zero->roster.size,
                              0,
                              zero->roster.owners,
                              roster_reduce_shard,
                              zero_sum_type(zero, range.piece),
                              piece->sum_is_far ? offload_read_sum : NULL};
    CHECK_LT(0, piece->use_count);
    return read_parts(zero, &holders, range, piece->uses[0].sum, out);
}

/* Read on the PP stage that owns the tensor, and send to all of them. */
static enum status read_whole(struct zero *zero, int tensor, tp_group_read_fn *read, int64_t first,
                              int64_t count, float *out)
{
    const struct unit_cut *cut = zero->pipe.cut;
    struct comm *comm = zero->pipe.comm;
    if (!cut || cut->owner[tensor] == cut->pp_stage)
        TRY(tp_group_read(zero, tensor, read, first, count, out));
    if (!comm)
        return STATUS_OK;
    comm_broadcast(comm, out, count, DTYPE_F32, cut->owner[tensor], zero->stream);
    TRY(stream_sync(zero->stream));
    return comm_status(comm);
}

enum status zero_read(struct zero *zero, int tensor, int64_t first, int64_t count, float *out)
{
    TRY(zero_settle(zero));
    return read_whole(zero, tensor, read_own, first, count, out);
}

enum status zero_read_gradient(struct zero *zero, int tensor, int64_t first, int64_t count,
                               float *out)
{
    return read_whole(zero, tensor, read_own_gradient, first, count, out);
}
