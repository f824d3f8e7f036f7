/* cuda_columns -- see the header. Memory-bound: 16 bytes a thread where the width allows.
 *
 * Column sums go in two launches: a block sums a block of rows into fp32 partial sums (each of its
 * eight warps every eighth row, then the warps in order), then the partial sums of a column are
 * added in order. No atomics.
 */
#include "ops/cuda/cuda_columns.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "base/dtype.h"

namespace
{

const int LANES = 32, WARPS = 8;
const int64_t ROW_BLOCKS = 256; /* at most */
const int64_t ROWS = 64;        /* of a block, at least */

__device__ inline float to_float(float x)
{
    return x;
}

__device__ inline float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ inline float to_float(__half x)
{
    return __half2float(x);
}

__device__ inline void round_to(float *to, float x)
{
    *to = x;
}

__device__ inline void round_to(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

__device__ inline void round_to(__half *to, float x)
{
    *to = __float2half_rn(x);
}

template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T x[N];
};

template <typename T, int N>
__global__ void add_bias(int64_t packs, int64_t row_packs, const pack<T, N> *bias, pack<T, N> *y)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= packs)
        return;
    pack<T, N> v = y[at], b = bias[at % row_packs];
#pragma unroll
    for (int i = 0; i < N; i++)
        round_to(&v.x[i], to_float(v.x[i]) + to_float(b.x[i]));
    y[at] = v;
}

/* partial[block of rows][column]; a block of threads covers LANES * N columns. */
template <typename T, int N>
__global__ void block_sums(int64_t rows, int64_t row_packs, int64_t block_rows, const pack<T, N> *x,
                           float *partial)
{
    __shared__ float shared[WARPS][LANES * N];
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    int64_t column = (int64_t)blockIdx.x * LANES + lane; /* in packs */
    int64_t first = (int64_t)blockIdx.y * block_rows, last = first + block_rows;
    last = last < rows ? last : rows;
    float sums[N] = {};
    if (column < row_packs) {
#pragma unroll 4
        for (int64_t r = first + warp; r < last; r += WARPS) {
            pack<T, N> v = x[r * row_packs + column];
#pragma unroll
            for (int i = 0; i < N; i++)
                sums[i] += to_float(v.x[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        shared[warp][i * LANES + lane] = sums[i];
    __syncthreads();
    for (int at = threadIdx.x; at < LANES * N; at += WARPS * LANES) {
        int64_t c = (int64_t)blockIdx.x * LANES * N + at % LANES * N + at / LANES;
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += shared[w][at];
        if (c < row_packs * N)
            partial[(int64_t)blockIdx.y * row_packs * N + c] = sum;
    }
}

template <typename T>
__global__ void total_sums(int64_t columns, int64_t blocks, const float *partial, bool add, T *sums)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns)
        return;
    float sum = 0;
    for (int64_t b = 0; b < blocks; b++)
        sum += partial[b * columns + c];
    if (add)
        sum += to_float(sums[c]);
    round_to(&sums[c], sum);
}

template <typename T, int N>
cudaError_t run_add_bias(int64_t rows, int64_t columns, const void *bias, void *y,
                         cudaStream_t stream)
{
    const int threads = 256;
    int64_t row_packs = columns / N, packs = rows * row_packs;
    int64_t blocks = (packs + threads - 1) / threads;
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    add_bias<T, N><<<(unsigned)blocks, threads, 0, stream>>>(
        packs, row_packs, (const pack<T, N> *)bias, (pack<T, N> *)y);
    return cudaGetLastError();
}

template <typename T, int N>
cudaError_t run_column_sums(int64_t rows, int64_t columns, const void *x, bool add, void *sums,
                            float *scratch, size_t room, cudaStream_t stream)
{
    int64_t most = (int64_t)(room / sizeof(float)) / columns; /* blocks of rows */
    most = most < ROW_BLOCKS ? most : ROW_BLOCKS;
    if (most < 1)
        return cudaErrorInvalidValue;
    int64_t block_rows = (rows + most - 1) / most;
    block_rows = block_rows < ROWS ? ROWS : block_rows;
    int64_t blocks = (rows + block_rows - 1) / block_rows, row_packs = columns / N;
    dim3 grid((unsigned)((row_packs + LANES - 1) / LANES), (unsigned)blocks);
    block_sums<T, N><<<grid, LANES * WARPS, 0, stream>>>(rows, row_packs, block_rows,
                                                         (const pack<T, N> *)x, scratch);
    total_sums<T><<<(unsigned)((columns + 255) / 256), 256, 0, stream>>>(columns, blocks, scratch,
                                                                         add, (T *)sums);
    return cudaGetLastError();
}

/* Whether rows are whole 16-byte pieces. */
bool wide(int type, int64_t columns, const void *a, const void *b)
{
    return columns * (type == DTYPE_F32 ? 4 : 2) % 16 == 0 &&
           ((uintptr_t)a | (uintptr_t)b) % 16 == 0;
}

} // namespace

#define BY_TYPE(type, is_wide, CALL)                                                        \
    ((type) == DTYPE_F32    ? ((is_wide) ? CALL(float, 4) : CALL(float, 1))                 \
     : (type) == DTYPE_BF16 ? ((is_wide) ? CALL(__nv_bfloat16, 8) : CALL(__nv_bfloat16, 1)) \
                            : ((is_wide) ? CALL(__half, 8) : CALL(__half, 1)))

cudaError_t cuda_add_bias(int type, int64_t rows, int64_t columns, const void *bias, void *y,
                          cudaStream_t stream)
{
#define CALL(T, N) run_add_bias<T, N>(rows, columns, bias, y, stream)
    return BY_TYPE(type, wide(type, columns, bias, y), CALL);
#undef CALL
}

cudaError_t cuda_column_sums(int type, int64_t rows, int64_t columns, const void *x, bool add,
                             void *sums, float *scratch, size_t room, cudaStream_t stream)
{
#define CALL(T, N) run_column_sums<T, N>(rows, columns, x, add, sums, scratch, room, stream)
    return BY_TYPE(type, wide(type, columns, x, x), CALL);
#undef CALL
}
