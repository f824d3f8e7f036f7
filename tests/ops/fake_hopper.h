/* fake_hopper -- the instructions of ops/cuda/common/hopper.cuh on the host, for kernels whose blocks
 * form clusters of two. Include it before the kernel's header.
 *
 * Every thread of the grid is a fiber. It runs until it must wait; then the others do, in an order
 * that the seed draws. Loads arrive some rounds after they were requested. Products, and stores from
 * shared memory, read it as late as they may: when a thread waits for them. So a buffer that is used
 * again too early gives wrong results, and if all wait, the run ends with false.
 *
 * Shared memory has two copies. Ordinary instructions use one; products and the copy engine read the
 * other one, which gets what a thread has stored when it calls async_fence(). */
#ifndef TESTS_OPS_FAKE_HOPPER_H
#define TESTS_OPS_FAKE_HOPPER_H
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#define OPS_CUDA_HOPPER_CUH /* this file is in its place */
#undef __device__
#define __device__
#define threadIdx       (fake::self->index)
#define blockIdx        (fake::self->block->index)
#define gridDim         (fake::grid)
#define __syncthreads() fake::meet(fake::self->block->all, fake::self->block->threads)
#define __syncwarp()    ((void)0)
#include "ops/cuda/common/hopper_descriptor.cuh"

