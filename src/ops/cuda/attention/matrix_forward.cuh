/* matrix_forward -- the forward pass of matrix_attend.cuh: a block keeps queries and streams keys
 * and values.
 *
 *     S = Q K^T      P = 2^((S - most) scale)      O = O 2^((old most - most) scale) + P V
 *
 * where most is a row's largest score so far, and scale includes the logarithm of 2. P is rounded
 * for the product; a row's sum is of unrounded values. A row may see nothing of the first tiles of
 * keys, which are those of the window of the block's first query: its most is -inf until then.
 */
#ifndef OPS_CUDA_MATRIX_FORWARD_CUH
#define OPS_CUDA_MATRIX_FORWARD_CUH
#include "ops/cuda/attention/matrix_attend.cuh"

namespace matrix
{

/* Of a lane's two rows: the largest score, and its partial sum of powers. */
struct softmax_rows {
    float most[2], sum[2];
};

/* The maximum over the four lanes that hold a row. */
__device__ inline float most_of_row(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ inline float sum_of_row(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Masks keys after the query; `edge` is the warp's first query minus the tile's first key. */
template <int N> __device__ inline void mask(float (&s)[N][4], int edge)
{
    const int lane = lane_of(), last = edge + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * n + i % 2 - i / 2 * 8 > last)
                s[n][i] = -INFINITY;
}

/* Masks keys before the query's window; `edge` as above, minus the window. */
template <int N> __device__ inline void mask_before(float (&s)[N][4], int edge)
{
    const int lane = lane_of(), last = edge + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * n + i % 2 - i / 2 * 8 <= last)
                s[n][i] = -INFINITY;
}

template <class W> __device__ inline void cap_scores(float (&s)[W::TILES][4], const problem &p)
{
#pragma unroll
    for (int n = 0; n < W::TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = __fmul_rn(fraction_of_cap(p, s[n][i]), p.to_cap);
}

/* Replaces scores by powers; `factor` receives what earlier sums must be multiplied by. */
template <int N>
__device__ inline void weigh(float (&s)[N][4], softmax_rows &r, float (&factor)[2], float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = r.most[h], sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
            most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most = most_of_row(most);
        const float top = most == -INFINITY ? 0 : most; /* nothing seen yet: all powers are 0 */
        const float minus = -__fmul_rn(top, scale);
        factor[h] = power_of_two(__fmul_rn(__fadd_rn(r.most[h], -top), scale));
        r.most[h] = most;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                s[n][i] = power_of_two(__fmaf_rn(s[n][i], scale, minus));
                sum = __fadd_rn(sum, s[n][i]);
            }
        r.sum[h] = __fmaf_rn(r.sum[h], factor[h], sum);
    }
}

template <class W>
__global__ void __launch_bounds__(W::THREADS, W::BLOCKS)
    attend_forward(const __grid_constant__ problem p, const typename W::element *qkv,
                   typename W::element *out, float *lse)
{
    using T = typename W::element;
    extern __shared__ __align__(16) char raw[];
    memory<W> &m = *reinterpret_cast<memory<W> *>(raw);
    const item me = item_of(tiles_of(p.tokens, W::ROWS), p.heads, p.sequences, true);
    const int lane = lane_of(), first = me.tile * W::ROWS; /* first query of the block */
    const int own = (int)threadIdx.x / 32 * 16;            /* first row of the warp */
    const int end = first + W::ROWS < p.tokens ? first + W::ROWS : p.tokens;
    const T *queries = qkv + me.sequence * (int64_t)p.tokens * p.row + me.head * (int64_t)p.width;
    const T *keys = qkv + me.sequence * (int64_t)p.tokens * p.row +
                    (p.heads + me.head / p.group) * (int64_t)p.width;
    const T *values = keys + p.kv_heads * (int64_t)p.width;
    const float scale = __fmul_rn(p.scale, LOG2_E);
    const int skipped = first_key(p, first) / W::STEP; /* steps of keys before the window */
    const bool HELD = W::ALONG <= 8;                   /* queries stay in registers */
    uint32_t held[HELD ? W::ALONG : 1][4];
    float o[W::COLUMNS][4];
    softmax_rows r = {{-INFINITY, -INFINITY}, {0, 0}};
    clear(o);

    bring<W>(m.kept[0], queries + first * p.row, p.row, p.tokens - first, p);
    pass_by<W>(
        tiles_of(end, W::STEP) - skipped,
        [&](int i, int stage) {
            const int key = (skipped + i) * W::STEP;
            bring<W>(m.passing[stage][0], keys + key * p.row, p.row, p.tokens - key, p);
            bring<W>(m.passing[stage][1], values + key * p.row, p.row, p.tokens - key, p);
        },
        [&](int i, int stage) {
            if (i == 0)
                settle<W>(m.kept[0]);
            settle<W>(m.passing[stage][0]);
            settle<W>(m.passing[stage][1]);
        },
        [&](int i, int stage) {
            const int edge = first + own - (skipped + i) * W::STEP;
            float s[W::TILES][4], factor[2];
            uint32_t x[W::DOWN][4];
            if constexpr (HELD) {
                if (i == 0)
#pragma unroll
                    for (int k = 0; k < W::ALONG; k++)
                        load_rows<W>(held[k], m.kept[0][own], k);
            }
            if (edge + 15 < 0 || edge - p.window >= W::STEP - 1)
                return;
            clear(s);
            if constexpr (HELD) {
#pragma unroll
                for (int k = 0; k < W::ALONG; k++)
                    step_along<W>(s, held[k], m.passing[stage][0][0], k);
            } else {
                along<W>(s, m.kept[0][own], m.passing[stage][0][0]);
            }
            if constexpr (W::CAP)
                cap_scores<W>(s, p);
            if (edge < W::STEP - 1)
                mask(s, edge);
            if (edge + 15 >= p.window)
                mask_before(s, edge - p.window);
            weigh(s, r, factor, scale);
#pragma unroll
            for (int n = 0; n < W::COLUMNS; n++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    o[n][k] = __fmul_rn(o[n][k], factor[k / 2]);
            as_factor<W>(x, s);
            down<W>(o, x, m.passing[stage][1][0]);
        });

    const int left = p.tokens - first - own;
    float share[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = sum_of_row(r.sum[h]);
        const int row = lane / 4 + 8 * h;
        share[h] = __frcp_rn(sum);
        if (lane % 4 == 0 && row < left)
            lse[(me.sequence * (int64_t)p.heads + me.head) * p.tokens + first + own + row] =
                __fmul_rn(__fmaf_rn(r.most[h], scale, logarithm_of_two(sum)), LN_2);
    }
    leave<W>(out + (me.sequence * (int64_t)p.tokens + first + own) * p.out_row +
                 me.head * (int64_t)p.width,
             p.out_row, left, p, o, share);
}

} // namespace matrix

#endif
