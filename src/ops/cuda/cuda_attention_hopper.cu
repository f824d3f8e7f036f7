/* cuda_attention_hopper -- the backward pass of causal attention for heads of width 64 on Hopper. */
#include "base/dtype.h"
#include "ops/cuda/cuda_attention.h"
#include "ops/cuda/hopper.cuh"
#include <math.h>

namespace
{

using namespace hopper;

const int TILE = 128, WIDTH = 64;
const int TILE_BYTES = TILE * WIDTH * 2;
const int THREADS = 3 * 128;
const int K_STAGES = 3, DOUT_STAGES = 2;

struct problem {
    int tiles, heads, kv_heads, group;
    int whole, jobs, rest, buffers;
    int back;
    float scale;
    const float *lse, *sums; /* (B, H, T), lse in powers of two */
    float *dq;
};

/* --- the order of work */
struct walk {
    int job, batch, kv_head, end, key, head, query;

    __device__ inline void sweep(const problem &p)
    {
        bool back = key & p.back;
        head = back ? p.group - 1 : 0;
        query = back ? p.tiles - 1 : key;
    }
    __device__ inline void enter(const problem &p, int new_job)
    {
        job = new_job;
        int rest = job - p.whole;
        int item = rest < 0 ? job : p.whole + rest % p.rest;
        key = rest < 0 ? 0 : rest / p.rest;
        end = rest < 0 ? p.tiles : key + 1;
        batch = item / p.kv_heads;
        kv_head = item % p.kv_heads;
        sweep(p);
    }
    /* true: that was the last of a sweep */
    __device__ inline bool step(const problem &p)
    {
        if (key & p.back) {
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
            sweep(p);
        else if (job + (int)gridDim.x < p.jobs)
            enter(p, job + (int)gridDim.x);
        else
            job = p.jobs;
        return true;
    }
};

/* What the consumers are to do with a tile, as the producer puts it beside the queries. */
enum { FIRST = 1, LAST = 2, DIAGONAL = 4, END = 8, PUT = 16, ADD = 32, TAKE = 64 };
struct order {
    int flags;
    int64_t sum; /* elements from p.dq */
    int64_t dq, dk; /* elements from dqkv */
};
const int ORDERS = 8; /* an order is read one tile after its queries are let go */

template <int Q_STAGES> struct memory {
    char key[K_STAGES][TILE_BYTES], value[TILE_BYTES];
    char query[Q_STAGES][TILE_BYTES], dout[DOUT_STAGES][TILE_BYTES];
    char ds[2][2 * TILE_BYTES];
    char stage[8][16 * 128]; /* a warp's rows on their way out */
    float lse[Q_STAGES][TILE], sums[DOUT_STAGES][TILE];
    order orders[ORDERS];
    uint64_t key_full[K_STAGES], key_empty[K_STAGES], value_full, value_empty;
    uint64_t query_full[Q_STAGES], query_empty[Q_STAGES];
    uint64_t dout_full[DOUT_STAGES], dout_empty[DOUT_STAGES];
    uint64_t ds_full[2], ds_empty[2], start;
};

template <int QS>
__device__ inline void produce(memory<QS> &m, const problem &p, const CUtensorMap *qkv,
                               const CUtensorMap *dout)
{
    ring<K_STAGES> k;
    ring<1> v;
    ring<QS> q;
    ring<DOUT_STAGES> d;
    walk w;
    w.enter(p, blockIdx.x);
    bool fresh = true;
    unsigned tile = 0;
    const int tokens = p.tiles * TILE;
    const int64_t width = (int64_t)(p.heads + 2 * p.kv_heads) * WIDTH;
    while (w.job < p.jobs) {
        const int row = w.batch * tokens, head = w.kv_head * p.group + w.head;
        const int at = row + w.query * TILE, key_at = row + w.key * TILE;
        const int64_t stat = ((int64_t)w.batch * p.heads + head) * tokens + w.query * TILE;
        const int column = (p.heads + w.kv_head) * WIDTH;
        const bool first = fresh;
        if (first) {
            uint32_t full = shared_address(&m.key_full[k.stage]);
            barrier_wait(shared_address(&m.key_empty[k.stage]), k.parity ^ 1);
            barrier_expect(full, TILE_BYTES);
            load_tile(shared_address(m.key[k.stage]), qkv, column, key_at, full);
            k.step();
        }
        order o;
        bool whole = w.job < p.whole, diagonal = w.query == w.key;
        int buffer = whole ? (int)blockIdx.x : p.buffers + w.job - p.whole;
        o.flags = fresh ? FIRST : 0;
        o.flags |= diagonal ? DIAGONAL : 0;
        o.flags |= !whole || (w.key == 0 && !diagonal) ? PUT
                   : !diagonal                         ? ADD
                   : w.key > 0                         ? TAKE
                                                       : 0;
        o.sum = (((int64_t)buffer * p.group + w.head) * p.tiles + w.query) * (TILE * WIDTH);
        o.dq = at * width + head * WIDTH;
        o.dk = key_at * width + column;
        fresh = w.step(p);
        o.flags |= fresh ? LAST : 0;
        o.flags |= w.job < p.jobs ? 0 : END;
        uint32_t full = shared_address(&m.query_full[q.stage]);
        barrier_wait(shared_address(&m.query_empty[q.stage]), q.parity ^ 1);
        m.orders[tile++ % ORDERS] = o;
        barrier_expect(full, TILE_BYTES + TILE * 4);
        load_tile(shared_address(m.query[q.stage]), qkv, head * WIDTH, at, full);
        load_bytes(shared_address(m.lse[q.stage]), p.lse + stat, TILE * 4, full);
        q.step();
        full = shared_address(&m.dout_full[d.stage]);
        barrier_wait(shared_address(&m.dout_empty[d.stage]), d.parity ^ 1);
        barrier_expect(full, TILE_BYTES + TILE * 4);
        load_tile(shared_address(m.dout[d.stage]), dout, head * WIDTH, at, full);
        load_bytes(shared_address(m.sums[d.stage]), p.sums + stat, TILE * 4, full);
        d.step();
        if (first) { /* last: it has one place, which is free only when the sweep before is done */
            full = shared_address(&m.value_full);
            barrier_wait(shared_address(&m.value_empty), v.parity ^ 1);
            barrier_expect(full, TILE_BYTES);
            load_tile(shared_address(m.value), qkv, column + p.kv_heads * WIDTH, key_at, full);
            v.step();
        }
    }
}

/* --- the pieces of a tile */

struct place { /* of the calling thread */
    int group, warp, lane, thread;
};

/* Found again at each call, so that nothing made of it is kept in registers over the loop. */
__device__ inline place place_now()
{
    int tid;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
    tid -= 128;
    return {tid / 128, tid / 32 % 4, tid % 32, tid % 128};
}

template <typename T> __device__ inline void along(float (&s)[64], uint64_t a, uint64_t b)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        product_along<T>(s, further(a, 32 * k), further(b, 32 * k), k > 0);
}

template <typename T> __device__ inline void along_add(float (&s)[64], uint64_t a, uint64_t b)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        product_along<T>(s, further(a, 32 * k), further(b, 32 * k), 1);
}

