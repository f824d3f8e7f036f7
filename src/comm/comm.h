/* comm -- collectives between the ranks of one job, or of a group of them; back ends "self",
 * "threads", "mpi" and "nccl".
 *
 * Every collective enqueues on a stream and returns at once; buffers belong to the call until
 * the stream has passed it. All ranks of a communicator must make the same calls in the same
 * order; each call has a sequence number, and who is late is found by it. Counts are elements,
 * the same on every rank unless said otherwise. The first error sticks to the communicator: see
 * comm_status().
 *
 * Reductions are an exchange plus sums in rank order on the receiving rank, so their bits do not
 * depend on timing or on the library underneath: to rank 0's contribution the others are added
 * one after the other in fp32 (fp64 for f64), and the sum is rounded once to the type. f32,
 * bf16, f16 and f64 can be summed; everything else moves any type.
 *
 * In fast mode (comm_config) sums may be left to the library, in an order of its own: those of f32 and
 * f64 over "nccl". 16-bit sums are not, since NCCL rounds them again at every rank on the way; and
 * no other back end has anything faster, so they ignore the switch. Calls, their results up to the
 * order of the sum, and the bytes that are counted stay what they are.
 *
 * Buffers are memory of the communicator's device, or of the host. What is summed is the device's.
 * Where the host cannot reach the device's memory (a GPU), messages go through pinned memory of
 * the host in pieces; with "nccl" they go from GPU to GPU. That is a way for memory of GPUs
 * beside another back end (mpi), which carries what is the host's: a call's buffers are then of one
 * kind on all ranks, and a pair's calls keep their place among the collectives, too.
 *
 * A communicator is used by one stream at a time: two directions (gathers, reductions) are two
 * communicators (comm_dup) on two streams. Nothing here knows of parameters or stages.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H
#include "base/trace.h"
#include "device/device.h"

struct comm;

struct comm_config {
    const char *backend; /* "auto", "self", "threads", "mpi", "nccl" */
    double
        timeout; /* seconds until a rank that does not arrive is named and the job ends; 0 = never */
    bool fast;   /* sums need not have the same bits again; the same on all ranks */
};

/* Is this back end of use with that device ("cpu", "cuda")? STATUS_CONFIG says what to do. */
enum status comm_check_device(struct env *env, const char *backend, const char *device);

/* Join the job. Collective over the job's processes. "auto": self unless a launcher started several
 * ranks; then mpi, with nccl where every rank has a GPU of its own and NCCL is there. The caller destroys *comm; the device outlives it. */
enum status comm_create(const struct comm_config *config, struct device *device,
                        struct comm **comm);
/* Ranks as threads of this process: a hub shared by `size` threads, each of which joins with its
 * own env and device. Memory of GPUs goes by NCCL where several ranks have a GPU each and NCCL is
 * there, else through the host; config->backend "nccl" insists on it. */
struct comm_hub;
enum status comm_hub_create(struct env *env, int size, struct comm_hub **hub);
void comm_hub_destroy(struct comm_hub *hub);
/* End the job for the sake of a rank that will not join: comm_abort without a communicator. */
void comm_hub_abort(struct comm_hub *hub, int rank, const char *reason);
enum status comm_join(struct comm_hub *hub, int rank, const struct comm_config *config,
                      struct device *device, struct comm **comm);
/* Rank `rank` of `size` without the others, on a dry device: calls are counted and move nothing,
 * and in an exchange everybody says what this rank says. `bounced`: it stands for a device whose
 * memory the host cannot reach, so that messages go through memory of the host. */
enum status comm_create_dry(struct device *device, int rank, int size, bool bounced,
                            struct comm **comm);
void comm_destroy(struct comm *comm); /* NULL is fine; waits for enqueued work. Collective. */

int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);
const char *comm_backend_name(const struct comm *comm);
/* The library under the back end mpi: "Open MPI v4.1.4". May be asked before anything is joined. */
void comm_mpi_library(char *out, size_t bytes);

/* Whether sums of this type, in memory of the device, are formed by the library: such
 * reductions need no scratch. */
bool comm_adds(const struct comm *comm, enum dtype type);

/* A stream for calls of this communicator that go on beside compute: with a thread of its own,
 * unless calls only enqueue on the GPU. There one thread must make the calls of all communicators,
 * in one order on every rank. */
enum status comm_stream_create(struct comm *comm, const char *name, struct stream **stream);

/* The same ranks once more, for another stream. Collective. */
enum status comm_dup(struct comm *comm, const char *name, struct comm **copy);
/* The ranks with the same `colour`, ordered by rank. Collective over `comm`; colour < 0: *group is
 * NULL here. */
enum status comm_split(struct comm *comm, int colour, const char *name, struct comm **group);
/* The same where everybody's colour is known, (size) of them: then it can be done dry. */
enum status comm_split_known(struct comm *comm, const int *colours, const char *name,
                             struct comm **group);

/* --- collectives ---------------------------------------------------------------------------- */
/* full[r * count ..] = shard of rank r, on every rank. `shard` may lie in its place inside
 * `full`. */
void comm_all_gather(struct comm *comm, const void *shard, void *full, int64_t count,
                     enum dtype type, struct stream *stream);
