/* cuda_attention_plain -- causal attention for every type and width, one warp per row: used for
 * exact f32 and for heads wider than 256. fp32 inside, no atomics; correct rather than fast.
 *
 * Backward: sums[b, h, t] = dout . out; then dq with one warp per query, dk and dv with one warp
 * per key, each recomputing the probabilities from lse.
 */
#include "ops/cuda/attention/cuda_attend.cuh"

namespace
{

using namespace attend;

struct place { /* the layout of one attention, strides in elements */
    int64_t tokens, heads, kv_heads, group;
    int64_t row;     /* of qkv: (H + 2G) D */
    int64_t out_row; /* H D */
    int width;
    int64_t window;
    scoring how;
};

place place_of(struct cuda_heads a)
{
    return {a.tokens,
            a.heads,
            a.kv_heads,
            a.heads / a.kv_heads,
            (a.heads + 2 * a.kv_heads) * a.width,
            a.heads * a.width,
            (int)a.width,
            a.window,
            {a.scale, a.cap}};
}

/* The first key that query t sees. */
__device__ int64_t first_key(const place &p, int64_t t)
{
    return t >= p.window ? t - p.window + 1 : 0;
}

/* The calling warp's item, and its part of the block's shared memory. */
__device__ int64_t item_of()
{
    return (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
}

__device__ float *share_of(int floats)
{
    extern __shared__ float memory[];
    return memory + threadIdx.x / WARP * floats;
}

__host__ __device__ inline int forward_floats(int width)
{
    return 2 * width + WARP;
}

template <typename T, bool WIDE>
__global__ void forward(place p, int64_t items, const T *qkv, T *out, float *lse)
{
    int64_t item = item_of(); /* ((b H) + h) T + t */
    int lane = threadIdx.x % WARP;
    if (item >= items)
        return;
    int64_t t = item % p.tokens, h = item / p.tokens % p.heads, b = item / p.tokens / p.heads;
    const T *sequence = qkv + b * p.tokens * p.row;
    const T *keys = sequence + (p.heads + h / p.group) * p.width;
    const T *values = keys + p.kv_heads * p.width;
    float *q = share_of(forward_floats(p.width)), *acc = q + p.width, *weights = acc + p.width;
    fetch(q, sequence + t * p.row + h * p.width, p.width, lane);
    clear(acc, p.width, lane);
    __syncwarp();
    softmax s = over_keys<T, WIDE>(q, keys, values, p.row, first_key(p, t), t + 1, p.how, p.width,
                                   lane, weights, acc);
    T *to = out + (b * p.tokens + t) * p.out_row + h * p.width;
    for (int d = lane; d < p.width; d += WARP)
        to[d] = rounded<T>(acc[d] / s.sum);
    if (lane == 0)
        lse[item] = s.largest + logf(s.sum);
}

template <typename T>
__global__ void row_sums(place p, int64_t items, const T *out, const T *dout, float *sums)
{
    int64_t item = item_of();
    int lane = threadIdx.x % WARP;
    if (item >= items)
        return;
    int64_t t = item % p.tokens, h = item / p.tokens % p.heads, b = item / p.tokens / p.heads;
    int64_t at = (b * p.tokens + t) * p.out_row + h * p.width;
    float sum = 0;
    for (int d = lane; d < p.width; d += WARP)
        sum = fmaf(widen(out[at + d]), widen(dout[at + d]), sum);
    sum = warp_sum(sum);
    if (lane == 0)
        sums[item] = sum;
}

__host__ __device__ inline int query_floats(int width)
{
    return 3 * width + WARP;
}

template <typename T, bool WIDE>
__global__ void query_gradients(place p, int64_t items, const T *qkv, const T *dout,
                                const float *lse, const float *sums, T *dqkv)
{
    int64_t item = item_of();
    int lane = threadIdx.x % WARP;
    if (item >= items)
        return;
    int64_t t = item % p.tokens, h = item / p.tokens % p.heads, b = item / p.tokens / p.heads;
    const T *sequence = qkv + b * p.tokens * p.row;
    const T *keys = sequence + (p.heads + h / p.group) * p.width;
    const T *values = keys + p.kv_heads * p.width;
    float *q = share_of(query_floats(p.width)), *dy = q + p.width, *acc = dy + p.width;
    float *ds = acc + p.width;
    fetch(q, sequence + t * p.row + h * p.width, p.width, lane);
    fetch(dy, dout + (b * p.tokens + t) * p.out_row + h * p.width, p.width, lane);
    clear(acc, p.width, lane);
    __syncwarp();
    const int64_t first = first_key(p, t);
    for (int64_t j = first; j <= t; j += WARP) {
        int count = t + 1 - j < WARP ? (int)(t + 1 - j) : WARP;
        float slope = 0;
        if (lane < count) {
            float score = score_of(p.how, dot<T, WIDE>(q, keys + (j + lane) * p.row, p.width));
            float dp = dot<T, WIDE>(dy, values + (j + lane) * p.row, p.width);
            slope = t > first
                        ? score_slope(p.how, score) * expf(score - lse[item]) * (dp - sums[item])
                        : 0;
        }
        ds[lane] = slope;
        __syncwarp();
        add_rows<T, WIDE>(acc, ds, keys + j * p.row, p.row, count, p.width, lane);
        __syncwarp();
    }
    T *to = dqkv + (b * p.tokens + t) * p.row + h * p.width;
    for (int d = lane; d < p.width; d += WARP)
        to[d] = rounded<T>(acc[d]);
}

__host__ __device__ inline int key_floats(int width)
{
    return 4 * width + 2 * WARP;
}

template <typename T, bool WIDE>
__global__ void key_gradients(place p, int64_t items, const T *qkv, const T *dout, const float *lse,
                              const float *sums, T *dqkv)
{
    int64_t item = item_of(); /* ((b G) + g) T + j */
    int lane = threadIdx.x % WARP;
    if (item >= items)
        return;
    int64_t j = item % p.tokens, g = item / p.tokens % p.kv_heads;
    int64_t b = item / p.tokens / p.kv_heads;
    int64_t at_key = (b * p.tokens + j) * p.row + (p.heads + g) * p.width;
    int64_t at_value = at_key + p.kv_heads * p.width;
    float *k = share_of(key_floats(p.width)), *v = k + p.width, *dk = v + p.width;
    float *dv = dk + p.width, *weights = dv + p.width, *ds = weights + WARP;
    fetch(k, qkv + at_key, p.width, lane);
    fetch(v, qkv + at_value, p.width, lane);
    clear(dk, p.width, lane);
    clear(dv, p.width, lane);
    __syncwarp();
    for (int64_t h = g * p.group; h < (g + 1) * p.group; h++) {
        const T *queries = qkv + b * p.tokens * p.row + h * p.width;
        const T *gradients = dout + b * p.tokens * p.out_row + h * p.width;
        int64_t at_row = (b * p.heads + h) * p.tokens;
        const int64_t end = p.tokens - j > p.window ? j + p.window : p.tokens;
        for (int64_t t = j; t < end; t += WARP) {
            int count = end - t < WARP ? (int)(end - t) : WARP;
            float weight = 0, slope = 0;
            if (lane < count) {
                float score =
                    score_of(p.how, dot<T, WIDE>(k, queries + (t + lane) * p.row, p.width));
                float dp = dot<T, WIDE>(v, gradients + (t + lane) * p.out_row, p.width);
                weight = expf(score - lse[at_row + t + lane]);
                slope = t + lane > first_key(p, t + lane)
                            ? score_slope(p.how, score) * weight * (dp - sums[at_row + t + lane])
                            : 0;
            }
            weights[lane] = weight;
            ds[lane] = slope;
            __syncwarp();
            add_rows<T, WIDE>(dv, weights, gradients + t * p.out_row, p.out_row, count, p.width,
                              lane);
            add_rows<T, WIDE>(dk, ds, queries + t * p.row, p.row, count, p.width, lane);
            __syncwarp();
        }
    }
    for (int d = lane; d < p.width; d += WARP) {
        dqkv[at_key + d] = rounded<T>(dk[d]);
        dqkv[at_value + d] = rounded<T>(dv[d]);
    }
}

struct launch {
    unsigned blocks, threads;
    size_t shared_bytes;
};

/* False: the width needs more shared memory than there is, or there are more rows than blocks. */
bool launch_for(int64_t items, int64_t floats, launch *l)
{
    int warps = warps_for(floats);
    if (warps == 0 || (items + warps - 1) / warps > INT32_MAX)
        return false;
    *l = {(unsigned)((items + warps - 1) / warps), (unsigned)(warps * WARP),
          (size_t)(warps * floats) * sizeof(float)};
    return true;
}

template <typename T, bool WIDE>
cudaError_t run_forward(struct cuda_heads a, const void *qkv, void *out, float *lse,
                        cudaStream_t stream)
{
    place p = place_of(a);
    int64_t items = a.batch * a.heads * a.tokens;
    launch l;
    if (!launch_for(items, forward_floats(p.width), &l))
        return cudaErrorInvalidConfiguration;
    forward<T, WIDE>
        <<<l.blocks, l.threads, l.shared_bytes, stream>>>(p, items, (const T *)qkv, (T *)out, lse);
    return cudaGetLastError();
}

template <typename T>
cudaError_t run_sums(struct cuda_heads a, const void *out, const void *dout, float *sums,
                     cudaStream_t stream)
{
    int64_t items = a.batch * a.heads * a.tokens;
    launch l;
    if (!launch_for(items, 0, &l))
        return cudaErrorInvalidConfiguration;
    row_sums<T><<<l.blocks, l.threads, l.shared_bytes, stream>>>(place_of(a), items, (const T *)out,
                                                                 (const T *)dout, sums);
    return cudaGetLastError();
}

template <typename T, bool WIDE>
cudaError_t run_backward(struct cuda_heads a, const void *qkv, const void *out, const float *lse,
                         const void *dout, void *dqkv, float *sums, cudaStream_t stream)
{
    place p = place_of(a);
    int64_t queries = a.batch * a.heads * a.tokens, keys = a.batch * a.kv_heads * a.tokens;
    launch dq, dkv;
    if (!launch_for(queries, query_floats(p.width), &dq) ||
        !launch_for(keys, key_floats(p.width), &dkv))
        return cudaErrorInvalidConfiguration;
    cudaError_t error = run_sums<T>(a, out, dout, sums, stream);
    if (error != cudaSuccess)
        return error;
    query_gradients<T, WIDE><<<dq.blocks, dq.threads, dq.shared_bytes, stream>>>(
        p, queries, (const T *)qkv, (const T *)dout, lse, sums, (T *)dqkv);
    key_gradients<T, WIDE><<<dkv.blocks, dkv.threads, dkv.shared_bytes, stream>>>(
        p, keys, (const T *)qkv, (const T *)dout, lse, sums, (T *)dqkv);
    return cudaGetLastError();
}

} // namespace

cudaError_t cuda_attend_forward(int type, struct cuda_heads a, const void *qkv, void *out,
                                float *lse, cudaStream_t stream)
{
#define CALL(T, WIDE) run_forward<T, WIDE>(a, qkv, out, lse, stream)
    return ATTEND_BY_TYPE(type, units_of_16(type, a.width, qkv, qkv), CALL);
#undef CALL
}

cudaError_t cuda_attend_sums(int type, struct cuda_heads a, const void *out, const void *dout,
                             float *sums, cudaStream_t stream)
{
    return type == DTYPE_F32    ? run_sums<float>(a, out, dout, sums, stream)
           : type == DTYPE_BF16 ? run_sums<__nv_bfloat16>(a, out, dout, sums, stream)
                                : run_sums<__half>(a, out, dout, sums, stream);
}

cudaError_t cuda_attend_backward(int type, struct cuda_heads a, const void *qkv, const void *out,
                                 const float *lse, const void *dout, void *dqkv, float *sums,
                                 cudaStream_t stream)
{
#define CALL(T, WIDE) run_backward<T, WIDE>(a, qkv, out, lse, dout, dqkv, sums, stream)
    return ATTEND_BY_TYPE(type, units_of_16(type, a.width, qkv, dout), CALL);
#undef CALL
}
