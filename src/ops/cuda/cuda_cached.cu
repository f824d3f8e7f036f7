/* cuda_cached -- attention of a few new positions over a cache of keys and values.
 *
 * Three launches: the new keys and values go into the cache; a warp attends to a part of the past
 * for one query; the parts of a query are put together in their order. The number of parts depends
 * on the shape alone (so do the bits): many when there are few queries, as in decoding, one when
 * there are enough of them to fill the card, as over a prompt; then nothing is put together.
 */
#include "ops/cuda/cuda_attend.cuh"

namespace
{

using namespace attend;

const int64_t PARTS = 4096; /* warps that fill the card: queries times parts is not more */
const int64_t MOST = 64;    /* parts of one query */

struct place {
    int64_t tokens, heads, kv_heads, group;
    int64_t row;    /* of qkv: (H + 2G) D elements */
    int64_t kv_row; /* of the cache: G D */
    int64_t past, room;
    int64_t parts, part; /* how many, of how many rows */
    int width;
    float scale;
};

place place_of(struct cuda_heads a, int64_t past, int64_t room)
{
    int64_t queries = a.batch * a.tokens * a.heads, rows = past + a.tokens;
    int64_t parts = queries < PARTS ? PARTS / queries : 1;
    parts = parts < MOST ? parts : MOST;
    int64_t part = ((rows + parts - 1) / parts + LANES - 1) / LANES * LANES;
    parts = (rows + part - 1) / part;
    return {a.tokens,
            a.heads,
            a.kv_heads,
            a.heads / a.kv_heads,
            (a.heads + 2 * a.kv_heads) * a.width,
            a.kv_heads * a.width,
            past,
            room,
            parts,
            part,
            (int)a.width,
            (float)(1 / sqrt((double)a.width))};
}

/* Unit is what is copied at a time; sizes here are in units. */
template <typename Unit>
__global__ void put(int64_t items, int64_t tokens, int64_t row, int64_t at, int64_t kv_row,
                    int64_t past, int64_t room, const Unit *qkv, Unit *cache_k, Unit *cache_v)
{
    int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; /* (b T + t) kv_row + i */
    if (item >= items)
        return;
    int64_t i = item % kv_row, token = item / kv_row, t = token % tokens, b = token / tokens;
    const Unit *from = qkv + token * row + at + i;
    int64_t to = (b * room + past + t) * kv_row + i;
    cache_k[to] = from[0];
    cache_v[to] = from[kv_row];
}

template <typename Unit>
cudaError_t run_put(struct cuda_heads a, int64_t units, int64_t past, int64_t room, const void *qkv,
                    void *cache_k, void *cache_v, cudaStream_t stream) /* units: of one head */
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

/* A partial result is (largest, sum, acc (D)) in scratch. */
template <typename T, bool WIDE>
__global__ void attend_part(place p, int64_t items, const T *qkv, const T *cache_k,
                            const T *cache_v, T *out, float *scratch)
{
    extern __shared__ float memory[];
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t item = (int64_t)blockIdx.x * (blockDim.x / LANES) + warp; /* (token H + h) parts + i */
    if (item >= items)
        return;
    int64_t query = item / p.parts, h = query % p.heads, token = query / p.heads;
    int64_t b = token / p.tokens, first = item % p.parts * p.part;
    int64_t last = first + p.part, count = p.past + token % p.tokens + 1;
    last = last < count ? last : count;
    int64_t at = b * p.room * p.kv_row + h / p.group * p.width;
    float *q = memory + warp * query_floats(p.width), *acc = q + p.width, *weights = acc + p.width;
    fetch(q, qkv + token * p.row + h * p.width, p.width, lane);
    clear(acc, p.width, lane);
    __syncwarp();
    softmax s = over_keys<T, WIDE>(q, cache_k + at, cache_v + at, p.kv_row, first, last, p.scale,
                                   p.width, lane, weights, acc);
    if (p.parts == 1) {
        for (int d = lane; d < p.width; d += LANES)
            out[query * p.width + d] = from_float<T>(acc[d] / s.sum);
        return;
    }
    float *to = scratch + item * (p.width + 2);
    for (int d = lane; d < p.width; d += LANES)
        to[2 + d] = acc[d];
    if (lane == 0) {
        to[0] = s.largest;
        to[1] = s.sum;
    }
}

/* A warp a query. The first part is never empty, so the largest score is finite. */
template <typename T>
__global__ void put_together(place p, int64_t items, const float *scratch, T *out)
{
    int64_t query = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    int lane = threadIdx.x % LANES;
    if (query >= items)
        return;
    int64_t step = p.width + 2;
    const float *parts = scratch + query * p.parts * step;
    float largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < p.parts; i++)
        largest = fmaxf(largest, parts[i * step]);
    for (int64_t i = 0; i < p.parts; i++)
        sum += parts[i * step + 1] * expf(parts[i * step] - largest);
    for (int d = lane; d < p.width; d += LANES) {
        float x = 0;
        for (int64_t i = 0; i < p.parts; i++)
            x = fmaf(parts[i * step + 2 + d], expf(parts[i * step] - largest), x);
        out[query * p.width + d] = from_float<T>(x / sum);
    }
}

template <typename T, bool WIDE>
cudaError_t run(struct cuda_heads a, int64_t past, int64_t room, const void *qkv,
                const void *cache_k, const void *cache_v, void *out, float *scratch,
                cudaStream_t stream)
{
    place p = place_of(a, past, room);
    int64_t queries = a.batch * a.tokens * a.heads, items = queries * p.parts;
    int warps = warps_for(query_floats(p.width));
    if (warps == 0 || (items + warps - 1) / warps > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    size_t shared_bytes = (size_t)(warps * query_floats(p.width)) * sizeof(float);
    attend_part<T, WIDE>
        <<<(unsigned)((items + warps - 1) / warps), warps * LANES, shared_bytes, stream>>>(
            p, items, (const T *)qkv, (const T *)cache_k, (const T *)cache_v, (T *)out, scratch);
    if (p.parts > 1)
        put_together<T><<<(unsigned)((queries + 3) / 4), 4 * LANES, 0, stream>>>(p, queries,
                                                                                 scratch, (T *)out);
    return cudaGetLastError();
}

} // namespace

size_t cuda_attend_cached_scratch(int64_t width)
{
    return (size_t)(PARTS * (width + 2)) * sizeof(float);
}

cudaError_t cuda_attend_cached(int type, struct cuda_heads a, int64_t past, int64_t room,
                               const void *qkv, void *cache_k, void *cache_v, void *out,
                               float *scratch, cudaStream_t stream)
{
    bool wide = pieces_of_16(type, a.width, cache_k, cache_v) && (uintptr_t)qkv % 16 == 0;
    int64_t bytes = a.width * (type == DTYPE_F32 ? 4 : 2);
    cudaError_t error =
        wide ? run_put<uint4>(a, bytes / 16, past, room, qkv, cache_k, cache_v, stream)
             : run_put<uint16_t>(a, bytes / 2, past, room, qkv, cache_k, cache_v, stream);
    if (error != cudaSuccess)
        return error;
#define CALL(T, WIDE) run<T, WIDE>(a, past, room, qkv, cache_k, cache_v, out, scratch, stream)
    return ATTEND_BY_TYPE(type, wide, CALL);
#undef CALL
}
