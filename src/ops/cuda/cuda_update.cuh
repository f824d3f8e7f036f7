/* cuda_adamw -- AdamW's arithmetic, four elements at a time, and a tile's path from device memory
 * to registers and back. How segments are cut and which block takes which tile is in cuda_adamw.cu
 * (any GPU) and cuda_adamw_hopper.cu (through shared memory, by the copy engine).
 *
 * Bytes per element: 24 plus the sizes of gradient and copy. An element's bits do not depend on
 * its position, the kernel or the grid: they are those of single operations rounded to nearest,
 * including divisions and the root.
 *
 * The compiler's exact division checks every pair of operands for exponents so extreme that its
 * formula fails, and branches. That serializes the elements and costs 60 instructions per element.
 * Here four elements are checked together, and the same formulas then run interleaved; if one of
 * the four is unusual (zero, tiny, huge, not finite), the compiler's divisions are used.
 *
 *     a / c:  r = 1 / c to half a unit; q = a r; q + (a - c q) r
 *     root:   y = 1 / root to a unit; s = x y; s + (x - s s) y / 2       all but q, s fused
 *
 * For a quotient, only pairs with 2^k A - C M = j, |j| <= 6 (A, C the 24-bit mantissas, M that of
 * a midpoint, k 24 or 25) come so close to a midpoint that the last rounding could go wrong. With
 * r = 1 / c rounded (a correction, known in advance) all 4.6e7 such pairs with |j| <= 8 were
 * tried, and none does. With r from the GPU's approximation and one Newton step, and for the root,
 * the formulas are those of __fdiv_rn and __fsqrt_rn where those do not branch.
 */
#ifndef OPS_CUDA_CUDA_ADAMW_CUH
#define OPS_CUDA_CUDA_ADAMW_CUH
#include "ops/cuda/common/vector.cuh"

/* --- stochastic rounding to 16 bits, as base/dtype.c and base/rng.c define it ---------------- */

/* One block of random words, as in base/rng.c. */
static __device__ inline uint4 random_block(uint64_t key, uint64_t block, uint64_t turn)
{
    uint4 x = {(unsigned)block, (unsigned)(block >> 32), (unsigned)turn, (unsigned)(turn >> 32)};
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * x.x, p1 = (uint64_t)0xcd9e8d57u * x.z;
        x = {(unsigned)(p1 >> 32) ^ x.y ^ k0, (unsigned)p1, (unsigned)(p0 >> 32) ^ x.w ^ k1,
             (unsigned)p0};
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return x;
}

/* The words of elements i .. i + 3 of a segment. They come from one block if the elements are
 * consecutive in the whole tensor and start at a multiple of four; otherwise blocks are generated
 * as needed. */
static __device__ inline void random_four(const kernel_location &place, int64_t number, int64_t i,
                                          unsigned (&words)[4])
{
    int64_t in_run = place.first + i, start = place.start, at[4];
    if (in_run >= place.run) {
        start += in_run / place.run * place.apart;
        in_run %= place.run;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        at[j] = start + in_run;
        if (++in_run == place.run) {
            start += place.apart;
            in_run = 0;
        }
    }
    int64_t block = at[0] / 4, next;
    do {
        uint4 x = random_block(place.key, (uint64_t)block, (uint64_t)number);
        next = -1;
#pragma unroll
        for (int j = 3; j >= 0; j--) {
            unsigned low = at[j] & 1 ? x.y : x.x, high = at[j] & 1 ? x.w : x.z;
            if (at[j] / 4 == block)
                words[j] = at[j] & 2 ? high : low;
            if (at[j] / 4 > block)
                next = at[j] / 4;
        }
        block = next;
    } while (next >= 0);
}

/* f32_to_bf16_random and f32_to_f16_random of base/dtype.c. */
static __device__ inline uint16_t round_bf16(float f, unsigned random)
{
    unsigned bits = __float_as_uint(f), a = bits & 0x7fffffffu;
    unsigned added = a >= 0x7f7f0000u ? 0x7fffu + (bits >> 16 & 1u) : random >> 16;
    return (uint16_t)(a > 0x7f800000u ? bits >> 16 | 0x0040u : (bits + added) >> 16);
}

static __device__ inline uint16_t round_f16(float f, unsigned random)
{
    unsigned bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    unsigned added = a >= 0x477fe000u ? 0xfffu + (a >> 13 & 1u) : random >> 19;
    unsigned h = (a - 0x38000000u + added) >> 13;
    if (a < 0x38800000u)
        h = ((unsigned)mul(__uint_as_float(a), 0x1p44f) + (random >> 12)) >> 20;
    if (a >= 0x477ff000u)
        h = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u;
    return (uint16_t)(sign | h);
}

