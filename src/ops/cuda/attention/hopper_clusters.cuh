/* hopper_clusters -- attention backward on Hopper: clusters of blocks that do one item together
 * and take turns at dq. (A cluster here is part of a cooperative launch, not a hardware cluster.)
 *
 * A block that does an item alone visits all of its dq again for each tile of keys, and 132 such
 * dq are far more than the L2 cache holds if sequences are long. Or there are fewer items than
 * blocks. So a cluster of blocks does one item. Its tiles of keys are bands of p.cluster tiles, and
 * each block has one tile of a band: of the last band block 0 has the last, of the band below it
 * the first, and so on, which is the same work for all if bands are even in number. At any time
 * the blocks add to neighbouring parts of dq. (The last band may have too few tiles for the first
 * blocks.) A cluster takes items cluster, cluster + clusters ..., and uses p.places buffers for
 * their dq in turn: a block that is done with an item begins the next.
 *
 * Sums still have one order. Of the parts of dq of some queries, those of the last band come first,
 * keys downwards, then those of the band below, keys upwards, and so on: blocks in order each time
 * (cluster_walk::turn). Blocks start together and a later one reaches the same queries no sooner,
 * so a block waits for its predecessor once, at the beginning, and then runs a little behind it.
 *
 *     8 tiles, dq of queries 5:  keys  5  4 | 0  1  2  3       the first is put, the last takes the
 *                                block 2  3 | 0  1  2  3       sum, adds its own and writes dq
 *
 * No block waits for ever: by (item, band, block) every part waits for smaller ones only, and a
 * block does its own in this order.
 *
 * With a window all sweeps are about equally long, and the keys of all bands go downwards. The
 * order of sums is then the same for every size of cluster, and blocks hardly wait for each other.
 *
 * At width 128 with rope no block takes the sum: rotated values go through both warpgroups there,
 * and the last block of a cluster, which has most of the last parts, would fall behind the others.
 * Each item then has a buffer of its own, and another launch takes the sums.
 *
 * A word of memory for each sum counts the parts that were added. Two threads of the warps next to
 * the producer handle it, so that no fence delays the tensor cores: the waiter watches for the
 * turn and signals the consumers, the teller hears when they are done and signals the other
 * blocks.
 *
 *     waiter    p.turns has reached this turn      -> turn_come
 *     consumers turn_come; put, add or take        -> turn_over
 *     teller    turn_over; p.turns + 1, released   -> turn_come, of two tiles later
 *
 * The teller also arrives at turn_come; that keeps the consumers from being two phases ahead of
 * it.
 *
 * All blocks must run at the same time: a cooperative launch.
 */
#ifndef OPS_CUDA_HOPPER_CLUSTERS_CUH
#define OPS_CUDA_HOPPER_CLUSTERS_CUH
#include "ops/cuda/attention/hopper_tiles.cuh"

