/* zero_impl -- the store's inside, shared by the files of this folder.
 *
 *     zero.c            construction: a rank's part of everything
 *     zero_memory.c     what is held, and taking the memory for it
 *     zero_exchange.c   slices to their owners, slices to the members
 *     zero_pass.c       what a pass gets and hands over
 *     zero_norm.c       the norm of the gradient over all slices; zero_norm_parts.c: of this rank's
 *     zero_update.c     the end of a step
 *     zero_round.c      16-bit params that are rounded at random
 *     zero_values.c     parameters from and to outside
 *     zero_state.c      the same with the optimizer's state, and a copy of it
 *     zero_tp_group.c       what tensor-parallel ranks do together
 */
#ifndef ZERO_ZERO_IMPL_H
#define ZERO_ZERO_IMPL_H
#include "zero/norm_tree.h"
#include "zero/partition.h"
#include "zero/slots.h"
#include "zero/zero.h"

/* One unit's gradient of a piece. */
struct zero_use {
    int unit;
    void *full;   /* (piece_count) gradient of this worker's micro-batch; NULL: in a slot */
    float *local; /* (piece_count) sum of this worker's micro-batches, where it adds its own; may
                        be full */
    void *sum;    /* (share) over the micro-batches of the step, at its owner, in zero_use_type */
    void *sum_block;    /* the memory it lies in; NULL: in full */
    struct event *free; /* of full, or local: its slices have been sent */
};

struct zero_piece {
    void *full;   /* (piece_count) params, where they are not sharded; NULL elsewhere */
    void *shard;  /* (shard) params at their holders: in full, or by itself */
    void *master; /* (shard) params as they are updated, in fp32: slice, or by itself beside 16-bit
                      params; of a store that only reads: slice */
    float *m, *v; /* (shard) */
    float *snapshot; /* host: (states, share) */
    void *total;     /* (shard) the step's gradient: the sum of all uses, from all that sum it */
    struct zero_use *uses; /* in unit order */
    int use_count;
    struct comm_parts gather;    /* the shards of a copy to its workers */
    struct comm_parts reduce[2]; /* workers' shares to the owners: a whole round, the last one */
    void *lent_sum;              /* (share) of a use on another stage, on its way to the sum */
    struct event *published;     /* full has the owners' newest values */
};

/* A node of the norm on its way to the first stage: its first block and level, both small enough to
 * be exact, and its value. */
struct staged_node {
    double first, level, value;
};

struct gradient_slot {
    void *at;
    struct event *free; /* its slices have been sent */
};

enum { GRADIENT_SLOTS = 2 };

/* Tensor-parallel ranks. */
struct zero_tp_group {
    struct comm *comm; /* borrowed; NULL: this rank alone */
    int rank, size;
    struct comm *replicas; /* those of them that have the same parts, where not all have; or NULL */
    struct unit_split *splits; /* (ranks, tensors of the whole model) */
    struct comm_parts swap;    /* (ranks) */
    float *mine, *all;         /* host: a chunk of elements of this rank, and of all */
    double *sums;              /* (ranks) */
    struct zero_range *wanted; /* (ranks) */
    int64_t partial_count;
    void *partial, *scratch; /* device: (partial_count) shares of gradients while they are added */
};

struct zero {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed: compute */
    struct comm *comm;              /* borrowed; NULL: one rank */
    const struct unit_graph *graph; /* borrowed */
    struct env *env;                /* borrowed */
    struct zero_config config;      /* groups are not kept: see segments */
    struct sharding sharding;
    struct roster roster;
    struct zero_tp_group tp_group;
    struct zero_pipe pipe;  /* all NULL: the whole model is here */
    struct partition whole; /* of the whole model, in a pipeline; otherwise empty */
    int shard, shards;      /* of this rank's copy: the one it holds, -1: none; and how many */
    int reduce_shard;       /* the part of every piece that this rank sums, -1: none */
    int members;            /* ranks of gather_comm, from first_member on */
    int first_member;
    int64_t reductions;  /* gradients that are summed in a step: micro-batches, or workers */
    enum dtype type;     /* of params and gradients */
    enum dtype sum_type; /* of sums of several gradients: see zero_use_type */
    bool worker;
    struct partition partition;
    struct zero_piece *pieces;
    struct zero_use *uses;    /* all pieces' uses, one after the other */
    int64_t *exchange_counts; /* all pieces' exchanges */

