/* cuda_update -- the arithmetic of the update rules, four elements at a time, and a tile's path from
 * device memory to registers and back. How segments are cut and which block takes which tile is in
 * cuda_update.cu (any GPU) and cuda_adamw_hopper.cu (AdamW through shared memory, by the copy
 * engine).
 *
 * Bytes per element of AdamW: 24 plus the sizes of gradient and copy; of adamw8: 12 and 1/16 plus
 * these. An element's bits do not depend on its position, the kernel or the grid: they are those of
 * single operations rounded to nearest, including divisions and the root.
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
#ifndef OPS_CUDA_CUDA_UPDATE_CUH
#define OPS_CUDA_CUDA_UPDATE_CUH
#include "ops/cuda/common/vector.cuh"
#include "ops/cuda/cuda_code8.h"

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
    if (place.lead > 1) { /* the first run is so many times as long */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t local = place.first + i + j;
            if (local < place.lead * place.run)
                at[j] = place.lead * place.start + local;
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
    kernel_update hyper;
    float grad_scale, correction1, correction2;
    float inverse1, inverse2; /* 1 / correction; NaN where correction or eps is unusual */
    float lr, decay;          /* of the segment */
};

/* Everything except the segment's factors. */
static __device__ inline update update_begin(const kernel_update &hyper, const kernel_scalars &now)
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

/* The whole update of four elements. True: they are usual, so v is at least 2^-102 and at most 2^41,
 * and usual_root is right for it, too. */
static __device__ inline bool step_four(const update &u, const float (&grad)[4], float (&p)[4],
                                        float (&m)[4], float (&v)[4])
{
    const kernel_update &h = u.hyper;
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
    return usual;
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

/* Four elements of a segment's arrays, from index i on; those from `low` to `end` - 1 of the four
 * exist. */
struct place {
    int64_t i, end;
    int low;
    bool wide; /* the four are aligned to an access */

    __device__ inline bool is_whole() const
    {
        return wide && low <= 0 && end >= 4;
    }
};

/* The bits of four elements of T. */
template <typename T> using words = lump<uint32_t, (int)sizeof(T)>;

/* Zeros for those that do not exist. */
template <typename T> static __device__ inline lump<T, 4> load_four(const T *from, const place &at)
{
    if (at.is_whole())
        return *reinterpret_cast<const lump<T, 4> *>(from + at.i);
    lump<T, 4> four = {};
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j >= at.low && j < at.end)
            four.v[j] = from[at.i + j];
    return four;
}

/* The same for elements of less than 32 bits, which the compiler would keep in a register each. */
template <typename T> static __device__ inline words<T> load_words(const T *from, const place &at)
{
    if (at.is_whole())
        return *reinterpret_cast<const words<T> *>(from + at.i);
    lump<T, 4> four = load_four(from, at);
    words<T> bits;
    memcpy(&bits, &four, sizeof bits);
    return bits;
}

/* In one access; the compiler would split it. */
template <int N> static __device__ inline void put(void *to, const lump<uint32_t, N> &bits)
{
    const size_t at = __cvta_generic_to_global(to);
    if constexpr (N == 4)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(bits.v[0]),
                     "r"(bits.v[1]), "r"(bits.v[2]), "r"(bits.v[3])
                     : "memory");
    else if constexpr (N == 2)
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(bits.v[0]), "r"(bits.v[1])
                     : "memory");
    else
        asm volatile("st.global.b32 [%0], %1;" ::"l"(at), "r"(bits.v[0]) : "memory");
}

template <typename T>
static __device__ inline void store_words(T *to, const words<T> &bits, const place &at)
{
    if constexpr (sizeof bits <= 16)
        if (at.is_whole()) {
            put(to + at.i, bits);
            return;
        }
    T four[4];
    memcpy(four, &bits, sizeof bits);
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j >= at.low && j < at.end)
            to[at.i + j] = four[j];
}

template <typename T>
static __device__ inline void store_four(T *to, const lump<T, 4> &four, const place &at)
{
    words<T> bits;
    memcpy(&bits, &four, sizeof bits);
    store_words(to, bits, at);
}

static __device__ inline void widen_words(const words<float> &bits, float (&f)[4], float)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        f[j] = __uint_as_float(bits.v[j]);
}

