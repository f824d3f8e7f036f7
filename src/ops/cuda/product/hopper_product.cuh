/* hopper_product -- products on Hopper whose epilogue runs while the next product is computed.
 *
 *     D (R, N) = A (R, K) B,  B stored [N][K] ("along") or [K][N] ("down")
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

/* ROWS of a tile: 128 or 192. DOWN: B is [K][N]. */
template <int R, bool D> struct way {
    enum {
        ROWS = R,
        PARTS = R / 64, /* products side by side */
        DOWN = D,
        STAGES = R == 192 ? 4 : 5,
        A_BYTES = R * 128,
        B_BYTES = COLUMNS * 128,
        HALF_BYTES = R * 128 /* 64 columns of a tile's results */
    };
};

template <class W> struct memory {
    alignas(1024) char a[W::STAGES][W::A_BYTES];
    alignas(1024) char b[W::STAGES][W::B_BYTES];
    alignas(1024) char half[2][W::HALF_BYTES]; /* of the group whose turn to finish it is */
    uint64_t full[W::STAGES], empty[W::STAGES];
    uint64_t side_full[2], side_empty[2]; /* of half, where the epilogue reads a matrix */
};

struct problem {
    int rows, columns, depth; /* R, N, K */
    int pairs, downs;         /* pairs of tiles across, tiles down */
};

template <class W> inline problem problem_of(int64_t rows, int64_t columns, int64_t depth)
{
    return {(int)rows, (int)columns, (int)depth, (int)((columns + 2 * COLUMNS - 1) / (2 * COLUMNS)),
            (int)((rows + W::ROWS - 1) / W::ROWS)};
}

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
    return {within / across * W::ROWS, (2 * pair + (int)rank_in_cluster()) * COLUMNS};
}

/* --- the warps that load ------------------------------------------------------------------------ */

template <class W> __device__ inline void init_barriers(memory<W> &m)
{
    for (int i = 0; i < W::STAGES; i++) {
        barrier_init(shared_address(&m.full[i]), 1);
        barrier_init(shared_address(&m.empty[i]), 8); /* four warps of each block */
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(shared_address(&m.side_full[i]), 1);
        barrier_init(shared_address(&m.side_empty[i]), 4); /* warps */
    }
    barrier_init_done();
}

template <class W>
__device__ inline void produce(memory<W> &m, const problem &p, const CUtensorMap *a,
                               const CUtensorMap *b)
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
            load_box_for_both(shared_address(m.a[s.stage]) + rank * (W::A_BYTES / 2), a, k,
                              j.row + rank * (W::ROWS / 2), full);
            if (W::DOWN) {
                load_box(tile, b, j.column, k, full);
                load_box(tile + W::B_BYTES / 2, b, j.column + 64, k, full);
            } else {
                load_box(tile, b, k, j.column, full);
            }
            s.step();
        }
    }
}

