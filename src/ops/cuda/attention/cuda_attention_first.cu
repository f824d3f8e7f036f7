/* cuda_attention_first -- keeps rounding out of dq and dk where cuDNN does the backward pass.
 *
 * The first query of a sequence sees one key: its dS is 0, but cuDNN computes dP - dout . out,
 * which is rounding. We cannot change its kernels, but lse is ours: with a huge one the query's P,
 * and with it dS, is exactly 0. What dv then lacks, P dout with P = 1, is added afterwards.
 */
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/cuda/common/vector.cuh"

namespace
{

const int THREADS = 256;
const float HUGE_LSE = 1e30f; /* e^(s - lse) is 0 for every score s, also if computed in base 2 */

__global__ void __launch_bounds__(THREADS)
    hide_first(int64_t count, int64_t tokens, int64_t filled, const float *lse, float *hidden)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i % filled;
    if (i < count)
        hidden[i] = t > 0 && t < tokens ? lse[i / filled * tokens + t] : HUGE_LSE;
}

/* A thread has one column of dv in row 0 of a sequence. */
template <typename T>
__global__ void __launch_bounds__(THREADS) add_first(struct cuda_heads a, const T *dout, T *dqkv)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, columns = a.kv_heads * a.width;
    if (i >= a.batch * columns)
        return;
    const int64_t b = i / columns, kv_head = i % columns / a.width, column = i % a.width;
    const int64_t group = a.heads / a.kv_heads, row = (a.heads + 2 * a.kv_heads) * a.width;
    const T *from = dout + (b * a.tokens * a.heads + kv_head * group) * a.width + column;
    T *to = dqkv + b * a.tokens * row + (a.heads + a.kv_heads + kv_head) * a.width + column;
    float sum = widen(*to);
    for (int64_t h = 0; h < group; h++)
        sum = add(sum, widen(from[h * a.width]));
    narrow(sum, to);
}

unsigned blocks_for(int64_t items)
{
    return (unsigned)((items + THREADS - 1) / THREADS);
}

template <typename T>
cudaError_t run_add(struct cuda_heads a, const void *dout, void *dqkv, cudaStream_t stream)
{
    add_first<T><<<blocks_for(a.batch * a.kv_heads * a.width), THREADS, 0, stream>>>(
        a, (const T *)dout, (T *)dqkv);
    return cudaGetLastError();
}

} // namespace

cudaError_t cuda_attend_hide_first(struct cuda_heads a, int64_t filled, const float *lse,
                                   float *hidden, cudaStream_t stream)
{
    const int64_t count = a.batch * a.heads * filled;
    hide_first<<<blocks_for(count), THREADS, 0, stream>>>(count, a.tokens, filled, lse, hidden);
    return cudaGetLastError();
}

cudaError_t cuda_attend_add_first(int type, struct cuda_heads a, const void *dout, void *dqkv,
                                  cudaStream_t stream)
{
    return type == DTYPE_BF16 ? run_add<__nv_bfloat16>(a, dout, dqkv, stream)
                              : run_add<__half>(a, dout, dqkv, stream);
}