template <typename T>
static __device__ inline void widen_words(const words<T> &bits, float (&f)[4], T)
{
    float2 low = widen_word(bits.v[0], T()), high = widen_word(bits.v[1], T());
    f[0] = low.x;
    f[1] = low.y;
    f[2] = high.x;
    f[3] = high.y;
}

/* Rounded to T, of 16 bits. */
template <typename T> static __device__ inline words<T> halves_of(const float (&p)[4])
{
    return {narrow_word(p[0], p[1], T()), narrow_word(p[2], p[3], T())};
}

static __device__ inline void store_nearest(const kernel_segment &s, const place &at,
                                            const float (&p)[4])
{
    switch (s.copy_type) {
    case DTYPE_BF16: store_words((__nv_bfloat16 *)s.copy, halves_of<__nv_bfloat16>(p), at); break;
    case DTYPE_F16: store_words((__half *)s.copy, halves_of<__half>(p), at); break;
    case DTYPE_F32: store_four((float *)s.copy, copy_four<float>(p), at); break;
    default: store_four((double *)s.copy, copy_four<double>(p), at); break;
    }
}

static __device__ inline void store_random(const kernel_segment &s, const kernel_location &location,
                                           int64_t number, const place &at, const float (&p)[4])
{
    unsigned words[4];
    lump<uint16_t, 4> to;
    random_four(location, number, at.i, words);
#pragma unroll
    for (int j = 0; j < 4; j++)
        to.v[j] =
            s.copy_type == DTYPE_BF16 ? round_bf16(p[j], words[j]) : round_f16(p[j], words[j]);
    store_four((uint16_t *)s.copy, to, at);
}

/* Every array of the segment is aligned to 16 bytes. */
static __device__ inline bool is_wide_segment(const kernel_segment &s)
{
    return ((uintptr_t)s.param | (uintptr_t)s.grad | (uintptr_t)s.m | (uintptr_t)s.v |
            (uintptr_t)s.copy) %
               16 ==
           0;
}

/* --- the rules ---
 *
 * Each holds the state of four elements. step turns their gradients into new parameters, or into
 * what is stored as the copy. With BLOCKS, the elements of a block share scales, and the block lies
 * in neighbouring lanes: settle finds the scales, and all lanes call it. skip: elements that a segment's tiles have before its first. */

struct flat_rule {
    static constexpr bool BLOCKS = false, PARAM = true; /* PARAM: it reads and writes params */

    static __device__ inline int skip(const kernel_segment &)
    {
        return 0;
    }
    static __device__ inline bool is_wide(const kernel_segment &s)
    {
        return is_wide_segment(s);
    }
};

struct adamw_rule : flat_rule {
    lump<float, 4> m, v;

    __device__ inline void load(const kernel_segment &s, const place &at)
    {
        m = load_four((const float *)s.m, at);
        v = load_four((const float *)s.v, at);
    }
    __device__ inline void step(const update &u, const kernel_segment &, const float (&grad)[4],
                                float (&p)[4])
    {
        step_four(u, grad, p, m.v, v.v);
    }
    __device__ inline void store(const update &, const kernel_segment &s, const place &at) const
    {
        store_four((float *)s.m, m, at);
        store_four((float *)s.v, v, at);
    }
};

/* With or without momentum. */
struct sgd_rule : flat_rule {
    lump<float, 4> m;

    __device__ inline void load(const kernel_segment &s, const place &at)
    {
        m = s.m ? load_four((const float *)s.m, at) : lump<float, 4>{};
    }
    __device__ inline void step(const update &u, const kernel_segment &s, const float (&grad)[4],
                                float (&p)[4])
    {
        const float beta1 = u.hyper.beta1;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float g = add(mul(grad[j], u.grad_scale), mul(u.decay, p[j]));
            if (s.m) {
                m.v[j] = add(mul(beta1, m.v[j]), g);
                g = u.hyper.nesterov ? add(g, mul(beta1, m.v[j])) : m.v[j];
            }
            p[j] = sub(p[j], mul(u.lr, g));
        }
    }
    __device__ inline void store(const update &, const kernel_segment &s, const place &at) const
    {
        if (s.m)
            store_four((float *)s.m, m, at);
    }
};

