/* matrix_launch -- launchers of the kernels of matrix_attend.cuh. Each type is compiled in a file
 * of its own, cuda_attention_matrix_*.cu, because compilation is slow.
 */
#ifndef OPS_CUDA_MATRIX_LAUNCH_CUH
#define OPS_CUDA_MATRIX_LAUNCH_CUH
#include "ops/cuda/attention/cuda_attention.h"

namespace matrix
{

/* `chunks`: all rows are aligned to 16 bytes and consist of 16-byte units. */
template <typename T>
cudaError_t run_forward(struct cuda_heads a, bool chunks, const void *qkv, void *out, float *lse,
                        cudaStream_t stream);
template <typename T>
cudaError_t run_backward(struct cuda_heads a, bool chunks, const void *qkv, const float *lse,
                         const void *dout, void *dqkv, const float *sums, cudaStream_t stream);

} // namespace matrix

#endif
