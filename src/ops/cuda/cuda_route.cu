/* cuda_route -- routed layers (SARS), forward and backward.
 *
 * The backward pass is bound by memory: a row must be read once, and enough rows must be on their
 * way. So a warp, or for wide rows a block, takes one group of neurons of a row, keeps its dout,
 * logits and pre in registers as they are in memory, and widens them when it needs them. It loops
 * over rows and keeps the sums of its columns in registers too. These go to scratch, one partial
 * sum per block, and are added in order (cuda_columns.cu). Before a run of rows, the block computes
 * the norms of x. The number of blocks, and the rows of each, depend on the shape only; so does the
 * use of 16-byte accesses, since buffers are aligned to 64 bytes (device.h).
 *
 * Bytes, of R K C elements: route 4 tensors, route_backward 5 and x.
 */
#include <limits.h>
#include "device/gpu_facts.h"
#include "ops/cuda/common/follow.cuh"
#include "ops/cuda/common/vector.cuh"

enum { THREADS = 256, SUMS = 3 /* goodness, active, dcost */ };
#define EPS             1e-9f
#define STANDARDISE_EPS 1e-5f

template <typename T> static __device__ inline float silu(float x)
{
    return __fdividef(x, add(1.0f, exponential<T>(fminf(-x, 80.0f))));
}

/* As exact as exponential<T>. */
template <typename T> static __device__ inline float logarithm(float x)
{
    if constexpr (sizeof(T) == sizeof(float))
        return logf(x);
    return mul(logarithm_of_two(x), 0.69314718055994530942f);
}

/* --- forward: one block per row --------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    route(int64_t width, float scale, bool wide, const T *pre, const T *match, const T *cost,
          T *logits, T *out)
{
    constexpr int N = PACK<T>;
    int64_t row = (int64_t)blockIdx.x * width;
#pragma unroll 2
    for (int64_t c = (int64_t)threadIdx.x * N; c < width; c += (int64_t)blockDim.x * N) {
        float x[N], l[N], f[N];
        widen(load_some(pre + row + c, width - c, wide), x);
        widen(load_some(match + row + c, width - c, wide), l);
        widen(load_some(cost + c, width - c, wide), f);
#pragma unroll
        for (int i = 0; i < N; i++)
            l[i] = fma_(scale, l[i], -f[i]);
        pack<T> rounded = narrow<T>(l);
        widen(rounded, l);
#pragma unroll
        for (int i = 0; i < N; i++)
            f[i] = l[i] > 0 ? silu<T>(x[i]) : 0.0f;
        store_some(logits + row + c, rounded, width - c, wide);
        store_some(out + row + c, narrow<T>(f), width - c, wide);
    }
}

cudaError_t launch_route(cudaStream_t stream, enum dtype type, int64_t rows, int64_t width,
                         float scale, const void *pre, const void *match, const void *cost,
                         void *logits, void *out)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        bool wide = width % PACK<T> == 0 && is_wide(pre) && is_wide(match) && is_wide(cost) &&
                    is_wide(logits) && is_wide(out);
        unsigned blocks = (unsigned)rows, threads = row_threads(div_up(width, PACK<T>));
        route<T><<<blocks, threads, 0, stream>>>(width, scale, wide, (const T *)pre,
                                                 (const T *)match, (const T *)cost, (T *)logits,
                                                 (T *)out);
        return cudaGetLastError();
    });
}

/* --- words: 4 bytes of T ---------------------------------------------------------------------- */

template <typename T> constexpr int PER_WORD = 4 / (int)sizeof(T);

/* The CUDA type of two 16-bit values */
template <typename T> struct pair_type {
    using type = __nv_bfloat162;
};
template <> struct pair_type<__half> {
    using type = __half2;
};

template <typename T> static __device__ inline auto as_pair(uint32_t word)
{
    typename pair_type<T>::type pair;
    memcpy(&pair, &word, sizeof pair);
    return pair;
}

