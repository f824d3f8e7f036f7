/* small_copy -- a kernel that copies between pinned host memory and the GPU.
 *
 * A copy engine works on one copy at a time. While hundreds of megabytes of offloaded state are on
 * their way, the tokens of the next micro-batch would wait behind them, and the GPU with them. The
 * multiprocessors read and write host memory themselves.
 */
#include "device/cuda/accumulate.h"

namespace
{

constexpr int THREADS = 256, MOST_BLOCKS = 64;

template <class T>
__global__ void __launch_bounds__(THREADS)
    copy(T *__restrict__ dst, const T *__restrict__ src, size_t count)
{
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride)
        dst[i] = src[i];
}

template <class T> cudaError_t launch(cudaStream_t stream, void *dst, const void *src, size_t bytes)
{
    size_t count = bytes / sizeof(T), blocks = (count + THREADS - 1) / THREADS;
    copy<T><<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, stream>>>(
        (T *)dst, (const T *)src, count);
    return cudaGetLastError();
}

} // namespace

cudaError_t cuda_small_copy(cudaStream_t stream, void *dst, const void *src, size_t bytes)
{
    bool aligned = ((uintptr_t)dst | (uintptr_t)src | bytes) % sizeof(uint4) == 0;
    return aligned ? launch<uint4>(stream, dst, src, bytes)
                   : launch<unsigned char>(stream, dst, src, bytes);
}
