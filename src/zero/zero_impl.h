/* zero_impl -- the inside of the store, shared by the files of this folder. zero_norm.h and
 * zero_offload.h declare the functions of the files with these names.
 *
 *     zero.c             create and destroy; a rank's role; traffic
 *     zero_memory.c      what each rank holds, and its allocation
 *     zero_moments.c     the moments of each tensor: their form and their place
 *     zero_exchange.c    shards to the ranks that compute, gradients to their owners
 *     zero_pass.c        acquire, release and reduce: the params and gradients of a pass
 *     zero_norm.c        the norm of the gradient over all ranks
 *     zero_norm_parts.c  this rank's part of the norm
 *     zero_noise.c       squares of the micro-batches' gradients, for the noise scale
 *     zero_update.c      the end of a step: judge and update
 *     zero_sums.c        sums between replicas, and the updates that wait for them
 *     zero_offload.c     state and sums in slower memory: what is there, and how it comes and goes
 *     zero_offload_host.c  packets that the CPU updates where they are
 *     zero_offload_params.c  params in slower memory
 *     zero_muon.c        the update of matrices that are orthogonalized as a whole
 *     zero_stochastic.c  16-bit params that are rounded at random
 *     zero_params.c      reading and writing parameters
 *     zero_state.c       reading and writing the whole state, and its snapshot
 *     zero_tp_group.c    what the ranks of a TP group do together
 *
 * Shapes in comments: (shard) and (reduce_shard) are the lengths zero_shard_count and
 * zero_reduce_shard_count of the piece; (piece_count) is its full length with padding.
 */
#ifndef ZERO_ZERO_IMPL_H
#define ZERO_ZERO_IMPL_H
#include <pthread.h>
#include "zero/partition.h"
#include "zero/slots.h"
#include "zero/zero.h"

/* A gradient of a piece: of one unit, or of several that write different params of it. */
struct zero_use {
    int unit, last_unit; /* the units; backward walks end with `unit`, and then it is sent */
    int slot;            /* of gradients, if it is sent from one */
    int64_t slot_offset;
    void *full;         /* (piece_count) gradient of this worker's micro-batch; NULL: in a slot */
    void *local;        /* (piece_count) sum of this worker's micro-batches in sum_type, with
                    config.local; may be `full`, and is `sum` on one rank */
    void *sum;          /* (reduce_shard) sum over the step's micro-batches, at the owner, in
                    zero_use_type */
    void *sum_block;    /* the allocation that `sum` is in; NULL: it is in `full` */
    struct event *free; /* of full: its gradient has been sent */
    /* With config.noise, sums of squares of blocks (zero_noise.c): of this owner's reduce shard
     * (reduce_shard / 64), and, with config.local, of this worker's micro-batches
     * (piece_count / 64). */
    double *squares, *local_squares;
    /* Of a far sum: (reduce_shard / 64) squares of blocks, for the norm. */
    double *sum_squares;
};

/* How a piece is exchanged: in messages of `count` elements of every shard, of which the last may
 * be shorter. Offsets count from the message's first element of shard 0. */
struct zero_messages {
    int64_t count;
    struct comm_parts each, last;
};

