/* cuda_cached -- attention of a few new positions over a cache of keys and values, of any shape.
 * One position with common head widths takes cuda_cached_one.cu, which is faster.
 *
 * New keys and values are written to the cache first. For a single new position the warps that
 * reach it write it themselves: all heads of a group write the same bytes, and each reads what it
 * wrote.
 */
#include "ops/cuda/attention/cuda_cached.cuh"

namespace
{

using namespace attend;
using namespace cached;

/* Unit is the unit of copying; sizes here are in units. */
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
    return 2 * width + WARP;
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
    int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int block = blockIdx.x % p.blocks, number = blockIdx.x / p.blocks;
    int h = number % p.heads, token = number / p.heads, b = token / p.tokens;
    int64_t query = number, past = past_of(past_);
    const int base = first_seen(p, (int)past);
    cut cut = cut_of(p, (int)past + p.tokens - base, warps);
    int mine = block * warps + warp;
    int64_t first = base + (int64_t)mine * cut.part;
    int64_t last = first + cut.part, count = past + token % p.tokens + 1;
    const int64_t seen = first_seen(p, (int)count - 1);
    first = first > seen ? first : seen;
    last = last < count ? last : count;

    /* The wait is for q; keys and values of the past are already in the cache. */
    int64_t at = b * p.room * p.kv_row + h / p.group * p.width;
    for (int64_t j = first + lane; p.tokens == 1 && j < last; j += WARP)
        fetch_row(cache_k + at + j * p.kv_row, cache_v + at + j * p.kv_row, p.width);
    follow_wait();
    if (block >= cut.blocks)
        return;
    if (mine < cut.parts) {
        const T *from = qkv + token * p.row;
        if (p.tokens == 1 && first <= past && past < last) {
            const T *key = from + p.heads * p.width + h / p.group * p.width;
            for (int d = lane; d < p.width; d += WARP) {
                cache_k[at + past * p.kv_row + d] = key[d];
                cache_v[at + past * p.kv_row + d] = key[p.kv_row + d];
            }
        }
        float *q = memory + warp * query_floats(p.width), *acc = q + p.width;
        fetch(q, from + h * p.width, p.width, lane);
        clear(acc, p.width, lane);
        __syncwarp();
        softmax s = over_keys<T, WIDE>(q, cache_k + at, cache_v + at, p.kv_row, first, last, p.how,
                                       p.width, lane, acc + p.width, acc);
        float *to = scratch + (query * p.parts + mine) * (p.width + 2);
        for (int d = lane; d < p.width; d += WARP) {
            if (cut.parts == 1)
                out[query * p.width + d] = rounded<T>(acc[d] / s.sum);
            else
                to[2 + d] = acc[d];
        }
        if (lane == 0 && cut.parts > 1) {
            to[0] = s.largest;
            to[1] = s.sum;
        }
    }
    if (cut.parts > 1 && comes_last(arrived + query, cut.blocks))
        put_together(scratch + query * p.parts * (p.width + 2), cut.parts, p.width,
                     out + query * p.width);
}

template <typename T, bool WIDE>
cudaError_t run(struct cuda_heads a, kernel_past past, int64_t room, const void *qkv, void *cache_k,
                void *cache_v, void *out, float *scratch, unsigned *arrived, cudaStream_t stream)
{
    int64_t queries = a.batch * a.tokens * a.heads;
    int warps = warps_for(query_floats((int)a.width));
    if (queries > PARTS / 2) /* one part per query */
        warps = warps < 1 ? warps : 1;
    if (warps == 0)
        return cudaErrorInvalidConfiguration;
    place p = place_of(a, room, warps);
    if (queries * p.blocks > INT32_MAX || room > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    size_t shared_bytes = (size_t)(warps * query_floats(p.width)) * sizeof(float);
    return follow(attend_cached<T, WIDE>, queries * p.blocks, warps * WARP, shared_bytes, stream, p,
                  past, qkv, cache_k, cache_v, out, scratch, arrived);
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
    bool wide = units_of_16(type, a.width, cache_k, cache_v) && (uintptr_t)qkv % 16 == 0;
    int64_t bytes = a.width * (type == DTYPE_F32 ? 4 : 2);
    cudaError_t error = cudaSuccess;
    if (takes_one(type, a, wide))
        return attend_one(type, a, past, room, qkv, cache_k, cache_v, out, scratch, arrived,
                          stream);
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
