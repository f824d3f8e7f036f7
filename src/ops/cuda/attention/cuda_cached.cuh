/* cuda_cached -- shared by the kernels of attention over a cache: how the past of a query is cut
 * into parts, and how the partial results are combined.
 *
 * A warp attends to one part of the past for one query. The cut, and so the bits, depend only on
 * the shape and the position: many parts if there are few queries, as in decoding; one part if
 * there are enough queries to fill the GPU, as over a prompt. The position may be in device
 * memory, so the grid is sized for the longest past that fits the cache, and blocks without a part
 * exit. The last block of a query to arrive combines the results, always in the order of the
 * parts. With a window, only the positions from the window of the first new one on are cut and
 * read.
 */
#ifndef OPS_CUDA_CUDA_CACHED_CUH
#define OPS_CUDA_CUDA_CACHED_CUH
#include "ops/cuda/attention/cuda_attend.cuh"
#include "ops/cuda/common/follow.cuh"

namespace cached
{

const int PARTS = 4096; /* warps that fill the GPU: the upper limit of queries times parts */
const int MOST = 64;    /* parts of one query, at most */

struct place {
    int tokens, heads, group, width;
    int parts;      /* per query, at most */
    int blocks;     /* per query */
    int64_t row;    /* of qkv: (H + 2G) D elements */
    int64_t kv_row; /* of the cache: G D */
    int64_t room;
    int window; /* positions that a query sees, at most */
    attend::scoring how;
};

inline place place_of(struct cuda_heads a, int64_t room, int warps)
{
    const int64_t window = a.window < room ? a.window : room, most = window + a.tokens - 1;
    int64_t queries = a.batch * a.tokens * a.heads,
            rounds = ((most < room ? most : room) + 31) / 32;
    int parts = queries < PARTS ? (int)(PARTS / queries) : 1;
    parts = parts < MOST ? parts : MOST;
    int used = parts < rounds ? parts : (int)rounds;
    return {(int)a.tokens,
            (int)a.heads,
            (int)(a.heads / a.kv_heads),
            (int)a.width,
            parts,
            (used + warps - 1) / warps,
            (a.heads + 2 * a.kv_heads) * a.width,
            a.kv_heads * a.width,
            room,
            (int)window,
            {a.scale, a.cap}};
}

/* The first position that the query at position `at` sees. */
__device__ inline int first_seen(const place &p, int at)
{
    return at >= p.window ? at - p.window + 1 : 0;
}

/* Parts of a whole number of 32 positions (one round of a warp), and the resulting counts. */
struct cut {
    int part; /* positions per part */
    int parts, blocks;
};

__device__ inline cut cut_of(const place &p, int rows, int warps)
{
    int part = ((rows + p.parts - 1) / p.parts + 31) / 32 * 32, parts = (rows + part - 1) / part;
    return {part, parts, (parts + warps - 1) / warps};
}

/* Combines `count` parts, (largest, sum, acc (D)) each, into the row of out, by the whole block.
 * A query sees itself, so the largest score is finite; parts outside its window are empty. */
template <typename T>
__device__ inline void put_together(const float *scratch, int count, int width, T *out)
{
    __shared__ float tops[MOST], sums[MOST], factors[MOST];
    int step = width + 2;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        tops[i] = __ldcg(scratch + i * step);
        sums[i] = __ldcg(scratch + i * step + 1);
    }
    __syncthreads();
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < count; i++)
        largest = fmaxf(largest, tops[i]);
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        factors[i] = expf(tops[i] - largest);
    __syncthreads();
    for (int i = 0; i < count; i++)
        sum += sums[i] * factors[i];
    for (int d = threadIdx.x; d < width; d += blockDim.x) {
        float x = 0;
#pragma unroll 8
        for (int i = 0; i < count; i++)
            x = fmaf(__ldcg(scratch + i * step + 2 + d), factors[i], x);
        out[d] = attend::rounded<T>(x / sum);
    }
}

/* Whether this block is the last of `blocks` to arrive; if so, it can read what all of them wrote.
 */
__device__ inline bool comes_last(unsigned *arrived, int blocks)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = blocks == 1 || atomicAdd(arrived, 1u) == (unsigned)blocks - 1;
        if (last)
            *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* cuda_cached_one.cu: whether it supports this case, one new position per sequence. `wide`: all
 * rows consist of 16-byte units. */
bool takes_one(int type, struct cuda_heads a, bool wide);
cudaError_t attend_one(int type, struct cuda_heads a, kernel_past past, int64_t room,
                       const void *qkv, void *cache_k, void *cache_v, void *out, float *scratch,
                       unsigned *arrived, cudaStream_t stream);

} // namespace cached

#endif
