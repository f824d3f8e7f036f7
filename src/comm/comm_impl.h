/* comm_impl -- what a communicator is inside, and what a back end fills in; for src/comm only.
 *
 * A rank has one *home*: its note, its list of communicators, and the reason why the job ended, if
 * it did. Communicators (the root, its copies and groups) belong to the home. The face numbers
 * calls, counts bytes, waits for streams and builds every collective from one primitive, `swap`:
 * post some messages to and from other ranks, and wait for all of them. A back end moves bytes and
 * nothing else.
 *
 *     comm.c           life of homes and communicators, counters
 *     comm_calls.c     the collectives, their queue and their numbers
 *     comm_sums.c      sums in rank order, or by the library
 *     comm_bounce.c     swaps of memory that the host cannot reach
 *     comm_transport.c      a way from GPU to GPU beside the back end: which, and its links
 *     comm_watch.c     a thread that watches calls which are on GPUs
 *     comm_price.c     what calls take, where they are only counted
 *     comm_late.c      the end of a job: who is late, who left, who ended it
 *
 * Locks, outermost first: a hub's, a home's, a communicator's or a group's. None is held while
 * bytes move.
 */
#ifndef COMM_COMM_IMPL_H
#define COMM_COMM_IMPL_H
#include <pthread.h>
#include <stdatomic.h>
#include "base/rng.h"
#include "comm/comm.h"

enum { COMM_NAME_BYTES = 32, COMM_NOTE_BYTES = 96, COMM_FAILURE_BYTES = 384 };

/* Where a rank is on one communicator, as another rank is told. */
struct comm_position {
    bool here;           /* the communicator exists there */
    bool inside;         /* a call is running */
    bool on_gpu;         /* the newest call is done by GPUs: over here when it is enqueued */
    bool held_up;        /* it waits for other ranks itself, in another communicator */
    enum comm_kind kind; /* of the newest call */
    int peer;            /* of a send or receive: the other rank */
    int64_t call;        /* its number: collectives, and sends and receives, count apart */
    int64_t number;      /* of the newest collective begun; 0 = none yet */
    char note[COMM_NOTE_BYTES];
};

/* One message of a swap; no bytes = no message. */
struct comm_move {
    char *data;
    size_t bytes;
};

struct comm_job;

/* Where a rank joins; for the back ends that do not find out by themselves. */
struct comm_member {
    struct comm_hub *hub; /* borrowed; threads */
    int rank;
    int size;     /* dry */
    bool bounced; /* dry: as on a device whose memory the host cannot reach */
};

struct comm_backend {
    const char *name;
    size_t job_bytes;  /* of the back end's home struct, `struct comm_job` first */
    size_t comm_bytes; /* of its communicator struct, `struct comm` first */

    /* Find the other ranks; set home->rank and home->size. `member` is NULL but for threads and
     * dry. */
    enum status (*join)(struct comm_job *job, const struct comm_member *member);
    void (*quit)(struct comm_job *job); /* after the last communicator is closed */
    /* `comm` is filled in and in its home's list; all its ranks come here. `parent` is NULL for the
     * root. With `comm` NULL the rank takes part in making groups and is in none. */
    enum status (*open)(struct comm *comm, struct comm *parent, int colour);
    void (*close)(
        struct comm *comm); /* not collective: whoever still waits for this rank is told */

    /* Every message of comm->sends and comm->recvs (indexed by rank; memory of the host), until all
     * are there. Both ends of a message give the same `stamp`. Ends early when the home has failed. */
    enum status (*swap)(struct comm *comm, uint64_t stamp);
    /* Where is that rank? false = it does not answer. */
    bool (*ask)(struct comm *comm, int peer, struct comm_position *position);
    /* Make every home of the job fail with `text`, this one too. */
    void (*spread)(struct comm_job *job, const char *text);
};

/* A way for memory of the device from GPU to GPU (NCCL), in a plugin. It carries messages of
 * calls on streams and nothing else: ranks meet, speak, leave and end through the back end. A
 * communicator that uses it has a link, one of its own. */
enum { COMM_ID_BYTES = 128, COMM_WATCHED = 32 };
struct comm_channel;
struct comm_call;

struct comm_transport {
    const char *name;
    /* Made by one rank of a new communicator and given to all of them; then all come to `open`. */
    enum status (*make_id)(struct env *env, unsigned char id[COMM_ID_BYTES]);
    enum status (*open)(struct comm *comm, const unsigned char id[COMM_ID_BYTES],
                        struct comm_channel **channel);
    void (*close)(
        struct comm_channel *channel); /* waits for the other ranks, unless it was aborted */

