/* hopper_columns -- attention backward on Hopper: column sums of dqkv, formed while its rows leave.
 *
 * They are the gradient of the bias of the matrix before attention; to read dqkv once more for them
 * costs as much as a twentieth of the whole pass. Summed are the values as they are stored, rounded.
 *
 * A warp adds its 16 rows of 64 columns, which pass through its registers as 16-byte pieces anyway, and
 * keeps a sum for each column in memory, in a place that no other warp writes, over the tiles of an
 * item: put for the first, added for the others, always by the same thread, as sums of dq are
 * (hopper_rows.cuh). An item that is cut has a place for every tile of keys. So
 *
 *     p.columns (places, H / G + 2, 8, D)      query heads of the item, then dk, then dv; 8 warps
 *
 * is one row for 16 T rows of a whole item; total_columns adds them, in an order that only the shape
 * decides. Eight warps: a tile's 128 rows of dq, dk or dv are 16 a warp.
 */
#ifndef OPS_CUDA_HOPPER_COLUMNS_CUH
#define OPS_CUDA_HOPPER_COLUMNS_CUH
#include "ops/cuda/hopper_tiles.cuh"

namespace hopper
{

/* What write_rows leaves of column sums: nothing, or the lane's own of eight columns, 8 (lane % 8) .. of
 * 64. */
struct no_columns {
    static constexpr bool wanted = false;
};

struct columns {
    static constexpr bool wanted = true;
    float sums[8];
};

/* Eight columns of one more row. */
template <typename T> __device__ inline void add_piece(columns &c, uint4 piece, bool first)
{
    const uint32_t bits[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 both = unpacked<T>(bits[i]);
        c.sums[2 * i] = first ? both.x : __fadd_rn(c.sums[2 * i], both.x);
        c.sums[2 * i + 1] = first ? both.y : __fadd_rn(c.sums[2 * i + 1], both.y);
    }
}

/* The four lanes of the same columns have each a quarter of the rows: each keeps two columns and has
 * their sum over all. */
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

/* To row `row` of the eight, from column `column` on: put for the first tile, or added. */
template <int WIDTH>
__device__ inline void columns_leave(const problem &p, float2 pair, int eight, int row, int column,
                                     bool begin, int lane)
{
    column += lane % 8 * 8 + lane / 16 * 4 + lane / 8 % 2 * 2;
    float *to = p.columns + ((int64_t)eight * 8 + row) * WIDTH + column;
    if (begin)
        put_pair(to, pair.x, pair.y);
    else
        add_pair(to, pair.x, pair.y);
}

/* The j-th place of a key head: those of whole items first, then the tiles of cut ones. */
__device__ inline int column_place(const problem &p, int kv_head, int whole, int j)
{
    if (j < whole)
        return j * p.kv_heads + kv_head;
    const int cut = (whole + (j - whole) / p.tiles) * p.kv_heads + kv_head - p.whole;
    return p.whole + cut * p.tiles + (j - whole) % p.tiles;
}

/* sums (H + 2G, D): a warp's lanes are columns, and its rows are added in order, by RUNS warps every
 * RUNS-th each and then warp by warp. */
const int COLUMN_RUNS = 32;

template <typename T, int WIDTH>
__global__ void __launch_bounds__(COLUMN_RUNS * 32)
    total_columns(const __grid_constant__ problem p, int batch, T *sums)
{
    __shared__ float shared[COLUMN_RUNS][32];
    const int lane = threadIdx.x % 32, run = threadIdx.x / 32;
    const int column = blockIdx.x * 32 + lane, head = column / WIDTH;
    const int kv_head = head < p.heads ? head / p.group : (head - p.heads) % p.kv_heads;
    const int part = head < p.heads ? head % p.group : p.group + (head - p.heads) / p.kv_heads;
    const int whole = p.whole > kv_head ? (p.whole - kv_head - 1) / p.kv_heads + 1 : 0;
    const int rows = (whole + (batch - whole) * p.tiles) * 8;
    float sum = 0;
#pragma unroll 4
    for (int row = run; row < rows; row += COLUMN_RUNS) {
        const int place = column_place(p, kv_head, whole, row / 8);
        const int64_t eight = (int64_t)place * (p.group + 2) + part;
        sum = __fadd_rn(sum, p.columns[(eight * 8 + row % 8) * WIDTH + column % WIDTH]);
    }
    shared[run][lane] = sum;
    __syncthreads();
    if (run > 0)
        return;
#pragma unroll 8
    for (int i = 1; i < COLUMN_RUNS; i++)
        sum = __fadd_rn(sum, shared[i][lane]);
    sums[column] = T(sum);
}

} // namespace hopper

#endif
