/* hopper_attend_wide -- attention backward on Hopper: what two warpgroups do with the tiles of
 * heads of width 128. The products of hopper_attend.cuh, cut differently: a tile has 128 keys and
 * 64 queries; a warpgroup has 64 of the keys and half of the columns of dQ:
 *
 *     S^T  = K Q^T                   P^T  = 2^(S^T scale - lse)       (64, 64), in registers
 *     dP^T = V dO^T - sums           dS^T = P^T o dP^T
 *     dV  += P^T dO                  dK   += dS^T Q                   (64, 128), in registers
 *     dQ   = dS K                    all 64 queries                   (64, 64), half of the columns
 *
 * Registers, of 240 per thread: dK and dV 64 each, S or dP 32, dQ 32, P or dS in 16 bits 16: 208,
 * plus addresses. So only dK, dV and P are kept from one iteration to the next; thread positions
 * are recomputed where they are used (place_again), and descriptors come from uniform registers.
 *
 * Shared memory, of 227 KiB: keys 2 x 32, values 32, queries 3 x 16, dout 2 x 16, dS 2 x 16,
 * outgoing rows 16, which is 224; statistics, orders and barriers take 1.7.
 *
 * Timing. A tile is 5 x 512 cycles of tensor cores for both warpgroups. At 128 bytes per cycle,
 * operands in shared memory take 512 cycles each for S, dP and dQ, and 256 for dV and dK, whose A
 * is in registers; copies add 256, and dS 128: 2432, little less. Exponentials are half of those
 * at width 64 for the same products, so it is enough that the warpgroups run half a tile apart:
 *     dP(t), dV(t) start; dS(t) overlaps dV(t);
 *     dK(t), S(t + 1), dQ(t - 1) start; dS(t) to shared memory; P(t + 1) overlaps dQ;
 *     dQ(t - 1) is written.
 * The remarks on ptxas in hopper_attend.cuh hold here too.
 *
 * With rope, finished dq is written where the other warpgroup sees it, and rotated and written to
 * dqkv two iterations later (query_finishes).
 */
#ifndef OPS_CUDA_HOPPER_ATTEND_WIDE_CUH
#define OPS_CUDA_HOPPER_ATTEND_WIDE_CUH
#include "ops/cuda/attention/hopper_slopes.cuh"

