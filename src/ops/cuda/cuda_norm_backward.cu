/* cuda_norm_backward -- the backward pass of LayerNorm and RMSNorm.
 *
 * With xhat = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - xhat mean(g xhat)),
 * without mean(g) for RMSNorm.
 *
 * A block loops over many rows and keeps the partial dweight and dbias of its columns in
 * registers. That leaves too few registers for rows in flight, so the next row is copied to shared
 * memory meanwhile (below 99 KiB per block, which every GPU has). The number of blocks, and the
 * rows of each, depend on type, width and rows only; partial sums go to scratch (blocks, 2, C),
 * and a second kernel adds them in order. Rows that are too long, or do not consist of full packs,
 * take the plain kernel, which keeps its partial sums in scratch. Column sums of the gradients are
 * separate passes (cuda_columns.cu). On Hopper most shapes take cuda_norm_backward_hopper.cu,
 * which forms these sums too.
 *
 * Bytes, of R C elements: 4 tensors (3 without dsum).
 */
#include <cuda_pipeline_primitives.h>
#include "ops/cuda/common/vector.cuh"

enum { ANY_THREADS = 256 }; /* of the plain kernel */

/* --- rows ------------------------------------------------------------------------------------- */

template <typename T> struct backward_args {
    int64_t rows;
    int width;
    bool layer;
    const T *dy, *sum, *weight;
    const float *mean, *rstd;
    const T *dsum;
    T *dsum_out;
    float *partials; /* (blocks, 2, C) */
    float offset;    /* added to the weight */
};

static __device__ inline float norm_gradient(float g, float xhat, float rstd, float mean_g,
                                             float mean_gx, float dsum)
{
    return fma_(rstd, fma_(-xhat, mean_gx, sub(g, mean_g)), dsum);
}

/* How rows are distributed: GROUP threads per row (a warp, or a whole block), up to PACKS packs
 * each. THREADS per block, PER_SM per multiprocessor: as many as there are registers for their
 * sums and shared memory for the rows in flight. */
template <int GROUP, int PACKS> struct shape {
    static constexpr int THREADS = GROUP > WARP ? GROUP : PACKS <= 3 ? 256 : 128;
    static constexpr int PER_SM = PACKS <= 3 ? 512 : 384;
};

/* Rows in flight: a thread copies its own packs of dy, sum and dsum of the next row to shared
 * memory while it works on this one, and reads them from there, so threads do not wait for each
 * other. */
enum { STAGES = 2, TENSORS = 3 };

template <int THREADS, int PACKS> struct row_buffer {
    uint4 at[STAGES][TENSORS][PACKS][THREADS]; /* packs */
};

template <typename T> static __device__ inline void widen(const uint4 &at, float (&f)[PACK<T>])
{
    widen(load(reinterpret_cast<const T *>(&at)), f);
}

template <typename T, int GROUP, int PACKS, typename Buffer>
static __device__ inline void fetch_row(const backward_args<T> &a, int64_t r, int stage,
                                        Buffer *buffer)
{
    int at = threadIdx.x % GROUP, packs = a.width / PACK<T>;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t c = r * a.width + (at + k * GROUP) * PACK<T>;
        if (at + k * GROUP >= packs)
            continue;
        __pipeline_memcpy_async(&buffer->at[stage][0][k][threadIdx.x], a.dy + c, 16);
        __pipeline_memcpy_async(&buffer->at[stage][1][k][threadIdx.x], a.sum + c, 16);
        if (a.dsum)
            __pipeline_memcpy_async(&buffer->at[stage][2][k][threadIdx.x], a.dsum + c, 16);
    }
}

/* Adds the partial sums of a block's warps in order, through shared memory (C). */
template <typename T, int PACKS>
static __device__ inline void add_warps(int width, const float (&sums)[PACKS][PACK<T>],
                                        float *shared, float *to)
{
    int at = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    for (int w = 0; w < warps; w++) {
        __syncthreads();
        if (w != warp)
            continue;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
#pragma unroll
            for (int i = 0; i < PACK<T>; i++) {
                int c = (at + k * WARP) * PACK<T> + i;
                if (c < width)
                    shared[c] = w == 0 ? sums[k][i] : shared[c] + sums[k][i];
            }
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += blockDim.x)
        to[c] = shared[c];
}

