/* comm_calls -- the collectives: argument checks, the queue of a stream, and how each call is made
 * of swaps.
 *
 * A call is a struct that travels through the stream's ring and runs there. Around it are its
 * number, the rank's position (for ranks that ask), the clock, the counters, injected delays and
 * the sticky error. After an error every later call on the communicator does nothing and fails its
 * stream.
 *
 * Calls on a channel (comm_transport.c) are not tasks of the stream: they run when they are
 * enqueued on the GPU, and `run` returns as soon as they are. comm_watch.c sees them finish.
 *
 * Bytes are counted as they are sent: a gather or an all-to-all sends n-1 parts; in a broadcast a
 * rank sends once to each of its children in a binomial tree. They are counted when a call is made,
 * not when it has finished, so the traffic of a step is known at its end even though part of it is
 * still in flight.
 */
#include "base/clock.h"
#include "comm/comm_impl.h"

/* --- the collectives ------------------------------------------------------------------------ */

static size_t part_bytes(const struct comm_call *call)
{
    return (size_t)call->count * dtype_bytes(call->type);
}

/* A rank's message to itself: part of the swap on a channel, where a swap is one enqueued
 * operation, and a copy otherwise. */
static void move_own(const struct comm_call *call, struct stream *stream, void *dst,
                     const void *src, size_t bytes)
{
    struct comm *comm = call->comm;
    if (!call->on_channel) {
        device_copy(stream, dst, src, bytes);
        return;
    }
    comm_set_move(comm->sends, comm->rank, src, bytes);
    comm_set_move(comm->recvs, comm->rank, dst, bytes);
}

static enum status do_all_gather(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    size_t part = part_bytes(call);
    char *full = call->dst;
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            continue;
        comm_set_move(comm->sends, r, call->src, part);
        comm_set_move(comm->recvs, r, full + (size_t)r * part, part);
    }
    char *mine = full + (size_t)comm->rank * part;
    if (mine != call->src)
        move_own(call, stream, mine, call->src, part);
    return comm_swap(call, 0, stream);
}

static enum status do_all_to_all(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    const struct comm_parts *parts = &call->parts;
    size_t element = dtype_bytes(call->type);
    for (int r = 0; r < comm->size; r++) {
        bool even = parts->send_counts == NULL; /* the same count for every pair */
        int64_t out = even ? call->count : parts->send_counts[r];
        int64_t in = even ? call->count : parts->recv_counts[r];
        int64_t out_at = even ? r * call->count : parts->send_offsets[r];
        int64_t in_at = even ? r * call->count : parts->recv_offsets[r];
        const char *src = out > 0 ? (const char *)call->src + (size_t)out_at * element : NULL;
        char *dst = in > 0 ? (char *)call->dst + (size_t)in_at * element : NULL;
        CHECK(out >= 0 && in >= 0);
        if (r == comm->rank) {
            CHECK_EQ(out, in);
            move_own(call, stream, dst, src, (size_t)in * element);
        } else {
            comm_set_move(comm->sends, r, src, (size_t)out * element);
            comm_set_move(comm->recvs, r, dst, (size_t)in * element);
        }
    }
    return comm_swap(call, 0, stream);
}

/* The tree of a broadcast, in ranks relative to the root: a rank's parent is the rank without its
 * lowest set bit; its children are the rank plus each power of two below that bit. */
static int relative_rank(const struct comm *comm, int root)
{
    return (comm->rank - root + comm->size) % comm->size;
}

static int lowest_bit(const struct comm *comm, int relative)
{
    int bit = 1;
    while (relative == 0 ? bit < comm->size : (relative & bit) == 0)
        bit <<= 1;
    return bit;
}

static int child_count(const struct comm *comm, int root)
{
    int relative = relative_rank(comm, root), children = 0;
    for (int bit = lowest_bit(comm, relative) >> 1; bit > 0; bit >>= 1)
        children += relative + bit < comm->size;
    return children;
}

