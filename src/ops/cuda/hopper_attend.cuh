/* hopper_attend -- attention backward on Hopper: what two warpgroups do with the tiles.
 *
 * A warpgroup has 64 of a tile's 128 keys, and everything with keys down and queries across:
 *
 *     S^T  = K Q^T                   P^T  = 2^(S^T scale - lse)       (64, 128), in registers
 *     dP^T = V dO^T - sums           dS^T = P^T o dP^T
 *     dV  += P^T dO                  dK   += dS^T Q                   (64, 64), in registers
 *     dQ   = dS K                                                     (64, 64), half of the queries
 *
 * P^T and dS^T are A of the next products as they lie in the registers, rounded to the compute type.
 * dQ sums over all 128 keys: dS goes once through shared memory, turned, for both warpgroups.
 *
 * Time. Tensor cores, exponentials and the rest must overlap, but registers (240) hold little more
 * than two (64, 128) products. So a turn of the loop, for tile t, is:
 *     dP(t), dV(t) start; dQ of tile t - 2 leaves; dS(t) beside dV(t);
 *     dK(t), S(t + 1), dQ(t - 1) start; dS(t) to shared memory; P(t + 1) beside dK and dQ.
 * That dQ is a tile late lets the warpgroups run half a tile apart: one's exponentials beside the
 * other's products. The second starts later for that.
 *
 * ptxas is easily upset here: it runs products one by one (it says so, C75xx) when a product is in
 * flight over the end of the loop's turn, or when registers run short; and it moves arithmetic below a
 * wait unless a branch, such as that of barrier_wait, stands between. Look at what it says, and at the
 * places of WARPGROUP.DEPBAR, after every change.
 */
#ifndef OPS_CUDA_HOPPER_ATTEND_CUH
#define OPS_CUDA_HOPPER_ATTEND_CUH
#include "ops/cuda/hopper_rows.cuh"

namespace hopper
{

const int CONSUMERS = 2 * 128, THREADS = 128 + CONSUMERS;
const float LOG2_E = 1.44269504088896340736f;

/* --- products of tiles ---------------------------------------------------------------------- */

/* s (64, 128) = a b^T over 64, or += */
template <typename T>
__device__ inline void product_tiles(float (&s)[64], uint64_t a, uint64_t b, int add)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        product_along<T>(s, further(a, 32 * k), further(b, 32 * k), k > 0 ? 1 : add);
}

/* d (64, 64) = a (64, 128) in registers times b (128, 64), or += */
template <typename T>
__device__ inline void product_tile(float (&d)[32], const uint32_t (&a)[32], uint64_t b, int add)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_down<T>(d, a + 4 * k, further(b, 2048 * k), k > 0 ? 1 : add);
}

/* dq (64, 64) = ds (64, 128) in two tiles times k (128, 64), or += */
template <typename T>
__device__ inline void product_query(float (&dq)[32], uint32_t ds, uint32_t key, int add)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_down<T>(dq, tile_at(ds + k / 4 * TILE_BYTES + k % 4 * 32), tile_at(key + 2048 * k),
                        k > 0 ? 1 : add);
}

/* --- arithmetic on what a thread has -------------------------------------------------------- */

/* Of the statistics of a tile, those of columns 16 g ..: two of either eight. */
__device__ inline float4 stats_of(const float *stats, int g, const place &me)
{
    return *reinterpret_cast<const float4 *>(stats + 16 * g + me.lane % 4 * 4);
}

/* Keys after the query are not seen. */
__device__ inline void mask(float (&s)[64], const place &me)
{
    int edge = me.half * 64 + me.warp * 16 + me.lane / 4 - me.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int column = i / 4 * 8 + i % 2, row = i % 4 / 2 * 8;
        if (column - row < edge)
            s[i] = -INFINITY;
    }
}

/* s becomes 2^(s scale - lse); the first of lse come as `ahead`. */
template <int AHEAD>
__device__ inline void probabilities(float (&s)[64], const float4 (&ahead)[AHEAD], const float *lse,
                                     float scale, const place &me)
{
#pragma unroll
    for (int g = 0; g < 8; g++) {
        float4 l = g < AHEAD ? ahead[g] : stats_of(lse, g, me);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float least = i < 4 ? (i % 2 ? l.y : l.x) : (i % 2 ? l.w : l.z);
            s[8 * g + i] = power_of_two(__fmaf_rn(s[8 * g + i], scale, -least));
        }
    }
}

/* dp starts as the sums, which are negative, so that the product adds to them. */
__device__ inline void start_slopes(float (&dp)[64], const float *sums, const place &me)
{
#pragma unroll
    for (int g = 0; g < 8; g++) {
        float4 l = stats_of(sums, g, me);
        dp[8 * g] = dp[8 * g + 2] = l.x;
        dp[8 * g + 1] = dp[8 * g + 3] = l.y;
        dp[8 * g + 4] = dp[8 * g + 6] = l.z;
        dp[8 * g + 5] = dp[8 * g + 7] = l.w;
    }
}

