/* cuda_orthogonalize -- the division of a matrix by its norm, before the products of
 * cuda_orthogonalize.c. Memory-bound: every element is read and written once. */
#include "ops/cuda/common/vector.cuh"

enum { THREADS = 256 };

/* The factor is a double: that of a tiny matrix is too large for a float. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    normalize(int64_t count, bool wide, const double *squares, const T *x, T *to)
{
    constexpr int N = PACK<T>;
    const double sum = *squares, factor = sum > 0 ? 1 / sqrt(sum) : 1;
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float f[N];
    if (i >= count)
        return;
    widen(load_some(x + i, count - i, wide), f);
#pragma unroll
    for (int j = 0; j < N; j++)
        f[j] = __double2float_rn((double)f[j] * factor);
    store_some(to + i, narrow<T>(f), count - i, wide);
}

cudaError_t launch_normalize(cudaStream_t stream, enum dtype type, int64_t count,
                             const double *squares, const void *x, void *to)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)div_up(count, (int64_t)THREADS * PACK<T>);
        normalize<T><<<blocks, THREADS, 0, stream>>>(count, is_wide(x) && is_wide(to), squares,
                                                     (const T *)x, (T *)to);
        return cudaGetLastError();
    });
}