static enum status do_broadcast(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    int relative = relative_rank(comm, call->peer), lowest = lowest_bit(comm, relative);
    size_t bytes = part_bytes(call);
    if (relative > 0) {
        int parent = (relative - lowest + call->peer) % comm->size;
        comm_set_move(comm->recvs, parent, call->dst, bytes);
        TRY(comm_swap(call, 0, stream));
    }
    for (int bit = lowest >> 1; bit > 0; bit >>= 1) {
        if (relative + bit < comm->size)
            comm_set_move(comm->sends, (relative + bit + call->peer) % comm->size, call->dst,
                          bytes);
    }
    return comm_swap(call, 0, stream);
}

static enum status do_send(const struct comm_call *call, struct stream *stream)
{
    comm_set_move(call->comm->sends, call->peer, call->src, part_bytes(call));
    return comm_swap(call, 0, stream);
}

static enum status do_recv(const struct comm_call *call, struct stream *stream)
{
    comm_set_move(call->comm->recvs, call->peer, call->dst, part_bytes(call));
    return comm_swap(call, 0, stream);
}

/* comm_barrier and comm_exchange. Without a destination it is a barrier: in round k every rank
 * sends to the rank 2^k above and receives from the one 2^k below. */
static enum status do_control(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    char token = 0, taken = 0;
    size_t part = part_bytes(call);
    if (call->dst == NULL) {
        for (int k = 0; 1 << k < comm->size; k++) {
            int step = 1 << k, n = comm->size;
            comm_set_move(comm->sends, (comm->rank + step) % n, &token, 1);
            comm_set_move(comm->recvs, (comm->rank - step + n) % n, &taken, 1);
            TRY(comm_swap(call, k, stream));
        }
        return STATUS_OK;
    }
    for (int r = 0; r < comm->size; r++) {
        char *position = (char *)call->dst + (size_t)r * part;
        if (r == comm->rank) {
            if (part > 0 && position != call->src)
                memcpy(position, call->src, part);
            continue;
        }
        comm_set_move(comm->sends, r, call->src, part);
        comm_set_move(comm->recvs, r, position, part);
    }
    return comm_swap(call, 0, stream);
}

typedef enum status do_fn(const struct comm_call *call, struct stream *stream);
static do_fn *const doers[] = {
    [COMM_ALL_GATHER] = do_all_gather,
    [COMM_ALL_TO_ALL] = do_all_to_all,
    [COMM_REDUCE_SCATTER] = comm_do_reduce_scatter,
    [COMM_ALL_REDUCE] = comm_do_all_reduce,
    [COMM_BROADCAST] = do_broadcast,
    [COMM_SEND] = do_send,
    [COMM_RECV] = do_recv,
    [COMM_CONTROL] = do_control,
};

/* --- running a call ------------------------------------------------------------------------- */

static void enter(struct comm *comm, const struct comm_call *call, const struct stream *stream)
{
    pthread_mutex_lock(&comm->job->lock);
    comm->call_stream = stream;
    comm->position.inside = true;
    comm->position.on_gpu = call->on_channel;
    comm->position.kind = call->kind;
    comm->position.peer = call->peer;
    comm->position.call = call->number;
    if (!comm_is_pair(call->kind))
        comm->position.number = call->number;
    pthread_mutex_unlock(&comm->job->lock);
}

static void delay(struct comm *comm)
{
    if (comm->max_delay > 0)
        clock_sleep(comm->max_delay * rng_uniform(comm->delays, comm->delay_count++));
}

static struct trace_span span_of(const struct comm *comm, const struct comm_call *call)
{
    bool named = call->label != NULL;
    return (struct trace_span){
        .lane = comm->lane,
        .category = "comm",
        .name = named ? comm->lane->word : comm_kind_word(call->kind),
        .object = call->label,
        .number = call->number,
        .bytes = (int64_t)call->bytes_out,
    };
}

/* A span of a call: of a channel's on the GPU's clock, since the host only enqueues it. */
struct drawing {
    double start;
    int64_t mark;
};

static struct drawing begin_drawing(const struct comm_call *call, struct stream *stream)
{
    struct trace_span span = span_of(call->comm, call);
    if (call->on_channel)
        return (struct drawing){-1, stream_span_begin(stream, &span)};
    return (struct drawing){trace_begin(call->comm->env->trace), -1};
}

static void end_drawing(const struct comm_call *call, struct stream *stream, struct drawing drawing)
{
    struct trace_span span = span_of(call->comm, call);
    if (call->on_channel)
        stream_span_end(stream, drawing.mark);
    else
        trace_end(call->comm->env->trace, drawing.start, &span);
}

