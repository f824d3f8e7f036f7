/* cuda_norm_backward_hopper -- the backward pass of norms for compute capability 9.0: rows go
 * through shared memory, moved by the copy engine. 16-bit types. cuda_norm_backward.cu has the
 * formula and adds the partial sums.
 *
 * One block per multiprocessor. A row belongs to a group of one, two, four or eight warps, and
 * each group has a ring of rows in shared memory (dy, sum and dsum): while it works on one, the
 * others are in flight. The group's first thread issues the loads; no thread waits for another
 * group.
 *
 *     row n:  loaded -> full[stage] -> sums over the row -> group barrier -> gradient written
 *                                                           row n - 1 has been read by all threads:
 *                                                           its buffer is loaded with row
 *                                                           n - 1 + stages
 *
 * Arithmetic matters too: at the speed of memory a multiprocessor could issue some 57 instructions
 * per element, if its few warps never waited. So dhat = dy weight stays in registers until the
 * gradient is formed, and xhat = rstd x + shift is expanded:
 *     dx = rstd dhat + of_x x + of_one     of_x = -rstd^2 mean(dhat xhat)
 *                                          of_one = -rstd (mean(dhat) + shift mean(dhat xhat)).
 *
 * Each thread keeps partial sums of its columns in registers, up to four: dweight, dbias and the
 * columns of dsum and of dsum_out. At the end those of the groups are added in order, and the
 * block's go to scratch (blocks, sums, C). The number of blocks, and the rows of each group,
 * depend on width and rows only.
 *
 * This file is compiled for sm_90a only (cmake/cuda.cmake).
 */
#include "device/gpu_facts.h"
#include "ops/cuda/common/hopper.cuh"
#include "ops/cuda/common/vector.cuh"

namespace
{

using namespace hopper;

enum {
    BLOCKS =
        GPU_HOPPER_PROCESSORS, /* at most; a constant, so that the bits do not depend on the GPU */
    WARPS = 8,                 /* per block */
    THREADS = WARPS * WARP,
    N = 8, /* elements of a pack */
    TENSORS = 3,
    STAGES = 8,           /* at most */
    MEMORY = 222 * 1024,  /* bytes of a block's weight and rings, at most */
    WIDEST = WARPS * 1024 /* columns */
};

template <typename T> struct row_args {
    int64_t rows;
    int width, stages;
    bool layer;
    const T *dy, *sum, *weight;
    const float *mean, *rstd;
    const T *dsum;
    T *dsum_out;
    float *partials; /* (blocks, SUMS, C) */
    float offset;    /* added to the weight */
};

/* W warps per row, at most PACKS packs per thread. */
template <int W, int PACKS> struct shape {
    static constexpr int LANES = W * WARP, GROUPS = WARPS / W;
    /* floats from one element of a pack to the next: no bank conflicts, by pack or by column */
    static constexpr int APART = LANES + 4;
    static constexpr int SHARE = PACKS * N * APART; /* per group and sum */
};

template <typename T>
__device__ inline void ask(const row_args<T> &a, int64_t row, T *to, uint64_t *full)
{
    int bytes = a.width * (int)sizeof(T);
    uint32_t barrier = shared_address(full);
    barrier_expect(barrier, a.dsum ? 3 * bytes : 2 * bytes);
    load_bytes(shared_address(to), a.dy + row * a.width, bytes, barrier);
    load_bytes(shared_address(to + a.width), a.sum + row * a.width, bytes, barrier);
    if (a.dsum)
        load_bytes(shared_address(to + 2 * a.width), a.dsum + row * a.width, bytes, barrier);
}

/* The sums over a row, in every thread of its group; a barrier of the group. `room` is free again
 * after the next such barrier. `met` counts threads rather than warps: an arrival orders only what
 * its own thread did, and compute-sanitizer checks exactly that. A named barrier would do, but the
 * tool does not track those for part of a block. */
template <int W>
__device__ inline float2 meet(float2 sums, int at, float2 *room, uint64_t *met, uint32_t parity)
{
    sums = make_float2(warp_sum(sums.x), warp_sum(sums.y));
    __syncwarp();
    if constexpr (W == 1)
        return sums;
    if (at % WARP == 0)
        room[at / WARP] = sums;
    barrier_arrive(shared_address(met));
    barrier_wait(shared_address(met), parity);
    sums = room[0];
#pragma unroll
    for (int w = 1; w < W; w++)
        sums = make_float2(add(sums.x, room[w].x), add(sums.y, room[w].y));
    return sums;
}

/* Adds the partial sums of the groups in order, through shared memory. */
template <int W, int PACKS, int SUMS>
__device__ inline void write_shares(int width, const float (&share)[SUMS][PACKS][N], float *shared,
                                    float *to /* (SUMS, C) */)
{
    using S = shape<W, PACKS>;
    int group = threadIdx.x / S::LANES, at = threadIdx.x % S::LANES;
    __syncthreads(); /* all rows are done */
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
#pragma unroll
            for (int i = 0; i < N; i++)
                shared[(group * SUMS + j) * S::SHARE + (k * N + i) * S::APART + at] =
                    share[j][k][i];
        }
    }
    __syncthreads();
    for (int j = 0; j < SUMS; j++) {
        for (int c = threadIdx.x; c < width; c += THREADS) {
            int k = c / N / S::LANES, lane = c / N % S::LANES;
            const float *from = shared + j * S::SHARE + (k * N + c % N) * S::APART + lane;
            float sum = from[0];
#pragma unroll
            for (int g = 1; g < S::GROUPS; g++)
                sum = add(sum, from[g * SUMS * S::SHARE]);
            to[j * width + c] = sum;
        }
    }
}

