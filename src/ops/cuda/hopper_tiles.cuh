/* hopper_tiles -- attention backward on Hopper: which tile when, and the warp that brings it.
 *
 * Keys and queries come in tiles of 128 rows. An item is one sequence and key head; one block does it
 * alone, so that every sum has one order:
 *
 *     for each tile of keys:                       a sweep; dk and dv stay in registers
 *         for each query head of the group:
 *             for each tile of queries from the diagonal on:     one order to the consumers
 *
 * dq is summed over the sweeps in memory. Every second sweep runs backwards, so that what the last
 * one left in the L2 cache is used first. A block takes items blockIdx, blockIdx + gridDim ...; the
 * memory for dq is the block's, and is used again by its next item.
 *
 * The items left over when whole rounds are done are cut, one tile of keys a job, where that ends
 * sooner: each job puts its dq into memory of its own, and they are added afterwards, in order.
 *
 * The producer walks this order, has the tiles copied into rings of buffers, and puts an order beside
 * each tile of queries: the consumers know nothing of sequences and heads.
 */
#ifndef OPS_CUDA_HOPPER_TILES_CUH
#define OPS_CUDA_HOPPER_TILES_CUH
#include "ops/cuda/hopper.cuh"

namespace hopper
{

const int TILE = 128, WIDTH = 64;
const int TILE_BYTES = TILE * WIDTH * 2;

struct problem {
    int tiles, heads, kv_heads, group; /* T / 128, H, G, H / G */
    int whole, rest;                   /* items done whole, items that are cut */
    int jobs;                          /* whole + rest * tiles */
    int slots;               /* places for dq that whole items use; those of the rest follow */
    float scale;             /* of the scores */
    const float *lse, *sums; /* (B, H, T): lse in powers of two, -dout . out; see stat_place */
    float *dq;               /* places of (H / G, T, 64), laid out as hopper_rows.cuh has it */
};

/* Where column c of a tile has its statistic: what a thread wants of 16 columns is together, columns
 * 2 (lane % 4) and the next of either eight. */
__host__ __device__ inline int stat_place(int c)
{
    return c / 16 * 16 + c % 8 / 2 * 4 + c / 8 % 2 * 2 + c % 2;
}

struct walk {
    int job, batch, kv_head, end, key, head, query;

