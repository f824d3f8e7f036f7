/* zero_norm -- the norm of the gradient, and the squares of the micro-batches.
 */
#ifndef ZERO_ZERO_NORM_H
#define ZERO_ZERO_NORM_H
#include "zero/zero_impl.h"

/* --- zero_norm.c ---------------------------------------------------------------------------- */
enum status norm_create(struct zero *zero);
/* What the blocks are. */
enum norm_blocks {
    NORM_SUMS,           /* squares of the summed gradients; those of another phase count as zero */
    NORM_LATE_SUMS,      /* the same, after norm_form_early: of the late pieces only */
    NORM_SQUARES,        /* the squares of the pieces' first uses (zero_noise.c) */
    NORM_CHANGED_SQUARES /* the same where a piece changes; otherwise those of the last call */
};
struct norm_source {
    enum norm_blocks blocks;
    enum unit_phase phase; /* of NORM_SUMS */
};
/* The sum of squares of the gradients of one phase; `late`: norm_form_early was called before. */
enum status norm_of_sums(struct zero *zero, enum unit_phase phase, bool late, double *square_sum);
enum status norm_of_squares(struct zero *zero, enum norm_blocks blocks, double *sum);

/* A sum of many numbers whose bits depend only on their order, not on how they were split. Numbers
 * 0, 1, 2, ... are the leaves of a binary tree. A node covers 2^level leaves, starting at a
 * multiple of 2^level, and is the sum of its two children. A rank that has all leaves of an aligned
 * node can send just the node. A node whose right half is past the end equals its left half. */
struct norm_tree {
    uint64_t leaves; /* added so far; bit `level` set = node[level] waits for its right sibling */
    double node[64];
};
/* Add the next 2^level leaves as one node. `leaves` must be a multiple of 2^level. */
void norm_tree_add(struct norm_tree *tree, int level, double value);
double norm_tree_sum(const struct norm_tree *tree);
/* The node over `count` values, where `count` is a power of two. Ten times as fast as adding
 * leaves. */
double norm_tree_node(const double *values, int64_t count);

/* Blocks first .. end-1 of the whole model. */
struct block_range {
    int64_t first, end;
};
/* The blocks of reduce shard `reduce_shard` of a piece. */
struct block_range norm_reduce_shard_blocks(const struct zero *zero, int piece, int reduce_shard);
/* The level of the largest aligned node at the start of a range. */
static inline int norm_first_level(struct block_range range)
{
    int longest = 63 - __builtin_clzll((uint64_t)(range.end - range.first));
    int aligned = range.first == 0 ? longest : __builtin_ctzll((uint64_t)range.first);
    return aligned < longest ? aligned : longest;
}

/* --- zero_norm_parts.c ---------------------------------------------------------------------- */
/* Count and allocate the parts. The blocks are numbered. */
enum status norm_parts_create(struct zero *zero);
/* Enqueue the parts of the pieces that are not late, in PHASE_MAIN. */
void norm_form_early(struct zero *zero);
/* Copy all parts of this rank to the host. */
enum status norm_read_parts(struct zero *zero, struct norm_source source);
/* zero->nodes = this rank's nodes, in block order. */
enum status norm_form_nodes(struct zero *zero, struct norm_source source);
/* The number of elements of a param, from its start, that count in a phase and on this rank. */
int64_t norm_answered_count(const struct unit_graph *graph, int param, enum unit_phase phase);

/* --- zero_noise.c --------------------------------------------------------------------------- */
/* Nothing below does anything without config.noise. */
enum status noise_create(struct zero *zero);
void noise_free(struct zero *zero);
/* The next elements of `part` that count, as a range of the part, which begins with a block; none:
 * {part.count, 0}. done: 0, or the end of the range before. */
struct zero_range noise_next(const struct zero *zero, struct piece_range part, int64_t done);
/* The weight of a worker's micro-batch. */
double noise_weight(const struct zero *zero, int64_t round, int worker);
/* Add the squares of the gradients of `active` workers, a range each, to those of the range. */
void noise_add(struct zero *zero, struct stream *stream, struct piece_range range, double *squares,
               const void *gradients, int active, int64_t round);
/* With config.local: add those of a range of this worker's gradient, in the type of the ops; and
 * send the sums of the piece to their owners. */
void noise_add_local(struct zero *zero, struct piece_range range, const struct zero_use *use,
                     const void *gradient, int64_t round);
void noise_send_local(struct zero *zero, int piece, const struct zero_use *use);
/* The weighted squares of all micro-batches, before the uses are added. */
enum status noise_judge_each(struct zero *zero, double *sum);
/* The lent sums have arrived. */
void noise_add_lent(struct zero *zero);
/* The squares of the sum of all micro-batches; called after norm_of_sums of PHASE_MAIN. */
enum status noise_judge_sum(struct zero *zero, double *sum);

#endif