/* SUMS: 1 dweight, 2 also dbias, 4 also the columns of dsum and dsum_out. */
template <typename T, int W, int PACKS, int SUMS>
__global__ void __launch_bounds__(THREADS, 1) backward_rows(const __grid_constant__ row_args<T> a)
{
    constexpr int LANES = shape<W, PACKS>::LANES, GROUPS = shape<W, PACKS>::GROUPS;
    extern __shared__ __align__(128) char dynamic[];
    __shared__ uint64_t full[GROUPS][STAGES], met[GROUPS];
    __shared__ float2 room[GROUPS][2][W];
    int group = threadIdx.x / LANES, at = threadIdx.x % LANES;
    T *weight = reinterpret_cast<T *>(dynamic); /* (C) */
    T *ring = weight + a.width + group * a.stages * TENSORS * a.width;
    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPS * STAGES; i++)
            barrier_init(shared_address(&full[0][i]), 1);
        for (int i = 0; i < GROUPS; i++)
            barrier_init(shared_address(&met[i]), LANES);
        barrier_init_done();
    }
    for (int c = threadIdx.x * N; c < a.width; c += THREADS * N)
        store(weight + c, load(a.weight + c));
    __syncthreads();

    /* The rows of this group; all but one buffer are loaded in advance. */
    int64_t stride = (int64_t)gridDim.x * GROUPS, r = (int64_t)group * gridDim.x + blockIdx.x;
    int64_t ahead = (a.stages - 1) * stride;
    for (int s = 0; at == 0 && s < a.stages - 1; s++)
        if (r + s * stride < a.rows)
            ask(a, r + s * stride, ring + s * TENSORS * a.width, &full[group][s]);

    float share[SUMS][PACKS][N] = {}, next_mean = 0, next_rstd = 0;
    float inverse = __fdiv_rn(1.0f, (float)a.width);
    auto look = [&](int64_t row) {
        if (row < a.rows) {
            next_mean = a.layer ? a.mean[row] : 0.0f;
            next_rstd = a.rstd[row];
        }
    };
    look(r);
    int stage = 0, before = a.stages - 1; /* before: the stage of the previous row */
    uint32_t parity = 0, turn = 0;
    for (; r < a.rows; r += stride, turn ^= 1) {
        const T *dy = ring + stage * TENSORS * a.width, *x = dy + a.width, *dsum = x + a.width;
        float rstd = next_rstd, shift = mul(-next_mean, rstd);
        float dhat[PACKS][N], g[2] = {}, gx[2] = {}; /* two sums each, used alternately */
        look(r + stride);
        barrier_wait(shared_address(&full[group][stage]), parity);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int c = (at + k * LANES) * N;
            float d[N], f[N], w[N];
            if (c >= a.width)
                continue;
            widen(load(dy + c), d);
            widen(load(x + c), f);
            widen(load(weight + c), w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float xhat = fma_(f[i], rstd, shift);
                dhat[k][i] = mul(d[i], add(w[i], a.offset));
                g[i % 2] = add(g[i % 2], dhat[k][i]);
                gx[i % 2] = fma_(dhat[k][i], xhat, gx[i % 2]);
                share[0][k][i] = fma_(d[i], xhat, share[0][k][i]);
                if constexpr (SUMS > 1)
                    share[1][k][i] = add(share[1][k][i], d[i]);
            }
        }
        float2 sums =
            meet<W>({add(g[0], g[1]), add(gx[0], gx[1])}, at, room[group][turn], &met[group], turn);
        if (at == 0 && r + ahead < a.rows)
            ask(a, r + ahead, ring + before * TENSORS * a.width, &full[group][before]);
        float mean_g = a.layer ? mul(sums.x, inverse) : 0.0f, mean_gx = mul(sums.y, inverse);
        float of_x = mul(mul(-rstd, rstd), mean_gx);
        float of_one = mul(-rstd, fma_(shift, mean_gx, mean_g));

