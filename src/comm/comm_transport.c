/* comm_transport -- a way from GPU to GPU beside the back end: which one, and a link for each
 * communicator.
 *
 * The root of a job is made with its back end (mpi, threads, self); then its ranks tell each other
 * their GPUs and whether the plugin is there, and all come to the same decision. From then on every
 * communicator has a link of its own, whose id its first rank makes and the back end passes round.
 *
 * Swaps on links, and sums, are kernels that wait for each other across GPUs, so two of them that
 * come in another order on another rank can hold each other up for ever, on whatever streams they
 * are. So all swaps of a rank run one after the other in the order in which they were enqueued:
 * each waits for the event of the one before. The order is the same on all ranks because one thread
 * enqueues them, the one that makes the calls, and all ranks make the same calls: that is why
 * streams for such a communicator have no thread of their own (comm_stream_create).
 */
#include <stdio.h>
#include "base/plugin.h"
#include "comm/comm_impl.h"

/* What a rank tells of itself. */
struct offer {
    char gpu[DEVICE_GPU_BYTES];
    char why[256]; /* "" = the path can be used here */
};

static void make_offer(struct comm *root, struct offer *mine)
{
    const struct comm_transport *transport;
    snprintf(mine->gpu, sizeof mine->gpu, "%s", device_gpu(root->device));
    if (plugin_look("cuda", COMM_NCCL_ENTRY, &transport, mine->why, sizeof mine->why))
        root->job->transport = transport;
}

/* Why the ranks cannot use the path; "" = they can. The same text on all ranks. */
static void judge(const struct offer *offers, int size, char *out, size_t bytes)
{
    out[0] = '\0';
    for (int r = 0; r < size && out[0] == '\0'; r++) {
        if (offers[r].why[0] != '\0')
            snprintf(out, bytes, "rank %d has no NCCL: %s", r, offers[r].why);
        for (int other = 0; other < r && out[0] == '\0'; other++) {
            if (strcmp(offers[r].gpu, offers[other].gpu) == 0)
                snprintf(out, bytes,
                         "ranks %d and %d share the GPU %s, and NCCL needs one for each", other, r,
                         offers[r].gpu);
        }
    }
}

/* Only the calls of its users are numbered and counted. */
static void forget_calls(struct comm *comm)
{
    comm->counters[COMM_CONTROL] = (struct comm_counter){0};
    comm->collective_count = 0;
    pthread_mutex_lock(&comm->job->lock);
    comm->position = (struct comm_position){.here = true};
    pthread_mutex_unlock(&comm->job->lock);
}

/* The path cannot be used: refused, or told. Ranks that are threads meet this often, in tests on
 * one GPU. */
static enum status do_without(struct comm_job *job, enum comm_wish wish, const char *why)
{
    bool threads = job->backend == &comm_threads;
    job->transport = NULL;
    if (wish == COMM_TRANSPORT)
        return FAIL(job->env, CONFIG, "%s; use comm.backend %s, which goes through the host", why,
                    threads ? "threads" : "mpi");
    if (threads)
        log_debug(job->env, "messages go through the host: %s", why);
    else
        log_info(job->env, "messages go through the host: %s", why);
    return STATUS_OK;
}

enum status comm_check_device(struct env *env, const char *backend, const char *device)
{
    if (strcmp(backend, "nccl") != 0 || strcmp(device, "cuda") == 0)
        return STATUS_OK;
    return FAIL(env, CONFIG,
                "comm.backend 'nccl' moves memory of GPUs; the device is '%s': leave it at auto, "
                "or give run.device=cuda",
                device);
}

enum status comm_transport_choose(struct comm *root, enum comm_wish wish)
{
    enum status st;
    struct env *env = root->env;
    struct comm_job *job = root->job;
    struct offer mine = {0}, *offers;
    char why[512];
    bool on_gpu = strcmp(device_backend(root->device), "cuda") == 0;
    if (wish == COMM_TRANSPORT)
        TRY(comm_check_device(env, "nccl", device_backend(root->device)));
    if (wish == COMM_NO_TRANSPORT || !on_gpu ||
        (wish == COMM_TRANSPORT_IF_POSSIBLE && root->size == 1))
        return STATUS_OK;
    TRY(mem_alloc_array(env, MEM_OTHER, "GPUs", (size_t)root->size, sizeof *offers, &offers));
    make_offer(root, &mine);
    TRY_OR(undo_offers, comm_exchange(root, &mine, sizeof mine, offers));
    forget_calls(root);
    judge(offers, root->size, why, sizeof why);
    if (why[0] == '\0') {
        TRY_OR(undo_offers, event_create(root->device, &job->issued));
        st = comm_watch_start(job);
    } else {
        st = do_without(job, wish, why);
    }
undo_offers:
    mem_free(env, offers);
    return st;
}

/* Ranks meet once more when all have their link: with ranks in one process, one that is done
 * enqueues a swap and may then wait in the driver for the others, with locks that they need for the
 * memory of their links. */
enum status comm_transport_open(struct comm *comm)
{
    enum status st;
    const struct comm_transport *transport = comm->job->transport;
    struct {
        enum status status;
        unsigned char id[COMM_ID_BYTES];
    } mine = {.status = STATUS_OK}, *all;
    if (transport == NULL)
        return STATUS_OK;
    TRY(mem_alloc_array(comm->env, MEM_OTHER, "ids", (size_t)comm->size, sizeof *all, &all));
    if (comm->rank == 0)
        mine.status = transport->make_id(comm->env, mine.id);
    TRY_OR(undo_all, comm_exchange(comm, &mine, sizeof mine, all));
    TRY_OR(undo_all, all[0].status);
    TRY_OR(undo_all, transport->open(comm, all[0].id, &comm->channel));
    comm_watch_add(comm);
    comm_barrier(comm); /* who does not come has ended the job, and the next call tells */
    forget_calls(comm);
undo_all:
    mem_free(comm->env, all);
    return st;
}

/* The library waits for the other ranks without end, so they first meet in a call that does not. */
void comm_transport_close(struct comm *comm)
{
    if (comm->channel == NULL)
        return;
    enum status met = comm_barrier(comm);
    comm_watch_remove(comm);
    if (met != STATUS_OK)
        comm->job->transport->abort(comm->channel);
    comm->job->transport->close(comm->channel);
    comm->channel = NULL;
}

void comm_transport_quit(struct comm_job *job)
{
    comm_watch_stop(job);
    event_destroy(job->issued);
}
