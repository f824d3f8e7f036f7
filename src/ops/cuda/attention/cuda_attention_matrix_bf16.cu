/* cuda_attention_matrix_bf16 -- the kernels of matrix_attend.cuh for one type. */
#include "ops/cuda/attention/matrix_run.cuh"

namespace matrix
{

MATRIX_INSTANCES(__nv_bfloat16)

} // namespace matrix
