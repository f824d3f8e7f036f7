/* hopper_forward_tiles -- attention forward on Hopper: the order of tiles, and the warp that loads
 * them.
 *
 * A tile of queries is 64 rows per warpgroup; one block does it alone, over tiles of 128 keys from
 * the diagonal down to the first: so every sum has one order, on any GPU. The causal mask applies
 * only to the first tile of keys that a warpgroup sees.
 *
 * With a window, in instances of their own (WINDOW), the last tile is the one where the window of
 * the item's first query begins. Tiles that reach before the window of one of a warpgroup's queries
 * are masked there; for the later queries of an item a tile may be masked completely.
 *
 * Rows are counted as if the length of the sequence were a multiple of 64 (width 64) or 128: the
 * last tile ends there, and the first tile may begin before the first row. Rows before the first
 * and after the last are zeros and are not written; keys after the last are masked for every query
 * that is.
 *
 * A block has a fixed list of such items. Whole rounds of heads come first: a head belongs to one
 * block, with all its tiles of queries, the longest first, so that its keys stay in the L2 cache.
 * The remaining heads, and the last round if these are few, are distributed tile by tile, the
 * longest first, back and forth over the blocks, which balances them. Neighbouring blocks have
 * neighbouring heads, which share keys.
 *
 * The producer follows the list and puts an order next to the queries of an item: the consumers
 * know nothing of sequences and heads. Then it loads the tiles of keys, and the values of each
 * after the next tile's keys, as they are needed.
 *
 * Rotary embedding is not applied here: queries and keys go to the tensor cores as the copy engine
 * loads them. It would take the queries through the registers of their warpgroup once per item
 * (rotated, rounded, and back into the tile), and one more warpgroup to rotate each tile of keys
 * between "full" and a second barrier, again for every tile of queries: T / 256 times the work of
 * the kernel that rotates them once. And the backward pass reads both rotated, so they would have
 * to be written too.
 */
#ifndef OPS_CUDA_HOPPER_FORWARD_TILES_CUH
#define OPS_CUDA_HOPPER_FORWARD_TILES_CUH
#include "ops/cuda/common/hopper.cuh"

namespace hopper::forward
{

const int KEYS = 128; /* of a tile */

/* How heads are computed, of which `COLUMNS` columns: by how many warpgroups, with how much memory.
 * WIDTH: of a head in shared memory. */
template <int COLUMNS_, bool WINDOW_> struct way {
    static constexpr bool WINDOW = WINDOW_;
    static constexpr int COLUMNS = COLUMNS_, WIDTH = COLUMNS <= 64 ? 64 : 128;
    static constexpr int GROUPS = WIDTH == 64 ? 3 : 2;
    static constexpr int QUERIES = 64 * GROUPS, THREADS = 128 * (GROUPS + 1);
    static constexpr int QUERY_BYTES = 2 * WIDTH * QUERIES, KEY_BYTES = 2 * WIDTH * KEYS;
    static constexpr int STEP =
        GROUPS % 2 ? 64 : KEYS; /* the unit in which rows of a sequence are counted */
    static constexpr int QUERY_STAGES = 2, KEY_STAGES = WIDTH == 64 ? 4 : 2;
    /* Registers of a thread that computes, and of one that does not. */
    static constexpr int MORE = GROUPS == 3 ? 160 : 240, FEWER = GROUPS == 3 ? 32 : 24;
};

struct problem {
    int tokens, heads, kv_heads, group; /* T, H, G, H / G */
    int width;                          /* D, of the COLUMNS that are computed */
    int sequences;                      /* B */
    int tiles;                          /* of queries, in a sequence */
    int spare;                          /* rows of the first tile that lie before the first row */
    int rounds;                         /* of whole heads */
    int window;                         /* keys that a query sees, at most */
    float scale;                        /* of the scores */
};

struct item {
    int batch, head, query; /* query: index of the tile */
};

/* The n-th item of a block's list; false if there is none. */
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

/* An item, as the consumers see it. */
struct order {
    int row;          /* where the queries begin in the sequence; may be negative */
    int last_key;     /* the tile of keys to begin with; -1: the end, no item */
    int first_key;    /* the tile of keys to end with */
    int64_t out, lse; /* offsets of the first query's elements */
};

const int ORDERS =
    4; /* an order is read until its item is written, an iteration after its queries are released */

template <class W> struct memory {
    char query[W::QUERY_STAGES][W::QUERY_BYTES]; /* columns 0-63 of all rows, then 64-127 */
    char key[W::KEY_STAGES][W::KEY_BYTES], value[W::KEY_STAGES][W::KEY_BYTES];
    char stage[4 * W::GROUPS][16 * 128]; /* a warp's outgoing rows */
    uint64_t query_full[W::QUERY_STAGES], query_empty[W::QUERY_STAGES];
    uint64_t key_full[W::KEY_STAGES], key_empty[W::KEY_STAGES];
    uint64_t value_full[W::KEY_STAGES], value_empty[W::KEY_STAGES];
    order orders[ORDERS];
};

/* "full" is completed by the producer and its bytes, "empty" by the warps that compute; that of
 * queries, which also covers the orders, by every thread of them. */
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
    o.first_key = W::WINDOW && row >= p.window ? (row - p.window + 1) / KEYS : 0;
    o.out = (((int64_t)it.batch * p.tokens + row) * p.heads + it.head) * p.width;
    o.lse = ((int64_t)it.batch * p.heads + it.head) * p.tokens + row;
    return o;
}

/* Loads rows of a head into an empty buffer: boxes of 64 columns. */
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

/* Loads keys or values into their next buffer. */
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
        const int last = o.last_key, first = o.first_key;
        bring<W::WIDTH, W::QUERY_BYTES>(m.query[q.stage], queries, it.head, o.row, it.batch,
                                        m.query_full[q.stage]);
        q.step();
        for (int key = last; key >= first - 1; key--) {
            if (key >= first)
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
