/* cuda_cached -- what kernels of attention over a cache share: how the past of a query is cut into
 * parts, and how what was found in each is put together.
 *
 * A warp attends to a part of the past for one query. How the past is cut depends on the shape and the
 * position alone (so do the bits): into many parts when there are few queries, as in decoding, into one
 * when there are enough of them to fill the GPU, as over a prompt. The position may stand in device
 * memory, so there are blocks for the longest past that there is room for, and those without a part
 * leave. The block that comes last of a query's puts together what they found, in their order, whoever
 * it is.
 */
#ifndef OPS_CUDA_CUDA_CACHED_CUH
#define OPS_CUDA_CUDA_CACHED_CUH
#include "ops/cuda/attention/cuda_attend.cuh"
#include "ops/cuda/common/follow.cuh"

namespace cached
{

const int PARTS = 4096; /* warps that fill the GPU: queries times parts is not more */
const int MOST = 64;    /* parts of one query */

struct place {
    int tokens, heads, group, width;
    int parts;      /* of a query, at most */
    int blocks;     /* of a query */
    int64_t row;    /* of qkv: (H + 2G) D elements */
    int64_t kv_row; /* of the cache: G D */
    int64_t room;
    float scale;
};

inline place place_of(struct cuda_heads a, int64_t room, int warps)
{
    int64_t queries = a.batch * a.tokens * a.heads, rounds = (room + 31) / 32;
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
            (float)(1 / sqrt((double)a.width))};
}

/* Parts of whole rounds of a warp, 32 positions, and as many as that makes. */
struct cut {
    int part; /* positions of one */
    int parts, blocks;
};

__device__ inline cut cut_of(const place &p, int rows, int warps)
{
    int part = ((rows + p.parts - 1) / p.parts + 31) / 32 * 32, parts = (rows + part - 1) / part;
    return {part, parts, (parts + warps - 1) / warps};
}

/* Of `count` parts, (largest, sum, acc (D)) each, the row of out, by the whole block. The first is
 * never empty, so the largest score is finite. */
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
        out[d] = attend::from_float<T>(x / sum);
    }
}

/* Whether this block is the last of `blocks` that come here; what all of them wrote can then be read. */
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

/* cuda_cached_one.cu: whether it is for this, one new position a sequence; `wide`: all rows are pieces
 * of 16 bytes. */
bool takes_one(int type, struct cuda_heads a, bool wide);
cudaError_t attend_one(int type, struct cuda_heads a, kernel_past past, int64_t room,
                       const void *qkv, void *cache_k, void *cache_v, void *out, float *scratch,
                       unsigned *arrived, cudaStream_t stream);

} // namespace cached

#endif