/* The direction takes the parameter's place. */
struct muon_rule : flat_rule {
    static constexpr bool PARAM = false;
    lump<float, 4> m;

    __device__ inline void load(const kernel_segment &s, const place &at)
    {
        m = load_four((const float *)s.m, at);
    }
    __device__ inline void step(const update &u, const kernel_segment &, const float (&grad)[4],
                                float (&direction)[4])
    {
        const kernel_update &h = u.hyper;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float g = mul(h.rest1, mul(grad[j], u.grad_scale));
            m.v[j] = add(mul(h.beta1, m.v[j]), g);
            direction[j] = h.nesterov ? add(mul(h.beta1, m.v[j]), g) : m.v[j];
        }
    }
    __device__ inline void store(const update &, const kernel_segment &s, const place &at) const
    {
        store_four((float *)s.m, m, at);
    }
};

struct apply_rule : flat_rule {
    __device__ inline void load(const kernel_segment &, const place &) {}
    __device__ inline void step(const update &u, const kernel_segment &s, const float (&grad)[4],
                                float (&p)[4])
    {
#pragma unroll
        for (int j = 0; j < 4; j++)
            p[j] = sub(p[j], mul(u.lr, add(mul(s.scale, grad[j]), mul(u.decay, p[j]))));
    }
    __device__ inline void store(const update &, const kernel_segment &, const place &) const {}
};

/* Sixteen lanes hold one block of 64 elements. Tiles start where a block starts, so the first tile
 * of a segment has `skip` elements that belong to somebody else, and what is aligned there is
 * aligned everywhere. */
struct adamw8_rule {
    static constexpr bool BLOCKS = true, PARAM = true;
    enum { BLOCK = 64, LANES = BLOCK / 4 };
    words<uint8_t> m_codes, v_codes;
    uint32_t m_scale, v_scale;
    float m[4], root[4];

    static __device__ inline int skip(const kernel_segment &s)
    {
        return s.skip;
    }

    static __device__ inline bool is_wide(const kernel_segment &s)
    {
        uintptr_t skip = (uintptr_t)s.skip,
                  codes = ((uintptr_t)s.m - skip) | ((uintptr_t)s.v - skip);
        uintptr_t grad = (uintptr_t)s.grad - skip * (s.grad_type == DTYPE_F32 ? 4 : 2);
        uintptr_t copy = (uintptr_t)s.copy - skip * (s.copy_type == DTYPE_F32 ? 4 : 2);
        uintptr_t floats = ((uintptr_t)s.param - skip * 4) | grad | (s.copy ? copy : 0);
        return floats % 16 == 0 && codes % 4 == 0;
    }

    /* The block of the four elements in the segment's tables. */
    static __device__ inline int64_t block_of(const kernel_segment &s, const place &at)
    {
        return (at.i + s.skip) >> 6;
    }

    /* Whether the segment has elements of the block, not necessarily these four. */
    static __device__ inline bool has_block(const kernel_segment &s, const place &at)
    {
        return at.is_whole() || block_of(s, at) * BLOCK < s.count + s.skip;
    }

    __device__ inline void load(const kernel_segment &s, const place &at)
    {
        bool here = has_block(s, at);
        m_codes = load_words((const uint8_t *)s.m, at);
        v_codes = load_words((const uint8_t *)s.v, at);
        m_scale = here ? s.m_scale[block_of(s, at)] : 0;
        v_scale = here ? s.v_scale[block_of(s, at)] : 0;
    }

    /* m and v of the codes. */
    __device__ inline void decode(float (&v)[4])
    {
        const float m_factor = code8_factor(m_scale, CODE8_TOP_M);
        const float v_factor = code8_factor(v_scale, CODE8_TOP_V);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            /* code j in the first byte; the shift copies the sign, of which the mask leaves one */
            unsigned byte = (unsigned)j << 12 | 0x444u;
            int m_code = (int)__byte_perm(m_codes.v[0], 0, byte) >> 5;
            m[j] = mul(__uint_as_float((unsigned)m_code & 0x83f80000u), m_factor);
            root[j] = mul(__uint_as_float(__byte_perm(v_codes.v[0], 0, byte) >> 5), v_factor);
        }
        if (code8_is_large(m_scale, CODE8_TOP_M) || code8_is_large(v_scale, CODE8_TOP_V)) {
            const float m_second = code8_second_factor(m_scale, CODE8_TOP_M);
            const float v_second = code8_second_factor(v_scale, CODE8_TOP_V);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                m[j] = mul(m[j], m_second);
                root[j] = mul(root[j], v_second);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = mul(root[j], root[j]);
    }