    __device__ inline bool backwards() const
    {
        return key & 1;
    }
    __device__ inline void begin_sweep(const problem &p)
    {
        head = backwards() ? p.group - 1 : 0;
        query = backwards() ? p.tiles - 1 : key;
    }
    __device__ inline void begin_job(const problem &p, int new_job)
    {
        job = new_job;
        int cut = job - p.whole; /* jobs of a cut item lie `rest` apart: the longest come first */
        int item = cut < 0 ? job : p.whole + cut % p.rest;
        key = cut < 0 ? 0 : cut / p.rest;
        end = cut < 0 ? p.tiles : key + 1;
        batch = item / p.kv_heads;
        kv_head = item % p.kv_heads;
        begin_sweep(p);
    }
    /* To the next tile; job is p.jobs after the last. True: that begins a sweep. */
    __device__ inline bool step(const problem &p)
    {
        if (backwards()) {
            if (--query >= key)
                return false;
            query = p.tiles - 1;
            if (--head >= 0)
                return false;
        } else {
            if (++query < p.tiles)
                return false;
            query = key;
            if (++head < p.group)
                return false;
        }
        if (++key < end)
            begin_sweep(p);
        else if (job + (int)gridDim.x < p.jobs)
            begin_job(p, job + (int)gridDim.x);
        else
            job = p.jobs;
        return true;
    }
};

/* What the consumers do with a tile. */
enum {
    FIRST = 1,    /* of a sweep: dk and dv start from zero */
    LAST = 2,     /* of a sweep: dk and dv are written */
    DIAGONAL = 4, /* queries see part of the keys */
    END = 8,      /* of the block's work */
    PUT = 16,     /* dq is put into its place in the sums, */
    ADD = 32,     /* or added to it; otherwise it is complete and written: */
    TAKE = 64,    /* together with the sum */
};

struct order {
    int flags;
    int64_t sum;    /* elements from p.dq */
    int64_t dq, dk; /* elements from dqkv */
};

const int ORDERS = 8; /* an order is read up to two tiles after its queries are let go */
const int K_STAGES = 3, QUERY_STAGES = 3, DOUT_STAGES = 2;

/* The block's shared memory. Keys have three places: the tile before, whose dq is still to be
 * computed, this one and the next can be of three sweeps. */
struct memory {
    char key[K_STAGES][TILE_BYTES], value[TILE_BYTES];
    char query[QUERY_STAGES][TILE_BYTES], dout[DOUT_STAGES][TILE_BYTES];
    char ds[2][2 * TILE_BYTES]; /* (128 queries, 64 keys) of either warpgroup, of two tiles */
    char stage[8][16 * 128];    /* a warp's rows on their way out */
    float lse[QUERY_STAGES][TILE], sums[DOUT_STAGES][TILE];
    order orders[ORDERS];
    uint64_t key_full[K_STAGES], key_empty[K_STAGES], value_full, value_empty;
    uint64_t query_full[QUERY_STAGES], query_empty[QUERY_STAGES];
    uint64_t dout_full[DOUT_STAGES], dout_empty[DOUT_STAGES];
    uint64_t ds_full[2], ds_empty[2];
    uint64_t start; /* of the second warpgroup */
};

/* "full" is completed by the producer and its bytes, "empty" by the eight warps of the consumers. */
__device__ inline void init_barriers(memory &m)
{
    const int warps = 8;
    for (int i = 0; i < K_STAGES; i++) {
        barrier_init(shared_address(&m.key_full[i]), 1);
        barrier_init(shared_address(&m.key_empty[i]), warps);
    }
    barrier_init(shared_address(&m.value_full), 1);
    barrier_init(shared_address(&m.value_empty), warps);
    for (int i = 0; i < QUERY_STAGES; i++) {
        barrier_init(shared_address(&m.query_full[i]), 1);
        barrier_init(shared_address(&m.query_empty[i]), warps);
    }
    for (int i = 0; i < DOUT_STAGES; i++) {
        barrier_init(shared_address(&m.dout_full[i]), 1);
        barrier_init(shared_address(&m.dout_empty[i]), warps);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(shared_address(&m.ds_full[i]), warps);
        barrier_init(shared_address(&m.ds_empty[i]), warps);
    }
    barrier_init(shared_address(&m.start), warps / 2);
    barrier_init_done();
}

/* All but LAST and END, which the next step tells. */
__device__ inline order order_for(const walk &w, const problem &p, bool first)
{
    const int64_t width = (int64_t)(p.heads + 2 * p.kv_heads) * WIDTH;
    const int64_t rows = (int64_t)w.batch * p.tiles * TILE;
    const bool whole = w.job < p.whole, diagonal = w.query == w.key;
    const int64_t place = whole ? (int)blockIdx.x : p.slots + w.job - p.whole;
    order o;
    o.flags = (first ? FIRST : 0) | (diagonal ? DIAGONAL : 0);
    if (!whole || (w.key == 0 && !diagonal))
        o.flags |= PUT;
    else if (!diagonal)
        o.flags |= ADD;
    else if (w.key > 0)
        o.flags |= TAKE;
    o.sum = ((place * p.group + w.head) * p.tiles + w.query) * (TILE * WIDTH);
    o.dq = (rows + w.query * TILE) * width + (w.kv_head * p.group + w.head) * WIDTH;
    o.dk = (rows + w.key * TILE) * width + (p.heads + w.kv_head) * WIDTH;
    return o;
}

/* The producer: one thread. */
__device__ inline void produce(memory &m, const problem &p, const CUtensorMap *qkv,
                               const CUtensorMap *dout)
{
    ring<K_STAGES> k;
    ring<1> v;
    ring<QUERY_STAGES> q;
    ring<DOUT_STAGES> d;
    walk w;
    w.begin_job(p, blockIdx.x);
    bool next_first = true;
    for (unsigned tile = 0; w.job < p.jobs; tile++) {
        const bool first = next_first;
        const int rows = w.batch * p.tiles * TILE, key_row = rows + w.key * TILE;
        const int row = rows + w.query * TILE, head = w.kv_head * p.group + w.head;
        const int column = (p.heads + w.kv_head) * WIDTH; /* of keys */
        const int64_t stat =
            ((int64_t)w.batch * p.heads + head) * (p.tiles * TILE) + w.query * TILE;
        if (first) {
            uint32_t full = shared_address(&m.key_full[k.stage]);
            barrier_wait(shared_address(&m.key_empty[k.stage]), k.parity ^ 1);
            barrier_expect(full, TILE_BYTES);
            load_tile(shared_address(m.key[k.stage]), qkv, column, key_row, full);
            k.step();
        }
        order o = order_for(w, p, first);
        next_first = w.step(p);
        o.flags |= (next_first ? LAST : 0) | (w.job < p.jobs ? 0 : END);

        uint32_t full = shared_address(&m.query_full[q.stage]);
        barrier_wait(shared_address(&m.query_empty[q.stage]), q.parity ^ 1);
        m.orders[tile % ORDERS] = o;
        barrier_expect(full, TILE_BYTES + TILE * (int)sizeof(float));
        load_tile(shared_address(m.query[q.stage]), qkv, head * WIDTH, row, full);
        load_bytes(shared_address(m.lse[q.stage]), p.lse + stat, TILE * sizeof(float), full);
        q.step();

        full = shared_address(&m.dout_full[d.stage]);
        barrier_wait(shared_address(&m.dout_empty[d.stage]), d.parity ^ 1);
        barrier_expect(full, TILE_BYTES + TILE * (int)sizeof(float));
        load_tile(shared_address(m.dout[d.stage]), dout, head * WIDTH, row, full);
        load_bytes(shared_address(m.sums[d.stage]), p.sums + stat, TILE * sizeof(float), full);
        d.step();

        if (first) { /* last: their one place is free only near the end of the sweep before */
            full = shared_address(&m.value_full);
            barrier_wait(shared_address(&m.value_empty), v.parity ^ 1);
            barrier_expect(full, TILE_BYTES);
            load_tile(shared_address(m.value), qkv, column + p.kv_heads * WIDTH, key_row, full);
            v.step();
        }
    }
}

} // namespace hopper

#endif
