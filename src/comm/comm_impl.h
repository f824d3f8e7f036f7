/* comm_impl -- the inside of a communicator, and the interface of back ends; for src/comm only.
 *
 * A rank has one `struct comm_job`: its list of communicators, the note that says what it is doing,
 * and the reason why the job ended, if it did. The communicators (the root, its copies and groups)
 * belong to it. The code in this folder numbers calls, counts bytes, waits for streams and builds
 * every collective from one primitive, the *swap*: post messages to and from other ranks, and wait
 * for all of them. A back end moves bytes and nothing else.
 *
 * The files, highest first; each calls only those below it:
 *
 *     comm.c            jobs and communicators: create, copy, split, destroy
 *     comm_transport.c  agree on a transport between GPUs; open and close its channels
 *     comm_calls.c      the collectives: queue, numbers, counters, and how most are made of swaps
 *     comm_sums.c       the reductions: sums in rank order, or by the library
 *     comm_swap.c       one swap: by the back end, by bounce buffers, or on a channel
 *     comm_bounce.c     swaps of memory that the host cannot reach
 *     comm_watch.c      a thread that watches calls in flight on GPUs
 *     comm_price.c      the time of calls that are only counted (dry)
 *     comm_late.c       how a job ends early: ranks that are late, have left or gave up
 *
 * A back end (folders dry, mpi, self, threads) calls comm_late.c only.
 *
 * Locks, outermost first: a hub's, a job's, a communicator's or a group's. None is held while bytes
 * move.
 */
#ifndef COMM_COMM_IMPL_H
#define COMM_COMM_IMPL_H
#include <pthread.h>
#include <stdatomic.h>
#include "base/rng.h"
#include "comm/comm.h"

enum { COMM_NAME_BYTES = 32, COMM_NOTE_BYTES = 96, COMM_FAILURE_BYTES = 384 };

/* Where a rank is on one communicator, as it answers to another rank. */
struct comm_position {
    bool here;           /* the communicator exists there */
    bool inside;         /* a call is running */
    bool on_gpu;         /* the newest call runs on GPUs: `inside` ends when it is enqueued */
    bool held_up;        /* the rank itself waits for other ranks, in another communicator */
    enum comm_kind kind; /* of the newest call */
    int peer;            /* of a send or receive: the other rank */
    int64_t call;        /* its number; collectives and pairs (sends, receives) count separately */
    int64_t number;      /* of the newest collective; 0 = none yet */
    char note[COMM_NOTE_BYTES];
};

/* One message of a swap; bytes 0 = no message. */
struct comm_move {
    char *data;
    size_t bytes;
};

struct comm_job;

/* What a rank must be told to join, where the back end cannot find out: threads and dry. */
struct comm_member {
    struct comm_hub *hub; /* threads; borrowed */
    int rank;
    int size;     /* dry */
    bool bounced; /* dry: stands for a device whose memory the host cannot reach */
};

struct comm_backend {
    const char *name;
    size_t job_bytes;  /* size of the back end's job struct, which begins with struct comm_job */
    size_t comm_bytes; /* size of its communicator struct, which begins with struct comm */

    /* Find the other ranks; set job->rank and job->size. `member` is NULL except for threads and
     * dry. */
    enum status (*join)(struct comm_job *job, const struct comm_member *member);
    /* After the last communicator is closed; NULL: nothing to do. */
    void (*quit)(struct comm_job *job);
    /* Called by all ranks of `parent` (NULL for the root), with `comm` filled in and in its job's
     * list. A rank that is in none of the new groups takes part with `comm` NULL. NULL: nothing to
     * do. */
    enum status (*open)(struct comm *comm, struct comm *parent, int colour);
    /* Not collective: ranks that still wait for this one find out. NULL: nothing to do. */
    void (*close)(struct comm *comm);

