/* cuda_cached -- attention of a few new positions over a cache of keys and values.
 *
 * A warp attends to a part of the past for one query; the block that comes last of a query's puts its
 * parts together, in their order, whoever it is. How the past is cut depends on the shape and the
 * position alone (so do the bits): into many parts when there are few queries, as in decoding, into one
 * when there are enough of them to fill the card, as over a prompt; then nothing is put together. The
 * position may stand in device memory, so there are blocks for the longest past that there is room
 * for, and those without a part leave.
 *
 * New keys and values go into the cache before. Of one new position the warps that come to it put it
 * there themselves: all heads of a group write the same bytes, and each reads what it wrote.
 */
#include "ops/cuda/cuda_attend.cuh"
#include "ops/cuda/follow.cuh"

namespace
{

using namespace attend;

const int64_t PARTS = 4096; /* warps that fill the card: queries times parts is not more */
const int64_t MOST = 64;    /* parts of one query */

struct place {
    int64_t tokens, heads, group;
    int64_t row;    /* of qkv: (H + 2G) D elements */
    int64_t kv_row; /* of the cache: G D */
    int64_t room;
    int64_t parts;  /* of a query, at most */
    int64_t blocks; /* of a query */
    int width;
    float scale;
};

place place_of(struct cuda_heads a, int64_t room, int warps)
{
    int64_t queries = a.batch * a.tokens * a.heads;
    int64_t parts = queries < PARTS ? PARTS / queries : 1;
    parts = parts < MOST ? parts : MOST;
    int64_t used = parts < (room + LANES - 1) / LANES ? parts : (room + LANES - 1) / LANES;
    return {a.tokens,
            a.heads,
            a.heads / a.kv_heads,
            (a.heads + 2 * a.kv_heads) * a.width,
            a.kv_heads * a.width,
            room,
            parts,
            (used + warps - 1) / warps,
            (int)a.width,
            (float)(1 / sqrt((double)a.width))};
}

/* Unit is what is copied at a time; sizes here are in units. */
template <typename Unit>
__global__ void put(int64_t items, int64_t tokens, int64_t row, int64_t at, int64_t kv_row,
                    kernel_past past, int64_t room, const Unit *qkv, Unit *cache_k, Unit *cache_v)
{
    int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; /* (b T + t) kv_row + i */
    if (item >= items)
        return;
    int64_t i = item % kv_row, token = item / kv_row, t = token % tokens, b = token / tokens;
    const Unit *from = qkv + token * row + at + i;
    int64_t to = (b * room + past_of(past) + t) * kv_row + i;
    cache_k[to] = from[0];
    cache_v[to] = from[kv_row];
}

template <typename Unit>
cudaError_t run_put(struct cuda_heads a, int64_t units, kernel_past past, int64_t room,
                    const void *qkv, void *cache_k, void *cache_v,
                    cudaStream_t stream) /* units: of one head */
{
    int64_t kv_row = a.kv_heads * units, items = a.batch * a.tokens * kv_row;
    const int threads = 256;
    int64_t blocks = (items + threads - 1) / threads;
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    put<Unit><<<(unsigned)blocks, threads, 0, stream>>>(
        items, a.tokens, (a.heads + 2 * a.kv_heads) * units, a.heads * units, kv_row, past, room,
        (const Unit *)qkv, (Unit *)cache_k, (Unit *)cache_v);
    return cudaGetLastError();
}

__host__ __device__ inline int query_floats(int width)
{
    return 2 * width + LANES;
}

/* A query's parts, (largest, sum, acc (D)) each, to its row of out, by the whole block. The first part
 * is never empty, so the largest score is finite. */
template <typename T>
__device__ inline void put_together(const float *scratch, int parts, int width, T *out)
{
    __shared__ float tops[MOST], sums[MOST], factors[MOST];
    int step = width + 2;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        tops[i] = __ldcg(scratch + i * step);
        sums[i] = __ldcg(scratch + i * step + 1);
    }
    __syncthreads();
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < parts; i++)
        largest = fmaxf(largest, tops[i]);
    for (int i = threadIdx.x; i < parts; i += blockDim.x)
        factors[i] = expf(tops[i] - largest);
    __syncthreads();
    for (int i = 0; i < parts; i++)
        sum += sums[i] * factors[i];
    for (int d = threadIdx.x; d < width; d += blockDim.x) {
        float x = 0;
#pragma unroll 8
        for (int i = 0; i < parts; i++)
            x = fmaf(__ldcg(scratch + i * step + 2 + d), factors[i], x);
        out[d] = from_float<T>(x / sum);
    }
}

/* Whether this block is the last of `blocks` that come here; what all of them wrote can then be read. */
__device__ inline bool comes_last(unsigned *arrived, int64_t blocks)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = blocks == 1 || atomicAdd(arrived, 1u) == blocks - 1;
        if (last)
            *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

template <typename T> __device__ inline void fetch_row(const T *key, const T *value, int width)
{
    const int line = 128 / (int)sizeof(T);
    for (int d = 0; d < width; d += line) {
        fetch_ahead(key + d);
        fetch_ahead(value + d);
    }
}