    bool (*reaches)(const void *address); /* memory of a GPU */
    /* Call `issue` in the stream's order, on a thread that may enqueue on it: the caller's, at once,
     * but for a worker. Unlike a task it does not wait for what is before it. */
    void (*enqueue)(struct stream *stream, stream_task_fn *issue, const void *args, size_t bytes);
    /* Enqueue every message of comm->sends and comm->recvs, this rank's own to itself included. */
    enum status (*swap)(struct comm *comm, struct stream *stream);
    /* Enqueue a reduction of f32 or f64 as the library does it, in an order of its own. */
    enum status (*sum)(const struct comm_call *call, struct stream *stream);

    /* Calls in flight: `mark` the end of one, slot < COMM_WATCHED; has the GPU `passed` it? */
    void (*mark)(struct comm_channel *channel, int slot, struct stream *stream);
    bool (*passed)(struct comm_channel *channel, int slot);
    /* Any thread: has the library met an error since? The reason in `why`. */
    bool (*failed)(struct comm_channel *channel, char *why, size_t bytes);
    /* Any thread: end what is on the GPU, and whoever is inside the library for this link. */
    void (*abort)(struct comm_channel *channel);
};
/* The entry of libsifr-cuda for comm: a const struct comm_transport. */
#define COMM_NCCL_ENTRY "sifr_comm_nccl"

/* The thread that watches the links of a rank. */
struct comm_watch {
    pthread_t thread;
    bool running;
    _Atomic bool stops;
    pthread_mutex_t lock; /* of the list; outside every other */
    struct comm *comms;   /* that have a link, newest first */
};

struct comm_job {
    const struct comm_backend *backend;
    const struct comm_transport *transport; /* NULL: everything goes through the back end */
    struct env *env;                        /* borrowed */
    int rank, size;                         /* in the job */
    bool bounced;                           /* the host cannot reach the device's memory */
    bool fast;                              /* of the job's configuration */
    double timeout;
    pthread_mutex_t lock;
    struct comm *comms;           /* newest first */
    const struct stream *compute; /* borrowed; NULL: nobody has said; see comm_set_compute */
    char note[COMM_NOTE_BYTES];
    _Atomic bool failed; /* the job has ended */
    bool told;           /* ... and this rank's log knows */
    char failure[COMM_FAILURE_BYTES];

    const struct comm_prices *prices; /* borrowed: of calls that are only counted; NULL: none */

    struct event *issued;       /* with a path: the newest swap of all communicators */
    pthread_mutex_t issue_lock; /* of who enqueues one */
    struct comm_watch watch;
};

/* Blocks for sums in rank order; see comm_sums.c. */
struct comm_sums {
    void *sum, *wide_zero, *narrow_zero;
};

/* Pinned memory for swaps of memory that the host cannot reach; see comm_bounce.c. */
struct bounce_half {
    struct stream *stream; /* NULL: messages are not staged */
    char *out, *in;
};

struct comm_bounce {
    struct bounce_half halves[2];
    struct comm_move *sends, *recvs; /* (size) each; of the swap in progress, on the device */
    int *out_slots, *in_slots;       /* (size) each: their places in a half */
};

/* Calls that the GPU has not finished, oldest first; under the communicator's lock. */
struct comm_flight {
    int64_t begun, passed; /* a call's slot is its number here modulo COMM_WATCHED */
    bool marked[COMM_WATCHED];
    struct comm_position calls[COMM_WATCHED];
    struct stream *streams[COMM_WATCHED]; /* borrowed: who ends one waits for what is on it */
    double since; /* when the watch last saw something pass, or nothing in flight */
    int asked;    /* how often since then late ranks were asked for */
    bool ended;   /* with the job, by the watch */
    pthread_t ender;
};

struct comm {
    const struct comm_backend *backend;
    struct comm_job *job;  /* shared by the communicators of a rank; the last frees it */
    struct comm *next;     /* in the home's list */
    struct env *env;       /* borrowed */
    struct device *device; /* borrowed */
    int rank, size;
    bool patient;   /* set by who makes the calls; see comm_be_patient */
    int *job_ranks; /* (size) for messages, and for who is asked */
    uint64_t id;    /* the same on all its ranks, and no other communicator's */
    int child_count;
    char name[COMM_NAME_BYTES];
    struct comm_sums sums;
    struct comm_bounce bounce;
    struct comm_channel *channel; /* NULL: no path */
    struct comm_flight flight;
    struct comm *next_watched;
    struct comm_move *sends, *recvs; /* (size) each; of the swap in progress */
    _Atomic int error;               /* enum status of the first failure */

    int64_t collective_count, pair_count; /* numbers given so far */
    struct comm_position position;        /* under the home's lock; its note is not used */
    const struct stream *call_stream;     /* with it: of the call in progress; NULL = the host's */
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int64_t pending; /* calls enqueued and not finished */
    double idle_at;  /* where they are only counted: when the last of them is done */
    struct comm_counter counters[COMM_KIND_COUNT];

