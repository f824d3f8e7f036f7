/* hopper_forward_tiles -- attention forward on Hopper: which tile when, and the warp that brings it.
 *
 * A tile of queries is 64 rows a warpgroup; one block does it alone, over tiles of 128 keys from the
 * diagonal down to the first: so every sum has one order, whatever the GPU. The causal mask is only
 * ever in the first tile of keys that a warpgroup sees.
 *
 * Rows are counted as if the sequence were a multiple of 64 (width 64) or 128 long: the tiles end
 * there, and what the first has too many lies before the first row. Rows before the first and after
 * the last are zeros and do not leave; keys after the last are masked for every query that does.
 *
 * A block has a fixed list of such items. Heads in whole rounds come first: a head of a block's own, all
 * its tiles of queries, the longest first, so that its keys stay in the L2 cache. What is left over,
 * with the last round where that is little, is dealt out tile by tile, the longest first, to and fro
 * over the blocks, which leaves them about equally long. Neighbouring blocks have neighbouring heads,
 * which share keys.
 *
 * The producer walks the list, and puts an order beside the queries of an item: the consumers know
 * nothing of sequences and heads. Then come the tiles of keys, and the values of each after the next
 * tile's keys, as they are needed.
 *
 * Rotary embedding is not taken in here: queries and keys come to the tensor cores as the copy engine
 * puts them. It would take the queries through the registers of their warpgroup once an item (turned,
 * rounded, and back into the tile), and for the keys a warpgroup more that turns each tile between
 * "full" and a second barrier: for every tile of queries again, T / 256 times the work of the kernel
 * that turns them once. And the backward pass reads both turned: they would have to be written too.
 */
#ifndef OPS_CUDA_HOPPER_FORWARD_TILES_CUH
#define OPS_CUDA_HOPPER_FORWARD_TILES_CUH
#include "ops/cuda/common/hopper.cuh"

