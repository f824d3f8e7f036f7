/* cuda_route -- routed layers (SARS) and the gate on their gradients.
 *
 * In the backward pass a warp or a block takes one group of neurons of a row and keeps its values
 * in registers, E of them per thread; columns beyond the width are zeros, and -inf in z. It loops
 * over rows and keeps the sums of its columns in registers too. These go to scratch, one partial
 * sum per block, and are added in order (cuda_columns.cu). The norms of the rows of x are computed
 * first, since all groups use them. The number of blocks, and the rows of each, depend on width and
 * rows only.
 *
 * Bytes, of R K C elements: route 4 tensors, route_backward 5 and x.
 */
#include <float.h>
#include "ops/cuda/common/vector.cuh"

enum { THREADS = 256, SUMS = 3 /* goodness, active, dcost */ };
#define EPS 1e-9f
#define STANDARDISE_EPS 1e-5f

/* silu(x) and silu'(x), with s = sigmoid(x) and 1 - s = e s */
template <typename T> static __device__ inline float sigmoid_exp(float x)
{
    return exponential<T>(fminf(-x, 80.0f));
}

template <typename T> static __device__ inline float silu(float x)
{
    return __fdividef(x, add(1.0f, sigmoid_exp<T>(x)));
}

template <typename T> static __device__ inline float silu_slope(float x)
{
    float e = sigmoid_exp<T>(x), s = __fdividef(1.0f, add(1.0f, e));
    return mul(s, fma_(x, mul(e, s), 1.0f));
}

/* As exact as exponential<T>. */
template <typename T> static __device__ inline float logarithm(float x)
{
    if constexpr (sizeof(T) == sizeof(float))
        return logf(x);
    return mul(logarithm_of_two(x), 0.69314718055994530942f);
}

/* --- MAS: one block per group ------------------------------------------------------------------ */

/* The largest |gate| and, below it, the complement of its index: the first of equals wins. */
template <typename T>
static __device__ inline unsigned long long find_largest(int width, const T *gate)
{
    __shared__ unsigned long long room[THREADS / WARP];
    unsigned long long largest = 0;
    for (int c = threadIdx.x; c < width; c += THREADS) {
        unsigned long long size = __float_as_uint(fabsf(widen(gate[c])));
        largest = max(largest, size << 32 | (0xffffffffu - (unsigned)c));
    }
#pragma unroll
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, apart));
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = largest;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++)
        largest = max(largest, room[w]);
    return largest;
}

static __device__ inline double mas_divisor(unsigned long long largest)
{
    return (double)__uint_as_float((unsigned)(largest >> 32)) + 1e-9;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) mas(int width, const T *gates, T *costs)
{
    const T *gate = gates + (int64_t)blockIdx.x * width;
    double divisor = mas_divisor(find_largest(width, gate));
    for (int c = threadIdx.x; c < width; c += THREADS)
        narrow((float)((double)widen(gate[c]) / divisor), &costs[(int64_t)blockIdx.x * width + c]);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    mas_backward(int width, const T *gates, const float *dcosts, T *dgates)
{
    __shared__ double room[THREADS / WARP];
    int64_t first = (int64_t)blockIdx.x * width;
    const T *gate = gates + first;
    const float *dcost = dcosts + first;
    unsigned long long largest = find_largest(width, gate);
    int top = (int)(0xffffffffu - (unsigned)largest);
    double divisor = mas_divisor(largest), dot = 0;
    for (int c = threadIdx.x; c < width; c += THREADS)
        dot += (double)dcost[c] * (double)widen(gate[c]);
    dot = group_sum<THREADS>(dot, room);
    float sign = widen(gate[top]);
    double slope = sign > 0 ? dot : sign < 0 ? -dot : 0;
    for (int c = threadIdx.x; c < width; c += THREADS)
        narrow((float)(((double)dcost[c] - (c == top ? slope / divisor : 0)) / divisor),
               &dgates[first + c]);
}

cudaError_t launch_mas(cudaStream_t stream, enum dtype type, int64_t groups, int64_t width,
                       const void *gate, void *cost)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        mas<T><<<(unsigned)groups, THREADS, 0, stream>>>((int)width, (const T *)gate, (T *)cost);
        return cudaGetLastError();
    });
}

