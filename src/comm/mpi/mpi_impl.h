/* mpi_impl -- shared by the files of the MPI back end: its job, its communicators, its errors.
 *
 * Only calls of MPI-3.1 are used, from any thread (MPI_THREAD_MULTIPLE). Nothing blocks inside the
 * library except the creation of communicators, and all ranks have met before that. Messages are
 * posted and polled.
 *
 *     comm_mpi.c      initialize and finalize MPI, communicators
 *     mpi_swap.c      the swap: messages, polling, back-off
 *     mpi_monitor.c   one thread per rank that answers and notifies other ranks during calls
 */
#ifndef COMM_MPI_MPI_IMPL_H
#define COMM_MPI_MPI_IMPL_H
#include <mpi.h>
#include "comm/comm_impl.h"

/* Return with a logged error when an MPI call fails: `MPI_TRY(env, MPI_Comm_size(wire, &size))`. */
#define MPI_TRY(env, call)                            \
    do {                                              \
        int mpi_code_ = (call);                       \
        if (mpi_code_ != MPI_SUCCESS)                 \
            return mpi_failed(env, #call, mpi_code_); \
    } while (0)
enum status mpi_failed(struct env *env, const char *call, int code);

/* The notices that monitors send each other. */
enum notice_what {
    NOTICE_ASK,    /* where are you on communicator `id`? `number` is the question's */
    NOTICE_ANSWER, /* to question `number`: at `position` */
    NOTICE_LEFT,   /* I have closed communicator `id`, after its collective `number` */
    NOTICE_END,    /* the job ends; `text` says why */
    NOTICE_BYE,    /* the last notice of this rank; `clean`: no message of it is left in MPI */
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

/* Belongs to a thread that waits for the answer. Several threads may ask at once, each about its
 * own communicator, and an answer may arrive when nobody waits for it any more; so it carries the
 * number of its question. */
struct question {
    struct question *next;
    int64_t number;
    bool answered;
    struct comm_position position;
};

struct mpi_job {
    struct comm_job base;
    bool owns_mpi;        /* this job initialized MPI and finalizes it */
    _Atomic bool unclean; /* a message was left behind: MPI cannot be finalized */
    MPI_Datatype block;   /* BLOCK_BYTES bytes */

    MPI_Comm wire; /* of the monitors */
    pthread_t monitor;
    _Atomic bool monitor_stops;
    pthread_mutex_t lock; /* of the fields below; inside the job's lock */
    int outbox_size;
    struct outgoing *outbox;    /* (outbox_size) */
    struct question *questions; /* open questions, on the stacks of the threads that ask */
    int64_t question_count;     /* so far */
    int bye_count;
    bool all_clean;
};

/* When a rank left a communicator; under the job's lock. */
struct departure {
    bool left;
    int64_t number; /* its last collective */
    double when;
};

/* The messages of a swap with one rank. All requests are in one array, so that MPI tests them at
 * once. */
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
/* Say goodbye, wait for the goodbyes of the others, end the thread. true = all ranks are done, and
 * no message was left behind. */
bool mpi_monitor_stop(struct mpi_job *job);
bool mpi_monitor_ask(struct comm *comm, int peer, struct comm_position *position);
void mpi_monitor_spread(struct comm_job *job, const char *text);
void mpi_monitor_left(struct comm *comm);

#endif
