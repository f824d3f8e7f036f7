/* mpi_impl -- what the files of the MPI back end share: its home, its communicators, its errors.
 *
 * Only calls of MPI-3.1, from any thread (MPI_THREAD_MULTIPLE). Nothing here blocks inside the
 * library but the making of communicators, for which all ranks have met before: messages are
 * posted and polled.
 *
 *     comm_mpi.c      starting and ending MPI, communicators
 *     mpi_swap.c      the swap: messages, polling, back-off
 *     mpi_monitor.c   a thread a rank that answers and tells other ranks, beside the calls
 */
#ifndef COMM_MPI_MPI_IMPL_H
#define COMM_MPI_MPI_IMPL_H
#include <mpi.h>
#include "comm/comm_impl.h"

/* Who first knows of an MPI error says so: `MPI_TRY(env, MPI_Comm_size(wire, &size))`. */
#define MPI_TRY(env, call)                            \
    do {                                              \
        int mpi_code_ = (call);                       \
        if (mpi_code_ != MPI_SUCCESS)                 \
            return mpi_failed(env, #call, mpi_code_); \
    } while (0)
enum status mpi_failed(struct env *env, const char *call, int code);

/* What monitors tell each other. */
enum notice_what {
    NOTICE_ASK,    /* where are you on communicator `id`? `number` is the question's */
    NOTICE_ANSWER, /* to question `number`: at `position` */
    NOTICE_LEFT,   /* I have closed communicator `id`, after its collective `number` */
    NOTICE_END,    /* the job ends because of `text` */
    NOTICE_BYE,    /* the last notice from this rank; `clean`: it left no message behind */
};

struct notice {
    enum notice_what what;
    bool clean;
    uint64_t id;
    int64_t number;
    struct comm_position position;
    char text[COMM_FAILURE_BYTES];
};

struct outgoing {
    struct notice notice; /* lent to MPI while the request is not null */
    MPI_Request request;
};

/* Of a thread that waits for its answer. Several threads ask at once, each about its own
 * communicator, and an answer may come when nobody waits for it any more: so it names its
 * question. */
struct question {
    struct question *next;
    int64_t number;
    bool answered;
    struct comm_position position;
};

struct mpi_job {
    struct comm_job base;
    bool owns_mpi;        /* started it, and ends it */
    _Atomic bool unclean; /* a message was left behind: MPI can't be ended in good order */
    MPI_Datatype block;   /* BLOCK_BYTES bytes */

    MPI_Comm wire; /* of the monitors */
    pthread_t monitor;
    _Atomic bool monitor_stops;
    pthread_mutex_t lock; /* of what follows; inside the home's */
    int outbox_size;
    struct outgoing *outbox;    /* (outbox_size) */
    struct question *questions; /* that are open; on the stacks of those who ask */
    int64_t question_count;     /* so far */
    int bye_count;
    bool all_clean;
};

/* When a rank has left a communicator; under the home's lock. */
struct departure {
    bool left;
    int64_t number; /* its last collective */
    double when;
};

/* The messages of a swap with one rank; requests lie together so that MPI tests them at once. */
enum mpi_slot {
    SLOT_HELLO_OUT,
    SLOT_OUT_BLOCKS,
    SLOT_OUT_REST,
    SLOT_HELLO_IN,
    SLOT_IN_BLOCKS,
    SLOT_IN_REST,
    SLOT_COUNT
};

struct mpi_comm {
    struct comm base;
    MPI_Comm wire;
    MPI_Request *requests;        /* (SLOT_COUNT, size) */
    MPI_Status *statuses;         /* (SLOT_COUNT * size) */
    int *indices;                 /* (SLOT_COUNT * size) */
    struct departure *departures; /* (size) */
    _Atomic int departure_count;
};

enum { BLOCK_BYTES = 1 << 20 };

enum status mpi_swap(struct comm *comm, uint64_t stamp);

enum status mpi_monitor_start(struct mpi_job *job);
/* Say goodbye, wait for the goodbyes of the others, end the thread. true = all ranks are done and
 * nothing was left behind. */
bool mpi_monitor_stop(struct mpi_job *job);
bool mpi_monitor_ask(struct comm *comm, int peer, struct comm_position *position);
void mpi_monitor_spread(struct comm_job *job, const char *text);
void mpi_monitor_left(struct comm *comm);

void mpi_nap(double seconds);

#endif