/* Counters change under the communicator's lock. */
static void count_done(struct comm *comm, const struct comm_call *call, const struct stream *stream,
                       double seconds)
{
    struct comm_counter *counter = &comm->counters[call->kind];
    bool blocked = !call->on_channel && (stream == NULL || !stream_is_worker(stream));
    counter->calls++;
    counter->seconds += seconds;
    counter->blocked += blocked ? seconds : 0;
}

/* Run a call on the thread that executes it; stream NULL: a call of the host. */
static enum status run(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    enum status st = (enum status)atomic_load(&comm->error);
    if (st == STATUS_OK && comm_job_failed(comm->job))
        st = comm_job_ended(comm->job);
    if (st == STATUS_OK && stream != NULL && stream_failed(stream)) {
        comm_abort(comm,
                   log_first_error(comm->env->log)); /* do not let other ranks wait for this one */
        st = STATUS_COMM;
    }
    if (st == STATUS_OK) {
        double start = clock_seconds();
        struct drawing drawing = begin_drawing(call, stream);
        enter(comm, call, stream);
        int slot = call->on_channel ? comm_flight_begin(comm, &comm->position, stream) : -1;
        delay(comm);
        if (comm->slow > 0)
            clock_sleep(comm->slow);
        st = doers[call->kind](call, stream);
        if (slot >= 0)
            comm_flight_mark(comm, slot, stream);
        delay(comm);
        pthread_mutex_lock(&comm->job->lock);
        comm->position.inside = false;
        pthread_mutex_unlock(&comm->job->lock);
        end_drawing(call, stream, drawing);
        double seconds =
            device_is_dry(comm->device) ? comm_spend(call, stream) : clock_seconds() - start;
        pthread_mutex_lock(&comm->lock);
        if (st == STATUS_OK)
            count_done(comm, call, stream, seconds);
        pthread_mutex_unlock(&comm->lock);
    }
    int none = STATUS_OK;
    atomic_compare_exchange_strong(&comm->error, &none, (int)st);
    return st;
}

static void run_task(struct stream *stream, const void *args)
{
    const struct comm_call *call = args;
    struct comm *comm = call->comm;
    stream_fail(stream, run(call, stream));
    pthread_mutex_lock(&comm->lock);
    comm->pending--;
    if (comm->pending == 0)
        pthread_cond_broadcast(&comm->idle);
    pthread_mutex_unlock(&comm->lock);
}

static int64_t next_number(struct comm *comm, enum comm_kind kind)
{
    return comm_is_pair(kind) ? ++comm->pair_count : ++comm->collective_count;
}

static void enqueue(struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    const void *data = call->dst != NULL ? call->dst : call->src;
    CHECK(call->count >= 0);
    /* The buffers are GPU memory on all ranks or on none, so one address decides. */
    call->on_channel = comm->channel != NULL && data != NULL && comm->job->transport->reaches(data);
    call->number = next_number(comm, call->kind);
    call->label = comm->label;
    comm->label = NULL;
    bool dry = device_is_dry(comm->device);
    double seconds = dry ? comm_spend(call, stream) : 0.0;
    pthread_mutex_lock(&comm->lock);
    comm->counters[call->kind].bytes += (int64_t)call->bytes_out;
    if (dry)
        count_done(comm, call, stream, seconds);
    else
        comm->pending++;
    pthread_mutex_unlock(&comm->lock);
    if (call->on_channel)
        comm->job->transport->enqueue(stream, run_task, call, sizeof *call);
    else
        stream_enqueue(stream, run_task, call, sizeof *call);
}

void comm_wait_idle(struct comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->pending > 0)
        pthread_cond_wait(&comm->idle, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    if (comm->channel != NULL)
        comm_flight_wait(comm);
}

/* --- the public functions ------------------------------------------------------------------- */

static struct comm_call call_of(struct comm *comm, enum comm_kind kind, const void *src, void *dst,
                                int64_t count, enum dtype type)
{
    return (struct comm_call){
        .comm = comm, .kind = kind, .type = type, .count = count, .src = src, .dst = dst};
}

