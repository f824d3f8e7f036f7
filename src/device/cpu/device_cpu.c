/* device_cpu -- host memory, copies and sums: the table of the back end.
 *
 * A call becomes a task of its stream (stream_cpu.c). On an inline stream it runs on the caller's
 * OpenMP team, on a worker stream by its thread alone. Work on long ranges is cut in pieces of a
 * fixed size, whole blocks of 64 elements, and threads take whole pieces. All of it is element by
 * element, so the bits do not depend on the number of threads.
 */
#include <string.h>
#include "device/cpu/copy_far.h"
#include "device/cpu/stream_cpu.h"

enum {
    PIECE = 64 * 1024,         /* elements that one thread takes at a time */
    PIECE_BYTES = 1024 * 1024, /* the same for copies */
};

/* --- memory --------------------------------------------------------------------------------- */

static enum status cpu_alloc(struct device *device, struct device_block *block)
{
    return mem_alloc(device->env, block->category, block->name, block->bytes, &block->address);
}

static void cpu_free(struct device *device, const struct device_block *block)
{
    mem_free(device->env, block->address);
}

/* --- pieces --------------------------------------------------------------------------------- */

/* One piece of a call: what starts at `at` (bytes, or elements). */
typedef void piece_fn(const void *args, size_t at);

/* Every piece of `total`. A team of one is not made: a worker's thread has nothing to do with
 * OpenMP. */
static void for_pieces(const struct stream *stream, piece_fn *run, const void *args, size_t total,
                       size_t chunk)
{
    int threads = stream->worker || total <= chunk ? 1 : stream->device->env->threads;
    if (threads == 1) {
        for (size_t at = 0; at < total; at += chunk)
            run(args, at);
    } else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (size_t at = 0; at < total; at += chunk)
            run(args, at);
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* --- copies --------------------------------------------------------------------------------- */

struct range {
    char *dst;
    const char *src; /* NULL: zeros */
    size_t bytes;
};

static void fill_piece(const void *args, size_t at)
{
    const struct range *range = args;
    size_t bytes = smaller(PIECE_BYTES, range->bytes - at);
    if (range->src == NULL)
        memset(range->dst + at, 0, bytes);
    else if (range->bytes < COPY_FAR_FROM)
        memcpy(range->dst + at, range->src + at, bytes);
    else
        copy_far(range->dst + at, range->src + at, bytes);
}

static void fill_task(struct stream *stream, const void *args)
{
    if (!stream_failed(stream))
        for_pieces(stream, fill_piece, args, ((const struct range *)args)->bytes, PIECE_BYTES);
}

static void cpu_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    struct range range = {dst, src, bytes};
    cpu_enqueue(stream, fill_task, &range, sizeof range);
}

static void cpu_zero(struct stream *stream, void *dst, size_t bytes)
{
    struct range range = {dst, NULL, bytes};
    cpu_enqueue(stream, fill_task, &range, sizeof range);
}

/* --- accumulate ----------------------------------------------------------------------------- */

/* Exact, and without branches so that compilers turn loops over it into vector code. Multiplying
 * by 2^112 moves the exponent from f16's bias to f32's and makes f16's subnormal numbers normal. */
static inline float widen_f16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t endless = (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0; /* infinity or NaN */
    float f;
    memcpy(&f, &magnitude, sizeof f);
    f *= 0x1p112f;
    memcpy(&magnitude, &f, sizeof f);
    magnitude |= endless | sign;
    memcpy(&f, &magnitude, sizeof f);
    return f;
}

static inline float same(float f)
{
    return f;
}

static inline double same_f64(double d)
{
    return d;
}

typedef void accumulate_fn(void *dst, const void *src, int64_t count);

#define ACCUMULATE(dst_name, dst_c, sum_c, widen_dst, narrow, src_name, src_c, widen_src) \
    static void dst_name##_from_##src_name(void *dst, const void *src, int64_t count)     \
    {                                                                                     \
        dst_c *restrict d = dst;                                                          \
        const src_c *restrict s = src;                                                    \
        for (int64_t i = 0; i < count; i++)                                               \
            d[i] = narrow((sum_c)widen_dst(d[i]) + (sum_c)widen_src(s[i]));               \
    }
#define ACCUMULATE_ALL(...)                              \
    ACCUMULATE(__VA_ARGS__, f32, float, same)            \
    ACCUMULATE(__VA_ARGS__, bf16, uint16_t, bf16_to_f32) \
    ACCUMULATE(__VA_ARGS__, f16, uint16_t, widen_f16)

ACCUMULATE_ALL(f32, float, float, same, same)
ACCUMULATE_ALL(bf16, uint16_t, float, bf16_to_f32, f32_to_bf16)
ACCUMULATE_ALL(f16, uint16_t, float, widen_f16, f32_to_f16)
ACCUMULATE_ALL(f64, double, double, same_f64, same_f64)
ACCUMULATE(f64, double, double, same_f64, same_f64, f64, double, same_f64)

#define ROW(dst_name)                                                       \
    [DTYPE_F32] = dst_name##_from_f32, [DTYPE_BF16] = dst_name##_from_bf16, \
    [DTYPE_F16] = dst_name##_from_f16
static accumulate_fn *const accumulators[DTYPE_COUNT][DTYPE_COUNT] = {
    [DTYPE_F32] = {ROW(f32)},
    [DTYPE_BF16] = {ROW(bf16)},
    [DTYPE_F16] = {ROW(f16)},
    [DTYPE_F64] = {ROW(f64), [DTYPE_F64] = f64_from_f64},
};

struct sum {
    char *dst;
    const char *src;
    enum dtype dst_type, src_type;
    size_t count;
};

static void sum_piece(const void *args, size_t at)
{
    const struct sum *sum = args;
    accumulators[sum->dst_type][sum->src_type](sum->dst + at * dtype_bytes(sum->dst_type),
                                               sum->src + at * dtype_bytes(sum->src_type),
                                               (int64_t)smaller(PIECE, sum->count - at));
}

static void sum_task(struct stream *stream, const void *args)
{
    if (!stream_failed(stream))
        for_pieces(stream, sum_piece, args, ((const struct sum *)args)->count, PIECE);
}

static void cpu_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                           enum dtype src_type, int64_t count)
{
    struct sum sum = {dst, src, dst_type, src_type, (size_t)count};
    cpu_enqueue(stream, sum_task, &sum, sizeof sum);
}

const struct device_backend device_cpu = {
    .name = "cpu",
    .on_host = true,
    .device_bytes = sizeof(struct device),
    .stream_bytes = sizeof(struct cpu_stream),
    .event_bytes = sizeof(struct cpu_event),
    .alloc = cpu_alloc,
    .free = cpu_free,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_sync = cpu_stream_sync,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .enqueue = cpu_enqueue,
    .record = cpu_record,
    .wait = cpu_wait,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .accumulate = cpu_accumulate,
};