#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int c = (at + k * LANES) * N;
            float f[N], s[N] = {};
            if (c >= a.width)
                continue;
            widen(load(x + c), f);
            if (a.dsum)
                widen(load(dsum + c), s);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] = fma_(rstd, dhat[k][i], add(fma_(of_x, f[i], of_one), s[i]));
            pack<T> out = narrow<T>(f);
            store(a.dsum_out + r * a.width + c, out);
            if constexpr (SUMS > 2) {
                widen(out, f);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    share[2][k][i] = add(share[2][k][i], s[i]);
                    share[3][k][i] = add(share[3][k][i], f[i]);
                }
            }
        }
        before = stage;
        if (++stage == a.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    write_shares<W, PACKS, SUMS>(a.width, share, reinterpret_cast<float *>(dynamic),
                                 a.partials + (int64_t)blockIdx.x * SUMS * a.width);
}

/* --- launching ------------------------------------------------------------------------------ */

template <typename T, int W, int PACKS, int SUMS>
cudaError_t launch(cudaStream_t stream, unsigned blocks, row_args<T> a)
{
    using S = shape<W, PACKS>;
    int weight = a.width * (int)sizeof(T), stage = S::GROUPS * TENSORS * weight;
    int most = (MEMORY - weight) / stage;
    a.stages = most < STAGES ? most : STAGES;
    int shares = S::GROUPS * SUMS * S::SHARE * (int)sizeof(float);
    int rings = weight + a.stages * stage, bytes = rings > shares ? rings : shares;
    auto *kernel = backward_rows<T, W, PACKS, SUMS>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<blocks, THREADS, (size_t)bytes, stream>>>(a);
    return cudaGetLastError();
}

/* The fewest warps whose threads have registers for four sums. */
template <typename T, int SUMS>
cudaError_t launch_wide(cudaStream_t stream, unsigned blocks, const row_args<T> &a)
{
    int packs = a.width / N;
#define UP_TO(w, count)            \
    if (packs <= w * count * WARP) \
    return launch<T, w, count, SUMS>(stream, blocks, a)
    UP_TO(1, 3);
    UP_TO(1, 4);
    UP_TO(1, 5);
    UP_TO(2, 4);
    UP_TO(2, 5);
    UP_TO(4, 3);
    UP_TO(4, 5);
    UP_TO(8, 4);
#undef UP_TO
    return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_typed(cudaStream_t stream, int sums, unsigned blocks,
                         const kernel_norm_backward &n)
{
    row_args<T> a = {n.rows,           (int)n.width,        0,       n.layer, (const T *)n.dy,
                     (const T *)n.sum, (const T *)n.weight, n.mean,  n.rstd,  (const T *)n.dsum,
                     (T *)n.dsum_out,  (float *)n.scratch,  n.offset};
    return sums == 1   ? launch_wide<T, 1>(stream, blocks, a)
           : sums == 2 ? launch_wide<T, 2>(stream, blocks, a)
                       : launch_wide<T, 4>(stream, blocks, a);
}

} // namespace

int kernel_norm_hopper_blocks(enum dtype type, int64_t width, int64_t rows)
{
    bool halves = type == DTYPE_BF16 || type == DTYPE_F16;
    if (!halves || width % N != 0 || width > WIDEST)
        return 0;
    return rows < BLOCKS ? (int)rows : BLOCKS;
}

cudaError_t launch_norm_rows_hopper(cudaStream_t stream, enum dtype type,
                                    struct kernel_norm_backward n, int sums)
{
    unsigned blocks = (unsigned)kernel_norm_hopper_blocks(type, n.width, n.rows);
    return type == DTYPE_BF16 ? launch_typed<__nv_bfloat16>(stream, sums, blocks, n)
                              : launch_typed<__half>(stream, sums, blocks, n);
}