    struct comm *gather_comm;  /* the ranks of a copy; NULL: this rank has all of it */
    struct comm *replica_comm; /* the holders of a shard; NULL: this rank alone */
    struct comm *reduce_comm;  /* all; NULL: one rank */
    struct comm *lend_comm;    /* the stages, for params of one that another uses, too; */
    struct comm *lent_comm;    /* and for the sums of their gradients; NULL: no stages */
    struct stream *gather_stream, *reduce_stream;
    struct event *written; /* compute has written what is to be sent */

    struct slot_table *walks; /* where params are sharded: of every walk that there is */
    int walk_count;
    int64_t *slot_count; /* (slots) elements: enough for each of the walks */
    int slots;
    void **slot_at;                         /* (slots) NULL at servers */
    struct event **slot_ready, **slot_free; /* (slots) */
    const struct slot_table *walk;          /* the one under way */
    int next_residency, last_entry;         /* of it */

    float *compute_slot; /* fp32 params of the unit that computes, where they are widened */
    int64_t compute_count;
    float *gradient_work; /* fp32 gradients of the unit that computes, where they are not written
                             where they are sent from */
    struct gradient_slot gradient_slots[GRADIENT_SLOTS];
    void *contributions; /* at owners: (workers, share) of the largest piece */
    float *round_sum;    /* a chunk of a round's sum, where sums are 16-bit */

    struct adamw_segment *segments; /* device memory */
    struct adamw_location
        *segment_locations; /* device memory; NULL: params are rounded to nearest */
    int segment_count;
    int64_t updated_count; /* elements of all segments */
    double *block_sums;    /* device: (block_room) sums of squares of blocks */
    int64_t block_room;
    int64_t *first_block;           /* (pieces) of the blocks of the whole model */
    double *parts, *parts_host;     /* device: what this rank's nodes are made of, and a copy */
    int64_t part_count, wide_count; /* the first wide_count: of more than a block */
    /* Aligned parts of the norm: held, come from a neighbour, made of both. (node_room) each */
    double *nodes, *nodes_taken, *nodes_joined;
    int64_t node_room;
    struct staged_node *staged; /* of the whole model, at the first share; of all stages, at the
                                   first */
    int64_t *pp_stage_nodes;    /* (stages) how many they have */
    int64_t (*all_bad)[2];      /* (ranks) the first gradient that is not finite: tensor, element */
    int64_t *nonfinite;         /* device: one index */
    double waited_for_sums;     /* seconds at the ends of steps until all sums were in */
    struct step_scalars scalars_host;
    struct step_scalars *scalars; /* device */
    float *staging;               /* host: a chunk of elements on their way in or out */
    float *rounding;              /* device: the same, where a store that only reads is 16-bit */
    struct comm_parts range;      /* of zero_read */
    void *collected;              /* device: a chunk of it, where it comes from several ranks */
};

enum { ZERO_CHUNK_BLOCKS = 1 << 12, ZERO_STAGING = ZERO_CHUNK_BLOCKS * OPS_BLOCK };
enum { TP_GROUP_PARTIAL = 1 << 16 }; /* elements of gradients that are added at once */

/* --- elements of a type that is a value ----------------------------------------------------- */
static inline void *zero_at(const void *base, enum dtype type, int64_t index)
{
    return (char *)base + (size_t)index * dtype_bytes(type);
}