struct zero_piece {
    void *full;     /* (piece_count) params, where they are not sharded; otherwise NULL */
    void *shard;    /* (shard) params at their owners: inside `full`, or separate; NULL: far */
    void *master;   /* (shard) params as they are updated, in fp32: `shard` itself, or separate
                     where params have 16 bits. Params that are never updated, and those of a
                     read-only store, have none: `shard`, in zero_master_type */
    void *m, *v;    /* moments of this rank's part of each tensor (zero_moments.c); NULL: none */
    char *snapshot; /* host: what this rank saves (zero_state.c) */
    void *total;    /* (shard) the step's gradient: the sum of all uses, complete over all reduce
                    shards */
    struct zero_use *uses; /* in unit order */
    int use_count;
    struct zero_messages gather;    /* the shards of a copy, to its workers */
    struct zero_messages reduce[2]; /* gradients to their owners: in a full round, and in the last
                                       of the current steps (exchange_set_last_round) */
    struct zero_messages sums;      /* reduce shards of summed gradients, between their owners */
    void *lent_sum;       /* (reduce_shard) sum of a use on another PP stage, before it is added */
    double *lent_squares; /* (reduce_shard / 64) the same of their squares */
    struct comm_parts reduce_squares; /* blocks of squares to their owners, with config.local */
    struct zero_range *squared;       /* the elements of the piece whose squares count */
    int squared_count;
    bool changes;            /* its sums, before the norm is computed */
    struct event *published; /* full has the owners' newest values */
    struct event *summed;    /* total is complete; NULL: no other rank holds the shard */
    bool pending;            /* the update is not enqueued yet: it waits for `summed`, or for
                                state from far memory */
    /* Where state or sums are far (zero_offload.c). */
    int first_packet, packet_count;
    bool state_is_far; /* masters and moments are in packets; then master, m and v are NULL */
    bool sum_is_far;   /* the sum of the first use, which is the only one, is in far_sums */
    size_t sum_at;
    struct event *sum_returned; /* all of it that was added so far */
    bool params_are_far;        /* the shard is in far_params (zero_offload_params.c) */
    size_t params_at;
    struct event *params_returned; /* the last update's */
};

/* Elements of a piece whose state moves between far and device memory as one range of bytes, or
 * whose sum does. A multiple of OFFLOAD_ELEMENTS, except for the last of a shard. */
struct zero_packet {
    struct piece_range range;
    size_t at, bytes; /* in far_state; 0 bytes: the state is resident */
    size_t m, v;      /* where its moments begin; masters are first */
    int slot;         /* of transit_slots, through which it passes */
};
enum { OFFLOAD_ELEMENTS = 2048 }; /* FAR_ALIGN bytes of 16-bit elements */

/* Device memory through which packets pass, or, of sum_slots, parts of sums. */
struct transit_slot {
    char *at; /* NULL: no packet passes through it (zero_offload_host.c) */
    struct event *fetched, *used, *returned;
};

/* Where the state of a range is for its update: on the device, or, where the CPU updates, in host
 * memory. And where its summed gradient and its 16-bit params begin. */
struct state_view {
    struct piece_range held;
    char *m, *v;
    char *master;
    int64_t master_first; /* element of the piece */
    const char *grad;
    int64_t grad_first;
    char *copy;
    int64_t copy_first;
};

/* What the CPU updates with (zero_offload_host.c). */
struct zero_host {
    struct stream *stream; /* a worker: its thread runs the updates; NULL: the device updates */
    struct far *slots;     /* host memory: a gradient and 16-bit params in each */
    size_t slot_bytes, copy_at;        /* of a slot, and where its params begin */
    struct event *judged;              /* the sums of this rank are final */
    struct update_segment *segments;   /* as zero->segments, in host memory */
    struct update_location *locations; /* the same */
};

/* A node of the norm, as it is sent to the first PP stage: its first block and level, both small
 * enough to be exact in a double, and its value. */
struct staged_node {
    double first, level, value;
};

/* Consecutive segments of a batch. */
struct segment_run {
    int first, count;
    int64_t elements;
};

/* Segments that one call may update: those of one optimizer with one setting, in one phase. */
struct zero_batch {
    struct optimizer optimizer;
    enum unit_phase phase;
    struct segment_run all;
};

/* Where a moment of a tensor is in memory for a range of elements: bytes before the first element
 * of the tensor in it, and before the scale of that element's block. */
struct moment_place {
    size_t values, scales;
};

/* Floats that are written to a moment with codes, until their block is complete. */
struct zero_encoder {
    int64_t next; /* element of this rank's part */
    int count;
    float values[OPS_BLOCK];
};

struct gradient_slot {
    void *at;
    struct event *free; /* its gradients have been sent */
};

