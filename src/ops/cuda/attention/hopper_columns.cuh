/* hopper_columns -- attention backward on Hopper: column sums of dqkv, which are the bias gradient
 * of the linear layer before attention, without reading dqkv again.
 *
 *     dk  Its sum over the keys is sum_i q_i sum_j dS_ij, and a row of dS sums to zero. (A bias
 *         of the keys shifts all scores of a query equally, and softmax ignores that.) The sum of
 *         rounded dk differs from zero by rounding only.
 *     dv  Its sum over the keys is sum_i dO_i sum_j P_ij, and a row of P sums to one: the sum of
 *         dout, which the statistics kernel reads anyway.
 *     dq  is summed as it is written, from the rounded values.
 *
 * A warp adds its 16 rows of 64 columns of dq, which pass through its registers in 16-byte units
 * anyway, and keeps a sum for each column in memory, at an address that no other warp writes, over
 * the tiles of an item: put for the first, added for the others, always by the same thread, like
 * the sums of dq itself (hopper_rows.cuh). A cut item has an entry for every 128 queries, written
 * by the kernel that adds up its dq; so has an item that a cluster does, written by the block that
 * finishes them.
 *
 *     p.dq_columns (places, H / G, 8, WIDTH)   8 warps: a tile's 128 rows of dq are 16 per warp
 *     p.dout_columns (B, tiles, H, WIDTH)      one row for every tile
 *
 * total_columns adds the rows in an order that depends on the shape only.
 */
#ifndef OPS_CUDA_HOPPER_COLUMNS_CUH
#define OPS_CUDA_HOPPER_COLUMNS_CUH
#include "ops/cuda/attention/hopper_tiles.cuh"

namespace hopper
{

/* --- while rows are written ------------------------------------------------------------------- */

/* What write_rows returns as column sums: nothing, or the lane's sums of eight columns, 8 (lane %
 * 8) .. of 64. */
struct no_columns {
    static constexpr bool wanted = false;
};

struct columns {
    static constexpr bool wanted = true;
    float sums[8];
};

/* Adds eight columns of one more row. */
template <typename T> __device__ inline void add_unit(columns &c, uint4 chunk, bool first)
{
    const uint32_t bits[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 both = unpacked<T>(bits[i]);
        c.sums[2 * i] = first ? both.x : __fadd_rn(c.sums[2 * i], both.x);
        c.sums[2 * i + 1] = first ? both.y : __fadd_rn(c.sums[2 * i + 1], both.y);
    }
}

/* The four lanes of the same columns have a quarter of the rows each. Afterwards each holds the
 * total of two columns, from pair_column on. */
__device__ inline float2 columns_of_warp(const columns &c, int lane)
{
    float half[4], pair[2];
    const bool second = lane & 16, odd = lane & 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
        half[i] = __fadd_rn(second ? c.sums[i + 4] : c.sums[i],
                            __shfl_xor_sync(0xffffffffu, second ? c.sums[i] : c.sums[i + 4], 16));
#pragma unroll
    for (int i = 0; i < 2; i++)
        pair[i] = __fadd_rn(odd ? half[i + 2] : half[i],
                            __shfl_xor_sync(0xffffffffu, odd ? half[i] : half[i + 2], 8));
    return {pair[0], pair[1]};
}

__device__ inline int pair_column(int lane)
{
    return lane % 8 * 8 + lane / 16 * 4 + lane / 8 % 2 * 2;
}

/* Writes the sums of dq to row `row` of the eight, from column `column` on: put for the item's
 * first tile (`begin`), added otherwise. */
template <int WIDTH>
__device__ inline void columns_leave(const problem &p, float2 pair, int eight, int row, int column,
                                     bool begin, int lane)
{
    float *to = p.dq_columns + ((int64_t)eight * 8 + row) * WIDTH + column + pair_column(lane);
    if (begin)
        put_pair(to, pair.x, pair.y);
    else
        add_pair(to, pair.x, pair.y);
}

/* --- adding up ------------------------------------------------------------------------------ */

const int COLUMN_RUNS = 32;

/* A column of a query head of dq: over the entries of whole items first, then the tiles of cut
 * ones. A run has every COLUMN_RUNS-th row. */
template <int WIDTH>
__device__ inline float dq_column(const problem &p, int batch, int head, int column, int run)
{
    const int kv_head = head / p.group;
    const int whole = p.whole > kv_head ? (p.whole - kv_head - 1) / p.kv_heads + 1 : 0;
    const int rows = (whole + (batch - whole) * p.tiles) * 8;
    float sum = 0;
#pragma unroll 4
    for (int row = run; row < rows; row += COLUMN_RUNS) {
        const int place = row / 8, cut = place - whole;
        const int b = cut < 0 ? place : whole + cut / p.tiles;
        const int64_t eight = columns_of(p, b * p.kv_heads + kv_head, cut < 0 ? 0 : cut % p.tiles);
        const float *from = p.dq_columns + (eight + head % p.group) * (8 * WIDTH);
        sum = __fadd_rn(sum, from[row % 8 * WIDTH + column]);
    }
    return sum;
}

/* A column of a key head of dv: over sequences, tiles and the group's query heads. */
template <int WIDTH>
__device__ inline float dv_column(const problem &p, int batch, int kv_head, int column, int run)
{
    float sum = 0;
#pragma unroll 4
    for (int row = run; row < batch * p.tiles * p.group; row += COLUMN_RUNS) {
        const int64_t head = row / p.group * p.heads + kv_head * p.group + row % p.group;
        sum = __fadd_rn(sum, p.dout_columns[head * WIDTH + column]);
    }
    return sum;
}

/* sums (H + 2G, D): the lanes of a warp are columns, the runs are its warps, added warp by warp. */
template <typename T, int WIDTH>
__global__ void __launch_bounds__(COLUMN_RUNS * 32)
    total_columns(const __grid_constant__ problem p, int batch, T *sums)
{
    __shared__ float shared[COLUMN_RUNS][32];
    const int lane = threadIdx.x % 32, run = threadIdx.x / 32;
    const int at = blockIdx.x * 32 + lane, head = at / p.width, column = at % p.width;
    const int values = p.heads + p.kv_heads;
    float sum = 0;
    if (head < p.heads)
        sum = dq_column<WIDTH>(p, batch, head, column, run);
    else if (head >= values && at < p.row)
        sum = dv_column<WIDTH>(p, batch, head - values, column, run);
    shared[run][lane] = sum;
    __syncthreads();
    if (run > 0 || at >= p.row)
        return;
#pragma unroll 8
    for (int i = 1; i < COLUMN_RUNS; i++)
        sum = __fadd_rn(sum, shared[i][lane]);
    sums[at] = T(sum);
}

} // namespace hopper

#endif
