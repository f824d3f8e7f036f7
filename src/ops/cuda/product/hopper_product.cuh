/* hopper_product -- products on Hopper whose epilogue runs while the next product is computed.
 *
 *     D (R, N) = A (R, K) B,  B stored [N][K] ("along") or [K][N] ("down"), A [R][K] or [K][R]
 *
 * with what an epilogue reads and stores in one of seven schemes:
 *
 *     ONE     a result of D's shape
 *     PUT     the same, converted to floats
 *     ADD     the same, added to a matrix of floats
 *     TWO     two results of D's shape
 *     OVER    a matrix of D's shape is read, and the result takes its place in shared memory
 *     GATE    B and D have two halves, gate and up, of N columns each: both are stored, rounded,
 *             and a result (R, N) that is made of the rounded ones
 *     SLOPES  two matrices of D's shape, gate and up, are read; two results take their places, and
 *             there is a third
 *
 * A library's product leaves the tensor cores idle during its epilogue: with 768 columns of A a GELU
 * takes a quarter of the time. Here a block has two warpgroups that compute, each with a tile of its
 * own, and they take turns: while one issues products, the other finishes its last tile (the
 * *epilogue*) in the registers that hold its sums. One warp loads tiles of A and B for both, in the
 * order of their use, another one loads what an epilogue reads.
 *
 *     group 0   | products of tile 0 | epilogue 0 ... | products of tile 2 | epilogue 2 ...
 *     group 1                        | products of tile 1 | epilogue 1 ... | products of tile 3
 *
 * Two blocks form a cluster. They have the same rows and neighbouring columns, a *pair* of tiles. Each
 * loads half of A's rows for both, so that the L2 cache is read less. A buffer is free when both
 * have used it.
 *
 * Sums: one accumulator per element, over k in increasing order, 16 at a time. So the bits depend on
 * the shape of a row only, not on how many rows there are.
 *
 * Compiled for sm_90a only. The remarks on ptxas in hopper_attend.cuh hold here too.
 */
#ifndef OPS_CUDA_HOPPER_PRODUCT_CUH
#define OPS_CUDA_HOPPER_PRODUCT_CUH
#include "ops/cuda/common/hopper.cuh"