/* Element i of an array of words; i is a constant after unrolling. */
template <typename T, int W> static __device__ inline float value(const uint32_t (&words)[W], int i)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        return __uint_as_float(words[i]);
    } else {
        float2 both = widen_word(words[i / 2], T());
        return i % 2 ? both.y : both.x;
    }
}

/* The larger sizes, element by element. `most` has no signs. */
template <typename T> static __device__ inline uint32_t larger(uint32_t most, uint32_t word)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        return __float_as_uint(fmaxf(__uint_as_float(most), fabsf(__uint_as_float(word))));
    } else {
        auto pair = __hmax2(as_pair<T>(most), __habs2(as_pair<T>(word)));
        memcpy(&most, &pair, sizeof most);
        return most;
    }
}

/* All bits of an element are set where it is above 0. */
template <typename T> static __device__ inline uint32_t positive(uint32_t word)
{
    if constexpr (sizeof(T) == sizeof(float))
        return __uint_as_float(word) > 0 ? ~0u : 0;
    else
        return __hgt2_mask(as_pair<T>(word), as_pair<T>(0));
}

/* --- backward: one group of neurons of a row -------------------------------------------------- */

enum {
    WARPS = 4, /* of a block whose warps take a row each */
    JOINS = 6,
    NORMS = 64,        /* rows of which a block computes the norms together */
    AT_ONCE = 4,       /* and a warp */
    COUNT_MOST = 65535 /* what a counter of active rows holds in 16 bits */
};

template <typename T> struct route_args {
    int64_t rows, in;
    int width;
    bool wide_x, minus, standardise;
    float scale, weight;
    const T *x, *dout, *pre, *logits;
    T *dpre, *dmatch;
    float *partials; /* (blocks, K (SUMS C + 1)) */
};

/* A warp, or the whole block (BLOCK), has one group of neurons, E values per thread. An access is a
 * pack if rows consist of aligned packs (WIDE), else one element. */
