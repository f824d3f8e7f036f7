/* cuda_attention_matrix_f32 -- the kernels of matrix_attend.cuh for one type. */
#include "ops/cuda/attention/matrix_run.cuh"

namespace matrix
{

MATRIX_INSTANCES(float)

} // namespace matrix