namespace hopper
{

/* --- products of tiles ---------------------------------------------------------------------- */

/* Byte offset from columns 0-63 to columns 64-127, of keys and values, and of queries and dout. */
const int KEY_COLUMNS = TILE * 128, QUERY_COLUMNS = 64 * 128;

/* s (64 keys, 64 queries) = a b^T over 128, or +=: a of keys or values, b of queries or dout */
template <typename T>
__device__ inline void product_scores(float (&s)[32], uint32_t a, uint32_t b, int add)
{
    const uint64_t a_tile = tile_at(uniform(a)), b_tile = tile_at(uniform(b));
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_along<T>(s, further(a_tile, k / 4 * KEY_COLUMNS + k % 4 * 32),
                         further(b_tile, k / 4 * QUERY_COLUMNS + k % 4 * 32), k > 0 ? 1 : add);
}

/* d (64 keys, 128) = a (64, 64) in registers times b (64, 128) of queries or dout, or += */
template <typename T>
__device__ inline void product_keys(float (&d)[64], const uint32_t (&a)[16], uint32_t b, int add)
{
    const uint64_t tiles = tiles_at(uniform(b), QUERY_COLUMNS);
#pragma unroll
    for (int k = 0; k < 4; k++)
        product_down<T>(d, a + 4 * k, further(tiles, 2048 * k), k > 0 ? 1 : add);
}

/* dq (64 queries, 64 columns) = ds (64, 128) in two tiles times k (128, 64), or += */
template <typename T>
__device__ inline void product_columns(float (&dq)[32], uint32_t ds, uint32_t key, int add)
{
    const uint64_t ds_tile = tile_at(uniform(ds)), key_tile = tile_at(uniform(key));
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_down<T>(dq, further(ds_tile, k / 4 * SLOPE_BYTES<128> + k % 4 * 32),
                        further(key_tile, 2048 * k), k > 0 ? 1 : add);
}

/* --- the loop ------------------------------------------------------------------------------- */

/* The buffer and the parity of the n-th use of two buffers in turn. */
__device__ inline int place_of_two(unsigned n)
{
    return n & 1;
}

__device__ inline uint32_t parity_of_two(unsigned n)
{
    return n >> 1 & 1;
}

/* Where finished dq of a tile waits for both warpgroups. */
__device__ inline float *pair_place(const problem &p, unsigned tile)
{
    return p.pairs + ((int64_t)blockIdx.x * PAIR_STAGES + tile % PAIR_STAGES) * (64 * 128);
}

template <bool ROPE, bool SUMS, bool CLUSTER, typename T>
__device__ inline void query_goes(memory<128> &m, const problem &p, T *dqkv, unsigned tile,
                                  int flags, const float (&dq)[32])
{
    const order &o = m.orders[tile % ORDERS];
    if constexpr (ROPE) {
        float *to = !CLUSTER && finished(flags) ? pair_place(p, tile) : p.dq + o.sum;
        sum_leaves<CLUSTER>(m, to + sum_offset(place_again()), flags, dq, tile);
    } else {
        query_leaves<SUMS, CLUSTER>(m, p, dqkv, flags, leaving_at(o, flags), dq, tile);
    }
}

/* With rope: rotates and writes dq of a tile, if it was finished, three iterations after the
 * tile's own. By then the other warpgroup has stored its columns, too: it stores those of tile t
 * at the end of iteration t + 1 and signals that with dS(t + 2), which is awaited in iteration t +
 * 3. And it overwrites them only after it has waited for dS(t + 4), which is signalled after this:
 * hence PAIR_STAGES. */
template <typename T>
__device__ inline void query_finishes(memory<128> &m, const problem &p, T *dqkv, unsigned tile)
{
    const order &o = m.orders[tile % ORDERS];
    const int flags = uniform(o.flags);
    if (!finished(flags))
        return;
    const place me = place_again();
    const int row = query_row<128>(flags);
    float dq[32];
    take_pairs(dq, pair_place(p, tile), me);
    turn_part<128>(dq, p, row, me);
    write_query<128, true>(dqkv + o.dq, p, row, dq, m.stage[me.half * 4 + me.warp], me);
}

template <int COLUMNS, bool ROPE, bool SUMS, bool CLUSTER, bool WINDOW, typename T>
__device__ inline void consume(memory<128> &m, const problem &p, T *dqkv)
{
    /* LATE: no dq is finished here; ptxas spills even if only the test for that is left out */
    constexpr bool LATE = CLUSTER && IS_LATE<128, ROPE>;
    const place me = place_of((int)threadIdx.x - 128);
    const float scale = p.scale * LOG2_E;
    const int half = uniform(me.half);
    const int rows = half * (64 * 128);     /* byte offset of the warpgroup's keys in a tile */
    const int columns = half * KEY_COLUMNS; /* and of its columns of dq */
    const bool leader = me.lane == 0;       /* releases buffers for its warp */
    ring<QUERY_STAGES> q;
    unsigned sweep = 0; /* of this tile */
    float dk[64], dv[64];
    uint32_t p16[16]; /* P of this tile */

    /* P of the first tile; the second warpgroup waits until the first has passed */
    barrier_wait(shared_address(&m.start), me.half ^ 1);
    barrier_wait(shared_address(&m.key_full[0]), 0);
    barrier_wait(shared_address(&m.query_full[0]), 0);
    int flags = uniform(m.orders[0].flags);
    {
        float s[32];
        products_begin();
        product_scores<T>(s, shared_address(m.key[0]) + rows, shared_address(m.query[0]), 0);
        products_commit();
        products_wait<0>();
        hold(s);
        if (flags & DIAGONAL)
            mask(s, flags & LOWER ? 64 : 0, me);
        if (WINDOW && flags & BEFORE)
            mask_before<128>(s, m.orders[0], flags, p.window, me);
        const float4 ahead[1] = {stats_of(m.lse[0], 0, me)};
        probabilities(s, ahead, m.lse[0], scale, me);
        round_all<T>(p16, s);
        barrier_wait(shared_address(&m.dout_full[0]), 0);
        barrier_wait(shared_address(&m.value_full), 0);
    }
    if (me.half == 0 && leader)
        barrier_arrive(shared_address(&m.start));

    for (unsigned tile = 0;; tile++) {
        float s[32], dp[32], dq[32]; /* here, so that old values do not stay in registers */
        uint32_t ds16[16];
        const int now = place_of_two(tile), last = now ^ 1; /* buffers of dout and of dS */
        const unsigned sweep_before = sweep - (flags & FIRST ? 1 : 0);

        /* dP and dV start */
        start_slopes(dp, m.sums[now], place_again());
        products_begin();
        product_scores<T>(dp, shared_address(m.value) + rows, shared_address(m.dout[now]), 1);
        products_commit();
        product_keys<T>(dv, p16, shared_address(m.dout[now]), !(flags & FIRST));
        products_commit();

        /* dS, overlapping dV */
        products_wait<1>();
        hold(dp);
        if (flags & LAST && leader)
            barrier_arrive(shared_address(&m.value_empty));
        slopes<T>(dp, p16);
        clear_first(dp, flags, place_again());
        hold(dp);
        const int query_now = q.stage;
        q.step();
        sweep += flags & LAST ? 1 : 0; /* now that of the next tile */
        if (!(flags & END)) {
            if (flags & LAST)
                barrier_wait(shared_address(&m.key_full[place_of_two(sweep)]),
                             parity_of_two(sweep));
            barrier_wait(shared_address(&m.query_full[q.stage]), q.parity);
        }
        products_wait<0>();
        hold(dv);
        round_all<T>(ds16, dp);
        const int before = tile ? uniform(m.orders[(tile - 1) % ORDERS].flags) : PUT;
        if (CLUSTER && finished(before))
            await_turn(m, tile - 1);
        if (!LATE && before & TAKE)
            take_sum(dq, p.dq + m.orders[(tile - 1) % ORDERS].sum + sum_offset(place_again()));
        if (leader)
            barrier_arrive(shared_address(&m.dout_empty[now]));

        /* dK, the next S and the last dQ start; after END the next S is not used */
        products_begin();
        product_keys<T>(dk, ds16, shared_address(m.query[query_now]), !(flags & FIRST));
        product_scores<T>(s, shared_address(m.key[place_of_two(sweep)]) + rows,
                          shared_address(m.query[q.stage]), 0);
        products_commit();
        if (tile)
            barrier_wait(shared_address(&m.ds_full[last]), parity_of_two(tile - 1));
        products_begin();
        product_columns<T>(dq, shared_address(m.ds[last]),
                           shared_address(m.key[place_of_two(sweep_before)]) + columns,
                           LATE ? 0 : before & TAKE);
        products_commit();

        /* dS to both warpgroups */
        barrier_wait(shared_address(&m.ds_empty[now]), parity_of_two(tile) ^ 1);
        const place here = place_again();
        share_slopes(shared_address(m.ds[now]) + here.half * SLOPE_BYTES<128>, ds16, here);
        async_fence();
        __syncwarp();
        if (leader)
            barrier_arrive(shared_address(&m.ds_full[now]));

        /* the next P, overlapping dK and dQ */
        const int next = uniform(m.orders[(tile + 1) % ORDERS].flags);
        const float4 ahead[1] = {stats_of(m.lse[q.stage], 0, here)};
        products_wait<1>();
        hold(s);
        if (next & DIAGONAL)
            mask(s, next & LOWER ? 64 : 0, here);
        if (WINDOW && next & BEFORE)
            mask_before<128>(s, m.orders[(tile + 1) % ORDERS], next, p.window, here);
        probabilities(s, ahead, m.lse[q.stage], scale, here);
        round_all<T>(p16, s);
        hold(p16);
        if (!(flags & END)) {
            barrier_wait(shared_address(&m.dout_full[last]), parity_of_two(tile + 1));
            if (flags & LAST)
                barrier_wait(shared_address(&m.value_full), sweep & 1);
        }
        products_wait<0>();
        hold(dq);
        hold(dk);
        hold(dv);
        barrier_arrive(shared_address(&m.query_empty[query_now]));
        if (leader) {
            if (tile) {
                barrier_arrive(shared_address(&m.ds_empty[last]));
                if (flags & FIRST)
                    barrier_arrive(shared_address(&m.key_empty[place_of_two(sweep_before)]));
            }
        }
        if (CLUSTER && finished(before))
            end_turn(m, tile - 1, leader);

        /* finished results are written */
        if (tile)
            query_goes<ROPE, SUMS, CLUSTER>(m, p, dqkv, tile - 1, before, dq);
        if (ROPE && !LATE && tile > 2)
            query_finishes(m, p, dqkv, tile - 3);
        if (flags & LAST)
            keys_leave<ROPE>(m, p, dqkv, m.orders[tile % ORDERS], dk, dv);
        if (flags & END) {
            const order &o = m.orders[tile % ORDERS];
            barrier_wait(shared_address(&m.ds_full[now]), parity_of_two(tile));
            if (CLUSTER && finished(flags))
                await_turn(m, tile);
            if (!LATE && flags & TAKE)
                take_sum(dq, p.dq + o.sum + sum_offset(place_again()));
            products_begin();
            product_columns<T>(dq, shared_address(m.ds[now]),
                               shared_address(m.key[place_of_two(sweep - 1)]) + columns,
                               LATE ? 0 : flags & TAKE);
            products_commit();
            products_wait<0>();
            hold(dq);
            if (CLUSTER && finished(flags))
                end_turn(m, tile, leader);
            query_goes<ROPE, SUMS, CLUSTER>(m, p, dqkv, tile, flags, dq);
            if (ROPE && !LATE) {
                consumers_meet();
                for (unsigned late = tile < 2 ? 0 : tile - 2; late <= tile; late++)
                    query_finishes(m, p, dqkv, late);
            }
            return;
        }
        flags = next;
    }
}

} // namespace hopper

#endif
