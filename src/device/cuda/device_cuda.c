/* device_cuda -- a GPU: opening it, its memory, copies and sums; the back end's table.
 *
 * The GPU is current in the thread that opens the device and in the threads of its worker streams;
 * other threads that use the device make it current themselves. Each block is a cudaMalloc, zeroed
 * and synchronized, since our streams do not wait for the default stream. Copies depend on where
 * their pointers are: on a plain stream, copies from ordinary host memory go through the stream's
 * staging buffer; copies between host memory are done by the host. stream_cuda.c describes the
 * guarantees.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/host.h"
#include "base/text.h"
#include "device/cuda/accumulate.h"
#include "device/cuda/cuda.h"

struct square_sums {
    float *dst;
    const void *src;
    enum dtype type;
    int64_t count;
    bool first;
    double *sums;
    double weight;
};

static void squares_work(struct stream *stream, const void *args)
{
    const struct square_sums *s = args;
    if (!stream_failed(stream))
        cuda_enqueued(stream,
                      cuda_accumulate_squares(cuda_handle(stream), s->dst, s->src, s->type,
                                              s->count, s->first, s->sums, s->weight),
                      "squares");
}

static void accumulate_squares(struct stream *stream, float *dst, const void *src,
                               enum dtype src_type, int64_t count, bool first, double *sums,
                               double weight)
{
    struct square_sums args = {dst, src, src_type, count, first, sums, weight};
    cuda_work(stream, squares_work, &args, sizeof args);
}

CUDA_ENTRY extern const char sifr_cuda_version[];
const char sifr_cuda_version[] = SIFR_BUILD;

enum { LEAST_CAPABILITY = 80 };

/* --- opening -------------------------------------------------------------------------------- */

/* The number of GPUs; 0 = none, with the reason in `why`. */
static int count_gpus(char *why, size_t bytes)
{
    int count = 0, driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (error == cudaSuccess && count > 0)
        return count;
    (void)cudaGetLastError();
    cudaRuntimeGetVersion(&runtime);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        snprintf(why, bytes,
                 "no NVIDIA driver is on this machine (libcuda.so.1 was not found): install one, "
                 "or use the device 'cpu'");
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, bytes,
                 "the NVIDIA driver is for CUDA up to %d.%d and this build needs %d.%d: install a "
                 "newer driver",
                 driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
    else if (error == cudaSuccess || error == cudaErrorNoDevice)
        snprintf(why, bytes, "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES is %s)",
                 visible != NULL ? visible : "not set");
    else
        snprintf(why, bytes, "the NVIDIA driver cannot be used: %s", cudaGetErrorString(error));
    return 0;
}

/* From NVML, which does not need the GPU to be opened; the runtime would open it. */
static cudaError_t look_at_memory(int index, struct device_info *info)
{
    struct nvml nvml;
    size_t used;
    bool known = false;
    if (nvml_open(index, &nvml)) {
        known = nvml_memory(&nvml, &used, &info->free_bytes);
        nvml_close(&nvml);
    }
    if (known) {
        info->total_bytes = info->free_bytes + used;
        return cudaSuccess;
    }
    cudaError_t error = cudaSetDevice(index);
    return error == cudaSuccess ? cudaMemGetInfo(&info->free_bytes, &info->total_bytes) : error;
}

static void cuda_look(int index, struct device_info *info)
{
    struct cudaDeviceProp gpu;
    info->count = count_gpus(info->why, sizeof info->why);
    if (index < 0 || index >= info->count)
        return;
    cudaError_t error = cudaGetDeviceProperties(&gpu, index);
    if (error == cudaSuccess)
        error = look_at_memory(index, info);
    if (error == cudaSuccess) {
        snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, gpu.name);
        info->capability = 10 * gpu.major + gpu.minor;
        return;
    }
    (void)cudaGetLastError();
    info->count = 0;
    snprintf(info->why, sizeof info->why, "GPU %d cannot be used: %s", index,
             cudaGetErrorString(error));
}