namespace hopper::product
{

enum {
    COLUMNS = 128, /* of a tile */
    DEPTH = 64,    /* k of a buffer */
    PART_BYTES = 64 * 128,
    STRIP = 16, /* rows that a warp stores at once */
    BAND = 8,   /* pairs of tiles side by side, whose part of B should stay in the L2 cache */
    THREADS = 384
};

enum scheme { TWO, OVER, GATE, SLOPES, ONE, PUT, ADD };

/* ROWS of a tile: 128 or 192. DOWN: B is [K][N]. TURNED: A is [K][R]. */
template <int R, bool D, scheme S, bool T = false> struct way {
    static_assert(D || !T, "no product has such tiles");
    static constexpr scheme SCHEME = S;
    enum {
        ROWS = R,
        PARTS = R / 64, /* products side by side */
        DOWN = D,
        TURNED = T,
        FLOATS = S == PUT || S == ADD,
        READS = S == OVER || S == SLOPES || S == ADD,
        ACROSS = S == GATE ? COLUMNS / 2 : COLUMNS, /* columns of N in a tile */
        STAGES = R == 192 ? 4 : 5,
        A_BYTES = R * 128,
        B_BYTES = COLUMNS * 128,
        HALF_BYTES = R * 128,                  /* 64 columns of a tile's results */
        BOXES = 2 * HALF_BYTES / PART_BYTES,   /* of 64 rows and 32 floats in the memory of both */
        SIDES = S == ADD ? (int)BOXES : PARTS, /* buffers that are loaded for an epilogue */
        THIRD_BYTES = S == GATE || S == SLOPES ? PART_BYTES : 8 /* 8: not used */
    };
};

/* Rows of the boxes in which an epilogue's matrices are loaded, and in which A is. */
template <class W>
constexpr int SIDE_ROWS = W::SCHEME == SLOPES || W::SCHEME == ADD ? 64 : (int)W::ROWS;
template <class W> constexpr int A_ROWS = W::TURNED ? DEPTH / 2 : W::ROWS / 2;

template <class W> struct memory {
    alignas(1024) char a[W::STAGES][W::A_BYTES];
    alignas(1024) char b[W::STAGES][W::B_BYTES];
    /* Of the group whose turn to finish it is. PUT, ADD: one ring of boxes. */
    alignas(1024) char half[2][W::HALF_BYTES];
    alignas(1024) char third[2][W::THIRD_BYTES]; /* two parts of the third result */
    uint64_t full[W::STAGES], empty[W::STAGES];
    /* Where matrices are loaded for the epilogue: OVER: of each half; SLOPES: of a part of both;
     * ADD: of each box. */
    uint64_t side_full[W::SIDES], side_empty[W::SIDES];
};

struct problem {
    int rows, columns, depth; /* R, N, K */
    int pairs, downs;         /* pairs of tiles across, tiles down */
};

template <class W> inline problem problem_of(int64_t rows, int64_t columns, int64_t depth)
{
    const int64_t pair = 2 * W::ACROSS;
    return {(int)rows, (int)columns, (int)depth, (int)((columns + pair - 1) / pair),
            (int)((rows + W::ROWS - 1) / W::ROWS)};
}

/* The matrices, in boxes of 64 columns, or of 32 floats. GATE: those of b and of out 0 and 1 are
 * the halves. */
struct maps {
    CUtensorMap a;       /* boxes of A_ROWS rows */
    CUtensorMap b[2];    /* along: COLUMNS rows, GATE: 64; down: DEPTH */
    CUtensorMap side[2]; /* SIDE_ROWS */
    CUtensorMap out[3];  /* STRIP */
};

/* --- jobs: the tiles of a cluster, in order ---------------------------------------------------- */

struct job {
    int row, column; /* of this block's tile */
};

__device__ inline int jobs_of(const problem &p)
{
    const int clusters = (int)gridDim.x / 2, cluster = (int)blockIdx.x / 2;
    return (p.pairs * p.downs - cluster + clusters - 1) / clusters;
}

/* Job n of this block's cluster. Neighbouring clusters have neighbouring columns of a band. */
template <class W> __device__ inline job job_of(const problem &p, int n)
{
    const int index = (int)blockIdx.x / 2 + n * ((int)gridDim.x / 2);
    const int band = index / (BAND * p.downs), within = index - band * BAND * p.downs;
    const int left = p.pairs - band * BAND, across = left < BAND ? left : BAND;
    const int pair = band * BAND + within % across;
    return {within / across * W::ROWS, (2 * pair + (int)rank_in_cluster()) * W::ACROSS};
}

/* --- the warps that load ------------------------------------------------------------------------ */

template <class W> __device__ inline void init_barriers(memory<W> &m)
{
    for (int i = 0; i < W::STAGES; i++) {
        barrier_init(shared_address(&m.full[i]), 1);
        barrier_init(shared_address(&m.empty[i]), 8); /* four warps of each block */
    }
    for (int i = 0; i < W::SIDES; i++) {
        barrier_init(shared_address(&m.side_full[i]), 1);
        barrier_init(shared_address(&m.side_empty[i]), 4); /* warps */
    }
    barrier_init_done();
}

/* Block `rank`'s half of A's tile, for both: half of its rows; TURNED: half of the k of a part. */
template <class W>
__device__ inline void load_a(uint32_t tile, int rank, const maps &of, int row, int k,
                              uint32_t full)
{
    if (W::TURNED)
        for (int part = 0; part < W::PARTS; part++)
            load_box_for_both(tile + part * PART_BYTES + rank * (PART_BYTES / 2), &of.a,
                              row + 64 * part, k + rank * (DEPTH / 2), full);
    else
        load_box_for_both(tile + rank * (W::A_BYTES / 2), &of.a, k, row + rank * (W::ROWS / 2),
                          full);
}

template <class W> __device__ inline void produce(memory<W> &m, const problem &p, const maps &of)
{
    const int rank = (int)rank_in_cluster(), jobs = jobs_of(p);
    ring<W::STAGES> s;
    for (int n = 0; n < jobs; n++) {
        const job j = job_of<W>(p, n);
#pragma unroll 1 /* for few registers */
        for (int k = 0; k < p.depth; k += DEPTH) {
            const uint32_t full = shared_address(&m.full[s.stage]);
            const uint32_t tile = shared_address(m.b[s.stage]);
            barrier_wait(shared_address(&m.empty[s.stage]), s.parity ^ 1);
            barrier_expect(full, W::A_BYTES + W::B_BYTES);
            load_a<W>(shared_address(m.a[s.stage]), rank, of, j.row, k, full);
            if (W::DOWN) {
                const bool gate = W::SCHEME == GATE;
                load_box(tile, &of.b[0], j.column, k, full);
                load_box(tile + W::B_BYTES / 2, &of.b[gate], j.column + (gate ? 0 : 64), k, full);
            } else {
                load_box(tile, &of.b[0], k, j.column, full);
                if (W::SCHEME == GATE)
                    load_box(tile + W::B_BYTES / 2, &of.b[1], k, j.column, full);
            }
            s.step();
        }
    }
}

/* Loads what the epilogue reads and overwrites. OVER: each half once for a job. */
template <class W>
__device__ inline void produce_over(memory<W> &m, const problem &p, const maps &of)
{
    const int jobs = jobs_of(p);
    for (int n = 0; n < jobs; n++) {
        const job j = job_of<W>(p, n);
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            const uint32_t full = shared_address(&m.side_full[h]);
            barrier_wait(shared_address(&m.side_empty[h]), n % 2 ^ 1);
            barrier_expect(full, W::HALF_BYTES);
            load_box(shared_address(m.half[h]), &of.side[0], j.column + 64 * h, j.row, full);
        }
    }
}

