/* cuda_attention_hopper -- the backward pass of attention for compute capability 9.0: heads of
 * width 8 to 128 in steps of 8, 16-bit types, any length. The same bits in every run, without
 * atomics in random order and without the T x T matrix in memory.
 *
 * Three launches: statistics of the rows (dout . out, and lse in powers of two); the pass itself,
 * one block per multiprocessor (hopper_attend.cuh for width 64, hopper_attend_wide.cuh for 128, in
 * the order of hopper_tiles.cuh); and, if some items were cut, the sum of their partial dq.
 * Clusters of blocks do long sequences, few items and windows (hopper_clusters.cuh), and nothing is
 * cut; at width 128 with rope the last launch then rotates dq. If query heads are items, dk and dv
 * of a group are added at the end (join_groups).
 *
 * If the caller passes a rope table, dq and dk are rotated back before they are written
 * (hopper_rows.cuh), in separate instances (ROPE), so that those without rope stay as fast. The
 * same holds for windows (WINDOW) and for column sums of dqkv (SUMS, hopper_columns.cuh), which
 * take a last launch that adds them up, and are not formed with windows or if query heads are
 * items.
 *
 * What is cut, and whether there are clusters, depends on the shape only, as if every GPU had 132
 * multiprocessors: so do the bits. On another number the load is only less even. But if a GPU, or
 * a part of one, has fewer multiprocessors than one cluster needs, its blocks work alone, with
 * other bits (with a window in a smaller cluster, with the same bits).
 *
 * This file is compiled for sm_90a only (cmake/cuda.cmake): no other GPU has wgmma and setmaxnreg.
 */
#include <math.h>
#include <type_traits>
#include "base/dtype.h"
#include "ops/cuda/attention/hopper_attend.cuh"
#include "ops/cuda/attention/hopper_attend_wide.cuh"
#include "ops/cuda/attention/hopper_heads.cuh"
#include "ops/cuda/attention/hopper_shares.cuh"

namespace
{

using namespace hopper;

const int CONSUMERS = 2 * 128, THREADS = 128 + CONSUMERS;

/* --- before and after ----------------------------------------------------------------------- */

/* Sums of eight columns per lane over the rows of a block: first within each warp. */
template <int WIDTH> __device__ void column_total(float (&added)[8], float *to)
{
    __shared__ float warps[8][WIDTH];
    const int lanes = WIDTH / 8, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        for (int step = 16; step >= lanes; step /= 2)
            added[i] = __fadd_rn(added[i], __shfl_xor_sync(0xffffffffu, added[i], step));
        if (lane < lanes)
            warps[threadIdx.x / 32][lane * 8 + i] = added[i];
    }
    __syncthreads();
    if (threadIdx.x >= WIDTH)
        return;
    float sum = warps[0][threadIdx.x];
    for (int warp = 1; warp < 8; warp++)
        sum = __fadd_rn(sum, warps[warp][threadIdx.x]);
    to[threadIdx.x] = sum;
}

/* One block per tile of a head, eight columns per lane; zeros where there are no rows or columns.
 * SUMS: also column sums of dout. Clears the `words` counters of clusters. */
template <typename T, int WIDTH, bool SUMS>
__global__ void __launch_bounds__(256)
    statistics(const __grid_constant__ problem p, const T *out, const T *dout, const float *lse,
               float *sums, float *powers, int words)
{
    if (blockIdx.x * 256 + threadIdx.x < (unsigned)words)
        p.turns[blockIdx.x * 256 + threadIdx.x] = 0;
    const int tiles = p.tiles, heads = p.heads;
    const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % heads;
    const int64_t batch = blockIdx.x / tiles / heads, tokens = p.tokens;
    const int64_t first = ((batch * heads + head) * tiles + tile) * TILE;
    const int64_t first_lse = (batch * heads + head) * tokens + tile * TILE;
    const int lanes = WIDTH / 8, lane = threadIdx.x % lanes; /* of a row */
    float added[8] = {};
#pragma unroll
    for (int i = 0; i < TILE * lanes / 256; i++) {
        const int row = i * (256 / lanes) + threadIdx.x / lanes;
        const bool there = tile * TILE + row < tokens;
        const int64_t at =
            ((batch * tokens + tile * TILE + row) * heads + head) * p.width + lane * 8;
        uint4 a = {}, b = {};
        if (there && lane * 8 < p.width) {
            a = *reinterpret_cast<const uint4 *>(out + at);
            b = *reinterpret_cast<const uint4 *>(dout + at);
        }
        const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 u = unpacked<T>(x[j]), v = unpacked<T>(y[j]);
            sum = __fmaf_rn(u.y, v.y, __fmaf_rn(u.x, v.x, sum));
            if (SUMS) {
                added[2 * j] = __fadd_rn(added[2 * j], v.x);
                added[2 * j + 1] = __fadd_rn(added[2 * j + 1], v.y);
            }
        }
        for (int step = lanes / 2; step; step /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
        if (lane == 0) {
            sums[first + stat_place(row)] = -sum;
            powers[first + stat_place(row)] =
                there ? __fmul_rn(lse[first_lse + row], LOG2_E) : 0.0f;
        }
    }
    if constexpr (SUMS) {
        float *to = p.dout_columns + ((batch * tiles + tile) * heads + head) * WIDTH;
        column_total<WIDTH>(added, to);
    }
}

