/* cuda_noise -- the matrices of ops_noise.h, and the fingerprint of a product's result.
 *
 * A fingerprint is two sums, mod 2^64, of hashes of every element and its index. It does not
 * depend on the order, and two different results collide with probability 2^-128.
 */
#include "device/gpu_facts.h"
#include "ops/cuda/common/vector.cuh"

namespace
{

const int THREADS = 256, MOST_BLOCKS = GPU_HOPPER_PROCESSORS * 8;

template <typename T> __global__ void __launch_bounds__(THREADS) fill_noise(struct noise n, T *x)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n.stride * n.columns;
         i += step)
        narrow(noise_at(&n, i), &x[i]);
}

/* Word: as wide as an element. */
template <typename Word>
__global__ void __launch_bounds__(THREADS)
    add_fingerprint(int64_t count, const Word *x, unsigned long long *sums)
{
    unsigned long long first = 0, second = 0;
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        uint64_t hash = noise_mix(noise_mix((uint64_t)i + 1) + x[i]);
        first += hash;
        second += noise_mix(hash + 1);
    }
    first = warp_sum(first);
    second = warp_sum(second);
    if (threadIdx.x % WARP == 0) {
        atomicAdd(&sums[0], first);
        atomicAdd(&sums[1], second);
    }
}

unsigned blocks_for(int64_t count)
{
    int64_t blocks = div_up(count, THREADS);
    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

} // namespace

cudaError_t launch_noise(cudaStream_t stream, enum dtype type, struct noise n, void *x)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        fill_noise<T><<<blocks_for(n.stride * n.columns), THREADS, 0, stream>>>(n, (T *)x);
        return cudaGetLastError();
    });
}

cudaError_t launch_fingerprint(cudaStream_t stream, enum dtype type, int64_t count, const void *x,
                               unsigned long long *sums)
{
    if (type == DTYPE_F32)
        add_fingerprint<<<blocks_for(count), THREADS, 0, stream>>>(count, (const uint32_t *)x,
                                                                   sums);
    else
        add_fingerprint<<<blocks_for(count), THREADS, 0, stream>>>(count, (const uint16_t *)x,
                                                                   sums);
    return cudaGetLastError();
}