template <typename T>
__device__ inline void down(float (&d)[32], const uint32_t (&a)[32], uint64_t b, int add)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_down<T>(d, a + 4 * k, further(b, 2048 * k), k > 0 ? 1 : add);
}

__device__ inline void mask(float (&s)[64], const place &me)
{
    int edge = me.group * 64 + me.warp * 16 + me.lane / 4 - me.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int column = i / 4 * 8 + i % 2, row = i % 4 / 2 * 8;
        if (column - row < edge)
            s[i] = -INFINITY;
    }
}

/* Four columns' worth of a row of statistics: columns c, c + 1 of two neighbouring eights. */
__device__ inline float4 four_of(const float *stats, int g, const place &me)
{
    return *reinterpret_cast<const float4 *>(stats + 16 * g + me.lane % 4 * 4);
}

template <int AHEAD>
__device__ inline void probabilities(float (&s)[64], const float4 (&ahead)[AHEAD], const float *lse, float scale, const place &me)
{
#pragma unroll
    for (int g = 0; g < 8; g++) {
        float4 l = g < AHEAD ? ahead[g] : four_of(lse, g, me);
#pragma unroll
        for (int i = 0; i < 8; i++)
            s[8 * g + i] = power_of_two(__fmaf_rn(
                s[8 * g + i], scale, -(i < 4 ? (i % 2 ? l.y : l.x) : (i % 2 ? l.w : l.z))));
    }
}

