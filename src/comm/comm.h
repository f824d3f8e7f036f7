/* comm -- collectives between the ranks of a job, or of a group of them.
 *
 * Back ends: "self" (one rank), "threads" (ranks that are threads of one process), "mpi", and "dry"
 * (one rank without the others: counts calls and moves nothing). "nccl" is one of these plus a
 * transport that moves GPU memory from GPU to GPU.
 *
 * Calls. Every collective enqueues on a stream and returns at once; its buffers belong to the call
 * until the stream has passed it. All ranks of a communicator must make the same calls in the same
 * order. Calls are numbered, and a rank that falls behind is found by its number. Counts are in
 * elements, and equal on all ranks unless stated otherwise. One stream at a time uses a
 * communicator: gathers and reductions that overlap need two communicators (comm_dup) and two
 * streams.
 *
 * Sums. A reduction sends every contribution to the rank that needs the sum, and that rank adds
 * them in rank order: to rank 0's contribution the others are added one by one in fp32 (fp64 for
 * f64), and the sum is rounded once to the type. So the bits of a sum depend neither on timing nor
 * on the library underneath. f32, bf16, f16 and f64 can be summed; all other calls move any type.
 * In fast mode (comm_config.fast) NCCL may sum f32 and f64 in its own order. It never sums 16-bit
 * types, because it would round them at every rank they pass. Without NCCL the mode has no effect.
 * It changes neither the calls nor the bytes that are counted.
 *
 * Memory. Buffers are in the memory of the communicator's device or in host memory; buffers that
 * are summed are in device memory. Where the host cannot reach device memory (a GPU), messages go
 * through pinned host memory in chunks, or, with "nccl", directly. NCCL carries GPU memory only and
 * the back end carries host memory, so the buffers of a call must be of the same kind on all ranks.
 * With NCCL, sends and receives also keep their order relative to the collectives.
 *
 * Errors. The first error sticks to the communicator (comm_status): every later call does nothing
 * and fails its stream.
 *
 * Nothing here knows of parameters or ZeRO stages.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H
#include "base/trace.h"
#include "device/device.h"

struct comm;

struct comm_config {
    const char *backend; /* "auto", "self", "threads", "mpi", "nccl" */
    double timeout;      /* seconds after which a missing rank ends the job; 0 = never */
    bool fast;           /* sums need not be reproducible to the bit; the same on all ranks */
};

/* STATUS_CONFIG, with what to change, unless the back end works with the device ("cpu", "cuda"). */
enum status comm_check_device(struct env *env, const char *backend, const char *device);

/* Join the job. Collective over all its processes. "auto" is self, unless a launcher started
 * several ranks; then it is mpi, plus nccl where every rank has its own GPU and NCCL is available.
 * The caller destroys *comm. The device must outlive it. */
enum status comm_create(const struct comm_config *config, struct device *device,
                        struct comm **comm);

/* Ranks as threads of this process: `size` threads share a hub, and each joins with its own env and
 * device. GPU memory goes by NCCL where every rank has its own GPU and NCCL is available, otherwise
 * through the host. With config->backend "nccl" the second case is an error. */
struct comm_hub;
enum status comm_hub_create(struct env *env, int size, struct comm_hub **hub);
void comm_hub_destroy(struct comm_hub *hub);
/* comm_abort without a communicator: end the job because a rank will not join. */
void comm_hub_abort(struct comm_hub *hub, int rank, const char *reason);
enum status comm_join(struct comm_hub *hub, int rank, const struct comm_config *config,
                      struct device *device, struct comm **comm);

/* Rank `rank` of `size` without the others, on a dry device: calls are counted and move nothing,
 * and comm_exchange returns this rank's bytes for every rank. `bounced`: the dry device stands for
 * one whose memory the host cannot reach, so messages need bounce buffers. */
enum status comm_create_dry(struct device *device, int rank, int size, bool bounced,
                            struct comm **comm);
void comm_destroy(struct comm *comm); /* accepts NULL; waits for enqueued work; collective */

int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);
const char *comm_backend_name(const struct comm *comm);
/* The MPI library, such as "Open MPI v4.1.4". Works before any communicator exists. */
void comm_mpi_library(char *out, size_t bytes);

/* Whether the library underneath sums this type in device memory (fast mode). Such reductions need
 * no scratch. */
bool comm_library_sums(const struct comm *comm, enum dtype type);

/* A side stream for calls that overlap with compute. It has a thread of its own, except with NCCL:
 * there calls only enqueue on the GPU, and one thread must make the calls of all communicators in
 * the same order on every rank. */
enum status comm_stream_create(struct comm *comm, const char *name, struct stream **stream);

/* A second communicator of the same ranks, for another stream. Collective. */
enum status comm_dup(struct comm *comm, const char *name, struct comm **copy);
/* A communicator of the ranks with the same `colour`, in rank order. Collective over `comm`. A rank
 * with colour < 0 gets *group = NULL. */