template <typename T, bool WIDE>
__global__ void attend_cached(place p, kernel_past past_, const T *qkv, T *cache_k, T *cache_v,
                              T *out, float *scratch, unsigned *arrived)
{
    extern __shared__ float memory[];
    follow_let();
    int warps = blockDim.x / LANES, warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t query = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks;
    int64_t h = query % p.heads, token = query / p.heads, b = token / p.tokens;

    /* The cut: parts of whole rounds of a warp, and as many as that makes. */
    int64_t past = past_of(past_), rows = past + p.tokens;
    int64_t part = ((rows + p.parts - 1) / p.parts + LANES - 1) / LANES * LANES;
    int64_t parts = (rows + part - 1) / part, blocks = (parts + warps - 1) / warps;
    int64_t mine = block * warps + warp, first = mine * part;
    int64_t last = first + part, count = past + token % p.tokens + 1;
    last = last < count ? last : count;

    /* The wait is for q; keys and values of the past are there. */
    int64_t at = b * p.room * p.kv_row + h / p.group * p.width;
    for (int64_t j = first + lane; p.tokens == 1 && j < last; j += LANES)
        fetch_row(cache_k + at + j * p.kv_row, cache_v + at + j * p.kv_row, p.width);
    follow_wait();
    if (block >= blocks)
        return;
    if (mine < parts) {
        const T *from = qkv + token * p.row;
        if (p.tokens == 1 && first <= past && past < last) {
            const T *key = from + p.heads * p.width + h / p.group * p.width;
            for (int d = lane; d < p.width; d += LANES) {
                cache_k[at + past * p.kv_row + d] = key[d];
                cache_v[at + past * p.kv_row + d] = key[p.kv_row + d];
            }
        }
        float *q = memory + warp * query_floats(p.width), *acc = q + p.width;
        fetch(q, from + h * p.width, p.width, lane);
        clear(acc, p.width, lane);
        __syncwarp();
        softmax s = over_keys<T, WIDE>(q, cache_k + at, cache_v + at, p.kv_row, first, last,
                                       p.scale, p.width, lane, acc + p.width, acc);
        float *to = scratch + (query * p.parts + mine) * (p.width + 2);
        for (int d = lane; d < p.width; d += LANES) {
            if (parts == 1)
                out[query * p.width + d] = from_float<T>(acc[d] / s.sum);
            else
                to[2 + d] = acc[d];
        }
        if (lane == 0 && parts > 1) {
            to[0] = s.largest;
            to[1] = s.sum;
        }
    }
    if (parts > 1 && comes_last(arrived + query, blocks))
        put_together(scratch + query * p.parts * (p.width + 2), (int)parts, p.width,
                     out + query * p.width);
}

template <typename T, bool WIDE>
cudaError_t run(struct cuda_heads a, kernel_past past, int64_t room, const void *qkv, void *cache_k,
                void *cache_v, void *out, float *scratch, unsigned *arrived, cudaStream_t stream)
{
    int64_t queries = a.batch * a.tokens * a.heads;
    int warps = warps_for(query_floats((int)a.width));
    if (queries > PARTS / 2) /* one part each */
        warps = warps < 1 ? warps : 1;
    if (warps == 0)
        return cudaErrorInvalidConfiguration;
    place p = place_of(a, room, warps);
    if (queries * p.blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    size_t shared_bytes = (size_t)(warps * query_floats(p.width)) * sizeof(float);
    return follow(attend_cached<T, WIDE>, queries * p.blocks, warps * LANES, shared_bytes, stream,
                  p, past, qkv, cache_k, cache_v, out, scratch, arrived);
}

} // namespace

static_assert(CUDA_CACHED_ARRIVED == PARTS / 2, "queries of several parts");

size_t cuda_attend_cached_scratch(int64_t width)
{
    return (size_t)(PARTS * (width + 2)) * sizeof(float);
}

cudaError_t cuda_attend_cached(int type, struct cuda_heads a, struct kernel_past past, int64_t room,
                               const void *qkv, void *cache_k, void *cache_v, void *out,
                               float *scratch, unsigned *arrived, cudaStream_t stream)
{
    bool wide = pieces_of_16(type, a.width, cache_k, cache_v) && (uintptr_t)qkv % 16 == 0;
    int64_t bytes = a.width * (type == DTYPE_F32 ? 4 : 2);
    cudaError_t error = cudaSuccess;
    if (a.tokens > 1)
        error = wide ? run_put<uint4>(a, bytes / 16, past, room, qkv, cache_k, cache_v, stream)
                     : run_put<uint16_t>(a, bytes / 2, past, room, qkv, cache_k, cache_v, stream);
    if (error != cudaSuccess)
        return error;
#define CALL(T, WIDE) \
    run<T, WIDE>(a, past, room, qkv, cache_k, cache_v, out, scratch, arrived, stream)
    return ATTEND_BY_TYPE(type, wide, CALL);
#undef CALL
}
