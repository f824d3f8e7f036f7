/* follow -- kernels of a recording that begin before the one before them has ended.
 *
 * A token of a small model is a chain of short kernels, and much of their time is the way from the end
 * of one to the beginning of the next. In a recording (device.h), on GPUs from 9.0 on, launches made
 * here overlap with the kernel before: blocks come to the GPU as soon as all blocks of that one have
 * said follow_let, and stop in follow_wait until all it wrote can be read. So a kernel
 *
 *   - calls follow_wait in every thread, before it reads what may have been written on the stream, and
 *     before it writes anything. What no kernel of the recording writes may be read before: weights, and
 *     the position, which is copied before the first of them begins;
 *   - calls follow_let early: the next one waits for all of it in any case.
 *
 * Since each waits for the one before, which did the same, all that is older has ended, too. Elsewhere
 * a launch is a plain one and the two calls are nothing. SIFR_CUDA_GRAPH=serial leaves it out.
 */
#ifndef OPS_CUDA_FOLLOW_CUH
#define OPS_CUDA_FOLLOW_CUH
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include "ops/cuda/kernels.h"

/* May be called before follow_wait: it does not ask what lies near the multiprocessor. */
static __device__ inline int64_t past_of(const kernel_past &past)
{
    return past.at ? __ldcg(past.at) : past.count;
}

/* The bytes around it come nearer, whoever will read them: before follow_wait, for what is read at the
 * end of a chain. */
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
    const char *way = getenv("SIFR_CUDA_GRAPH");
    return !(way && !strcmp(way, "serial")) && cudaGetDevice(&gpu) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) == cudaSuccess &&
           major >= 9;
}

/* kernel<<<blocks, threads, shared_bytes, stream>>>(args...), for a kernel that keeps the rules. */
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