template <typename T> __device__ inline void pack_all(uint32_t (&to)[32], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        to[i] = packed<T>(s[2 * i], s[2 * i + 1]);
}

/* dp becomes p (dp - sums) */
template <typename T>
__device__ inline void slopes(float (&dp)[64], const uint32_t (&p)[32], const place &me)
{
#pragma unroll
    for (int g = 0; g < 16; g++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 both = unpacked<T>(p[2 * g + i]);
            float *d = dp + 4 * g + 2 * i;
            d[0] = __fmul_rn(both.x, d[0]);
            d[1] = __fmul_rn(both.y, d[1]);
        }
    }
}

__device__ inline void keep(uint32_t to, const uint32_t (&ds)[32], const place &me)
{
    int row = me.lane % 8 + me.lane / 16 * 8, piece = me.warp * 2 + me.lane / 8 % 2;
    uint32_t at = to + row * 128 + (piece ^ row % 8) * 16;
#pragma unroll
    for (int k = 0; k < 8; k++)
        store_turned(at + k * 2048, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
}

/* The warp's 16 rows of a (64, 64) product, by way of its stage, so that whole rows are written. */
template <typename T>
__device__ inline void write_rows(T *to, int64_t row, const float (&d)[32], float scale,
                                  char *stage, const place &me)
{
    const uint32_t base = shared_address(stage);
    const int r = me.lane % 16;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = packed<T>(__fmul_rn(d[8 * k + 2 * i], scale), __fmul_rn(d[8 * k + 2 * i + 1], scale));
        store_matrices(base + r * 128 + ((2 * k + me.lane / 16) ^ r % 8) * 16, w[0], w[1], w[2], w[3]);
    }
    __syncwarp();
    to += (me.group * 64 + me.warp * 16) * row;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int line = k * 4 + me.lane / 8, piece = me.lane % 8;
        uint4 bits = *reinterpret_cast<const uint4 *>(stage + line * 128 + (piece ^ line % 8) * 16);
        *reinterpret_cast<uint4 *>(to + line * row + piece * 8) = bits;
    }
    __syncwarp();
}

/* --- sums of dq in memory: by thread */
__device__ inline void fetch_sum(float (&d)[32], const float *from)
{
#pragma unroll
    for (int c = 0; c < 8; c++)
        asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(d[4 * c]), "=f"(d[4 * c + 1]), "=f"(d[4 * c + 2]), "=f"(d[4 * c + 3])
                     : "l"(from + c * 512)
                     : "memory");
}

__device__ inline void put_sum(float *to, const float (&d)[32])
{
#pragma unroll
    for (int c = 0; c < 8; c++)
        asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 512),
                     "f"(d[4 * c]), "f"(d[4 * c + 1]), "f"(d[4 * c + 2]), "f"(d[4 * c + 3])
                     : "memory");
}

__device__ inline void add_sum(float *to, const float (&d)[32])
{
#pragma unroll
    for (int c = 0; c < 8; c++)
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 512),
                     "f"(d[4 * c]), "f"(d[4 * c + 1]), "f"(d[4 * c + 2]), "f"(d[4 * c + 3])
                     : "memory");
}

/* dq of a tile (64 of its queries) = ds k, or += */
template <typename T>
__device__ inline void query_product(float (&dq)[32], uint32_t ds, uint32_t key, int add)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        product_down<T>(dq, tile_at(ds + k / 4 * TILE_BYTES + k % 4 * 32), tile_at(key + 2048 * k),
                        k > 0 ? 1 : add);
}

