/* accumulate -- dst[i] += src[i], formed in fp32 (fp64 when dst is) and rounded once. It works
 * element by element, so the bits are those of the CPU (a NaN stays NaN, with the GPU's payload).
 * And sums of squares of blocks of 64 elements, alone or together with the addition: src is then
 * read once.
 *
 * Memory-bound: where ranges are aligned to 16 bytes, a thread handles eight elements with 16-byte
 * loads. The last few elements, and unaligned ranges, are handled one by one.
 */
#include "device/cuda/accumulate.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace
{

constexpr int GROUP = 8, THREADS = 256;
constexpr int64_t MOST_BLOCKS = 1 << 20;

template <class T> struct alignas(16) group {
    T v[GROUP];
};

template <class D> struct sum_of {
    using type = float;
};
template <> struct sum_of<double> {
    using type = double;
};

__device__ inline float widen(float x)
{
    return x;
}
__device__ inline double widen(double x)
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

template <class D> __device__ inline D narrow(typename sum_of<D>::type x)
{
    return x;
}
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ inline __half narrow<__half>(float x)
{
    return __float2half_rn(x);
}

template <class D, class S> __device__ inline D add(D d, S s)
{
    using sum = typename sum_of<D>::type;
    return narrow<D>(sum(widen(d)) + sum(widen(s)));
}

/* The first `groups` groups use vector loads; the rest is handled element by element. */
template <class D, class S>
__global__ void __launch_bounds__(THREADS)
    accumulate(D *__restrict__ dst, const S *__restrict__ src, int64_t groups, int64_t count)
{
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t g = first; g < groups; g += stride) {
        group<D> d = reinterpret_cast<const group<D> *>(dst)[g];
        group<S> s = reinterpret_cast<const group<S> *>(src)[g];
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            d.v[k] = add(d.v[k], s.v[k]);
        reinterpret_cast<group<D> *>(dst)[g] = d;
    }
    for (int64_t i = groups * GROUP + first; i < count; i += stride)
        dst[i] = add(dst[i], src[i]);
}

template <class D, class S>
cudaError_t launch(cudaStream_t stream, void *dst, const void *src, int64_t count)
{
    bool aligned = ((uintptr_t)dst | (uintptr_t)src) % 16 == 0;
    int64_t groups = aligned ? count / GROUP : 0;
    int64_t work = aligned ? (count + GROUP - 1) / GROUP : count;
    int64_t blocks = (work + THREADS - 1) / THREADS;
    if (blocks > MOST_BLOCKS)
        blocks = MOST_BLOCKS;
    accumulate<D, S>
        <<<(unsigned)blocks, THREADS, 0, stream>>>((D *)dst, (const S *)src, groups, count);
    return cudaGetLastError();
}

template <class D>
cudaError_t launch_from(cudaStream_t stream, void *dst, const void *src, enum dtype src_type,
                        int64_t count)
{
    switch (src_type) {
    case DTYPE_F32: return launch<D, float>(stream, dst, src, count);
    case DTYPE_BF16: return launch<D, __nv_bfloat16>(stream, dst, src, count);
    case DTYPE_F16: return launch<D, __half>(stream, dst, src, count);
    default: return cudaErrorInvalidValue;
    }
}

/* --- squares: eight threads for each block of 64 elements ---------------------------------- */

/* What a kernel does besides adding squares: nothing; dst += src; or dst = src, and then the sums
 * are overwritten too. */
enum class also { NOTHING, ADD, STORE };

/* One group, of which `count` elements exist; the others are 0. */
template <class T> __device__ inline group<T> load(const T *at, bool whole, int64_t count)
{
    group<T> g;
    if (whole)
        return *reinterpret_cast<const group<T> *>(at);
    for (int k = 0; k < GROUP; k++)
        g.v[k] = k < count ? at[k] : T(0.0f);
    return g;
}

