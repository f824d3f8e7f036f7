/* comm_bounce -- swaps of memory that the host cannot reach, through pinned bounce buffers.
 *
 * A back end moves bytes between host addresses. For a device with memory of its own, a message is
 * copied out to a bounce buffer, swapped from there, and copied in at the other end. The buffers
 * are small and allocated at start-up, so messages move in rounds: round k moves the bytes from k *
 * chunk of every message. Both ends cut a message alike, because the chunk size follows from the
 * kind of call and the number of ranks alone. Each buffer has two halves with a stream each, so
 * that copies overlap with the swap:
 *
 *     half 0     out 0 |  swap 0  | in 0   out 2 |  swap 2  | ...
 *     half 1     out 1 ...........|  swap 1  | in 1   out 3 | ...
 *
 * A half is synchronized before its round is swapped: then the outgoing data is in it, and the data
 * received two rounds before has been copied out of it. Data that goes to several ranks in one swap
 * is copied out once. Host addresses are copied as well, by the host: they are few and small.
 */
#include "comm/comm_impl.h"

enum { BOUNCE_BYTES = 4 << 20 }; /* size of one half, in each direction */

enum status comm_bounce_open(struct comm *comm)
{
    enum status st;
    struct comm_bounce *bounce = &comm->bounce;
    size_t size = (size_t)comm->size;
    if (!comm->job->bounced || size == 1)
        return STATUS_OK;
    TRY(mem_alloc_array(comm->env, MEM_OTHER, "bounce", 2 * size, sizeof *bounce->sends,
                        &bounce->sends));
    bounce->recvs = bounce->sends + size;
    TRY_OR(undo, mem_alloc_array(comm->env, MEM_OTHER, "bounce", 2 * size, sizeof(int),
                                 &bounce->out_slots));
    bounce->in_slots = bounce->out_slots + size;
    for (int i = 0; i < 2; i++) {
        struct bounce_half *half = &bounce->halves[i];
        TRY_OR(undo, device_alloc_host(comm->device, MEM_COMM, "bounce", BOUNCE_BYTES, &half->out));
        TRY_OR(undo, device_alloc_host(comm->device, MEM_COMM, "bounce", BOUNCE_BYTES, &half->in));
        TRY_OR(undo, stream_create(comm->device, "bounce", &half->stream));
    }
    return STATUS_OK;
undo:
    comm_bounce_close(comm);
    return st;
}

void comm_bounce_close(struct comm *comm)
{
    struct comm_bounce *bounce = &comm->bounce;
    for (int i = 0; i < 2; i++) {
        stream_destroy(bounce->halves[i].stream);
        device_free(comm->device, bounce->halves[i].in);
        device_free(comm->device, bounce->halves[i].out);
    }
    mem_free(comm->env, bounce->out_slots);
    mem_free(comm->env, bounce->sends);
}

/* --- cutting messages into chunks ----------------------------------------------------------- */

/* Both ends of a message must compute the same size. A send, a receive or a broadcast has one
 * distinct message in each direction; every other call has up to one per other rank. */
static size_t chunk_bytes(const struct comm *comm, enum comm_kind kind)
{
    bool one = kind == COMM_SEND || kind == COMM_RECV || kind == COMM_BROADCAST;
    size_t chunk = one ? BOUNCE_BYTES : BOUNCE_BYTES / (size_t)(comm->size - 1) / 64 * 64;
    CHECK_LT(0, chunk);
    return chunk;
}

/* The part of a swap that one round moves. */
struct round {
    struct comm *comm;
    struct bounce_half *half;
    size_t chunk, at; /* at: offset of this round's chunk in every message */
};

static struct round round_of(struct comm *comm, size_t chunk, size_t number)
{
    return (struct round){comm, &comm->bounce.halves[number % 2], chunk, number * chunk};
}

static size_t part_of(const struct round *round, const struct comm_move *move)
{
    size_t left = move->bytes > round->at ? move->bytes - round->at : 0;
    return left < round->chunk ? left : round->chunk;
}