static inline bool zero_is_narrow(const struct zero *zero)
{
    return zero->type != DTYPE_F32;
}

/* Units compute in another type than params and gradients have: fp32 beside 16 bits. */
static inline bool zero_widens(const struct zero *zero)
{
    return zero->type != zero->ops->type;
}

/* There are fp32 params beside those that are read in passes. */
static inline bool zero_has_masters(const struct zero *zero)
{
    return zero_is_narrow(zero) && zero->config.micro_batches > 0;
}

/* Params are rounded at random from them. */
static inline bool zero_rounds_at_random(const struct zero *zero)
{
    return zero->config.stochastic && zero_has_masters(zero);
}

/* Of what piece->master points to. */
static inline enum dtype zero_master_type(const struct zero *zero)
{
    return zero_has_masters(zero) ? DTYPE_F32 : zero->type;
}

/* --- lengths -------------------------------------------------------------------------------- */
static inline int64_t zero_shard_count(const struct zero *zero, int piece)
{
    return zero->partition.piece_count[piece] / zero->shards;
}

static inline int64_t zero_reduce_shard_count(const struct zero *zero, int piece)
{
    return partition_reduce_shard(&zero->partition, piece);
}

static inline bool zero_alone(const struct zero *zero)
{
    return zero->roster.size == 1;
}

/* --- pieces of several stages --------------------------------------------------------------- */
/* The stage that uses it too, or that it is borrowed from; UNIT_NO_STAGE: none. */
static inline int zero_lent_to(const struct zero *zero, int piece)
{
    return zero->pipe.cut ? zero->pipe.cut->lent_to[piece] : UNIT_NO_STAGE;
}

static inline int zero_borrowed_from(const struct zero *zero, int piece)
{
    return zero->pipe.cut ? zero->pipe.cut->borrowed_from[piece] : UNIT_NO_STAGE;
}

/* A tensor of the model in this stage's graph; -1: it is not here. */
static inline int zero_own_tensor(const struct zero *zero, int tensor)
{
    return zero->pipe.cut ? zero->pipe.cut->own_tensor[tensor] : tensor;
}

/* What is summed of it is a share of the gradient: those of other tensor-parallel ranks are
 * added. */
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

/* It has gradients, and is updated here. */
static inline bool zero_is_learned(const struct zero *zero, int piece)
{
    return zero->pieces[piece].use_count > 0 && zero_borrowed_from(zero, piece) == UNIT_NO_STAGE;
}

/* --- types of sums -------------------------------------------------------------------------- */
/* Of a gradient's sum, to which others are added or not. Of one gradient alone the sum is that
 * gradient, exact in its own type. */
static inline enum dtype zero_type_of_sum(const struct zero *zero, bool added_to)
{
    bool one = zero_alone(zero) && zero->reductions == 1 && !added_to;
    return one && zero->sum_type == DTYPE_F32 ? zero->type : zero->sum_type;
}

/* The other uses of a tied piece are added to the first, and what other ranks have of it. */
static inline enum dtype zero_use_type(const struct zero *zero, int piece,
                                       const struct zero_use *use)
{
    const struct zero_piece *p = &zero->pieces[piece];
    bool tied = p->use_count > 1 || zero_lent_to(zero, piece) != UNIT_NO_STAGE;
    return zero_type_of_sum(zero, (tied || zero_is_partial(zero, piece)) && use == p->uses);
}

/* Of the step's gradient: the sum of the first use, and then of all. */
static inline enum dtype zero_sum_type(const struct zero *zero, int piece)
{
    return zero_use_type(zero, piece, zero->pieces[piece].uses);
}

/* One rank alone with one micro-batch puts its gradient where the sum is. */
static inline bool zero_sum_is_gradient(const struct zero *zero, int piece,
                                        const struct zero_use *use)
{
    return zero_alone(zero) && zero->reductions == 1 &&
           zero_use_type(zero, piece, use) == zero->type;
}

