/* kernels -- launchers of the CUDA kernels: extern "C", raw pointers, a CUDA stream.
 *
 * Seen by C and by CUDA C++ alike, so it includes nothing of sifr but dtype's numbers. A launcher
 * only enqueues and returns the launch's error. Contracts are those of ops/ops.h; `type` is the
 * compute type (enum dtype).
 */
#ifndef OPS_CUDA_KERNELS_H
#define OPS_CUDA_KERNELS_H
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif

#endif
