/* cuda -- what the CUDA back ends of device, ops and comm share: the GPU behind a device, the
 * handle behind a stream, and what becomes of an error.
 *
 * Only folders named cuda and nccl include it. All of them are in one shared object, libsifr-cuda,
 * that is loaded when a run asks for a GPU (base/plugin.h); it carries its own copies of base and
 * device, which have no state of their own.
 */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H
#include <cuda_runtime_api.h>
#include "device/cuda/nvml.h"
#include "device/device_impl.h"

struct cuda_device {
    struct device base;
    int index;      /* of the GPU, made current by whoever calls into the driver */
    int processors; /* multiprocessors */
    int capability; /* 90 = 9.0 */
    size_t l2_bytes;
    char name[64]; /* "NVIDIA H200" */
    struct nvml nvml;
    size_t others_bytes; /* in use before this process was there; 0 without NVML */
};

struct worker;

enum { CUDA_NOTED = 4 }; /* launches that a stream remembers, for its last words */

struct cuda_stream {
    struct stream base;
    cudaStream_t handle;
    struct worker *worker; /* NULL on a plain stream */
    bool in_task;          /* plain: its caller runs a task of it */
    char *stage;           /* plain: pinned, two halves; see stream_cuda.c */
    size_t stage_used;     /* of the half in use */
    int stage_half;
    cudaEvent_t stage_read[2];     /* the GPU has read this half */
    const char *noted[CUDA_NOTED]; /* what was enqueued last */
    unsigned noted_count;
};

static inline struct cuda_device *cuda_device_of(struct device *device)
{
    return (struct cuda_device *)device;
}

static inline cudaStream_t cuda_handle(struct stream *stream)
{
    return ((struct cuda_stream *)stream)->handle;
}

/* What leaves the shared object. */
#define CUDA_ENTRY __attribute__((visibility("default")))

/* After a call or launch that enqueued `what` (a literal: it is remembered) on the stream: false
 * when it was refused, which then sticks to the stream with the driver's words. */
bool cuda_enqueued(struct stream *stream, cudaError_t error, const char *what);
/* The same for calls at start-up: STATUS_OK, or STATUS_DEVICE (MEMORY for no memory), said once. */
enum status cuda_status(struct env *env, cudaError_t error, const char *what);

#endif
