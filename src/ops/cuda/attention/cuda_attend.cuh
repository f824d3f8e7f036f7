/* cuda_attend -- attention by one warp, shared by the kernels without tensor cores.
 *
 * A warp holds one query (or, in the backward pass, one key) as floats in shared memory and visits
 * the rows of the other side 32 at a time: first one row per lane, for the dot products, then one
 * element per lane, for the sums over these rows. Any width works; rows of full 16-byte units are
 * read as such. All sums have an order fixed by the shape. Included only by .cu files of this
 * folder.
 */
#ifndef OPS_CUDA_CUDA_ATTEND_CUH
#define OPS_CUDA_CUDA_ATTEND_CUH
#include <math.h>
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/cuda/common/vector.cuh"

namespace attend
{

template <typename T> __device__ inline T rounded(float x)
{
    T y;
    narrow(x, &y);
    return y;
}

__device__ inline float warp_max(float x)
{
    for (int step = WARP / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* a (width) in shared memory, b (width) in device memory. WIDE: b is aligned to 16 bytes, and its
 * width is a multiple of 16 bytes. */
template <typename T, bool WIDE> __device__ inline float dot(const float *a, const T *b, int width)
{
    float sum = 0;
    if (WIDE) {
#pragma unroll 8
        for (int d = 0; d < width; d += PACK<T>) {
            auto v = *reinterpret_cast<const lump<T, PACK<T>> *>(b + d);
#pragma unroll
            for (int i = 0; i < PACK<T>; i++)
                sum = fmaf(a[d + i], widen(v.v[i]), sum);
        }
    } else {
        for (int d = 0; d < width; d++)
            sum = fmaf(a[d], widen(b[d]), sum);
    }
    return sum;
}

/* Copies a row to the calling warp's shared memory, as floats. */
template <typename T> __device__ inline void fetch(float *dst, const T *src, int width, int lane)
{
    for (int d = lane; d < width; d += WARP)
        dst[d] = widen(src[d]);
}

__device__ inline void clear(float *dst, int width, int lane)
{
    for (int d = lane; d < width; d += WARP)
        dst[d] = 0;
}

/* acc[d] += sum over `count` rows of factors[i] * rows[i][d], rows `stride` apart; EACH elements
 * per lane at a time, which changes no bit. */
template <typename T, int EACH>
__device__ inline void add_rows_by(float *acc, const float *factors, const T *rows, int64_t stride,
                                   int count, int width, int lane)
{
    for (int d = lane * EACH; d < width; d += WARP * EACH) {
        float sums[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++)
            sums[k] = acc[d + k];
#pragma unroll 16
        for (int i = 0; i < count; i++) {
            auto v = *reinterpret_cast<const lump<T, EACH> *>(rows + i * stride + d);
#pragma unroll
            for (int k = 0; k < EACH; k++)
                sums[k] = fmaf(factors[i], widen(v.v[k]), sums[k]);
        }
#pragma unroll
        for (int k = 0; k < EACH; k++)
            acc[d + k] = sums[k];
    }
}

/* WIDE: rows consist of 16-byte units. */
template <typename T, bool WIDE>
__device__ inline void add_rows(float *acc, const float *factors, const T *rows, int64_t stride,
                                int count, int width, int lane)
{
    if (WIDE && width > 64)
        add_rows_by<T, 4>(acc, factors, rows, stride, count, width, lane);
    else
        add_rows_by<T, WIDE ? 2 : 1>(acc, factors, rows, stride, count, width, lane);
}

/* How a product q . k becomes a score. */
struct scoring {
    float scale, cap; /* cap 0: none */
};

__device__ inline float score_of(scoring how, float product)
{
    const float score = how.scale * product;
    return how.cap > 0 ? how.cap * tanhf(score / how.cap) : score;
}

/* d score / d product */
__device__ inline float score_slope(scoring how, float score)
{
    const float t = how.cap > 0 ? score / how.cap : 0;
    return how.scale * (1 - t * t);
}

struct softmax { /* running values */
    float largest, sum;
};

/* Query q over keys and values first .. last - 1, rows `stride` apart: adds to acc (width), in
 * units of exp(largest). `weights` has room for 32. */
template <typename T, bool WIDE>
__device__ inline softmax over_keys(const float *q, const T *keys, const T *values, int64_t stride,
                                    int64_t first, int64_t last, scoring how, int width, int lane,
                                    float *weights, float *acc)
{
    softmax so_far = {-INFINITY, 0};
    for (int64_t j = first; j < last; j += WARP) {
        int count = last - j < WARP ? (int)(last - j) : WARP;
        float score = -INFINITY;
        if (lane < count)
            score = score_of(how, dot<T, WIDE>(q, keys + (j + lane) * stride, width));
        float largest = fmaxf(so_far.largest, warp_max(score));
        float weight = lane < count ? expf(score - largest) : 0,
              fade = expf(so_far.largest - largest);
        so_far.sum = so_far.sum * fade + warp_sum(weight);
        so_far.largest = largest;
        weights[lane] = weight;
        for (int d = lane; d < width; d += WARP)
            acc[d] *= fade;
        __syncwarp();
        add_rows<T, WIDE>(acc, weights, values + j * stride, stride, count, width, lane);
        __syncwarp();
    }
    return so_far;
}

/* Warps per block if each needs `floats` of shared memory; 0: one needs too much. */
inline int warps_for(int64_t floats)
{
    const int64_t room = 48 * 1024 / (int64_t)sizeof(float);
    return floats * 4 <= room ? 4 : floats <= room ? 1 : 0;
}

/* Calls CALL(T, WIDE) with the compute type and whether rows can be read in 16-byte units. */
#define ATTEND_BY_TYPE(type, wide, CALL)                                                        \
    ((type) == DTYPE_F32    ? ((wide) ? CALL(float, true) : CALL(float, false))                 \
     : (type) == DTYPE_BF16 ? ((wide) ? CALL(__nv_bfloat16, true) : CALL(__nv_bfloat16, false)) \
                            : ((wide) ? CALL(__half, true) : CALL(__half, false)))

inline bool units_of_16(int type, int64_t width, const void *a, const void *b)
{
    return width * (type == DTYPE_F32 ? 4 : 2) % 16 == 0 && (uintptr_t)a % 16 == 0 &&
           (uintptr_t)b % 16 == 0;
}

} // namespace attend

#endif