static enum status check_gpu(struct env *env, const struct cuda_device *cuda)
{
    int major = cuda->base.capability / 10, minor = cuda->base.capability % 10;
    if (cuda->base.capability < LEAST_CAPABILITY)
        return FAIL(env, DEVICE,
                    "GPU %d, %s, has compute capability %d.%d; sifr needs 8.0 or later (Ampere)",
                    cuda->index, cuda->name, major, minor);
    cudaError_t error = cuda_probe();
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
        error == cudaErrorInvalidKernelImage || error == cudaErrorUnsupportedPtxVersion)
        return FAIL(env, DEVICE,
                    "this build has no code for GPU %d, %s: configure with "
                    "-DSIFR_CUDA_ARCHITECTURES=%d",
                    cuda->index, cuda->name, cuda->base.capability);
    return cuda_status(env, error, "the GPU cannot be used");
}

static void cuda_close(struct device *device)
{
    cuda_spans_destroy(device);
    nvml_close(&cuda_device_of(device)->nvml);
}

static enum status open_gpu(struct env *env, int index, struct cuda_device *cuda)
{
    struct cudaDeviceProp gpu;
    char host[64] = "", bus[32] = "";
    TRY(cuda_status(env, cudaSetDevice(index), "the GPU cannot be used"));
    TRY(cuda_status(env, cudaGetDeviceProperties(&gpu, index), "the GPU cannot be used"));
    cuda->index = index;
    cuda->processors = gpu.multiProcessorCount;
    cuda->base.capability = 10 * gpu.major + gpu.minor;
    snprintf(cuda->name, sizeof cuda->name, "%.*s", (int)sizeof cuda->name - 1, gpu.name);
    TRY(cuda_status(env, cudaDeviceGetPCIBusId(bus, sizeof bus, index),
                    "the GPU's place on the bus"));
    gethostname(host, sizeof host - 1);
    snprintf(cuda->base.gpu, sizeof cuda->base.gpu, "%s of %s", bus, host);
    return check_gpu(env, cuda);
}

static enum status cuda_open(struct device *device, int index)
{
    enum status st;
    struct env *env = device->env;
    struct cuda_device *cuda = cuda_device_of(device);
    size_t left;
    char why[256];
    int count = count_gpus(why, sizeof why);
    if (count == 0)
        return FAIL(env, DEVICE, "%s", why);
    if (index < 0 || index >= count)
        return FAIL(env, CONFIG, "no GPU %d: this machine shows %d, numbered from 0", index, count);
    /* Before this process has a context on the GPU. */
    if (nvml_open(index, &cuda->nvml) && !nvml_memory(&cuda->nvml, &cuda->others_bytes, &left))
        cuda->others_bytes = 0;
    TRY_OR(undo_nvml, open_gpu(env, index, cuda));
    return STATUS_OK;
undo_nvml:
    cuda_close(device);
    return st;
}

/* --- sensors -------------------------------------------------------------------------------- */

static size_t cuda_in_use(struct device *device)
{
    const struct cuda_device *cuda = cuda_device_of(device);
    size_t used, left, whole;
    if (nvml_memory(&cuda->nvml, &used, &left))
        return used > cuda->others_bytes ? used - cuda->others_bytes : 0;
    cudaSetDevice(cuda->index);
    if (cudaMemGetInfo(&left, &whole) == cudaSuccess)
        return whole - left;
    (void)cudaGetLastError();
    return 0;
}

static void cuda_read_gauges(struct device *device, struct device_gauges *gauges)
{
    nvml_gauges(&cuda_device_of(device)->nvml, gauges);
}

/* --- memory --------------------------------------------------------------------------------- */

static enum status fail_memory(const struct device *device, const struct device_block *block)
{
    char asked[32], left[32], whole[32];
    size_t free_bytes = 0, total_bytes = 0;
    const struct cuda_device *cuda = (const struct cuda_device *)device;
    if (block->host)
        return FAIL(device->env, MEMORY,
                    "cannot pin %s of host memory for %s '%s': the system refused; check the free "
                    "memory and ulimit -l, or offload less to the host (offload.share)",
                    text_human_bytes(asked, (double)block->bytes),
                    mem_category_word(block->category), block->name);
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return FAIL(
        device->env, MEMORY,
        "out of memory on GPU %d, %s: %s '%s' needs %s, and %s of %s is free; try a smaller "
        "micro-batch, recomputation or more ranks",
        cuda->index, cuda->name, mem_category_word(block->category), block->name,
        text_human_bytes(asked, (double)block->bytes), text_human_bytes(left, (double)free_bytes),
        text_human_bytes(whole, (double)total_bytes));
}