template <typename T_, bool WIDE, bool BLOCK_, int E_> struct part {
    using T = T_;
    static constexpr bool BLOCK = BLOCK_;
    static constexpr int E = E_, N = WIDE ? PACK<T> : 1, ACCESSES = E / N;
    static constexpr int WORDS = E / PER_WORD<T>, GROUPS = BLOCK ? 1 : WARPS;

    /* The column of the first element of access i */
    static __device__ inline int column(int i)
    {
        int lane = BLOCK ? threadIdx.x : threadIdx.x % WARP, lanes = BLOCK ? blockDim.x : WARP;
        return (lane + i * lanes) * N;
    }

    /* Zeros beyond the width */
    static __device__ inline void read(int width, const T *from, uint32_t (&to)[WORDS])
    {
#pragma unroll
        for (int i = 0; i < ACCESSES; i++) {
            const T *at = from + column(i);
            bool in = column(i) < width;
            if constexpr (WIDE) {
                uint4 v = in ? *reinterpret_cast<const uint4 *>(at) : make_uint4(0, 0, 0, 0);
                to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
            } else if constexpr (sizeof(T) == sizeof(float)) {
                to[i] = in ? *reinterpret_cast<const uint32_t *>(at) : 0;
            } else {
                uint32_t half = in ? *reinterpret_cast<const uint16_t *>(at) : 0;
                to[i / 2] = i % 2 ? to[i / 2] | half << 16 : half;
            }
        }
        if constexpr (!WIDE && sizeof(T) < sizeof(float)) {
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                asm volatile("" : "+r"(to[w])); /* else each half has a register of its own */
        }
    }

    /* The N values of an access */
    static __device__ inline void write(const float (&f)[N], T *to)
    {
        if constexpr (WIDE)
            store(to, narrow<T>(f));
        else
            narrow(f[0], to);
    }

    /* Two values joined over the group, the same bits in every thread. A `room` has a pair per
     * warp. Successive joins use different ones, so that one barrier is enough. */
    template <typename Warp, typename Both>
    static __device__ inline float2 join(float x, float y, float2 *room, Warp warp, Both both)
    {
        float2 v = {warp(x), warp(y)};
        if constexpr (BLOCK) {
            if (threadIdx.x % WARP == 0)
                room[threadIdx.x / WARP] = v;
            __syncthreads();
            v = room[0];
            for (int w = 1; w < (int)blockDim.x / WARP; w++)
                v = {both(v.x, room[w].x), both(v.y, room[w].y)};
        }
        return v;
    }

    static __device__ inline float2 sum(float x, float y, float2 *room)
    {
        return join(
            x, y, room, [](float v) { return warp_sum(v); },
            [](float a, float b) { return add(a, b); });
    }

    static __device__ inline float2 largest(float x, float y, float2 *room)
    {
        return join(
            x, y, room, [](float v) { return warp_largest(v); },
            [](float a, float b) { return fmaxf(a, b); });
    }

    /* By the order of floats as integers: the bits below the sign of a negative one are flipped. */
    static __device__ inline float warp_largest(float x)
    {
        int bits = __float_as_int(x);
        bits = __reduce_max_sync(ALL_LANES, bits ^ (bits >> 31 & INT_MAX));
        return __int_as_float(bits ^ (bits >> 31 & INT_MAX));
    }

    /* f(column, value index) for every column of this thread */
    template <typename F> static __device__ inline void each(int width, F f)
    {
#pragma unroll
        for (int i = 0; i < ACCESSES; i++) {
            if (column(i) < width) {
#pragma unroll
                for (int j = 0; j < N; j++)
                    f(i * N + j);
            }
        }
    }

    /* The block's sums of its columns, over its groups in order, to `to` (C). `shared` has room for
     * the columns of all groups if there are several. */
    template <typename F>
    static __device__ inline void write_sums(int width, F of, float *shared, float *to)
    {
        if constexpr (BLOCK) {
            each(width, [&](int e) { to[column(e / N) + e % N] = of(e); });
        } else {
            int me = threadIdx.x / WARP;
            each(width, [&](int e) { shared[me * E * WARP + column(e / N) + e % N] = of(e); });
            __syncthreads();
            for (int c = threadIdx.x; c < width; c += WARPS * WARP) {
                float sum = shared[c];
                for (int g = 1; g < GROUPS; g++)
                    sum = add(sum, shared[g * E * WARP + c]);
                to[c] = sum;
            }
            __syncthreads();
        }
    }
};

/* Sums over rows, for the columns of a thread */
template <typename P> struct column_sums {
    float goodness[P::E], slopes[P::E]; /* slopes: weight dH/dlogits */
    uint32_t active[P::WORDS];          /* one counter per element */
    float entropy;
};

/* good = G, from the words of dout and logits */
template <typename P>
static __device__ inline void find_goodness(int width, float norm, const uint32_t (&d)[P::WORDS],
                                            const uint32_t (&l)[P::WORDS], float2 *room,
                                            float (&good)[P::E])
{
    using T = typename P::T;
    uint32_t sizes[2] = {0, 0};
#pragma unroll
    for (int w = 0; w < P::WORDS; w++) {
        sizes[0] = larger<T>(sizes[0], d[w]);
        sizes[1] = larger<T>(sizes[1], l[w]);
    }
    float2 most = {value<T>(sizes, 0), value<T>(sizes, PER_WORD<T>)};
    if constexpr (PER_WORD<T> == 2)
        most = {fmaxf(most.x, value<T>(sizes, 1)), fmaxf(most.y, value<T>(sizes, 3))};
    most = P::largest(most.x, most.y, room);
    float importance = reciprocal(add(most.x, EPS)), belief = reciprocal(add(most.y, EPS));
    float effort = mul(-norm, reciprocal(fma_(most.x, norm, EPS)));
    P::each(width, [&](int e) {
        float size = fabsf(value<T>(d, e));
        float gain = fma_(value<T>(l, e), belief, mul(size, effort));
        good[e] = mul(mul(size, importance), gain);
    });
}

