/* fake_gpu -- what a library made of threads needs of a GPU made of threads. */
#ifndef TESTS_DEVICE_FAKE_GPU_H
#define TESTS_DEVICE_FAKE_GPU_H
#include <cuda_runtime_api.h>
#include "device/cuda/accumulate.h"

enum { FAKE_GPUS = 16 };

/* Of a GPU: all of it, what the first to use it takes for a context, and what others hold, of
 * which only the management library knows. */
#define FAKE_GPU_BYTES     ((size_t)16 << 30)
#define FAKE_CONTEXT_BYTES ((size_t)64 << 20)
#define FAKE_OTHERS_BYTES  ((size_t)300 << 20)

/* Run a function in the stream's order, on the stream's thread. */
void fake_gpu_call(cudaStream_t stream, void (*call)(void *arg), void *arg);
/* Where the bytes behind an address are. */
char *fake_gpu_bytes(const void *address);
/* What this process has in use of a GPU. */
__attribute__((visibility("default"))) size_t fake_gpu_in_use(int index);

#endif