enum status comm_split(struct comm *comm, int colour, const char *name, struct comm **group);
/* The same where the colours (size) of all ranks are known: works dry, too. */
enum status comm_split_known(struct comm *comm, const int *colours, const char *name,
                             struct comm **group);

/* --- collectives ---------------------------------------------------------------------------- */
/* full[r * count ..] = shard of rank r, on every rank. `shard` may be this rank's range of
 * `full`. */
void comm_all_gather(struct comm *comm, const void *shard, void *full, int64_t count,
                     enum dtype type, struct stream *stream);
/* Rank r sends send[j * count ..] to rank j, which receives it at recv[r * count ..]. `send` and
 * `recv` must not overlap. */
void comm_all_to_all(struct comm *comm, const void *send, void *recv, int64_t count,
                     enum dtype type, struct stream *stream);
/* The same with a count and an offset for every pair of ranks, in elements. Each array has `size`
 * entries and is borrowed until the stream has passed the call; the struct itself is copied. A
 * count of 0 sends nothing. */
struct comm_parts {
    int64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
};
void comm_all_to_all_v(struct comm *comm, const void *send, void *recv,
                       const struct comm_parts *parts, enum dtype type, struct stream *stream);
/* shard = sum over ranks r, in rank order, of full_r[me * count ..]. scratch: size * count
 * elements, or NULL where comm_library_sums. `shard` may be this rank's range of `full`. */
void comm_reduce_scatter(struct comm *comm, const void *full, void *shard, int64_t count,
                         enum dtype type, void *scratch, struct stream *stream);
/* data = sum over ranks in rank order, with the same bits on every rank. scratch: count + 64 * size
 * elements, or NULL where comm_library_sums. */
void comm_all_reduce(struct comm *comm, void *data, int64_t count, enum dtype type, void *scratch,
                     struct stream *stream);
/* Uses a binomial tree: a rank sends once to each of its children. */
void comm_broadcast(struct comm *comm, void *data, int64_t count, enum dtype type, int root,
                    struct stream *stream);
/* Sends and receives between two ranks match in order, independently of collectives. A send may
 * complete before it is received. */
void comm_send(struct comm *comm, const void *data, int64_t count, enum dtype type, int to,
               struct stream *stream);
void comm_recv(struct comm *comm, void *data, int64_t count, enum dtype type, int from,
               struct stream *stream);

/* --- synchronous, on the host: wait for the calls enqueued on this communicator, then run ---- */
enum status comm_barrier(struct comm *comm);
/* all[r * bytes ..] = mine of rank r. For a few bytes of control: losses, flags, agreements. */
enum status comm_exchange(struct comm *comm, const void *mine, size_t bytes, void *all);

/* --- failure -------------------------------------------------------------------------------- */
enum status comm_status(const struct comm *comm); /* the first error, which has been logged */
/* End the job: on every rank and every communicator, waits and later calls fail with an error that
 * gives `reason` and this rank's number. Only the first reason counts. */
void comm_abort(struct comm *comm, const char *reason);
/* What this rank is doing, such as "step 12, block 3 backward", for the message of a rank that has
 * waited too long for it. Cheap; the text is copied. */
void comm_note(struct comm *comm, const char *what);

/* The stream on which this rank computes. It tells a waiting rank whether this one is itself
 * blocked by a third: then the waiting rank waits longer, and the third is named by the rank that
 * waits for it directly. Borrowed until it is set to NULL. */
void comm_set_compute_stream(struct comm *comm, const struct stream *stream);

/* Never time out on a rank that still answers: for work of unknown length, such as files on a slow
 * disk. A rank that does not answer or has left still ends the job. */
void comm_set_patient(struct comm *comm, bool patient);

/* --- the trace ------------------------------------------------------------------------------ */
/* The trace shows calls on `lane` (the host's by default) as "LANE LABEL". comm_label sets the
 * label of the next call: borrowed until the trace is written; NULL = the kind of call. */
void comm_set_lane(struct comm *comm, const struct trace_lane *lane);
void comm_label(struct comm *comm, const char *label);

/* --- counters ------------------------------------------------------------------------------- */
#define COMM_KINDS(X)                   \
    X(ALL_GATHER, "all_gather")         \
    X(ALL_TO_ALL, "all_to_all")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_REDUCE, "all_reduce")         \
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
    int64_t bytes;  /* sent to other ranks, counted when a call is made */
    double seconds; /* that calls were in flight; with NCCL, until they were enqueued on the GPU */
    double blocked; /* part of `seconds`: calls that blocked the thread that made them */
};
struct comm_counter comm_counted(const struct comm *comm, enum comm_kind kind);

/* For tests of ordering: before and after every call, wait a random time of at most `max_seconds`,
 * drawn from `seed`. Copies and groups made later inherit it. */
void comm_inject_delays(struct comm *comm, double max_seconds, uint64_t seed);
/* For tests of overlap: every call takes `seconds` longer. */
void comm_slow_down(struct comm *comm, double seconds);

#endif