    __device__ inline void step(const update &u, const kernel_segment &, const float (&grad)[4],
                                float (&p)[4])
    {
        float v[4];
        decode(v);
        bool usual = step_four(u, grad, p, m, v);
        if (usual) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                root[j] = usual_root(v[j]);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                root[j] = __fsqrt_rn(v[j]);
        }
    }

    /* The new scales. Half of the lanes find that of m and half that of v, and then they swap. A
     * root has no sign. */
    __device__ inline void settle()
    {
        const bool for_v = threadIdx.x & (LANES / 2);
        uint32_t most_m = 0, most_root = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            most_m = max(most_m, __float_as_uint(m[j]) & 0x7fffffffu);
            most_root = max(most_root, __float_as_uint(root[j]));
        }
        uint32_t other = __shfl_xor_sync(ALL_LANES, for_v ? most_m : most_root, LANES / 2);
        uint32_t most = max(for_v ? most_root : most_m, other);
#pragma unroll
        for (int apart = LANES / 4; apart > 0; apart /= 2)
            most = max(most, __shfl_xor_sync(ALL_LANES, most, apart));
        uint32_t scale = code8_scale_of(most);
        other = __shfl_xor_sync(ALL_LANES, scale, LANES / 2);
        m_scale = for_v ? other : scale;
        v_scale = for_v ? scale : other;
    }

    /* Codes of elements that are not all usual. */
    __device__ inline void encode_any(const kernel_segment &s, int64_t number, const place &at,
                                      uint32_t (&a)[4], uint32_t (&b)[4]) const
    {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t magnitude = code8_magnitude(__float_as_uint(root[j]));
            int32_t random = code8_random(s.key, (uint64_t)(s.first + at.i + j), (uint64_t)number);
            a[j] = code8_encode(code8_magnitude(__float_as_uint(m[j])), (uint8_t)m_scale,
                                CODE8_TOP_M, -1);
            b[j] = code8_encode(magnitude, (uint8_t)v_scale, CODE8_TOP_V, random);
            if (b[j] == 0 && magnitude > 0)
                b[j] = 1;
        }
    }

    __device__ inline void encode(const kernel_segment &s, int64_t number, const place &at,
                                  uint32_t (&a)[4], uint32_t (&b)[4]) const
    {
        const uint32_t scale = m_scale > 0 ? m_scale : CODE8_TOP_M + 1u;
        const uint32_t least = code8_least(scale, CODE8_TOP_M);
        const uint64_t from = (uint64_t)(s.first + at.i);
        const uint32_t seed = code8_seed(s.key, from, (uint64_t)number);
        uint32_t least_root = 0x7fffffffu;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t bits = __float_as_uint(root[j]);
            least_root = min(least_root, bits);
            a[j] = code8_nearest(m[j], scale, least, CODE8_TOP_M);
            b[j] = code8_at_random(bits, v_scale, CODE8_TOP_V,
                                   code8_mix(seed + (uint32_t)j * CODE8_NEXT));
        }
        /* the last: the four elements do not have the same high 32 bits */
        if (least_root < code8_least(v_scale, CODE8_TOP_V) || !code8_is_usual(scale, CODE8_TOP_M) ||
            (uint32_t)from > 0xfffffffcu)
            encode_any(s, number, at, a, b);
    }

    /* The bytes number `which` of four words, 0 or 3, as one word. */
    template <int which>
    static __device__ inline uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
    {
        constexpr unsigned pair = which | (which + 4) << 4;
        return __byte_perm(__byte_perm(a, b, pair), __byte_perm(c, d, pair), 0x5410);
    }

    __device__ inline void store(const update &u, const kernel_segment &s, const place &at) const
    {
        uint32_t a[4], b[4];
        encode(s, u.hyper.number, at, a, b);
        uint32_t signs = bytes_of<3>(__float_as_uint(m[0]), __float_as_uint(m[1]),
                                     __float_as_uint(m[2]), __float_as_uint(m[3]));
        store_words((uint8_t *)s.m, {code8_signed(bytes_of<0>(a[0], a[1], a[2], a[3]), signs)}, at);
        store_words((uint8_t *)s.v, {bytes_of<0>(b[0], b[1], b[2], b[3])}, at);
        if (threadIdx.x % LANES == 0 && has_block(s, at)) {
            s.m_scale[block_of(s, at)] = (uint8_t)m_scale;
            s.v_scale[block_of(s, at)] = (uint8_t)v_scale;
        }
    }
};

