/* vector -- shared by all kernels: 16-byte accesses to tensors, float arithmetic that the compiler
 * does not change, GELU, sums over warps and blocks, and the dispatch by type.
 *
 * Tensors are float, bf16 or f16; a pack is 16 bytes of one. All arithmetic is in float, rounded
 * to the type once. mul, add, sub and fma_ are single operations that the compiler may not fuse,
 * so that two kernels with the same expression give the same bits.
 */
#ifndef OPS_CUDA_VECTOR_CUH
#define OPS_CUDA_VECTOR_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "ops/cuda/common/powers.cuh"
#include "ops/cuda/kernels.h"

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

template <typename T> constexpr int PACK = 16 / (int)sizeof(T); /* elements of a pack */

/* --- single values -------------------------------------------------------------------------- */

__device__ inline float widen(float x)
{
    return x;
}
__device__ inline float widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
__device__ inline float widen(__half x)
{
    return __half2float(x);
}

__device__ inline void narrow(float x, float *to)
{
    *to = x;
}
__device__ inline void narrow(float x, __nv_bfloat16 *to)
{
    *to = __float2bfloat16_rn(x);
}
__device__ inline void narrow(float x, __half *to)
{
    *to = __float2half_rn(x);
}

__device__ inline float mul(float a, float b)
{
    return __fmul_rn(a, b);
}
__device__ inline float add(float a, float b)
{
    return __fadd_rn(a, b);
}
__device__ inline float sub(float a, float b)
{
    return __fadd_rn(a, -b);
}
__device__ inline float fma_(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

/* e^x: accurate to the last places for float, to 1e-6 for types that are rounded to 2^-9 anyway */
template <typename T> __device__ inline float exponential(float x)
{
    if constexpr (sizeof(T) == sizeof(float))
        return expf(x);
    return power_of_two(mul(x, 1.44269504088896340736f));
}

/* GELU (tanh form) and the terms of its derivative */
#define GELU_CUBE 0.044715f
#define GELU_RATE 0.79788456080286535588f /* sqrt(2 / pi) */

/* 0.5 (1 + tanh u) = 1 / (1 + e), e = exp(-2u), u = sqrt(2/pi) (x + 0.044715 x^3): free of
 * cancellation. 16-bit types take few instructions, because epilogues of products compute this:
 * e is 2^(x (a + b x^2)). */
template <typename T> static __device__ inline float gelu_exp(float x)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        float cubic = fma_(mul(mul(GELU_CUBE, x), x), x, x);
        return expf(fminf(mul(-2 * GELU_RATE, cubic), 80.0f));
    } else {
        const float log2_e = 1.44269504088896340736f, a = -2 * GELU_RATE * log2_e;
        return power_of_two(fminf(mul(x, fma_(mul(x, x), a * GELU_CUBE, a)), 115.0f));
    }
}

/* 1 / (1 + e) */
template <typename T> static __device__ inline float gelu_part(float e)
{
    if constexpr (sizeof(T) == sizeof(float))
        return __fdividef(1.0f, add(1.0f, e));
    else
        return reciprocal(add(1.0f, e));
}

template <typename T> static __device__ inline float gelu_value(float x)
{
    return mul(x, gelu_part<T>(gelu_exp<T>(x)));
}

/* dy times the slope, with e and s = gelu_part(e): dy s (1 + x (1 - s) 2 u'), where 1 - s = e s. */
static __device__ inline float gelu_slope_of_parts(float x, float dy, float e, float s)
{
    float rise = fma_(mul(x, x), 6 * GELU_RATE * GELU_CUBE, 2 * GELU_RATE); /* 2 u' */
    return mul(mul(dy, s), fma_(mul(x, mul(e, s)), rise, 1.0f));
}

template <typename T> static __device__ inline float gelu_slope(float x, float dy)
{
    float e = gelu_exp<T>(x);
    return gelu_slope_of_parts(x, dy, e, gelu_part<T>(e));
}

/* SwiGLU: gate s up, where s = 1 / (1 + exp(-gate)). All that compute it, epilogues of products,
 * too, take the same operations on gate and up as they are stored, so that their bits are equal. */

template <typename T> struct silu_parts {
    float s, rest; /* rest = 1 - s */
};

template <typename T> static __device__ inline silu_parts<T> silu_parts_of(float gate)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        float e = expf(fminf(-gate, 80.0f)), s = __fdividef(1.0f, add(1.0f, e));
        return {s, mul(e, s)};
    } else { /* 1 - s loses digits only where s is near 1, and it is added to s */
        const float log2_e = 1.44269504088896340736f;
        float s = reciprocal(add(1.0f, power_of_two(mul(gate, -log2_e))));
        return {s, sub(1.0f, s)};
    }
}

template <typename T>
static __device__ inline float swiglu_value(float gate, float up, silu_parts<T> p)
{
    return mul(mul(gate, p.s), up);
}

/* dup = dy gate s; dgate = dy up s (1 + gate (1 - s)) */
template <typename T>
static __device__ inline float swiglu_up_slope(float gate, float dy, silu_parts<T> p)
{
    return mul(dy, mul(gate, p.s));
}
template <typename T>
static __device__ inline float swiglu_gate_slope(float gate, float up, float dy, silu_parts<T> p)
{
    return mul(mul(dy, up), fma_(mul(gate, p.s), p.rest, p.s));
}

