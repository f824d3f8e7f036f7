/* hopper_shares -- attention backward on Hopper: how the work of a shape is distributed over
 * blocks, and the memory that takes. On the host; hopper_tiles.cuh follows it.
 *
 * An item (a sequence and key head) is done whole, by one block; or, for the items that remain
 * after whole rounds, cut into jobs whose partial dq are added later; or all items are done by
 * clusters of blocks. Only the shape decides, for PROCESSORS multiprocessors, so that it fixes the
 * bits, and the memory is known without a GPU; but tests may ask for clusters (enum
 * cuda_clusters). The actual GPU only decides how many blocks work at a time (shares_on).
 */
#ifndef OPS_CUDA_HOPPER_SHARES_CUH
#define OPS_CUDA_HOPPER_SHARES_CUH
#include "device/gpu_facts.h"
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/cuda/attention/hopper_tiles.cuh"

namespace hopper
{

const int64_t PROCESSORS = GPU_HOPPER_PROCESSORS;

struct shares {
    int64_t tiles, group;
    int64_t items, whole, rest; /* items = whole + rest; the rest is cut */
    int64_t cuts;               /* jobs of a cut item */
    int64_t place_bytes;        /* of a buffer for dq */
    int64_t cluster,
        clusters;   /* blocks of a cluster, number of clusters; 0: items are done whole or cut */
    int64_t places; /* buffers for dq of a cluster; 0: each item has its own */
    int64_t blocks;
};

/* The same in full tiles, at the width that is computed. */
inline struct cuda_heads in_tiles(struct cuda_heads a)
{
    a.tokens = (a.tokens + TILE - 1) / TILE * TILE;
    a.width = a.width <= 64 ? 64 : 128;
    return a;
}

inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Tiles of the busiest block if `rest` items are cut: one tile of keys per job, the longest first.
 */
inline int64_t longest_cut(int64_t rest, int64_t tiles)
{
    int64_t sum = 0;
    for (int64_t job = 0; job < rest * tiles; job += PROCESSORS)
        sum += tiles - job / rest;
    return sum;
}

/* Cuts the last round if that saves at least a quarter of it and its memory stays within MOST. */
inline void cut_by_tile(shares *s)
{
    const int64_t MOST = (int64_t)256 << 20;
    s->cuts = s->tiles;
    if (4 * longest_cut(s->rest, s->tiles) > 3 * s->tiles * (s->tiles + 1) / 2 ||
        s->rest * s->tiles * s->place_bytes > MOST)
        s->rest = 0;
}

/* Tiles of job c of an item: the lengths of its sweeps, as in walk::next_key. */
inline int64_t job_tiles(int64_t c, int64_t cuts, int64_t tiles)
{
    int64_t sum = 0;
    for (int64_t key = c; key < tiles; key = 2 * (key / cuts + 1) * cuts - 1 - key)
        sum += tiles - key;
    return sum;
}

/* Chooses the number of jobs: the smallest sum of the busiest block's tiles (the first block's:
 * jobs come longest first) and of the time to add the parts, about 1/256 of a tile's time on one
 * multiprocessor for each tile of a part on the whole GPU. The parts use memory that a head's
 * chunk of logits, or cuDNN's workspace, would need anyway. */
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
    if (s.cluster)
        return (s.items + s.clusters - 1) / s.clusters * (s.tiles + 1);
    int64_t sum = (s.whole + PROCESSORS - 1) / PROCESSORS * (s.tiles * (s.tiles + 1) / 2);
    for (int64_t job = 0; job < s.rest * s.cuts; job += PROCESSORS)
        sum += job_tiles(job / s.rest, s.cuts, s.tiles);
    return sum;
}

/* Buffers for dq that blocks or clusters reuse; those of the jobs of cut items follow. */
inline int64_t slot_count(const shares &s)
{
    if (!s.cluster)
        return smaller(s.whole, PROCESSORS);
    return s.places ? s.clusters * s.places : s.items;
}

inline int64_t place_count(const shares &s)
{
    return slot_count(s) + (s.cluster ? 0 : s.rest * s.cuts);
}

inline int64_t job_count(const shares &s)
{
    return s.whole + s.rest * s.cuts;
}

/* The same work, in the same memory, on `processors` multiprocessors: fewer clusters; if not even
 * one fits, blocks that work alone, no more than there are buffers. */
inline shares shares_on(shares s, int64_t processors)
{
    if (s.cluster && processors < s.cluster) {
        processors = smaller(processors, slot_count(s));
        s.cluster = 0;
        s.whole = s.items;
        s.rest = 0;
    }
    if (s.cluster)
        s.clusters = smaller(s.clusters, processors / s.cluster);
    s.blocks =
        s.cluster ? s.clusters * s.cluster : smaller(job_count(s), smaller(processors, PROCESSORS));
    return s;
}

/* Clusters are faster where the dq of blocks that work alone would not stay in the L2 cache, and
 * if they do not leave too much of the GPU idle: access to device memory costs an eighth. */
inline bool faster_by_clusters(const shares &alone, const shares &by_clusters)
{
    const int64_t CACHE = (int64_t)40 << 20, LEAST = 8;
    return alone.tiles >= LEAST && smaller(alone.items, PROCESSORS) * alone.place_bytes > CACHE &&
           8 * longest_of(by_clusters) <= 9 * longest_of(alone);
}

inline void share_by_clusters(shares *s, enum cuda_clusters clusters)
{
    const int64_t POSSIBLE = 4; /* tiles: clusters of two blocks */
    shares t = *s;
    if (s->tiles % 2 || s->tiles < POSSIBLE || s->tiles > PROCESSORS)
        return;
    t.cluster = t.tiles / 2;
    t.clusters = smaller(t.items, PROCESSORS / t.cluster);
    t.places = t.clusters < t.items ? 2 : 1;
    t.whole = 0;
    t.rest = t.items;
    t.cuts = 1;
    if (clusters == CUDA_CLUSTERS_WHERE_POSSIBLE || faster_by_clusters(*s, t))
        *s = t;
}

/* late: clusters leave their sums of dq in memory. Here and below, `a` is the result of in_tiles.
 */
inline shares shares_of(struct cuda_heads a, enum cuda_clusters clusters, bool late)
{
    shares s = {a.tokens / TILE, a.heads / a.kv_heads, a.batch * a.kv_heads};
    s.place_bytes = s.group * a.tokens * a.width * (int64_t)sizeof(float);
    s.rest = s.items % PROCESSORS;
    if (a.width == 64)
        cut_by_tile(&s);
    else
        cut_to_and_fro(&s);
    s.whole = s.items - s.rest;
    share_by_clusters(&s, clusters);
    if (late)
        s.places = 0;
    return shares_on(s, PROCESSORS);
}

/* --- memory --------------------------------------------------------------------------------- */

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

/* For dq of width 128 on its way through rope; or for column sums. Never both. */
inline int64_t late_count(struct cuda_heads a, const shares &s)
{
    const int64_t pairs = a.width == 64 ? 0 : s.blocks * PAIR_STAGES * 64 * 128;
    const int64_t columns = dq_column_count(a, s) + dout_column_count(a);
    return pairs > columns ? pairs : columns;
}

inline int64_t turn_count(struct cuda_heads a, const shares &s)
{
    const int64_t queries = a.width == 64 ? QUERIES<64> : QUERIES<128>;
    return s.cluster ? place_count(s) * s.group * (a.tokens / queries) : 0;
}

} // namespace hopper

#endif