template <typename T, int QS, int ORDER>
__device__ inline void consume(memory<QS> &m, const problem &p, T *dqkv)
{
    const int tid = (int)threadIdx.x - 128;
    const place me = {tid / 128, tid / 32 % 4, tid % 32, tid % 128};
    const float scale = p.scale * 1.44269504088896340736f;
    const int half = me.group * (64 * 128);
    const int64_t row = (int64_t)(p.heads + 2 * p.kv_heads) * WIDTH;
    ring<K_STAGES> k;
    ring<1> v;
    ring<QS> q;
    ring<DOUT_STAGES> d;
    float dk[32], dv[32], dq[32];
    uint32_t p16[32];
    int before = 0, older = 0, old_k = 0, now_k = 0; /* of the tiles before the present one */
    int64_t dq_at = 0;
    if (ORDER & 4)
        barrier_wait(shared_address(&m.start), me.group ^ 1);
    barrier_wait(shared_address(&m.key_full[0]), 0);
    barrier_wait(shared_address(&m.query_full[0]), 0);
    int flags = m.orders[0].flags;
    {
        float s[64];
        products_begin();
        along<T>(s, tile_at(shared_address(m.key[0]) + half), tile_at(shared_address(m.query[0])));
        products_commit();
        products_wait<0>();
        hold(s);
        if (flags & DIAGONAL)
            mask(s, me);
        const float4 ahead[1] = {four_of(m.lse[0], 0, me)};
        probabilities(s, ahead, m.lse[0], scale, me);
        pack_all<T>(p16, s);
        barrier_wait(shared_address(&m.dout_full[0]), 0);
        barrier_wait(shared_address(&m.value_full), 0);
    }
    if ((ORDER & 4) && me.group == 0 && me.lane == 0)
        barrier_arrive(shared_address(&m.start));
    auto query_done = [&](int what) {
        const place now = place_now();
        float *sum = p.dq + dq_at + now.group * (64 * WIDTH) + now.thread * 4;
        if ((ORDER & 2) && what & (ADD | PUT))
            return;
        if (what & ADD)
            add_sum(sum, dq);
        else if (what & PUT)
            put_sum(sum, dq);
        else
            write_rows(dqkv + dq_at, row, dq, p.scale, m.stage[now.group * 4 + now.warp], now);
    };
    auto key_done = [&](const order &o) {
        const place now = place_now();
        char *stage = m.stage[now.group * 4 + now.warp];
        write_rows(dqkv + o.dk, row, dk, p.scale, stage, now);
        write_rows(dqkv + o.dk + p.kv_heads * WIDTH, row, dv, 1.0f, stage, now);
    };
    for (unsigned tile = 0;; tile++) {
        float s[64], dp[64], new_dq[32];
        uint32_t ds16[32];
#pragma unroll
        for (int g = 0; g < 8; g++) {
            float4 l = four_of(m.sums[d.stage], g, me);
            dp[8 * g] = dp[8 * g + 2] = l.x;
            dp[8 * g + 1] = dp[8 * g + 3] = l.y;
            dp[8 * g + 4] = dp[8 * g + 6] = l.z;
            dp[8 * g + 5] = dp[8 * g + 7] = l.w;
        }
        products_begin();
        along_add<T>(dp, tile_at(shared_address(m.value) + half),
                     tile_at(shared_address(m.dout[d.stage])));
        products_commit();
        if (before & LAST)
            key_done(m.orders[(tile - 1) % ORDERS]);
        products_begin();
        down<T>(dv, p16, tile_at(shared_address(m.dout[d.stage])), !(flags & FIRST));
        products_commit();
        if (tile > 1)
            query_done(older);
        products_wait<1>(); /* dP */
        hold(dp);
        if (flags & LAST && me.lane == 0)
            barrier_arrive(shared_address(&m.value_empty));
        slopes<T>(dp, p16, me);
        hold(dp);
        /* the next */
        const int old_q = q.stage;
        q.step();
        if (flags & LAST)
            k.step();
        if (!(flags & END)) {
            if (flags & LAST)
                barrier_wait(shared_address(&m.key_full[k.stage]), k.parity);
            barrier_wait(shared_address(&m.query_full[q.stage]), q.parity);
        }
        products_wait<0>(); /* dv */
        hold(dv);
        pack_all<T>(ds16, dp);
        if (before & TAKE)
            fetch_sum(new_dq, p.dq + m.orders[(tile - 1) % ORDERS].sum + me.group * (64 * WIDTH) +
                                  me.thread * 4);
        if (me.lane == 0)
            barrier_arrive(shared_address(&m.dout_empty[d.stage]));
        d.step();
        products_begin();
        down<T>(dk, ds16, tile_at(shared_address(m.query[old_q])), !(flags & FIRST));
        along<T>(s, tile_at(shared_address(m.key[k.stage]) + half),
                 tile_at(shared_address(m.query[q.stage])));
        products_commit();
        /* dq of the tile before */
        if (tile)
            barrier_wait(shared_address(&m.ds_full[(tile - 1) & 1]), (tile - 1) >> 1 & 1);
        products_begin();
        query_product<T>(new_dq, shared_address(m.ds[(tile - 1) & 1]) + half,
                         shared_address(m.key[old_k]), before & TAKE);
        products_commit();
        barrier_wait(shared_address(&m.ds_empty[tile & 1]), (tile >> 1 & 1) ^ 1);
        keep(shared_address(m.ds[tile & 1]) + me.group * TILE_BYTES, ds16, me);
        async_fence();
        __syncwarp();
        if (me.lane == 0)
            barrier_arrive(shared_address(&m.ds_full[tile & 1]));
        {
            const order &o = m.orders[(tile - 1) % ORDERS];
            dq_at = before & (ADD | PUT) ? o.sum : o.dq;
        }
        const int next = m.orders[(tile + 1) % ORDERS].flags;
        constexpr int LSE_AHEAD = ORDER & 1 ? 4 : 2;
        float4 ahead[LSE_AHEAD];
#pragma unroll
        for (int g = 0; g < LSE_AHEAD; g++)
            ahead[g] = four_of(m.lse[q.stage], g, me);
        products_wait<1>(); /* S */
        hold(s);
        if (next & DIAGONAL)
            mask(s, me);
        probabilities(s, ahead, m.lse[q.stage], scale, me);
        hold(s);
        if (!(flags & END)) {
            barrier_wait(shared_address(&m.dout_full[d.stage]), d.parity);
            if (flags & LAST) {
                v.step();
                barrier_wait(shared_address(&m.value_full), v.parity);
            }
        }
        products_wait<0>();
        pack_all<T>(p16, s);
        hold(new_dq);
#pragma unroll
        for (int i = 0; i < 32; i++)
            dq[i] = new_dq[i];
        hold(dk);
        hold(dv);
        if (me.lane == 0) {
            barrier_arrive(shared_address(&m.query_empty[old_q]));
            if (tile)
                barrier_arrive(shared_address(&m.ds_empty[(tile - 1) & 1]));
            if (before & LAST)
                barrier_arrive(shared_address(&m.key_empty[old_k]));
        }
        if (flags & END) {
            if (tile)
                query_done(before);
            const order &o = m.orders[tile % ORDERS];
            dq_at = flags & (ADD | PUT) ? o.sum : o.dq;
            barrier_wait(shared_address(&m.ds_full[tile & 1]), tile >> 1 & 1);
            if (flags & TAKE)
                fetch_sum(new_dq, p.dq + o.sum + me.group * (64 * WIDTH) + me.thread * 4);
            products_begin();
            query_product<T>(new_dq, shared_address(m.ds[tile & 1]) + half,
                             shared_address(m.key[now_k]), flags & TAKE);
            products_commit();
            products_wait<0>();
            hold(new_dq);
#pragma unroll
            for (int i = 0; i < 32; i++)
                dq[i] = new_dq[i];
            query_done(flags);
            key_done(o);
            return;
        }
        older = before;
        before = flags;
        flags = next;
        old_k = now_k;
        now_k = k.stage;
    }
}

