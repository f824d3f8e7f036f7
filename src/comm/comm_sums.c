/* comm_sums -- the reductions: every contribution goes to the rank that needs the sum and is added
 * there in rank order.
 *
 * The sum of a block is formed in fp32 (fp64 for f64), ((c0 + c1) + c2) + ..., and rounded once to
 * the type. So its bits depend only on the contributions: not on the order of arrival, the library,
 * or how ranges are divided. Copies and device_accumulate are all that is needed, on any device: -0
 * + x is x for every x, so adding to a block of -0 widens or rounds a value without a further
 * operation.
 *
 * In fast mode the library sums where only the order changes: f32 and f64 on a channel. NCCL rounds
 * a 16-bit sum at every rank that it passes, so 16-bit sums stay here.
 *
 * An all-reduce is a reduce-scatter of shards (complete blocks of 64 elements; the last shards may
 * be short or empty) followed by a gather of the sums.
 */
#include "comm/comm_impl.h"

enum { BLOCK = 8192 }; /* elements summed at a time: fits in the cache */

/* Allocate a block of -0 of one width. */
static enum status make_zeros(struct comm *comm, size_t bytes, uint32_t pattern, void **block)
{
    uint32_t fill[256];
    enum status st;
    struct stream *stream;
    for (int i = 0; i < 256; i++)
        fill[i] = pattern;
    TRY(device_alloc(comm->device, MEM_COMM, "sums", bytes, block));
    TRY_OR(undo_block, stream_create(comm->device, "sums", &stream));
    for (size_t at = 0; at < bytes; at += sizeof fill)
        device_copy(stream, (char *)*block + at, fill, sizeof fill);
    TRY_OR(undo_stream, stream_sync(stream));
    stream_destroy(stream);
    return STATUS_OK;
undo_stream:
    stream_destroy(stream);
undo_block:
    device_free(comm->device, *block);
    *block = NULL;
    return st;
}

enum status comm_sums_open(struct comm *comm)
{
    enum status st;
    struct comm_sums *sums = &comm->sums;
    TRY(device_alloc(comm->device, MEM_COMM, "sums", BLOCK * sizeof(double), &sums->sum));
    TRY_OR(undo, make_zeros(comm, BLOCK * sizeof(float), 0x80000000u, &sums->wide_zero));
    TRY_OR(undo, make_zeros(comm, BLOCK * sizeof(uint16_t), 0x80008000u, &sums->narrow_zero));
    return STATUS_OK;
undo:
    comm_sums_close(comm);
    return st;
}

void comm_sums_close(struct comm *comm)
{
    device_free(comm->device, comm->sums.sum);
    device_free(comm->device, comm->sums.wide_zero);
    device_free(comm->device, comm->sums.narrow_zero);
}

/* --- sums by the library -------------------------------------------------------------------- */

bool comm_library_sums(const struct comm *comm, enum dtype type)
{
    return comm->job->fast && comm->channel != NULL && (type == DTYPE_F32 || type == DTYPE_F64);
}

static bool library_adds(const struct comm_call *call)
{
    return call->count > 0 && call->on_channel && comm_library_sums(call->comm, call->type);
}

/* --- sums in rank order --------------------------------------------------------------------- */

/* dst = c_0 + ... + c_(size-1), block by block. Contribution r of `type` is at parts + r * stride
 * bytes, except this rank's own, which is at `mine`. dst may be `mine`. */
static void sum_parts(struct comm *comm, struct stream *stream, enum dtype type, char *dst,
                      const char *mine, const char *parts, size_t stride, int64_t count)
{
    const struct comm_sums *sums = &comm->sums;
    bool narrow = type == DTYPE_BF16 || type == DTYPE_F16;
    enum dtype wide = narrow ? DTYPE_F32 : type;
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        size_t skip = (size_t)at * dtype_bytes(type), wide_bytes = (size_t)n * dtype_bytes(wide);
        for (int r = 0; r < comm->size; r++) {
            const char *part = (r == comm->rank ? mine : parts + (size_t)r * stride) + skip;
            if (r == 0)
                device_copy(stream, sums->sum, narrow ? sums->wide_zero : part, wide_bytes);
            if (r > 0 || narrow)
                device_accumulate(stream, sums->sum, wide, part, type, n);
        }
        if (!narrow) {
            device_copy(stream, dst + skip, sums->sum, wide_bytes);
        } else {
            device_copy(stream, dst + skip, sums->narrow_zero, (size_t)n * dtype_bytes(type));
            device_accumulate(stream, dst + skip, type, sums->sum, wide, n);
        }
    }
}

enum status comm_do_reduce_scatter(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    size_t part = (size_t)call->count * dtype_bytes(call->type);
    const char *full = call->src;
    char *scratch = call->scratch;
    if (library_adds(call))
        return comm_swap_sum(call, stream);
    CHECK(scratch != NULL || call->count == 0);
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            continue;
        comm_set_move(comm->sends, r, full + (size_t)r * part, part);
        comm_set_move(comm->recvs, r, scratch + (size_t)r * part, part);
    }
    TRY(comm_swap(call, 0, stream));
    sum_parts(comm, stream, call->type, call->dst, full + (size_t)comm->rank * part, scratch, part,
              call->count);
    return STATUS_OK;
}

/* --- all-reduce ----------------------------------------------------------------------------- */

struct range {
    int64_t at, count;
};

static int64_t shard_count(int64_t count, int size)
{
    int64_t part = (count + size - 1) / size;
    return (part + 63) / 64 * 64;
}

static struct range range_of(int64_t count, int size, int rank)
{
    int64_t part = shard_count(count, size), at = rank * part;
    if (at > count)
        at = count;
    return (struct range){at, count - at < part ? count - at : part};
}

size_t comm_all_reduce_bytes(const struct comm *comm, int64_t count, enum dtype type)
{
    int64_t mine = range_of(count, comm->size, comm->rank).count;
    return (size_t)(count - mine + (comm->size - 1) * mine) * dtype_bytes(type);
}

enum status comm_do_all_reduce(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    size_t element = dtype_bytes(call->type);
    size_t part = (size_t)shard_count(call->count, comm->size) * element;
    struct range mine = range_of(call->count, comm->size, comm->rank);
    char *data = call->dst, *scratch = call->scratch, *own = data + (size_t)mine.at * element;
    size_t own_bytes = (size_t)mine.count * element;

    if (library_adds(call))
        return comm_swap_sum(call, stream);
    for (int r = 0; r < comm->size; r++) {
        struct range theirs = range_of(call->count, comm->size, r);
        if (r == comm->rank)
            continue;
        comm_set_move(comm->sends, r, data + (size_t)theirs.at * element,
                      (size_t)theirs.count * element);
        comm_set_move(comm->recvs, r, scratch + (size_t)r * part, own_bytes);
    }
    TRY(comm_swap(call, 0, stream));
    sum_parts(comm, stream, call->type, own, own, scratch, part, mine.count);

    for (int r = 0; r < comm->size; r++) {
        struct range theirs = range_of(call->count, comm->size, r);
        if (r == comm->rank)
            continue;
        comm_set_move(comm->sends, r, own, own_bytes);
        comm_set_move(comm->recvs, r, data + (size_t)theirs.at * element,
                      (size_t)theirs.count * element);
    }
    return comm_swap(call, 1, stream);
}