/* Give each message a slot in the buffer; adjacent ranks with the same data share one. */
static void number_slots(const struct comm_move *moves, int size, int *slots)
{
    const struct comm_move *last = NULL;
    int slot = -1;
    for (int r = 0; r < size; r++) {
        if (moves[r].bytes == 0)
            continue;
        if (last == NULL || last->data != moves[r].data || last->bytes != moves[r].bytes)
            slot++;
        slots[r] = slot;
        last = &moves[r];
    }
}

static size_t round_count(const struct comm *comm, size_t chunk)
{
    size_t most = 0;
    for (int i = 0; i < 2 * comm->size; i++) { /* recvs follow sends */
        size_t bytes = comm->bounce.sends[i].bytes;
        most = bytes > most ? bytes : most;
    }
    return (most + chunk - 1) / chunk;
}

/* --- one round of chunks -------------------------------------------------------------------- */

static void bring_out(struct round round)
{
    const struct comm_bounce *bounce = &round.comm->bounce;
    int done = -1;
    for (int r = 0; r < round.comm->size; r++) {
        size_t bytes = part_of(&round, &bounce->sends[r]);
        int slot = bounce->out_slots[r];
        if (bytes == 0 || slot == done)
            continue;
        device_copy(round.half->stream, round.half->out + (size_t)slot * round.chunk,
                    bounce->sends[r].data + round.at, bytes);
        done = slot;
    }
}

static void bring_in(struct round round)
{
    const struct comm_bounce *bounce = &round.comm->bounce;
    for (int r = 0; r < round.comm->size; r++)
        device_copy(round.half->stream, bounce->recvs[r].data + round.at,
                    round.half->in + (size_t)bounce->in_slots[r] * round.chunk,
                    part_of(&round, &bounce->recvs[r]));
}

static enum status swap_round(struct round round, uint64_t stamp)
{
    struct comm *comm = round.comm;
    const struct comm_bounce *bounce = &comm->bounce;
    for (int r = 0; r < comm->size; r++) {
        comm_set_move(comm->sends, r, round.half->out + (size_t)bounce->out_slots[r] * round.chunk,
                      part_of(&round, &bounce->sends[r]));
        comm_set_move(comm->recvs, r, round.half->in + (size_t)bounce->in_slots[r] * round.chunk,
                      part_of(&round, &bounce->recvs[r]));
    }
    return comm->backend->swap(comm, stamp);
}

/* A failed copy is this rank's own error: end the job, so that no rank waits for it. */
static enum status sync_half(struct comm *comm, const struct bounce_half *half)
{
    enum status st = stream_sync(half->stream);
    if (st != STATUS_OK)
        comm_abort(comm, log_first_error(comm->env->log));
    return st;
}

enum status comm_bounce_swap(struct comm *comm, enum comm_kind kind, uint64_t stamp)
{
    enum status st = STATUS_OK;
    struct comm_bounce *bounce = &comm->bounce;
    size_t chunk = chunk_bytes(comm, kind);
    memcpy(bounce->sends, comm->sends, 2 * (size_t)comm->size * sizeof *bounce->sends);
    number_slots(bounce->sends, comm->size, bounce->out_slots);
    number_slots(bounce->recvs, comm->size, bounce->in_slots);
    size_t rounds = round_count(comm, chunk);
    bring_out(round_of(comm, chunk, 0));
    for (size_t k = 0; k < rounds && st == STATUS_OK; k++) {
        struct round round = round_of(comm, chunk, k);
        if (k + 1 < rounds)
            bring_out(round_of(comm, chunk, k + 1));
        st = sync_half(comm, round.half);
        if (st == STATUS_OK)
            st = swap_round(round, stamp);
        if (st == STATUS_OK)
            bring_in(round);
    }
    for (int i = 0; i < 2;
         i++) { /* after an error, too: nothing may write to the caller's memory */
        enum status last = sync_half(comm, &bounce->halves[i]);
        st = st == STATUS_OK ? last : st;
    }
    return st;
}
