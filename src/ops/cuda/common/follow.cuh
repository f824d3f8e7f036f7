/* follow -- kernels of a recording that start before their predecessor has ended (programmatic
 * dependent launch).
 *
 * A token of a small model is a chain of short kernels, and much of the time passes between the
 * end of one and the start of the next. In a recording (device.h), on compute capability 9.0 and
 * later, launches made here overlap with the previous kernel: blocks are scheduled as soon as all
 * blocks of that kernel have called follow_let, and stop in follow_wait until everything it wrote
 * is visible. So a kernel
 *
 * - calls follow_wait in every thread before it reads anything that may have been written on the
 * stream, and before it writes. It may read earlier what no kernel of the recording writes:
 * weights, and the position, which is copied before the first of them starts;
 * - calls follow_let early: the next kernel waits for all of it anyway.
 *
 * Since each kernel waits for its predecessor, which did the same, all older kernels have ended,
 * too. Outside a recording a launch is ordinary and the two calls do nothing.
 */
#ifndef OPS_CUDA_FOLLOW_CUH
#define OPS_CUDA_FOLLOW_CUH
#include <cuda_runtime.h>
#include "ops/cuda/kernels.h"

/* May be called before follow_wait: it bypasses L1. */
static __device__ inline int64_t past_of(const kernel_past &past)
{
    return past.at ? __ldcg(past.at) : past.count;
}

/* Prefetches to L2. Call it before follow_wait, for data that is read late in the kernel. */
static __device__ inline void fetch_ahead(const void *at)
{
    asm volatile("prefetch.L2 [%0];" ::"l"(at));
}

static __device__ inline void follow_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ inline void follow_let()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static inline bool follow_overlaps(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    int gpu = 0, major = 0;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
        status != cudaStreamCaptureStatusActive)
        return false;
    return cudaGetDevice(&gpu) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) == cudaSuccess &&
           major >= 9;
}

/* kernel<<<blocks, threads, shared_bytes, stream>>>(args...), for a kernel that follows the rules
 * above. */
template <typename... P, typename... A>
static inline cudaError_t follow(void (*kernel)(P...), int64_t blocks, int threads,
                                 size_t shared_bytes, cudaStream_t stream, A... args)
{
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = follow_overlaps(stream) ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, (P)args...);
}

#endif