namespace fake
{

struct index_of {
    unsigned x;
};

struct meeting { /* of a number of threads */
    int arrived;
    unsigned turn;
};

struct mbarrier {
    int count, left;
    int64_t bytes; /* announced and not here yet */
    unsigned done; /* phases */
};

struct thread_of;

struct warp_words { /* what lanes exchange */
    meeting lanes;
    thread_of *lane[32];
    uint32_t row[32], *words[32];
};

struct block_of {
    index_of index;
    int threads;
    char *memory; /* shared */
    char *async;  /* as products and the copy engine see it */
    std::map<uint32_t, mbarrier> barriers;
    meeting all, named[16];
    std::vector<warp_words> warps;
};

typedef std::vector<std::function<void()>> group; /* of products, or of stores */

struct thread_of {
    index_of index;
    block_of *block;
    ucontext_t context;
    std::vector<char> stack;
    bool ended;
    const std::function<bool()> *ready; /* what it waits for, or NULL */
    std::vector<group> products, stores;
    group products_open, stores_open;
    std::vector<std::pair<uint32_t, uint32_t>> unfenced; /* places and bytes of ordinary stores */
};

struct matrix { /* in the place of a tensor map */
    char *at;
    int bytes; /* of an element */
    int rows, columns, box_rows;
    int64_t stride; /* elements from one row to the next */
};

static thread_of *self;
static index_of grid;
static ucontext_t scheduler;
static std::vector<std::unique_ptr<block_of>> blocks;
static std::vector<group> loads; /* on their way; each group is one load */
static meeting clusters[64];
static long changes; /* of anything that a thread may wait for */
static std::mt19937 draw;

static inline void wait_for(const std::function<bool()> &ready)
{
    if (ready())
        return;
    self->ready = &ready; /* the scheduler asks: that is quicker */
    swapcontext(&self->context, &scheduler);
    self->ready = nullptr;
}

/* Lets others run, now and then. */
static inline void pause_now_and_then()
{
    if (draw() % 4 == 0)
        swapcontext(&self->context, &scheduler);
}

static inline void arrive(meeting &m, int of)
{
    changes++;
    if (++m.arrived == of) {
        m.arrived = 0;
        m.turn++;
    }
}

static inline void meet(meeting &m, int of)
{
    const unsigned turn = m.turn;
    arrive(m, of);
    wait_for([&] { return m.turn != turn; });
}

static inline void settle(mbarrier &b)
{
    changes++;
    if (b.left < 0) {
        fprintf(stderr, "too many arrivals at a barrier\n");
        exit(1);
    }
    if (b.left == 0 && b.bytes == 0) {
        b.left = b.count;
        b.done++;
    }
}

static inline block_of *neighbour(uint32_t rank)
{
    return blocks[self->block->index.x / 2 * 2 + rank].get();
}

/* An address within a block: without the number of the block in its cluster. */
static inline uint32_t within(uint32_t address)
{
    return address & 0xffffff;
}

static inline mbarrier &barrier_at(block_of *b, uint32_t address)
{
    return b->barriers.at(within(address));
}

/* Rows of 128 bytes, whose 16-byte units are swapped by the row's number. */
static inline uint32_t swizzled(uint32_t address)
{
    const uint32_t at = within(address);
    return at ^ (at >> 7 & 7) << 4;
}

/* What a product reads. */
static inline uint16_t element(const block_of *b, uint32_t address)
{
    uint16_t bits;
    memcpy(&bits, b->async + swizzled(address), 2);
    return bits;
}

/* Thread t has stored with an ordinary instruction. */
static inline void note_store(thread_of *t, uint32_t address, uint32_t bytes)
{
    t->unfenced.push_back({within(address), bytes});
}

/* By table, for speed. */
static inline float half_value(uint16_t bits)
{
    static float table[1 << 16];
    static bool made;
    if (!made)
        for (int i = 0; i < 1 << 16; i++) {
            __half_raw raw;
            raw.x = (uint16_t)i;
            table[i] = __half2float(raw);
        }
    made = true;
    return table[bits];
}

template <typename T = __nv_bfloat16> static inline float value(uint16_t bits)
{
    if (std::is_same<T, __half>::value)
        return half_value(bits);
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
}

template <typename T = __nv_bfloat16> static inline uint16_t rounded(float x)
{
    const T y = (T)x;
    uint16_t bits;
    memcpy(&bits, &y, 2);
    return bits;
}

static inline matrix matrix_of(const CUtensorMap *map)
{
    matrix m;
    memcpy(&m, map, sizeof m);
    return m;
}

/* stride 0: dense */
template <typename E>
static inline CUtensorMap map_of(E *at, int rows, int columns, int box_rows, int64_t stride = 0)
{
    const matrix m = {(char *)at, sizeof(E), rows, columns, box_rows, stride ? stride : columns};
    CUtensorMap map = {};
    memcpy(&map, &m, sizeof m);
    return map;
}

/* Calls f(place in shared memory, element of the matrix, or NULL outside) for those of a box. */
template <class F>
static inline void each_element(const matrix &m, int column, int row, uint32_t tile, F f)
{
    for (int r = 0; r < m.box_rows; r++)
        for (int c = 0; c < 128 / m.bytes; c++)
            f(swizzled(tile + r * 128 + c * m.bytes),
              row + r < m.rows && column + c < m.columns
                  ? m.at + ((row + r) * m.stride + column + c) * m.bytes
                  : nullptr);
}

static inline void load(block_of *b, uint32_t to, const CUtensorMap *map, int column, int row,
                        uint32_t barrier)
{
    const matrix m = matrix_of(map);
    loads.push_back({[=] {
        each_element(m, column, row, to, [&](uint32_t place, const char *from) {
            const char zeros[4] = {};
            for (char *view : {b->memory, b->async})
                memcpy(view + place, from ? from : zeros, m.bytes);
        });
        mbarrier &bar = barrier_at(b, barrier);
        bar.bytes -= m.box_rows * 128;
        settle(bar);
    }});
}

static inline void do_all(group &g)
{
    for (auto &f : g)
        f();
    g.clear();
    changes++;
}

/* The last lane that arrives does `work` for the warp. */
static inline void with_warp(uint32_t row, uint32_t *words,
                             const std::function<void(warp_words &)> &work)
{
    warp_words &w = self->block->warps[self->index.x / 32];
    w.lane[self->index.x % 32] = self;
    w.row[self->index.x % 32] = row;
    w.words[self->index.x % 32] = words;
    if (w.lanes.arrived == 31)
        work(w);
    meet(w.lanes, 32);
}

static const std::function<void()> *entry; /* what all threads do */

static void enter()
{
    (*entry)();
    self->ended = true;
    changes++;
    swapcontext(&self->context, &scheduler);
}

/* Runs `body` in threads first, ... of each block; false: they wait for ever. `bytes` of shared memory;
 * `threads`: their numbers in a block. */
static inline bool run(int block_count, const std::vector<int> &threads, size_t bytes,
                       unsigned seed, const std::function<void(char *)> &body)
{
    std::vector<std::unique_ptr<thread_of>> all;
    draw.seed(seed);
    blocks.clear();
    loads.clear();
    for (meeting &m : clusters)
        m = {};
    grid.x = (unsigned)block_count;
    for (int i = 0; i < block_count; i++) {
        blocks.push_back(std::make_unique<block_of>());
        block_of *b = blocks.back().get();
        b->index.x = (unsigned)i;
        b->threads = (int)threads.size();
        b->memory = (char *)aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
        b->async = (char *)aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
        memset(b->memory, 0xff, bytes); /* not a number */
        memset(b->async, 0xff, bytes);
        b->warps.resize(32);
        for (int t : threads) {
            all.push_back(std::make_unique<thread_of>());
            all.back()->index.x = (unsigned)t;
            all.back()->block = b;
        }
    }
    const std::function<void()> start = [&] { body(self->block->memory); };
    entry = &start;
    for (auto &t : all) {
        t->stack.resize(64 << 10);
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = t->stack.data();
        t->context.uc_stack.ss_size = t->stack.size();
        makecontext(&t->context, enter, 0);
    }
    size_t left = all.size();
    int still = 0; /* rounds without a change */
    while (left > 0 && still < 3) {
        const long before = changes;
        std::shuffle(all.begin(), all.end(), draw);
        for (auto &t : all) {
            if (t->ended || (t->ready && !(*t->ready)()))
                continue;
            self = t.get();
            swapcontext(&scheduler, &t->context);
            left -= t->ended;
        }
        still = changes != before || !loads.empty() ? 0 : still + 1; /* some only pause */
        std::shuffle(loads.begin(), loads.end(), draw);
        for (size_t some = loads.empty() ? 0 : draw() % (loads.size() + 1); some > 0; some--) {
            do_all(loads.back());
            loads.pop_back();
        }
    }
    bool done = left == 0;
    for (auto &t : all)
        done = done && t->stores.empty() && t->products.empty();
    for (auto &b : blocks) {
        free(b->memory);
        free(b->async);
    }
    return done;
}

} // namespace fake