template <typename T, int QS, int ORDER>
__global__ void __launch_bounds__(THREADS, 1)
    backward(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
             const __grid_constant__ problem p, T *dqkv)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char raw[];
    memory<QS> &m = *reinterpret_cast<memory<QS> *>(raw);
    if (threadIdx.x == 0) {
        if (shared_address(raw) % 1024)
            __trap();
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(shared_address(&m.key_full[i]), 1);
            barrier_init(shared_address(&m.key_empty[i]), 8);
        }
        barrier_init(shared_address(&m.value_full), 1);
        barrier_init(shared_address(&m.value_empty), 8);
        barrier_init(shared_address(&m.start), 4);
        for (int i = 0; i < 2; i++) {
            barrier_init(shared_address(&m.ds_full[i]), 8);
            barrier_init(shared_address(&m.ds_empty[i]), 8);
        }
        for (int i = 0; i < QS; i++) {
            barrier_init(shared_address(&m.query_full[i]), 1);
            barrier_init(shared_address(&m.query_empty[i]), 8);
        }
        for (int i = 0; i < DOUT_STAGES; i++) {
            barrier_init(shared_address(&m.dout_full[i]), 1);
            barrier_init(shared_address(&m.dout_empty[i]), 8);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0)
            produce<QS>(m, p, &qkv, &dout);
    } else {
        more_registers<240>();
        consume<T, QS, ORDER>(m, p, dqkv);
    }