/* SLOPES: each part of both halves twice for a job, with the tile's first 64 columns and then with
 * the others. */
template <class W>
__device__ inline void produce_slopes(memory<W> &m, const problem &p, const maps &of)
{
    const int jobs = jobs_of(p);
    for (int n = 0; n < jobs; n++) {
        const job j = job_of<W>(p, n);
#pragma unroll 1
        for (int i = 0; i < 2 * W::PARTS; i++) {
            const int h = i / W::PARTS, part = i % W::PARTS;
            const uint32_t full = shared_address(&m.side_full[part]);
            barrier_wait(shared_address(&m.side_empty[part]), h ^ 1);
            barrier_expect(full, 2 * PART_BYTES);
            for (int side = 0; side < 2; side++)
                load_box(shared_address(m.half[side]) + part * PART_BYTES, &of.side[side],
                         j.column + 64 * h, j.row + 64 * part, full);
        }
    }
}

/* ADD: the tile's boxes in the order of finish_floats, each buffer twice for a job. */
template <class W>
__device__ inline void produce_floats(memory<W> &m, const problem &p, const maps &of)
{
    const int jobs = jobs_of(p);
    for (int n = 0; n < jobs; n++) {
        const job j = job_of<W>(p, n);
#pragma unroll 1
        for (int i = 0; i < 4 * W::PARTS; i++) {
            const int buffer = i % W::BOXES;
            const uint32_t full = shared_address(&m.side_full[buffer]);
            barrier_wait(shared_address(&m.side_empty[buffer]), i / W::BOXES ^ 1);
            barrier_expect(full, PART_BYTES);
            load_box(shared_address(m.half[0]) + buffer * PART_BYTES, &of.side[0],
                     j.column + i % 4 * 32, j.row + i / 4 * 64, full);
        }
    }
}

/* --- the warpgroups that compute ---------------------------------------------------------------- */

enum { TURN_PRODUCTS = 2, TURN_FINISH = 4 }; /* named barriers: of group 0, then group 1 */

/* Tells the producers of both blocks, for a warp, that a buffer is empty. */
__device__ inline void let_go(uint64_t &empty)
{
    if (threadIdx.x % 32 < 2)
        barrier_arrive_at(shared_address(&empty), threadIdx.x % 32);
}