enum { GRADIENT_SLOTS = 2 };

/* The TP group. */
struct zero_tp_group {
    struct comm *comm; /* borrowed; NULL: no tensor parallelism */
    int rank, size;
    struct comm *replicas; /* the ranks with the same part of replicated tensors, where these are
                              not the whole group; or NULL */
    struct unit_split *splits; /* (ranks, tensors of the whole model) */
    struct comm_parts swap;    /* (ranks) */
    float *mine, *all;         /* host: a chunk of elements of this rank, and of all */
    double *sums;              /* (ranks) */
    struct zero_range *wanted; /* (ranks) */
    int64_t partial_count;
    void *partial, *scratch; /* device: (partial_count) partial gradients while they are added */
};

struct zero {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed: compute */
    struct comm *comm;              /* borrowed; NULL: one rank */
    const struct unit_graph *graph; /* borrowed */
    struct env *env;                /* borrowed */
    struct zero_config config;      /* without groups: see segments */
    struct sharding sharding;
    struct roster roster;
    struct zero_tp_group tp_group;
    struct zero_pipe pipe;  /* all NULL: the whole model is here */
    struct partition whole; /* of the whole model, in a pipeline; empty otherwise */
    int shard;              /* the shard this rank holds; -1: none */
    int shards;             /* of its copy */
    int reduce_shard;       /* of every piece, that this rank sums; -1: none */
    int members;            /* number of ranks of gather_comm, beginning with first_member */
    int first_member;
    int64_t micro_batches;   /* of the current steps; config.micro_batches is the most */
    int64_t reductions;      /* gradients summed in a step: one per micro-batch, or, with
                               config.local, one per worker */
    int64_t most_reductions; /* the same in the largest step: decides about memory and types */
    enum dtype type;         /* of params and gradients */
    enum dtype sum_type;     /* of sums of several gradients; see zero_use_type */
    bool worker;
    struct partition partition;
    struct zero_piece *pieces;
    struct zero_use *uses;    /* of all pieces, consecutive */
    int64_t *exchange_counts; /* memory of all pieces' tables */

    struct comm *gather_comm;  /* the ranks of a copy; NULL: this rank holds all of it */
    struct comm *replica_comm; /* the owners of the same shard; NULL: this rank alone */
    struct comm *reduce_comm;  /* all ranks; NULL: one rank */
    struct comm *muon_comm;    /* the owners, where Muon updates tensors; NULL: there is one
                               owner, or this rank owns nothing */
    struct comm *lend_comm;    /* between PP stages: tied params, to the stage that borrows them */
    struct comm *lent_comm;    /* between PP stages: sums of their gradients, back; both NULL
                               without a pipeline */
    struct stream *gather_stream, *reduce_stream;
    struct event *written; /* compute has written what is sent next */
    struct event *early;   /* the sums of all pieces but the late ones are complete */

    struct slot_table *walks; /* where params are sharded: one table for every walk */
    int walk_count;
    int64_t *slot_count; /* (slots) elements: the most of any walk */
    int slots;
    void **slot_at;                         /* (slots) NULL on servers */
    struct event **slot_ready, **slot_free; /* (slots) */
    const struct slot_table *walk;          /* the current walk */
    int next_residency, last_entry;         /* in the current walk */
    int ahead; /* of the next walk: residencies that have begun already */

    float *compute_slot; /* fp32 params of the current unit, where they are widened */
    int64_t compute_count;
    void *gradient_work; /* gradients of the current unit in the compute type, where passes cannot
                            write them where they are sent from */
    struct gradient_slot gradient_slots[GRADIENT_SLOTS];
    void *contributions; /* owners: (workers, elements of a reduce shard) of the largest message */
    float *round_sum[2]; /* a chunk of a round's sum in fp32, where sums have 16 bits: of what
                            `stream` adds, and of what the reduce stream adds meanwhile */

