/* hopper_slopes -- attention backward on Hopper: what a thread does with its part of a tile
 * between the products, and where finished parts go. Shared by the loops of both widths.
 *
 * N floats are a thread's part of a product of 64 keys and 2 N queries, as hopper.cuh describes
 * it.
 */
#ifndef OPS_CUDA_HOPPER_SLOPES_CUH
#define OPS_CUDA_HOPPER_SLOPES_CUH
#include "ops/cuda/attention/hopper_rows.cuh"
#include "ops/cuda/attention/hopper_clusters.cuh"

namespace hopper
{

const float LOG2_E = 1.44269504088896340736f;

/* --- arithmetic within a thread --------------------------------------------------------------- */

/* The statistics of columns 16 g .. of a tile that this thread needs: two of each eight. */
__device__ inline float4 stats_of(const float *stats, int g, const place &me)
{
    return *reinterpret_cast<const float4 *>(stats + 16 * g + me.lane % 4 * 4);
}

/* Masks keys after the query; the tile's queries begin `above` after its keys. */
template <int N> __device__ inline void mask(float (&s)[N], int above, const place &me)
{
    int edge = me.half * 64 + me.warp * 16 + me.lane / 4 - me.lane % 4 * 2 - above;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int column = i / 4 * 8 + i % 2, row = i % 4 / 2 * 8;
        if (column - row < edge)
            s[i] = -INFINITY;
    }
}

/* Masks keys of tile `o` before the window of the query; the tile's queries are in `flags`. */
template <int WIDTH, int N>
__device__ inline void mask_before(float (&s)[N], const order &o, int flags, int window,
                                   const place &me)
{
    const int above = query_row<WIDTH>(flags) - o.row;
    const int edge = me.half * 64 + me.warp * 16 + me.lane / 4 - me.lane % 4 * 2 - above + window;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int column = i / 4 * 8 + i % 2, row = i % 4 / 2 * 8;
        if (column - row >= edge)
            s[i] = -INFINITY;
    }
}

/* s becomes 2^(s scale - lse); `ahead` holds the first values of lse. */
template <int N, int AHEAD>
__device__ inline void probabilities(float (&s)[N], const float4 (&ahead)[AHEAD], const float *lse,
                                     float scale, const place &me)
{
#pragma unroll
    for (int g = 0; g < N / 8; g++) {
        float4 l = g < AHEAD ? ahead[g] : stats_of(lse, g, me);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float least = i < 4 ? (i % 2 ? l.y : l.x) : (i % 2 ? l.w : l.z);
            s[8 * g + i] = power_of_two(__fmaf_rn(s[8 * g + i], scale, -least));
        }
    }
}

/* dp starts as the (negative) sums, so that the product adds to them. */
template <int N>
__device__ inline void start_slopes(float (&dp)[N], const float *sums, const place &me)
{
#pragma unroll
    for (int g = 0; g < N / 8; g++) {
        float4 l = stats_of(sums, g, me);
        dp[8 * g] = dp[8 * g + 2] = l.x;
        dp[8 * g + 1] = dp[8 * g + 3] = l.y;
        dp[8 * g + 4] = dp[8 * g + 6] = l.z;
        dp[8 * g + 5] = dp[8 * g + 7] = l.w;
    }
}

/* dp becomes ds = p dp. */
template <typename T, int N>
__device__ inline void slopes(float (&dp)[N], const uint32_t (&p)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float2 both = unpacked<T>(p[i]);
        dp[2 * i] = __fmul_rn(both.x, dp[2 * i]);
        dp[2 * i + 1] = __fmul_rn(both.y, dp[2 * i + 1]);
    }
}

/* The first query of a sequence sees one key, so its ds is 0, but p dp is rounding. Of a tile's
 * first query every fourth lane has element 0, and element 2, whose key is masked. */
template <int N> __device__ inline void clear_first(float (&ds)[N], int flags, const place &me)
{
    if (flags >> QUERY_AT == 0 && me.lane % 4 == 0)
        ds[0] = 0;
}

template <typename T, int N>
__device__ inline void round_all(uint32_t (&to)[N / 2], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        to[i] = packed<T>(s[2 * i], s[2 * i + 1]);
}

