/* hopper_forward -- attention forward on Hopper: what warpgroups do with the tiles.
 *
 * A warpgroup has 64 queries, with queries down and keys across:
 *
 *     S = Q K^T                      P = 2^((S - most) scale)         (64, 128), in registers
 *     O = O 2^((old most - most) scale) + P V                         (64, D), in registers
 *
 * where most is a row's largest score so far, and scale includes the logarithm of 2. P, rounded to
 * the compute type, is A of the second product in its register layout; a row's sum is of unrounded
 * values. At the end O is divided by the sum, and lse is most plus the logarithm of the sum.
 *
 * Timing. A tile's powers of two take about as long as its products at width 64, half as long at
 * 128. So they must overlap. An iteration of the loop, for tile t of the block's whole list,
 *     starts S(t + 1) and O += P(t) V(t), lets the next warpgroup start its own, and computes
 *     P(t + 1) while the second product runs;
 * the next item's first tile follows the last of this one without a gap, and results are written
 * meanwhile. Also tried on an H200: two warpgroups at width 64 (6 to 12 % slower), three at width
 * 128 with nothing overlapped by hand (2 % faster, other code), no turns (as fast or 3 % slower),
 * some of the powers by arithmetic (4 to 6 % slower).
 *
 * The remarks on ptxas in hopper_attend.cuh hold here too: no product in flight at the end of an
 * iteration, and check its messages; the powers must come before the wait for the values
 * (WARPGROUP.DEPBAR 0), not after it.
 */
#ifndef OPS_CUDA_HOPPER_FORWARD_CUH
#define OPS_CUDA_HOPPER_FORWARD_CUH
#include "ops/cuda/attention/hopper_forward_tiles.cuh"
#include "ops/cuda/attention/hopper_rows.cuh"

namespace hopper::forward
{

/* --- products of tiles ---------------------------------------------------------------------- */

/* s (64, 128) = q k^T, for the queries from `query` on. */
template <class W, typename T>
__device__ inline void product_scores(float (&s)[64], uint32_t query, uint32_t key)
{
    const uint64_t a = tile_at(uniform(query)), b = tile_at(uniform(key));
#pragma unroll
    for (int k = 0; k < W::COLUMNS / 16; k++)
        product_along<T>(s, further(a, k / 4 * (W::QUERIES * 128) + k % 4 * 32),
                         further(b, k / 4 * (KEYS * 128) + k % 4 * 32), k > 0);
}

/* o (64, D) = p (64, 128) v, or += */
template <class W, typename T>
__device__ inline void product_values(float (&o)[W::COLUMNS / 2], const uint32_t (&p)[32],
                                      uint32_t value, int add)
{
    const uint32_t at = uniform(value);
    const uint64_t b = W::WIDTH == 64 ? tile_at(at) : tiles_at(at, KEYS * 128);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        product_down<T>(o, p + 4 * k, further(b, 2048 * k), k > 0 ? 1 : add);
}

/* --- arithmetic within a thread --------------------------------------------------------------- */

/* Of a thread's two rows: the largest score, and its partial sum of powers. */
struct rows {
    float most[2], sum[2];
};

/* Masks keys after the query; the tile's keys begin at row `key`, the warpgroup's queries at
 * `row`. */
__device__ inline void mask(float (&s)[64], int row, int key, const place &me)
{
    const int edge = row - key + me.warp * 16 + me.lane / 4 - me.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++)
        if (i / 4 * 8 + i % 2 - i % 4 / 2 * 8 > edge)
            s[i] = -INFINITY;
}

/* Whether the tile's keys begin before the window of one of the warpgroup's queries; masks those. */
__device__ inline bool reaches_before(const problem &p, int row, int key)
{
    return key <= row + 63 - p.window;
}

__device__ inline void mask_before(float (&s)[64], const problem &p, int row, int key,
                                   const place &me)
{
    const int edge = row - key - p.window + me.warp * 16 + me.lane / 4 - me.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++)
        if (i / 4 * 8 + i % 2 - i % 4 / 2 * 8 <= edge)
            s[i] = -INFINITY;
}

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