    struct update_segment *segments;           /* device memory, batch by batch */
    struct update_location *segment_locations; /* the same; NULL: params are rounded to nearest */
    int segment_count;
    struct zero_batch *batches; /* (batch_count) at most one per tensor */
    int batch_count;
    struct segment_run *runs;    /* (batch_count, pieces + packets) the segments of a batch in
                                         a resident piece, or in a packet */
    int64_t update_number;       /* of the last update */
    bool updating;               /* pieces of it may be pending (zero_sums.c) */
    int next_pending;            /* no piece before it is, where state may be far */
    struct zero_packet *packets; /* in piece order */
    int packet_count;
    int packets_fetched, packets_used;             /* of the next update, or of the current one */
    struct far *far_state, *far_sums, *far_params; /* NULL: all is resident */
    struct stream *in_stream, *out_stream;         /* between far and device memory */
    struct stream *params_stream;                  /* far params, to their slots */
    void *params_staging;                          /* host: a chunk of far params */
    struct transit_slot *transit_slots, *sum_slots;
    int transit_slot_count, sum_slot_count;
    int64_t next_sum_slot;
    pthread_mutex_t hold_lock;
    pthread_cond_t released;
    int first_held; /* the far state of this piece and those after it is being saved */
    struct zero_host host;
    size_t transit_grad, transit_params; /* where these begin in a transit slot */
    int *batch_of;                       /* (tensors) -1: it is never updated */
    struct optimizer *optimizers;        /* (tensors of the whole model) */
    bool *frozen;                        /* (tensors of the whole model) zero_is_frozen */
    struct zero_encoder encoder;
    uint8_t *codes;             /* host: ZERO_CODES_ROOM bytes, where a tensor has codes */
    struct zero_muon *muon;     /* NULL: Muon updates no tensor */
    struct zero_range *squared; /* memory of all pieces' ranges */
    double *weights;            /* (micro-batches) NULL: squares are not added */
    double *block_sums;         /* device: (block_room) sums of squares of blocks */
    int64_t block_room;
    int64_t *first_block;           /* (pieces) number of its first block in the whole model */
    double *parts;                  /* device: the values this rank's nodes are made of */
    double *parts_host;             /* a copy */
    int64_t part_count, wide_count; /* the first wide_count parts cover more than one block */
    /* Aligned nodes of the norm, (node_room) each: this rank's, a neighbour's, and both merged. */
    double *nodes, *nodes_taken, *nodes_joined;
    int64_t node_room;
    struct staged_node *staged;        /* nodes of the whole model on the rank of the first reduce
                                   shard; of all PP stages on the first */
    int64_t *pp_stage_nodes;           /* (PP stages) number of nodes of each */
    int64_t (*all_bad)[2];             /* (ranks) the first non-finite gradient: tensor, element */
    int64_t *nonfinite;                /* device: one index */
    double waited_for_sums;            /* seconds at the end of steps until all sums had arrived */
    struct step_scalars *scalars_host; /* (1 + batches) those of passes, then of each batch */
    struct step_scalars *scalars;      /* device */
    float *staging;          /* host: a chunk of elements that are being read or written */
    float *rounding;         /* device: the same, where 16-bit params have no masters */
    struct comm_parts range; /* the table of zero_read */
    void *collected;         /* device: a chunk of elements that come from several ranks */
    void *from_far;          /* device: a chunk that this rank sends, where it is far */
};

enum { ZERO_CHUNK_BLOCKS = 1 << 12, ZERO_STAGING = ZERO_CHUNK_BLOCKS * OPS_BLOCK };
/* Codes of a chunk and of the block that it completes, and after them their scales. */
enum {
    ZERO_CODES_MOST = ZERO_STAGING + OPS_BLOCK,
    ZERO_CODES_ROOM = ZERO_CODES_MOST + ZERO_CHUNK_BLOCKS + 2
};
enum { TP_GROUP_PARTIAL = 1 << 16 }; /* elements of gradients that are added at a time */

