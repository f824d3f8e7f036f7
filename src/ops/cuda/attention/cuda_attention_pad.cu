/* cuda_attention_pad -- copies heads of one width to heads of another, for kernels that need rows
 * of full 16-byte units. Four elements at a time if both widths are multiples of four.
 */
#include "ops/cuda/attention/cuda_attention.h"

namespace
{

const int THREADS = 256, HEADS = 64; /* per block */

/* W is the unit of copying; widths are in units. */
template <typename W>
__global__ void __launch_bounds__(THREADS)
    resize_heads(int64_t heads, int from_width, int to_width, const W *from, W *to)
{
    const int64_t first = (int64_t)blockIdx.x * HEADS;
    const int count = heads - first < HEADS ? (int)(heads - first) : HEADS;
    from += first * from_width;
    to += first * to_width;
    for (int i = threadIdx.x; i < count * to_width; i += THREADS) {
        const int head = i / to_width, column = i % to_width;
        to[i] = column < from_width ? from[head * from_width + column] : W{};
    }
}

template <typename W>
cudaError_t resize(int64_t heads, int64_t from_width, int64_t to_width, const void *from, void *to,
                   cudaStream_t stream)
{
    const int64_t elements = sizeof(W) / 2, blocks = (heads + HEADS - 1) / HEADS;
    resize_heads<W><<<(unsigned)blocks, THREADS, 0, stream>>>(
        heads, (int)(from_width / elements), (int)(to_width / elements), (const W *)from, (W *)to);
    return cudaGetLastError();
}

} // namespace

cudaError_t cuda_resize_heads(int64_t heads, int64_t from_width, int64_t to_width, const void *from,
                              void *to, cudaStream_t stream)
{
    return from_width % 4 || to_width % 4
               ? resize<uint16_t>(heads, from_width, to_width, from, to, stream)
               : resize<uint2>(heads, from_width, to_width, from, to, stream);
}