cudaError_t launch_mas_backward(cudaStream_t stream, enum dtype type, int64_t groups, int64_t width,
                                const void *gate, const float *dcost, void *dgate)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        mas_backward<T><<<(unsigned)groups, THREADS, 0, stream>>>((int)width, (const T *)gate,
                                                                  dcost, (T *)dgate);
        return cudaGetLastError();
    });
}

/* --- forward: one block per row ---------------------------------------------------------------- */

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

/* --- backward ----------------------------------------------------------------------------------- */

/* norms[r] = |x[r]|; a warp per row */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    row_norms(int64_t rows, int64_t width, bool wide, const T *x, float *norms)
{
    constexpr int N = PACK<T>;
    int64_t r = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    float sum = 0;
    if (r >= rows)
        return;
    for (int64_t c = threadIdx.x % WARP * N; c < width; c += WARP * N) {
        float f[N];
        widen(load_some(x + r * width + c, width - c, wide), f);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum = fma_(f[i], f[i], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        norms[r] = __fsqrt_rn(sum);
}

template <typename T> struct route_args {
    int64_t rows;
    int width;
    bool wide, minus, standardise;
    float scale, weight;
    const T *dout, *pre, *logits;
    T *dpre, *dmatch;
    const float *norms; /* (R) */
    float *partials;    /* (SUMS, blocks, K, C) */
    float *entropies;   /* (blocks, K) */
};

/* GROUP threads (a warp, or a whole block) per group of neurons, E values each */
template <typename T, int GROUP, int E> struct part {
    static constexpr int N = PACK<T>, PACKS = E / N;
    static constexpr int BLOCK = GROUP > WARP ? GROUP : 128, GROUPS = BLOCK / GROUP;
    static constexpr int PER_SM = BLOCK == 128 ? 3 : BLOCK == 256 ? 2 : 1;

    /* The column of value e */
    static __device__ inline int column(int e)
    {
        return ((int)threadIdx.x % GROUP + e / N * GROUP) * N + e % N;
    }

    static __device__ inline void read(const route_args<T> &a, const T *from, float (&f)[E])
    {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int c = column(p * N);
            float some[N];
            widen(load_some(from + c, a.width - c, a.wide), some);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[p * N + i] = some[i];
        }
    }

    static __device__ inline void write(const route_args<T> &a, const float (&f)[E], T *to)
    {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int c = column(p * N);
            float some[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                some[i] = f[p * N + i];
            store_some(to + c, narrow<T>(some), a.width - c, a.wide);
        }
    }

    /* Two values joined over the group, the same bits in every thread. `room` is shared memory for
     * a pair per warp; it is free again when the call returns. */
    template <typename Join> static __device__ inline float2 join(float2 v, float2 *room, Join both)
    {
#pragma unroll
        for (int apart = WARP / 2; apart > 0; apart /= 2)
            v = {both(v.x, __shfl_xor_sync(ALL_LANES, v.x, apart)),
                 both(v.y, __shfl_xor_sync(ALL_LANES, v.y, apart))};
        if constexpr (GROUP > WARP) {
            if (threadIdx.x % WARP == 0)
                room[threadIdx.x / WARP] = v;
            __syncthreads();
            v = room[0];
            for (int w = 1; w < GROUP / WARP; w++)
                v = {both(v.x, room[w].x), both(v.y, room[w].y)};
            __syncthreads();
        }
        return v;
    }

    static __device__ inline float2 sum(float x, float y, float2 *room)
    {
        return join({x, y}, room, [](float a, float b) { return add(a, b); });
    }

    static __device__ inline float2 largest(float x, float y, float2 *room)
    {
        return join({x, y}, room, [](float a, float b) { return fmaxf(a, b); });
    }

    /* The block's sums of its columns, over its groups in order, to `to` (C). `shared` has room for
     * the columns of all groups if there are several. */
    static __device__ inline void write_sums(int width, const float (&sums)[E], float *shared,
                                             float *to)
    {
        constexpr int MOST = GROUP * E;
        int group = threadIdx.x / GROUP;
#pragma unroll
        for (int e = 0; e < E; e++) {
            int c = column(e);
            if constexpr (GROUPS > 1)
                shared[group * MOST + c] = sums[e];
            else if (c < width)
                to[c] = sums[e];
        }
        if (GROUPS == 1)
            return;
        __syncthreads();
        for (int c = threadIdx.x; c < width; c += BLOCK) {
            float sum = shared[c];
            for (int g = 1; g < GROUPS; g++)
                sum = add(sum, shared[g * MOST + c]);
            to[c] = sum;
        }
        __syncthreads();
    }
};

/* What one row and group adds to z = logits + factor (G - center). Returns {center, factor}. */
template <typename P, int E, typename Args>
static __device__ inline float2 shift_of(const Args &a, const float (&good)[E], float2 *room)
{
    float sign = a.minus ? -1.0f : 1.0f, sum = 0, squares = 0;
    if (!a.standardise)
        return {0.0f, sign};
#pragma unroll
    for (int e = 0; e < E; e++)
        sum = add(sum, good[e]); /* 0 beyond the width */
    float center = __fdiv_rn(P::sum(sum, 0, room).x, (float)a.width);
#pragma unroll
    for (int e = 0; e < E; e++) {
        float off = P::column(e) < a.width ? sub(good[e], center) : 0.0f;
        squares = fma_(off, off, squares);
    }
    float variance = __fdiv_rn(P::sum(squares, 0, room).x, (float)a.width);
    return {center, __fdiv_rn(sign, __fsqrt_rn(add(variance, STANDARDISE_EPS)))};
}

/* -log q + eps / q with q = p + eps: dH/dp + 1, which does not cancel; the 1 changes nothing */
template <typename T> static __device__ inline float entropy_slope(float q)
{
    return sub(__fdividef(EPS, q), logarithm<T>(q));
}

template <typename T, int GROUP, int E>
__global__ void __launch_bounds__(part<T, GROUP, E>::BLOCK, part<T, GROUP, E>::PER_SM)
    backward_rows(route_args<T> a)
{
    using P = part<T, GROUP, E>;
    __shared__ float2 room[GROUP / WARP];
    __shared__ float shared[P::GROUPS > 1 ? P::GROUPS * GROUP * E : 1];
    __shared__ float shared_entropy[P::GROUPS];
    float goodness[E] = {}, active[E] = {}, dcost[E] = {}, entropy = 0;
    int groups = gridDim.y, k = blockIdx.y, me = threadIdx.x / GROUP;
    int64_t stride = (int64_t)gridDim.x * P::GROUPS;
    for (int64_t r = (int64_t)blockIdx.x * P::GROUPS + me; r < a.rows; r += stride) {
        int64_t at = (r * groups + k) * a.width;
        float d[E], l[E], z[E];
        P::read(a, a.dout + at, d);
        P::read(a, a.logits + at, l);

        /* G, in z */
        float2 most = {0, 0};
#pragma unroll
        for (int e = 0; e < E; e++)
            most = {fmaxf(most.x, fabsf(d[e])), fmaxf(most.y, fabsf(l[e]))};
        most = P::largest(most.x, most.y, room);
        float norm = a.norms[r], importance = __frcp_rn(add(most.x, EPS));
        float effort = __fdiv_rn(norm, add(mul(most.x, norm), EPS));
        float belief = __frcp_rn(add(most.y, EPS));
#pragma unroll
        for (int e = 0; e < E; e++) {
            float size = fabsf(d[e]);
            z[e] = mul(mul(size, importance), sub(mul(l[e], belief), mul(size, effort)));
            goodness[e] = add(goodness[e], z[e]);
        }

        /* z, then p = softmax(z) in its place */
        float2 shift = shift_of<P>(a, z, room);
        float top = -INFINITY, sum = 0, mean = 0, surprise = 0;
#pragma unroll
        for (int e = 0; e < E; e++) {
            z[e] = P::column(e) < a.width ? fma_(shift.y, sub(z[e], shift.x), l[e]) : -INFINITY;
            top = fmaxf(top, z[e]);
        }
        top = P::largest(top, top, room).x;
#pragma unroll
        for (int e = 0; e < E; e++) {
            z[e] = exponential<T>(sub(z[e], top));
            sum = add(sum, z[e]);
        }
        float share = __frcp_rn(P::sum(sum, 0, room).x);
#pragma unroll
        for (int e = 0; e < E; e++) {
            z[e] = mul(z[e], share);
            float q = add(z[e], EPS);
            surprise = fma_(z[e], -logarithm<T>(q), surprise);
            mean = fma_(z[e], entropy_slope<T>(q), mean);
        }
        float2 means = P::sum(surprise, mean, room);
        entropy = add(entropy, means.x);

        /* Gradients. Each thread has read what it overwrites. */
        float x[E];
        P::read(a, a.pre + at, x);
#pragma unroll
        for (int e = 0; e < E; e++) {
            bool chosen = l[e] > 0;
            d[e] = chosen ? mul(d[e], silu_slope<T>(x[e])) : 0.0f;
            active[e] = add(active[e], chosen ? 1.0f : 0.0f);
            float slope = sub(entropy_slope<T>(add(z[e], EPS)), means.y);
            float dl = mul(a.weight, mul(z[e], slope));
            dcost[e] = sub(dcost[e], dl);
            l[e] = mul(a.scale, dl);
        }
        P::write(a, d, a.dpre + at);
        P::write(a, l, a.dmatch + at);
    }

    int64_t columns = (int64_t)groups * a.width, all = gridDim.x * columns;
    float *to = a.partials + blockIdx.x * columns + (int64_t)k * a.width;
    P::write_sums(a.width, goodness, shared, to);
    P::write_sums(a.width, active, shared, to + all);
    P::write_sums(a.width, dcost, shared, to + 2 * all);
    if (threadIdx.x % GROUP == 0)
        shared_entropy[me] = entropy;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int g = 1; g < P::GROUPS; g++)
            entropy = add(entropy, shared_entropy[g]);
        a.entropies[(int64_t)blockIdx.x * groups + k] = entropy;
    }
}