/* --- addresses of elements ------------------------------------------------------------------ */
static inline void *zero_at(const void *base, enum dtype type, int64_t index)
{
    return (char *)base + (size_t)index * dtype_bytes(type);
}

static inline bool zero_is_narrow(const struct zero *zero)
{
    return zero->type != DTYPE_F32;
}

/* Units compute in fp32, while params and gradients have 16 bits. */
static inline bool zero_widens(const struct zero *zero)
{
    return zero->type != zero->ops->type;
}

/* The owners hold fp32 masters in addition to the params that passes read. */
static inline bool zero_has_masters(const struct zero *zero)
{
    return zero_is_narrow(zero) && zero->config.micro_batches > 0;
}

/* No pass of the whole model writes a gradient of the piece: its params are never updated. */
static inline bool zero_is_frozen(const struct zero *zero, int piece)
{
    const struct unit_graph *graph = zero->graph;
    int own = graph->params[graph->pieces[piece].first_param].first_tensor;
    return zero->frozen[zero->pipe.cut ? zero->pipe.cut->whole_tensor[own] : own];
}

static inline bool zero_piece_has_master(const struct zero *zero, int piece)
{
    return zero_has_masters(zero) && !zero_is_frozen(zero, piece);
}

/* Params are their masters rounded at random. */
static inline bool zero_rounds_at_random(const struct zero *zero)
{
    return zero->config.stochastic && zero_has_masters(zero);
}

/* The type of piece->master. */
static inline enum dtype zero_master_type(const struct zero *zero, int piece)
{
    return zero_piece_has_master(zero, piece) ? DTYPE_F32 : zero->type;
}

/* --- sizes ---------------------------------------------------------------------------------- */
static inline int64_t zero_shard_count(const struct zero *zero, int piece)
{
    return zero->partition.piece_count[piece] / zero->shards;
}

/* The elements of a shard of a piece. */
static inline struct piece_range zero_shard_range(const struct zero *zero, int piece, int shard)
{
    int64_t count = zero_shard_count(zero, piece);
    return (struct piece_range){piece, shard * count, count};
}

static inline int64_t zero_reduce_shard_count(const struct zero *zero, int piece)
{
    return partition_reduce_shard(&zero->partition, piece);
}

static inline bool zero_alone(const struct zero *zero)
{
    return zero->roster.size == 1;
}

/* --- pieces of several PP stages ------------------------------------------------------------ */
/* The PP stage that borrows the piece, or that lends it; UNIT_NO_STAGE: none. */
static inline int zero_lent_to(const struct zero *zero, int piece)
{
    return zero->pipe.cut ? zero->pipe.cut->lent_to[piece] : UNIT_NO_STAGE;
}

static inline int zero_borrowed_from(const struct zero *zero, int piece)
{
    return zero->pipe.cut ? zero->pipe.cut->borrowed_from[piece] : UNIT_NO_STAGE;
}

/* The index of a tensor of the model in this PP stage's graph; -1: it is not here. */
static inline int zero_own_tensor(const struct zero *zero, int tensor)
{
    return zero->pipe.cut ? zero->pipe.cut->own_tensor[tensor] : tensor;
}

/* The index in the model of a tensor of this PP stage's graph. */
static inline int zero_whole_tensor(const struct zero *zero, int own)
{
    return zero->pipe.cut ? zero->pipe.cut->whole_tensor[own] : own;
}

static inline const struct unit_graph *zero_whole_graph(const struct zero *zero)
{
    return zero->pipe.cut ? zero->pipe.cut->whole : zero->graph;
}

/* The ranks of the TP group each have a partial gradient of the piece, which must be added. */
static inline bool zero_is_partial(const struct zero *zero, int piece)
{
    const struct unit_graph *graph = zero->graph;
    const struct unit_piece *p = &graph->pieces[piece];
    for (int q = p->first_param; q < p->first_param + p->param_count; q++) {
        const struct unit_param *param = &graph->params[q];
        for (int t = 0; t < param->tensor_count; t++)
            if (graph->tensors[param->first_tensor + t].split.partial)
                return zero_borrowed_from(zero, piece) == UNIT_NO_STAGE;
    }
    return false;
}