/* The width of tiles in shared memory. */
template <int COLUMNS> constexpr int WIDTH_OF = COLUMNS <= 64 ? 64 : 128;

template <int WIDTH, bool CLUSTER, bool LATE, bool WINDOW>
using order_of = std::conditional_t<CLUSTER, cluster_walk<WIDTH, LATE, WINDOW>, walk<WIDTH>>;

/* One block per multiprocessor: a producer (one thread of the first warpgroup; in clusters two
 * more threads, which manage the turns) and two warpgroups that compute, with the registers that
 * the first does not need. */
template <typename T, int COLUMNS, bool ROPE, bool SUMS, bool CLUSTER, bool WINDOW>
__global__ void __launch_bounds__(THREADS, 1)
    attend_backward(const __grid_constant__ CUtensorMap qkv,
                    const __grid_constant__ CUtensorMap dout, const __grid_constant__ problem p,
                    T *dqkv)
{
    constexpr int WIDTH = WIDTH_OF<COLUMNS>;
    constexpr bool LATE = IS_LATE<WIDTH, ROPE>;
    extern __shared__ __align__(1024) char raw[];
    memory<WIDTH> &m = *reinterpret_cast<memory<WIDTH> *>(raw);
    if (threadIdx.x == 0) {
        if (shared_address(raw) % 1024) /* the layout of tiles relies on this */
            __trap();
        init_barriers(m);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        const int warp = uniform((int)threadIdx.x / 32); /* with threadIdx itself ptxas spills */
        if (threadIdx.x % 32)
            return;
        if (warp == 0)
            produce<order_of<WIDTH, CLUSTER, LATE, WINDOW>, SUMS>(m, p, &qkv, &dout);
        else if (CLUSTER && warp == 1)
            wait_for_turns<LATE, WINDOW>(m, p);
        else if (CLUSTER && warp == 2)
            tell_turns<LATE, WINDOW>(m, p);
    } else {
        more_registers<240>();
        consume<COLUMNS, ROPE, SUMS, CLUSTER, WINDOW>(m, p, dqkv);
    }
}

/* dq of a cut item: a block adds the parts of a tile, in the order of the jobs. A job has a part
 * for every tile of queries from its first tile of keys on. For clusters that left their sums: one
 * part. */
template <typename T, int COLUMNS, bool ROPE, bool SUMS>
__global__ void __launch_bounds__(CONSUMERS)
    gather_parts(const __grid_constant__ problem p, T *dqkv)
{
    constexpr int WIDTH = WIDTH_OF<COLUMNS>, VALUES = COLUMNS < 64 ? COLUMNS / 2 : 32;
    __shared__ __align__(128) char stage[CONSUMERS / 32][16 * 128];
    const int queries = QUERIES<WIDTH>;
    const int tile = blockIdx.x, head = blockIdx.y, rest = blockIdx.z;
    const int batch = (p.whole + rest) / p.kv_heads, kv_head = (p.whole + rest) % p.kv_heads;
    const int diagonal = tile / QUERY_TILES<WIDTH>;
    const int last = WIDTH == 64 || diagonal < p.cuts ? diagonal : p.cuts - 1;
    const place me = place_of(threadIdx.x);
    float dq[VALUES], part[VALUES];
    for (int job = 0; job <= last; job++) {
        int64_t at = p.slots + (int64_t)job * p.rest + rest;
        at = ((at * p.group + head) * (QUERY_TILES<WIDTH> * p.tiles) + tile) * (queries * WIDTH);
        if constexpr (ROPE && WIDTH == 128)
            take_pairs(part, p.dq + at, me);
        else
            take_sum(part, p.dq + at + sum_offset(me));
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            dq[i] = job ? __fadd_rn(dq[i], part[i]) : part[i];
    }
    const int row = tile * queries;
    T *to = dqkv + ((int64_t)batch * p.tokens + row) * p.row + (kv_head * p.group + head) * p.width;
    if constexpr (ROPE)
        turn_part<WIDTH>(dq, p, row, me);
    if constexpr (SUMS) {
        const int eight = columns_of(p, p.whole + rest, diagonal) + head;
        columns c;
        write_query<WIDTH, ROPE>(to, p, row, dq, stage[threadIdx.x / 32], me, &c);
        query_columns_leave<WIDTH>(p, columns_of_warp(c, me.lane), eight, tile % 2, true, me);
    } else {
        write_query<WIDTH, ROPE>(to, p, row, dq, stage[threadIdx.x / 32], me);
    }
}