/* Stores ds^T of the warp's 16 keys to the warpgroup's tile (queries, 64 keys). */
template <int N>
__device__ inline void share_slopes(uint32_t tile, const uint32_t (&ds)[N], const place &me)
{
    int row = me.lane % 8 + me.lane / 16 * 8, chunk = me.warp * 2 + me.lane / 8 % 2;
    uint32_t at = tile + row * 128 + (chunk ^ row % 8) * 16;
#pragma unroll
    for (int k = 0; k < N / 4; k++)
        store_turned(at + k * 2048, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
}

/* --- writing results -------------------------------------------------------------------------- */

/* Recomputed at each call, so that nothing derived from it stays in registers over the loop. */
__device__ inline place place_again()
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return place_of(thread - 128);
}

/* Whether dq of a tile with these flags is finished. */
__device__ inline bool finished(int flags)
{
    return !(flags & (ADD | PUT));
}

/* Puts dq to the sum at `to`, or adds it, when its turn comes; finished dq that is put aside has
 * had its turn already. */
template <bool CLUSTER, int WIDTH, int N>
__device__ inline void sum_leaves(memory<WIDTH> &m, float *to, int flags, const float (&dq)[N],
                                  unsigned tile)
{
    if (CLUSTER && !finished(flags))
        await_turn(m, tile);
    if (flags & ADD)
        add_sum(to, dq);
    else
        put_sum(to, dq);
    if (CLUSTER && !finished(flags)) {
        __syncwarp();
        end_turn(m, tile, place_again().lane == 0);
    }
}

/* Writes dq of the tile-th tile; `at` is the result of leaving_at. */
template <bool SUMS, bool CLUSTER, typename T, int WIDTH, int N>
__device__ inline void query_leaves(memory<WIDTH> &m, const problem &p, T *dqkv, int flags,
                                    int64_t at, const float (&dq)[N], unsigned tile)
{
    const place me = place_again();
    const int row = query_row<WIDTH>(flags);
    char *stage = m.stage[me.half * 4 + me.warp];
    if (!finished(flags))
        sum_leaves<CLUSTER>(m, p.dq + at + sum_offset(me), flags, dq, tile);
    else if constexpr (SUMS) {
        columns c;
        write_query<WIDTH>(dqkv + at, p, row, dq, stage, me, &c);
        const float2 pair = columns_of_warp(c, me.lane);
        query_columns_leave<WIDTH>(p, pair, m.columns[tile % ORDERS], flags & LOWER, flags & BEGIN,
                                   place_again());
    } else {
        write_query<WIDTH>(dqkv + at, p, row, dq, stage, me);
    }
}

__device__ inline int64_t leaving_at(const order &o, int flags)
{
    return flags & (ADD | PUT) ? o.sum : o.dq;
}

/* Writes dk * scale of width 128, rotated back: 32 columns and those 64 after them at a time. */
template <typename T>
__device__ inline void write_turned(T *to, const float (&dk)[64], const problem &p, int row,
                                    char *stage, const place &me)
{
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float d[32];
#pragma unroll
        for (int i = 0; i < 32; i++)
            d[i] = dk[c * 16 + i / 16 * 32 + i % 16];
        turn_back<128>(d, p, row + me.half * 64, c * 32, me);
        write_rows<0, 32>(to + c * 32, p.row, {p.tokens - row, 128}, d, p.scale, stage, me);
    }
}

/* TURNED: dk of width 128 is rotated back here; that of width 64 already is. */
template <bool TURNED = false, typename T, int WIDTH, int N>
__device__ inline void keys_leave(memory<WIDTH> &m, const problem &p, T *dqkv, const order &o,
                                  const float (&dk)[N], const float (&dv)[N])
{
    const place me = place_again();
    const extent left = {p.tokens - o.row, p.width};
    char *stage = m.stage[me.half * 4 + me.warp];
    if constexpr (TURNED)
        write_turned(dqkv + o.dk, dk, p, o.row, stage, me);
    else
        write_rows(dqkv + o.dk, p.row, left, dk, p.scale, stage, me);
    if constexpr (!TURNED && WIDTH == 128)
        write_rows<64>(dqkv + o.dk, p.row, left, dk, p.scale, stage, me);
    write_rows(dqkv + o.dk + p.kv_heads * p.width, p.row, left, dv, 1.0f, stage, me);
    if constexpr (WIDTH == 128)
        write_rows<64>(dqkv + o.dk + p.kv_heads * p.width, p.row, left, dv, 1.0f, stage, me);
}

} // namespace hopper

#endif
