/* partition -- the layout of pieces: where each param is in the flat range of its piece, and how
 * the piece is divided among owners.
 *
 *     piece    | param 0 .....|pad| param 1 ...........|pad| ... |pad to 64 x owners|
 *     owners   |   owner 0    |   owner 1    |   owner 2    |    equal parts
 *
 * Params start at multiples of OPS_BLOCK (64 elements), so no block spans two params, and every
 * part consists of complete blocks. The ranks of a TP group have the same layout: where a rank's
 * part of a param is smaller, more padding follows.
 */
#ifndef ZERO_PARTITION_H
#define ZERO_PARTITION_H
#include "unit/unit.h"

/* What a ZeRO stage shards. Only sharding_of compares stages. */
struct sharding {
    bool optim, grads, params;
};
struct sharding sharding_of(int stage);

struct partition {
    const struct unit_graph *graph; /* borrowed */
    int owners;
    int64_t *param_offset; /* (params) index of its first element in its piece */
    int64_t *piece_used;   /* (pieces) elements up to the end of the last param's last block */
    int64_t
        *piece_count; /* (pieces) elements including padding: a multiple of OPS_BLOCK * owners */
};

enum status partition_create(struct env *env, const struct unit_graph *graph, int owners,
                             struct partition *p);
void partition_free(struct env *env, struct partition *p);

/* Elements of a reduce shard: one owner's part of a piece. */
int64_t partition_reduce_shard(const struct partition *p, int piece);

/* Consecutive elements of a piece; partition_tensor returns those of a tensor. */
struct piece_range {
    int piece;
    int64_t first, count;
};
struct piece_range partition_tensor(const struct partition *p, int tensor);
/* The elements of `range` that are in part `part`, when its piece is divided into `parts` equal
 * parts (`parts` divides owners). count 0: none. partition_clip is the same with parts = owners. */
struct piece_range partition_clip_part(const struct partition *p, struct piece_range range,
                                       int part, int parts);
struct piece_range partition_clip(const struct partition *p, struct piece_range range, int owner);

#endif
