/* hopper_rows -- attention backward on Hopper: how results leave the registers.
 *
 * A thread has its part of a product (64, 64), 32 floats, as hopper.cuh describes it. Finished
 * rows of dqkv are written as full lines, through shared memory. Sums of dq stay in their order by
 * thread: in a tile of queries, group c (four floats) of a thread is at (half, c, thread), and the
 * same thread always puts, adds and takes it, in program order. So additions in memory happen in
 * one order, without fences. In a cluster (hopper_clusters.cuh) it is the thread of that number in
 * each block, when it is the block's turn.
 *
 * Of dq a warpgroup has 64 queries of 128 at width 64, and 64 columns of 128 at width 128.
 *
 * Rotary embedding (rope) is undone here, in fp32, before dq and dk are rounded: their rows are
 * rotated in the planes of columns i and i + D/2. A thread has both in its part of a product, D/4
 * floats apart, except for dq at width 128, whose columns 64-127 the other warpgroup has. There
 * the warpgroups finish other columns than they computed, 32 h .. and 64 + 32 h .., and exchange
 * them through memory.
 */
#ifndef OPS_CUDA_HOPPER_ROWS_CUH
#define OPS_CUDA_HOPPER_ROWS_CUH
#include "ops/cuda/attention/hopper_columns.cuh"

namespace hopper
{

struct place {              /* position of a thread among the consumers */
    int half;               /* warpgroup: which 64 keys of a tile; of dq, queries or columns */
    int warp, lane, thread; /* within the warpgroup */
};

__device__ inline place place_of(int thread)
{
    return {thread / 128, thread / 32 % 4, thread % 32, thread % 128};
}

/* The valid rows and columns of a tile, which may reach beyond the end of its sequence and of its
 * head. */
struct extent {
    int rows, columns;
};

/* Rotates d back: a product of 64 rows, the first of them row `row` of the sequence, whose columns
 * are N / 2 from `column` on and those D/2 after them. Rows after the last are rotated like the
 * last. */
template <int WIDTH, int N>
__device__ inline void turn_back(float (&d)[N], const problem &p, int row, int column,
                                 const place &me)
{
    const int pairs = WIDTH / 2, first = row + me.warp * 16 + me.lane / 4;
    const float *turns = p.rope + (column + me.lane % 4 * 2) * 2;
    const int upper = min(first, p.tokens - 1) * (pairs * 2);
    const int lower = min(first + 8, p.tokens - 1) * (pairs * 2);
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) { /* two columns of a row; then of the row 8 below */
        const float *at = turns + (i % 4 / 2 ? lower : upper) + i / 4 * 8 * 2;
        const float4 turn = __ldg(reinterpret_cast<const float4 *>(at)); /* cos, sin, cos, sin */
        const float x0 = d[i], x1 = d[i + 1], y0 = d[i + N / 2], y1 = d[i + N / 2 + 1];
        d[i] = __fmaf_rn(x0, turn.x, __fmul_rn(y0, turn.y));
        d[i + 1] = __fmaf_rn(x1, turn.z, __fmul_rn(y1, turn.w));
        d[i + N / 2] = __fmaf_rn(y0, turn.x, -__fmul_rn(x0, turn.y));
        d[i + N / 2 + 1] = __fmaf_rn(y1, turn.z, -__fmul_rn(x1, turn.w));
    }
}

/* The same for a part of a tile that begins at row `row`: at width 64 of queries or keys, at width
 * 128 the columns of take_pairs. */
template <int WIDTH, int N>
__device__ inline void turn_part(float (&d)[N], const problem &p, int row, const place &me)
{
    if constexpr (WIDTH == 64)
        turn_back<64>(d, p, row + me.half * 64, 0, me);
    else
        turn_back<128>(d, p, row, me.half * 32, me);
}

/* Writes the warp's 16 rows of d * scale to a tile of dqkv that starts at `to`, of which `left` is
 * valid; `width` elements per row. Takes the 64 columns of d from FROM on, or as many as it has;
 * in dqkv, GAP elements lie between the first 32 and the others. With `sums`, also sums the
 * columns, where invalid elements count as zero. */
