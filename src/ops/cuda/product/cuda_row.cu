/* cuda_row -- a linear layer of one row: matrix times vector, at the speed of memory. Sums are in
 * float, in an order fixed by the shape, and rounded once; bias and GELU are fused.
 *
 * [out][in]: a warp takes one to four rows of the matrix, one pack per lane at a time. Fewer rows
 * per warp give more warps, more rows read x less often; the number follows from the shape and
 * changes no bit.
 *
 * [in][out]: a block takes a strip of 64 bytes of columns, the smallest unit that memory delivers,
 * and all rows: four threads per row, then the sums over the warp and over the warps in order.
 * Narrow strips give enough blocks to fill a GPU without splitting the sum. (32 bytes and half as
 * many threads: a fifth slower on an H200; 128 bytes, with the rows split over the blocks of a
 * cluster: no faster.)
 *
 * Each thread has four or eight packs in flight; the first of them, and the bias, are loaded
 * before the wait for x.
 */
#include "ops/cuda/common/follow.cuh"
#include "ops/cuda/common/vector.cuh"

namespace
{

const int ROW_THREADS = 256, STRIP_THREADS = 1024, STRIP_LANES = 4;

template <typename T> struct row_args {
    int in, out;
    const T *x, *w, *bias;
    T *pre, *y; /* pre NULL: no GELU */
};

/* Weights are read once per token, so they bypass the caches. */
template <typename T> __device__ inline pack<T> load_once(const T *from)
{
    uint4 bits = __ldcs(reinterpret_cast<const uint4 *>(from));
    return {{bits.x, bits.y, bits.z, bits.w}};
}

template <typename T> __device__ inline float bias_of(const row_args<T> &a, int64_t column)
{
    return a.bias && column < a.out ? widen(a.bias[column]) : 0.0f;
}

template <typename T>
__device__ inline void finish(const row_args<T> &a, int column, float sum, float bias)
{
    T value;
    narrow(a.bias ? add(sum, bias) : sum, &value);
    if (a.pre) {
        a.pre[column] = value;
        narrow(gelu_value<T>(widen(value)), &value);
    }
    a.y[column] = value;
}

/* --- [out][in]: ROWS rows of the matrix per warp ---------------------------------------------- */

template <typename T, int ROWS>
__global__ void __launch_bounds__(ROW_THREADS) along_rows(row_args<T> a)
{
    constexpr int N = PACK<T>, DEPTH = ROWS < 4 ? 4 : 2;
    int lane = threadIdx.x % WARP, packs = a.in / N;
    int64_t first = ((int64_t)blockIdx.x * (ROW_THREADS / WARP) + threadIdx.x / WARP) * ROWS;
    const T *rows = a.w + first * a.in;
    float sums[ROWS][2] = {}; /* even and odd elements */
    follow_let();
    float bias = lane < ROWS ? bias_of(a, first + lane) : 0.0f;
    for (int at = lane; at - lane < packs; at += DEPTH * WARP) {
        pack<T> w[ROWS][DEPTH] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
                if (first + r < a.out && at + d * WARP < packs)
                    w[r][d] = load_once(rows + (int64_t)r * a.in + (at + d * WARP) * N);
        if (at == lane)
            follow_wait();
        pack<T> xs[DEPTH] = {};
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            if (at + d * WARP < packs)
                xs[d] = load(a.x + (at + d * WARP) * N);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            float x[N], f[N];
            widen(xs[d], x);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                widen(w[r][d], f);
#pragma unroll
                for (int i = 0; i < N; i++)
                    sums[r][i % 2] = fma_(x[i], f[i], sums[r][i % 2]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(add(sums[r][0], sums[r][1]));
        if (lane == r && first + r < a.out)
            finish(a, (int)first + r, sum, bias);
    }
}

template <typename T, int ROWS> cudaError_t run_rows(cudaStream_t stream, const row_args<T> &a)
{
    return follow(along_rows<T, ROWS>, div_up(a.out, ROW_THREADS / WARP * ROWS), ROW_THREADS, 0,
                  stream, a);
}

/* --- [in][out]: one strip of four packs per block --------------------------------------------- */

template <typename T> constexpr int STRIP = STRIP_LANES *PACK<T>;

template <typename T> __global__ void __launch_bounds__(STRIP_THREADS) down_strip(row_args<T> a)
{
    constexpr int N = PACK<T>, DEPTH = 8, LINES = STRIP_THREADS / STRIP_LANES;
    constexpr int WARPS = STRIP_THREADS / WARP;
    __shared__ float room[WARPS][STRIP<T>];
    int side = threadIdx.x % STRIP_LANES, line = threadIdx.x / STRIP_LANES;
    int first = blockIdx.x * STRIP<T>;
    bool here = first + side * N < a.out;
    const T *at = a.w + (int64_t)line * a.out + first + side * N;
    float sums[N] = {};
    follow_let();
    int column = threadIdx.x; /* of the strip, for the final sum */
    float bias = column < STRIP<T> ? bias_of(a, first + column) : 0.0f;
    for (int i = line; i - line < a.in; i += DEPTH * LINES) {
        pack<T> w[DEPTH] = {};
#pragma unroll
        for (int d = 0; d < DEPTH; d++, at += (int64_t)LINES * a.out)
            if (here && i + d * LINES < a.in)
                w[d] = load_once(at);
        if (i == line)
            follow_wait();
        float x[DEPTH], f[N];
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            x[d] = i + d * LINES < a.in ? widen(a.x[i + d * LINES]) : 0.0f;
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            widen(w[d], f);
#pragma unroll
            for (int j = 0; j < N; j++)
                sums[j] = fma_(x[d], f[j], sums[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
        for (int apart = WARP / 2; apart >= STRIP_LANES; apart /= 2)
            sums[j] += __shfl_xor_sync(ALL_LANES, sums[j], apart);
        if (threadIdx.x % WARP < STRIP_LANES)
            room[threadIdx.x / WARP][side * N + j] = sums[j];
    }
    __syncthreads();
    if (column < STRIP<T> && first + column < a.out) {
        float sum = room[0][column];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++)
            sum += room[warp][column];
        finish(a, first + column, sum, bias);
    }
}

template <typename T> cudaError_t run(cudaStream_t stream, bool out_in, const row_args<T> &a)
{
    if (!out_in)
        return follow(down_strip<T>, div_up(a.out, STRIP<T>), STRIP_THREADS, 0, stream, a);
    return a.out >= 16384  ? run_rows<T, 4>(stream, a)
           : a.out >= 4096 ? run_rows<T, 2>(stream, a)
                           : run_rows<T, 1>(stream, a);
}

} // namespace

bool kernel_linear_row_takes(enum dtype type, bool out_in, int64_t in, int64_t out, const void *x,
                             const void *w)
{
    int64_t whole = type == DTYPE_F32 ? 4 : 8;
    return (out_in ? in : out) % whole == 0 && in <= 1 << 24 && out <= 1 << 24 && is_wide(x) &&
           is_wide(w);
}

cudaError_t launch_linear_row(cudaStream_t stream, enum dtype type, bool out_in, int64_t in,
                              int64_t out, const void *x, const void *w, const void *bias,
                              void *pre, void *y)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        row_args<T> a = {(int)in,         (int)out, (const T *)x, (const T *)w,
                         (const T *)bias, (T *)pre, (T *)y};
        return run<T>(stream, out_in, a);
    });
}