namespace hopper
{

template <int STAGES> struct ring {
    int stage = 0;
    uint32_t parity = 0;
    void step()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

static inline uint32_t rank_in_cluster()
{
    return fake::self->block->index.x % 2;
}

static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)((const char *)p - fake::self->block->memory) | rank_in_cluster() << 24;
}

static inline void barrier_init(uint32_t barrier, int arrivals)
{
    fake::self->block->barriers[fake::within(barrier)] = {arrivals, arrivals, 0, 0};
}
static inline void barrier_init_done() {}

static inline void barrier_arrive_at(uint32_t barrier, uint32_t rank)
{
    fake::mbarrier &b = fake::barrier_at(fake::neighbour(rank), barrier);
    b.left--;
    fake::settle(b);
    fake::pause_now_and_then();
}

static inline void barrier_arrive(uint32_t barrier)
{
    barrier_arrive_at(barrier, rank_in_cluster());
}

static inline void barrier_expect(uint32_t barrier, int bytes)
{
    fake::mbarrier &b = fake::barrier_at(fake::self->block, barrier);
    b.bytes += bytes;
    b.left--;
    fake::settle(b);
    fake::pause_now_and_then();
}

static inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
    const fake::mbarrier &b = fake::barrier_at(fake::self->block, barrier);
    fake::wait_for([&] { return b.done % 2 != parity; });
}

static inline void cluster_meet()
{
    fake::meet(fake::clusters[fake::self->block->index.x / 2], 2 * fake::self->block->threads);
}

static inline void load_box(uint32_t to, const CUtensorMap *map, int column, int row,
                            uint32_t barrier)
{
    fake::load(fake::self->block, to, map, column, row, barrier);
}

static inline void load_box_for_both(uint32_t to, const CUtensorMap *map, int column, int row,
                                     uint32_t barrier)
{
    fake::load(fake::neighbour(0), to, map, column, row, barrier);
    fake::load(fake::neighbour(1), to, map, column, row, barrier);
}

static inline void store_box(const CUtensorMap *map, int column, int row, uint32_t from)
{
    const fake::matrix m = fake::matrix_of(map);
    fake::block_of *b = fake::self->block;
    fake::self->stores_open.push_back([=] {
        fake::each_element(m, column, row, from, [&](uint32_t place, char *to) {
            if (to)
                memcpy(to, b->async + place, m.bytes);
        });
    });
}

static inline void stores_commit()
{
    fake::self->stores.push_back(std::move(fake::self->stores_open));
    fake::self->stores_open.clear();
}

static inline void finish_groups(std::vector<fake::group> &groups, size_t most)
{
    while (groups.size() > most) {
        fake::do_all(groups.front());
        groups.erase(groups.begin());
    }
}

template <int N> static inline void stores_read()
{
    finish_groups(fake::self->stores, N);
}

static inline void async_fence()
{
    fake::block_of *b = fake::self->block;
    for (const auto &[at, bytes] : fake::self->unfenced)
        memcpy(b->async + at, b->memory + at, bytes);
    fake::self->unfenced.clear();
}

static inline void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint32_t words[4] = {a, b, c, d};
    fake::block_of *block = fake::self->block;
    fake::with_warp(row, words, [=](fake::warp_words &w) {
        for (int m = 0; m < 4; m++)
            for (int lane = 0; lane < 32; lane++) {
                const uint32_t at = fake::within(w.row[8 * m + lane / 4]) + lane % 4 * 4;
                memcpy(block->memory + at, &w.words[lane][m], 4);
                fake::note_store(w.lane[lane], at, 4);
            }
    });
}