/* Loads the matrix that the epilogue reads and overwrites. */
template <class W>
__device__ inline void produce_side(memory<W> &m, const problem &p, const CUtensorMap *side)
{
    const int jobs = jobs_of(p);
    for (int n = 0; n < jobs; n++) {
        const job j = job_of<W>(p, n);
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            const uint32_t full = shared_address(&m.side_full[h]);
            barrier_wait(shared_address(&m.side_empty[h]), n % 2 ^ 1);
            barrier_expect(full, W::HALF_BYTES);
            load_box(shared_address(m.half[h]), side, j.column + 64 * h, j.row, full);
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
            const uint64_t rows = further(a, part * PART_BYTES + k * 32);
            const int add = k > 0 || !first;
            if constexpr (W::DOWN)
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

/* E, an epilogue, has
 *     READS                   whether a matrix is loaded to the halves first
 *     fetch(job, h)           what it needs of its own, before the turn
 *     of(sixteen, sums, out, out2)
 *                             for 8 sums of a thread as in 16 columns of a tile and, if READS, the
 *                             4 registers `out` that it reads: the registers to store. With two
 *                             results, `out2` are those of the other.
 * Results leave through m.half: one of them half by half, two of them in one half each. A warp
 * stores its own 16 rows of a part and waits for no other warp. Of two results, the second half of
 * a part takes the place of the first, whose store has had the time of the other parts to read it. */
template <class W, typename T, class E>
__device__ inline void finish(memory<W> &m, const job &j, int group, float (&d)[W::PARTS][64], E &e,
                              const CUtensorMap *out, const CUtensorMap *out2)
{
    const int warp = uniform((int)threadIdx.x % 128 / 32);
    const bool chief = threadIdx.x % 32 == 0;
    uint32_t place[1] = {row_place()};
    hold(place); /* else the compiler keeps all addresses in registers, which the sums need */
    turn_wait(TURN_FINISH + group);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int main = E::READS ? h : 0;
        const uint32_t half = shared_address(m.half[main]), half2 = shared_address(m.half[1]);
        uint32_t word[2][4], word2[4]; /* words are loaded one step ahead */
        if (h > 0)
            e.fetch(j, h);
        if (E::READS) {
            barrier_wait(shared_address(&m.side_full[h]), group);
            load_matrices(half + place[0], word[0]);
        }
#pragma unroll
        for (int i = 0; i < 4 * W::PARTS; i++) {
            const int part = i / 4, sixteen = i % 4, next = i + 1;
            const uint32_t at = (place[0] ^ sixteen << 5) + part * PART_BYTES;
            uint32_t(&to)[4] = word[i % 2];
            if (E::READS && next < 4 * W::PARTS)
                load_matrices(half + (place[0] ^ next % 4 << 5) + next / 4 * PART_BYTES,
                              word[next % 2]);
            if (!E::READS && h > 0 && sixteen == 0) {
                if (chief)
                    stores_read<W::PARTS - 1>();
                warp_meet();
            }
            e.of(sixteen, &d[part][32 * h + 8 * sixteen], to, word2);
            store_matrices(half + at, to[0], to[1], to[2], to[3]);
            if (!E::READS)
                store_matrices(half2 + at, word2[0], word2[1], word2[2], word2[3]);
            if (sixteen < 3)
                continue;
            async_fence();
            warp_meet();
            if (chief) {
                const int rows = part * 64 + warp * STRIP;
                store_box(out, j.column + 64 * h, j.row + rows, half + rows * 128);
                if (!E::READS)
                    store_box(out2, j.column + 64 * h, j.row + rows, half2 + rows * 128);
                stores_commit();
            }
        }
    }
    if (chief) {
        if (E::READS) {
            stores_read<W::PARTS>();
            barrier_arrive(shared_address(&m.side_empty[0]));
        }
        stores_read<0>();
        if (E::READS)
            barrier_arrive(shared_address(&m.side_empty[1]));
    }
    turn_pass(TURN_FINISH + 1 - group);
}

template <class W, typename T, class E>
__device__ inline void compute(memory<W> &m, const problem &p, E e, const CUtensorMap *out,
                               const CUtensorMap *out2)
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
        finish<W, T>(m, j, group, d, e, out, out2);
    }
    if (group == jobs % 2) { /* take the last turns, which nobody else does */
        turn_wait(TURN_PRODUCTS + group);
        turn_wait(TURN_FINISH + group);
    }
}

/* What a block of a cluster of two does. One thread of each of two warps loads; the other two
 * warpgroups get the registers that these do not need. `other` is what the epilogue reads, or its
 * second result. */
template <class W, typename T, class E>
__device__ inline void run_block(memory<W> &m, const problem &p, const CUtensorMap *a,
                                 const CUtensorMap *b, const CUtensorMap *out,
                                 const CUtensorMap *other, const E &e)
{
    if (threadIdx.x == 0)
        init_barriers(m);
    __syncthreads();
    cluster_meet();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0)
            produce(m, p, a, b);
        else if (E::READS && threadIdx.x == 32)
            produce_side(m, p, other);
    } else {
        more_registers<240>();
        compute<W, T>(m, p, e, out, other);
    }
    cluster_meet(); /* no block ends while the other one may signal it */
}

} // namespace hopper::product

#endif