/* The piece has gradients and is updated here. */
static inline bool zero_is_learned(const struct zero *zero, int piece)
{
    return zero->pieces[piece].use_count > 0 && zero_borrowed_from(zero, piece) == UNIT_NO_STAGE;
}

/* The last backward pass writes a gradient of the piece, so its sum is complete last. */
static inline bool zero_is_late(const struct zero *zero, int piece)
{
    return zero->pieces[piece].use_count > 0 &&
           zero->pieces[piece].uses[0].unit == zero->graph->backward_from;
}

/* One call of its rule updates a batch; Muon's take turns (zero_muon.c). */
static inline bool zero_in_one_call(const struct zero *zero, int batch)
{
    return zero->batches[batch].optimizer.kind != OPTIMIZER_MUON;
}

/* --- types of sums -------------------------------------------------------------------------- */
/* The type of a gradient's sum; `added_to`: further sums are added to it. The sum of a single
 * gradient is that gradient, which is exact in its own type. */
static inline enum dtype zero_type_of_sum(const struct zero *zero, bool added_to)
{
    bool one = zero_alone(zero) && zero->most_reductions == 1 && !added_to;
    return one && zero->sum_type == DTYPE_F32 ? zero->type : zero->sum_type;
}

/* With config.local, a worker's own sum has the type in which it is sent. */
static inline bool zero_local_is_sent(const struct zero *zero)
{
    return zero->sum_type == zero->type;
}

/* The first use of a tied piece is the one to which other uses, and other ranks' sums, are
 * added. */
static inline enum dtype zero_use_type(const struct zero *zero, int piece,
                                       const struct zero_use *use)
{
    const struct zero_piece *p = &zero->pieces[piece];
    bool tied = p->use_count > 1 || zero_lent_to(zero, piece) != UNIT_NO_STAGE;
    return zero_type_of_sum(zero, (tied || zero_is_partial(zero, piece)) && use == p->uses);
}

/* The type of the step's gradient, which is the sum of the first use and then of all uses. */
static inline enum dtype zero_sum_type(const struct zero *zero, int piece)
{
    return zero_use_type(zero, piece, zero->pieces[piece].uses);
}

/* With one rank and never more than one micro-batch, passes write the gradient directly into the
 * sum. */
static inline bool zero_sum_is_gradient(const struct zero *zero, int piece,
                                        const struct zero_use *use)
{
    return zero_alone(zero) && zero->most_reductions == 1 && !zero->pieces[piece].sum_is_far &&
           zero_use_type(zero, piece, use) == zero->type;
}

/* --- zero_memory.c -------------------------------------------------------------------------- */
/* The elements of a piece from the first to the last param that unit u uses: the whole piece,
 * unless several units use different params of it. */
struct piece_range zero_part_of_unit(const struct zero *zero, int piece, int u);
/* Is the sum of a piece changed between the last micro-batch and the norm? */
bool zero_sum_changes(const struct zero *zero, int piece);
/* The use of a piece that unit u writes; NULL: none. */
struct zero_use *zero_find_use(struct zero *zero, int piece, int u);
enum status zero_memory_create(struct zero *zero);
void zero_memory_free(struct zero *zero);

/* --- zero_moments.c -------------------------------------------------------------------------- */
/* Find the optimizer of every tensor of the model. */
enum status moments_create(struct zero *zero);
/* Allocate the moments of a piece, and find their places. */
enum status moments_alloc(struct zero *zero, int piece);
/* Set the moments of a segment: `mine`, of what this rank updates of tensor t. */
void moments_set(const struct zero *zero, int t, struct piece_range mine,
                 const struct state_view *view, struct update_segment *segment);
/* Memory for a moment (0: m, 1: v) of the elements `held`: its bytes, and the place of a tensor's
 * part of it. */
