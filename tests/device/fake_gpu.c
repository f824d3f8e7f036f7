/* fake_gpu -- a GPU simulated by threads: the part of the CUDA runtime that device/cuda calls, so
 * that the order of its streams, events, tasks and copies is tested without a GPU.
 *
 * A stream is a thread with a queue of work. It sleeps for a short random time before each item, so
 * that a missing wait shows. As on a real GPU, the host cannot access device addresses; their bytes
 * are stored elsewhere. Pinned memory is host memory that is marked as pinned. The kernel is a
 * loop. Linked with the sources of device/cuda into a separate libsifr-cuda.so, which
 * test_device_gpu and the suites of comm load.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "device/fake_gpu.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects everything */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* --- memory --------------------------------------------------------------------------------- */

struct block {
    struct block *next;
    char *address; /* as callers see it */
    char *data;    /* where the bytes are stored */
    size_t bytes;
    enum cudaMemoryType type;
    int gpu;
    bool registered; /* the bytes are the caller's */
};
static struct block *blocks;
static bool has_context[FAKE_GPUS];
static _Thread_local int current; /* the thread's current GPU */

/* The block that contains the address. Called with the lock held. */
static const struct block *find(const void *address)
{
    const char *at = address;
    const struct block *b = blocks;
    while (b != NULL && (at < b->address || at >= b->address + b->bytes))
        b = b->next;
    return b;
}

/* Where the bytes behind an address are stored. */
static char *bytes_of(const void *address)
{
    pthread_mutex_lock(&lock);
    const struct block *b = find(address);
    char *data = b != NULL ? b->data + ((const char *)address - b->address) : (char *)address;
    pthread_mutex_unlock(&lock);
    return data;
}