/* --- the update ----------------------------------------------------------------------------- */

/* Everything an update needs: hyper-parameters, the step's scalars, and one segment's factors. */
struct update {
    kernel_adamw hyper;
    float grad_scale, correction1, correction2;
    float inverse1, inverse2; /* 1 / correction; NaN where correction or eps is unusual */
    float lr, decay;          /* of the segment */
};

/* Everything except the segment's factors. */
static __device__ inline update update_begin(const kernel_adamw &hyper, const kernel_scalars &now)
{
    const float c1 = now.correction1, c2 = now.correction2, none = __uint_as_float(0x7fffffffu);
    bool usual = hyper.eps >= 0 && hyper.eps <= 0x1p20f;
    return {hyper,
            now.grad_scale,
            c1,
            c2,
            usual && c1 >= 0x1p-16f && c1 <= 2 ? __frcp_rn(c1) : none,
            usual && c2 >= 0x1p-16f && c2 <= 2 ? __frcp_rn(c2) : none,
            0,
            0};
}

/* --- arithmetic ----------------------------------------------------------------------------- */

/* 2^-86 <= x <= 2^40, for values that are divided by corrections. Then every intermediate below is
 * a normal number, except (a - c q), which is a multiple of 2^-149 and therefore still exact. */
static __device__ inline bool is_usual(float x)
{
    const uint32_t low = (127 - 86) << 23, high = (127 + 40) << 23;
    return __float_as_uint(x) - low <= high - low;
}

/* a / c, from q = a times the inverse of c. */
static __device__ inline float quotient(float a, float c, float inverse, float q)
{
    return fma_(fma_(q, -c, a), inverse, q);
}

static __device__ inline float usual_quotient(float a, float c)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(c));
    r = fma_(r, fma_(r, -c, 1.0f), r);
    return quotient(a, c, r, mul(a, r));
}

static __device__ inline float usual_root(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    float s = mul(x, y);
    return fma_(fma_(-s, s, x), mul(y, 0.5f), s);
}

/* The whole update of four elements. */
static __device__ inline void step_four(const update &u, const float (&grad)[4], float (&p)[4],
                                        float (&m)[4], float (&v)[4])
{
    const kernel_adamw &h = u.hyper;
    float mean[4], square[4], direction[4]; /* mean, square: m and v over their corrections */
    bool usual = true;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float g = mul(grad[j], u.grad_scale);
        m[j] = add(mul(h.beta1, m[j]), mul(h.rest1, g));
        v[j] = add(mul(h.beta2, v[j]), mul(h.rest2, mul(g, g)));
        mean[j] = mul(m[j], u.inverse1);
        square[j] = mul(v[j], u.inverse2);
        usual &= is_usual(fabsf(mean[j])) & is_usual(square[j]);
    }
    if (usual) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            mean[j] = quotient(m[j], u.correction1, u.inverse1, mean[j]);
            square[j] = quotient(v[j], u.correction2, u.inverse2, square[j]);
            direction[j] = usual_quotient(mean[j], add(usual_root(square[j]), h.eps));
        }
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float root = __fsqrt_rn(__fdiv_rn(v[j], u.correction2));
            direction[j] = __fdiv_rn(__fdiv_rn(m[j], u.correction1), add(root, h.eps));
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        p[j] = sub(p[j], mul(u.lr, add(direction[j], mul(u.decay, p[j]))));
}

/* The parameter rounded to its copy's type. */
template <typename T> static __device__ inline lump<T, 4> copy_four(const float (&p)[4])
{
    lump<T, 4> to;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if constexpr (sizeof(T) == sizeof(double))
            to.v[j] = p[j];
        else
            narrow(p[j], &to.v[j]);
    }
    return to;
}

/* --- from device memory to registers and back ------------------------------------------------- */

template <typename T>
static __device__ inline void store_four(T *copy, const lump<T, 4> &to, int64_t n, bool wide)
{
    if (wide && n >= 4) {
        *reinterpret_cast<lump<T, 4> *>(copy) = to;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < n)
            copy[j] = to.v[j];
}

template <typename T>
static __device__ inline void store_copy(void *copy, int64_t i, const float (&p)[4], int64_t n,
                                         bool wide)
{
    store_four((T *)copy + i, copy_four<T>(p), n, wide);
}

