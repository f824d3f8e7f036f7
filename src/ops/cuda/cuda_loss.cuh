/* cuda_loss.cuh -- the arithmetic of cross-entropy over a row, by a block of LOSS_THREADS.
 *
 * Each thread keeps the largest logit it has seen and the sum of exponentials relative to it;
 * these pairs are combined in a fixed order, across threads in double. Thread t visits packs t, t
 * + LOSS_THREADS, ... of a row in order: a kernel that keeps this order has the same bits. The
 * elements that a row's last pack lacks are minus infinity, whose exponential is 0.
 */
#ifndef OPS_CUDA_CUDA_LOSS_CUH
#define OPS_CUDA_CUDA_LOSS_CUH
#include <float.h>
#include "ops/cuda/common/vector.cuh"

enum { LOSS_THREADS = 512 };

struct running { /* sum of exp(x - max) over the logits seen */
    float max, sum;
};

__device__ inline running nothing_met()
{
    return {-FLT_MAX, 0};
}

template <typename T, int N> __device__ inline void meet(running &r, const float (&x)[N])
{
    float most = r.max;
#pragma unroll
    for (int i = 0; i < N; i++)
        most = fmaxf(most, x[i]);
    float sum = mul(r.sum, exponential<T>(sub(r.max, most)));
#pragma unroll
    for (int i = 0; i < N; i++)
        sum = add(sum, exponential<T>(sub(x[i], most)));
    r.max = most;
    r.sum = sum;
}

/* Combines the pairs of the whole block; the result is in every thread. */
template <typename T> __device__ inline double combine(running mine, float *max)
{
    __shared__ float largest[LOSS_THREADS / WARP];
    __shared__ double sums[LOSS_THREADS / WARP];
    float most = mine.max;
#pragma unroll
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, apart));
    if (threadIdx.x % WARP == 0)
        largest[threadIdx.x / WARP] = most;
    __syncthreads();
    for (int w = 0; w < LOSS_THREADS / WARP; w++)
        most = fmaxf(most, largest[w]);
    *max = most;
    float scaled = mul(mine.sum, exponential<T>(sub(mine.max, most)));
    return group_sum<LOSS_THREADS>((double)scaled, sums);
}

/* Only the first `left` values belong to the row. */
template <int N> __device__ inline void drop_rest(float (&x)[N], int left)
{
    if (left >= N)
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = i < left ? x[i] : -INFINITY;
}

/* A logit after the cap. Missing ones stay minus infinity. */
__device__ inline float capped(float x, float cap)
{
    return x == -INFINITY ? x : mul(cap, tanhf(__fdiv_rn(x, cap)));
}

/* The slope of the cap where the capped logit is y. */
__device__ inline float cap_slope(float y, float cap)
{
    const float t = __fdiv_rn(y, cap);
    return fma_(-t, t, 1.0f);
}

/* Replaces x (N) by its gradient; `label` counts from x. */
template <typename T, int N>
__device__ inline void turn(float (&x)[N], float max, float factor, float loss_scale, int64_t label)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = mul(exponential<T>(sub(x[i], max)), factor);
    if (label >= 0 && label < N) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = i == label ? sub(x[i], loss_scale) : x[i];
    }
}

#endif