    /* Move every message of comm->sends and comm->recvs (indexed by rank; host memory) and wait for
     * all. Both ends of a message pass the same `stamp`. Returns early when the job has failed. */
    enum status (*swap)(struct comm *comm, uint64_t stamp);
    /* Ask a rank where it is; false = no answer. */
    bool (*ask)(struct comm *comm, int peer, struct comm_position *position);
    /* Make the job fail with `text` on every rank, including this one. NULL: there is no other. */
    void (*spread)(struct comm_job *job, const char *text);
};

/* A direct way between GPUs (NCCL), implemented in a plugin. It carries the messages of calls on
 * streams and nothing else: ranks join, agree, leave and fail through the back end. Each
 * communicator that uses it has a channel of its own. */
enum { COMM_ID_BYTES = 128, COMM_WATCHED = 32 };
struct comm_channel;
struct comm_call;

struct comm_transport {
    const char *name;
    /* One rank of a new communicator makes the id and sends it to the others; all call `open`. */
    enum status (*make_id)(struct env *env, unsigned char id[COMM_ID_BYTES]);
    enum status (*open)(struct comm *comm, const unsigned char id[COMM_ID_BYTES],
                        struct comm_channel **channel);
    /* Waits for the other ranks, unless the channel was aborted. */
    void (*close)(struct comm_channel *channel);

    bool (*reaches)(const void *address); /* is it GPU memory? */
    /* Call `issue` in the stream's order, on a thread that may enqueue on the stream: at once on
     * the caller's thread, except for worker streams. Unlike a task, `issue` does not wait for
     * earlier work on the stream. */
    void (*enqueue)(struct stream *stream, stream_task_fn *issue, const void *args, size_t bytes);
    /* Enqueue every message of comm->sends and comm->recvs, including this rank's to itself. */
    enum status (*swap)(struct comm *comm, struct stream *stream);
    /* Enqueue the library's own reduction of f32 or f64. */
    enum status (*sum)(const struct comm_call *call, struct stream *stream);

    /* Calls in flight: `mark` records the end of a call in a slot < COMM_WATCHED; `passed` asks
     * whether the GPU has reached it. */
    void (*mark)(struct comm_channel *channel, int slot, struct stream *stream);
    bool (*passed)(struct comm_channel *channel, int slot);
    /* Any thread: has the library reported an error? If so, `why` says which. */
    bool (*failed)(struct comm_channel *channel, char *why, size_t bytes);
    /* Any thread: end the channel's work on the GPU, and release threads inside the library. */
    void (*abort)(struct comm_channel *channel);
};
/* The symbol in libsifr-cuda: a const struct comm_transport. */
#define COMM_NCCL_ENTRY "sifr_comm_nccl"

/* The thread that watches a rank's channels. */
struct comm_watch {
    pthread_t thread;
    bool running;
    _Atomic bool stops;
    pthread_mutex_t lock; /* of the list; outside all other locks */
    struct comm *comms;   /* with a channel, newest first */
};

struct comm_job {
    const struct comm_backend *backend;
    const struct comm_transport *transport; /* NULL: the back end moves everything */
    struct env *env;                        /* borrowed */
    int rank, size;                         /* in the job */
    bool bounced;                           /* the host cannot reach device memory */
    bool fast;                              /* comm_config.fast */
    double timeout;
    pthread_mutex_t lock;
    struct comm *comms;           /* newest first */
    const struct stream *compute; /* comm_set_compute_stream; borrowed, may be NULL */
    char note[COMM_NOTE_BYTES];
    _Atomic bool failed; /* the job has ended */
    bool logged;         /* ... and this rank has logged why */
    char failure[COMM_FAILURE_BYTES];

    const struct comm_prices *prices; /* dry: the time of calls; borrowed; NULL: they take none */

    struct event *issued;       /* with a transport: the end of this rank's newest swap */
    pthread_mutex_t issue_lock; /* held while a swap is enqueued */
    struct comm_watch watch;
};

/* Buffers for sums in rank order (comm_sums.c). */
struct comm_sums {
    void *sum, *wide_zero, *narrow_zero;
};

