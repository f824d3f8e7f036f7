/* cuda_gate -- the two gates of routed layers (SARS): MAS of the gate vector, which is the cost of
 * each neuron, and the gate on rows of the gradient.
 */
#include <float.h>
#include "ops/cuda/common/follow.cuh"
#include "ops/cuda/common/vector.cuh"

enum { THREADS = 256 };

/* --- MAS: one block per group ----------------------------------------------------------------- */

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

/* --- the gate on gradients -------------------------------------------------------------------- */

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
