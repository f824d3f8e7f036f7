/* hopper_tiles -- attention backward on Hopper: the order of tiles, and the warp that loads them.
 *
 * Keys come in tiles of 128 rows, queries in tiles of 128 (heads of width 64) or 64 (of width
 * 128). An item is one sequence and key head; one block does it alone, so that every sum has one
 * order:
 *
 *     for each tile of keys:                       a sweep; dk and dv stay in registers
 *         for each query head of the group:
 *             for each tile of queries from the diagonal on:     one order to the consumers
 *
 * dq is summed over the sweeps in memory. Every second sweep runs backwards, so that it first uses
 * what the previous one left in the L2 cache. A block takes items blockIdx, blockIdx + gridDim
 * ...; its buffer for dq is reused by its next item.
 *
 * The items that remain after whole rounds are cut into jobs where that finishes sooner: each job
 * puts its dq into a buffer of its own, and they are added afterwards, in order. At width 64 a job
 * is one tile of keys. At width 128 an item is cut into p.cuts jobs, and job c has one of every
 * p.cuts tiles, back and forth (of 16 tiles in 4 jobs the first has 0, 7, 8, 15), which makes them
 * about equally long.
 *
 * If the dq of all items in work exceeds the L2 cache, or if items are few, a cluster of blocks
 * does an item together instead, each some of its sweeps, all of them upwards:
 * hopper_clusters.cuh.
 *
 * With a window, in instances of their own, clusters do all items, and a sweep ends with the last
 * tile of queries that sees one of its keys. Tiles that reach beyond the window of a query are
 * masked there, too (BEFORE).
 *
 * Where items are few even for clusters, every query head is an item, with group 1: p.split of
 * them read the same keys, and their dk and dv are added afterwards (join_groups).
 *
 * A sequence may end inside its last tile, and a head may be narrower than its tiles. The copy
 * engine fills the rest with zeros: such queries have zero dout and statistics, and so add nothing;
 * such keys are masked for all other queries; their rows and columns are not written
 * (hopper_rows.cuh).
 *
 * The producer follows this order, loads the tiles into rings of buffers, and puts an order next
 * to each tile of queries: the consumers know nothing of sequences and heads.
 */
#ifndef OPS_CUDA_HOPPER_TILES_CUH
#define OPS_CUDA_HOPPER_TILES_CUH
#include "ops/cuda/common/hopper.cuh"