namespace hopper
{

/* Whether sums of dq stay in memory, each item's in a buffer of its own. */
template <int WIDTH, bool ROPE> constexpr bool IS_LATE = WIDTH == 128 && ROPE;

template <int WIDTH, bool LATE, bool WINDOWED> struct cluster_walk : tile_of<WIDTH> {
    static constexpr bool WINDOW = WINDOWED;
    using tile_of<WIDTH>::job, tile_of<WIDTH>::batch, tile_of<WIDTH>::kv_head, tile_of<WIDTH>::key;
    using tile_of<WIDTH>::head, tile_of<WIDTH>::query, tile_of<WIDTH>::place;
    using tile_of<WIDTH>::first_query, tile_of<WIDTH>::queries, tile_of<WIDTH>::diagonal;
    int round; /* items that the cluster did before */
    int band;

    __device__ inline bool is_upward(const problem &p) const
    {
        return !WINDOW && (p.bands - band) % 2 == 0;
    }
    __device__ inline void begin_sweep(const problem &p)
    {
        const int block = (int)blockIdx.x % p.cluster;
        key = band * p.cluster + (is_upward(p) ? block : p.cluster - 1 - block);
        head = 0;
        query = first_query();
    }
    __device__ inline void begin_item(const problem &p, int item)
    {
        job = item;
        batch = item / p.kv_heads;
        kv_head = item % p.kv_heads;
        band = p.bands - 1;
        begin_sweep(p);
        if (key >= p.tiles) { /* nothing for this block in the last band */
            band--;
            begin_sweep(p);
        }
    }
    __device__ inline void begin(const problem &p)
    {
        const int cluster = (int)blockIdx.x / p.cluster;
        round = 0;
        place = LATE ? cluster : cluster * p.places;
        begin_item(p, cluster);
    }
    /* The sweep's last tile of queries. */
    __device__ inline int last_query(const problem &p) const
    {
        const int last = queries(p) - 1;
        if (!WINDOW)
            return last;
        return min(last, (key * TILE + TILE + p.window - 2) / QUERIES<WIDTH>);
    }
    /* Steps to the next tile; job is p.jobs or more after the last. True: a sweep begins. */
    __device__ inline bool step(const problem &p)
    {
        if (++query <= last_query(p))
            return false;
        query = first_query();
        if (++head < p.group)
            return false;
        if (band == 0) {
            round++;
            place = LATE ? job + p.clusters : place ^ (p.places - 1);
            begin_item(p, job + p.clusters);
        } else {
            band--;
            begin_sweep(p);
        }
        return true;
    }
    /* How many parts of dq of these queries come before this one. */
    __device__ inline int turn(const problem &p) const
    {
        if (!is_upward(p))
            return diagonal() - key;
        const int above = diagonal() + 1 - (band + 1) * p.cluster; /* parts of later bands */
        return key - band * p.cluster + (above > 0 ? above : 0);
    }
    /* And of the last part. */
    __device__ inline int last_turn(const problem &p) const
    {
        const int before = query * QUERIES<WIDTH> - p.window + 1; /* window of the first query */
        return diagonal() - (WINDOW && before > 0 ? before / TILE : 0);
    }
    /* The value of p.turns at that time. Buffers are reused, and the count continues. */
    __device__ inline uint32_t turn_number(const problem &p) const
    {
        const int uses = LATE ? 0 : round >> (p.places - 1); /* earlier uses of the buffer */
        return (uint32_t)(uses * (last_turn(p) + 1) + turn(p));
    }
    __device__ inline int leaving(const problem &p) const
    {
        const int before = turn(p), last = last_turn(p);
        if (LATE || before < last)
            return before ? ADD : PUT;
        return last ? TAKE : 0;
    }
    __device__ inline bool begins_columns() const
    {
        return true;
    }
};

/* --- turns ---------------------------------------------------------------------------------- */

/* Call before a tile's part of dq meets the sum. Tiles in order, each once. */
template <int WIDTH> __device__ inline void await_turn(memory<WIDTH> &m, unsigned tile)
{
    barrier_wait(shared_address(&m.turn_come[tile & 1]), tile >> 1 & 1);
}

/* Call after that, with `leader` set for one lane of a warp that has synchronized. */
template <int WIDTH> __device__ inline void end_turn(memory<WIDTH> &m, unsigned tile, bool leader)
{
    if (leader)
        barrier_arrive(shared_address(&m.turn_over[tile & 1]));
}

/* Run by one thread. */
template <bool LATE, bool WINDOW, int WIDTH>
__device__ inline void wait_for_turns(memory<WIDTH> &m, const problem &p)
{
    cluster_walk<WIDTH, LATE, WINDOW> w;
    w.begin(p);
    for (unsigned tile = 0; w.job < p.jobs; tile++) {
        const uint32_t turn = w.turn_number(p);
        const uint32_t *word = p.turns + w.sum(p);
        for (int tries = 0; load_acquire(word) != turn; tries++)
            if (tries > 16)
                __nanosleep(100);
        const uint32_t come = shared_address(&m.turn_come[tile & 1]);
        barrier_wait(come,
                     (tile >> 1 & 1) ^ 1); /* two tiles ago: the teller's arrival was seen, too */
        barrier_arrive(come);
        w.step(p);
    }
}

/* Run by one thread. */
template <bool LATE, bool WINDOW, int WIDTH>
__device__ inline void tell_turns(memory<WIDTH> &m, const problem &p)
{
    cluster_walk<WIDTH, LATE, WINDOW> w;
    w.begin(p);
    barrier_arrive(shared_address(&m.turn_come[0]));
    barrier_arrive(shared_address(&m.turn_come[1]));
    for (unsigned tile = 0; w.job < p.jobs; tile++) {
        barrier_wait(shared_address(&m.turn_over[tile & 1]), tile >> 1 & 1);
        store_release(p.turns + w.sum(p), w.turn_number(p) + 1);
        barrier_arrive(shared_address(&m.turn_come[tile & 1]));
        w.step(p);
    }
}

} // namespace hopper

#endif
