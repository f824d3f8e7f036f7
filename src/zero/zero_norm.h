/* zero_norm -- shared by zero_norm.c and zero_norm_parts.c: blocks, nodes, and this rank's
 * parts. */
#ifndef ZERO_ZERO_NORM_H
#define ZERO_ZERO_NORM_H
#include "zero/zero_impl.h"

/* Blocks first .. end-1 of the whole model. */
struct block_range {
    int64_t first, end;
};

/* The level of the largest aligned node at the start of a range. */
static inline int norm_first_level(struct block_range range)
{
    int longest = 63 - __builtin_clzll((uint64_t)(range.end - range.first));
    int aligned = range.first == 0 ? longest : __builtin_ctzll((uint64_t)range.first);
    return aligned < longest ? aligned : longest;
}

/* The blocks of reduce shard `reduce_shard` of a piece. */
struct block_range norm_reduce_shard_blocks(const struct zero *zero, int piece, int reduce_shard);

/* --- zero_norm_parts.c ---------------------------------------------------------------------- */
/* Number the blocks and allocate the parts. */
enum status norm_parts_create(struct zero *zero);
/* Copy all parts of this rank to the host. */
enum status norm_read_parts(struct zero *zero);
/* zero->nodes = this rank's nodes, in block order. */
enum status norm_form_nodes(struct zero *zero);

#endif