/* Standardises G in place. */
template <typename P>
static __device__ inline void standardise(int width, float2 *room, float2 *room2,
                                          float (&good)[P::E])
{
    float sum = 0, squares = 0;
    P::each(width, [&](int e) { sum = add(sum, good[e]); });
    float center = __fdiv_rn(P::sum(sum, 0, room).x, (float)width);
    P::each(width, [&](int e) {
        good[e] = sub(good[e], center);
        squares = fma_(good[e], good[e], squares);
    });
    float variance = __fdiv_rn(P::sum(squares, 0, room2).x, (float)width);
    float factor = __frcp_rn(__fsqrt_rn(add(variance, STANDARDISE_EPS)));
    P::each(width, [&](int e) { good[e] = mul(good[e], factor); });
}

/* The entropy of p = softmax(z) and its slope dH/dz.
 *
 * With t = z - max z, e = exp t, S = sum of e: p = e / S, log p = t - log S. Without the 1e-9, H =
 * log S - M and dH/dz = p (M - t), M = sum of p t, with no logarithm per element and without
 * cancellation. With it, dH/dp = eps / q - log q - 1, q = p + eps, where the 1 changes nothing. If
 * u = eps / p is small, eps / q - log q = - log p - u^2 / 2 ..., so the 1e-9 changes only H, by the
 * sum of p eps / q = C eps. Rows with a p below SMALL take the exact formula instead: t = log q -
 * eps / q + log S.
 *
 * Returns H and 1 / S. slope = dH/dz S; z is overwritten. */
#define SMALL 1e-6f
template <typename P>
static __device__ inline float2 find_slope(int width, float2 (*rooms)[WARP], float (&z)[P::E],
                                           float (&slope)[P::E])
{
    using T = typename P::T;
    float top = -INFINITY, least = -INFINITY, sum = 0, mean = 0;
    P::each(width, [&](int e) {
        top = fmaxf(top, z[e]);
        least = fmaxf(least, -z[e]);
    });
    float2 ends = P::largest(top, least, rooms[0]);
    P::each(width, [&](int e) {
        z[e] = sub(z[e], ends.x);
        slope[e] = exponential<T>(z[e]);
        sum = add(sum, slope[e]);
        mean = fma_(slope[e], z[e], mean);
    });
    float2 sums = P::sum(sum, mean, rooms[1]);
    float share = reciprocal(sums.x), log_sum = logarithm<T>(sums.x), lost = mul(EPS, (float)width);
    mean = mul(sums.y, share);
    if (mul(exponential<T>(sub(-ends.y, ends.x)), share) < SMALL) {
        float part = 0, off = 0;
        P::each(width, [&](int e) {
            float p = mul(slope[e], share), q = add(p, EPS), rest = mul(EPS, reciprocal(q));
            z[e] = add(sub(logarithm<T>(q), rest), log_sum);
            part = fma_(p, z[e], part);
            off = fma_(p, rest, off);
        });
        sums = P::sum(part, off, rooms[2]);
        mean = sums.x, lost = sums.y;
    }
    P::each(width, [&](int e) { slope[e] = mul(slope[e], sub(mean, z[e])); });
    return {sub(sub(log_sum, mean), lost), share};
}

/* silu'(x) = s (1 + x (1 - s)), s = sigmoid(x) */
template <typename T> static __device__ inline float silu_slope(float x)
{
    float s = reciprocal(add(1.0f, exponential<T>(-x)));
    return mul(s, fma_(x, sub(1.0f, s), 1.0f));
}

/* One group of neurons, which starts at element `at` of a tensor. Each thread reads everything
 * before it overwrites it. */
