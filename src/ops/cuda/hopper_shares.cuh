/* hopper_shares -- attention backward on Hopper: how the work of a shape is dealt out, and the memory that
 * takes. On the host; hopper_tiles.cuh walks it.
 *
 * An item (a sequence and key head) is done whole, by one block; or cut into jobs with parts of dq that
 * are added later, for the items left over when whole rounds are done. The shape alone decides, for
 * PROCESSORS, so that the bits follow from it, and the memory is known without a card.
 */
#ifndef OPS_CUDA_HOPPER_SHARES_CUH
#define OPS_CUDA_HOPPER_SHARES_CUH
#include "ops/cuda/cuda_attention.h"
#include "ops/cuda/hopper_tiles.cuh"

namespace hopper
{

const int64_t PROCESSORS = 132; /* of an H100 or H200 */

struct shares {
    int64_t tiles, group;
    int64_t items, whole, rest; /* items = whole + rest, the rest cut */
    int64_t cuts;               /* jobs of an item of the rest */
    int64_t place_bytes;        /* of a place for dq */
};

/* Tiles of the busiest block when `rest` items are cut: a tile of keys a job, the longest first. */
inline int64_t longest_cut(int64_t rest, int64_t tiles)
{
    int64_t sum = 0;
    for (int64_t job = 0; job < rest * tiles; job += PROCESSORS)
        sum += tiles - job / rest;
    return sum;
}

/* The last round is cut when that saves a quarter of it or more, and takes no more memory than so. */
inline void cut_by_tile(shares *s)
{
    const int64_t MOST = (int64_t)256 << 20;
    s->cuts = s->tiles;
    if (4 * longest_cut(s->rest, s->tiles) > 3 * s->tiles * (s->tiles + 1) / 2 ||
        s->rest * s->tiles * s->place_bytes > MOST)
        s->rest = 0;
}

/* Tiles of job c of an item: the lengths of its sweeps, as walk::next_key has them. */
inline int64_t job_tiles(int64_t c, int64_t cuts, int64_t tiles)
{
    int64_t sum = 0;
    for (int64_t key = c; key < tiles; key = 2 * (key / cuts + 1) * cuts - 1 - key)
        sum += tiles - key;
    return sum;
}

/* In how many jobs: the least sum of the busiest block's tiles (the first block's: jobs come longest
 * first) and of the time to add the parts, about 1/256 of a tile's time on one processor for each
 * tile of a part on the whole card. The parts lie where a head's chunk of logits, or the workspace of
 * cuDNN, would take as much. */
inline void cut_to_and_fro(shares *s)
{
    const int64_t MOST = (int64_t)768 << 20, PARTS = 256;
    int64_t least = PARTS * s->tiles * (s->tiles + 1) / 2;
    s->cuts = 1;
    for (int64_t cuts = 2; cuts <= s->tiles; cuts++) {
        int64_t cost = s->rest * cuts * s->tiles;
        for (int64_t job = 0; job < s->rest * cuts; job += PROCESSORS)
            cost += PARTS * job_tiles(job / s->rest, cuts, s->tiles);
        if (cost < least && s->rest * cuts * s->place_bytes <= MOST) {
            least = cost;
            s->cuts = cuts;
        }
    }
    if (s->cuts == 1)
        s->rest = 0;
}

/* Tiles of the busiest block. */
inline int64_t longest_of(const shares &s)
{
    int64_t sum = (s.whole + PROCESSORS - 1) / PROCESSORS * (s.tiles * (s.tiles + 1) / 2);
    for (int64_t job = 0; job < s.rest * s.cuts; job += PROCESSORS)
        sum += job_tiles(job / s.rest, s.cuts, s.tiles);
    return sum;
}

inline shares shares_of(struct cuda_heads a)
{
    shares s = {a.tokens / TILE, a.heads / a.kv_heads, a.batch * a.kv_heads};
    s.place_bytes = s.group * a.tokens * a.width * (int64_t)sizeof(float);
    s.rest = s.items % PROCESSORS;
    if (a.width == 64)
        cut_by_tile(&s);
    else
        cut_to_and_fro(&s);
    s.whole = s.items - s.rest;
    return s;
}

inline int64_t statistic_count(struct cuda_heads a)
{
    return a.batch * a.heads * a.tokens;
}

inline int64_t dq_column_count(struct cuda_heads a, const shares &s)
{
    return (s.whole + s.rest * s.tiles) * s.group * 8 * a.width;
}

inline int64_t dout_column_count(struct cuda_heads a)
{
    return a.batch * (a.tokens / TILE) * a.heads * a.width;
}

} // namespace hopper

#endif
