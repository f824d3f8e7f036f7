/* device_cpu -- host memory; a stream runs each call before it returns, on the caller's thread and
 * its OpenMP team.
 *
 * Work on long ranges is cut in pieces of a fixed size, whole blocks of 64 elements, and threads
 * take whole pieces. All of it is element by element, so the bits do not depend on the number of
 * threads.
 */
#include <string.h>
#include "device/device_impl.h"

enum {
    PIECE = 64 * 1024,         /* elements that one thread takes at a time */
    PIECE_BYTES = 1024 * 1024, /* the same for copies */
};

/* --- memory --------------------------------------------------------------------------------- */

static enum status cpu_alloc(struct device *device, struct device_block *block)
{
    return mem_alloc(device->env, block->category, block->name, block->bytes, &block->address);
}

static void cpu_free(struct device *device, struct device_block *block)
{
    mem_free(device->env, block->address);
}

/* --- copies --------------------------------------------------------------------------------- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void cpu_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    int threads = bytes > PIECE_BYTES ? stream->device->env->threads : 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        memcpy((char *)dst + at, (const char *)src + at, smaller(PIECE_BYTES, bytes - at));
}

static void cpu_zero(struct stream *stream, void *dst, size_t bytes)
{
    int threads = bytes > PIECE_BYTES ? stream->device->env->threads : 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        memset((char *)dst + at, 0, smaller(PIECE_BYTES, bytes - at));
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

#define ROW(dst_name)                                                           \
    {                                                                           \
        [DTYPE_F32] = dst_name##_from_f32, [DTYPE_BF16] = dst_name##_from_bf16, \
        [DTYPE_F16] = dst_name##_from_f16                                       \
    }
static accumulate_fn *const accumulators[DTYPE_COUNT][DTYPE_COUNT] = {
    [DTYPE_F32] = ROW(f32),
    [DTYPE_BF16] = ROW(bf16),
    [DTYPE_F16] = ROW(f16),
    [DTYPE_F64] = ROW(f64),
};

static void cpu_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                           enum dtype src_type, int64_t count)
{
    accumulate_fn *accumulate = accumulators[dst_type][src_type];
    size_t dst_bytes = dtype_bytes(dst_type), src_bytes = dtype_bytes(src_type);
    int threads = count > PIECE ? stream->device->env->threads : 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t at = 0; at < count; at += PIECE)
        accumulate((char *)dst + (size_t)at * dst_bytes, (const char *)src + (size_t)at * src_bytes,
                   count - at < PIECE ? count - at : PIECE);
}

const struct device_backend device_cpu = {
    .name = "cpu",
    .device_bytes = sizeof(struct device),
    .stream_bytes = sizeof(struct stream),
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .accumulate = cpu_accumulate,
};
