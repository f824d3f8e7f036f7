/* cuda_orthogonalize -- the slot of ops_orthogonalize: products on tensor cores, with factors and
 * sums in fp32 and matrices in the compute type.
 *
 * cuBLASLt is column-major: x (rows, columns) is its X = columns x rows. With n the smaller side,
 *
 *     A (n x n)  =  X^T X, or X X^T where rows > columns
 *     B (n x n)  =  c A A + b A
 *     X          =  X B + a X, or B X + a X
 *
 * A and B are symmetric, so it does not matter whether they are read as their transposes. The norm
 * is made of the sums of ops_square_sums, so its order is fixed.
 */
#include "ops/cuda/product/cuda_product.h"

struct room {
    void *next, *square, *factor; /* of x's shape; n x n: A and B */
    double *squares, *sum;        /* of the blocks of x; their sum */
};

/* The next `bytes` of scratch; *at advances past them. */
static void *take(uintptr_t *at, size_t bytes)
{
    void *here = (void *)*at;
    *at += (bytes + 255) / 256 * 256;
    return here;
}

/* Lays out the scratch that starts at `at`; returns its end. */
static uintptr_t lay_out(const struct ops *ops, int64_t rows, int64_t columns, uintptr_t at,
                         struct room *room)
{
    size_t element = dtype_bytes(ops->type), count = (size_t)(rows * columns);
    size_t n = (size_t)(rows < columns ? rows : columns);
    room->next = take(&at, count * element);
    room->square = take(&at, n * n * element);
    room->factor = take(&at, n * n * element);
    room->squares = take(&at, (count + OPS_BLOCK - 1) / OPS_BLOCK * sizeof(double));
    room->sum = take(&at, sizeof(double));
    return at;
}

static size_t cuda_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns)
{
    struct room room;
    return lay_out(ops, rows, columns, 0, &room);
}

/* to = x / |x| */
static cudaError_t normalize(const struct ops *ops, cudaStream_t stream, int64_t count,
                             const void *x, const struct room *room, void *to)
{
    struct kernel_range range = {.x = x, .count = count, .sums = room->squares};
    cudaError_t error = launch_square_sums(stream, ops->type, &range, 1);
    if (error == cudaSuccess)
        error = launch_sum(stream, (count + OPS_BLOCK - 1) / OPS_BLOCK, room->squares, room->sum);
    if (error == cudaSuccess)
        error = launch_normalize(stream, ops->type, count, room->sum, x, to);
    return error;
}

/* One iteration. */
static void improve(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                    const struct room *room, const void *x, void *to)
{
    bool tall = rows > columns;
    int64_t n = tall ? columns : rows, k = tall ? rows : columns;
    struct product square = {.m = n, .n = n, .k = k, .turn_a = !tall, .turn_b = tall, .alpha = 1};
    struct product factor = {.m = n,
                             .n = n,
                             .k = n,
                             .alpha = (float)OPS_NEWTON_SCHULZ_C,
                             .beta = (float)OPS_NEWTON_SCHULZ_B};
    struct product next = {
        .m = columns, .n = rows, .k = n, .alpha = 1, .beta = (float)OPS_NEWTON_SCHULZ_A};
    cuda_multiply(ops, stream, square, (struct operands){.a = x, .b = x, .d = room->square});
    cuda_multiply(ops, stream, factor,
                  (struct operands){
                      .a = room->square, .b = room->square, .c = room->square, .d = room->factor});
    cuda_multiply(ops, stream, next,
                  (struct operands){
                      .a = tall ? room->factor : x, .b = tall ? x : room->factor, .c = x, .d = to});
}

/* x and room->next take turns; the last iteration writes x. */
_Static_assert(OPS_NEWTON_SCHULZ % 2 == 1, "the first iteration reads room->next");

static void cuda_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows,
                               int64_t columns, void *x, void *scratch)
{
    struct room room;
    lay_out(ops, rows, columns, (uintptr_t)scratch, &room);
    if (!cuda_on_gpu(ops, stream))
        return;
    cuda_enqueued(stream, normalize(ops, cuda_handle(stream), rows * columns, x, &room, room.next),
                  "orthogonalize");
    for (int turn = 0; turn < OPS_NEWTON_SCHULZ && !stream_failed(stream); turn++)
        improve(ops, stream, rows, columns, &room, turn % 2 ? x : room.next,
                turn % 2 ? room.next : x);
}

void cuda_orthogonalize_fill(struct ops_backend *table)
{
    table->orthogonalize = cuda_orthogonalize;
    table->orthogonalize_scratch = cuda_orthogonalize_scratch;
}
