/* mpi_swap -- messages between pairs of ranks, polled so that a waiting thread leaves its core to
 * threads that compute.
 *
 * A thread that waits inside MPI spins. So everything is posted without blocking and tested;
 * between tests the thread first spins a little, then yields, then sleeps up to 100 us. But MPI
 * moves large messages only inside its calls: through shared memory 64 MiB take 5 ms when polled
 * all the time and 45 ms when polled every 100 us. So ranks that have a large message for each
 * other exchange hellos first:
 *
 *     post receives, small sends, hellos    wait for hellos: may sleep, another rank still computes
 *     a hello arrived: post the large send  all hellos are here: bytes move, do not sleep
 *
 * Small messages are sent at once and need no hello. Messages above LARGE_BYTES are cut into blocks
 * of a derived type and a rest, because counts in MPI-3.1 are int.
 */
#include <sched.h>
#include "base/clock.h"
#include "comm/mpi/mpi_impl.h"

#define SMALL_BYTES ((size_t)4096)
#define LARGE_BYTES ((size_t)64 << 20)
enum { TAGS = 16000 }; /* even tags for data, odd tags for hellos; MPI guarantees 32767 */

struct swap {
    struct mpi_comm *mpi;
    struct comm *comm; /* the same object */
    MPI_Datatype block;
    int tag;
    int hellos;     /* still to come */
    int64_t active; /* requests not done */
    size_t bytes;   /* of all messages */
    double since;   /* when something last completed */
    double moving;  /* since when bytes have been moving; 0 = a rank has not arrived yet */
    int asked;      /* how often since then a late rank was asked */
    int polls;      /* without result, since then */
    double sleep;   /* seconds of the next sleep */
};

static MPI_Request *request(const struct swap *swap, enum mpi_slot slot, int rank)
{
    return &swap->mpi->requests[(int)slot * swap->comm->size + rank];
}

/* --- posting -------------------------------------------------------------------------------- */

/* A large message in blocks and a rest. */
struct cut {
    int blocks, rest;
};

static struct cut cut(size_t bytes)
{
    if (bytes <= LARGE_BYTES)
        return (struct cut){0, (int)bytes};
    return (struct cut){(int)(bytes / BLOCK_BYTES), (int)(bytes % BLOCK_BYTES)};
}

static enum status post_part(struct swap *swap, enum mpi_slot slot, int rank, char *data, int count,
                             MPI_Datatype type)
{
    struct env *env = swap->comm->env;
    MPI_Comm wire = swap->mpi->wire;
    if (count == 0)
        return STATUS_OK;
    if (slot == SLOT_OUT_BLOCKS || slot == SLOT_OUT_REST)
        MPI_TRY(env,
                MPI_Isend(data, count, type, rank, swap->tag, wire, request(swap, slot, rank)));
    else
        MPI_TRY(env,
                MPI_Irecv(data, count, type, rank, swap->tag, wire, request(swap, slot, rank)));
    swap->active++;
    return STATUS_OK;
}

/* The message to or from `rank`, if there is one; its rest goes in the slot after `blocks`. */
static enum status post_message(struct swap *swap, const struct comm_move *move,
                                enum mpi_slot blocks, int rank)
{
    if (move->bytes == 0)
        return STATUS_OK;
    struct cut parts = cut(move->bytes);
    TRY(post_part(swap, blocks, rank, move->data, parts.blocks, swap->block));
    return post_part(swap, blocks + 1, rank, move->data + (size_t)parts.blocks * BLOCK_BYTES,
                     parts.rest, MPI_BYTE);
}

static enum status post_hellos(struct swap *swap, int rank)
{
    struct env *env = swap->comm->env;
    MPI_TRY(env, MPI_Irecv(NULL, 0, MPI_BYTE, rank, swap->tag + 1, swap->mpi->wire,
                           request(swap, SLOT_HELLO_IN, rank)));
    swap->active++;
    swap->hellos++;
    MPI_TRY(env, MPI_Isend(NULL, 0, MPI_BYTE, rank, swap->tag + 1, swap->mpi->wire,
                           request(swap, SLOT_HELLO_OUT, rank)));
    swap->active++;
    return STATUS_OK;
}

