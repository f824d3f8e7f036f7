/* hopper_rows -- attention backward on Hopper: how results leave the registers.
 *
 * A thread has its part of a product (64, 64), 32 floats, as hopper.cuh draws it. Finished rows of
 * dqkv go out as whole lines, by way of shared memory. Sums of dq never leave their order by thread:
 * of a tile of queries, piece c (four floats) of a thread lies at (half, c, thread), and it is always
 * the same thread that puts, adds and takes it, in program order. So additions in memory happen in
 * one order, without fences.
 *
 * Of dq a warpgroup has 64 queries of 128 at width 64, and 64 columns of 128 at width 128.
 */
#ifndef OPS_CUDA_HOPPER_ROWS_CUH
#define OPS_CUDA_HOPPER_ROWS_CUH
#include "ops/cuda/hopper_tiles.cuh"

namespace hopper
{

struct place {              /* of a thread among the consumers */
    int half;               /* warpgroup: which 64 keys of a tile; of dq, queries or columns */
    int warp, lane, thread; /* in the warpgroup */
};

__device__ inline place place_of(int thread)
{
    return {thread / 128, thread / 32 % 4, thread % 32, thread % 128};
}

/* The warp's 16 rows of d * scale into a tile of dqkv that starts at `to`; `width` elements a row. Of
 * d's columns, the 64 from FROM on. */
template <int FROM = 0, typename T, int N>
__device__ inline void write_rows(T *to, int64_t width, const float (&d)[N], float scale,
                                  char *stage, const place &me)
{
    const uint32_t base = shared_address(stage);
    const int r = me.lane % 16;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = packed<T>(__fmul_rn(d[FROM / 2 + 8 * k + 2 * i], scale),
                             __fmul_rn(d[FROM / 2 + 8 * k + 2 * i + 1], scale));
        store_matrices(base + r * 128 + ((2 * k + me.lane / 16) ^ r % 8) * 16, w[0], w[1], w[2],
                       w[3]);
    }
    __syncwarp();
    to += (me.half * 64 + me.warp * 16) * width + FROM;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int line = k * 4 + me.lane / 8, piece = me.lane % 8;
        uint4 bits = *reinterpret_cast<const uint4 *>(stage + line * 128 + (piece ^ line % 8) * 16);
        *reinterpret_cast<uint4 *>(to + line * width + piece * 8) = bits;
    }
    __syncwarp();
}

/* The warp's part of dq * scale into dqkv, whose tile of queries starts at `to`. */
template <int WIDTH, typename T>
__device__ inline void write_query(T *to, int64_t width, const float (&dq)[32], float scale,
                                   char *stage, const place &me)
{
    if constexpr (WIDTH == 64)
        write_rows(to, width, dq, scale, stage, me);
    else
        write_rows(to + me.half * 64, width, dq, scale, stage, {0, me.warp, me.lane, me.thread});
}

/* The calling thread's first piece of a tile of sums; the others follow 512 floats apart. */
__device__ inline int sum_offset(const place &me)
{
    return me.half * (64 * 64) + me.thread * 4;
}

__device__ inline void take_sum(float (&d)[32], const float *from)
{
#pragma unroll
    for (int c = 0; c < 8; c++)
        asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(d[4 * c]), "=f"(d[4 * c + 1]), "=f"(d[4 * c + 2]), "=f"(d[4 * c + 3])
                     : "l"(from + c * 512)
                     : "memory");
}

__device__ inline void put_sum(float *to, const float (&d)[32])
{
#pragma unroll
    for (int c = 0; c < 8; c++)
        asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 512),
                     "f"(d[4 * c]), "f"(d[4 * c + 1]), "f"(d[4 * c + 2]), "f"(d[4 * c + 3])
                     : "memory");
}

__device__ inline void add_sum(float *to, const float (&d)[32])
{
#pragma unroll
    for (int c = 0; c < 8; c++)
        asm volatile(
            "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 512),
            "f"(d[4 * c]), "f"(d[4 * c + 1]), "f"(d[4 * c + 2]), "f"(d[4 * c + 3])
            : "memory");
}

} // namespace hopper

#endif