size_t moments_bytes(const struct zero *zero, struct piece_range held, int which);
struct moment_place moments_place(const struct zero *zero, struct piece_range held, int which,
                                  int tensor);
/* The form in which the store has a state of a tensor of the whole model. */
enum moment_form zero_state_form(const struct zero *zero, enum zero_state state, int tensor);
/* Encode one block, to nearest. */
void moments_encode(enum zero_state state, const float *values, int count, uint8_t *codes,
                    uint8_t *scale);
/* The tensors of a piece: first .. end-1. */
void zero_piece_tensors(const struct unit_graph *graph, int piece, int *first, int *end);

/* --- zero_exchange.c ------------------------------------------------------------------------ */
enum status exchange_open(struct zero *zero);
enum status exchange_tables_create(struct zero *zero);
/* Fill the tables of the last round for zero->reductions. No reduction is in flight. */
void exchange_set_last_round(struct zero *zero);
/* full (on every worker) = the shards of its copy. Enqueued on the gather stream; the caller has
 * made that stream wait for the shards and for `full`. */
void shards_to_members(struct zero *zero, int piece, const void *shard, void *full);
/* total = the reduce shards of all owners of this shard. Enqueued likewise. */
void reduce_shards_to_replicas(struct zero *zero, int piece);
/* Send the active workers' `full` to its owners, which add it to the sum of the use in worker
 * order; the first gradient of a step is stored. Enqueued on the reduce stream. */
void reduce_shards_to_owners(struct zero *zero, int piece, const void *full, int64_t round,
                             const struct zero_use *use);
/* sum (+)= `count` elements of the gradients of `active` workers, which are `stride` elements
 * apart; `first`: sum is empty. */
void add_contributions(struct zero *zero, struct stream *stream, void *sum, const void *gradients,
                       int active, int64_t stride, int64_t count, bool first);
/* Add a range of the gradients of `active` workers, one after the other in memory, to the sum of
 * the use at this owner, and their squares to its squares. In round 0 both are empty. One rank may
 * have its gradient in the sum already. */
void add_gradients(struct zero *zero, struct stream *stream, struct piece_range range,
                   const struct zero_use *use, const void *gradients, int active, int64_t round);

/* --- zero_params.c -------------------------------------------------------------------------- */
/* dst = values, rounded to nearest in zero->type, where params have no masters. */
enum status zero_write_rounded(struct zero *zero, void *dst, const float *values, int64_t count);

/* --- zero_state.c --------------------------------------------------------------------------- */
size_t zero_snapshot_bytes(const struct zero *zero, int piece);
/* Read elements of this rank's part of a tensor of this graph, in fp32. The caller waits for the
 * stream. */
enum status zero_state_read_part(struct zero *zero, enum zero_state state, int own,
                                 struct zero_range part, float *out);
/* Write masters of this rank's part of a tensor of this graph, or 16-bit params where there are
 * none. Nothing is on its way to far memory. */
enum status zero_write_masters(struct zero *zero, int own, struct zero_range part,
                               const float *values);

/* --- zero_tp_group.c ------------------------------------------------------------------------ */
enum status tp_group_create(struct zero *zero);
void tp_group_free(struct zero *zero);
/* Add the ranks' partial gradients, for this rank's reduce shards. */
enum status tp_group_add_partials(struct zero *zero);
/* *value = the sum of the ranks' values, in rank order. */
enum status tp_group_add(struct zero *zero, double *value);
/* A tensor of the whole model, with the part that rank t has. */
struct unit_tensor tp_group_tensor(const struct zero *zero, int tensor, int t);
/* The elements of `whole` that a part has, as a range of the part. */
struct zero_range tp_group_part(const struct unit_tensor *tensor, struct zero_range whole);
/* `count` elements of a part, from element `local` of the part, taken from `values`, which begin
 * with element `first` of the whole tensor. Returns a pointer into `values` where they are
 * contiguous, otherwise copies them to `room`. */