/* dp becomes ds = p dp. */
template <typename T> __device__ inline void slopes(float (&dp)[64], const uint32_t (&p)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float2 both = unpacked<T>(p[i]);
        dp[2 * i] = __fmul_rn(both.x, dp[2 * i]);
        dp[2 * i + 1] = __fmul_rn(both.y, dp[2 * i + 1]);
    }
}

template <typename T> __device__ inline void round_all(uint32_t (&to)[32], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        to[i] = packed<T>(s[2 * i], s[2 * i + 1]);
}

/* ds^T of the warp's 16 keys into the warpgroup's tile (128 queries, 64 keys). */
__device__ inline void share_slopes(uint32_t tile, const uint32_t (&ds)[32], const place &me)
{
    int row = me.lane % 8 + me.lane / 16 * 8, piece = me.warp * 2 + me.lane / 8 % 2;
    uint32_t at = tile + row * 128 + (piece ^ row % 8) * 16;
#pragma unroll
    for (int k = 0; k < 8; k++)
        store_turned(at + k * 2048, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
}

/* --- leaving -------------------------------------------------------------------------------- */

/* Found again at each call, so that nothing made of it is kept in registers over the loop. */
__device__ inline place place_again()
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return place_of(thread - 128);
}

/* `at` is what leaving_at says. */
template <typename T>
__device__ inline void query_leaves(memory &m, const problem &p, T *dqkv, int flags, int64_t at,
                                    const float (&dq)[32])
{
    const place me = place_again();
    float *sum = p.dq + at + sum_offset(me);
    if (flags & ADD)
        add_sum(sum, dq);
    else if (flags & PUT)
        put_sum(sum, dq);
    else
        write_rows(dqkv + at, (int64_t)(p.heads + 2 * p.kv_heads) * WIDTH, dq, p.scale,
                   m.stage[me.half * 4 + me.warp], me);
}

__device__ inline int64_t leaving_at(const order &o, int flags)
{
    return flags & (ADD | PUT) ? o.sum : o.dq;
}

template <typename T>
__device__ inline void keys_leave(memory &m, const problem &p, T *dqkv, const order &o,
                                  const float (&dk)[32], const float (&dv)[32])
{
    const place me = place_again();
    const int64_t width = (int64_t)(p.heads + 2 * p.kv_heads) * WIDTH;
    char *stage = m.stage[me.half * 4 + me.warp];
    write_rows(dqkv + o.dk, width, dk, p.scale, stage, me);
    write_rows(dqkv + o.dk + p.kv_heads * WIDTH, width, dv, 1.0f, stage, me);
}

/* --- the loop ------------------------------------------------------------------------------- */

