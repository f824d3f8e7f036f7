/* hopper_attend -- attention backward on Hopper: what two warpgroups do with the tiles of heads of
 * width 64; of heads of up to 32 columns it can compute only 32.
 *
 * A warpgroup has 64 of a tile's 128 keys, with keys down and queries across:
 *
 *     S^T  = K Q^T                   P^T  = 2^(S^T scale - lse)       (64, 128), in registers
 *     dP^T = V dO^T - sums           dS^T = P^T o dP^T
 *     dV  += P^T dO                  dK   += dS^T Q                   (64, 64), in registers
 *     dQ   = dS K                                                     (64, 64), half of the queries
 *
 * P^T and dS^T, rounded to the compute type, are A of the next products in their register layout.
 * dQ sums over all 128 keys: dS goes through shared memory once, transposed, for both warpgroups.
 *
 * Timing. Tensor cores, exponentials and the rest must overlap, but the registers (240) hold
 * little more than two (64, 128) products. So an iteration of the loop, for tile t, is:
 *     dP(t), dV(t) start; dQ of tile t - 2 is written; dS(t) overlaps dV(t);
 *     dK(t), S(t + 1), dQ(t - 1) start; dS(t) to shared memory; P(t + 1) overlaps dK and dQ.
 * Delaying dQ by a tile lets the warpgroups run half a tile apart, so that the exponentials of one
 * overlap the products of the other. The second one starts later for that.
 *
 * With rope, dk and finished dq are rotated back at the end of an iteration, where the fewest
 * registers are in use, and written in the next.
 *
 * ptxas is fragile here: it serializes the products (and reports it, C75xx) if a product is in
 * flight at the end of an iteration, or if registers run short; and it moves arithmetic below a
 * wait unless a branch, such as that of barrier_wait, is in between. Check its messages and the
 * positions of WARPGROUP.DEPBAR after every change.
 */
#ifndef OPS_CUDA_HOPPER_ATTEND_CUH
#define OPS_CUDA_HOPPER_ATTEND_CUH
#include "ops/cuda/attention/hopper_slopes.cuh"

namespace hopper
{

/* --- products of tiles ---------------------------------------------------------------------- */

/* s (64, 128) = a b^T over the columns, or += */
template <int COLUMNS, typename T>
__device__ inline void product_tiles(float (&s)[64], uint64_t a, uint64_t b, int add)
{
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++)
        product_along<T>(s, further(a, 32 * k), further(b, 32 * k), k > 0 ? 1 : add);
}

/* d (64, 64) = a (64, 128) in registers times b (128, 64), or +=; or 32 of the columns */
template <typename T, int N>
__device__ inline void product_tile(float (&d)[N], const uint32_t (&a)[32], uint64_t b, int add)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_down<T>(d, a + 4 * k, further(b, 2048 * k), k > 0 ? 1 : add);
}

/* dq (64, 64) = ds (64, 128) in two tiles times k (128, 64), or +=; or 32 of the columns */
template <typename T, int N>
__device__ inline void product_query(float (&dq)[N], uint32_t ds, uint32_t key, int add)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_down<T>(dq, tile_at(ds + k / 4 * SLOPE_BYTES<64> + k % 4 * 32),
                        tile_at(key + 2048 * k), k > 0 ? 1 : add);
}

/* --- the loop ------------------------------------------------------------------------------- */