const float *tp_group_pack(const struct unit_tensor *tensor, int64_t local, int64_t count,
                           int64_t first, const float *values, float *room);
/* Read elements of a whole tensor on every rank; `read` reads this rank's own tensor. */
typedef enum status tp_group_read_fn(struct zero *zero, int own_tensor, int64_t first,
                                     int64_t count, float *out);
enum status tp_group_read(struct zero *zero, int tensor, tp_group_read_fn *read, int64_t first,
                          int64_t count, float *out);
/* Collect state of a whole tensor, in fp32: rank t gets tp_group.wanted[t]. */
enum status tp_group_collect(struct zero *zero, enum zero_state state, int tensor, float *out);

/* --- zero_update.c -------------------------------------------------------------------------- */
/* Fill zero->batches: the different optimizers and phases of the whole model, in order of
 * appearance. The same on every rank. */
enum status zero_batches_create(struct zero *zero);
/* Fill zero->segments: the tensors whose state this rank updates, with the multipliers of their
 * groups. */
enum status zero_segments_create(struct zero *zero);
/* The part of a tensor that this rank updates, in elements of its piece; count 0: none. */
struct piece_range zero_updated_part(const struct zero *zero, int t);

/* The part `mine` of tensor t, with the multipliers of its group; its state is where `view` says.
 */
struct update_segment zero_segment_of(const struct zero *zero, int t, struct piece_range mine,
                                      const struct state_view *view);

/* The segments of a batch in a resident piece, or in packet k: pieces + k. */
static inline struct segment_run *zero_run(const struct zero *zero, int batch, int index)
{
    return &zero->runs[batch * (zero->graph->piece_count + zero->packet_count) + index];
}
/* Enqueue the last update of some segments of batch b; no segments: does nothing. */
void zero_update_segments(struct zero *zero, int b, const struct segment_run *run);
/* What that is: the rule for segments with these locations, or NULL; and its price. */
struct update zero_update_of(const struct zero *zero, int b, const struct segment_run *run,
                             const struct update_location *locations);
struct ops_case zero_update_case(const struct zero *zero, int b, const struct segment_run *run);

/* --- zero_sums.c ---------------------------------------------------------------------------- */
/* Start to exchange the sums between the replicas of a shard, and to fetch far state. The update of
 * every piece is then pending. Does nothing where an update waits for neither. */
void zero_begin_update(struct zero *zero);
/* Updates run when a piece is needed next, not in zero_update. */
bool zero_defers_updates(const struct zero *zero);
/* Wait for the sum and the state of a piece and enqueue its update, if that is pending; where state
 * may be far, of all pieces before it, too. */
void zero_update_piece(struct zero *zero, int piece);
/* The same for all pieces. Fails if a sum did not arrive. Not collective. */
enum status zero_finish_update(struct zero *zero);

/* --- zero_muon.c ---------------------------------------------------------------------------- */
/* Does nothing where Muon updates no tensor. Collective. */
enum status zero_muon_create(struct zero *zero);
void zero_muon_free(struct zero *zero);
/* Update all tensors of Muon, in update number `number`. Collective over the owners. */
enum status zero_muon_update(struct zero *zero, int64_t number);

struct muon_task { /* a tensor to be orthogonalized */
    int tensor;
    int64_t cost;
    int owner, round; /* found by zero_muon_assign */
};
/* Give every task to the owner with the least work so far, the costliest task first; each owner
 * does one task in a round. Sorts the tasks. Returns the number of rounds. work: (owners) zeros;
 * becomes the sum of costs of each. */
int zero_muon_assign(struct muon_task *tasks, int count, int owners, int64_t *work);

/* --- zero_stochastic.c ---------------------------------------------------------------------- */
/* Where a segment is that begins with element `first` of tensor t as it is here. */
struct update_location zero_location_of(const struct zero *zero, int t, int64_t first);
/* All updated params = their masters, rounded at random as in update number `updates`. */
enum status zero_round_all(struct zero *zero, int64_t updates);

#endif
