/* cuda -- shared by the CUDA back ends of device, ops and comm: the GPU behind a device, the handle
 * behind a stream, and error handling.
 *
 * Only folders named cuda and nccl include it. All of them are in one shared object, libsifr-cuda,
 * which is loaded when a run asks for a GPU (base/plugin.h). It has its own copies of base and
 * device, which have no global state.
 */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H
#include <cuda_runtime_api.h>
#include "device/cuda/nvml.h"
#include "device/device_impl.h"

struct cuda_device {
    struct device base;
    int index;      /* of the GPU; callers of the driver must make it current */
    int processors; /* multiprocessors */
    int capability; /* 90 = 9.0 */
    size_t l2_bytes;
    char name[64]; /* "NVIDIA H200" */
    struct nvml nvml;
    size_t others_bytes; /* in use by others before this process opened the GPU; 0 without NVML */
};

struct worker;

enum { CUDA_NOTED = 4 }; /* recent launches that a stream remembers for error messages */

struct cuda_stream {
    struct stream base;
    cudaStream_t handle;
    struct worker *worker; /* NULL on a plain stream */
    bool in_task;          /* plain: the caller is running a task of this stream */
    char *stage;           /* plain: pinned staging buffer in two halves (stream_cuda.c) */
    size_t stage_used;     /* bytes used of the current half */
    int stage_half;
    cudaEvent_t stage_read[2];     /* recorded after the GPU's last read of each half */
    const char *noted[CUDA_NOTED]; /* ring of recently enqueued work */
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

/* Exported from the shared object. */
#define CUDA_ENTRY __attribute__((visibility("default")))

/* Call it after enqueueing `what` (a string literal: the pointer is kept) on the stream. false = it
 * was refused; the error, with the driver's text, then sticks to the stream. */
bool cuda_enqueued(struct stream *stream, cudaError_t error, const char *what);
/* The same for calls at start-up: STATUS_OK, or STATUS_DEVICE (STATUS_MEMORY when out of memory),
 * which has been logged. */
enum status cuda_status(struct env *env, cudaError_t error, const char *what);

#endif
