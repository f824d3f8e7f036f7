/* comm_swap -- one swap of messages, by one of three routes: the back end, the back end through
 * bounce buffers, or a channel between GPUs.
 *
 * Swaps and sums on channels are kernels that wait for each other across GPUs. Two of them that are
 * enqueued in a different order on another rank can block each other forever, whatever their
 * streams. So all swaps of a rank run one after the other, in the order in which they were
 * enqueued: each waits for the event of the one before. The order is the same on all ranks because
 * one thread enqueues them, the one that makes the calls, and all ranks make the same calls. That
 * is why the streams of such a communicator have no thread of their own (comm_stream_create).
 */
#include "base/progress.h"
#include "comm/comm_impl.h"

enum { STEPS = 32 }; /* the most swaps of one call */

/* Enqueue a swap, or a sum, after all earlier ones of this rank. */
static enum status issue(const struct comm_call *call, bool sum, struct stream *stream)
{
    struct comm_job *job = call->comm->job;
    pthread_mutex_lock(&job->issue_lock);
    stream_wait(stream, job->issued);
    enum status st =
        sum ? job->transport->sum(call, stream) : job->transport->swap(call->comm, stream);
    event_record(job->issued, stream);
    pthread_mutex_unlock(&job->issue_lock);
    if (st != STATUS_OK &&
        !comm_job_failed(job)) /* end the job, so that no rank waits for this one */
        comm_abort(call->comm, log_first_error(job->env->log));
    return st;
}

enum status comm_swap_sum(const struct comm_call *call, struct stream *stream)
{
    return issue(call, true, stream);
}

enum status comm_swap(const struct comm_call *call, int step, struct stream *stream)
{
    struct comm *comm = call->comm;
    enum status st = STATUS_OK;
    bool any = false;
    uint64_t stamp = 0; /* of pairs, which match by their order */
    CHECK_LT(step, STEPS);
    CHECK(call->on_channel || comm->sends[comm->rank].bytes + comm->recvs[comm->rank].bytes == 0);
    for (int r = 0; r < comm->size; r++)
        any = any || comm->sends[r].bytes > 0 || comm->recvs[r].bytes > 0;
    if (!comm_is_pair(call->kind))
        stamp =
            1 + ((uint64_t)call->number * COMM_KIND_COUNT + call->kind) * STEPS + (uint64_t)step;
    if (any && call->on_channel)
        st = issue(call, false, stream);
    else if (any && stream != NULL && comm->bounce.halves[0].stream != NULL)
        st = comm_bounce_swap(comm, call->kind, stamp);
    else if (any)
        st = comm->backend->swap(comm, stamp);
    memset(comm->sends, 0, 2 * (size_t)comm->size * sizeof *comm->sends); /* clears recvs, too */
    progress_add(comm->env);
    return st;
}