/* Writes a block's partial dweight or dbias. */
template <typename T, int GROUP, int PACKS>
static __device__ inline void write_share(int width, const float (&sums)[PACKS][PACK<T>],
                                          float *shared, float *to)
{
    if constexpr (GROUP == WARP) {
        add_warps<T, PACKS>(width, sums, shared, to);
    } else {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
#pragma unroll
            for (int i = 0; i < PACK<T>; i++) {
                int c = (int)(threadIdx.x + k * GROUP) * PACK<T> + i;
                if (c < width)
                    to[c] = sums[k][i];
            }
        }
    }
}

/* GROUP threads per row; BIAS: dbias is wanted. */
template <typename T, int GROUP, int PACKS, bool BIAS>
__global__ void __launch_bounds__(shape<GROUP, PACKS>::THREADS,
                                  shape<GROUP, PACKS>::PER_SM / shape<GROUP, PACKS>::THREADS)
    backward_rows(backward_args<T> a)
{
    constexpr int N = PACK<T>, THREADS = shape<GROUP, PACKS>::THREADS, GROUPS = THREADS / GROUP;
    extern __shared__ __align__(16) unsigned char dynamic[];
    auto *rows = reinterpret_cast<row_buffer<THREADS, PACKS> *>(dynamic);
    __shared__ float2 room[GROUP / WARP];
    int at = threadIdx.x % GROUP, packs = a.width / N, me = threadIdx.x, stage = 0;
    float dweight[PACKS][N] = {}, dbias[BIAS ? PACKS : 1][N] = {};
    int64_t stride = (int64_t)gridDim.x * GROUPS;
    int64_t r = (int64_t)blockIdx.x * GROUPS + me / GROUP;

    float next_mean = 0, next_rstd = 0;
    auto fetch = [&](int64_t row, int to) {
        if (row < a.rows) {
            fetch_row<T, GROUP, PACKS>(a, row, to, rows);
            next_mean = a.layer ? a.mean[row] : 0.0f;
            next_rstd = a.rstd[row];
        }
        __pipeline_commit();
    };
    fetch(r, 0);
    for (; r < a.rows; r += stride, stage ^= 1) {
        float mean = next_mean, rstd = next_rstd;
        fetch(r + stride, stage ^ 1);
        __pipeline_wait_prior(1); /* this row has arrived, the next may be in flight */

        float2 sums = {0, 0};
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            float d[N], f[N], w[N];
            if (at + k * GROUP >= packs)
                continue;
            widen<T>(rows->at[stage][0][k][me], d);
            widen<T>(rows->at[stage][1][k][me], f);
            widen(load(a.weight + (at + k * GROUP) * N), w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float xhat = mul(sub(f[i], mean), rstd), g = mul(d[i], add(w[i], a.offset));
                sums.x = add(sums.x, g);
                sums.y = fma_(g, xhat, sums.y);
                dweight[k][i] = fma_(d[i], xhat, dweight[k][i]);
                if constexpr (BIAS)
                    dbias[k][i] = add(dbias[k][i], d[i]);
            }
        }
        asm volatile(
            "" ::
                : "memory"); /* reload the packs below instead of keeping them in registers */
        sums.x = warp_sum(sums.x);
        sums.y = warp_sum(sums.y);
        if constexpr (GROUP > WARP) {
            if (me % WARP == 0)
                room[me / WARP] = sums;
            __syncthreads();
            sums = room[0];
#pragma unroll
            for (int w = 1; w < GROUP / WARP; w++)
                sums = make_float2(sums.x + room[w].x, sums.y + room[w].y);
            __syncthreads();
        }
        float mean_g = a.layer ? __fdiv_rn(sums.x, (float)a.width) : 0.0f;
        float mean_gx = __fdiv_rn(sums.y, (float)a.width);

#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            if (at + k * GROUP >= packs)
                continue;
            float d[N], f[N], w[N], s[N] = {};
            widen<T>(rows->at[stage][0][k][me], d);
            widen<T>(rows->at[stage][1][k][me], f);
            widen(load(a.weight + (at + k * GROUP) * N), w);
            if (a.dsum)
                widen<T>(rows->at[stage][2][k][me], s);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] = norm_gradient(mul(d[i], add(w[i], a.offset)), mul(sub(f[i], mean), rstd),
                                     rstd, mean_g, mean_gx, s[i]);
            store(a.dsum_out + r * a.width + (at + k * GROUP) * N, narrow<T>(f));
        }
    }

    float *shared = reinterpret_cast<float *>(dynamic); /* (C): all rows are done */
    float *to = a.partials + (int64_t)blockIdx.x * 2 * a.width;
    write_share<T, GROUP, PACKS>(a.width, dweight, shared, to);
    if constexpr (BIAS)
        write_share<T, GROUP, PACKS>(a.width, dbias, shared, to + a.width);
}

