/* cpu_flat -- the store's arithmetic on flat ranges: casts, sums of squares, the search for
 * non-finite values.
 *
 * Memory bandwidth limits all of them. Ranges are divided into chunks of a fixed number of
 * elements. The compiler vectorizes the plain loops, since every operation in them is exactly
 * rounded. The 16-bit casts are branch-free for that reason and have the bits of base/dtype.
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

/* f32_to_bf16 of base/dtype as one expression */
static uint16_t to_bf16(float f)
{
    uint32_t bits = bits_of(f), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x0040u : rounded);
}

static void to_bf16s(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    int64_t i = 0;
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC /* one instruction, with the bits of to_bf16 */
    for (; i + 8 <= n; i += 8) {
        bfloat16x8_t half = vcvtq_low_bf16_f32(vld1q_f32(src + i));
        half = vcvtq_high_bf16_f32(half, vld1q_f32(src + i + 4));
        memcpy(dst + i, &half, sizeof half);
    }
#endif
    for (; i < n; i++)
        dst[i] = to_bf16(src[i]);
}

/* f32_to_f16: below 2^-14 adding 0.5 lets the adder round to a multiple of 2^-24; above it the
 * mantissa is rounded as an integer, and a carry into the exponent is right, up to infinity. */
static uint16_t to_f16(float f)
{
    uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    uint32_t small = bits_of(of_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    uint32_t nan = 0x7e00u | (a >> 13 & 0x3ffu);
    uint32_t h = a < 0x38800000u ? small : normal;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? nan : h;
    return (uint16_t)(sign | h);
}

/* f16_to_f32: the bits read as a float are 2^112 too small, subnormals included */
static float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, a = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t bits = bits_of(of_bits(a) * 0x1p112f);
    bits |= a >= 0x0f800000u ? 0x7f800000u : 0u;
    return of_bits(bits | sign);
}

void cpu_cast_chunk(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n)
{
    uint16_t *restrict half = dst;
    float *restrict single = dst;
    const uint16_t *from_half = src;
    const float *from_single = src;
    if (src_type == dst_type)
        memcpy(dst, src, (size_t)n * dtype_bytes(src_type));
    else if (src_type == DTYPE_F32 && dst_type == DTYPE_BF16)
        to_bf16s(half, from_single, n);
    else if (src_type == DTYPE_F32 && dst_type == DTYPE_F16)
        for (int64_t i = 0; i < n; i++)
            half[i] = to_f16(from_single[i]);
    else if (src_type == DTYPE_BF16 && dst_type == DTYPE_F32)
        for (int64_t i = 0; i < n; i++)
            single[i] = bf16_to_f32(from_half[i]);
    else if (src_type == DTYPE_F16 && dst_type == DTYPE_F32)
        for (int64_t i = 0; i < n; i++)
            single[i] = from_f16(from_half[i]);
    else
        dtype_convert(dst, dst_type, src, src_type, n);
}

static void cast_thread(void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                        int64_t count)
{
    size_t dst_bytes = dtype_bytes(dst_type), src_bytes = dtype_bytes(src_type);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i += FLAT_CHUNK)
        cpu_cast_chunk((char *)dst + (size_t)i * dst_bytes, dst_type,
                       (const char *)src + (size_t)i * src_bytes, src_type,
                       min64(FLAT_CHUNK, count - i));
}

void cpu_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count)
{
    IN_THREADS(cpu_threads(ops, count), cast_thread(dst, dst_type, src, src_type, count));
}

const float *cpu_as_f32(const void *x, enum dtype type, int64_t i, int64_t n, float *room)
{
    const void *at = (const char *)x + (size_t)i * dtype_bytes(type);
    if (type == DTYPE_F32)
        return at;
    cpu_cast_chunk(room, DTYPE_F32, at, type, n);
    return room;
}

/* Builds the tree from the bottom up like a binary counter: a carry is a finished pair. The order
 * is that of the tree, and only one number for each level is stored. */
static double tree_sum(const double *values, int level)
{
    double node[64];
    int64_t leaves = (int64_t)1 << level;
    for (int64_t i = 0; i < leaves; i++) {
        double sum = values[i];
        int at = 0;
        for (; i >> at & 1; at++)
            sum = node[at] + sum;
        node[at] = sum;
    }
    return node[level];
}

static void tree_thread(int64_t count, int level, const double *values, double *sums)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count >> level; i++)
        sums[i] = tree_sum(values + (i << level), level);
}

