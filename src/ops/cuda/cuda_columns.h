/* cuda_columns -- a bias and its gradient over the rows of a matrix, where no product's epilogue
 * computes it. Launchers as in kernels.h.
 */
#ifndef OPS_CUDA_CUDA_COLUMNS_H
#define OPS_CUDA_CUDA_COLUMNS_H
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[r][c] += bias[c] */
cudaError_t cuda_add_bias(int type, int64_t rows, int64_t columns, const void *bias, void *y,
                          cudaStream_t stream);
/* sums[c] = sum of x[r][c], or += with `keep`. The order of the sum depends on the shape and on
 * `room` alone; `scratch` has `room` bytes, at least 4 per column. */
cudaError_t cuda_column_sums(int type, int64_t rows, int64_t columns, const void *x, bool keep,
                             void *sums, float *scratch, size_t room, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
