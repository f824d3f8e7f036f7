/* cuda_adamw -- AdamW on any GPU: one launch for all segments, whose counts only the device knows.
 *
 * Segments are cut into tiles. A fixed number of blocks takes the tiles in turn, for 1024 segments
 * at a time: each block sums the tile counts of the segments in shared memory and finds the
 * segment of a tile by bisection. The arithmetic is in cuda_adamw.cuh; Hopper has a kernel of its
 * own in cuda_adamw_hopper.cu.
 */
#include "device/gpu_facts.h"
#include "ops/cuda/cuda_adamw.cuh"

enum {
    THREADS = 256,
    ADAMW_DEPTH = 2,
    ADAMW_TILE = ADAMW_DEPTH * THREADS * 4,
    ADAMW_BLOCKS = GPU_HOPPER_PROCESSORS * 8,
    SEGMENTS_EACH = 4, /* per thread */
    SEGMENTS = SEGMENTS_EACH * THREADS
};

/* ends[i] = tiles of segments 0 .. i; returns the tiles of all `count` segments. */
static __device__ inline int64_t sum_tiles(const kernel_segment *segments, int count, int64_t *ends)
{
    __shared__ int64_t warps[THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t mine[SEGMENTS_EACH], sum = 0, before = 0, all = 0;
#pragma unroll
    for (int k = 0; k < SEGMENTS_EACH; k++) {
        int i = threadIdx.x * SEGMENTS_EACH + k;
        sum += i < count ? (segments[i].count + ADAMW_TILE - 1) / ADAMW_TILE : 0;
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

template <bool RANDOM>
__global__ void __launch_bounds__(THREADS, 3)
    adamw(kernel_adamw hyper, const kernel_scalars *scalars, const kernel_segment *segments,
          const kernel_location *locations, int segment_count)
{
    __shared__ int64_t ends[SEGMENTS];
    const kernel_scalars now = *scalars;
    update u = update_begin(hyper, now);
    int64_t turn =
        blockIdx.x; /* this block's next tile, counted from the first of these segments */
    for (int first = 0; first < segment_count; first += SEGMENTS) {
        int count = min((int)SEGMENTS, segment_count - first);
        int64_t tiles = sum_tiles(segments + first, count, ends);
        for (; turn < tiles; turn += gridDim.x) {
            int i = find_segment(ends, count, turn);
            kernel_segment s = segments[first + i];
            u.lr = mul(now.lr, s.lr_mul);
            u.decay = s.decay;
            int64_t tile = turn - (i > 0 ? ends[i - 1] : 0);
            const kernel_location *place = RANDOM ? &locations[first + i] : nullptr;
            update_tile<ADAMW_DEPTH, RANDOM>(u, s, place, tile * ADAMW_TILE, threadIdx.x, THREADS);
        }
        turn -= tiles;
        __syncthreads();
    }
}

cudaError_t launch_adamw(cudaStream_t stream, struct kernel_adamw hyper,
                         const struct kernel_scalars *scalars,
                         const struct kernel_segment *segments,
                         const struct kernel_location *locations, int segment_count)
{
    auto kernel = locations ? adamw<true> : adamw<false>;
    kernel<<<ADAMW_BLOCKS, THREADS, 0, stream>>>(hyper, scalars, segments, locations,
                                                 segment_count);
    return cudaGetLastError();
}
