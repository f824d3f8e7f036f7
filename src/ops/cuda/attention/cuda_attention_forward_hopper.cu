/* cuda_attention_forward_hopper -- the forward pass of attention for compute capability 9.0: heads
 * of width 8 to 128 in steps of 8, 16-bit types, any length. One launch, no scratch. One block per
 * multiprocessor works through its list (hopper_forward_tiles.cuh) with one warp that loads tiles
 * and two or three warpgroups that compute (hopper_forward.cuh).
 *
 * This file is compiled for sm_90a only (cmake/cuda.cmake): no other GPU has wgmma and setmaxnreg.
 */
#include <math.h>
#include "base/dtype.h"
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/cuda/attention/hopper_forward.cuh"
#include "ops/cuda/attention/hopper_heads.cuh"

namespace
{

using namespace hopper;

/* The producer is one thread of the first warpgroup; the other warpgroups get the registers that
 * it does not need. */
template <class W, typename T>
__global__ void __launch_bounds__(W::THREADS, 1)
    attend_forward(const __grid_constant__ CUtensorMap queries,
                   const __grid_constant__ CUtensorMap keys,
                   const __grid_constant__ forward::problem p, T *out, float *lse)
{
    extern __shared__ __align__(1024) char raw[];
    forward::memory<W> &m = *reinterpret_cast<forward::memory<W> *>(raw);
    if (threadIdx.x == 0) {
        if (shared_address(raw) % 1024) /* the layout of tiles relies on this */
            __trap();
        forward::init_barriers(m);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<W::FEWER>();
        if (threadIdx.x == 0)
            forward::produce(m, p, &queries, &keys);
    } else {
        more_registers<W::MORE>();
        forward::attend(m, p, out, lse);
    }
}

/* Rounds of whole heads. The remaining heads are distributed tile by tile; if they are few, or
 * none, the last round is too, so that the GPU does not end with the longest of few tiles. */
int rounds_of(int64_t heads, int64_t blocks)
{
    const int64_t rounds = heads / blocks, left = heads % blocks;
    return (int)(rounds > 0 && 2 * left < blocks ? rounds - 1 : rounds);
}

template <class W, typename T>
cudaError_t run_forward(struct cuda_heads a, const void *qkv, void *out, float *lse, int processors,
                        cudaStream_t stream)
{
    static_assert(sizeof(forward::memory<W>) <= 227 * 1024, "too much");
    const int64_t length = (a.tokens + W::STEP - 1) / W::STEP * W::STEP;
    const int64_t heads = a.batch * a.heads, tiles = (length + W::QUERIES - 1) / W::QUERIES;
    const int64_t blocks = heads * tiles < processors ? heads * tiles : processors;
    forward::problem p = {};
    p.tokens = (int)a.tokens;
    p.heads = (int)a.heads;
    p.kv_heads = (int)a.kv_heads;
    p.group = (int)(a.heads / a.kv_heads);
    p.width = (int)a.width;
    p.sequences = (int)a.batch;
    p.tiles = (int)tiles;
    p.spare = (int)(tiles * W::QUERIES - length);
    p.rounds = rounds_of(heads, blocks);
    p.window = (int)a.window;
    p.scale = a.scale;

    encode_fn encode;
    CUtensorMap queries, keys;
    cudaError_t error = find_encode(&encode);
    if (error == cudaSuccess)
        error = map_tiles<T>(encode, qkv, a, a.heads + 2 * a.kv_heads, W::QUERIES, &queries);
    if (error == cudaSuccess)
        error = map_tiles<T>(encode, qkv, a, a.heads + 2 * a.kv_heads, forward::KEYS, &keys);
    if (error == cudaSuccess)
        error =
            cudaFuncSetAttribute(attend_forward<W, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)sizeof(forward::memory<W>));
    if (error != cudaSuccess)
        return error;
    attend_forward<W, T><<<(unsigned)blocks, W::THREADS, sizeof(forward::memory<W>), stream>>>(
        queries, keys, p, (T *)out, lse);
    return cudaGetLastError();
}

template <typename T, typename... R> cudaError_t run_width(struct cuda_heads a, R... rest)
{
    const bool windowed = a.window < a.tokens;
    switch (cuda_attend_hopper_columns(a)) {
    case 32: return run_forward<forward::way<32, false>, T>(a, rest...);
    case 64:
        return windowed ? run_forward<forward::way<64, true>, T>(a, rest...)
                        : run_forward<forward::way<64, false>, T>(a, rest...);
    default:
        return windowed ? run_forward<forward::way<128, true>, T>(a, rest...)
                        : run_forward<forward::way<128, false>, T>(a, rest...);
    }
}

} // namespace

bool cuda_attend_forward_hopper_takes(int type, struct cuda_heads a)
{
    return (type == DTYPE_BF16 || type == DTYPE_F16) && a.width > 0 && a.width <= 128 &&
           a.width % 8 == 0 && a.tokens > 0 && a.batch * a.heads * a.tokens <= INT32_MAX &&
           !(a.cap > 0);
}

cudaError_t cuda_attend_forward_hopper(int type, struct cuda_heads a, const void *qkv, void *out,
                                       float *lse, int processors, cudaStream_t stream)
{
    return type == DTYPE_BF16 ? run_width<__nv_bfloat16>(a, qkv, out, lse, processors, stream)
                              : run_width<__half>(a, qkv, out, lse, processors, stream);
}