/* Products over one buffer. */
template <class W, typename T>
__device__ inline void multiply(float (&d)[W::PARTS][64], uint32_t a_tile, uint32_t b_tile,
                                bool first)
{
    const uint64_t a = tile_at(uniform(a_tile));
    const uint64_t b =
        W::DOWN ? tiles_at(uniform(b_tile), W::B_BYTES / 2) : tile_at(uniform(b_tile));
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++)
#pragma unroll
        for (int part = 0; part < W::PARTS; part++) {
            const uint64_t rows = further(a, part * PART_BYTES + k * (W::TURNED ? 2048 : 32));
            const int add = k > 0 || !first;
            if constexpr (W::TURNED)
                product_turned<T>(d[part], rows, further(b, 2048 * k), add);
            else if constexpr (W::DOWN)
                product_down<T>(d[part], rows, further(b, 2048 * k), add);
            else
                product_along<T>(d[part], rows, further(b, 32 * k), add);
        }
}

/* For store_matrices and load_matrices in a half tile: where this lane's row of the first 16
 * columns is. Bits 5 and 6 are those of the sixteen, to be changed by an exclusive or, because
 * halves are aligned to 1024 bytes. Parts are 64 rows apart. */
__device__ inline uint32_t row_place()
{
    const int thread = (int)threadIdx.x % 128, lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
    return row * 128 + (lane / 16 ^ row % 8) * 16;
}

/* The same for load_pair and store_pair in a box of floats: where this thread's first pair is. Bits
 * 5 and 6 are those of the eight columns. */
__device__ inline uint32_t pair_place()
{
    const int thread = (int)threadIdx.x % 128, lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4;
    return row * 128 + (lane % 4 / 2 ^ row % 8) * 16 + lane % 2 * 8;
}

/* E, an epilogue, has
 *     fetch(job, h)           what it needs of its own for half h of a tile, before the turn
 *     of(...)                 for 8 sums of a thread as in 16 columns of a tile: the 4 registers to
 *                             store of each result, in the place of those that it reads, if any
 * Results leave through shared memory: a warp stores its own 16 rows of a part and waits for no
 * other warp. `chief` is the lane that does. */

/* Of ONE, PUT and ADD: the sums rounded to T. */
template <typename T> struct rounding {
    __device__ inline void fetch(const job &, int) {}

    __device__ inline void of(int, const float *sums, uint32_t (&word)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = packed<T>(sums[2 * i], sums[2 * i + 1]);
    }
};

/* ONE, OVER: of(sixteen, sums, word). The result leaves half by half.
 * TWO: of(sixteen, sums, word, word2), each result in a half of its own. The second half of a part
 * takes the place of the first, whose store has had the time of the other parts to read it. */
template <class W, typename T, class E>
__device__ inline void finish(memory<W> &m, const job &j, int group, float (&d)[W::PARTS][64], E &e,
                              const maps &to)
{
    const int warp = uniform((int)threadIdx.x % 128 / 32);
    const bool chief = threadIdx.x % 32 == 0;
    constexpr bool TWICE = W::SCHEME == TWO;
    uint32_t place[1] = {row_place()};
    hold(place); /* else the compiler keeps all addresses in registers, which the sums need */
    turn_wait(TURN_FINISH + group);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int main = TWICE ? 0 : h;
        const uint32_t half = shared_address(m.half[main]), half2 = shared_address(m.half[1]);
        uint32_t word[2][4], word2[4]; /* words are loaded one step ahead */
        if (h > 0)
            e.fetch(j, h);
        if (W::READS) {
            barrier_wait(shared_address(&m.side_full[h]), group);
            load_matrices(half + place[0], word[0]);
        }
#pragma unroll
        for (int i = 0; i < 4 * W::PARTS; i++) {
            const int part = i / 4, sixteen = i % 4, next = i + 1;
            const uint32_t at = (place[0] ^ sixteen << 5) + part * PART_BYTES;
            uint32_t(&now)[4] = word[i % 2];
            const float *sums = &d[part][32 * h + 8 * sixteen];
            if (W::READS && next < 4 * W::PARTS)
                load_matrices(half + (place[0] ^ next % 4 << 5) + next / 4 * PART_BYTES,
                              word[next % 2]);
            if (TWICE && h > 0 && sixteen == 0) {
                if (chief)
                    stores_read<W::PARTS - 1>();
                warp_meet();
            }
            if constexpr (TWICE)
                e.of(sixteen, sums, now, word2);
            else
                e.of(sixteen, sums, now);
            store_matrices(half + at, now[0], now[1], now[2], now[3]);
            if (TWICE)
                store_matrices(half2 + at, word2[0], word2[1], word2[2], word2[3]);
            if (sixteen < 3)
                continue;
            async_fence();
            warp_meet();
            if (chief) {
                const int rows = part * 64 + warp * STRIP;
                store_box(&to.out[0], j.column + 64 * h, j.row + rows, half + rows * 128);
                if (TWICE)
                    store_box(&to.out[1], j.column + 64 * h, j.row + rows, half2 + rows * 128);
                stores_commit();
            }
        }
    }
    if (chief) {
        if (W::READS) {
            stores_read<W::PARTS>();
            barrier_arrive(shared_address(&m.side_empty[0]));
        }
        stores_read<0>();
        if (W::READS)
            barrier_arrive(shared_address(&m.side_empty[1]));
    }
    turn_pass(TURN_FINISH + 1 - group);
}