/* dqkv of groups from that of items that are query heads: dq as it is; dk and dv are the sums over
 * the heads of a group, in order. A thread has 16 bytes, of `units`. */
template <typename T>
__global__ void __launch_bounds__(256)
    join_groups(const T *from, T *to, int64_t units, int heads, int kv_heads, int width)
{
    const int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= units)
        return;
    const int head_units = width / 8, row = (heads + 2 * kv_heads) * head_units;
    const int64_t token = at / row;
    const int head = (int)(at % row) / head_units, unit = (int)(at % row) % head_units;
    const int group = heads / kv_heads, rank = head - heads; /* of a key or value head */
    const int first = rank < 0 ? head : heads + rank * group, count = rank < 0 ? 1 : group;
    const uint4 *parts =
        reinterpret_cast<const uint4 *>(from) + (token * 3 * heads + first) * head_units + unit;
    float sum[8];
    for (int i = 0; i < count; i++) {
        const uint4 part = parts[(int64_t)i * head_units];
        const uint32_t bits[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 both = unpacked<T>(bits[j]);
            sum[2 * j] = i ? __fadd_rn(sum[2 * j], both.x) : both.x;
            sum[2 * j + 1] = i ? __fadd_rn(sum[2 * j + 1], both.y) : both.y;
        }
    }
    reinterpret_cast<uint4 *>(to)[at] = {packed<T>(sum[0], sum[1]), packed<T>(sum[2], sum[3]),
                                         packed<T>(sum[4], sum[5]), packed<T>(sum[6], sum[7])};
}

/* --- launching ------------------------------------------------------------------------------ */

size_t scratch_of(struct cuda_heads a, const shares &s)
{
    const size_t bytes = (size_t)(2 * statistic_count(a) + late_count(a, s)) * sizeof(float) +
                         (size_t)(place_count(s) * s.place_bytes) +
                         (size_t)turn_count(a, s) * sizeof(uint32_t);
    return (bytes + 255) / 256 * 256;
}

/* Of dqkv if every query head is an item. */
size_t split_bytes(struct cuda_heads a)
{
    return (size_t)(a.batch * a.tokens * 3 * a.heads * a.width) * 2;
}

/* Everything except the distribution; the layout of scratch does not depend on the GPU. Of `a`,
 * key heads are as items have them, of which qkv has `key_heads`. */
problem problem_of(struct cuda_heads a, int64_t key_heads, const shares &s, const float *rope,
                   float *scratch)
{
    const int64_t place = s.place_bytes / (int64_t)sizeof(float);
    const struct cuda_heads tiled = in_tiles(a);
    float *powers = scratch + statistic_count(tiled);
    problem p = {};
    p.tiles = (int)s.tiles;
    p.heads = (int)a.heads;
    p.kv_heads = (int)a.kv_heads;
    p.group = (int)s.group;
    p.tokens = (int)a.tokens;
    p.width = (int)a.width;
    p.row = (int)((a.heads + 2 * a.kv_heads) * a.width);
    p.key_heads = (int)key_heads;
    p.split = (int)(a.kv_heads / key_heads);
    p.window = (int)a.window;
    p.scale = a.scale;
    p.sums = scratch;
    p.lse = powers;
    p.dq = powers + statistic_count(tiled);
    p.rope = rope;
    p.pairs = p.dq_columns = p.dq + place_count(s) * place;
    p.dout_columns = p.dq_columns + dq_column_count(tiled, s);
    p.turns = (uint32_t *)(p.pairs + late_count(tiled, s));
    return p;
}

void deal(problem *p, const shares &s)
{
    p->whole = (int)s.whole;
    p->rest = (int)s.rest;
    p->jobs = (int)job_count(s);
    p->slots = s.cluster ? 0 : (int)slot_count(s);
    p->cuts = (int)s.cuts;
    p->cluster = (int)s.cluster;
    p->clusters = (int)s.clusters;
    p->bands = s.cluster ? (int)bands_of(s) : 0;
    p->places = (int)s.places;
}