/* --- distribution over blocks ------------------------------------------------------------------- */

/* As many blocks as 132 multiprocessors hold at once, for each group: a constant, so that the bits
 * do not depend on the GPU. */
struct cut {
    int group, values; /* threads per group of neurons, values per thread */
    int64_t blocks;
};

static struct cut cut_of(int64_t width, int64_t rows)
{
    static const struct {
        int width, group, values, rows_per_block, most;
    } cuts[] = {{256, WARP, 8, 4, 396},  {512, WARP, 16, 4, 396},
                {1024, 128, 8, 1, 396},  {2048, 128, 16, 1, 396},
                {4096, 256, 16, 1, 264}, {KERNEL_ROUTE_WIDTH, 1024, 16, 1, 132}};
    int i = 0;
    while (i < 5 && width > cuts[i].width)
        i++;
    int64_t blocks = div_up(rows, cuts[i].rows_per_block);
    return {cuts[i].group, cuts[i].values, blocks < cuts[i].most ? blocks : cuts[i].most};
}

size_t kernel_route_scratch(int64_t groups, int64_t width, int64_t rows)
{
    int64_t floats = rows + cut_of(width, rows).blocks * groups * (SUMS * width + 1);
    return (size_t)floats * sizeof(float);
}

template <typename T>
static cudaError_t backward_typed(cudaStream_t stream, struct cut cut, int64_t groups,
                                  const route_args<T> &a)
{
    dim3 grid((unsigned)cut.blocks, (unsigned)groups);
#define IN(threads, each)                                                                       \
    if (cut.group == threads && cut.values == each) {                                           \
        backward_rows<T, threads, each><<<grid, part<T, threads, each>::BLOCK, 0, stream>>>(a); \
        return cudaGetLastError();                                                              \
    }
    IN(WARP, 8)
    IN(WARP, 16)
    IN(128, 8)
    IN(128, 16)
    IN(256, 16)
    IN(1024, 16)
#undef IN
    return cudaErrorInvalidValue;
}

