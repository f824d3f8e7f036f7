/* comm_nccl -- NCCL as the transport between GPUs: channels, swaps, marks and aborts.
 *
 * A channel is an NCCL communicator. A swap is one group of sends and receives in bytes, enqueued
 * on the stream of the call. comm sums in rank order, so NCCL adds nothing, except in fast mode,
 * where a reduction is NCCL's own collective. The order of swaps and sums, and timeouts, are left
 * to comm_swap.c and comm_watch.c.
 *
 * NCCL lets one thread use a communicator at a time, but another thread may ask for its error and
 * abort it. An abort frees the communicator. So a thread that enqueues holds the channel's lock,
 * and an abort takes the lock as well; if it does not get it soon, a thread is inside NCCL, waiting
 * for other ranks, and the abort is what releases that thread.
 */
#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "comm/comm_impl.h"
#include "device/cuda/cuda.h"

_Static_assert(sizeof(ncclUniqueId) <= COMM_ID_BYTES, "an id has room");

struct comm_channel {
    struct env *env; /* borrowed */
    int gpu;
    ncclComm_t nccl;
    pthread_mutex_t lock; /* held by a thread inside NCCL for this channel */
    _Atomic bool aborted; /* `nccl` has been freed */
    cudaEvent_t marks[COMM_WATCHED];
};

static enum status nccl_failed(struct env *env, const char *what, ncclResult_t code,
                               ncclComm_t nccl)
{
    const char *more = ncclGetLastError(nccl);
    return FAIL(env, COMM, "NCCL failed: %s: %s%s%s; set NCCL_DEBUG=WARN for details", what,
                ncclGetErrorString(code), more != NULL && more[0] != '\0' ? ": " : "",
                more != NULL ? more : "");
}

/* --- channels ------------------------------------------------------------------------------- */

static enum status nccl_make_id(struct env *env, unsigned char id[COMM_ID_BYTES])
{
    ncclUniqueId unique;
    ncclResult_t code = ncclGetUniqueId(&unique);
    if (code != ncclSuccess)
        return nccl_failed(env, "an id for a communicator", code, NULL);
    memcpy(id, &unique, sizeof unique);
    return STATUS_OK;
}

static void free_channel(struct comm_channel *channel)
{
    for (int i = 0; i < COMM_WATCHED; i++) {
        if (channel->marks[i] != NULL)
            cudaEventDestroy(channel->marks[i]);
    }
    pthread_mutex_destroy(&channel->lock);
    mem_free(channel->env, channel);
}

static enum status nccl_open(struct comm *comm, const unsigned char id[COMM_ID_BYTES],
                             struct comm_channel **channel)
{
    enum status st;
    ncclUniqueId unique;
    struct comm_channel *l;
    TRY(mem_alloc(comm->env, MEM_OTHER, "channels", sizeof *l, &l));
    l->env = comm->env;
    l->gpu = cuda_device_of(comm->device)->index;
    pthread_mutex_init(&l->lock, NULL);
    atomic_init(&l->aborted, false);
    TRY_OR(undo_channel, cuda_status(l->env, cudaSetDevice(l->gpu), "the GPU of a channel"));
    for (int i = 0; i < COMM_WATCHED; i++)
        TRY_OR(undo_channel,
               cuda_status(l->env, cudaEventCreateWithFlags(&l->marks[i], cudaEventDisableTiming),
                           "an event of a channel"));
    memcpy(&unique, id, sizeof unique);
    ncclResult_t code = ncclCommInitRank(&l->nccl, comm->size, unique, comm->rank);
    if (code != ncclSuccess) {
        st = nccl_failed(l->env, "making a communicator", code, NULL);
        goto undo_channel;
    }
    *channel = l;
    return STATUS_OK;
undo_channel:
    free_channel(l);
    return st;
}

static void nccl_close(struct comm_channel *channel)
{
    cudaSetDevice(channel->gpu);
    if (!atomic_load(&channel->aborted))
        ncclCommDestroy(channel->nccl);
    free_channel(channel);
}

/* --- calls ---------------------------------------------------------------------------------- */

static bool nccl_reaches(const void *address)
{
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess)
        return attributes.type == cudaMemoryTypeDevice;
    (void)cudaGetLastError();
    return false;
}

/* Inside a group nothing is executed: an invalid message fails at once, everything else at the end
 * of the group. */
static ncclResult_t post_all(const struct comm *comm, cudaStream_t handle)
{
    ncclComm_t nccl = comm->channel->nccl;
    ncclResult_t code = ncclSuccess;
    for (int i = 0; i < comm->size && code == ncclSuccess; i++) {
        int r = (comm->rank + i) % comm->size;
        const struct comm_move *out = &comm->sends[r], *in = &comm->recvs[r];
        if (out->bytes > 0)
            code = ncclSend(out->data, out->bytes, ncclUint8, r, nccl, handle);
        if (in->bytes > 0 && code == ncclSuccess)
            code = ncclRecv(in->data, in->bytes, ncclUint8, r, nccl, handle);
    }
    return code;
}