/* GATE: of(gate, up, third), with the registers of the rounded gate and up; e.third: whether there
 * is a third result. It has buffers for two parts, gate and up for all. */
template <class W, typename T, class E>
__device__ inline void finish_gate(memory<W> &m, const job &j, int group, float (&d)[W::PARTS][64],
                                   E &e, const maps &to)
{
    const int warp = uniform((int)threadIdx.x % 128 / 32);
    const bool chief = threadIdx.x % 32 == 0;
    const uint32_t half = shared_address(m.half[0]), half2 = shared_address(m.half[1]);
    uint32_t place[1] = {row_place()};
    hold(place);
    turn_wait(TURN_FINISH + group);
#pragma unroll
    for (int part = 0; part < W::PARTS; part++) {
        const uint32_t third = shared_address(m.third[part % 2]);
        if (part > 1) {
            if (chief)
                stores_read<1>();
            warp_meet();
        }
#pragma unroll
        for (int sixteen = 0; sixteen < 4; sixteen++) {
            const uint32_t within = place[0] ^ sixteen << 5, at = within + part * PART_BYTES;
            uint32_t gate[4], up[4], word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *sums = &d[part][8 * sixteen + 2 * i];
                gate[i] = packed<T>(sums[0], sums[1]);
                up[i] = packed<T>(sums[32], sums[33]);
            }
            store_matrices(half + at, gate[0], gate[1], gate[2], gate[3]);
            store_matrices(half2 + at, up[0], up[1], up[2], up[3]);
            if (e.third) {
                e.of(gate, up, word);
                store_matrices(third + within, word[0], word[1], word[2], word[3]);
            }
        }
        async_fence();
        warp_meet();
        if (chief) {
            const int rows = warp * STRIP, row = j.row + part * 64 + rows;
            const int from = part * PART_BYTES + rows * 128;
            store_box(&to.out[0], j.column, row, half + from);
            store_box(&to.out[1], j.column, row, half2 + from);
            if (e.third)
                store_box(&to.out[2], j.column, row, third + rows * 128);
            stores_commit();
        }
    }
    if (chief)
        stores_read<0>();
    turn_pass(TURN_FINISH + 1 - group);
}

/* SLOPES: of(sums, gate, up, third). Steps of a part of 64 columns, whose gate and up are loaded to
 * a part of each half. The buffer of a step is free once its store has read it: late in the next
 * step the warp waits for that, and the loads of step + PARTS may follow. The third result has two
 * buffers, for the same reason. */
