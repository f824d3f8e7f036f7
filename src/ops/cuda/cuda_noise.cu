/* cuda_noise -- matrices on which ways to form a product are compared, and what came of it in a few
 * numbers.
 *
 * Two ways that add in another order differ in the last places of a float sum, and most of that is
 * gone when the sum is rounded to 16 bits. So the sums of half of the columns of D are made to cancel:
 *
 *     A(i, K-1-k) = -A(i, k)    and in even columns of B    B(K-1-k, j) = B(k, j)
 *
 * What is left of those sums is what was lost on the way, all of it, and that is another number for
 * another order. The other columns have sums of a usual size, for the epilogues. Numbers are the sum
 * of four uniform ones, nearly normal, times a power of two from 1 to 1/128: their products end far
 * below the last place of the sums that they go to, so that every addition rounds.
 *
 * A fingerprint is two sums, mod 2^64, of hashes of every element and its place: in no order, and equal
 * by chance once in 2^128.
 */
#include "ops/cuda/vector.cuh"

namespace
{

const int THREADS = 256, MOST_BLOCKS = 132 * 8;

__device__ inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* Number `at` of a matrix. */
__device__ inline float noise(uint64_t seed, uint64_t at)
{
    uint64_t bits = mix(mix(at + 1) + seed);
    int four = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) +
               (int)(bits >> 48 & 0x1fff) * 8;
    return ldexpf((float)(four - 0x1fffc), -16 - (int)(bits >> 61));
}

template <typename T> __global__ void __launch_bounds__(THREADS) fill_noise(kernel_noise n, T *x)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n.rows * n.columns;
         i += step) {
        int64_t row = i % n.rows, column = i / n.rows;
        int64_t length = n.down ? n.rows : n.columns, k = n.down ? row : column;
        int64_t other = n.down ? column : row;
        bool cancels = n.kind == KERNEL_NOISE_A || (n.kind == KERNEL_NOISE_B && other % 2 == 0);
        bool turned = cancels && 2 * k >= length;
        float value = noise(n.seed, (uint64_t)(other * length + (turned ? length - 1 - k : k)));
        if (turned && n.kind == KERNEL_NOISE_A)
            value = -value;
        if (n.kind == KERNEL_NOISE_ADDED && row % 2 == 0)
            value = 0;
        narrow(mul(value, n.scale), &x[i]);
    }
}

/* Word: as wide as an element. */
template <typename Word>
__global__ void __launch_bounds__(THREADS)
    add_fingerprint(int64_t count, const Word *x, unsigned long long *sums)
{
    unsigned long long first = 0, second = 0;
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        uint64_t hash = mix(mix((uint64_t)i + 1) + x[i]);
        first += hash;
        second += mix(hash + 1);
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

cudaError_t launch_noise(cudaStream_t stream, enum dtype type, struct kernel_noise n, void *x)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        fill_noise<T><<<blocks_for(n.rows * n.columns), THREADS, 0, stream>>>(n, (T *)x);
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
