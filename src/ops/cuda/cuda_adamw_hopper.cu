/* cuda_adamw_hopper -- AdamW for compute capability 9.0: tiles go through shared memory, moved by
 * the copy engine.
 *
 * One block per multiprocessor. One warp moves data: it takes tiles, loads their parameters,
 * moments and gradients (8 KiB of an array at once), and stores the results. STAGES tiles are in
 * flight, DRAIN of them being stored. The other warps compute in place.
 *
 *     taken -> loads -> full[stage] -> computed in place -> done[stage] -> stores -> stage free
 *
 * Blocks take tiles from a shared counter in device memory, so that faster blocks take more
 * (2.97e9 parameters on an H200: 19.9 ms, 4.17 TB/s; 21.1 ms where a block takes every 132nd
 * tile). Which block gets a tile changes from run to run; the bits do not, since tiles are
 * independent. The launcher clears the counter before each launch.
 *
 * Threads of the kernel in cuda_update.cu hold their loads in registers and wait for all of them;
 * here no thread waits as long as a tile is ready. The arithmetic, and so the bits, are the same.
 * What the copy engine cannot move (a segment that is not aligned to 16 bytes, its last elements,
 * a copy of more than 16 bits) is read and written directly.
 *
 * This file is compiled for sm_90a only (cmake/cuda.cmake).
 */
#include "ops/cuda/cuda_update.cuh"
#include "ops/cuda/common/hopper.cuh"

namespace
{

using namespace hopper;

enum {
    TILE = 2048, /* elements */
    STAGES = 6,
    DRAIN = 2,
    COMPUTING = 256, /* threads */
    THREADS = COMPUTING + WARP
};

/* A tile and its location. */
struct job {
    kernel_segment tile; /* the segment from the tile's first element on; count: of the tile */
    int moved;           /* how many of its first elements the copy engine moves */
    float lr;
};

struct stage {
    float param[TILE], m[TILE], v[TILE];
    float grad[TILE]; /* half of it used for 16-bit types */
    uint16_t copy[TILE];
};

struct memory {
    alignas(128) stage stages[STAGES];
    job jobs[STAGES];
    uint64_t full[STAGES], done[STAGES];
};

/* --- the warp that moves data: its first lane issues, all lanes search the segments ----------- */

/* The tiles of this block, in increasing order. The counter is slow to reach, so it is read one
 * turn ahead. */
struct taker {
    unsigned long long *taken; /* shared by all blocks */
    unsigned long long ahead;  /* the next turn's value, in the first lane */

    __device__ inline void look_ahead()
    {
        if (threadIdx.x % WARP == 0)
            ahead = atomicAdd(taken, 1ull);
    }

    __device__ inline int64_t take()
    {
        unsigned long long now = ahead;
        look_ahead();
        return (int64_t)__shfl_sync(ALL_LANES, now, 0);
    }
};

/* Finds the segment of a tile, for tiles in increasing order: each lane holds one of 32 segments.
 */
struct finder {
    const kernel_segment *segments;
    int count, first; /* first: of the 32 segments */
    int64_t before;   /* tiles of all earlier segments */
    int64_t end;      /* tiles up to and including this lane's segment */

    __device__ inline void look(int from, int64_t tiles)
    {
        int i = from + (int)threadIdx.x % WARP;
        first = from;
        before = tiles;
        end = i < count ? (segments[i].count + TILE - 1) / TILE : 0;
        for (int apart = 1; apart < WARP; apart *= 2) {
            int64_t left = __shfl_up_sync(ALL_LANES, end, apart);
            end += (int)threadIdx.x % WARP >= apart ? left : 0;
        }
        end += tiles;
    }