/* Pinned bounce buffers (comm_bounce.c). */
struct bounce_half {
    struct stream *stream; /* NULL: messages do not bounce */
    char *out, *in;
};

struct comm_bounce {
    struct bounce_half halves[2];
    struct comm_move *sends, *recvs; /* (size) each: the swap in progress, in device memory */
    int *out_slots, *in_slots;       /* (size) each: index of a rank's message in a half */
};

/* Calls that the GPU has not finished, oldest first; under the communicator's lock. */
struct comm_flight {
    int64_t begun, passed; /* counts of calls; call i uses slot i modulo COMM_WATCHED */
    bool marked[COMM_WATCHED];
    struct comm_position calls[COMM_WATCHED];
    struct stream *streams[COMM_WATCHED]; /* borrowed: a stream outlives the calls on it */
    double since; /* when a call last passed, or the first of the current ones began */
    int asked;    /* how often late ranks were asked since then */
    bool ended;   /* the watch has aborted the channel, in thread `ender` */
    pthread_t ender;
};

struct comm {
    const struct comm_backend *backend;
    struct comm_job *job;  /* shared by the rank's communicators; freed with the last */
    struct comm *next;     /* in the job's list */
    struct env *env;       /* borrowed */
    struct device *device; /* borrowed */
    int rank, size;
    bool patient;   /* comm_set_patient */
    int *job_ranks; /* (size) ranks in the job, for messages and questions */
    uint64_t id;    /* equal on all its ranks, unique among communicators */
    int child_count;
    char name[COMM_NAME_BYTES];
    struct comm_sums sums;
    struct comm_bounce bounce;
    struct comm_channel *channel; /* NULL: no transport */
    struct comm_flight flight;
    struct comm *next_watched;
    struct comm_move *sends, *recvs; /* (size) each, in one array: the swap in progress */
    _Atomic int error;               /* enum status of the first failure */

    int64_t collective_count, pair_count; /* numbers given so far */
    struct comm_position position;        /* under the job's lock; its note is not used */
    const struct stream *call_stream;     /* of the call in progress, under the same lock; NULL:
                                             a call of the host */
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int64_t pending; /* calls enqueued and not finished */
    double idle_at;  /* dry: when the last of them ends */
    struct comm_counter counters[COMM_KIND_COUNT];

    const struct trace_lane *lane;
    const char *label; /* of the next call; borrowed */

    double max_delay; /* 0 = none; copies and groups inherit it and the seed */
    uint64_t delay_seed;
    struct rng delays;
    uint64_t delay_count;
    double slow; /* comm_slow_down: additional seconds per call */
};

/* One call, as it travels through a stream's ring. */
struct comm_call {
    struct comm *comm;
    enum comm_kind kind;
    enum dtype type;
    int peer; /* the root, or the other end of a pair */
    int64_t number, count;
    const void *src;
    void *dst, *scratch;
    struct comm_parts parts; /* of comm_all_to_all_v; all NULL otherwise */
    size_t bytes_out;        /* to other ranks, for the counter */
    bool on_channel;         /* the transport moves its memory */
    const char *label;       /* for the trace; NULL: none */
};
_Static_assert(sizeof(struct comm_call) <= STREAM_ARGS_BYTES, "a call fits in the ring");

/* Sends and receives: matched and numbered apart from collectives. */
static inline bool comm_is_pair(enum comm_kind kind)
{
    return kind == COMM_SEND || kind == COMM_RECV;
}

/* --- comm_transport.c ----------------------------------------------------------------------- */
enum comm_wish { COMM_NO_TRANSPORT, COMM_TRANSPORT_IF_POSSIBLE, COMM_TRANSPORT };
/* Agree on job->transport. Collective over the root. */
enum status comm_transport_choose(struct comm *root, enum comm_wish wish);
enum status comm_transport_open(struct comm *comm); /* its channel; collective */
void comm_transport_close(struct comm *comm);
void comm_transport_quit(struct comm_job *job); /* after the last channel */

