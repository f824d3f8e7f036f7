/* cuda_columns -- memory-bound: x is read once, 16 bytes per thread where the width allows.
 *
 * Column sums take two launches. In the first, a block takes a strip of columns, one pack per
 * lane, and a run of rows: each warp takes every WARPS-th row, four in flight, then the warps are
 * added in order to the block's partial sum. In the second, each lane takes a column: sixteen
 * warps add a run of partial sums each, in order, then the runs are added in order. The cut
 * depends only on the shape (and the room for partial sums): as many blocks as fit on a GPU of 132
 * multiprocessors at once. No atomics.
 */
#include "device/gpu_facts.h"
#include "ops/cuda/common/vector.cuh"

namespace
{

const int WARPS = 8, THREADS = WARPS * WARP;
const int64_t BLOCKS = GPU_HOPPER_PROCESSORS * 6; /* of the first launch, approximately */
const int64_t ROWS = 8 * WARPS;                   /* minimum rows of a block, and their unit */
const int RUNS = 16;

template <typename T>
__global__ void __launch_bounds__(THREADS)
    add_bias(int64_t width, int64_t stride, bool wide, const T *bias, T *y /* (R, width) */)
{
    constexpr int N = PACK<T>;
    T *row = y + (int64_t)blockIdx.x * stride;
    for (int64_t c = (int64_t)threadIdx.x * N; c < width; c += (int64_t)blockDim.x * N) {
        float f[N], b[N];
        widen(load_some(row + c, width - c, wide), f);
        widen(load_some(bias + c, width - c, wide), b);
#pragma unroll
        for (int i = 0; i < N; i++)
            f[i] = add(f[i], b[i]);
        store_some(row + c, narrow<T>(f), width - c, wide);
    }
}

/* partial[blockIdx.y][column]. WIDE: rows consist of full packs. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(THREADS, 6)
    block_sums(int64_t rows, int64_t width, int64_t stride, int64_t block_rows, const T *x,
               float *partial)
{
    constexpr int N = PACK<T>;
    __shared__ float shared[WARPS][N * WARP]; /* indexed by element of a pack, then by lane */
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t strip = (int64_t)blockIdx.x * WARP * N, column = strip + lane * N;
    int64_t first = (int64_t)blockIdx.y * block_rows, end = min(first + block_rows, rows);
    const T *at = x + (first + warp) * stride + column;
    float sums[N] = {};
    if (column < width) {
#pragma unroll 4
        for (int64_t r = first + warp; r < end; r += WARPS) {
            float f[N];
            widen(WIDE ? load(at) : load_some(at, width - column, false), f);
#pragma unroll
            for (int i = 0; i < N; i++)
                sums[i] = add(sums[i], f[i]);
            at += WARPS * stride;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        shared[warp][i * WARP + lane] = sums[i];
    __syncthreads();
    for (int k = threadIdx.x; k < N * WARP; k += THREADS) {
        int64_t c = strip + k % WARP * N + k / WARP;
        float sum = shared[0][k];
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            sum = add(sum, shared[w][k]);
        if (c < width)
            partial[(int64_t)blockIdx.y * width + c] = sum;
    }
}

int64_t columns_of(const kernel_sums &to)
{
    int64_t columns = 0;
    for (const auto &part : to.parts)
        columns += part.columns;
    return columns;
}

template <typename T> __device__ inline T *address_of(const kernel_sums &to, int64_t column)
{
    int part = 0;
    while (column >= to.parts[part].columns)
        column -= to.parts[part++].columns;
    return (T *)to.parts[part].sums + column;
}

template <typename T>
__global__ void __launch_bounds__(RUNS *WARP)
    total_sums(int64_t width, int blocks, const float *partial, bool keep, kernel_sums to)
{
    __shared__ float shared[RUNS][WARP];
    int lane = threadIdx.x % WARP, run = threadIdx.x / WARP;
    int64_t c = (int64_t)blockIdx.x * WARP + lane;
    int each = (blocks + RUNS - 1) / RUNS, end = min(blocks, (run + 1) * each);
    float sum = 0;
    if (c < width) {
#pragma unroll 8
        for (int b = run * each; b < end; b++)
            sum = add(sum, partial[b * width + c]);
    }
    shared[run][lane] = sum;
    __syncthreads();
    if (run > 0 || c >= width)
        return;
#pragma unroll
    for (int k = 1; k < RUNS; k++)
        sum = add(sum, shared[k][lane]);
    T *at = address_of<T>(to, c);
    narrow(keep ? add(sum, widen(*at)) : sum, at);
}

} // namespace

cudaError_t cuda_add_bias(int type, int64_t rows, int64_t columns, int64_t stride, const void *bias,
                          void *y, cudaStream_t stream)
{
    return with_type((enum dtype)type, [=](auto zero) {
        using T = decltype(zero);
        bool wide = stride % PACK<T> == 0 && is_wide(bias) && is_wide(y);
        unsigned blocks = (unsigned)rows, threads = row_threads(div_up(columns, PACK<T>));
        add_bias<T><<<blocks, threads, 0, stream>>>(columns, stride, wide, (const T *)bias, (T *)y);
        return cudaGetLastError();
    });
}

cudaError_t cuda_add_partials(int type, int blocks, const float *partials, bool keep,
                              struct kernel_sums to, cudaStream_t stream)
{
    return with_type((enum dtype)type, [=](auto zero) {
        using T = decltype(zero);
        int64_t columns = columns_of(to);
        unsigned totals = (unsigned)div_up(columns, WARP);
        total_sums<T><<<totals, RUNS * WARP, 0, stream>>>(columns, blocks, partials, keep, to);
        return cudaGetLastError();
    });
}

cudaError_t cuda_column_sums(int type, int64_t rows, int64_t columns, int64_t stride, const void *x,
                             bool keep, void *sums, float *scratch, size_t room,
                             cudaStream_t stream)
{
    return with_type((enum dtype)type, [=](auto zero) {
        using T = decltype(zero);
        int64_t strips = div_up(columns, WARP * PACK<T>);
        int64_t most = (int64_t)(room / sizeof(float)) / columns, wanted = div_up(BLOCKS, strips);
        most = most < wanted ? most : wanted;
        if (most < 1)
            return cudaErrorInvalidValue;
        int64_t block_rows = div_up(div_up(rows, most), ROWS) * ROWS;
        int64_t blocks = div_up(rows, block_rows);
        dim3 grid((unsigned)strips, (unsigned)blocks);
        if (columns % PACK<T> == 0 && stride % PACK<T> == 0 && is_wide(x))
            block_sums<T, true><<<grid, THREADS, 0, stream>>>(rows, columns, stride, block_rows,
                                                              (const T *)x, scratch);
        else
            block_sums<T, false><<<grid, THREADS, 0, stream>>>(rows, columns, stride, block_rows,
                                                               (const T *)x, scratch);
        cudaError_t error = cudaGetLastError();
        return error != cudaSuccess ? error
                                    : cuda_add_partials(type, (int)blocks, scratch, keep,
                                                        {{{columns, sums}}}, stream);
    });
}