template <typename F> cudaError_t allow_shared(F *kernel, size_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* The blocks of a cluster wait for each other: all must be resident at once, or fewer are
 * launched. */
template <typename T, int COLUMNS, bool ROPE, bool SUMS, bool WINDOW>
cudaError_t launch_pass(const CUtensorMap &qkv, const CUtensorMap &dout, problem *p, shares s,
                        T *dqkv, cudaStream_t stream)
{
    const auto together = attend_backward<T, COLUMNS, ROPE, SUMS, true, WINDOW>;
    const size_t shared = sizeof(memory<WIDTH_OF<COLUMNS>>);
    cudaError_t error = allow_shared(together, shared);
    if (error != cudaSuccess)
        return error;
    for (deal(p, s); s.cluster; deal(p, s)) {
        void *arguments[] = {(void *)&qkv, (void *)&dout, p, &dqkv};
        error = cudaLaunchCooperativeKernel(together, dim3((unsigned)s.blocks), dim3(THREADS),
                                            arguments, shared, stream);
        if (error != cudaErrorCooperativeLaunchTooLarge || s.blocks == 1)
            return error;
        (void)cudaGetLastError();
        s = shares_on(s, s.blocks - 1);
    }
    if constexpr (!WINDOW) {
        const auto alone = attend_backward<T, COLUMNS, ROPE, SUMS, false, false>;
        error = allow_shared(alone, shared);
        if (error != cudaSuccess)
            return error;
        alone<<<(unsigned)s.blocks, THREADS, shared, stream>>>(qkv, dout, *p, dqkv);
        error = cudaGetLastError();
    }
    return error;
}

template <typename T, int COLUMNS, bool ROPE, bool SUMS, bool WINDOW>
cudaError_t run(struct cuda_heads a, enum cuda_clusters clusters, const float *rope, void *dbias,
                const void *qkv, const void *out, const float *lse, const void *dout, void *dqkv,
                float *scratch, int processors, cudaStream_t stream)
{
    constexpr int WIDTH = WIDTH_OF<COLUMNS>;
    const bool late = IS_LATE<WIDTH, ROPE>;
    const struct cuda_heads items = in_items(a, clusters), tiled = in_tiles(items);
    const bool split = items.kv_heads != a.kv_heads;
    const shares s = shares_of(tiled, clusters, late);
    float *sums = scratch, *powers = sums + statistic_count(tiled);
    T *to = (T *)(split ? (char *)scratch + scratch_of(tiled, s) : dqkv);
    problem p = problem_of(items, a.kv_heads, s, rope, scratch);
    encode_fn encode;
    CUtensorMap qkv_map, dout_map;
    cudaError_t error = find_encode(&encode);
    if (error == cudaSuccess)
        error = map_tiles<T>(encode, qkv, a, a.heads + 2 * a.kv_heads, QUERIES<WIDTH>, &qkv_map);
    if (error == cudaSuccess)
        error = map_tiles<T>(encode, dout, a, a.heads, QUERIES<WIDTH>, &dout_map);
    if (error != cudaSuccess)
        return error;
    statistics<T, WIDTH, SUMS><<<(unsigned)(a.batch * a.heads * s.tiles), 256, 0, stream>>>(
        p, (const T *)out, (const T *)dout, lse, sums, powers, (int)turn_count(tiled, s));
    error = launch_pass<T, COLUMNS, ROPE, SUMS, WINDOW>(qkv_map, dout_map, &p,
                                                        shares_on(s, processors), to, stream);
    if (error != cudaSuccess)
        return error;
    const unsigned query_tiles = (unsigned)s.tiles * QUERY_TILES<WIDTH>;
    if (s.cluster ? late && p.cluster : s.rest > 0)
        gather_parts<T, COLUMNS, ROPE, SUMS>
            <<<dim3(query_tiles, (unsigned)s.group, (unsigned)s.rest), CONSUMERS, 0, stream>>>(p,
                                                                                               to);
    if constexpr (SUMS)
        total_columns<T, WIDTH><<<(unsigned)(p.row + 31) / 32, COLUMN_RUNS * 32, 0, stream>>>(
            p, (int)a.batch, (T *)dbias);
    if (split) {
        const int64_t units = a.batch * a.tokens * (a.heads + 2 * a.kv_heads) * (a.width / 8);
        join_groups<T><<<(unsigned)((units + 255) / 256), 256, 0, stream>>>(
            to, (T *)dqkv, units, (int)a.heads, (int)a.kv_heads, (int)a.width);
    }
    return cudaGetLastError();
}

/* Windows and rope: only where all columns of a tile are computed. */
template <typename T, int COLUMNS, typename... R>
cudaError_t run_way(struct cuda_heads a, enum cuda_clusters clusters, const float *rope,
                    void *dbias, R... rest)
{
    constexpr int WIDTH = WIDTH_OF<COLUMNS>;
    if ((rope && (dbias || a.width != WIDTH)) || (dbias && !cuda_attend_hopper_sums(a, clusters)))
        return cudaErrorInvalidValue;
    if (a.window < a.tokens)
        return rope ? run<T, WIDTH, true, false, true>(a, clusters, rope, dbias, rest...)
                    : run<T, WIDTH, false, false, true>(a, clusters, rope, dbias, rest...);
    if (rope)
        return run<T, WIDTH, true, false, false>(a, clusters, rope, dbias, rest...);
    return dbias ? run<T, COLUMNS, false, true, false>(a, clusters, rope, dbias, rest...)
                 : run<T, COLUMNS, false, false, false>(a, clusters, rope, dbias, rest...);
}

template <typename T, typename... R> cudaError_t run_width(struct cuda_heads a, R... rest)
{
    switch (cuda_attend_hopper_columns(a)) {
    case 32: return run_way<T, 32>(a, rest...);
    case 64: return run_way<T, 64>(a, rest...);
    default: return run_way<T, 128>(a, rest...);
    }
}

} // namespace