template <typename P, typename T>
static __device__ inline void backward_row(const route_args<T> &a, int64_t at, float norm,
                                           float2 (*rooms)[WARP], column_sums<P> &sums)
{
    uint32_t d[P::WORDS], l[P::WORDS], x[P::WORDS];
    float z[P::E], slope[P::E];
    P::read(a.width, a.dout + at, d);
    P::read(a.width, a.logits + at, l);
    P::read(a.width, a.pre + at, x);
    find_goodness<P>(a.width, norm, d, l, rooms[0], z);
    P::each(a.width, [&](int e) { sums.goodness[e] = add(sums.goodness[e], z[e]); });
    if (a.standardise)
        standardise<P>(a.width, rooms[1], rooms[2], z);
    float sign = a.minus ? -1.0f : 1.0f;
    P::each(a.width, [&](int e) { z[e] = fma_(sign, z[e], value<T>(l, e)); });
    /* Where the mask is 0, dout becomes 0, and pre too, since it need not be finite there. */
#pragma unroll
    for (int w = 0; w < P::WORDS; w++) {
        uint32_t chosen = positive<T>(l[w]);
        d[w] &= chosen, x[w] &= chosen;
        sums.active[w] += chosen & (sizeof(T) == sizeof(float) ? 1u : 0x10001u);
    }
    float2 found = find_slope<P>(a.width, rooms + (a.standardise ? 3 : 1), z, slope);
    sums.entropy = add(sums.entropy, found.x);
    float weight = mul(a.weight, found.y), scale = mul(a.scale, weight);
#pragma unroll
    for (int i = 0; i < P::ACCESSES; i++) {
        int c = P::column(i);
        if (c < a.width) {
            float dpre[P::N], dmatch[P::N];
#pragma unroll
            for (int j = 0; j < P::N; j++) {
                int e = i * P::N + j;
                dpre[j] = mul(value<T>(d, e), silu_slope<T>(value<T>(x, e)));
                dmatch[j] = mul(slope[e], scale);
                sums.slopes[e] = fma_(slope[e], weight, sums.slopes[e]);
            }
            P::write(dpre, a.dpre + at + c);
            P::write(dmatch, a.dmatch + at + c);
        }
    }
}

/* --- backward: all rows ----------------------------------------------------------------------- */

/* sums[j] += the lane's part of |x[j]|^2, for AT_ONCE rows, which consist of aligned packs if
 * `WIDE` */
template <bool WIDE, typename T>
static __device__ inline void add_squares(int64_t width, const T *const (&x)[AT_ONCE],
                                          float (&sums)[AT_ONCE])
{
    constexpr int N = WIDE ? PACK<T> : 1;
    for (int64_t c = threadIdx.x % WARP * N; c < width; c += WARP * N) {
        pack<T> some[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            some[j] = WIDE ? load(x[j] + c) : load_some(x[j] + c, 1, false);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float f[PACK<T>];
            widen(some[j], f);
#pragma unroll
            for (int i = 0; i < N; i++)
                sums[j] = fma_(f[i], f[i], sums[j]);
        }
    }
}

/* norms[i] = |x| of the block's next NORMS rows: `groups` rows from `first`, then those `step`
 * later. A warp takes AT_ONCE rows at a time. */
template <typename T>
static __device__ inline void find_norms(const route_args<T> &a, int64_t first, int64_t step,
                                         int groups, float *norms)
{
    int warps = blockDim.x / WARP;
    for (int i = (int)threadIdx.x / WARP * AT_ONCE; i < NORMS; i += warps * AT_ONCE) {
        const T *x[AT_ONCE];
        float sums[AT_ONCE] = {};
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t r = first + (i + j) / groups * step + (i + j) % groups;
            x[j] = a.x + min(r, a.rows - 1) * a.in;
        }
        if (first + i / groups * step >= a.rows)
            return;
        if (a.wide_x)
            add_squares<true>(a.in, x, sums);
        else
            add_squares<false>(a.in, x, sums);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float norm = __fsqrt_rn(warp_sum(sums[j]));
            if (threadIdx.x % WARP == 0)
                norms[i + j] = norm;
        }
    }
}