/* norms (R), entropies (blocks, K) and partial sums follow each other in scratch. */
static cudaError_t launch_rows(cudaStream_t stream, enum dtype type, const kernel_route &n,
                               struct cut cut)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        float *norms = (float *)n.scratch, *entropies = norms + n.rows;
        bool wide = n.width % PACK<T> == 0 && is_wide(n.dout) && is_wide(n.pre) &&
                    is_wide(n.logits) && is_wide(n.dpre) && is_wide(n.dmatch);
        route_args<T> a = {n.rows,
                           (int)n.width,
                           wide,
                           n.minus,
                           n.standardise,
                           n.scale,
                           n.weight,
                           (const T *)n.dout,
                           (const T *)n.pre,
                           (const T *)n.logits,
                           (T *)n.dpre,
                           (T *)n.dmatch,
                           norms,
                           entropies + cut.blocks * n.groups,
                           entropies};
        unsigned blocks = (unsigned)div_up(n.rows, THREADS / WARP);
        row_norms<T><<<blocks, THREADS, 0, stream>>>(
            n.rows, n.in, n.in % PACK<T> == 0 && is_wide(n.x), (const T *)n.x, norms);
        cudaError_t error = cudaGetLastError();
        return error != cudaSuccess ? error : backward_typed<T>(stream, cut, n.groups, a);
    });
}