/* Rank r sends send[j * count ..] to rank j, which finds it at recv[r * count ..]. Not in place. */
void comm_all_to_all(struct comm *comm, const void *send, void *recv, int64_t count,
                     enum dtype type, struct stream *stream);
/* The same with other counts for every pair: counts and offsets in elements, (size) each, borrowed
 * until the stream has passed the call. A count of 0 sends nothing. */
void comm_all_to_all_v(struct comm *comm, const void *send, const int64_t *send_counts,
                       const int64_t *send_offsets, void *recv, const int64_t *recv_counts,
                       const int64_t *recv_offsets, enum dtype type, struct stream *stream);
/* shard = sum over ranks r, in rank order, of full_r[me * count ..]; scratch: size * count
 * elements, or NULL where comm_adds. `shard` may lie in its place inside `full`. */
void comm_reduce_scatter(struct comm *comm, const void *full, void *shard, int64_t count,
                         enum dtype type, void *scratch, struct stream *stream);
/* data = sum over ranks in rank order, the same bits everywhere; scratch: count + 64 * size
 * elements, or NULL where comm_adds. In place. */
void comm_all_reduce(struct comm *comm, void *data, int64_t count, enum dtype type, void *scratch,
                     struct stream *stream);
/* data of `root` = sum in rank order; others keep theirs. scratch at root: size * count
 * elements. */
void comm_reduce(struct comm *comm, void *data, int64_t count, enum dtype type, int root,
                 void *scratch, struct stream *stream);
/* Down a binomial tree: a rank sends once to each of its children. */
void comm_broadcast(struct comm *comm, void *data, int64_t count, enum dtype type, int root,
                    struct stream *stream);
/* A pair: calls of these two are matched in order, apart from collectives. A send may end before it
 * is received. */
void comm_send(struct comm *comm, const void *data, int64_t count, enum dtype type, int to,
               struct stream *stream);
void comm_recv(struct comm *comm, void *data, int64_t count, enum dtype type, int from,
               struct stream *stream);

/* --- on the host, at once: when the calls enqueued on this communicator are done ------------ */
enum status comm_barrier(struct comm *comm);
/* all[r * bytes ..] = mine of rank r: a few bytes of control (losses, flags, agreements). */
enum status comm_exchange(struct comm *comm, const void *mine, size_t bytes, void *all);

/* --- failure -------------------------------------------------------------------------------- */
enum status comm_status(const struct comm *comm); /* the first error, if any; has been logged */
/* End the job: on every rank and every communicator, waits and later calls end with an error that
 * gives `reason` and this rank's number. The first reason stays. */
void comm_abort(struct comm *comm, const char *reason);
/* What this rank is doing, for the message when somebody waits for it: "step 12, block 3 backward".
 * Cheap; the text is copied. */
void comm_note(struct comm *comm, const char *what);

/* The stream on which this rank computes, so that others can be told whether it is held up itself:
 * whoever waits for it then waits for longer, and the one who holds both up is named by who waits for
 * that one. Borrowed until it is set to NULL. */
void comm_set_compute(struct comm *comm, const struct stream *stream);

/* Wait for a rank that answers however long it takes: for work whose length nobody knows, such as
 * files on a slow disk. One that does not answer, or has left, is found as always. */
void comm_be_patient(struct comm *comm, bool patient);

/* --- the trace ------------------------------------------------------------------------------ */
/* Calls are drawn on `lane` (the host's, unless it is said) as "LANE LABEL": the label of the next
 * call is borrowed until the trace is written, NULL = the kind of call. */
void comm_set_lane(struct comm *comm, const struct trace_lane *lane);
void comm_label(struct comm *comm, const char *label);

/* --- counters ------------------------------------------------------------------------------- */
#define COMM_KINDS(X)                   \
    X(ALL_GATHER, "all_gather")         \
    X(ALL_TO_ALL, "all_to_all")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_REDUCE, "all_reduce")         \
    X(REDUCE, "reduce")                 \
    X(BROADCAST, "broadcast")           \
    X(SEND, "send")                     \
    X(RECV, "recv")                     \
    X(CONTROL, "control")

enum comm_kind {
#define X(name, word) COMM_##name,
    COMM_KINDS(X)
#undef X
        COMM_KIND_COUNT
};
const char *comm_kind_word(enum comm_kind kind);

struct comm_counter {
    int64_t calls;  /* that have succeeded */
    int64_t bytes;  /* to other ranks, of calls that were given: what it keeps is not counted */
    double seconds; /* calls were in flight; with nccl, until they were enqueued on the GPU */
    double blocked; /* of these, in calls that hold up their stream's caller: not on a worker's, nor
                       enqueued on a GPU */
};
struct comm_counter comm_counted(const struct comm *comm, enum comm_kind kind);

/* Wait up to so long before and after every call, drawn from `seed`, here and in all copies and
 * groups made of it later: for tests of order. */
void comm_inject_delays(struct comm *comm, double most_seconds, uint64_t seed);
/* Every call takes so much longer: for tests of what is hidden behind compute. */
void comm_slow_down(struct comm *comm, double seconds);

#endif
