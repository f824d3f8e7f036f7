/* zero_impl -- the store's inside, shared by the files of this folder. */
#ifndef ZERO_ZERO_IMPL_H
#define ZERO_ZERO_IMPL_H
#include "zero/partition.h"
#include "zero/zero.h"

/* One unit's gradient of a piece: the sum over the micro-batches of a step. */
struct zero_use {
    int unit;
    float *sum; /* (slice) fp32 */
};

struct zero_piece {
    float *params;         /* (piece_count) */
    float *m, *v;          /* (slice) */
    struct zero_use *uses; /* in unit order */
    int use_count;
};

struct zero {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct env *env;                /* borrowed */
    struct zero_config config;      /* groups are not kept: see segments */
    struct partition partition;
    struct zero_piece *pieces;
    struct zero_use *uses; /* all pieces' uses, one after the other */
    float *gradient_slot;  /* where micro-batches after the first write theirs; NULL when there is
                              only one */
    struct adamw_segment *segments; /* device memory */
    int segment_count;
    double *block_sums; /* device: sums of squares of a chunk of blocks, and the host's copy */
    double *block_sums_host;
    int64_t *nonfinite; /* device: one index */
    struct step_scalars scalars_host;
    struct step_scalars *scalars; /* device */
    float *staging;               /* host: a chunk of elements on their way in or out */
};

enum { ZERO_CHUNK_BLOCKS = 1 << 12, ZERO_STAGING = ZERO_CHUNK_BLOCKS * OPS_BLOCK };

/* Fill zero->segments: the tensors this owner has a part of, with the multipliers of the last group
 * that matches. */
enum status zero_segments_create(struct zero *zero);

#endif