cudaError_t launch_route_backward(cudaStream_t stream, enum dtype type, struct kernel_route n)
{
    struct cut cut = cut_of(n.width, n.rows);
    int64_t columns = n.groups * n.width;
    const float *entropies = (const float *)n.scratch + n.rows;
    const float *partials = entropies + cut.blocks * n.groups;
    float *sums[SUMS] = {n.goodness, n.active, n.dcost};
    cudaError_t error = launch_rows(stream, type, n, cut);
    for (int i = 0; i < SUMS && error == cudaSuccess; i++)
        error = cuda_add_partials(DTYPE_F32, columns, (int)cut.blocks,
                                  partials + i * cut.blocks * columns, false, sums[i], stream);
    if (error == cudaSuccess)
        error = cuda_add_partials(DTYPE_F32, n.groups, (int)cut.blocks, entropies, false, n.entropy,
                                  stream);
    return error;
}

/* --- the gate ----------------------------------------------------------------------------------- */

/* One pack per thread. `columns` 0: no goodness. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    gate_rows(int64_t first, int64_t count, int64_t columns, bool wide, const float *goodness,
              float limit, T *x)
{
    constexpr int N = PACK<T>;
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, row = 0, next = INT64_MAX;
    if (at >= count)
        return;
    if (goodness) {
        row = (first + at) / columns;
        next = (row + 1) * columns - first; /* index of the next row's first element */
    }
    bool kept = !goodness || goodness[row] > 0;
    float f[N];
    widen(load_some(x + at, count - at, wide), f);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (at + i == next && at + i < count) {
            kept = goodness[++row] > 0;
            next += columns;
        }
        if (fabsf(f[i]) <= FLT_MAX)
            f[i] = kept ? fminf(fmaxf(f[i], -limit), limit) : 0.0f;
    }
    store_some(x + at, narrow<T>(f), count - at, wide);
}

cudaError_t launch_gate_rows(cudaStream_t stream, enum dtype type, int64_t first, int64_t count,
                             int64_t columns, const float *goodness, float limit, void *x)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)div_up(count, THREADS * PACK<T>);
        gate_rows<T><<<blocks, THREADS, 0, stream>>>(first, count, columns, is_wide(x), goodness,
                                                     limit, (T *)x);
        return cudaGetLastError();
    });
}
