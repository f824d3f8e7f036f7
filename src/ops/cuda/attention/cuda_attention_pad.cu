/* cuda_attention_pad -- copies heads of one width to heads of another, for kernels that need rows
 * of full 16-byte units, and sequences of one length to sequences of another, for kernels that need
 * full tiles. Heads are copied four elements at a time if both widths are multiples of four.
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

enum { PACKS = 4 }; /* of a thread, 16 bytes each */

__global__ void __launch_bounds__(THREADS)
    resize_sequences(int64_t sequences, int64_t from_packs, int64_t to_packs, const uint4 *from,
                     uint4 *to)
{
    const int64_t first = (int64_t)blockIdx.x * THREADS * PACKS + threadIdx.x;
    for (int64_t s = blockIdx.y; s < sequences; s += gridDim.y)
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int64_t i = first + k * THREADS;
            if (i < to_packs)
                to[s * to_packs + i] = i < from_packs ? from[s * from_packs + i] : uint4{};
        }
}

} // namespace

cudaError_t cuda_resize_sequences(int64_t sequences, int64_t from_tokens, int64_t to_tokens,
                                  int64_t row_bytes, const void *from, void *to,
                                  cudaStream_t stream)
{
    const int64_t row = row_bytes / 16, packs = to_tokens * row, most = 65535;
    const dim3 blocks((unsigned)((packs + THREADS * PACKS - 1) / (THREADS * PACKS)),
                      (unsigned)(sequences < most ? sequences : most));
    resize_sequences<<<blocks, THREADS, 0, stream>>>(sequences, from_tokens * row, packs,
                                                     (const uint4 *)from, (uint4 *)to);
    return cudaGetLastError();
}

cudaError_t cuda_resize_heads(int64_t heads, int64_t from_width, int64_t to_width, const void *from,
                              void *to, cudaStream_t stream)
{
    return from_width % 4 || to_width % 4
               ? resize<uint16_t>(heads, from_width, to_width, from, to, stream)
               : resize<uint2>(heads, from_width, to_width, from, to, stream);
}