template <typename T> __device__ inline void consume(memory &m, const problem &p, T *dqkv)
{
    const place me = place_of((int)threadIdx.x - 128);
    const float scale = p.scale * LOG2_E;
    const int half = me.half * (64 * 128); /* bytes to the warpgroup's rows of a tile */
    const bool leader = me.lane == 0;      /* lets buffers go, for its warp */
    ring<K_STAGES> k;
    ring<1> v;
    ring<QUERY_STAGES> q;
    ring<DOUT_STAGES> d;
    float dk[32], dv[32], dq[32];
    uint32_t p16[32];                /* P of this tile */
    int before = 0, older = 0;       /* flags of the last two tiles */
    int key_before = 0, key_now = 0; /* places of the keys of the last tile and this one */
    int64_t dq_at = 0;               /* where dq of tile - 2 goes */

    /* P of the first tile; the second warpgroup waits until the first is through */
    barrier_wait(shared_address(&m.start), me.half ^ 1);
    barrier_wait(shared_address(&m.key_full[0]), 0);
    barrier_wait(shared_address(&m.query_full[0]), 0);
    int flags = m.orders[0].flags;
    {
        float s[64];
        products_begin();
        product_tiles<T>(s, tile_at(shared_address(m.key[0]) + half),
                         tile_at(shared_address(m.query[0])), 0);
        products_commit();
        products_wait<0>();
        hold(s);
        if (flags & DIAGONAL)
            mask(s, me);
        const float4 ahead[1] = {stats_of(m.lse[0], 0, me)};
        probabilities(s, ahead, m.lse[0], scale, me);
        round_all<T>(p16, s);
        barrier_wait(shared_address(&m.dout_full[0]), 0);
        barrier_wait(shared_address(&m.value_full), 0);
    }
    if (me.half == 0 && leader)
        barrier_arrive(shared_address(&m.start));

    for (unsigned tile = 0;; tile++) {
        float s[64], dp[64], new_dq[32]; /* in here, so that old values are not kept for nothing */
        uint32_t ds16[32];

        /* dP and dV start; what is finished leaves */
        start_slopes(dp, m.sums[d.stage], me);
        products_begin();
        product_tiles<T>(dp, tile_at(shared_address(m.value) + half),
                         tile_at(shared_address(m.dout[d.stage])), 1);
        products_commit();
        if (before & LAST)
            keys_leave(m, p, dqkv, m.orders[(tile - 1) % ORDERS], dk, dv);
        products_begin();
        product_tile<T>(dv, p16, tile_at(shared_address(m.dout[d.stage])), !(flags & FIRST));
        products_commit();
        if (tile > 1)
            query_leaves(m, p, dqkv, older, dq_at, dq);

        /* dS, beside dV */
        products_wait<1>();
        hold(dp);
        if (flags & LAST && leader)
            barrier_arrive(shared_address(&m.value_empty));
        slopes<T>(dp, p16);
        hold(dp);
        const int query_now = q.stage;
        q.step();
        if (flags & LAST)
            k.step();
        if (!(flags & END)) {
            if (flags & LAST)
                barrier_wait(shared_address(&m.key_full[k.stage]), k.parity);
            barrier_wait(shared_address(&m.query_full[q.stage]), q.parity);
        }
        products_wait<0>();
        hold(dv);
        round_all<T>(ds16, dp);
        if (before & TAKE)
            take_sum(new_dq, p.dq + m.orders[(tile - 1) % ORDERS].sum + sum_offset(me));
        if (leader)
            barrier_arrive(shared_address(&m.dout_empty[d.stage]));
        d.step();

        /* dK, the next S and the last dQ start; after END the next S is of no matter */
        products_begin();
        product_tile<T>(dk, ds16, tile_at(shared_address(m.query[query_now])), !(flags & FIRST));
        product_tiles<T>(s, tile_at(shared_address(m.key[k.stage]) + half),
                         tile_at(shared_address(m.query[q.stage])), 0);
        products_commit();
        if (tile)
            barrier_wait(shared_address(&m.ds_full[(tile - 1) & 1]), (tile - 1) >> 1 & 1);
        products_begin();
        product_query<T>(new_dq, shared_address(m.ds[(tile - 1) & 1]) + half,
                         shared_address(m.key[key_before]), before & TAKE);
        products_commit();

        /* dS to both warpgroups */
        barrier_wait(shared_address(&m.ds_empty[tile & 1]), (tile >> 1 & 1) ^ 1);
        share_slopes(shared_address(m.ds[tile & 1]) + me.half * TILE_BYTES, ds16, me);
        async_fence();
        __syncwarp();
        if (leader)
            barrier_arrive(shared_address(&m.ds_full[tile & 1]));

        /* the next P, beside dK and dQ */
        dq_at = leaving_at(m.orders[(tile - 1) % ORDERS], before);
        const int next = m.orders[(tile + 1) % ORDERS].flags;
        const float4 ahead[2] = {stats_of(m.lse[q.stage], 0, me), stats_of(m.lse[q.stage], 1, me)};
        products_wait<1>();
        hold(s);
        if (next & DIAGONAL)
            mask(s, me);
        probabilities(s, ahead, m.lse[q.stage], scale, me);
        hold(s);
        if (!(flags & END)) {
            barrier_wait(shared_address(&m.dout_full[d.stage]), d.parity);
            if (flags & LAST) {
                v.step();
                barrier_wait(shared_address(&m.value_full), v.parity);
            }
        }
        products_wait<0>();
        round_all<T>(p16, s);
        hold(new_dq);
        hold(dk);
        hold(dv);
#pragma unroll
        for (int i = 0; i < 32; i++)
            dq[i] = new_dq[i];
        if (leader) {
            barrier_arrive(shared_address(&m.query_empty[query_now]));
            if (tile)
                barrier_arrive(shared_address(&m.ds_empty[(tile - 1) & 1]));
            if (before & LAST)
                barrier_arrive(shared_address(&m.key_empty[key_before]));
        }

        if (flags & END) {
            const order &o = m.orders[tile % ORDERS];
            if (tile)
                query_leaves(m, p, dqkv, before, dq_at, dq);
            barrier_wait(shared_address(&m.ds_full[tile & 1]), tile >> 1 & 1);
            if (flags & TAKE)
                take_sum(new_dq, p.dq + o.sum + sum_offset(me));
            products_begin();
            product_query<T>(new_dq, shared_address(m.ds[tile & 1]) + half,
                             shared_address(m.key[key_now]), flags & TAKE);
            products_commit();
            products_wait<0>();
            hold(new_dq);
            query_leaves(m, p, dqkv, flags, leaving_at(o, flags), new_dq);
            keys_leave(m, p, dqkv, o, dk, dv);
            return;
        }
        older = before;
        before = flags;
        flags = next;
        key_before = key_now;
        key_now = k.stage;
    }
}

/* A block a processor: a producer (one thread of the first warpgroup) and two warpgroups that
 * compute, with the registers that the first does not need. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    attend_backward(const __grid_constant__ CUtensorMap qkv,
                    const __grid_constant__ CUtensorMap dout, const __grid_constant__ problem p,
                    T *dqkv)
{
    extern __shared__ __align__(1024) char raw[];
    memory &m = *reinterpret_cast<memory *>(raw);
    if (threadIdx.x == 0) {
        if (shared_address(raw) % 1024) /* tiles are found by this */
            __trap();
        init_barriers(m);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0)
            produce(m, p, &qkv, &dout);
    } else {
        more_registers<240>();
        consume<T>(m, p, dqkv);
    }
}

} // namespace hopper

#endif