static enum status post_all(struct swap *swap)
{
    struct comm *comm = swap->comm;
    for (int i = 1; i < comm->size; i++) {
        int r = (comm->rank + i) % comm->size;
        swap->bytes += comm->sends[r].bytes + comm->recvs[r].bytes;
        TRY(post_message(swap, &comm->recvs[r], SLOT_IN_BLOCKS, r));
        if (comm->sends[r].bytes > SMALL_BYTES || comm->recvs[r].bytes > SMALL_BYTES)
            TRY(post_hellos(swap, r));
        else
            TRY(post_message(swap, &comm->sends[r], SLOT_OUT_BLOCKS, r));
    }
    return STATUS_OK;
}

/* --- progress ------------------------------------------------------------------------------- */

/* A request has completed: check that it is what was expected. */
static enum status check_done(struct swap *swap, int index, MPI_Status *status, bool failed)
{
    struct comm *comm = swap->comm;
    enum mpi_slot slot = (enum mpi_slot)(index / comm->size);
    int rank = index % comm->size, count;
    if (failed && status->MPI_ERROR != MPI_SUCCESS) {
        int class = MPI_ERR_OTHER;
        MPI_Error_class(status->MPI_ERROR, &class);
        return class == MPI_ERR_TRUNCATE
                   ? comm_mismatch(comm, rank, "sends more bytes than expected")
                   : mpi_failed(comm->env, "MPI_Testsome", status->MPI_ERROR);
    }
    if (slot == SLOT_IN_BLOCKS || slot == SLOT_IN_REST) {
        struct cut parts = cut(comm->recvs[rank].bytes);
        MPI_Get_count(status, slot == SLOT_IN_BLOCKS ? swap->block : MPI_BYTE, &count);
        if (count != (slot == SLOT_IN_BLOCKS ? parts.blocks : parts.rest))
            return comm_mismatch(comm, rank, "sends fewer bytes than expected");
    }
    if (slot == SLOT_HELLO_IN) {
        swap->hellos--;
        return post_message(swap, &comm->sends[rank], SLOT_OUT_BLOCKS, rank);
    }
    return STATUS_OK;
}

static enum status test(struct swap *swap)
{
    struct mpi_comm *mpi = swap->mpi;
    int done, slots = SLOT_COUNT * swap->comm->size;
    int code = MPI_Testsome(slots, mpi->requests, &done, mpi->indices, mpi->statuses);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS)
        return mpi_failed(swap->comm->env, "MPI_Testsome", code);
    if (done == MPI_UNDEFINED || done == 0)
        return STATUS_OK;
    swap->active -= done;
    swap->since = clock_seconds();
    swap->asked = swap->polls = 0;
    for (int i = 0; i < done; i++)
        TRY(check_done(swap, mpi->indices[i], &mpi->statuses[i], code != MPI_SUCCESS));
    if (swap->hellos == 0 && swap->moving == 0)
        swap->moving = swap->since;
    return STATUS_OK;
}

/* --- waiting -------------------------------------------------------------------------------- */

enum { SPINS = 50, YIELDS = 100 };
static const double FIRST_SLEEP = 10e-6, LONGEST_SLEEP = 100e-6;

/* While bytes move, yield instead of sleeping: at least as long as a slow memory takes for them. */
static bool may_yield(const struct swap *swap)
{
    if (swap->moving == 0 || swap->bytes <= SMALL_BYTES)
        return swap->polls < SPINS + YIELDS;
    return clock_seconds() - swap->moving < 5e-3 + (double)swap->bytes / 1e9;
}

static void back_off(struct swap *swap)
{
    swap->polls++;
    if (swap->polls <= SPINS)
        return;
    if (may_yield(swap)) {
        sched_yield();
        swap->sleep = FIRST_SLEEP;
        return;
    }
    clock_sleep(swap->sleep);
    swap->sleep = swap->sleep * 1.5 < LONGEST_SLEEP ? swap->sleep * 1.5 : LONGEST_SLEEP;
}