static __device__ inline void store_nearest(const kernel_segment &s, int64_t i, const float (&p)[4],
                                            int64_t n, bool wide)
{
    switch (s.copy_type) {
    case DTYPE_BF16: store_copy<__nv_bfloat16>(s.copy, i, p, n, wide); break;
    case DTYPE_F16: store_copy<__half>(s.copy, i, p, n, wide); break;
    case DTYPE_F32: store_copy<float>(s.copy, i, p, n, wide); break;
    default: store_copy<double>(s.copy, i, p, n, false); break;
    }
}

static __device__ inline void store_random(const kernel_segment &s, const kernel_location &place,
                                           int64_t number, int64_t i, const float (&p)[4],
                                           int64_t n, bool wide)
{
    unsigned words[4];
    lump<uint16_t, 4> to;
    random_four(place, number, i, words);
#pragma unroll
    for (int j = 0; j < 4; j++)
        to.v[j] =
            s.copy_type == DTYPE_BF16 ? round_bf16(p[j], words[j]) : round_f16(p[j], words[j]);
    store_four((uint16_t *)s.copy + i, to, n, wide);
}

/* The first n of four elements, followed by zeros. */
template <typename T>
static __device__ inline lump<T, 4> load_four(const T *from, int64_t n, bool wide)
{
    if (wide && n >= 4)
        return *reinterpret_cast<const lump<T, 4> *>(from);
    lump<T, 4> four;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j < n)
            four.v[j] = from[j];
        else
            narrow(0.0f, &four.v[j]);
    }
    return four;
}

/* Every array of the segment is aligned to 16 bytes. */
static __device__ inline bool is_wide_segment(const kernel_segment &s)
{
    return ((uintptr_t)s.param | (uintptr_t)s.grad | (uintptr_t)s.m | (uintptr_t)s.v |
            (uintptr_t)s.copy) %
               16 ==
           0;
}

/* Updates elements of a segment from `first` on, up to its end: DEPTH groups of four for each of
 * `threads` threads, of which this is number `thread`. G: the gradient's type. RANDOM: 16-bit
 * copies are rounded stochastically, by `place`. RANDOM is a template parameter so that the other
 * instance has neither its registers nor its branches. */
template <typename G, int DEPTH, bool RANDOM>
static __device__ inline void update_tile(const update &u, const kernel_segment &s,
                                          const kernel_location *place, int64_t first, int thread,
                                          int threads)
{
    bool wide = is_wide_segment(s);
    pack<float> p[DEPTH], m[DEPTH], v[DEPTH];
    lump<G, 4> g[DEPTH];
    first += thread * 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + k * threads * 4, n = s.count - i;
        p[k] = load_some(s.param + i, n, wide);
        g[k] = load_four((const G *)s.grad + i, n, wide);
        m[k] = load_some((const float *)s.m + i, n, wide);
        v[k] = load_some((const float *)s.v + i, n, wide);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + k * threads * 4, n = s.count - i;
        float fp[4], fm[4], fv[4], fg[4];
        widen(p[k], fp);
        widen(m[k], fm);
        widen(v[k], fv);
#pragma unroll
        for (int j = 0; j < 4; j++)
            fg[j] = widen(g[k].v[j]);
        step_four(u, fg, fp, fm, fv);
        store_some(s.param + i, narrow<float>(fp), n, wide);
        store_some((float *)s.m + i, narrow<float>(fm), n, wide);
        store_some((float *)s.v + i, narrow<float>(fv), n, wide);
        if (!s.copy)
            continue;
        if (RANDOM && (s.copy_type == DTYPE_BF16 || s.copy_type == DTYPE_F16))
            store_random(s, *place, u.hyper.update, i, fp, n, wide);
        else
            store_nearest(s, i, fp, n, wide);
    }
}

template <int DEPTH, bool RANDOM>
static __device__ inline void update_tile(const update &u, const kernel_segment &s,
                                          const kernel_location *place, int64_t first, int thread,
                                          int threads)
{
    switch (s.grad_type) {
    case DTYPE_BF16:
        update_tile<__nv_bfloat16, DEPTH, RANDOM>(u, s, place, first, thread, threads);
        break;
    case DTYPE_F16: update_tile<__half, DEPTH, RANDOM>(u, s, place, first, thread, threads); break;
    default: update_tile<float, DEPTH, RANDOM>(u, s, place, first, thread, threads); break;
    }
}

#endif