/* --- tiles ------------------------------------------------------------------------------------ */

/* Updates elements of a segment from `first` on, up to its end: DEPTH groups of four for each of
 * `threads` threads, of which this is number `thread`. G: the gradient's type. RANDOM: 16-bit
 * copies are rounded stochastically, by `location`. WHOLE: all elements exist and are aligned. Both
 * are template parameters so that the other instances have neither their registers nor their
 * branches. */
template <typename RULE, typename G, int DEPTH, bool RANDOM, bool WHOLE>
static __device__ inline void update_tile_of(const update &u, const kernel_segment &s,
                                             const kernel_location *location, int64_t first,
                                             int thread, int threads)
{
    const bool wide = WHOLE || RULE::is_wide(s);
    const int64_t start = first + thread * 4 - RULE::skip(s);
    RULE rule[DEPTH];
    lump<float, 4> p[DEPTH];
    words<G> g[DEPTH];
    auto place_of = [&](int k) {
        int64_t i = start + k * threads * 4;
        return WHOLE ? place{i, 4, 0, true}
                     : place{i, s.count - i, RULE::BLOCKS && i < 0 ? (int)-i : 0, wide};
    };
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        const place at = place_of(k);
        if constexpr (RULE::PARAM)
            p[k] = load_four((const float *)s.param, at);
        g[k] = load_words((const G *)s.grad, at);
        rule[k].load(s, at);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        const place at = place_of(k);
        float grad[4];
        widen_words(g[k], grad, G());
        rule[k].step(u, s, grad, p[k].v);
        if constexpr (RULE::PARAM)
            store_four(s.param, p[k], at);
        if constexpr (!RULE::BLOCKS)
            rule[k].store(u, s, at);
        if (!s.copy)
            continue;
        if (RANDOM && (s.copy_type == DTYPE_BF16 || s.copy_type == DTYPE_F16))
            store_random(s, *location, u.hyper.number, at, p[k].v);
        else
            store_nearest(s, at, p[k].v);
    }
    if constexpr (RULE::BLOCKS) {
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            rule[k].settle();
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            rule[k].store(u, s, place_of(k));
    }
}

template <typename RULE, typename G, int DEPTH, bool RANDOM>
static __device__ inline void update_tile_in(const update &u, const kernel_segment &s,
                                             const kernel_location *location, int64_t first,
                                             int thread, int threads)
{
    const int64_t start = first - RULE::skip(s);
    if (RULE::is_wide(s) && start >= 0 && start + DEPTH * threads * 4 <= s.count)
        update_tile_of<RULE, G, DEPTH, RANDOM, true>(u, s, location, first, thread, threads);
    else
        update_tile_of<RULE, G, DEPTH, RANDOM, false>(u, s, location, first, thread, threads);
}

template <typename RULE, int DEPTH, bool RANDOM>
static __device__ inline void update_tile(const update &u, const kernel_segment &s,
                                          const kernel_location *location, int64_t first,
                                          int thread, int threads)
{
    switch (s.grad_type) {
    case DTYPE_BF16:
        update_tile_in<RULE, __nv_bfloat16, DEPTH, RANDOM>(u, s, location, first, thread, threads);
        break;
    case DTYPE_F16:
        update_tile_in<RULE, __half, DEPTH, RANDOM>(u, s, location, first, thread, threads);
        break;
    default:
        update_tile_in<RULE, float, DEPTH, RANDOM>(u, s, location, first, thread, threads);
        break;
    }
}

#endif