#endif
}


/* sums (B, H, T) = dout . out, and lse in powers of two: a block a head and tile, eight lanes a row */
template <typename T>
__global__ void __launch_bounds__(256) statistics(int tokens, int heads, const T *out, const T *dout, const float *lse,
                           float *sums, float *powers)
{
    const int tiles = tokens / TILE, tile = blockIdx.x % tiles, head = blockIdx.x / tiles % heads;
    const int64_t batch = blockIdx.x / tiles / heads;
    const int lane = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t t = tile * TILE + i * 32 + threadIdx.x / 8;
        int64_t from = ((batch * tokens + t) * heads + head) * WIDTH + lane * 8;
        uint4 a = *reinterpret_cast<const uint4 *>(out + from);
        uint4 b = *reinterpret_cast<const uint4 *>(dout + from);
        const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 u = unpacked<T>(x[j]), v = unpacked<T>(y[j]);
            sum = __fmaf_rn(u.x, v.x, sum);
            sum = __fmaf_rn(u.y, v.y, sum);
        }
        for (int step = 4; step; step /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
        if (lane == 0) {
            int64_t first = (batch * heads + head) * tokens + tile * TILE;
            int column = i * 32 + threadIdx.x / 8;
            int at = column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
            sums[first + at] = -sum;
            powers[first + at] = __fmul_rn(lse[first + column], 1.44269504088896340736f);
        }
    }
}

/* dq of the items that were cut: for each place, the tiles' parts in order */
template <typename T>
__global__ void __launch_bounds__(256) gather(const __grid_constant__ problem p, T *dqkv)
{
    const int rest = blockIdx.z, head = blockIdx.y, tile = blockIdx.x;
    const int item = p.whole + rest, batch = item / p.kv_heads, kv_head = item % p.kv_heads;
    const place me = {(int)threadIdx.x / 128, (int)threadIdx.x / 32 % 4, (int)threadIdx.x % 32, (int)threadIdx.x % 128};
    const int64_t row = (int64_t)(p.heads + 2 * p.kv_heads) * WIDTH;
    float dq[32];
    for (int key = 0; key <= tile; key++) {
        int64_t buffer = p.buffers + key * p.rest + rest;
        const float *from = p.dq + ((buffer * p.group + head) * p.tiles + tile) * (TILE * WIDTH) +
                            me.group * (64 * WIDTH) + me.thread * 4;
        float part[32];
        fetch_sum(part, from);
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (key == 0)
                dq[i] = part[i];
            else
                asm("add.rn.ftz.f32 %0, %0, %1;" : "+f"(dq[i]) : "f"(part[i]));
    }
    T *to = dqkv + ((int64_t)batch * p.tiles + tile) * TILE * row + (kv_head * p.group + head) * WIDTH;
    __shared__ __align__(128) char stage[8][16 * 128];
    write_rows(to, row, dq, p.scale, stage[threadIdx.x / 32], me);
}

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

