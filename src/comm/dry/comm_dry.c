/* comm_dry -- one rank of a job of any size, without the other ranks: `sifr plan` walks a step on
 * it.
 *
 * Collectives are enqueued on streams of a dry device, where nothing runs; comm_calls.c counts
 * them. Only the synchronous calls of the host reach this back end: every other rank answers with
 * what this rank sends, so that agreements agree.
 */
#include <string.h>
#include "comm/comm_impl.h"

static enum status dry_join(struct comm_job *job, const struct comm_member *member)
{
    CHECK(0 <= member->rank && member->rank < member->size);
    job->rank = member->rank;
    job->size = member->size;
    return STATUS_OK;
}

static enum status dry_swap(struct comm *comm, uint64_t stamp)
{
    (void)stamp;
    for (int r = 0; r < comm->size; r++) {
        const struct comm_move *out = &comm->sends[r], *in = &comm->recvs[r];
        if (in->bytes > 0 && in->bytes == out->bytes)
            memcpy(in->data, out->data, in->bytes);
    }
    return STATUS_OK;
}

const struct comm_backend comm_dry = {
    .name = "dry",
    .job_bytes = sizeof(struct comm_job),
    .comm_bytes = sizeof(struct comm),
    .join = dry_join,
    .swap = dry_swap,
};