template <class W, typename T, class E>
__device__ inline void finish_slopes(memory<W> &m, const job &j, int group,
                                     float (&d)[W::PARTS][64], E &e, const maps &to)
{
    const int warp = uniform((int)threadIdx.x % 128 / 32);
    const bool chief = threadIdx.x % 32 == 0;
    const uint32_t half = shared_address(m.half[0]), half2 = shared_address(m.half[1]);
    uint32_t place[1] = {row_place()};
    hold(place);
    turn_wait(TURN_FINISH + group);
#pragma unroll
    for (int step = 0; step < 2 * W::PARTS; step++) {
        const int h = step / W::PARTS, part = step % W::PARTS;
        const uint32_t third = shared_address(m.third[step % 2]);
        uint32_t gate[2][4], up[2][4]; /* loaded one sixteen ahead */
        barrier_wait(shared_address(&m.side_full[part]), h);
        load_matrices(half + place[0] + part * PART_BYTES, gate[0]);
        load_matrices(half2 + place[0] + part * PART_BYTES, up[0]);
#pragma unroll
        for (int sixteen = 0; sixteen < 4; sixteen++) {
            const uint32_t within = place[0] ^ sixteen << 5;
            const uint32_t at = within + part * PART_BYTES;
            uint32_t(&g)[4] = gate[sixteen % 2], (&u)[4] = up[sixteen % 2], word[4];
            if (sixteen < 3) {
                const uint32_t next = (place[0] ^ (sixteen + 1) << 5) + part * PART_BYTES;
                load_matrices(half + next, gate[(sixteen + 1) % 2]);
                load_matrices(half2 + next, up[(sixteen + 1) % 2]);
            }
            e.of(&d[part][32 * h + 8 * sixteen], g, u, word);
            store_matrices(half + at, g[0], g[1], g[2], g[3]);
            store_matrices(half2 + at, u[0], u[1], u[2], u[3]);
            store_matrices(third + within, word[0], word[1], word[2], word[3]);
            if (sixteen == 2 && step > 0) {
                if (chief) {
                    stores_read<0>();
                    barrier_arrive(shared_address(&m.side_empty[(step - 1) % W::PARTS]));
                }
                warp_meet();
            }
        }
        async_fence();
        warp_meet();
        if (chief) {
            const int rows = warp * STRIP, row = j.row + part * 64 + rows;
            const int from = part * PART_BYTES + rows * 128;
            store_box(&to.out[0], j.column + 64 * h, row, half + from);
            store_box(&to.out[1], j.column + 64 * h, row, half2 + from);
            store_box(&to.out[2], j.column + 64 * h, row, third + rows * 128);
            stores_commit();
        }
    }
    if (chief) {
        stores_read<0>();
        barrier_arrive(shared_address(&m.side_empty[W::PARTS - 1]));
    }
    turn_pass(TURN_FINISH + 1 - group);
}

/* PUT, ADD: of(sixteen, sums, word), whose words are converted to floats. Steps of a box, one
 * of 64 rows and 32 columns. A warp waits for its own stores from a buffer before it writes there
 * again; ADD: late in the next step, before the next load to it. */
template <class W, typename T, class E>
__device__ inline void finish_floats(memory<W> &m, const job &j, int group,
                                     float (&d)[W::PARTS][64], E &e, const maps &to)
{
    const int warp = uniform((int)threadIdx.x % 128 / 32);
    const bool chief = threadIdx.x % 32 == 0;
    const uint32_t boxes = shared_address(m.half[0]);
    uint32_t place[1] = {pair_place()};
    hold(place);
    turn_wait(TURN_FINISH + group);
#pragma unroll
    for (int step = 0; step < 4 * W::PARTS; step++) {
        const int part = step / 4, quarter = step % 4, buffer = step % W::BOXES;
        const uint32_t box = boxes + buffer * PART_BYTES;
        float2 x[8]; /* of eight columns: row lane / 4, then 8 further down */
        if (W::SCHEME == ADD) {
            barrier_wait(shared_address(&m.side_full[buffer]), step / W::BOXES);
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = load_pair(box + (place[0] ^ i / 2 << 5) + i % 2 * 1024);
        } else if (step >= W::BOXES) {
            if (chief)
                stores_read<W::BOXES - 1>();
            warp_meet();
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int sixteen = 2 * quarter + half;
            uint32_t word[4];
            e.of(sixteen, &d[part][8 * sixteen], word);
#pragma unroll
            for (int i = 4 * half; i < 4 * half + 4; i++) {
                float2 r = unpacked<T>(word[i % 4]);
                if (W::SCHEME == ADD)
                    r = {x[i].x + r.x, x[i].y + r.y};
                store_pair(box + (place[0] ^ i / 2 << 5) + i % 2 * 1024, r);
            }
        }
        if (W::SCHEME == ADD && step > 0 && chief) {
            stores_read<0>();
            barrier_arrive(shared_address(&m.side_empty[(step - 1) % W::BOXES]));
        }
        async_fence();
        warp_meet();
        if (chief) {
            const int rows = warp * STRIP;
            store_box(&to.out[0], j.column + 32 * quarter, j.row + part * 64 + rows,
                      box + rows * 128);
            stores_commit();
        }
    }
    if (chief) {
        stores_read<0>();
        if (W::SCHEME == ADD)
            barrier_arrive(shared_address(&m.side_empty[W::BOXES - 1]));
    }
    turn_pass(TURN_FINISH + 1 - group);
}