/* A rank with outstanding requests, from `first` on; -1 = none. */
static int waits_for(const struct swap *swap, int first)
{
    for (int r = first; r < swap->comm->size; r++) {
        for (int slot = 0; slot < SLOT_COUNT; slot++) {
            if (*request(swap, (enum mpi_slot)slot, r) != MPI_REQUEST_NULL)
                return r;
        }
    }
    return -1;
}

/* Did the rank leave before this call? Its last message may still arrive for a moment. */
static bool has_left(const struct swap *swap, int rank)
{
    struct comm *comm = swap->comm;
    pthread_mutex_lock(&comm->job->lock);
    struct departure departure = swap->mpi->departures[rank];
    pthread_mutex_unlock(&comm->job->lock);
    bool pair = comm_is_pair(comm->position.kind);
    return departure.left && clock_seconds() - departure.when > (pair ? 1 : 0) &&
           (pair || departure.number < comm->position.number);
}

/* Check every reason to stop waiting. */
static enum status look_around(struct swap *swap)
{
    struct comm_job *job = swap->comm->job;
    if (comm_job_failed(job))
        return comm_job_ended(job);
    if (atomic_load_explicit(&swap->mpi->departure_count, memory_order_relaxed) > 0) {
        for (int r = waits_for(swap, 0); r >= 0; r = waits_for(swap, r + 1)) {
            if (has_left(swap, r))
                return comm_gone(swap->comm, r);
        }
    }
    double waited = clock_seconds() - swap->since;
    if (job->timeout <= 0 || waited < job->timeout * (swap->asked + 1))
        return STATUS_OK;
    swap->asked++;
    return comm_late(swap->comm, waits_for(swap, 0), waited);
}

/* After an error: cancel what can be cancelled, so that MPI writes to no buffer of ours. A large
 * message that has been matched cannot be cancelled: MPI moves its bytes whenever any thread calls
 * it, such as the monitor. Its buffer must then outlive MPI, so no memory is freed before the
 * process ends, which it is about to. */
static void abandon(struct swap *swap)
{
    struct mpi_comm *mpi = swap->mpi;
    int slots = SLOT_COUNT * swap->comm->size, done = 0;
    double limit = clock_seconds() + 0.2;
    for (int i = SLOT_HELLO_IN * swap->comm->size; i < slots; i++) {
        if (mpi->requests[i] != MPI_REQUEST_NULL)
            MPI_Cancel(&mpi->requests[i]);
    }
    do
        MPI_Testsome(slots, mpi->requests, &done, mpi->indices, mpi->statuses);
    while (done != MPI_UNDEFINED && clock_seconds() < limit);
    for (int i = 0; i < slots; i++) {
        if (mpi->requests[i] != MPI_REQUEST_NULL) {
            MPI_Request_free(&mpi->requests[i]);
            mem_keep_freed(swap->comm->env->mem);
            atomic_store(&((struct mpi_job *)swap->comm->job)->unclean, true);
        }
    }
}

static enum status wait_all(struct swap *swap)
{
    while (swap->active > 0) {
        TRY(test(swap));
        if (swap->active == 0)
            break;
        back_off(swap);
        if (swap->polls % 16 == 0)
            TRY(look_around(swap));
    }
    return STATUS_OK;
}

enum status mpi_swap(struct comm *comm, uint64_t stamp)
{
    struct swap swap = {.mpi = (struct mpi_comm *)comm,
                        .comm = comm,
                        .block = ((struct mpi_job *)comm->job)->block,
                        .tag = 2 * (int)(stamp % TAGS),
                        .since = clock_seconds(),
                        .sleep = FIRST_SLEEP};
    enum status st = post_all(&swap);
    if (st == STATUS_OK)
        st = wait_all(&swap);
    if (st != STATUS_OK)
        abandon(&swap);
    return st;
}
