/* cpu_optimizer -- what an update does on flat ranges: casts, sums of squares, the search for
 * non-finite values, AdamW.
 *
 * Memory bandwidth limits all of them. Ranges are divided into chunks of a fixed number of
 * elements. The compiler vectorizes the plain loops, since every operation in them is exactly
 * rounded. The 16-bit casts are branch-free for that reason and have the bits of base/dtype.
 */
#include <math.h>
#include "ops/cpu/cpu_impl.h"
#include "ops/ref/ref_impl.h"

/* f32_to_bf16 of base/dtype as one expression */
static uint16_t to_bf16(float f)
{
    uint32_t bits = bits_of(f), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x0040u : rounded);
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

static void cast_chunk(void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                       int64_t n)
{
    uint16_t *restrict half = dst;
    float *restrict single = dst;
    const uint16_t *from_half = src;
    const float *from_single = src;
    if (src_type == dst_type)
        memcpy(dst, src, (size_t)n * dtype_bytes(src_type));
    else if (src_type == DTYPE_F32 && dst_type == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            half[i] = to_bf16(from_single[i]);
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
        cast_chunk((char *)dst + (size_t)i * dst_bytes, dst_type,
                   (const char *)src + (size_t)i * src_bytes, src_type,
                   min64(FLAT_CHUNK, count - i));
}

void cpu_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count)
{
    IN_THREADS(cpu_threads(ops, count), cast_thread(dst, dst_type, src, src_type, count));
}

/* Elements i .. i + n - 1 of x in f32: x itself, or converted into `room` */
static const float *as_f32(const void *x, enum dtype type, int64_t i, int64_t n, float *room)
{
    const void *at = (const char *)x + (size_t)i * dtype_bytes(type);
    if (type == DTYPE_F32)
        return at;
    cast_chunk(room, DTYPE_F32, at, type, n);
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

/* Eight running sums of a block, folded in a fixed tree */
static double block_squares(const float *x, int64_t n)
{
    double s[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++)
        s[i % 8] += (double)x[i] * (double)x[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static void squares_thread(enum dtype type, const struct square_range *ranges, int range_count)
{
    float room[OPS_BLOCK];
    for (const struct square_range *r = ranges; r < ranges + range_count; r++) {
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < ceil_div(r->count, OPS_BLOCK); b++) {
            int64_t n = min64(OPS_BLOCK, r->count - b * OPS_BLOCK);
            r->sums[b] = block_squares(as_f32(r->x, type, b * OPS_BLOCK, n, room), n);
        }
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
        const float *f = as_f32(x, type, first + done, count, room);
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

/* The factors of one segment's update, from hyper-parameters and scalars */
struct factors {
    float beta1, beta2, rest1, rest2, eps, grad_scale, inverse1, inverse2, lr, decay;
};

static void update_chunk(struct factors u, int64_t n, const float *restrict grad, float *restrict m,
                         float *restrict v, float *restrict param)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * u.grad_scale;
        float m1 = u.beta1 * m[i] + u.rest1 * g;
        float v1 = u.beta2 * v[i] + u.rest2 * (g * g);
        float step = m1 * u.inverse1 / (sqrtf(v1 * u.inverse2) + u.eps);
        m[i] = m1;
        v[i] = v1;
        param[i] -= u.lr * (step + u.decay * param[i]);
    }
}

static struct factors factors_of(const struct update *hyper, const struct step_scalars *scalars,
                                const struct update_segment *s)
{
    return (struct factors){.beta1 = hyper->beta1,
                            .beta2 = hyper->beta2,
                            .rest1 = 1.0f - hyper->beta1,
                            .rest2 = 1.0f - hyper->beta2,
                            .eps = hyper->eps,
                            .grad_scale = scalars->grad_scale,
                            .inverse1 = 1.0f / scalars->correction1,
                            .inverse2 = 1.0f / scalars->correction2,
                            .lr = scalars->lr * s->lr_mul,
                            .decay = s->decay};
}

/* `location` is NULL if copies are rounded to nearest. */
static void segment_thread(struct factors u, const struct update_segment *s,
                           const struct update_location *location, int64_t number)
{
    enum { CHUNK = FLAT_CHUNK / 4 }; /* the four arrays of a chunk stay in cache for the copy */
    float room[CHUNK];
    size_t copy_bytes = s->copy ? dtype_bytes(s->copy_type) : 0;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < s->count; i += CHUNK) {
        int64_t n = min64(CHUNK, s->count - i);
        update_chunk(u, n, as_f32(s->grad, s->grad_type, i, n, room), (float *)s->m + i,
                     (float *)s->v + i, s->param + i);
        if (location)
            cpu_round(location, number, i, n, s->param + i, s->copy_type, (uint16_t *)s->copy + i);
        else if (s->copy)
            cast_chunk((char *)s->copy + (size_t)i * copy_bytes, s->copy_type, s->param + i,
                       DTYPE_F32, n);
    }
}

static void adamw_thread(const struct update *hyper, const struct step_scalars *scalars,
                         const struct update_segment *segments, int segment_count)
{
    for (int i = 0; i < segment_count; i++) {
        const struct update_segment *s = &segments[i];
        bool random = ops_rounds_at_random(hyper, s);
        segment_thread(factors_of(hyper, scalars, s), s, random ? &hyper->locations[i] : NULL,
                       hyper->number);
    }
}

void cpu_update(struct ops *ops, struct stream *stream, const struct update *hyper,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count)
{
    int64_t elements = 0;
    if (hyper->rule != UPDATE_ADAMW) {
        ref_update(ops, stream, hyper, scalars, segments, segment_count);
        return;
    }
    for (int i = 0; i < segment_count; i++) {
        ops_check_segment(hyper, &segments[i]);
        elements += segments[i].count;
    }
    IN_THREADS(cpu_threads(ops, elements), adamw_thread(hyper, scalars, segments, segment_count));
}