/* Replaces scores by powers; `factor` receives what earlier sums must be multiplied by. */
__device__ inline void weigh(float (&s)[64], rows &r, float (&factor)[2], float scale)
{
    float most[4], sum[4]; /* two chains per row, so that they do not wait for each other */
    float minus[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        most[i] = i % 2 ? s[i / 2 * 2 + 1] : fmaxf(r.most[i / 2], s[i / 2 * 2]);
#pragma unroll
    for (int i = 4; i < 64; i++)
        most[i % 4] = fmaxf(most[i % 4], s[i]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float top = most_of_row(fmaxf(most[2 * h], most[2 * h + 1]));
        factor[h] = power_of_two(__fmul_rn(__fadd_rn(r.most[h], -top), scale));
        minus[h] = -__fmul_rn(top, scale);
        r.most[h] = top;
    }
#pragma unroll
    for (int i = 0; i < 64; i++) {
        s[i] = power_of_two(__fmaf_rn(s[i], scale, minus[i % 4 / 2]));
        sum[i % 4] = i < 4 ? s[i] : __fadd_rn(sum[i % 4], s[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        r.sum[h] = __fmaf_rn(r.sum[h], factor[h], __fadd_rn(sum[2 * h], sum[2 * h + 1]));
}

/* Multiplies each row of o by a number. */
template <int N> __device__ inline void stretch(float (&o)[N], const float (&by)[2])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] = __fmul_rn(o[i], by[i % 4 / 2]);
}

template <typename T> __device__ inline void round_powers(uint32_t (&to)[32], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        to[i] = packed<T>(s[2 * i], s[2 * i + 1]);
}

/* --- writing results -------------------------------------------------------------------------- */

/* Recomputed at each call, so that nothing derived from it stays in registers over the loop. half
 * is 0. */
__device__ inline place place_in_group()
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return place_of(thread % 128);
}

/* Writes rows of out and lse of an item; rows before the first and after the last are skipped. */
template <class W, typename T>
__device__ inline void leave(memory<W> &m, const problem &p, const order &order, int group, rows &r,
                             float (&o)[W::COLUMNS / 2], float scale, T *out, float *lse)
{
    const place me = place_in_group();
    const int first = order.row + group * 64;
    if (first < 0)
        return;
    const extent left = {p.tokens - first, p.width};
    const int64_t width = (int64_t)p.heads * p.width;
    T *to = out + order.out + group * 64 * width;
    float *stat = lse + order.lse + group * 64;
    float share[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = sum_of_row(r.sum[h]), LN_2 = 0.693147180559945309417f;
        share[h] = __frcp_rn(sum);
        if (me.lane % 4 == 0 && me.warp * 16 + me.lane / 4 + 8 * h < left.rows)
            stat[me.warp * 16 + me.lane / 4 + 8 * h] =
                __fmul_rn(__fmaf_rn(r.most[h], scale, logarithm_of_two(sum)), LN_2);
    }
    stretch(o, share);
    char *stage = m.stage[group * 4 + me.warp];
    write_rows<0>(to, width, left, o, 1, stage, me);
    if constexpr (W::WIDTH == 128)
        write_rows<64>(to, width, left, o, 1, stage, me);
}

/* --- the loop ------------------------------------------------------------------------------- */

/* The position of a warpgroup in the block's work. */
struct course {
    unsigned n; /* item */
    int row;    /* row of the sequence where its queries begin */
    int key;    /* tile */
    int end;    /* the item's last tile */
    bool first; /* whether the tile is the item's first */

    /* Steps to the next tile, once its item is there; false after the last. `skipped`: the item's
     * first tile of keys is beyond these queries, and the tile is the second. */
    template <class W>
    __device__ inline bool step(const memory<W> &m, const ring<W::QUERY_STAGES> &q, int group,
                                bool &skipped)
    {
        skipped = false;
        first = key == end;
        if (!first) {
            key--;
            return true;
        }
        barrier_wait(shared_address(&m.query_full[q.stage]), q.parity);
        const order &o = m.orders[++n % ORDERS];
        row = o.row + group * 64;
        key = o.last_key;
        end = W::WINDOW ? o.first_key : 0;
        if (W::QUERIES > KEYS && row >= 0 && row / KEYS < key) {
            key--;
            skipped = true;
        }
        return key >= 0;
    }
};

/* Tells the producer, for a warp, that a buffer is empty. */
__device__ inline void let_go(uint64_t &empty)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(shared_address(&empty));
}