static inline void load_matrices(uint32_t row, uint32_t (&to)[4])
{
    fake::block_of *block = fake::self->block;
    fake::with_warp(row, to, [=](fake::warp_words &w) {
        for (int m = 0; m < 4; m++)
            for (int lane = 0; lane < 32; lane++)
                memcpy(&w.words[lane][m],
                       block->memory + fake::within(w.row[8 * m + lane / 4]) + lane % 4 * 4, 4);
    });
}

static inline float2 load_pair(uint32_t from)
{
    float2 x;
    memcpy(&x, fake::self->block->memory + fake::within(from), sizeof x);
    return x;
}

static inline void store_pair(uint32_t to, float2 x)
{
    memcpy(fake::self->block->memory + fake::within(to), &x, sizeof x);
    fake::note_store(fake::self, to, sizeof x);
}

template <int N> static inline void fewer_registers() {}
template <int N> static inline void more_registers() {}

static inline void warp_meet()
{
    fake::meet(fake::self->block->warps[threadIdx.x / 32].lanes, 32);
}

static inline void turn_wait(int turn)
{
    fake::meet(fake::self->block->named[turn], 256);
}

static inline void turn_pass(int turn)
{
    fake::arrive(fake::self->block->named[turn], 256);
}

static inline int uniform(int x)
{
    return x;
}

static inline void products_begin() {}

static inline void products_commit()
{
    fake::self->products.push_back(std::move(fake::self->products_open));
    fake::self->products_open.clear();
}

template <int N> static inline void products_wait()
{
    finish_groups(fake::self->products, N);
    fake::meet(fake::self->block->warps[threadIdx.x / 32].lanes, 32); /* a warp waits as one */
}

template <int N> static inline void hold(float (&)[N]) {}
template <int N> static inline void hold(uint32_t (&)[N]) {}

/* A field of a descriptor: bytes. */
static inline uint32_t field(uint64_t descriptor, int bit)
{
    return (uint32_t)(descriptor >> bit & 0x3fff) << 4;
}

/* k = 0 .. 15 of row i of a tile; down: of column i, in tiles of 64 columns. */
template <typename T>
static inline void sixteen_of(const fake::block_of *b, uint64_t tile, int i, bool down, float *x)
{
    const uint32_t start = field(tile, 0), eight = field(tile, 32);
    const uint32_t first =
        down ? start + i / 64 * field(tile, 16) + i % 64 * 2 : start + i / 8 * eight + i % 8 * 128;
    for (int k = 0; k < 16; k++)
        x[k] = fake::value<T>(
            fake::element(b, first + (down ? k / 8 * eight + k % 8 * 128 : (uint32_t)k * 2)));
}

/* A thread's part of a product (64, 128): see hopper.cuh. Written for speed: tests spend much of their
 * time here. */
template <typename T>
static inline void product_64(float (&d)[64], uint64_t a, uint64_t b, int add, bool a_down,
                              bool b_down)
{
    float *to = d;
    const int thread = (int)threadIdx.x % 128, lane = thread % 32;
    const fake::block_of *block = fake::self->block;
    fake::self->products_open.push_back([=] {
        float x[2][16], y[32][16], across[16][32], sums[2][32];
        for (int half = 0; half < 2; half++)
            sixteen_of<T>(block, a, thread / 32 * 16 + lane / 4 + 8 * half, a_down, x[half]);
        for (int n = 0; n < 32; n++)
            sixteen_of<T>(block, b, n / 2 * 8 + lane % 4 * 2 + n % 2, b_down, y[n]);
        for (int n = 0; n < 32; n++)
            for (int k = 0; k < 16; k++)
                across[k][n] = y[n][k];
        for (int i = 0; i < 64; i++)
            sums[i % 4 / 2][i / 4 * 2 + i % 2] = add ? to[i] : 0;
        for (int k = 0; k < 16; k++)
            for (int half = 0; half < 2; half++)
                for (int n = 0; n < 32; n++)
                    sums[half][n] += x[half][k] * across[k][n];
        for (int i = 0; i < 64; i++)
            to[i] = sums[i % 4 / 2][i / 4 * 2 + i % 2];
    });
}

template <typename T>
static inline void product_along(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    product_64<T>(d, a, b, add, false, false);
}

template <typename T>
static inline void product_down(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    product_64<T>(d, a, b, add, false, true);
}

template <typename T>
static inline void product_turned(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    product_64<T>(d, a, b, add, true, true);
}

template <typename T> static inline uint32_t packed(float low, float high)
{
    return fake::rounded<T>(low) | (uint32_t)fake::rounded<T>(high) << 16;
}

template <typename T> static inline float2 unpacked(uint32_t both)
{
    return {fake::value<T>((uint16_t)both), fake::value<T>((uint16_t)(both >> 16))};
}

} // namespace hopper

#endif