int64_t cuda_attend_hopper_columns(struct cuda_heads a)
{
    if (a.width <= 32 && a.window >= a.tokens)
        return 32;
    return a.width <= 64 ? 64 : 128;
}

/* Few long items that are not cut, or not enough, leave so much of the GPU idle that cuDNN is
 * faster, if it supports the shape. */
bool cuda_attend_hopper_takes(int type, struct cuda_heads a, enum cuda_clusters clusters)
{
    const struct cuda_heads tiled = in_tiles(a);
    if ((type != DTYPE_BF16 && type != DTYPE_F16) || a.width <= 0 || a.width > 128 || a.width % 8 ||
        a.tokens <= 0 || a.tokens > MOST_TOKENS || statistic_count(tiled) > INT32_MAX ||
        a.window < 2 || a.cap > 0)
        return false;
    if (a.window < a.tokens || a.tokens != tiled.tokens)
        return true;
    const struct cuda_heads items = in_items(a, clusters);
    const shares s = shares_of(in_tiles(items), clusters, false);
    if (clusters == CUDA_CLUSTERS_WHERE_POSSIBLE && s.cluster)
        return true;
    if (s.tiles <= (tiled.width == 64 ? 2 : 8) || s.items >= PROCESSORS * 2 / 3)
        return true;
    return tiled.width == 64 && !s.cluster ? s.rest > 0
                                           : 2 * PROCESSORS * longest_of(s) <= 3 * all_tiles(s);
}

bool cuda_attend_hopper_sums(struct cuda_heads a, enum cuda_clusters clusters)
{
    return a.window >= a.tokens && in_items(a, clusters).kv_heads == a.kv_heads;
}

/* The columns that rope pairs are where the kernels expect them only if the head is as wide as
 * a tile. */
bool cuda_attend_hopper_turns(struct cuda_heads a)
{
    return a.width == in_tiles(a).width && a.width == a.valid;
}

/* Enough with or without rope. */
size_t cuda_attend_hopper_scratch(struct cuda_heads heads, enum cuda_clusters clusters)
{
    const struct cuda_heads items = in_items(heads, clusters), a = in_tiles(items);
    const size_t late = scratch_of(a, shares_of(a, clusters, a.width == 128));
    const size_t other = scratch_of(a, shares_of(a, clusters, false));
    return (late > other ? late : other) +
           (items.kv_heads != heads.kv_heads ? split_bytes(heads) : 0);
}

cudaError_t cuda_attend_backward_hopper(int type, struct cuda_heads a, enum cuda_clusters clusters,
                                        const float *rope, const void *qkv, const void *out,
                                        const float *lse, const void *dout, void *dqkv, void *dbias,
                                        float *scratch, int processors, cudaStream_t stream)
{
    return type == DTYPE_BF16 ? run_width<__nv_bfloat16>(a, clusters, rope, dbias, qkv, out, lse,
                                                         dout, dqkv, scratch, processors, stream)
                              : run_width<__half>(a, clusters, rope, dbias, qkv, out, lse, dout,
                                                  dqkv, scratch, processors, stream);
}