template <class T> __device__ inline void save(T *at, bool whole, int64_t count, const group<T> &g)
{
    if (whole)
        *reinterpret_cast<group<T> *>(at) = g;
    else
        for (int k = 0; k < GROUP; k++)
            if (k < count)
                at[k] = g.v[k];
}

template <class S, also WHAT>
__global__ void __launch_bounds__(THREADS)
    add_squares(float *__restrict__ dst, double *__restrict__ sums, const S *__restrict__ src,
                bool aligned, int64_t count, double weight)
{
    int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * GROUP, left = count - first;
    bool whole = aligned && left >= GROUP;
    group<S> s = load(src + first, whole, left);
    group<float> d;
    double fours[2] = {0, 0};
    if (WHAT == also::ADD)
        d = load(dst + first, whole, left);
#pragma unroll
    for (int k = 0; k < GROUP; k++)
        d.v[k] = WHAT == also::ADD ? add(d.v[k], s.v[k]) : widen(s.v[k]);
    if (WHAT != also::NOTHING)
        save(dst + first, whole, left, d);
#pragma unroll
    for (int k = 0; k < GROUP; k++)
        fours[k / 4] = __fma_rn((double)widen(s.v[k]), (double)widen(s.v[k]), fours[k / 4]);
    double sum = fours[0] + fours[1];
#pragma unroll
    for (int apart = 1; apart < GROUP; apart *= 2)
        sum += __shfl_xor_sync(~0u, sum, apart);
    if (threadIdx.x % GROUP == 0 && left > 0) {
        double *to = &sums[first / (GROUP * GROUP)];
        *to = (WHAT == also::STORE ? 0 : *to) + weight * sum;
    }
}

struct squares {
    float *dst;
    const void *src;
    int64_t count;
    double *sums, weight;
};

template <class S, also WHAT> cudaError_t launch_squares(cudaStream_t stream, const squares &a)
{
    int64_t blocks = (a.count + THREADS * GROUP - 1) / (THREADS * GROUP);
    bool aligned = ((uintptr_t)a.dst | (uintptr_t)a.src) % 16 == 0;
    add_squares<S, WHAT><<<(unsigned)blocks, THREADS, 0, stream>>>(a.dst, a.sums, (const S *)a.src,
                                                                   aligned, a.count, a.weight);
    return cudaGetLastError();
}

template <also WHAT>
cudaError_t launch_squares_from(cudaStream_t stream, enum dtype src_type, const squares &a)
{
    switch (src_type) {
    case DTYPE_F32: return launch_squares<float, WHAT>(stream, a);
    case DTYPE_BF16: return launch_squares<__nv_bfloat16, WHAT>(stream, a);
    case DTYPE_F16: return launch_squares<__half, WHAT>(stream, a);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace

cudaError_t cuda_accumulate_squares(cudaStream_t stream, float *dst, const void *src,
                                    enum dtype src_type, int64_t count, bool first, double *sums,
                                    double weight)
{
    squares a = {dst, src, count, sums, weight};
    if (dst == NULL)
        return launch_squares_from<also::NOTHING>(stream, src_type, a);
    return first ? launch_squares_from<also::STORE>(stream, src_type, a)
                 : launch_squares_from<also::ADD>(stream, src_type, a);
}

cudaError_t cuda_accumulate(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                            enum dtype src_type, int64_t count)
{
    switch (dst_type) {
    case DTYPE_F32: return launch_from<float>(stream, dst, src, src_type, count);
    case DTYPE_BF16: return launch_from<__nv_bfloat16>(stream, dst, src, src_type, count);
    case DTYPE_F16: return launch_from<__half>(stream, dst, src, src_type, count);
    case DTYPE_F64:
        return src_type == DTYPE_F64 ? launch<double, double>(stream, dst, src, count)
                                     : launch_from<double>(stream, dst, src, src_type, count);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t cuda_probe(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, accumulate<float, float>);
}