/* --- zero_memory.c -------------------------------------------------------------------------- */
enum status zero_memory_create(struct zero *zero);
void zero_memory_free(struct zero *zero);

/* --- zero_exchange.c ------------------------------------------------------------------------ */
enum status exchange_open(struct zero *zero);
/* The same between the stages of a pipeline. */
enum status exchange_open_pp_stages(struct zero *zero);
enum status exchange_tables_create(struct zero *zero);
/* full (at every worker) = the shards of its copy. Enqueued on the gather stream, which has been
 * made to wait for the shards and for the place by the caller. */
void shards_to_members(struct zero *zero, int piece, const void *shard, void *full);
/* total = the shares of all that sum it. Enqueued likewise. */
void reduce_shards_to_replicas(struct zero *zero, int piece);
/* Shares of the active workers' `full` to their owners, where they are added to `sum` in worker
 * order; the first of the step is stored. Enqueued on the reduce stream. */
void reduce_shards_to_owners(struct zero *zero, int piece, const void *full, int64_t round,
                             void *sum);
/* sum (+)= gradients of `active` workers, `stride` elements apart; `first`: nothing is in sum
 * yet. */
void add_contributions(struct zero *zero, struct stream *stream, void *sum, const void *gradients,
                       int active, int64_t stride, bool first);

/* --- zero_norm.c ---------------------------------------------------------------------------- */
enum status norm_create(struct zero *zero);
enum status norm_of_sums(struct zero *zero, double *square_sum);

/* --- zero_state.c --------------------------------------------------------------------------- */
int64_t zero_snapshot_count(const struct zero *zero, int piece); /* elements of each state */

/* --- zero_tp_group.c
 * ---------------------------------------------------------------------------- */
enum status tp_group_create(struct zero *zero);
void tp_group_free(struct zero *zero);
/* Add up what the ranks have of partial gradients, in this rank's shares. */
enum status tp_group_add_partials(struct zero *zero);
/* *value = the ranks' values, added in their order. */
enum status tp_group_add(struct zero *zero, double *value);
/* A tensor of the whole model with the part that rank t has. */
struct unit_tensor tp_group_tensor(const struct zero *zero, int tensor, int t);
/* What a part has of a range of the whole, as a range of the part. */
struct zero_range tp_group_part(const struct unit_tensor *tensor, struct zero_range whole);
/* `count` elements of a part from `local` on, out of values, which begin with element `first` of
 * the whole: where they are if they follow each other, otherwise in `room`. */
const float *tp_group_pack(const struct unit_tensor *tensor, int64_t local, int64_t count,
                           int64_t first, const float *values, float *room);
/* Elements of a whole tensor, to all; `read` gives this rank's, of its own tensor. */
typedef enum status tp_group_read_fn(struct zero *zero, int own_tensor, int64_t first,
                                     int64_t count, float *out);
enum status tp_group_read(struct zero *zero, int tensor, tp_group_read_fn *read, int64_t first,
                          int64_t count, float *out);
/* team.wanted (ranks) is what each wants of a whole tensor; own_state has what this rank has of it,
 * beginning with element own_first of its part. */
enum status tp_group_collect(struct zero *zero, int tensor, const float *own_state,
                             int64_t own_first, float *out);

/* --- zero_update.c -------------------------------------------------------------------------- */
/* Fill zero->segments: the tensors whose state this rank updates, with their groups'
 * multipliers. */
enum status zero_segments_create(struct zero *zero);
/* The part of a tensor that this rank updates, in elements of its piece; count 0: none. */
struct piece_range zero_updated_part(const struct zero *zero, int t);

/* --- zero_round.c --------------------------------------------------------------------------- */
/* Fill zero->segment_locations, one for each of zero->segments. */
enum status zero_round_create(struct zero *zero);
/* All params that are updated = their masters, rounded at random as by update number `updates`. */
enum status zero_round_all(struct zero *zero, int64_t updates);

#endif