/* Prefetches the group that starts at `at` to L2. */
template <typename P, typename T>
static __device__ inline void fetch_row(const route_args<T> &a, int64_t at)
{
    int lane = P::BLOCK ? threadIdx.x : threadIdx.x % WARP, lanes = P::BLOCK ? blockDim.x : WARP;
    constexpr int LINE = 128 / (int)sizeof(T);
    for (int c = lane * LINE; c < a.width; c += lanes * LINE) {
        fetch_ahead(a.dout + at + c);
        fetch_ahead(a.logits + at + c);
        fetch_ahead(a.pre + at + c);
    }
}

/* Block (b, k) takes rows b GROUPS, ..., then those gridDim.x GROUPS later, in group k. */
template <typename P, typename T, int MOST, int PER_SM>
__global__ void __launch_bounds__(MOST, PER_SM) backward_rows(route_args<T> a)
{
    constexpr int TURNS = NORMS / P::GROUPS;
    __shared__ float2 rooms[JOINS][WARP];
    __shared__ float shared[P::BLOCK ? 1 : P::GROUPS * WARP * P::E];
    __shared__ float norms[NORMS];
    column_sums<P> sums = {};
    int groups = gridDim.y, k = blockIdx.y, warp = threadIdx.x / WARP, me = P::BLOCK ? 0 : warp;
    int64_t step = (int64_t)gridDim.x * P::GROUPS, first = (int64_t)blockIdx.x * P::GROUPS;
    for (; first < a.rows; first += TURNS * step) {
        __syncthreads();
        find_norms(a, first, step, P::GROUPS, norms);
        __syncthreads();
        for (int i = 0; i < TURNS; i++) {
            int64_t r = first + i * step + me;
            if (r >= a.rows)
                break;
            if (r + step < a.rows)
                fetch_row<P>(a, ((r + step) * groups + k) * a.width);
            backward_row<P>(a, (r * groups + k) * a.width, norms[i * P::GROUPS + me], rooms, sums);
        }
    }

    int64_t columns = (int64_t)groups * a.width;
    float *to = a.partials + blockIdx.x * (SUMS * columns + groups) + (int64_t)k * a.width;
    __syncthreads();
    P::write_sums(
        a.width, [&](int e) { return sums.goodness[e]; }, shared, to);
    P::write_sums(
        a.width,
        [&](int e) {
            uint32_t word = sums.active[e / PER_WORD<T>];
            return (float)(PER_WORD<T> == 1 ? word : e % 2 ? word >> 16 : word & 0xffff);
        },
        shared, to + columns);
    P::write_sums(
        a.width, [&](int e) { return -sums.slopes[e]; }, shared, to + 2 * columns);
    if (threadIdx.x % WARP == 0)
        norms[warp] = sums.entropy;
    __syncthreads();
    if (threadIdx.x == 0) {
        float entropy = norms[0];
        for (int g = 1; g < P::GROUPS; g++)
            entropy = add(entropy, norms[g]);
        a.partials[blockIdx.x * (SUMS * columns + groups) + SUMS * columns + k] = entropy;
    }
}

/* --- distribution over blocks ----------------------------------------------------------------- */

/* A warp per group of neurons up to WARP_WIDTH, with as many values per thread as the width needs,
 * else a block, with as many warps. The blocks of all groups fit on 132 multiprocessors at once: a
 * constant, so that the bits do not depend on the GPU. */
enum { WARP_WIDTH = 24 * WARP, BLOCK_VALUES = 16, BLOCK_THREADS = 512, BLOCK_THREADS_MOST = 1024 };
struct cut {
    bool block;
    int values, threads; /* values per thread, threads of a block */
    int64_t blocks;      /* of each group of neurons */
};

