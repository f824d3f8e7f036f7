/* zero_impl -- the store's inside, shared by the files of this folder.
 *
 *     zero.c            what is held, and taking the memory for it
 *     zero_exchange.c   slices to their owners, slices to the members
 *     zero_pass.c       what a pass gets and hands over
 *     zero_norm.c       the norm of the gradient over all slices
 *     zero_update.c     the end of a step
 *     zero_values.c     parameters from and to outside
 */
#ifndef ZERO_ZERO_IMPL_H
#define ZERO_ZERO_IMPL_H
#include "zero/norm_tree.h"
#include "zero/partition.h"
#include "zero/slots.h"
#include "zero/zero.h"

/* Counts and offsets of an exchange between all ranks, (size) each; see comm_all_to_all_v. */
struct exchange {
    int64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
};

/* One unit's gradient of a piece. */
struct zero_use {
    int unit;
    float *full;     /* (piece_count) gradient of this worker's micro-batch; NULL: in a slot */
    float *sum;      /* (slice) over the micro-batches of the step, at its owner; may lie in full */
    bool sum_inside; /* it does */
    struct event *free; /* of `full`: its slices have been sent */
};

struct zero_piece {
    float *full;  /* (piece_count) params, where they are not sharded; NULL elsewhere */
    float *slice; /* (slice) params at their owner: in full, or by itself */
    float *m, *v; /* optimizer state of elements optim_first .. + optim_count */
    int64_t optim_first, optim_count;
    struct zero_use *uses; /* in unit order */
    int use_count;
    struct exchange gather;    /* owners' slices to the workers */
    struct exchange reduce[2]; /* workers' slices to the owners: a whole round, the last one */
    struct event *published;   /* full has the owners' newest values */
};

struct gradient_slot {
    float *at;
    struct event *free; /* its slices have been sent */
};

enum { GRADIENT_SLOTS = 2 };

struct norm_node;

struct zero {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed: compute */
    struct comm *comm;              /* borrowed; NULL: one rank */
    const struct unit_graph *graph; /* borrowed */
    struct env *env;                /* borrowed */
    struct zero_config config;      /* groups are not kept: see segments */
    struct sharding sharding;
    struct roster roster;
    int owner; /* which owner this rank is, -1: none */
    bool worker;
    struct partition partition;
    struct zero_piece *pieces;
    struct zero_use *uses;    /* all pieces' uses, one after the other */
    int64_t *exchange_counts; /* all pieces' exchanges */

    struct comm *gather_comm, *reduce_comm; /* NULL: one rank */
    struct stream *gather_stream, *reduce_stream;
    struct event *written; /* compute has written what is to be sent */

    struct slot_table slots;                /* where params are sharded */
    float **slot_at;                        /* (slots) NULL at servers */
    struct event **slot_ready, **slot_free; /* (slots) */
    int next_residency, last_entry;         /* of the walk */

    struct gradient_slot gradient_slots[GRADIENT_SLOTS];
    float *contributions; /* at owners: (workers, slice) of the largest piece */

    struct adamw_segment *segments; /* device memory */
    int segment_count;
    double *block_sums; /* device: sums of squares of a chunk of blocks, and the host's copy */
    double *block_sums_host;
    struct norm_node *nodes, *all_nodes; /* this rank's and everybody's aligned parts of the norm */
    int node_room;
    int64_t *nonfinite;     /* device: one index */
    double waited_for_sums; /* seconds at the ends of steps until all sums were in */
    struct step_scalars scalars_host;
    struct step_scalars *scalars; /* device */
    float *staging;               /* host: a chunk of elements on their way in or out */
    struct exchange range;        /* of zero_read */
};

enum { ZERO_CHUNK_BLOCKS = 1 << 12, ZERO_STAGING = ZERO_CHUNK_BLOCKS * OPS_BLOCK };

static inline bool zero_alone(const struct zero *zero)
{
    return zero->roster.size == 1;
}

static inline bool zero_is_learned(const struct zero *zero, int piece)
{
    return zero->pieces[piece].use_count > 0;
}

/* --- zero_exchange.c -------------------------------------------------------------------------- */
enum status exchange_tables_create(struct zero *zero);
/* full (at every worker) = the owners' slices. Enqueued on the gather stream, which has been
 * made to wait for the slices and for the place by the caller. */
void slices_to_members(struct zero *zero, int piece, const float *slice, float *full);
/* Slices of the active workers' `full` to their owners, where they are added to `sum` in worker
 * order; the first of the step is stored. Enqueued on the reduce stream. */
void slices_to_owners(struct zero *zero, int piece, const float *full, int64_t round, float *sum);

/* --- zero_norm.c ------------------------------------------------------------------------------ */
enum status norm_create(struct zero *zero);
enum status norm_of_sums(struct zero *zero, double *square_sum);

/* --- zero_update.c ---------------------------------------------------------------------------- */
/* Fill zero->segments: the tensors whose state this rank updates, with their groups'
 * multipliers. */
enum status zero_segments_create(struct zero *zero);

#endif