static cudaError_t take(void **out, size_t bytes, enum cudaMemoryType type)
{
    struct block *block = malloc(sizeof *block);
    if (bytes > (size_t)1 << 40)
        return free(block), cudaErrorMemoryAllocation;
    char *data = aligned_alloc(256, (bytes + 255) / 256 * 256), *address = data;
    if (type == cudaMemoryTypeDevice)
        address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *block = (struct block){NULL, address, data, bytes, type, current, false};
    memset(data, 0xee, bytes);
    *out = block->address;
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t give_back(void *address)
{
    pthread_mutex_lock(&lock);
    struct block **link = &blocks;
    while (*link != NULL && (*link)->address != address)
        link = &(*link)->next;
    struct block *block = *link;
    if (block != NULL)
        *link = block->next;
    pthread_mutex_unlock(&lock);
    if (block == NULL)
        return cudaErrorInvalidValue;
    if (block->address != block->data)
        munmap(block->address, block->bytes);
    if (!block->registered)
        free(block->data);
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    return take(out, bytes, cudaMemoryTypeDevice);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return take(out, bytes, cudaMemoryTypeHost);
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags)
{
    struct block *block = malloc(sizeof *block);
    (void)flags;
    *block = (struct block){NULL,    address,           address, bytes, cudaMemoryTypeHost,
                            current, .registered = true};
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *address)
{
    return give_back(address);
}

cudaError_t cudaFree(void *address)
{
    return give_back(address);
}

cudaError_t cudaFreeHost(void *address)
{
    return give_back(address);
}

cudaError_t cudaMemset(void *address, int value, size_t bytes)
{
    memset(bytes_of(address), value, bytes);
    return cudaSuccess;
}

/* As the driver counts it: large blocks in pages of 2 MiB, small blocks packed together. */
size_t fake_gpu_in_use(int index)
{
    const size_t page = (size_t)2 << 20;
    size_t sum, small = 0;
    pthread_mutex_lock(&lock);
    sum = has_context[index] ? FAKE_CONTEXT_BYTES : 0;
    for (const struct block *b = blocks; b != NULL; b = b->next) {
        if (b->type != cudaMemoryTypeDevice || b->gpu != index)
            continue;
        if (b->bytes < page / 2)
            small += b->bytes;
        else
            sum += (b->bytes + page - 1) / page * page;
    }
    pthread_mutex_unlock(&lock);
    return sum + (small + page - 1) / page * page;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = FAKE_GPU_BYTES;
    *free_bytes = FAKE_GPU_BYTES - FAKE_OTHERS_BYTES - fake_gpu_in_use(current);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address)
{
    pthread_mutex_lock(&lock);
    const struct block *block = find(address);
    attributes->type = block != NULL ? block->type : cudaMemoryTypeUnregistered;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* --- streams and events --------------------------------------------------------------------- */

struct CUevent_st {
    long recorded, passed;
    bool timed;
    double milliseconds; /* of the newest record that has passed, on the GPU's clock */
};

/* Runs faster than the host's, by less than clocks may drift apart, and from another zero. */
static double gpu_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 12345.0 + 1.0005 * (1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec);
}

enum kind { COPY, ZERO, SUM, SQUARES, RECORD, WAIT, CALL };

struct work {
    struct work *next;
    enum kind kind;
    char *dst;
    const char *src;
    size_t count; /* in bytes or elements */
    enum dtype dst_type, src_type;
    bool first;
    double *sums, weight; /* of squares; dst may be NULL */
    cudaEvent_t event;
    long ticket;
    void (*call)(void *arg);
    void *arg;
};

struct CUgraph_st { /* also used as a CUgraphExec */
    struct work *first, **last;
    bool broken; /* contains something that cannot be captured */
};

struct CUstream_st {
    pthread_t thread;
    cudaGraph_t capture; /* records the work instead of running it; NULL: not capturing */
    struct work *first, **last;
    int waiting; /* unfinished items of work */
    bool ending;
};

static void add(const struct work *work)
{
    size_t d = dtype_bytes(work->dst_type), s = dtype_bytes(work->src_type);
    char *dst = bytes_of(work->dst);
    const char *src = bytes_of(work->src);
    for (size_t i = 0; i < work->count; i++) {
        double a, b;
        dtype_convert(&a, DTYPE_F64, dst + i * d, work->dst_type, 1);
        dtype_convert(&b, DTYPE_F64, src + i * s, work->src_type, 1);
        double sum = a + b;
        float single = (float)sum;
        if (work->dst_type == DTYPE_F64)
            memcpy(dst + i * d, &sum, sizeof sum);
        else
            dtype_convert(dst + i * d, work->dst_type, &single, DTYPE_F32, 1);
    }
}

static void add_squares(const struct work *work)
{
    double *sums = (double *)bytes_of(work->sums);
    const char *src = bytes_of(work->src);
    if (work->dst != NULL && work->first)
        dtype_convert(bytes_of(work->dst), DTYPE_F32, src, work->src_type, (int64_t)work->count);
    else if (work->dst != NULL)
        add(work);
    for (size_t i = 0; i < work->count; i++) {
        double x;
        if (work->first && i % 64 == 0)
            sums[i / 64] = 0;
        dtype_convert(&x, DTYPE_F64, src + i * dtype_bytes(work->src_type), work->src_type, 1);
        sums[i / 64] += work->weight * x * x;
    }
}

static void nap(unsigned *seed)
{
    struct timespec span = {0, (long)(rand_r(seed) % 8) * 30000};
    nanosleep(&span, NULL);
}

static void run(const struct work *work)
{
    if (work->kind == COPY)
        memcpy(bytes_of(work->dst), bytes_of(work->src), work->count);
    else if (work->kind == ZERO)
        memset(bytes_of(work->dst), 0, work->count);
    else if (work->kind == SUM)
        add(work);
    else if (work->kind == SQUARES)
        add_squares(work);
    else if (work->kind == CALL)
        work->call(work->arg);
    pthread_mutex_lock(&lock);
    while (work->kind == WAIT && work->event->passed < work->ticket)
        pthread_cond_wait(&changed, &lock);
    if (work->kind == RECORD && work->event->passed < work->ticket) {
        work->event->passed = work->ticket;
        work->event->milliseconds = gpu_clock();
    }
    pthread_mutex_unlock(&lock);
}

static void *stream_main(void *arg)
{
    struct CUstream_st *stream = arg;
    unsigned seed = 1;
    pthread_mutex_lock(&lock);
    while (!stream->ending || stream->first != NULL) {
        struct work *work = stream->first;
        if (work == NULL) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        stream->first = work->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        pthread_mutex_unlock(&lock);
        nap(&seed);
        run(work);
        free(work);
        pthread_mutex_lock(&lock);
        stream->waiting--;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static cudaError_t put(cudaStream_t stream, struct work given)
{
    struct work *work = malloc(sizeof *work);
    *work = given;
    if (stream->capture != NULL) {
        stream->capture->broken |= given.kind == RECORD || given.kind == WAIT;
        *stream->capture->last = work;
        stream->capture->last = &work->next;
        return cudaSuccess;
    }
    pthread_mutex_lock(&lock);
    if (work->kind == RECORD)
        work->ticket = ++work->event->recorded;
    if (work->kind == WAIT)
        work->ticket = work->event->recorded;
    *stream->last = work;
    stream->last = &work->next;
    stream->waiting++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    (void)flags;
    stream->last = &stream->first;
    pthread_create(&stream->thread, NULL, stream_main, stream);
    *out = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream == cudaStreamLegacy)
        return cudaSuccess;
    if (stream->capture != NULL) {
        stream->capture->broken = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    pthread_mutex_lock(&lock);
    while (stream->waiting > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    stream->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = calloc(1, sizeof **out);
    (*out)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    if (!from->timed || !to->timed || from->recorded == 0 || to->recorded == 0)
        error = cudaErrorInvalidResourceHandle;
    else if (from->passed < from->recorded || to->passed < to->recorded)
        error = cudaErrorNotReady;
    else
        *milliseconds = (float)(to->milliseconds - from->milliseconds);
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    for (long ticket = event->recorded; event->passed < ticket;)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* The real function waits for work that still needs the event; this one leaves the event allocated
 * until the process ends. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return put(stream, (struct work){.kind = RECORD, .event = event});
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    return put(stream, (struct work){.kind = WAIT, .event = event});
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    return put(stream, (struct work){.kind = COPY, .dst = dst, .src = src, .count = bytes});
}

cudaError_t cuda_small_copy(cudaStream_t stream, void *dst, const void *src, size_t bytes)
{
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_apart, const void *src, size_t src_apart,
                              size_t bytes, size_t rows, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < rows && error == cudaSuccess; row++)
        error = cudaMemcpyAsync((char *)dst + row * dst_apart, (const char *)src + row * src_apart,
                                bytes, kind, stream);
    return error;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    return value == 0 ? put(stream, (struct work){.kind = ZERO, .dst = dst, .count = bytes})
                      : cudaErrorInvalidValue;
}

cudaError_t cuda_accumulate(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                            enum dtype src_type, int64_t count)
{
    return put(stream, (struct work){.kind = SUM,
                                     .dst = dst,
                                     .src = src,
                                     .count = (size_t)count,
                                     .dst_type = dst_type,
                                     .src_type = src_type});
}

cudaError_t cuda_accumulate_squares(cudaStream_t stream, float *dst, const void *src,
                                    enum dtype src_type, int64_t count, bool first, double *sums,
                                    double weight)
{
    return put(stream, (struct work){.kind = SQUARES,
                                     .dst = (char *)dst,
                                     .src = src,
                                     .count = (size_t)count,
                                     .dst_type = DTYPE_F32,
                                     .src_type = src_type,
                                     .first = first,
                                     .sums = sums,
                                     .weight = weight});
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    bool passed = event->passed >= event->recorded;
    pthread_mutex_unlock(&lock);
    return passed ? cudaSuccess : cudaErrorNotReady;
}

/* --- graphs: recorded lists of work --------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->last = &stream->capture->first;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    for (struct work *work = graph->first, *next; work != NULL; work = next) {
        next = work->next;
        free(work);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = stream->capture;
    stream->capture = NULL;
    if (!(*graph)->broken)
        return cudaSuccess;
    cudaGraphDestroy(*graph);
    *graph = NULL;
    return cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    struct CUgraph_st *copy = calloc(1, sizeof *copy);
    (void)flags;
    copy->last = &copy->first;
    for (const struct work *from = graph->first; from != NULL; from = from->next) {
        *copy->last = malloc(sizeof **copy->last);
        **copy->last = *from;
        (*copy->last)->next = NULL;
        copy->last = &(*copy->last)->next;
    }
    *out = (cudaGraphExec_t)copy;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream)
{
    (void)graph;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    for (const struct work *work = ((struct CUgraph_st *)graph)->first; work; work = work->next) {
        struct work again = *work;
        again.next = NULL;
        put(stream, again);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    return cudaGraphDestroy((cudaGraph_t)graph);
}

void fake_gpu_call(cudaStream_t stream, void (*call)(void *arg), void *arg)
{
    put(stream, (struct work){.kind = CALL, .call = call, .arg = arg});
}

char *fake_gpu_bytes(const void *address)
{
    return bytes_of(address);
}

/* --- the GPU ------------------------------------------------------------------------------- */

cudaError_t cuda_probe(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = FAKE_GPUS;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *index)
{
    *index = current;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int index)
{
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", index);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    if (index < 0 || index >= FAKE_GPUS)
        return cudaErrorInvalidDevice;
    current = index;
    pthread_mutex_lock(&lock);
    has_context[index] = true;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *gpu, int index)
{
    (void)index;
    *gpu = (struct cudaDeviceProp){.major = 9, .multiProcessorCount = 2};
    snprintf(gpu->name, sizeof gpu->name, "a GPU made of threads");
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "an error";
}