template <int FROM = 0, int GAP = 0, typename T, int N, typename S = no_columns>
__device__ inline void write_rows(T *to, int64_t width, extent left, const float (&d)[N],
                                  float scale, char *stage, const place &me, S *sums = nullptr)
{
    const uint32_t base = shared_address(stage);
    const int r = me.lane % 16;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t w[4] = {};
#pragma unroll
        for (int i = 0; FROM / 2 + 8 * k < N && i < 4; i++)
            w[i] = packed<T>(__fmul_rn(d[FROM / 2 + 8 * k + 2 * i], scale),
                             __fmul_rn(d[FROM / 2 + 8 * k + 2 * i + 1], scale));
        store_matrices(base + r * 128 + ((2 * k + me.lane / 16) ^ r % 8) * 16, w[0], w[1], w[2],
                       w[3]);
    }
    __syncwarp();
    const int first = me.half * 64 + me.warp * 16;
    to += first * width + FROM;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int line = k * 4 + me.lane / 8, chunk = me.lane % 8;
        uint4 bits = *reinterpret_cast<const uint4 *>(stage + line * 128 + (chunk ^ line % 8) * 16);
        const int column = chunk * 8 + chunk / 4 * GAP;
        if (first + line < left.rows && FROM + column < left.columns)
            *reinterpret_cast<uint4 *>(to + line * width + column) = bits;
        if constexpr (S::wanted)
            add_unit<T>(*sums, bits, k == 0);
    }
    __syncwarp();
}

/* Writes the warp's part of dq * scale to dqkv, whose tile of queries starts at `to` and at row
 * `row` of the sequence. PAIRED: the columns are those of take_pairs. */
template <int WIDTH, bool PAIRED = false, typename T, int N, typename S = no_columns>
__device__ inline void write_query(T *to, const problem &p, int row, const float (&dq)[N],
                                   char *stage, const place &me, S *sums = nullptr)
{
    const place all_rows = {0, me.warp, me.lane, me.thread};
    const int rows = p.tokens - row;
    if constexpr (WIDTH == 64)
        write_rows(to, p.row, {rows, p.width}, dq, p.scale, stage, me, sums);
    else if constexpr (PAIRED)
        write_rows<0, 32>(to + me.half * 32, p.row, {rows, 128}, dq, p.scale, stage, all_rows);
    else
        write_rows(to + me.half * 64, p.row, {rows, p.width - me.half * 64}, dq, p.scale, stage,
                   all_rows, sums);
}

/* Writes the column sums of what write_query wrote; `lower`: of the second 64 queries at width
 * 128. */
template <int WIDTH>
__device__ inline void query_columns_leave(const problem &p, float2 pair, int eight, bool lower,
                                           bool begin, const place &me)
{
    const int row = (WIDTH == 64 ? me.half * 4 : lower ? 4 : 0) + me.warp;
    columns_leave<WIDTH>(p, pair, eight, row, WIDTH == 64 ? 0 : me.half * 64, begin, me.lane);
}

/* The calling thread's first group in a tile of sums; the others follow 512 floats apart. */
__device__ inline int sum_offset(const place &me)
{
    return me.half * (64 * 64) + me.thread * 4;
}

__device__ inline void take_four(float *d, const float *from)
{
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "l"(from)
                 : "memory");
}

template <int N> __device__ inline void take_sum(float (&d)[N], const float *from)
{
#pragma unroll
    for (int c = 0; c < N / 4; c++)
        take_four(d + 4 * c, from + c * 512);
}

/* The part of a tile of sums at width 128 that the thread rotates: 32 columns of the first half,
 * then those 64 after them. */
__device__ inline void take_pairs(float (&d)[32], const float *tile, const place &me)
{
    const float *from = tile + me.half * (4 * 512) + me.thread * 4;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        take_four(d + 4 * c, from + c * 512);
        take_four(d + 4 * c + 16, from + 64 * 64 + c * 512);
    }
}

template <int N> __device__ inline void put_sum(float *to, const float (&d)[N])
{
#pragma unroll
    for (int c = 0; c < N / 4; c++)
        asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 512),
                     "f"(d[4 * c]), "f"(d[4 * c + 1]), "f"(d[4 * c + 2]), "f"(d[4 * c + 3])
                     : "memory");
}

template <int N> __device__ inline void add_sum(float *to, const float (&d)[N])
{
#pragma unroll
    for (int c = 0; c < N / 4; c++)
        asm volatile(
            "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 512),
            "f"(d[4 * c]), "f"(d[4 * c + 1]), "f"(d[4 * c + 2]), "f"(d[4 * c + 3])
            : "memory");
}

} // namespace hopper

#endif