static struct cut cut_of(int64_t groups, int64_t width, int64_t rows)
{
    struct cut cut = {width > WARP_WIDTH, BLOCK_VALUES, WARPS * WARP, 0};
    int64_t per_sm, at_once = cut.block ? 1 : WARPS;
    if (cut.block) {
        cut.threads = (int)div_up(width, BLOCK_VALUES * WARP) * WARP;
        per_sm = cut.threads < BLOCK_THREADS ? BLOCK_THREADS / cut.threads : 1;
    } else {
        cut.values = (int)div_up(width, 8 * WARP) * 8;
        per_sm = cut.values == 8 ? 6 : cut.values == 16 ? 4 : 3;
    }
    int64_t fit = GPU_HOPPER_PROCESSORS * per_sm / groups;
    int64_t most = div_up(rows, at_once), least = div_up(rows, COUNT_MOST * at_once);
    cut.blocks = fit > most ? most : fit;
    cut.blocks = cut.blocks < least ? least : cut.blocks;
    return cut;
}

size_t kernel_route_scratch(int64_t groups, int64_t width, int64_t rows)
{
    int64_t columns = groups * (SUMS * width + 1);
    return (size_t)(cut_of(groups, width, rows).blocks * columns) * sizeof(float);
}

template <typename T, bool WIDE>
static cudaError_t backward_typed(cudaStream_t stream, struct cut cut, int64_t groups,
                                  const route_args<T> &a)
{
    dim3 grid((unsigned)cut.blocks, (unsigned)groups);
#define ROWS(block, values, most, per_sm)                        \
    backward_rows<part<T, WIDE, block, values>, T, most, per_sm> \
        <<<grid, (unsigned)cut.threads, 0, stream>>>(a)
    if (cut.threads > BLOCK_THREADS)
        ROWS(true, BLOCK_VALUES, BLOCK_THREADS_MOST, 1);
    else if (cut.block)
        ROWS(true, BLOCK_VALUES, BLOCK_THREADS, 1);
    else if (cut.values == 8)
        ROWS(false, 8, WARPS * WARP, 6);
    else if (cut.values == 16)
        ROWS(false, 16, WARPS * WARP, 4);
    else
        ROWS(false, 24, WARPS * WARP, 3);
#undef ROWS
    return cudaGetLastError();
}

static cudaError_t launch_rows(cudaStream_t stream, enum dtype type, const kernel_route &n,
                               struct cut cut)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        bool wide = n.width % PACK<T> == 0 && is_wide(n.dout) && is_wide(n.pre) &&
                    is_wide(n.logits) && is_wide(n.dpre) && is_wide(n.dmatch);
        route_args<T> a = {};
        a.rows = n.rows, a.in = n.in, a.width = (int)n.width;
        a.wide_x = n.in % PACK<T> == 0 && is_wide(n.x);
        a.minus = n.minus, a.standardise = n.standardise;
        a.scale = n.scale, a.weight = n.weight;
        a.x = (const T *)n.x, a.dout = (const T *)n.dout;
        a.pre = (const T *)n.pre, a.logits = (const T *)n.logits;
        a.dpre = (T *)n.dpre, a.dmatch = (T *)n.dmatch;
        a.partials = (float *)n.scratch;
        return wide ? backward_typed<T, true>(stream, cut, n.groups, a)
                    : backward_typed<T, false>(stream, cut, n.groups, a);
    });
}

cudaError_t launch_route_backward(cudaStream_t stream, enum dtype type, struct kernel_route n)
{
    struct cut cut = cut_of(n.groups, n.width, n.rows);
    int64_t columns = n.groups * n.width;
    struct kernel_sums sums = {
        {{columns, n.goodness}, {columns, n.active}, {columns, n.dcost}, {n.groups, n.entropy}}};
    cudaError_t error = launch_rows(stream, type, n, cut);
    if (error != cudaSuccess)
        return error;
    return cuda_add_partials(DTYPE_F32, (int)cut.blocks, (const float *)n.scratch, false, sums,
                             stream);
}