template <class W, typename T>
__device__ inline void attend(memory<W> &m, const problem &p, T *out, float *lse)
{
    const int group = uniform((int)threadIdx.x / 128 - 1);
    const int turn = 2 + group, next_turn = group + 1 < W::GROUPS ? turn + 1 : 2;
    const int half = group * (64 * 128); /* byte offset of the warpgroup's queries */
    const float scale = p.scale * 1.44269504088896340736f;
    ring<W::QUERY_STAGES> q;
    ring<W::KEY_STAGES> k, v;
    float o[W::COLUMNS / 2], factor[2];
    uint32_t p16[32]; /* P of this tile */
    rows r;
    bool skipped;
    course c = {~0u, 0, 0, 0, true};

    /* P of the first tile */
    c.step(m, q, group, skipped);
    if (group + 1 == W::GROUPS)
        turn_pass(next_turn);
    if (skipped) {
        turn_wait(turn); /* all have equally many: here the others do their second tile */
        turn_pass(next_turn);
        barrier_wait(shared_address(&m.key_full[0]), 0);
        let_go(m.key_empty[0]);
        k.step();
        barrier_wait(shared_address(&m.value_full[0]), 0);
        let_go(m.value_empty[0]);
        v.step();
    }
    barrier_wait(shared_address(&m.key_full[k.stage]), k.parity);
    {
        float s[64];
        products_begin();
        product_scores<W, T>(s, shared_address(m.query[0]) + half, shared_address(m.key[k.stage]));
        products_commit();
        products_wait<0>();
        hold(s);
        let_go(m.key_empty[k.stage]);
        k.step();
        r = {{-INFINITY, -INFINITY}, {0, 0}};
        mask(s, c.row, c.key * KEYS, place_in_group());
        if (W::WINDOW && reaches_before(p, c.row, c.key * KEYS))
            mask_before(s, p, c.row, c.key * KEYS, place_in_group());
        weigh(s, r, factor, scale);
        round_powers<T>(p16, s);
        barrier_wait(shared_address(&m.value_full[v.stage]), v.parity);
    }

    for (;;) {
        float s[64];
        const bool first = c.first, last = c.key == c.end;
        const unsigned n = c.n;
        if (last) {
            barrier_arrive(shared_address(&m.query_empty[q.stage]));
            q.step();
        }
        const bool more = c.step(m, q, group, skipped);
        if (more) {
            if (skipped) {
                barrier_wait(shared_address(&m.key_full[k.stage]), k.parity);
                let_go(m.key_empty[k.stage]);
                k.step();
                turn_wait(turn);
                turn_pass(next_turn);
            }
            barrier_wait(shared_address(&m.key_full[k.stage]), k.parity);
        }

        /* the next S and this tile's values; after the last the next S is not used */
        turn_wait(turn);
        products_begin();
        product_scores<W, T>(s, shared_address(m.query[q.stage]) + half,
                             shared_address(m.key[k.stage]));
        products_commit();
        product_values<W, T>(o, p16, shared_address(m.value[v.stage]), !first);
        products_commit();
        turn_pass(next_turn);

        /* the next P, overlapping the values */
        products_wait<1>();
        hold(s);
        if (more) {
            let_go(m.key_empty[k.stage]);
            k.step();
        }
        rows done = r;
        if (last) {
            r = {{-INFINITY, -INFINITY}, {0, 0}};
            mask(s, c.row, c.key * KEYS, place_in_group());
        }
        if (W::WINDOW && reaches_before(p, c.row, c.key * KEYS))
            mask_before(s, p, c.row, c.key * KEYS, place_in_group());
        weigh(s, r, factor, scale);
        hold(s);
        const int value_now = v.stage;
        v.step();
        /* A sum is never negative. The test forces it to be known before the wait for the values:
         * otherwise ptxas moves the powers behind it. */
        if (more && !(__fadd_rn(r.sum[0], r.sum[1]) < 0))
            barrier_wait(shared_address(&m.value_full[v.stage]), v.parity);
        products_wait<0>();
        hold(o);
        let_go(m.value_empty[value_now]);
        round_powers<T>(p16, s);
        if (last)
            leave<W>(m, p, m.orders[n % ORDERS], group, done, o, scale, out, lse);
        else
            stretch(o, factor);
        if (!more)
            break;
        if (skipped) {
            let_go(m.value_empty[v.stage]);
            v.step();
            barrier_wait(shared_address(&m.value_full[v.stage]), v.parity);
        }
    }
    if (group == 0)
        turn_wait(turn);
}

} // namespace hopper::forward

#endif