static enum status swap_group(struct comm *comm, struct stream *stream)
{
    ncclComm_t nccl = comm->channel->nccl;
    ncclResult_t code = ncclGroupStart();
    if (code != ncclSuccess)
        return nccl_failed(comm->env, "beginning a group of messages", code, nccl);
    ncclResult_t posted = post_all(comm, cuda_handle(stream));
    code = ncclGroupEnd();
    if (code == ncclSuccess)
        code = posted;
    if (code != ncclSuccess && !comm_job_failed(comm->job)) /* otherwise it was aborted */
        return nccl_failed(comm->env, "a group of messages", code, nccl);
    return code == ncclSuccess ? STATUS_OK : STATUS_COMM;
}

static enum status nccl_swap(struct comm *comm, struct stream *stream)
{
    struct comm_channel *channel = comm->channel;
    pthread_mutex_lock(&channel->lock);
    enum status st = atomic_load(&channel->aborted) ? STATUS_COMM : swap_group(comm, stream);
    pthread_mutex_unlock(&channel->lock);
    if (st == STATUS_OK)
        cuda_enqueued(stream, cudaSuccess, "messages of NCCL");
    return st;
}

/* In place, like the calls of comm. */
static ncclResult_t post_sum(const struct comm_call *call, cudaStream_t handle)
{
    ncclComm_t nccl = call->comm->channel->nccl;
    ncclDataType_t type = call->type == DTYPE_F32 ? ncclFloat32 : ncclFloat64;
    size_t count = (size_t)call->count;
    CHECK(call->type == DTYPE_F32 || call->type == DTYPE_F64);
    if (call->kind == COMM_REDUCE_SCATTER)
        return ncclReduceScatter(call->src, call->dst, count, type, ncclSum, nccl, handle);
    CHECK_EQ(call->kind, COMM_ALL_REDUCE);
    return ncclAllReduce(call->dst, call->dst, count, type, ncclSum, nccl, handle);
}

static enum status nccl_sum(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    struct comm_channel *channel = comm->channel;
    ncclResult_t code = ncclSuccess;
    pthread_mutex_lock(&channel->lock);
    bool aborted = atomic_load(&channel->aborted);
    if (!aborted)
        code = post_sum(call, cuda_handle(stream));
    pthread_mutex_unlock(&channel->lock);
    if (code != ncclSuccess && !comm_job_failed(comm->job)) /* otherwise it was aborted */
        return nccl_failed(comm->env, "a sum", code, channel->nccl);
    if (aborted || code != ncclSuccess)
        return STATUS_COMM;
    cuda_enqueued(stream, cudaSuccess, "a sum of NCCL");
    return STATUS_OK;
}

/* --- watching ------------------------------------------------------------------------------- */

static void nccl_mark(struct comm_channel *channel, int slot, struct stream *stream)
{
    cuda_enqueued(stream, cudaEventRecord(channel->marks[slot], cuda_handle(stream)), "mark");
}

static bool nccl_passed(struct comm_channel *channel, int slot)
{
    cudaSetDevice(channel->gpu);
    bool passed = cudaEventQuery(channel->marks[slot]) != cudaErrorNotReady;
    (void)cudaGetLastError(); /* a failure belongs to the stream and is reported there */
    return passed;
}

static bool nccl_channel_failed(struct comm_channel *channel, char *why, size_t bytes)
{
    ncclResult_t code = ncclSuccess;
    if (atomic_load(&channel->aborted) ||
        ncclCommGetAsyncError(channel->nccl, &code) != ncclSuccess || code == ncclSuccess ||
        code == ncclInProgress)
        return false;
    snprintf(why, bytes, "NCCL failed: %s: %s; set NCCL_DEBUG=WARN for details",
             ncclGetErrorString(code), ncclGetLastError(channel->nccl));
    return true;
}

/* Waits up to a second: after that, the thread that holds the lock waits for other ranks. */
static bool lock_soon(struct comm_channel *channel)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec++;
    return pthread_mutex_timedlock(&channel->lock, &limit) == 0;
}

static void nccl_abort(struct comm_channel *channel)
{
    if (atomic_load(&channel->aborted))
        return;
    cudaSetDevice(channel->gpu);
    bool locked = lock_soon(channel);
    if (!atomic_exchange(&channel->aborted, true))
        ncclCommAbort(channel->nccl);
    if (locked)
        pthread_mutex_unlock(&channel->lock);
}

CUDA_ENTRY extern const struct comm_transport sifr_comm_nccl;
const struct comm_transport sifr_comm_nccl = {
    .name = "nccl",
    .make_id = nccl_make_id,
    .open = nccl_open,
    .close = nccl_close,
    .reaches = nccl_reaches,
    .enqueue = cuda_work,
    .swap = nccl_swap,
    .sum = nccl_sum,
    .mark = nccl_mark,
    .passed = nccl_passed,
    .failed = nccl_channel_failed,
    .abort = nccl_abort,
};