    const struct trace_lane *lane;
    const char *label; /* borrowed: of the next call */

    double most_delay; /* 0 = none; as is the seed, what copies and groups begin with */
    uint64_t delay_seed;
    double slow; /* more seconds for every call */
    struct rng delays;
    uint64_t delay_count;
};

/* One call, as it goes through a stream's ring. */
struct comm_call {
    struct comm *comm;
    enum comm_kind kind;
    enum dtype type;
    int peer; /* root of the tree, or the other end */
    int64_t number, count;
    const void *src;
    void *dst, *scratch;
    const int64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
    size_t bytes_out;  /* to other ranks, for the counter */
    bool on_channel;   /* memory of the GPU, and there is a path for it */
    const char *label; /* for the trace; NULL: none */
};
_Static_assert(sizeof(struct comm_call) <= STREAM_ARGS_BYTES, "a call fits in the ring");

/* comm_calls.c: post what is in comm->sends and comm->recvs, wait, and clear both. `step` tells
 * apart the swaps of one call. `stream` is the call's: NULL = addresses of the host only. */
enum status comm_swap(struct comm *comm, const struct comm_call *call, int step,
                      struct stream *stream);
void comm_set_move(struct comm_move *moves, int rank, const void *data, size_t bytes);
/* Wait until no call is enqueued on `comm`. */
void comm_wait_idle(struct comm *comm);

/* comm_bounce.c: nothing is taken where the host reaches the device's memory. */
enum status comm_bounce_open(struct comm *comm);
void comm_bounce_close(struct comm *comm); /* of one that was not opened whole, too */
/* backend->swap for messages in memory of the device; those of the host are fine, too. */
enum status comm_bounce_swap(struct comm *comm, enum comm_kind kind, uint64_t stamp);

/* comm_transport.c */
enum comm_wish { COMM_NO_TRANSPORT, COMM_TRANSPORT_IF_POSSIBLE, COMM_TRANSPORT };
/* Agree on the job's path, on the root: all ranks have met. Sets home->path. */
enum status comm_transport_choose(struct comm *root, enum comm_wish wish);
enum status comm_transport_open(struct comm *comm); /* its link, if there is a path. Collective. */
void comm_transport_close(struct comm *comm);
void comm_transport_quit(struct comm_job *job); /* after the last link */
/* Enqueue the swap, or the sum, after all earlier ones of this rank. */
enum status comm_transport_swap(struct comm *comm, struct stream *stream);
enum status comm_transport_sum(const struct comm_call *call, struct stream *stream);

/* comm_watch.c */
enum status comm_watch_start(struct comm_job *job);
void comm_watch_stop(struct comm_job *job);
void comm_watch_add(struct comm *comm);
void comm_watch_remove(struct comm *comm);
/* A call on a link begins: its slot, -1 when too many are in flight already. */
int comm_flight_begin(struct comm *comm, const struct comm_position *position,
                      struct stream *stream);
void comm_flight_mark(struct comm *comm, int slot, struct stream *stream);
void comm_flight_wait(struct comm *comm); /* until none is in flight, or the job has ended */

/* comm_price.c: take a call's time, on its stream (NULL: the host's), and tell how much it was. Only
 * where calls are counted and not made. */
double comm_spend(const struct comm_call *call, struct stream *stream);

/* comm_sums.c */
enum status comm_sums_open(struct comm *comm);
void comm_sums_close(struct comm *comm);
enum status comm_do_reduce_scatter(const struct comm_call *call, struct stream *stream);
enum status comm_do_all_reduce(const struct comm_call *call, struct stream *stream);
enum status comm_do_reduce(const struct comm_call *call, struct stream *stream);
size_t comm_all_reduce_bytes(const struct comm *comm, int64_t count, enum dtype type);

/* comm_late.c: nothing has come from a peer of the call in progress for `seconds`, once more the
 * home's timeout. OK = it is on its way, wait on; otherwise the job ends, and everybody knows why.
 */
enum status comm_late(struct comm *comm, int peer, double seconds);
/* The same for another call of this rank than the newest. */
enum status comm_late_at(struct comm *comm, const struct comm_position *mine, int peer,
                         double seconds);
enum status comm_gone(struct comm *comm, int peer); /* the same for a peer that has left */
/* The same for ranks that make different calls; `what` ends the sentence "rank N ...". */
enum status comm_astray(struct comm *comm, int peer, const char *what);
enum status comm_ended(struct comm_job *job); /* the job has ended: log that once a rank */
/* Note the end of the job; false when it had ended before. For back ends, in `spread`. */
bool comm_job_fail(struct comm_job *job, const char *text);
/* What `ask` answers on the side of the rank that is asked. */
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