/* --- packs ---------------------------------------------------------------------------------- */

/* Four words, because the compiler would keep each 16-bit half in a register of its own. */
template <typename T> struct pack {
    uint32_t word[4];
};

/* `from` is aligned to 16 bytes. */
template <typename T> __device__ inline pack<T> load(const T *from)
{
    uint4 bits = *reinterpret_cast<const uint4 *>(from);
    return {{bits.x, bits.y, bits.z, bits.w}};
}

template <typename T> __device__ inline void store(T *to, const pack<T> &p)
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(p.word[0], p.word[1], p.word[2], p.word[3]);
}

/* The first n elements, followed by zeros; `wide`: `from` is aligned to 16 bytes. */
template <typename T> __device__ inline pack<T> load_some(const T *from, int64_t n, bool wide)
{
    if (wide && n >= PACK<T>)
        return load(from);
    pack<T> p;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == sizeof(float)) {
            p.word[i] = i < n ? reinterpret_cast<const uint32_t *>(from)[i] : 0;
        } else {
            const uint16_t *halves = reinterpret_cast<const uint16_t *>(from);
            uint32_t low = 2 * i < n ? halves[2 * i] : 0;
            uint32_t high = 2 * i + 1 < n ? halves[2 * i + 1] : 0;
            p.word[i] = low | high << 16;
        }
    }
    return p;
}

template <typename T>
__device__ inline void store_some(T *to, const pack<T> &p, int64_t n, bool wide)
{
    if (wide && n >= PACK<T>) {
        store(to, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < PACK<T>; i++) {
        if (i >= n)
            continue;
        if constexpr (sizeof(T) == sizeof(float))
            reinterpret_cast<uint32_t *>(to)[i] = p.word[i];
        else
            reinterpret_cast<uint16_t *>(to)[i] = (uint16_t)(p.word[i / 2] >> 16 * (i % 2));
    }
}

/* N values of T, read and written in one access. */
template <typename T, int N> struct alignas(sizeof(T) * N) lump {
    T v[N];
};

/* Two 16-bit values, the first in the low half. */
__device__ inline float2 widen_word(uint32_t word, __nv_bfloat16)
{
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ inline float2 widen_word(uint32_t word, __half)
{
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
}
__device__ inline uint32_t narrow_word(float low, float high, __nv_bfloat16)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
__device__ inline uint32_t narrow_word(float low, float high, __half)
{
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

template <typename T> __device__ inline void widen(const pack<T> &p, float (&f)[PACK<T>])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == sizeof(float)) {
            f[i] = __uint_as_float(p.word[i]);
        } else {
            float2 both = widen_word(p.word[i], T());
            f[2 * i] = both.x;
            f[2 * i + 1] = both.y;
        }
    }
}

template <typename T> __device__ inline pack<T> narrow(const float (&f)[PACK<T>])
{
    pack<T> p;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == sizeof(float))
            p.word[i] = __float_as_uint(f[i]);
        else
            p.word[i] = narrow_word(f[2 * i], f[2 * i + 1], T());
    }
    return p;
}

/* Hides the value of p from the compiler, so that it widens p again at the next use instead of
 * keeping twice the registers. */
template <typename T> __device__ inline void keep_packed(pack<T> &p)
{
    asm volatile("" : "+r"(p.word[0]), "+r"(p.word[1]), "+r"(p.word[2]), "+r"(p.word[3]));
}

/* --- sums ----------------------------------------------------------------------------------- */

/* Over the warp, the same bits in every lane. */
template <typename V> __device__ inline V warp_sum(V value)
{
#pragma unroll
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, apart);
    return value;
}

/* Over a block of THREADS, the same bits in every thread; over the warp if THREADS is 32. `room`
 * is shared memory for THREADS / 32 values; it is free again when the call returns. */
template <int THREADS, typename V> __device__ inline V group_sum(V value, V *room)
{
    value = warp_sum(value);
    if constexpr (THREADS > WARP) {
        if (threadIdx.x % WARP == 0)
            room[threadIdx.x / WARP] = value;
        __syncthreads();
        value = room[0];
#pragma unroll
        for (int w = 1; w < THREADS / WARP; w++)
            value += room[w];
        __syncthreads();
    }
    return value;
}

/* --- launching ------------------------------------------------------------------------------ */

static inline int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline bool is_wide(const void *address) /* true for NULL */
{
    return (uintptr_t)address % 16 == 0;
}

/* Threads of a block that loops over `packs` packs of a row. */
static inline unsigned row_threads(int64_t packs)
{
    return packs >= 256 ? 256u : (unsigned)(div_up(packs, WARP) * WARP);
}

/* f(T()) for the compute type. */
template <typename F> static inline cudaError_t with_type(enum dtype type, F f)
{
    switch (type) {
    case DTYPE_F32: return f(float());
    case DTYPE_BF16: return f(__nv_bfloat16());
    case DTYPE_F16: return f(__half());
    default: return cudaErrorInvalidValue;
    }
}

#endif