/* Any width: a block loops over its rows and adds to its partial sums in scratch, each thread to
 * its own columns. */
template <typename T>
__global__ void __launch_bounds__(ANY_THREADS) backward_any(backward_args<T> a)
{
    __shared__ float room[ANY_THREADS / WARP];
    float *dweight = a.partials + (int64_t)blockIdx.x * 2 * a.width, *dbias = dweight + a.width;
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS)
        dweight[c] = dbias[c] = 0;
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        int64_t row = r * a.width;
        float mean = a.layer ? a.mean[r] : 0.0f, rstd = a.rstd[r], mean_g = 0, mean_gx = 0;
        for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
            float d = widen(a.dy[row + c]), xhat = mul(sub(widen(a.sum[row + c]), mean), rstd);
            float g = mul(d, add(widen(a.weight[c]), a.offset));
            mean_g = add(mean_g, g);
            mean_gx = fma_(g, xhat, mean_gx);
            dweight[c] = fma_(d, xhat, dweight[c]);
            dbias[c] = add(dbias[c], d);
        }
        mean_g = __fdiv_rn(group_sum<ANY_THREADS>(mean_g, room), (float)a.width);
        mean_gx = __fdiv_rn(group_sum<ANY_THREADS>(mean_gx, room), (float)a.width);
        if (!a.layer)
            mean_g = 0;
        for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
            float xhat = mul(sub(widen(a.sum[row + c]), mean), rstd);
            float g = mul(widen(a.dy[row + c]), add(widen(a.weight[c]), a.offset));
            narrow(norm_gradient(g, xhat, rstd, mean_g, mean_gx,
                                 a.dsum ? widen(a.dsum[row + c]) : 0.0f),
                   &a.dsum_out[row + c]);
        }
    }
}

/* --- adding the partial sums of all blocks ---------------------------------------------------- */

/* dweight, dbias and the column sums (blockIdx.y) from the partial sums (blocks, sums, C): 32
 * columns per block; each of its warps adds a run of partial sums in order, then the runs are
 * added in order. */
enum { RUNS = 16, SUMS = 4 };

template <typename T> struct sums_of {
    T *to[SUMS]; /* NULL: not wanted */
};

template <typename T>
__global__ void __launch_bounds__(RUNS *WARP)
    add_partials(int blocks, int sums, int width, const float *partials, sums_of<T> wanted)
{
    __shared__ float runs[RUNS][WARP];
    int lane = threadIdx.x % WARP, run = threadIdx.x / WARP, c = blockIdx.x * WARP + lane;
    T *to = wanted.to[blockIdx.y];
    int each = (blocks + RUNS - 1) / RUNS, end = min(blocks, (run + 1) * each);
    if (!to)
        return;
    float sum = 0;
    if (c < width) {
#pragma unroll 8
        for (int b = run * each; b < end; b++)
            sum = add(sum, partials[((int64_t)b * sums + blockIdx.y) * width + c]);
    }
    runs[run][lane] = sum;
    __syncthreads();
    if (run == 0 && c < width) {
#pragma unroll
        for (int k = 1; k < RUNS; k++)
            sum = add(sum, runs[k][lane]);
        narrow(sum, &to[c]);
    }
}

/* --- distribution over blocks ----------------------------------------------------------------- */

/* As many blocks as 132 multiprocessors hold at once: a constant, so that the bits do not depend
 * on the GPU. */
struct cut {
    int group, packs; /* threads per row, packs per thread; packs 0: the plain kernel */
    int64_t blocks;
};

static struct cut cut_of(enum dtype type, int64_t width, int64_t rows, bool aligned)
{
    int64_t n = 16 / (int64_t)(type == DTYPE_F32 ? 4 : 2), packs = width / n;
    if (!aligned || width % n != 0 || packs > 4 * 256)
        return {ANY_THREADS, 0, rows < 264 ? rows : 264};
    int group = packs <= 6 * WARP ? WARP : packs <= 6 * 128 ? 128 : 256;
    int each = (int)div_up(packs, group);
    int threads = group > WARP ? group : each <= 3 ? 256 : 128; /* as in struct shape */
    int64_t most = 132 * ((each <= 3 ? 512 : 384) / threads);
    int64_t blocks = div_up(rows, threads / group);
    return {group, each, blocks < most ? blocks : most};
}

size_t kernel_norm_scratch(enum dtype type, int64_t width, int64_t rows)
{
    int64_t floats[] = {cut_of(type, width, rows, true).blocks * 2,
                        cut_of(type, width, rows, false).blocks * 2,
                        kernel_norm_hopper_blocks(type, width, rows) * (int64_t)SUMS};
    int64_t most = 0;
    for (int64_t count : floats)
        most = count > most ? count : most;
    return (size_t)(most * width) * sizeof(float);
}