namespace hopper
{

const int TILE = 128; /* keys */

/* Queries of a tile; how many such tiles face a tile of keys. */
template <int WIDTH> constexpr int QUERIES = WIDTH == 64 ? 128 : 64;
template <int WIDTH> constexpr int QUERY_TILES = TILE / QUERIES<WIDTH>;

template <int WIDTH> constexpr int KEY_BYTES = 2 * WIDTH *TILE;
template <int WIDTH> constexpr int QUERY_BYTES = 2 * WIDTH *QUERIES<WIDTH>;
template <int WIDTH>
constexpr int SLOPE_BYTES = 2 * 64 * QUERIES<WIDTH>; /* of a warpgroup's keys */

struct problem {
    int tiles, heads, kv_heads, group; /* T / 128, rounded up, H, G, H / G */
    int tokens, width, row;            /* T, D, (H + 2G) D */
    int key_heads, split;              /* key heads in qkv; items that share one of them */
    int window;                        /* keys that a query sees, at most */
    int whole, rest;                   /* items done whole, items that are cut */
    int jobs;              /* whole + rest * (tiles or cuts); with clusters, the items */
    int slots;             /* buffers for dq that whole items use; those of the rest follow */
    float scale;           /* of the scores */
    int cuts;              /* width 128: jobs of a cut item */
    int cluster, clusters; /* blocks of a cluster, number of clusters; 0: none */
    int bands;             /* tiles / cluster, rounded up */
    int places; /* buffers for dq of a cluster, 1 or 2, used in turn; 0: each item has its own */
    uint32_t *turns; /* with clusters, (places, H / G, tiles of queries): parts added so far */
    const float *lse,
        *sums;         /* (B, H, tiles): lse in powers of two, -dout . out; indexed by stat_place */
    float *dq;         /* buffers of (H / G, tiles), laid out as in hopper_rows.cuh */
    const float *rope; /* (T, D/2, 2), to rotate dq and dk back; NULL: no rope */
    float *pairs;      /* width 128 with rope: PAIR_STAGES tiles of dq per block */
    float *dq_columns, *dout_columns; /* column sums, laid out as in hopper_columns.cuh */
};

/* The index of column c's statistic in a tile: what a thread needs of 16 columns is adjacent,
 * columns 2 (lane % 4) and the next of each eight. */
__host__ __device__ inline int stat_place(int c)
{
    return c / 16 * 16 + c % 8 / 2 * 4 + c / 8 % 2 * 2 + c % 2;
}

/* What the consumers do with a tile. */
enum {
    FIRST = 1,    /* of a sweep: dk and dv start from zero */
    LAST = 2,     /* of a sweep: dk and dv are written */
    DIAGONAL = 4, /* queries see only part of the keys */
    END = 8,      /* of the block's work */
    PUT = 16,     /* dq is put into the sums, */
    ADD = 32,     /* or added to them; otherwise it is complete and is written, */
    TAKE = 64,    /* together with the sum */
    LOWER = 128,  /* width 128: the queries are the second 64 of their 128 */
    BEGIN = 256,  /* finished dq is the first in its column sums */
    BEFORE = 512, /* keys begin before the window of one of the queries */
};

/* A tile of an item. */
template <int WIDTH> struct tile_of {
    static constexpr int width = WIDTH;
    int job, batch, kv_head, key, head, query;
    int place; /* buffer for dq */

    __device__ inline int first_query() const
    {
        return key * QUERY_TILES<WIDTH>;
    }
    __device__ inline int queries(const problem &p) const /* tiles of them */
    {
        return p.tiles * QUERY_TILES<WIDTH>;
    }
    /* The tile of keys on the diagonal at these queries. */
    __device__ inline int diagonal() const
    {
        return query / QUERY_TILES<WIDTH>;
    }
    /* The index of the tile of queries among those of all buffers for dq. */
    __device__ inline int sum(const problem &p) const
    {
        return (place * p.group + head) * queries(p) + query;
    }
};

/* The order of a block that works alone. */
template <int WIDTH> struct walk : tile_of<WIDTH> {
    static constexpr bool WINDOW = false;
    using tile_of<WIDTH>::job, tile_of<WIDTH>::batch, tile_of<WIDTH>::kv_head, tile_of<WIDTH>::key;
    using tile_of<WIDTH>::head, tile_of<WIDTH>::query, tile_of<WIDTH>::place;
    using tile_of<WIDTH>::first_query, tile_of<WIDTH>::queries, tile_of<WIDTH>::diagonal;
    int end;

    __device__ inline bool backwards() const
    {
        return key & 1;
    }
    __device__ inline void begin_sweep(const problem &p)
    {
        head = backwards() ? p.group - 1 : 0;
        query = backwards() ? queries(p) - 1 : first_query();
    }
    __device__ inline void begin_job(const problem &p, int new_job)
    {
        job = new_job;
        int cut = job - p.whole; /* jobs of a cut item are `rest` apart: the longest come first */
        int item = cut < 0 ? job : p.whole + cut % p.rest;
        key = cut < 0 ? 0 : cut / p.rest;
        end = cut < 0 || WIDTH != 64 ? p.tiles : key + 1;
        place = cut < 0 ? (int)blockIdx.x : p.slots + cut;
        batch = item / p.kv_heads;
        kv_head = item % p.kv_heads;
        begin_sweep(p);
    }
    __device__ inline void begin(const problem &p)
    {
        begin_job(p, blockIdx.x);
    }
    /* The job's next tile of keys. */
    __device__ inline int next_key(const problem &p) const
    {
        if (WIDTH == 64 || job < p.whole)
            return key + 1;
        return 2 * (key / p.cuts + 1) * p.cuts - 1 - key;
    }
    /* Steps to the next tile; job is p.jobs after the last. True: the tile begins a sweep. */
    __device__ inline bool step(const problem &p)
    {
        if (backwards()) {
            if (--query >= first_query())
                return false;
            query = queries(p) - 1;
            if (--head >= 0)
                return false;
        } else {
            if (++query < queries(p))
                return false;
            query = first_query();
            if (++head < p.group)
                return false;
        }
        key = next_key(p);
        if (key < end)
            begin_sweep(p);
        else if (job + (int)gridDim.x < p.jobs)
            begin_job(p, job + (int)gridDim.x);
        else
            job = p.jobs;
        return true;
    }
    /* What happens to the tile's dq. */
    __device__ inline int leaving(const problem &p) const
    {
        const bool whole = job < p.whole, on_diagonal = diagonal() == key;
        const bool again = WIDTH != 64 && !whole && key >= p.cuts; /* not the job's first keys */
        if (!again && (!whole || (key == 0 && !on_diagonal)))
            return PUT;
        return again || !on_diagonal ? ADD : key > 0 ? TAKE : 0;
    }
    /* Whether finished dq is the first in its column sums. */
    __device__ inline bool begins_columns() const
    {
        return key == 0;
    }
};

struct order {
    int flags;      /* and from bit QUERY_AT on, the index of the tile of queries */
    int row;        /* row of the sequence where the keys begin */
    int64_t sum;    /* elements from p.dq */
    int64_t dq, dk; /* elements from dqkv */
};

const int QUERY_AT = 16, MOST_TOKENS = 64 << (31 - QUERY_AT);

/* The row of the sequence where the queries begin. */
template <int WIDTH> __device__ inline int query_row(int flags)
{
    return (flags >> QUERY_AT) * QUERIES<WIDTH>;
}

const int ORDERS = 8; /* an order is read up to three tiles after its queries are released */
const int QUERY_STAGES = 3, DOUT_STAGES = 2;
static_assert(QUERY_STAGES == DOUT_STAGES + 1, "sums come when the next queries may");
const int PAIR_STAGES = 4; /* query_finishes in hopper_attend_wide.cuh explains the number */

/* Keys have three buffers where the previous tile (whose dq is still to be computed), this one and
 * the next can be of three sweeps; with two tiles of queries in the shortest sweep they are of
 * two. */
template <int WIDTH> constexpr int K_STAGES = QUERY_TILES<WIDTH> == 1 ? 3 : 2;

/* The block's shared memory: 224 KiB of tiles, the same at both widths, and 2 or 3 KiB more. */
template <int WIDTH> struct memory {
    char key[K_STAGES<WIDTH>][KEY_BYTES<WIDTH>], value[KEY_BYTES<WIDTH>];
    char query[QUERY_STAGES][QUERY_BYTES<WIDTH>], dout[DOUT_STAGES][QUERY_BYTES<WIDTH>];
    char ds[2][2 * SLOPE_BYTES<WIDTH>]; /* (queries, 64 keys) of each warpgroup, for two tiles */
    char stage[8][16 * 128];            /* a warp's outgoing rows */
    float lse[QUERY_STAGES][QUERIES<WIDTH>], sums[DOUT_STAGES][QUERIES<WIDTH>];
    order orders[ORDERS];
    uint64_t key_full[K_STAGES<WIDTH>], key_empty[K_STAGES<WIDTH>], value_full, value_empty;
    uint64_t query_full[QUERY_STAGES], query_empty[QUERY_STAGES];
    uint64_t dout_full[DOUT_STAGES], dout_empty[DOUT_STAGES];
    uint64_t ds_full[2], ds_empty[2];
    uint64_t start;        /* lets the second warpgroup start */
    uint64_t turn_come[2]; /* with clusters: this part of dq may be added, */
    uint64_t turn_over[2]; /* and it was added */
    int columns[ORDERS];   /* with an order: which eight rows are dq's column sums */
};

static_assert(sizeof(memory<64>) <= 227 * 1024 && sizeof(memory<128>) <= 227 * 1024, "too much");

/* "full" is completed by the producer and its bytes, "empty" by the eight warps of the consumers;
 * that of queries by every thread of them, because they read orders and statistics with ordinary
 * loads. */
template <int WIDTH> __device__ inline void init_barriers(memory<WIDTH> &m)
{
    const int warps = 8, threads = warps * 32;
    for (int i = 0; i < K_STAGES<WIDTH>; i++) {
        barrier_init(shared_address(&m.key_full[i]), 1);
        barrier_init(shared_address(&m.key_empty[i]), warps);
    }
    barrier_init(shared_address(&m.value_full), 1);
    barrier_init(shared_address(&m.value_empty), warps);
    for (int i = 0; i < QUERY_STAGES; i++) {
        barrier_init(shared_address(&m.query_full[i]), 1);
        barrier_init(shared_address(&m.query_empty[i]), threads);
    }
    for (int i = 0; i < DOUT_STAGES; i++) {
        barrier_init(shared_address(&m.dout_full[i]), 1);
        barrier_init(shared_address(&m.dout_empty[i]), warps);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(shared_address(&m.ds_full[i]), warps);
        barrier_init(shared_address(&m.ds_empty[i]), warps);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(shared_address(&m.turn_come[i]), 2);
        barrier_init(shared_address(&m.turn_over[i]), warps);
    }
    barrier_init(shared_address(&m.start), warps / 2);
    barrier_init_done();
}

/* All flags except LAST and END, which depend on the next step. */
template <typename WALK>
__device__ inline order order_for(const WALK &w, const problem &p, bool first)
{
    const int WIDTH = WALK::width;
    const int queries = QUERIES<WIDTH>;
    const int64_t rows = (int64_t)w.batch * p.tokens;
    order o;
    o.row = w.key * TILE;
    o.flags = w.leaving(p) | (first ? FIRST : 0) | (w.diagonal() == w.key ? DIAGONAL : 0);
    if (w.query % QUERY_TILES<WIDTH>)
        o.flags |= LOWER;
    if (WALK::WINDOW && w.query * queries + queries > w.key * TILE + p.window)
        o.flags |= BEFORE;
    o.flags |= w.query << QUERY_AT;
    o.sum = (int64_t)w.sum(p) * (queries * WIDTH);
    o.dq = (rows + w.query * queries) * p.row + (w.kv_head * p.group + w.head) * p.width;
    o.dk = (rows + w.key * TILE) * p.row + (p.heads + w.kv_head) * p.width;
    return o;
}

/* Which eight rows of column sums of dq (hopper_columns.cuh) a tile of an item has for its first
 * query head; those of the others follow. */
__device__ inline int columns_of(const problem &p, int item, int tile)
{
    const int cut = item - p.whole;
    return (cut < 0 ? item : p.whole + cut * p.tiles + tile) * p.group;
}

/* Loads rows of a head: boxes of the tensor map, 64 columns after 64 columns. */
template <int WIDTH, int ROWS>
__device__ inline void load_rows(uint32_t to, const CUtensorMap *map, int head, int first,
                                 int sequence, uint32_t full)
{
    if constexpr (WIDTH == 64) {
        load_tile(to, map, {0, head, first, sequence}, full);
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH * ROWS; i += 64 * 64) {
            const int column = i / (64 * ROWS) * 64, row = i / 64 % ROWS;
            load_tile(to + i * 2, map, {column, head, first + row, sequence}, full);
        }
    }
}