namespace hopper::forward
{

const int KEYS = 128; /* of a tile */

/* How heads of a width are done: by how many warpgroups, with how much memory. */
template <int WIDTH_> struct way {
    static constexpr int WIDTH = WIDTH_, GROUPS = WIDTH == 64 ? 3 : 2;
    static constexpr int QUERIES = 64 * GROUPS, THREADS = 128 * (GROUPS + 1);
    static constexpr int QUERY_BYTES = 2 * WIDTH * QUERIES, KEY_BYTES = 2 * WIDTH * KEYS;
    static constexpr int STEP = GROUPS % 2 ? 64 : KEYS; /* rows of a sequence are counted by */
    static constexpr int QUERY_STAGES = 2, KEY_STAGES = WIDTH == 64 ? 4 : 2;
    /* Registers of a thread that computes, and of one that does not. */
    static constexpr int MORE = GROUPS == 3 ? 160 : 240, FEWER = GROUPS == 3 ? 32 : 24;
};

struct problem {
    int tokens, heads, kv_heads, group; /* T, H, G, H / G */
    int width;                          /* D, of a way's WIDTH */
    int sequences;                      /* B */
    int tiles;                          /* of queries, in a sequence */
    int spare;   /* rows that the first tile has too many, before the first */
    int rounds;  /* of whole heads */
    float scale; /* of the scores */
};

struct item {
    int batch, head, query; /* query: which tile */
};

/* The n-th of a block's list; false: there is none. */
__device__ inline bool item_of(const problem &p, int n, item &it)
{
    const int blocks = gridDim.x, block = blockIdx.x, round = n / p.tiles;
    int head = round * blocks + block, place = n % p.tiles;
    if (round >= p.rounds) {
        const int row = n - p.rounds * p.tiles, done = p.rounds * blocks;
        const int rest = p.sequences * p.heads - done;
        const int dealt = row * blocks + (row & 1 ? blocks - 1 - block : block);
        place = dealt / rest;
        head = done + dealt % rest;
        if (place >= p.tiles)
            return false;
    }
    it = {head / p.heads, head % p.heads, p.tiles - 1 - place};
    return true;
}

/* An item, for the consumers. */
struct order {
    int row; /* of the sequence, where the queries begin; less than 0 where it has spare ones */
    int last_key;     /* the tile of keys to begin with; -1: no item, the end */
    int64_t out, lse; /* elements from theirs to the first query's */
};

const int ORDERS =
    4; /* an order is read until its item leaves, a turn after its queries are let go */

template <class W> struct memory {
    char query[W::QUERY_STAGES][W::QUERY_BYTES]; /* columns 0-63 of all rows, then 64-127 */
    char key[W::KEY_STAGES][W::KEY_BYTES], value[W::KEY_STAGES][W::KEY_BYTES];
    char stage[4 * W::GROUPS][16 * 128]; /* a warp's rows on their way out */
    uint64_t query_full[W::QUERY_STAGES], query_empty[W::QUERY_STAGES];
    uint64_t key_full[W::KEY_STAGES], key_empty[W::KEY_STAGES];
    uint64_t value_full[W::KEY_STAGES], value_empty[W::KEY_STAGES];
    order orders[ORDERS];
};

/* "full" is completed by the producer and its bytes, "empty" by the warps that compute; that of
 * queries, with which orders go, by every thread of them. */
template <class W> __device__ inline void init_barriers(memory<W> &m)
{
    const int warps = 4 * W::GROUPS;
    for (int i = 0; i < W::QUERY_STAGES; i++) {
        barrier_init(shared_address(&m.query_full[i]), 1);
        barrier_init(shared_address(&m.query_empty[i]), warps * 32);
    }
    for (int i = 0; i < W::KEY_STAGES; i++) {
        barrier_init(shared_address(&m.key_full[i]), 1);
        barrier_init(shared_address(&m.key_empty[i]), warps);
        barrier_init(shared_address(&m.value_full[i]), 1);
        barrier_init(shared_address(&m.value_empty[i]), warps);
    }
    barrier_init_done();
}

template <class W> __device__ inline order order_for(const problem &p, const item &it)
{
    const int row = it.query * W::QUERIES - p.spare;
    order o;
    o.row = row;
    o.last_key = (row + W::QUERIES - 1) / KEYS;
    o.out = (((int64_t)it.batch * p.tokens + row) * p.heads + it.head) * p.width;
    o.lse = ((int64_t)it.batch * p.heads + it.head) * p.tokens + row;
    return o;
}

/* Rows of a head into an empty place: boxes of 64 columns. */
template <int WIDTH, int BYTES>
__device__ inline void bring(const char *to, const CUtensorMap *map, int head, int row,
                             int sequence, uint64_t &full)
{
    barrier_expect(shared_address(&full), BYTES);
#pragma unroll
    for (int column = 0; column < WIDTH; column += 64)
        load_tile(shared_address(to) + column * (BYTES / WIDTH), map, {column, head, row, sequence},
                  shared_address(&full));
}

/* Keys or values into the next place of theirs. */
template <class W>
__device__ inline void bring_keys(char (&to)[W::KEY_STAGES][W::KEY_BYTES], const CUtensorMap *map,
                                  int head, int row, int sequence, uint64_t (&full)[W::KEY_STAGES],
                                  uint64_t (&empty)[W::KEY_STAGES], ring<W::KEY_STAGES> &k)
{
    barrier_wait(shared_address(&empty[k.stage]), k.parity ^ 1);
    bring<W::WIDTH, W::KEY_BYTES>(to[k.stage], map, head, row, sequence, full[k.stage]);
    k.step();
}

/* The producer: one thread. `queries` and `keys` are maps of qkv, in boxes of a tile's rows. */
template <class W>
__device__ inline void produce(memory<W> &m, const problem &p, const CUtensorMap *queries,
                               const CUtensorMap *keys)
{
    ring<W::QUERY_STAGES> q;
    ring<W::KEY_STAGES> k, v;
    for (int n = 0;; n++) {
        item it;
        const bool more = item_of(p, n, it);
        order &o = m.orders[n % ORDERS];
        barrier_wait(shared_address(&m.query_empty[q.stage]), q.parity ^ 1);
        if (!more) {
            o.last_key = -1;
            barrier_arrive(shared_address(&m.query_full[q.stage]));
            return;
        }
        o = order_for<W>(p, it);
        const int key_head = p.heads + it.head / p.group, value_head = key_head + p.kv_heads;
        const int last = o.last_key;
        bring<W::WIDTH, W::QUERY_BYTES>(m.query[q.stage], queries, it.head, o.row, it.batch,
                                        m.query_full[q.stage]);
        q.step();
        for (int key = last; key >= -1; key--) {
            if (key >= 0)
                bring_keys<W>(m.key, keys, key_head, key * KEYS, it.batch, m.key_full, m.key_empty,
                              k);
            if (key < last)
                bring_keys<W>(m.value, keys, value_head, (key + 1) * KEYS, it.batch, m.value_full,
                              m.value_empty, v);
        }
    }
}

} // namespace hopper::forward

#endif
