/* matrix_backward -- the backward pass of matrix_attend.cuh, from lse, which the forward pass has
 * kept, and sums = rows of dout . out:
 *
 *     P = 2^(S scale - lse)      dS = P (dP - sums)      with recomputed scores S and dP = dout V^T
 *
 *     query_gradients   a block keeps queries and streams keys and values   dQ = dS K
 *     key_gradients     a block keeps keys and streams the queries of its   dV = P^T dout,
 *                       heads                                               dK = dS^T Q
 *
 * The second has keys down. If both sums of a warp do not fit its registers, it takes two
 * launches, one for each, and both recompute the scores. P and dS are rounded for the products; dq
 * and dk are multiplied by the scale at the end. No atomics.
 *
 * The first query sees one key, so its dS is 0, but dP - sums would be rounding: its P is 0 where
 * dS is formed. With a window of 1 that holds for every query.
 *
 * With a cap, S is capped before it is used, and dS is multiplied by the slope of the cap, 1 -
 * tanh^2.
 */
#ifndef OPS_CUDA_MATRIX_BACKWARD_CUH
#define OPS_CUDA_MATRIX_BACKWARD_CUH
#include "ops/cuda/attention/matrix_attend.cuh"

namespace matrix
{

struct statistics { /* (B, H, T) */
    const float *lse, *sums;
};

template <class W>
__global__ void __launch_bounds__(W::THREADS, W::BLOCKS)
    query_gradients(const __grid_constant__ problem p, const typename W::element *qkv,
                    const typename W::element *dout, statistics stats, typename W::element *dqkv)
{
    using T = typename W::element;
    extern __shared__ __align__(16) char raw[];
    memory<W> &m = *reinterpret_cast<memory<W> *>(raw);
    const item me = item_of(tiles_of(p.tokens, W::ROWS), p.heads, p.sequences, true);
    const int lane = lane_of(), first = me.tile * W::ROWS;
    const int own = (int)threadIdx.x / 32 * 16, left = p.tokens - first - own;
    const int end = first + W::ROWS < p.tokens ? first + W::ROWS : p.tokens;
    const int64_t token = me.sequence * (int64_t)p.tokens;
    const T *queries = qkv + (token + first) * p.row + me.head * (int64_t)p.width;
    const T *slopes = dout + (token + first) * p.out_row + me.head * (int64_t)p.width;
    const T *keys = qkv + token * p.row + (p.heads + me.head / p.group) * (int64_t)p.width;
    const T *values = keys + p.kv_heads * (int64_t)p.width;
    const int64_t stat = (me.sequence * (int64_t)p.heads + me.head) * p.tokens + first + own;
    const float scale = __fmul_rn(p.scale, LOG2_E);
    const int skipped = first_key(p, first) / W::STEP; /* steps of keys before the window */
    float dq[W::COLUMNS][4], minus[2], sum[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + 8 * h;
        const bool sloped = row < left && first + own + row > 0 && p.window > 1;
        minus[h] = sloped ? -__fmul_rn(stats.lse[stat + row], LOG2_E) : -INFINITY;
        sum[h] = row < left ? stats.sums[stat + row] : 0;
    }
    clear(dq);

    bring<W>(m.kept[0], queries, p.row, p.tokens - first, p);
    bring<W>(m.kept[1], slopes, p.out_row, p.tokens - first, p);
    pass_by<W>(
        tiles_of(end, W::STEP) - skipped,
        [&](int i, int stage) {
            const int key = (skipped + i) * W::STEP;
            bring<W>(m.passing[stage][0], keys + key * p.row, p.row, p.tokens - key, p);
            bring<W>(m.passing[stage][1], values + key * p.row, p.row, p.tokens - key, p);
        },
        [&](int i, int stage) {
            if (i == 0) {
                settle<W>(m.kept[0]);
                settle<W>(m.kept[1]);
            }
            settle<W>(m.passing[stage][0]);
            settle<W>(m.passing[stage][1]);
        },
        [&](int i, int stage) {
            const int edge = first + own - (skipped + i) * W::STEP;
            const int at = edge + lane / 4 - lane % 4 * 2;
            const int last = edge < W::STEP - 1 ? at : W::STEP + 16, before = at - p.window;
            float s[W::TILES][4], dp[W::TILES][4];
            uint32_t x[W::DOWN][4];
            if (edge + 15 < 0 || edge - p.window >= W::STEP - 1)
                return;
            clear(s);
            clear(dp);
            along<W>(s, m.kept[0][own], m.passing[stage][0][0]);
            along<W>(dp, m.kept[1][own], m.passing[stage][1][0]);
#pragma unroll
            for (int n = 0; n < W::TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int column = 8 * n + k % 2 - k / 2 * 8;
                    const bool seen = column <= last && column > before;
                    float slope = 1;
                    if constexpr (W::CAP) {
                        const float part = fraction_of_cap(p, s[n][k]);
                        s[n][k] = __fmul_rn(part, p.to_cap);
                        slope = __fmaf_rn(-part, part, 1.0f);
                    }
                    const float power = power_of_two(__fmaf_rn(s[n][k], scale, minus[k / 2]));
                    s[n][k] = seen ? __fmul_rn(power, __fadd_rn(dp[n][k], -sum[k / 2])) : 0;
                    if constexpr (W::CAP)
                        s[n][k] = __fmul_rn(s[n][k], slope);
                }
            as_factor<W>(x, s);
            down<W>(dq, x, m.passing[stage][0][0]);
        });

    const float by[2] = {p.scale, p.scale};
    leave<W>(dqkv + (token + first + own) * p.row + me.head * (int64_t)p.width, p.row, left, p, dq,
             by);
}

/* VALUES, KEYS: which of the two sums this launch forms. */
template <class W, bool VALUES, bool KEYS>
__global__ void __launch_bounds__(W::THREADS, W::BLOCKS)
    key_gradients(const __grid_constant__ problem p, const typename W::element *qkv,
                  const typename W::element *dout, statistics stats, typename W::element *dqkv)
{
    using T = typename W::element;
    extern __shared__ __align__(16) char raw[];
    memory<W> &m = *reinterpret_cast<memory<W> *>(raw);
    const item me = item_of(tiles_of(p.tokens, W::ROWS), p.kv_heads, p.sequences, false);
    const int lane = lane_of(), first = me.tile * W::ROWS; /* first key of the block */
    const int own = (int)threadIdx.x / 32 * 16, left = p.tokens - first - own;
    const int64_t token = me.sequence * (int64_t)p.tokens;
    const int64_t at_key = (token + first) * p.row + (p.heads + me.head) * (int64_t)p.width;
    const int64_t at_value = at_key + p.kv_heads * (int64_t)p.width;
    const int skipped = first / W::STEP; /* steps of queries before the keys */
    const int reach = p.tokens - first - W::ROWS >= p.window ? first + W::ROWS - 1 + p.window
                                                             : p.tokens; /* queries that see them */
    const int steps = tiles_of(reach, W::STEP) - skipped;
    const float scale = __fmul_rn(p.scale, LOG2_E);
    float dk[KEYS ? W::COLUMNS : 1][4], dv[VALUES ? W::COLUMNS : 1][4];
    clear(dk);
    clear(dv);

    bring<W>(m.kept[0], qkv + at_key, p.row, p.tokens - first, p);
    if (KEYS)
        bring<W>(m.kept[1], qkv + at_value, p.row, p.tokens - first, p);
    pass_by<W>(
        p.group * steps,
        [&](int i, int stage) {
            const int head = me.head * p.group + i / steps;
            const int query = (skipped + i % steps) * W::STEP;
            bring<W>(m.passing[stage][0], qkv + (token + query) * p.row + head * (int64_t)p.width,
                     p.row, p.tokens - query, p);
            bring<W>(m.passing[stage][1],
                     dout + (token + query) * p.out_row + head * (int64_t)p.width, p.out_row,
                     p.tokens - query, p);
        },
        [&](int i, int stage) {
            if (i == 0)
                settle<W>(m.kept[0]);
            if (i == 0 && KEYS)
                settle<W>(m.kept[1]);
            settle<W>(m.passing[stage][0]);
            settle<W>(m.passing[stage][1]);
        },
        [&](int i, int stage) {
            const int head = me.head * p.group + i / steps;
            const int query = (skipped + i % steps) * W::STEP;
            const int edge = first + own - query; /* the warp's first key minus the first query */
            const int at_edge = edge + lane / 4 - lane % 4 * 2;
            const int least = edge + 15 > 0 ? at_edge : -16, beyond = at_edge + p.window;
            const int64_t stat = (me.sequence * (int64_t)p.heads + head) * p.tokens;
            float s[W::TILES][4], slope[W::CAP && KEYS ? W::TILES : 1][4];
            uint32_t x[W::DOWN][4];
            if (edge > W::STEP - 1 || edge + 15 + p.window <= 0)
                return;
            clear(s);
            along<W>(s, m.kept[0][own], m.passing[stage][0][0]);
#pragma unroll
            for (int n = 0; n < W::TILES; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int at = query + 8 * n + lane % 4 * 2 + j;
                    const float minus = at < p.tokens
                                            ? -__fmul_rn(__ldg(stats.lse + stat + at), LOG2_E)
                                            : -INFINITY;
#pragma unroll
                    for (int k = j; k < 4; k += 2) {
                        const int column = 8 * n + j - k / 2 * 8;
                        const bool seen = column >= least && column < beyond;
                        if constexpr (W::CAP) {
                            const float part = fraction_of_cap(p, s[n][k]);
                            s[n][k] = __fmul_rn(part, p.to_cap);
                            if constexpr (KEYS)
                                slope[n][k] = __fmaf_rn(-part, part, 1.0f);
                        }
                        s[n][k] = seen ? power_of_two(__fmaf_rn(s[n][k], scale, minus)) : 0;
                    }
                }
            if constexpr (VALUES) {
                as_factor<W>(x, s);
                down<W>(dv, x, m.passing[stage][1][0]);
            }
            if constexpr (KEYS) {
                float dp[W::TILES][4];
                if (query == 0 && lane % 4 == 0)
                    s[0][0] = 0; /* query 0; later keys are masked */
                clear(dp);
                along<W>(dp, m.kept[1][own], m.passing[stage][1][0]);
#pragma unroll
                for (int n = 0; n < W::TILES; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const int at = query + 8 * n + lane % 4 * 2 + j;
                        const float sum = at < p.tokens ? __ldg(stats.sums + stat + at) : 0;
#pragma unroll
                        for (int k = j; k < 4; k += 2) {
                            s[n][k] =
                                p.window > 1 ? __fmul_rn(s[n][k], __fadd_rn(dp[n][k], -sum)) : 0;
                            if constexpr (W::CAP)
                                s[n][k] = __fmul_rn(s[n][k], slope[n][k]);
                        }
                    }
                as_factor<W>(x, s);
                down<W>(dk, x, m.passing[stage][0][0]);
            }
        });

    if constexpr (KEYS) {
        const float by[2] = {p.scale, p.scale};
        leave<W>(dqkv + at_key + own * p.row, p.row, left, p, dk, by);
    }
    if constexpr (VALUES) {
        const float by[2] = {1, 1};
        leave<W>(dqkv + at_value + own * p.row, p.row, left, p, dv, by);
    }
}

} // namespace matrix

#endif