template <int COLUMNS, bool ROPE, bool SUMS, bool CLUSTER, bool WINDOW, typename T>
__device__ inline void consume(memory<64> &m, const problem &p, T *dqkv)
{
    const place me = place_of((int)threadIdx.x - 128);
    const float scale = p.scale * LOG2_E;
    const int half = me.half * (64 * 128); /* byte offset of the warpgroup's rows in a tile */
    const bool leader = me.lane == 0;      /* releases buffers for its warp */
    ring<K_STAGES<64>> k;
    ring<1> v;
    ring<QUERY_STAGES> q;
    ring<DOUT_STAGES> d;
    float dk[COLUMNS / 2], dv[COLUMNS / 2], dq[COLUMNS / 2];
    uint32_t p16[32];                /* P of this tile */
    int before = PUT, older = PUT;   /* flags of the last two tiles */
    int key_before = 0, key_now = 0; /* buffers of the keys of the last tile and this one */
    int64_t dq_at = 0;               /* where dq of tile - 2 goes */

    /* P of the first tile; the second warpgroup waits until the first has passed */
    barrier_wait(shared_address(&m.start), me.half ^ 1);
    barrier_wait(shared_address(&m.key_full[0]), 0);
    barrier_wait(shared_address(&m.query_full[0]), 0);
    int flags = m.orders[0].flags;
    {
        float s[64];
        products_begin();
        product_tiles<COLUMNS, T>(s, tile_at(shared_address(m.key[0]) + half),
                                  tile_at(shared_address(m.query[0])), 0);
        products_commit();
        products_wait<0>();
        hold(s);
        if (flags & DIAGONAL)
            mask(s, 0, me);
        if (WINDOW && flags & BEFORE)
            mask_before<64>(s, m.orders[0], flags, p.window, me);
        const float4 ahead[1] = {stats_of(m.lse[0], 0, me)};
        probabilities(s, ahead, m.lse[0], scale, me);
        round_all<T>(p16, s);
        barrier_wait(shared_address(&m.dout_full[0]), 0);
        barrier_wait(shared_address(&m.value_full), 0);
    }
    if (me.half == 0 && leader)
        barrier_arrive(shared_address(&m.start));

    for (unsigned tile = 0;; tile++) {
        float s[64], dp[64]; /* here, so that old values do not stay in registers */
        float new_dq[COLUMNS / 2];
        uint32_t ds16[32];

        /* dP and dV start; finished results are written */
        start_slopes(dp, m.sums[d.stage], me);
        products_begin();
        product_tiles<COLUMNS, T>(dp, tile_at(shared_address(m.value) + half),
                                  tile_at(shared_address(m.dout[d.stage])), 1);
        products_commit();
        if (before & LAST)
            keys_leave(m, p, dqkv, m.orders[(tile - 1) % ORDERS], dk, dv);
        products_begin();
        product_tile<T>(dv, p16, tile_at(shared_address(m.dout[d.stage])), !(flags & FIRST));
        products_commit();
        if (tile > 1)
            query_leaves<SUMS, CLUSTER>(m, p, dqkv, older, dq_at, dq, tile - 2);

        /* dS, overlapping dV */
        products_wait<1>();
        hold(dp);
        if (flags & LAST && leader)
            barrier_arrive(shared_address(&m.value_empty));
        slopes<T>(dp, p16);
        clear_first(dp, flags, me);
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
        if (CLUSTER && finished(before)) /* after the wait below, registers would run short */
            await_turn(m, tile - 1);
        products_wait<0>();
        hold(dv);
        round_all<T>(ds16, dp);
        if (before & TAKE)
            take_sum(new_dq, p.dq + m.orders[(tile - 1) % ORDERS].sum + sum_offset(me));
        if (leader)
            barrier_arrive(shared_address(&m.dout_empty[d.stage]));
        d.step();

        /* dK, the next S and the last dQ start; after END the next S is not used */
        products_begin();
        product_tile<T>(dk, ds16, tile_at(shared_address(m.query[query_now])), !(flags & FIRST));
        product_tiles<COLUMNS, T>(s, tile_at(shared_address(m.key[k.stage]) + half),
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
        share_slopes(shared_address(m.ds[tile & 1]) + me.half * SLOPE_BYTES<64>, ds16, me);
        async_fence();
        __syncwarp();
        if (leader)
            barrier_arrive(shared_address(&m.ds_full[tile & 1]));

        /* the next P, overlapping dK and dQ */
        dq_at = leaving_at(m.orders[(tile - 1) % ORDERS], before);
        const int next = m.orders[(tile + 1) % ORDERS].flags;
        const float4 ahead[2] = {stats_of(m.lse[q.stage], 0, me), stats_of(m.lse[q.stage], 1, me)};
        products_wait<1>();
        hold(s);
        if (next & DIAGONAL)
            mask(s, 0, me);
        if (WINDOW && next & BEFORE)
            mask_before<64>(s, m.orders[(tile + 1) % ORDERS], next, p.window, me);
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
        barrier_arrive(shared_address(&m.query_empty[query_now]));
        if (leader) {
            if (tile)
                barrier_arrive(shared_address(&m.ds_empty[(tile - 1) & 1]));
            if (before & LAST)
                barrier_arrive(shared_address(&m.key_empty[key_before]));
        }
        if (CLUSTER && finished(before))
            end_turn(m, tile - 1, leader);
        if (ROPE && finished(before))
            turn_part<64>(new_dq, p, query_row<64>(before), place_again());
        if (ROPE && flags & LAST)
            turn_part<64>(dk, p, m.orders[tile % ORDERS].row, place_again());
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++)
            dq[i] = new_dq[i];

        if (flags & END) {
            const order &o = m.orders[tile % ORDERS];
            if (tile)
                query_leaves<SUMS, CLUSTER>(m, p, dqkv, before, dq_at, dq, tile - 1);
            barrier_wait(shared_address(&m.ds_full[tile & 1]), tile >> 1 & 1);
            if (CLUSTER && finished(flags))
                await_turn(m, tile);
            if (flags & TAKE)
                take_sum(new_dq, p.dq + o.sum + sum_offset(me));
            products_begin();
            product_query<T>(new_dq, shared_address(m.ds[tile & 1]) + half,
                             shared_address(m.key[key_now]), flags & TAKE);
            products_commit();
            products_wait<0>();
            hold(new_dq);
            if (CLUSTER && finished(flags))
                end_turn(m, tile, leader);
            if (ROPE && finished(flags))
                turn_part<64>(new_dq, p, query_row<64>(flags), place_again());
            query_leaves<SUMS, CLUSTER>(m, p, dqkv, flags, leaving_at(o, flags), new_dq, tile);
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

} // namespace hopper

#endif