cudaError_t find_encode(encode_fn *encode)
{
    void *entry = 0;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &found);
    if (error == cudaSuccess && found != cudaDriverEntryPointSuccess)
        error = cudaErrorSymbolNotFound;
    *encode = (encode_fn)entry;
    return error;
}

cudaError_t map_rows(encode_fn encode, CUtensorMap *map, bool bf16, const void *base, int64_t rows, int64_t width)
{
    const cuuint64_t sizes[2] = {(cuuint64_t)width, (cuuint64_t)rows}, strides[1] = {(cuuint64_t)width * 2};
    const cuuint32_t box[2] = {WIDTH, TILE}, steps[2] = {1, 1};
    CUresult result = encode(
        map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
        (void *)base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

const int64_t USUAL = 132;

int64_t worst_rest(int64_t rest, int64_t tiles, int64_t blocks)
{
    int64_t sum = 0;
    for (int64_t job = 0; job < rest * tiles; job += blocks)
        sum += tiles - job / rest;
    return sum;
}

#ifndef HARNESS
const int harness_back = 1;
#endif

template <typename T, int QS, int ORDER>
cudaError_t run(struct cuda_heads a, const void *qkv, const void *out, const float *lse,
                const void *dout, void *dqkv, void *scratch, size_t bytes, int processors, cudaStream_t stream)
{
    const int64_t rows = a.batch * a.tokens, stats = rows * a.heads, items = a.batch * a.kv_heads;
    const int64_t tiles = a.tokens / TILE, group = a.heads / a.kv_heads;
    const int64_t buffers = ((int64_t)(bytes / 4) - 2 * stats) / (group * a.tokens * WIDTH);
    float *sums = (float *)scratch, *powers = sums + stats;
    int64_t rest = items % USUAL, whole = items - rest;
    bool cut = rest && (whole ? USUAL : 0) + rest * tiles <= buffers &&
               worst_rest(rest, tiles, USUAL) < tiles * (tiles + 1) / 2;
    if (!cut) {
        whole = items;
        rest = 0;
    }
    const int64_t blocks = processors < USUAL ? processors : USUAL, slots = whole < blocks ? whole : blocks;
    int64_t jobs = whole + rest * tiles;
    problem p = {(int)tiles, (int)a.heads, (int)a.kv_heads, (int)group, (int)whole, (int)jobs, (int)(rest ? rest : 1), (int)slots, harness_back,
                 (float)(1 / sqrt((double)a.width)), powers, sums, powers + stats};
    encode_fn encode;
    CUtensorMap qkv_map, dout_map;
    const bool bf16 = is_bf16<T>;
    cudaError_t error = find_encode(&encode);
    if (!error)
        error = map_rows(encode, &qkv_map, bf16, qkv, rows, (a.heads + 2 * a.kv_heads) * WIDTH);
    if (!error)
        error = map_rows(encode, &dout_map, bf16, dout, rows, a.heads * WIDTH);
    const size_t shared = sizeof(memory<QS>);
    if (!error)
        error = cudaFuncSetAttribute(backward<T, QS, ORDER>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error)
        return error;
    statistics<T><<<(unsigned)(a.batch * a.heads * tiles), 256, 0, stream>>>((int)a.tokens, (int)a.heads, (const T *)out, (const T *)dout, lse, sums, powers);
    backward<T, QS, ORDER><<<(unsigned)(jobs < blocks ? jobs : blocks), THREADS, shared, stream>>>(qkv_map, dout_map, p, (T *)dqkv);
    if (rest)
        gather<T><<<dim3((unsigned)tiles, (unsigned)group, (unsigned)rest), 256, 0, stream>>>(p, (T *)dqkv);
    return cudaGetLastError();
}

#ifndef HARNESS
template cudaError_t run<__nv_bfloat16, 3, 0>(struct cuda_heads a, const void *qkv, const void *out, const float *lse,
                const void *dout, void *dqkv, void *scratch, size_t bytes, int processors, cudaStream_t stream);
template cudaError_t run<__nv_bfloat16, 3, 1>(struct cuda_heads a, const void *qkv, const void *out, const float *lse,
                const void *dout, void *dqkv, void *scratch, size_t bytes, int processors, cudaStream_t stream);
#endif

} // namespace