    /* The tile's segment and its index within it; false if there are fewer tiles. */
    __device__ inline bool find(int64_t turn, int *segment, int64_t *tile)
    {
        unsigned later;
        while (!(later = __ballot_sync(ALL_LANES, end > turn))) {
            if (first + WARP >= count)
                return false;
            look(first + WARP, __shfl_sync(ALL_LANES, end, WARP - 1));
        }
        int lane = __ffs((int)later) - 1;
        int64_t start = __shfl_sync(ALL_LANES, end, lane > 0 ? lane - 1 : 0);
        *segment = first + lane;
        *tile = turn - (lane > 0 ? start : before);
        return true;
    }
};

__device__ inline int grad_bytes(const kernel_segment &s)
{
    return s.grad_type == DTYPE_F32 ? 4 : 2;
}

__device__ inline job job_of(const kernel_segment &s, int64_t tile, float lr)
{
    int64_t at = tile * TILE;
    bool small_copy = !s.copy || s.copy_type == DTYPE_BF16 || s.copy_type == DTYPE_F16;
    int copy_bytes = s.copy_type == DTYPE_F64 ? 8 : s.copy_type == DTYPE_F32 ? 4 : 2;
    job j = {s, 0, mul(lr, s.lr_mul)};
    j.tile.count = min((int64_t)TILE, s.count - at);
    j.tile.param += at;
    j.tile.m = (float *)s.m + at;
    j.tile.v = (float *)s.v + at;
    j.tile.grad = (const char *)s.grad + at * grad_bytes(s);
    j.tile.copy = s.copy ? (char *)s.copy + at * copy_bytes : nullptr;
    if (is_wide_segment(s) && small_copy)
        j.moved = (int)j.tile.count & ~7;
    return j;
}

__device__ inline void ask(memory &memory, int i, const job &j)
{
    stage &to = memory.stages[i];
    uint32_t full = shared_address(&memory.full[i]);
    int bytes = j.moved * 4, halves = j.moved * grad_bytes(j.tile);
    memory.jobs[i] = j;
    barrier_expect(full, 3 * bytes + halves);
    if (j.moved == 0)
        return;
    load_bytes(shared_address(to.param), j.tile.param, bytes, full);
    load_bytes(shared_address(to.m), j.tile.m, bytes, full);
    load_bytes(shared_address(to.v), j.tile.v, bytes, full);
    load_bytes(shared_address(to.grad), j.tile.grad, halves, full);
}

/* Stores a computed tile, as one group of stores (possibly empty). */
__device__ inline void send_back(memory &memory, int i)
{
    const stage &from = memory.stages[i];
    const kernel_segment &tile = memory.jobs[i].tile;
    int moved = memory.jobs[i].moved;
    if (moved > 0) {
        store_bytes(tile.param, shared_address(from.param), moved * 4);
        store_bytes(tile.m, shared_address(from.m), moved * 4);
        store_bytes(tile.v, shared_address(from.v), moved * 4);
        if (tile.copy)
            store_bytes(tile.copy, shared_address(from.copy), moved * 2);
    }
    stores_commit();
}

__device__ inline void move(memory &memory, const kernel_scalars &now,
                            const kernel_segment *segments, int segment_count,
                            unsigned long long *taken)
{
    bool first_lane = threadIdx.x % WARP == 0, more = true;
    finder finder = {segments, segment_count, 0, 0, 0};
    ring<STAGES> asked, back; /* back: the stage to store next */
    int known = -1, left = 0; /* left: tiles loaded but not yet stored */
    kernel_segment s = {};
    taker taker = {taken, 0};
    finder.look(0, 0);
    taker.look_ahead();
    for (int64_t turn = taker.take(); more || left > 0; turn = taker.take()) {
        int segment = -1;
        int64_t tile = 0;
        more = more && finder.find(turn, &segment, &tile);
        if (more && segment != known)
            s = segments[known = segment];
        if (left == STAGES - DRAIN || !more) {
            if (left > 0) {
                barrier_wait(shared_address(&memory.done[back.stage]), back.parity);
                if (first_lane)
                    send_back(memory, back.stage);
                back.step();
                left--;
            }
        }
        if (!more)
            continue;
        if (first_lane) {
            stores_read<DRAIN>(); /* frees the stage that is loaded next */
            ask(memory, asked.stage, job_of(s, tile, now.lr));
        }
        __syncwarp();
        asked.step();
        left++;
    }
    /* An empty tile tells the computing warps to stop. */
    if (first_lane) {
        memory.jobs[asked.stage].tile.count = 0;
        barrier_arrive(shared_address(&memory.full[asked.stage]));
        stores_done();
    }
}

/* --- the warps that compute ------------------------------------------------------------------- */

__device__ inline void widen_four(const stage &stage, enum dtype type, int i, float (&g)[4])
{
    if (type == DTYPE_F32) {
        widen(load(stage.grad + i), g);
        return;
    }
    uint2 bits = *reinterpret_cast<const uint2 *>((const uint16_t *)stage.grad + i);
    float2 low, high;
    if (type == DTYPE_BF16) {
        low = widen_word(bits.x, __nv_bfloat16());
        high = widen_word(bits.y, __nv_bfloat16());
    } else {
        low = widen_word(bits.x, __half());
        high = widen_word(bits.y, __half());
    }
    g[0] = low.x;
    g[1] = low.y;
    g[2] = high.x;
    g[3] = high.y;
}

__device__ inline void update_stage(const update &u, stage &stage, const job &j)
{
    const enum dtype grad_type = j.tile.grad_type, copy_type = j.tile.copy_type;
    const bool has_copy = j.tile.copy != nullptr;
    const int moved = j.moved;
    for (int i = (int)threadIdx.x * 4; i < moved; i += COMPUTING * 4) {
        float p[4], m[4], v[4], g[4];
        widen(load(stage.param + i), p);
        widen(load(stage.m + i), m);
        widen(load(stage.v + i), v);
        widen_four(stage, grad_type, i, g);
        step_four(u, g, p, m, v);
        store(stage.param + i, narrow<float>(p));
        store(stage.m + i, narrow<float>(m));
        store(stage.v + i, narrow<float>(v));
        if (!has_copy)
            continue;
        if (copy_type == DTYPE_BF16)
            *reinterpret_cast<lump<__nv_bfloat16, 4> *>(stage.copy + i) =
                copy_four<__nv_bfloat16>(p);
        else
            *reinterpret_cast<lump<__half, 4> *>(stage.copy + i) = copy_four<__half>(p);
    }
}

__device__ inline void compute(memory &memory, const kernel_update &hyper,
                               const kernel_scalars &now)
{
    update u = update_begin(hyper, now);
    ring<STAGES> next;
    for (;; next.step()) {
        barrier_wait(shared_address(&memory.full[next.stage]), next.parity);
        const job &j = memory.jobs[next.stage];
        if (j.tile.count == 0)
            return;
        u.lr = j.lr;
        u.decay = j.tile.decay;
        update_stage(u, memory.stages[next.stage], j);
        for (int first = j.moved; first < j.tile.count; first += COMPUTING * 4)
            update_tile<adamw_rule, 1, false>(u, j.tile, nullptr, first, threadIdx.x, COMPUTING);
        async_fence();
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            barrier_arrive(shared_address(&memory.done[next.stage]));
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    adamw_tiles(kernel_update hyper, const kernel_scalars *scalars, const kernel_segment *segments,
                int segment_count, unsigned long long *taken)
{
    extern __shared__ __align__(128) char bytes[];
    memory &memory = *reinterpret_cast<struct memory *>(bytes);
    const kernel_scalars now = *scalars;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&memory.full[i]), 1);
            barrier_init(shared_address(&memory.done[i]), COMPUTING / WARP);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < COMPUTING)
        compute(memory, hyper, now);
    else
        move(memory, now, segments, segment_count, taken);
}

} // namespace

cudaError_t launch_adamw_hopper(cudaStream_t stream, struct kernel_update hyper,
                                const struct kernel_scalars *scalars,
                                const struct kernel_segment *segments, int segment_count,
                                int processors, unsigned long long *taken)
{
    if (segment_count == 0)
        return cudaSuccess;
    cudaError_t error = cudaFuncSetAttribute(
        adamw_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(memory));
    if (error == cudaSuccess)
        error = cudaMemsetAsync(taken, 0, sizeof *taken, stream);
    if (error != cudaSuccess)
        return error;
    adamw_tiles<<<(unsigned)processors, THREADS, sizeof(memory), stream>>>(hyper, scalars, segments,
                                                                           segment_count, taken);
    return cudaGetLastError();
}