/* Large blocks of host memory are mapped with huge pages, which all threads touch, and pinned then:
 * the driver would touch small pages, one after the other. */
static bool is_mapped(const struct device_block *block)
{
    return block->host && block->bytes >= (size_t)64 << 20;
}

static void unmap(const struct device_block *block)
{
    munmap(block->address, block->bytes);
}

static cudaError_t map(struct device_block *block, int threads)
{
    enum { PAGE = 2 << 20 };
    if (block->bytes > machine_memory()) /* the system would grant it, and kill a process later */
        return cudaErrorMemoryAllocation;
    void *at = mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    block->address = at;
    madvise(at, block->bytes, MADV_HUGEPAGE);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t first = 0; first < block->bytes; first += PAGE)
        memset((char *)at + first, 0, block->bytes - first < PAGE ? block->bytes - first : PAGE);
    cudaError_t error = cudaHostRegister(at, block->bytes, cudaHostRegisterPortable);
    if (error != cudaSuccess)
        unmap(block);
    return error;
}

static cudaError_t take(struct device_block *block, int threads)
{
    cudaError_t error;
    if (is_mapped(block))
        return map(block, threads);
    error = block->host ? cudaHostAlloc(&block->address, block->bytes, cudaHostAllocPortable)
                        : cudaMalloc(&block->address, block->bytes);
    if (error == cudaSuccess && block->host)
        memset(block->address, 0, block->bytes);
    else if (error == cudaSuccess)
        error = cudaMemset(block->address, 0, block->bytes);
    return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

static void give_back(const struct device_block *block)
{
    if (is_mapped(block)) {
        cudaHostUnregister(block->address);
        unmap(block);
    } else if (block->host) {
        cudaFreeHost(block->address);
    } else {
        cudaFree(block->address);
    }
}

static enum status cuda_alloc(struct device *device, struct device_block *block)
{
    enum status st;
    cudaError_t error;
    TRY(device_count_block(device, block));
    cudaSetDevice(cuda_device_of(device)->index);
    error = take(block, device->env->threads);
    if (error == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    st = error == cudaErrorMemoryAllocation ? fail_memory(device, block)
                                            : cuda_status(device->env, error, "taking memory");
    if (block->address != NULL)
        give_back(block);
    device_uncount_block(device, block);
    return st;
}

static void cuda_free(struct device *device, const struct device_block *block)
{
    cudaSetDevice(cuda_device_of(device)->index);
    if (!block->host || !mem_keeps_freed(device->env->mem)) /* MPI only uses host memory */
        give_back(block);
    device_uncount_block(device, block);
}

/* --- copies and sums ------------------------------------------------------------------------ */

static enum cudaMemoryType location_of(const void *address)
{
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess)
        return attributes.type;
    (void)cudaGetLastError();
    return cudaMemoryTypeUnregistered;
}

static bool is_host(enum cudaMemoryType location)
{
    return location == cudaMemoryTypeUnregistered || location == cudaMemoryTypeHost;
}

struct range {
    char *dst;
    const char *src;
    size_t bytes;
    int64_t mark; /* of a span, or -1 */
};

/* Enqueue a copy; a small one between pinned memory and the GPU passes large ones. */
static void copy_async(struct stream *stream, const struct range *range, enum cudaMemoryType from,
                       enum cudaMemoryType to)
{
    bool pinned = (from == cudaMemoryTypeHost && to == cudaMemoryTypeDevice) ||
                  (from == cudaMemoryTypeDevice && to == cudaMemoryTypeHost);
    cudaStream_t handle = cuda_handle(stream);
    cuda_enqueued(
        stream,
        pinned && range->bytes <= CUDA_SMALL_COPY
            ? cuda_small_copy(handle, range->dst, range->src, range->bytes)
            : cudaMemcpyAsync(range->dst, range->src, range->bytes, cudaMemcpyDefault, handle),
        "copy");
}

static void copy_work(struct stream *stream, const void *args)
{
    const struct range *range = args;
    enum cudaMemoryType from = location_of(range->src), to = location_of(range->dst);
    if (stream_failed(stream))
        return;
    cuda_note_span(stream, range->mark, false);
    if (is_host(from) && is_host(to)) {
        cuda_settle(stream);
        memcpy(range->dst, range->src, range->bytes);
    } else if (from == cudaMemoryTypeUnregistered && !stream->worker) {
        cuda_copy_staged(stream, range->dst, range->src, range->bytes);
    } else {
        copy_async(stream, range, from, to);
    }
    cuda_note_span(stream, range->mark, true);
}

static void cuda_copy(struct stream *stream, void *dst, const void *src, size_t bytes, int64_t mark)
{
    struct range range = {dst, src, bytes, mark};
    cuda_work(stream, copy_work, &range, sizeof range);
}

struct rows {
    char *dst;
    const char *src;
    size_t dst_apart, src_apart, bytes, rows;
};

static void rows_work(struct stream *stream, const void *args)
{
    const struct rows *r = args;
    if (!stream_failed(stream))
        cuda_enqueued(stream,
                      cudaMemcpy2DAsync(r->dst, r->dst_apart, r->src, r->src_apart, r->bytes,
                                        r->rows, cudaMemcpyDeviceToDevice, cuda_handle(stream)),
                      "copy of rows");
}

static void cuda_copy_rows(struct stream *stream, void *dst, size_t dst_apart, const void *src,
                           size_t src_apart, size_t bytes, int64_t rows)
{
    struct rows r = {dst, src, dst_apart, src_apart, bytes, (size_t)rows};
    cuda_work(stream, rows_work, &r, sizeof r);
}

static void zero_work(struct stream *stream, const void *args)
{
    const struct range *range = args;
    if (!stream_failed(stream))
        cuda_enqueued(stream, cudaMemsetAsync(range->dst, 0, range->bytes, cuda_handle(stream)),
                      "zero");
}

static void cuda_zero(struct stream *stream, void *dst, size_t bytes)
{
    struct range range = {dst, NULL, bytes, .mark = -1};
    cuda_work(stream, zero_work, &range, sizeof range);
}

struct sum {
    void *dst;
    const void *src;
    enum dtype dst_type, src_type;
    int64_t count;
};

static void sum_work(struct stream *stream, const void *args)
{
    const struct sum *sum = args;
    if (!stream_failed(stream))
        cuda_enqueued(stream,
                      cuda_accumulate(cuda_handle(stream), sum->dst, sum->dst_type, sum->src,
                                      sum->src_type, sum->count),
                      "accumulate");
}

static void accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count)
{
    struct sum sum = {dst, src, dst_type, src_type, count};
    cuda_work(stream, sum_work, &sum, sizeof sum);
}

CUDA_ENTRY extern const struct device_backend sifr_device_cuda;
const struct device_backend sifr_device_cuda = {
    .name = "cuda",
    .device_bytes = sizeof(struct cuda_device),
    .stream_bytes = sizeof(struct cuda_stream),
    .event_bytes = sizeof(struct cuda_event),
    .location = MEM_GPU,
    .look = cuda_look,
    .open = cuda_open,
    .close = cuda_close,
    .in_use = cuda_in_use,
    .read_gauges = cuda_read_gauges,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_sync = cuda_stream_sync,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .enqueue = cuda_enqueue,
    .record = cuda_record,
    .wait = cuda_wait,
    .span_claim = cuda_span_claim,
    .span_mark = cuda_span_mark,
    .spans_create = cuda_spans_create,
    .spans_open = cuda_spans_open,
    .spans_close = cuda_spans_close,
    .copy = cuda_copy,
    .copy_rows = cuda_copy_rows,
    .zero = cuda_zero,
    .accumulate = accumulate,
    .accumulate_squares = accumulate_squares,
    .record_begin = cuda_record_begin,
    .record_end = cuda_record_end,
    .replay = cuda_replay,
    .forget = cuda_forget,
};