/* The producer: one thread. */
template <typename WALK, bool SUMS, int WIDTH>
__device__ inline void produce(memory<WIDTH> &m, const problem &p, const CUtensorMap *qkv,
                               const CUtensorMap *dout)
{
    const int queries = QUERIES<WIDTH>, stat_bytes = queries * (int)sizeof(float);
    ring<K_STAGES<WIDTH>> k;
    ring<1> v;
    ring<QUERY_STAGES> q;
    ring<DOUT_STAGES> d;
    WALK w;
    w.begin(p);
    bool next_first = true;
    for (unsigned tile = 0; w.job < p.jobs; tile++) {
        const bool first = next_first;
        const int sequence = w.batch, key_row = w.key * TILE;
        const int key_head = p.heads + w.kv_head / p.split;
        const int row = w.query * queries, head = w.kv_head * p.group + w.head;
        const int stat = (sequence * p.heads + head) * (p.tiles * TILE) + row;
        if (first) {
            uint32_t full = shared_address(&m.key_full[k.stage]);
            barrier_wait(shared_address(&m.key_empty[k.stage]), k.parity ^ 1);
            barrier_expect(full, KEY_BYTES<WIDTH>);
            load_rows<WIDTH, TILE>(shared_address(m.key[k.stage]), qkv, key_head, key_row, sequence,
                                   full);
            k.step();
        }
        order o = order_for(w, p, first);
        const int columns = columns_of(p, w.batch * p.kv_heads + w.kv_head, w.diagonal()) + w.head;
        if (SUMS && w.begins_columns())
            o.flags |= BEGIN;
        next_first = w.step(p);
        o.flags |= (next_first ? LAST : 0) | (w.job < p.jobs ? 0 : END);

        uint32_t full = shared_address(&m.query_full[q.stage]);
        barrier_wait(shared_address(&m.query_empty[q.stage]), q.parity ^ 1);
        m.orders[tile % ORDERS] = o;
        if (SUMS)
            m.columns[tile % ORDERS] = columns;
        barrier_expect(full, QUERY_BYTES<WIDTH> + stat_bytes);
        load_rows<WIDTH, queries>(shared_address(m.query[q.stage]), qkv, head, row, sequence, full);
        load_bytes(shared_address(m.lse[q.stage]), p.lse + stat, stat_bytes, full);
        q.step();

        full = shared_address(&m.dout_full[d.stage]);
        barrier_wait(shared_address(&m.dout_empty[d.stage]), d.parity ^ 1);
        barrier_expect(full, QUERY_BYTES<WIDTH> + stat_bytes);
        load_rows<WIDTH, queries>(shared_address(m.dout[d.stage]), dout, head, row, sequence, full);
        /* threads have read the previous sums when they release the queries of that tile, whose
         * buffer the next queries take */
        barrier_wait(shared_address(&m.query_empty[q.stage]), q.parity ^ 1);
        load_bytes(shared_address(m.sums[d.stage]), p.sums + stat, stat_bytes, full);
        d.step();

        if (first) { /* last: their only buffer becomes free near the end of the previous sweep */
            full = shared_address(&m.value_full);
            barrier_wait(shared_address(&m.value_empty), v.parity ^ 1);
            barrier_expect(full, KEY_BYTES<WIDTH>);
            load_rows<WIDTH, TILE>(shared_address(m.value), qkv, key_head + p.key_heads, key_row,
                                   sequence, full);
            v.step();
        }
    }
}

} // namespace hopper

#endif
