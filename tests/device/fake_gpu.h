/* fake_gpu -- what a fake library (fake_nccl.c, fake_nvml.c) needs from the simulated GPU. */
#ifndef TESTS_DEVICE_FAKE_GPU_H
#define TESTS_DEVICE_FAKE_GPU_H
#include <cuda_runtime_api.h>
#include "device/cuda/accumulate.h"

enum { FAKE_GPUS = 16 };

/* Memory of a GPU: in total, taken by the first context, and held by other processes, which only
 * the management library can see. */
#define FAKE_GPU_BYTES     ((size_t)16 << 30)
#define FAKE_CONTEXT_BYTES ((size_t)64 << 20)
#define FAKE_OTHERS_BYTES  ((size_t)300 << 20)

/* Run a function in stream order, on the stream's thread. */
void fake_gpu_call(cudaStream_t stream, void (*call)(void *arg), void *arg);
/* Where the bytes behind an address are stored. */
char *fake_gpu_bytes(const void *address);
/* Bytes of a GPU that this process uses. */
__attribute__((visibility("default"))) size_t fake_gpu_in_use(int index);

#endif
