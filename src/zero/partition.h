/* partition -- where each param lies in the flat range of its piece, and which slice of it each
 * owner has.
 *
 *     piece   | param 0 .....|pad| param 1 ...........|pad| ... |pad to 64 x owners|
 *     slices  |   owner 0    |   owner 1    |   owner 2    |    all of one length
 *
 * Params start at multiples of OPS_BLOCK, so blocks of 64 never straddle two params and slices are
 * whole blocks. Tensor-parallel ranks have the same layout: what one has less of is followed by more
 * padding there.
 */
#ifndef ZERO_PARTITION_H
#define ZERO_PARTITION_H
#include "unit/unit.h"

/* What a stage cuts into slices: the only place where stages are compared. */
struct sharding {
    bool optim, grads, params;
};
struct sharding sharding_of(int stage);

struct partition {
    const struct unit_graph *graph; /* borrowed */
    int owners;
    int64_t *param_offset; /* (params) first element, in its piece */
    int64_t *piece_used;   /* (pieces) elements up to the last param's last block */
    int64_t *piece_count;  /* (pieces) elements with padding: a multiple of OPS_BLOCK * owners */
};

enum status partition_create(struct env *env, const struct unit_graph *graph, int owners,
                             struct partition *p);
void partition_free(struct env *env, struct partition *p);

int64_t partition_reduce_shard(const struct partition *p,
                               int piece); /* elements of one owner's slice */

/* Where tensor t is: its piece and first element there. */
struct piece_range {
    int piece;
    int64_t first, count;
};
struct piece_range partition_tensor(const struct partition *p, int tensor);
/* What of `range` lies in part `part` when its piece is cut into `parts` (a divisor of owners)
 * of one length; count 0 when nothing does. The second: `parts` = owners. */
struct piece_range partition_clip_part(const struct partition *p, struct piece_range range,
                                       int part, int parts);
struct piece_range partition_clip(const struct partition *p, struct piece_range range, int owner);

#endif