template <class W, typename T, class E>
__device__ inline void compute(memory<W> &m, const problem &p, E e, const maps &to)
{
    const int group = uniform((int)threadIdx.x / 128 - 1);
    const int steps = (p.depth + DEPTH - 1) / DEPTH, jobs = jobs_of(p);
    if (group == 1) { /* group 0 begins */
        turn_pass(TURN_PRODUCTS);
        turn_pass(TURN_FINISH);
    }
    int passed = group * steps; /* buffers before the job's first */
    for (int n = group; n < jobs; n += 2, passed += 2 * steps) {
        ring<W::STAGES> s = {passed % W::STAGES, (uint32_t)(passed / W::STAGES % 2)};
        const job j = job_of<W>(p, n);
        float d[W::PARTS][64];
        int last = 0;
        e.fetch(j, 0);
        turn_wait(TURN_PRODUCTS + group);
        for (int k = 0; k < steps; k++) {
            barrier_wait(shared_address(&m.full[s.stage]), s.parity);
            products_begin();
            multiply<W, T>(d, shared_address(m.a[s.stage]), shared_address(m.b[s.stage]), k == 0);
            products_commit();
            if (k + 1 == steps) /* all buffers before the other group's first have been full */
                turn_pass(TURN_PRODUCTS + 1 - group);
            products_wait<1>();
            if (k > 0)
                let_go(m.empty[last]);
            last = s.stage;
            s.step();
        }
        products_wait<0>();
#pragma unroll
        for (int part = 0; part < W::PARTS; part++)
            hold(d[part]);
        let_go(m.empty[last]);
        if constexpr (W::SCHEME == GATE)
            finish_gate<W, T>(m, j, group, d, e, to);
        else if constexpr (W::SCHEME == SLOPES)
            finish_slopes<W, T>(m, j, group, d, e, to);
        else if constexpr (W::FLOATS)
            finish_floats<W, T>(m, j, group, d, e, to);
        else
            finish<W, T>(m, j, group, d, e, to);
    }
    if (group == jobs % 2) { /* take the last turns, which nobody else does */
        turn_wait(TURN_PRODUCTS + group);
        turn_wait(TURN_FINISH + group);
    }
}

/* What a block of a cluster of two does. One thread of each of two warps loads; the other two
 * warpgroups get the registers that these do not need. */
template <class W, typename T, class E>
__device__ inline void run_block(memory<W> &m, const problem &p, const maps &of, const E &e)
{
    if (threadIdx.x == 0)
        init_barriers(m);
    __syncthreads();
    cluster_meet();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0)
            produce(m, p, of);
        else if (W::SCHEME == OVER && threadIdx.x == 32)
            produce_over(m, p, of);
        else if (W::SCHEME == SLOPES && threadIdx.x == 32)
            produce_slopes(m, p, of);
        else if (W::SCHEME == ADD && threadIdx.x == 32)
            produce_floats(m, p, of);
    } else {
        more_registers<240>();
        compute<W, T>(m, p, e, of);
    }
    cluster_meet(); /* no block ends while the other one may signal it */
}

} // namespace hopper::product

#endif
