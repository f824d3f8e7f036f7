/* accumulate -- the kernels of the device layer; included by C and CUDA C++. */
#ifndef DEVICE_CUDA_ACCUMULATE_H
#define DEVICE_CUDA_ACCUMULATE_H
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* device_accumulate on a CUDA stream; returns the launch's error. */
cudaError_t cuda_accumulate(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                            enum dtype src_type, int64_t count);
/* device_accumulate_squares, likewise; dst NULL: device_add_squares. */
cudaError_t cuda_accumulate_squares(cudaStream_t stream, float *dst, const void *src,
                                    enum dtype src_type, int64_t count, bool first, double *sums,
                                    double weight);
/* A copy between pinned host memory and the GPU that does not wait for other copies. `bytes` is at
 * least 1. */
enum { CUDA_SMALL_COPY = 256 << 10 }; /* larger ones are faster by a copy engine */
cudaError_t cuda_small_copy(cudaStream_t stream, void *dst, const void *src, size_t bytes);
/* Whether this build has code for the current GPU: cudaSuccess, or the error. */
cudaError_t cuda_probe(void);

#ifdef __cplusplus
}
#endif

#endif