/* --- comm_calls.c --------------------------------------------------------------------------- */
void comm_wait_idle(struct comm *comm); /* until no call is enqueued on it */

/* --- comm_sums.c ---------------------------------------------------------------------------- */
enum status comm_sums_open(struct comm *comm);
void comm_sums_close(struct comm *comm);
enum status comm_do_reduce_scatter(const struct comm_call *call, struct stream *stream);
enum status comm_do_all_reduce(const struct comm_call *call, struct stream *stream);
size_t comm_all_reduce_bytes(const struct comm *comm, int64_t count, enum dtype type);

/* --- comm_swap.c ---------------------------------------------------------------------------- */
/* Carry out the messages in comm->sends and comm->recvs, and clear both. `step` numbers the swaps
 * of one call. `stream` is the call's; NULL: all addresses are host memory. */
enum status comm_swap(const struct comm_call *call, int step, struct stream *stream);
/* Enqueue the library's sum after all earlier swaps and sums of this rank. */
enum status comm_swap_sum(const struct comm_call *call, struct stream *stream);

static inline void comm_set_move(struct comm_move *moves, int rank, const void *data, size_t bytes)
{
    moves[rank] = (struct comm_move){(char *)data, bytes};
}

/* --- comm_bounce.c -------------------------------------------------------------------------- */
/* Allocates nothing where the host reaches device memory. */
enum status comm_bounce_open(struct comm *comm);
void comm_bounce_close(struct comm *comm); /* works after a failed open */
/* backend->swap for messages in device memory; host memory works, too. */
enum status comm_bounce_swap(struct comm *comm, enum comm_kind kind, uint64_t stamp);

/* --- comm_watch.c --------------------------------------------------------------------------- */
enum status comm_watch_start(struct comm_job *job);
void comm_watch_stop(struct comm_job *job);
void comm_watch_add(struct comm *comm);
void comm_watch_remove(struct comm *comm);
/* A call on a channel begins: returns its slot, or -1 when COMM_WATCHED are in flight already. */
int comm_flight_begin(struct comm *comm, const struct comm_position *position,
                      struct stream *stream);
void comm_flight_mark(struct comm *comm, int slot, struct stream *stream);
void comm_flight_wait(struct comm *comm); /* until none is in flight, or the job has ended */

/* --- comm_price.c --------------------------------------------------------------------------- */
/* Dry: spend a call's time on its stream (NULL: on the host's clock) and return it. */
double comm_spend(const struct comm_call *call, struct stream *stream);

/* --- comm_late.c ---------------------------------------------------------------------------- */
/* A peer of the call in progress has sent nothing for `seconds`: called each time another timeout
 * has passed. OK = it will come, keep waiting; otherwise the job has ended, and all ranks know
 * why. */
enum status comm_late(struct comm *comm, int peer, double seconds);
/* The same for a call of this rank that is not its newest. */
enum status comm_late_at(struct comm *comm, const struct comm_position *mine, int peer,
                         double seconds);
/* End the job because a peer has left, or makes other calls than this rank; `what` completes the
 * sentence "rank N ...". */
enum status comm_gone(struct comm *comm, int peer);
enum status comm_mismatch(struct comm *comm, int peer, const char *what);
enum status comm_job_ended(struct comm_job *job); /* the error of an ended job; logs it once */
void comm_job_end(struct comm_job *job, const char *text); /* end the job on every rank */
/* For back ends, in `spread`: record the end of the job; false when it had ended before. */
bool comm_job_fail(struct comm_job *job, const char *text);
/* For back ends: the answer to another rank's `ask`. */
void comm_job_position(struct comm_job *job, uint64_t id, struct comm_position *position);

static inline bool comm_job_failed(const struct comm_job *job)
{
    return atomic_load_explicit(&job->failed, memory_order_acquire);
}

extern const struct comm_backend comm_self;
extern const struct comm_backend comm_threads;
extern const struct comm_backend comm_mpi;
extern const struct comm_backend comm_dry;

#endif