void cpu_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                   const double *values, double *sums)
{
    IN_THREADS(cpu_threads(ops, count), tree_thread(count, level, values, sums));
}

typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x4 __attribute__((vector_size(32)));
#define EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6)
#define ODD(a, b)  __builtin_shufflevector(a, b, 1, 3, 5, 7)
#define DOUBLE(a)  __builtin_convertvector(a, f64x4)

static inline f32x4 load_four(const float *x)
{
    f32x4 four;
    memcpy(&four, x, sizeof four);
    return four;
}

/* *sums = the sums of squares of four elements each, starting at x[0], x[16], x[32] and x[48]: the
 * four vectors are transposed and added in order. Squares of floats are exact in double. (gcc
 * refuses to return such a vector where the CPU has no register for it.) */
static inline void four_squares(const float *x, f64x4 *sums)
{
    f32x4 p = load_four(x), q = load_four(x + 16), r = load_four(x + 32), s = load_four(x + 48);
    f32x4 even0 = EVEN(p, q), odd0 = ODD(p, q), even1 = EVEN(r, s), odd1 = ODD(r, s);
    f64x4 a = DOUBLE(EVEN(even0, even1)), b = DOUBLE(EVEN(odd0, odd1));
    f64x4 c = DOUBLE(ODD(even0, even1)), d = DOUBLE(ODD(odd0, odd1));
    *sums = a * a + b * b + c * c + d * d;
}

/* In the order of ops.h. The sum that starts at x[4 j] is in lane j / 4, so that two levels of the
 * tree add whole vectors. */
static double block_squares(const float x[OPS_BLOCK])
{
    f64x4 a, b, c, d, sums;
    four_squares(x, &a);
    four_squares(x + 4, &b);
    four_squares(x + 8, &c);
    four_squares(x + 12, &d);
    sums = (a + b) + (c + d);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Block b of a range; a short one is filled with zeros. */
static double range_squares(enum dtype type, const struct square_range *r, int64_t b)
{
    float room[OPS_BLOCK];
    int64_t n = min64(OPS_BLOCK, r->count - b * OPS_BLOCK);
    const float *x = cpu_as_f32(r->x, type, b * OPS_BLOCK, n, room);
    if (n == OPS_BLOCK)
        return block_squares(x);
    memmove(room, x, (size_t)n * sizeof *x);
    memset(room + n, 0, (size_t)(OPS_BLOCK - n) * sizeof *x);
    return block_squares(room);
}

static void squares_thread(enum dtype type, const struct square_range *ranges, int range_count)
{
    for (const struct square_range *r = ranges; r < ranges + range_count; r++) {
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < ceil_div(r->count, OPS_BLOCK); b++)
            r->sums[b] = range_squares(type, r, b);
    }
}

void cpu_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                     const struct square_range *ranges, int range_count)
{
    int64_t count = 0;
    for (int i = 0; i < range_count; i++)
        count += ranges[i].count;
    IN_THREADS(cpu_threads(ops, count), squares_thread(type, ranges, range_count));
}

static bool finite_chunk(const void *x, enum dtype type, int64_t first, int64_t n)
{
    enum { STRIP = 1024 };
    float room[STRIP];
    uint32_t bad = 0;
    for (int64_t done = 0; done < n; done += STRIP) {
        int64_t count = min64(STRIP, n - done);
        const float *f = cpu_as_f32(x, type, first + done, count, room);
        for (int64_t i = 0; i < count; i++)
            bad |= (bits_of(f[i]) & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* *chunk becomes the start of the first chunk with a non-finite value. Chunks are taken in order,
 * so later ones are skipped once one is found. */
static void nonfinite_thread(enum dtype type, const void *x, int64_t count, int64_t *next,
                             int64_t *chunk)
{
    for (int64_t i; (i = next_chunk(next) * FLAT_CHUNK) < count;) {
        int64_t found = __atomic_load_n(chunk, __ATOMIC_RELAXED);
        if (i > found || finite_chunk(x, type, i, min64(FLAT_CHUNK, count - i)))
            continue;
        while (i < found && !__atomic_compare_exchange_n(chunk, &found, i, false, __ATOMIC_RELAXED,
                                                         __ATOMIC_RELAXED))
            ;
    }
}

void cpu_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first)
{
    int64_t next = 0, chunk = INT64_MAX;
    IN_THREADS(cpu_threads(ops, count), nonfinite_thread(type, x, count, &next, &chunk));
    *first = -1;
    for (int64_t i = chunk; i < count && *first < 0; i++)
        if (!finite_chunk(x, type, i, 1))
            *first = i;
}
