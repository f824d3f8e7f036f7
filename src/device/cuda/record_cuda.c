/* record_cuda -- recordings: a CUDA graph, captured from a plain stream.
 *
 * Only work enqueued on the stream is captured. A call that would wait or allocate fails, and so
 * does the capture. Memory that the driver allocates for a graph is not in our account.
 *
 * Environment, read at each recording, for tests: SIFR_CUDA_GRAPH=off disables recordings.
 */
#include <stdlib.h>
#include <string.h>
#include "device/cuda/stream_cuda.h"

bool cuda_record_begin(struct stream *stream)
{
    const char *way = getenv("SIFR_CUDA_GRAPH");
    struct cuda_stream *cuda = (struct cuda_stream *)stream;
    if ((way && !strcmp(way, "off")) || cuda->in_task ||
        cudaSetDevice(cuda_device_of(stream->device)->index) != cudaSuccess)
        return false;
    bool begun =
        cudaStreamBeginCapture(cuda->handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    if (!begun)
        (void)cudaGetLastError();
    return begun;
}

/* Instantiate the captured graph and upload it. */
static enum status make(struct stream *stream, cudaGraph_t captured, cudaGraphExec_t *graph)
{
    struct env *env = stream->device->env;
    TRY(cuda_status(env, cudaGraphInstantiate(graph, captured, 0), "making a graph"));
    cudaError_t error = cudaGraphUpload(*graph, cuda_handle(stream));
    if (error != cudaSuccess)
        cudaGraphExecDestroy(*graph);
    return cuda_status(env, error, "a graph on its way to the GPU");
}

/* A recording is the driver's graph object itself. */
struct recording *cuda_record_end(struct stream *stream)
{
    cudaGraph_t captured = NULL;
    cudaGraphExec_t graph;
    enum status st =
        cuda_status(stream->device->env, cudaStreamEndCapture(cuda_handle(stream), &captured),
                    "recording work of a stream");
    if (st == STATUS_OK && !stream_failed(stream))
        st = make(stream, captured, &graph);
    else
        st = STATUS_DEVICE;
    if (captured != NULL)
        cudaGraphDestroy(captured);
    return st == STATUS_OK ? (struct recording *)graph : NULL;
}

void cuda_replay(struct stream *stream, struct recording *recording)
{
    cuda_enqueued(stream, cudaGraphLaunch((cudaGraphExec_t)recording, cuda_handle(stream)),
                  "a recording");
}

void cuda_forget(struct device *device, struct recording *recording)
{
    cudaSetDevice(cuda_device_of(device)->index);
    cudaGraphExecDestroy((cudaGraphExec_t)recording);
}
