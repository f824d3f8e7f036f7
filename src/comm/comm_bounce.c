/* comm_bounce -- swaps of memory that the host cannot reach: through pinned memory of the host.
 *
 * A back end moves bytes between addresses of the host. On a device with memory of its own a
 * message is brought out to a stage, swapped from there, and brought in at the other end. The stage
 * is small and taken at start-up, so messages go in rounds: round k moves bytes k * piece and on of
 * every message, and both ends of a message cut it alike, since a piece follows from the kind of
 * call and the number of ranks alone. The stage has two halves, each with a stream of its own, so
 * that copies go on beside the swap:
 *
 *     half 0     out 0 |  swap 0  | in 0   out 2 |  swap 2  | ...
 *     half 1     out 1 ...........|  swap 1  | in 1   out 3 | ...
 *
 * A half is synced before its round is swapped: then what goes out is there, and what came in two
 * rounds before has left. What goes to several ranks in one swap is brought out once. Addresses of
 * the host are copied too, by the host: they are few and small.
 */
#include "comm/comm_impl.h"

enum { BOUNCE_BYTES = 4 << 20 }; /* of one half, in each direction */

enum status comm_bounce_open(struct comm *comm)
{
    enum status st;
    struct comm_bounce *bounce = &comm->bounce;
    size_t size = (size_t)comm->size;
    if (!comm->job->bounced || size == 1)
        return STATUS_OK;
    TRY(mem_alloc_array(comm->env, MEM_OTHER, "stage", 2 * size, sizeof *bounce->sends,
                        &bounce->sends));
    bounce->recvs = bounce->sends + size;
    TRY_OR(undo, mem_alloc_array(comm->env, MEM_OTHER, "stage", 2 * size, sizeof(int),
                                 &bounce->out_slots));
    bounce->in_slots = bounce->out_slots + size;
    for (int i = 0; i < 2; i++) {
        struct bounce_half *half = &bounce->halves[i];
        TRY_OR(undo, device_alloc_host(comm->device, MEM_COMM, "stage", BOUNCE_BYTES, &half->out));
        TRY_OR(undo, device_alloc_host(comm->device, MEM_COMM, "stage", BOUNCE_BYTES, &half->in));
        TRY_OR(undo, stream_create(comm->device, "stage", &half->stream));
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

/* --- how messages are cut ------------------------------------------------------------------- */

/* Both ends of a message must come to the same: a send, a receive and a broadcast have one message
 * in and one that differs out, everything else up to one for every other rank. */
static size_t chunk_bytes(const struct comm *comm, enum comm_kind kind)
{
    bool one = kind == COMM_SEND || kind == COMM_RECV || kind == COMM_BROADCAST;
    size_t chunk = one ? BOUNCE_BYTES : BOUNCE_BYTES / (size_t)(comm->size - 1) / 64 * 64;
    CHECK_LT(0, chunk);
    return chunk;
}

/* What moves in one round. */
struct round {
    struct comm *comm;
    struct bounce_half *half;
    size_t chunk, at; /* bytes of a message before this round */
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

/* Places in the stage, one after the other; neighbours with the same bytes share one. */
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
    for (int i = 0; i < 2 * comm->size; i++) { /* recvs follow */
        size_t bytes = comm->bounce.sends[i].bytes;
        most = bytes > most ? bytes : most;
    }
    return (most + chunk - 1) / chunk;
}

/* --- a round -------------------------------------------------------------------------------- */

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

/* A copy that failed is this rank's own: nobody may wait for it. */
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
    for (int i = 0; i < 2; i++) { /* after an error as well: nobody writes to the caller's memory */
        enum status last = sync_half(comm, &bounce->halves[i]);
        st = st == STATUS_OK ? last : st;
    }
    return st;
}