template <typename T, int GROUP, int PACKS>
static cudaError_t backward_in(cudaStream_t stream, struct cut cut, bool bias,
                               const backward_args<T> &a)
{
    constexpr int THREADS = shape<GROUP, PACKS>::THREADS;
    constexpr size_t shared = sizeof(row_buffer<THREADS, PACKS>);
    auto *kernel =
        bias ? backward_rows<T, GROUP, PACKS, true> : backward_rows<T, GROUP, PACKS, false>;
    unsigned blocks = (unsigned)cut.blocks;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess)
        return error;
    kernel<<<blocks, THREADS, shared, stream>>>(a);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t backward_typed(cudaStream_t stream, struct cut cut, bool bias,
                                  const backward_args<T> &a)
{
    if (cut.packs == 0) {
        unsigned blocks = (unsigned)cut.blocks;
        backward_any<T><<<blocks, ANY_THREADS, 0, stream>>>(a);
        return cudaGetLastError();
    }
#define IN(threads, count)                          \
    if (cut.group == threads && cut.packs == count) \
    return backward_in<T, threads, count>(stream, cut, bias, a)
    IN(WARP, 1);
    IN(WARP, 2);
    IN(WARP, 3);
    IN(WARP, 4);
    IN(WARP, 5);
    IN(WARP, 6);
    IN(128, 2);
    IN(128, 3);
    IN(128, 4);
    IN(128, 5);
    IN(128, 6);
    IN(256, 4);
#undef IN
    return cudaErrorInvalidValue;
}

/* The first `sums` outputs from the partial sums in scratch. */
static cudaError_t add_shares(cudaStream_t stream, enum dtype type, const kernel_norm_backward &n,
                              int64_t blocks, int sums)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        sums_of<T> wanted = {
            {(T *)n.dweight, (T *)n.dbias, (T *)n.dsum_columns, (T *)n.out_columns}};
        dim3 grid((unsigned)div_up(n.width, WARP), (unsigned)sums);
        add_partials<T><<<grid, RUNS * WARP, 0, stream>>>((int)blocks, sums, (int)n.width,
                                                          (const float *)n.scratch, wanted);
        return cudaGetLastError();
    });
}

static cudaError_t launch_rows(cudaStream_t stream, enum dtype type, const kernel_norm_backward &n,
                               struct cut cut)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        backward_args<T> a = {n.rows,
                              (int)n.width,
                              n.layer,
                              (const T *)n.dy,
                              (const T *)n.sum,
                              (const T *)n.weight,
                              n.mean,
                              n.rstd,
                              (const T *)n.dsum,
                              (T *)n.dsum_out,
                              (float *)n.scratch,
                              n.offset};
        return backward_typed<T>(stream, cut, n.dbias != NULL, a);
    });
}

/* dsum_columns or out_columns, by a separate pass. */
static cudaError_t add_columns(cudaStream_t stream, enum dtype type, const kernel_norm_backward &n,
                               const void *x, void *sums)
{
    if (!sums)
        return cudaSuccess;
    return cuda_column_sums(type, n.rows, n.width, n.width, x, false, sums, (float *)n.scratch,
                            kernel_norm_scratch(type, n.width, n.rows), stream);
}

cudaError_t launch_norm_backward(cudaStream_t stream, enum dtype type,
                                 struct kernel_norm_backward n, bool hopper)
{
    bool aligned = is_wide(n.dy) && is_wide(n.sum) && is_wide(n.weight) && is_wide(n.dsum) &&
                   is_wide(n.dsum_out);
    int blocks = hopper && aligned ? kernel_norm_hopper_blocks(type, n.width, n.rows) : 0;
    cudaError_t error;
    if (blocks > 0) {
        int sums = n.dsum_columns || n.out_columns ? 4 : n.dbias ? 2 : 1;
        error = launch_norm_rows_hopper(stream, type, n, sums);
        return error != cudaSuccess ? error : add_shares(stream, type, n, blocks, sums);
    }
    struct cut cut = cut_of(type, n.width, n.rows, aligned);
    error = add_columns(stream, type, n, n.dsum, n.dsum_columns);
    if (error == cudaSuccess)
        error = launch_rows(stream, type, n, cut);
    if (error == cudaSuccess)
        error = add_shares(stream, type, n, cut.blocks, 2);
    return error != cudaSuccess ? error : add_columns(stream, type, n, n.dsum_out, n.out_columns);
}