static size_t to_others(const struct comm *comm, int64_t count, enum dtype type)
{
    return (size_t)(comm->size - 1) * (size_t)count * dtype_bytes(type);
}

static void check_sum(enum dtype type)
{
    CHECK(type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64);
}

static void check_peer(const struct comm *comm, int peer)
{
    CHECK(0 <= peer && peer < comm->size);
}

void comm_all_gather(struct comm *comm, const void *shard, void *full, int64_t count,
                     enum dtype type, struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_ALL_GATHER, shard, full, count, type);
    call.bytes_out = to_others(comm, count, type);
    enqueue(&call, stream);
}

void comm_all_to_all(struct comm *comm, const void *send, void *recv, int64_t count,
                     enum dtype type, struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_ALL_TO_ALL, send, recv, count, type);
    CHECK(send != recv || count == 0);
    call.bytes_out = to_others(comm, count, type);
    enqueue(&call, stream);
}

void comm_all_to_all_v(struct comm *comm, const void *send, void *recv,
                       const struct comm_parts *parts, enum dtype type, struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_ALL_TO_ALL, send, recv, 0, type);
    call.parts = *parts;
    for (int r = 0; r < comm->size; r++) {
        CHECK(parts->send_counts[r] >= 0 && parts->recv_counts[r] >= 0);
        if (r != comm->rank)
            call.bytes_out += (size_t)parts->send_counts[r] * dtype_bytes(type);
    }
    enqueue(&call, stream);
}

void comm_reduce_scatter(struct comm *comm, const void *full, void *shard, int64_t count,
                         enum dtype type, void *scratch, struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_REDUCE_SCATTER, full, shard, count, type);
    check_sum(type);
    call.scratch = scratch;
    call.bytes_out = to_others(comm, count, type);
    enqueue(&call, stream);
}

void comm_all_reduce(struct comm *comm, void *data, int64_t count, enum dtype type, void *scratch,
                     struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_ALL_REDUCE, NULL, data, count, type);
    check_sum(type);
    call.scratch = scratch;
    call.bytes_out = comm_all_reduce_bytes(comm, count, type);
    enqueue(&call, stream);
}

void comm_broadcast(struct comm *comm, void *data, int64_t count, enum dtype type, int root,
                    struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_BROADCAST, NULL, data, count, type);
    check_peer(comm, root);
    call.peer = root;
    call.bytes_out = (size_t)child_count(comm, root) * (size_t)count * dtype_bytes(type);
    enqueue(&call, stream);
}

void comm_send(struct comm *comm, const void *data, int64_t count, enum dtype type, int to,
               struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_SEND, data, NULL, count, type);
    check_peer(comm, to);
    CHECK(to != comm->rank);
    call.peer = to;
    call.bytes_out = (size_t)count * dtype_bytes(type);
    enqueue(&call, stream);
}

void comm_recv(struct comm *comm, void *data, int64_t count, enum dtype type, int from,
               struct stream *stream)
{
    struct comm_call call = call_of(comm, COMM_RECV, NULL, data, count, type);
    check_peer(comm, from);
    CHECK(from != comm->rank);
    call.peer = from;
    enqueue(&call, stream);
}

/* --- synchronous calls on the host ---------------------------------------------------------- */

static enum status run_now(struct comm_call *call)
{
    struct comm *comm = call->comm;
    comm_wait_idle(comm);
    call->number = next_number(comm, call->kind);
    pthread_mutex_lock(&comm->lock);
    comm->counters[call->kind].bytes += (int64_t)call->bytes_out;
    pthread_mutex_unlock(&comm->lock);
    return run(call, NULL);
}

enum status comm_barrier(struct comm *comm)
{
    struct comm_call call = call_of(comm, COMM_CONTROL, NULL, NULL, 0, DTYPE_U8);
    for (int k = 0; 1 << k < comm->size; k++)
        call.bytes_out++;
    return run_now(&call);
}

enum status comm_exchange(struct comm *comm, const void *mine, size_t bytes, void *all)
{
    struct comm_call call = call_of(comm, COMM_CONTROL, mine, all, (int64_t)bytes, DTYPE_U8);
    CHECK(all != NULL);
    call.bytes_out = to_others(comm, (int64_t)bytes, DTYPE_U8);
    return run_now(&call);
}
