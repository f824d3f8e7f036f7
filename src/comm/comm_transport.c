/* comm_transport -- agree on a transport between GPUs, and give each communicator a channel.
 *
 * The root of a job is created with its back end (mpi, threads, self). Then its ranks tell each
 * other their GPUs and whether the plugin is available, and all come to the same decision. From
 * then on every communicator has a channel of its own; its first rank makes the channel's id, and
 * the back end distributes it. comm_swap.c says in which order swaps run on channels.
 */
#include <stdio.h>
#include "base/plugin.h"
#include "comm/comm_impl.h"

/* What a rank tells the others about itself. */
struct offer {
    char gpu[DEVICE_GPU_BYTES];
    char why[256]; /* why it cannot use the transport; "" = it can */
};

/* Why the ranks cannot use the transport; "" = they can. The same text on all ranks. */
static void judge(const struct offer *offers, int size, char *out, size_t bytes)
{
    out[0] = '\0';
    for (int r = 0; r < size && out[0] == '\0'; r++) {
        if (offers[r].why[0] != '\0')
            snprintf(out, bytes, "rank %d has no NCCL: %s", r, offers[r].why);
        for (int other = 0; other < r && out[0] == '\0'; other++) {
            if (strcmp(offers[r].gpu, offers[other].gpu) == 0)
                snprintf(out, bytes,
                         "ranks %d and %d share the GPU %s, but NCCL needs one GPU per rank", other,
                         r, offers[r].gpu);
        }
    }
}

/* Only the users' calls are numbered and counted. */
static void forget_calls(struct comm *comm)
{
    comm->counters[COMM_CONTROL] = (struct comm_counter){0};
    comm->collective_count = 0;
    pthread_mutex_lock(&comm->job->lock);
    comm->position = (struct comm_position){.here = true};
    pthread_mutex_unlock(&comm->job->lock);
}

/* The transport cannot be used: an error, or a log line. For ranks that are threads it is a debug
 * line, because tests on one GPU meet it often. */
static enum status do_without(struct comm_job *job, enum comm_wish wish, const char *why)
{
    bool threads = job->backend == &comm_threads;
    job->transport = NULL;
    if (wish == COMM_TRANSPORT)
        return FAIL(job->env, CONFIG, "%s; use comm.backend=%s, which goes through host memory",
                    why, threads ? "threads" : "mpi");
    if (threads)
        log_debug(job->env, "messages between GPUs go through host memory: %s", why);
    else
        log_info(job->env, "messages between GPUs go through host memory: %s", why);
    return STATUS_OK;
}

enum status comm_check_device(struct env *env, const char *backend, const char *device)
{
    if (strcmp(backend, "nccl") != 0 || strcmp(device, "cuda") == 0)
        return STATUS_OK;
    return FAIL(env, CONFIG,
                "comm.backend=nccl needs GPUs, but the device is '%s'; set comm.backend=auto or "
                "run.device=cuda",
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
    const struct comm_transport *transport;
    snprintf(mine.gpu, sizeof mine.gpu, "%s", device_gpu(root->device));
    if (plugin_look("cuda", COMM_NCCL_ENTRY, &transport, mine.why, sizeof mine.why))
        job->transport = transport;
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

/* The ranks meet again when all have their channel. With ranks in one process, the first could
 * otherwise enqueue a swap and wait in the driver for the others, holding locks that they need to
 * allocate their channels. */
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
    comm_barrier(comm); /* a missing rank has ended the job, and the next call reports it */
    forget_calls(comm);
undo_all:
    mem_free(comm->env, all);
    return st;
}

/* The library would wait for the other ranks forever, so they first meet in a call that can time
 * out. */
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
