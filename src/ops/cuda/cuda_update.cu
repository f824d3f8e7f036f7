/* cuda_update -- the update rules on any GPU: one launch for all segments, whose counts only the
 * device knows.
 *
 * Segments are cut into tiles. A fixed number of blocks takes the tiles in turn, for 1024 segments
 * at a time: each block sums the tile counts of the segments in shared memory and finds the
 * segment of a tile by bisection. The rules are in cuda_update.cuh; AdamW has a kernel of its own
 * for Hopper in cuda_adamw_hopper.cu.
 */
#include "device/gpu_facts.h"
#include "ops/cuda/cuda_update.cuh"

enum {
    THREADS = 256,
    DEPTH = 2,
    TILE = DEPTH * THREADS * 4,
    RESIDENT = 3, /* blocks on a multiprocessor at a time */
    BLOCKS = GPU_HOPPER_PROCESSORS * 2 * RESIDENT,
    SEGMENTS_EACH = 4, /* per thread */
    SEGMENTS = SEGMENTS_EACH * THREADS
};

template <typename RULE> static __device__ inline int64_t tiles_of(const kernel_segment &s)
{
    return s.count > 0 ? (s.count + RULE::skip(s) + TILE - 1) / TILE : 0;
}

/* ends[i] = tiles of segments 0 .. i; returns the tiles of all `count` segments. */
template <typename RULE>
static __device__ inline int64_t sum_tiles(const kernel_segment *segments, int count, int64_t *ends)
{
    __shared__ int64_t warps[THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t mine[SEGMENTS_EACH], sum = 0, before = 0, all = 0;
#pragma unroll
    for (int k = 0; k < SEGMENTS_EACH; k++) {
        int i = threadIdx.x * SEGMENTS_EACH + k;
        sum += i < count ? tiles_of<RULE>(segments[i]) : 0;
        mine[k] = sum;
    }
#pragma unroll
    for (int apart = 1; apart < WARP; apart *= 2) {
        int64_t left = __shfl_up_sync(ALL_LANES, sum, apart);
        sum += lane >= apart ? left : 0;
    }
    if (lane == WARP - 1)
        warps[warp] = sum;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++) {
        before += w < warp ? warps[w] : 0;
        all += warps[w];
    }
    before += sum - mine[SEGMENTS_EACH - 1];
#pragma unroll
    for (int k = 0; k < SEGMENTS_EACH; k++)
        ends[threadIdx.x * SEGMENTS_EACH + k] = before + mine[k];
    __syncthreads();
    return all;
}

/* The first i with ends[i] > tile. */
static __device__ inline int find_segment(const int64_t *ends, int count, int64_t tile)
{
    int low = 0, high = count - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ends[middle] > tile)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

template <typename RULE, bool RANDOM>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    update_segments(kernel_update hyper, const kernel_scalars *scalars,
                    const kernel_segment *segments, const kernel_location *locations,
                    int segment_count)
{
    __shared__ int64_t ends[SEGMENTS];
    const kernel_scalars now = *scalars;
    update u = update_begin(hyper, now);
    int64_t turn =
        blockIdx.x; /* this block's next tile, counted from the first of these segments */
    for (int first = 0; first < segment_count; first += SEGMENTS) {
        int count = min((int)SEGMENTS, segment_count - first), i = 0;
        int64_t tiles = sum_tiles<RULE>(segments + first, count, ends);
        for (; turn < tiles; turn += gridDim.x) {
            if (turn >= ends[i])
                i = find_segment(ends, count, turn);
            const kernel_segment &s = segments[first + i];
            u.lr = mul(now.lr, s.lr_mul);
            u.decay = s.decay;
            int64_t tile = turn - (i > 0 ? ends[i - 1] : 0);
            const kernel_location *location = RANDOM ? &locations[first + i] : nullptr;
            update_tile<RULE, DEPTH, RANDOM>(u, s, location, tile * TILE, threadIdx.x, THREADS);
        }
        turn -= tiles;
        __syncthreads();
    }
}

/* The kernel of a rule. The direction of muon is no copy: it is rounded to nearest. */
static decltype(&update_segments<adamw_rule, false>) kernel_of(enum kernel_rule rule, bool random)
{
    switch (rule) {
    case KERNEL_ADAMW8:
        return random ? update_segments<adamw8_rule, true> : update_segments<adamw8_rule, false>;
    case KERNEL_SGD:
        return random ? update_segments<sgd_rule, true> : update_segments<sgd_rule, false>;
    case KERNEL_MUON: return update_segments<muon_rule, false>;
    case KERNEL_APPLY:
        return random ? update_segments<apply_rule, true> : update_segments<apply_rule, false>;
    default: return random ? update_segments<adamw_rule, true> : update_segments<adamw_rule, false>;
    }
}

cudaError_t launch_update(cudaStream_t stream, struct kernel_update update,
                          const struct kernel_scalars *scalars,
                          const struct kernel_segment *segments,
                          const struct kernel_location *locations, int segment_count)
{
    auto kernel = kernel_of(update.rule, locations != nullptr);
    kernel<<<BLOCKS, THREADS, 0, stream>>>(update, scalars, segments, locations, segment_count);
    return cudaGetLastError();
}
