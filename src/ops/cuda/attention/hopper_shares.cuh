/* hopper_shares -- attention backward on Hopper: how the work of a shape is distributed over
 * blocks, and the memory that takes. On the host; hopper_tiles.cuh follows it.
 *
 * An item (a sequence and key head) is done whole, by one block; or, for the items that remain
 * after whole rounds, cut into jobs whose partial dq are added later; or all items are done by
 * clusters of blocks. Items that are few even for clusters are query heads (in_items). Only the
 * shape decides, for PROCESSORS multiprocessors, so that it fixes the bits, and the memory is known
 * without a GPU; but tests may ask for clusters (enum cuda_clusters). The actual GPU only decides
 * how many blocks work at a time (shares_on).
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
    int64_t reach; /* with a window: tiles of queries that see a tile of keys; 0: no window */
};

/* The same in full tiles, at the width of tiles. */
inline struct cuda_heads in_tiles(struct cuda_heads a)
{
    const int64_t tokens = (a.tokens + TILE - 1) / TILE * TILE;
    a.window = a.window < a.tokens ? a.window : tokens;
    a.tokens = tokens;
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

inline int64_t bands_of(const shares &s)
{
    return (s.tiles + s.cluster - 1) / s.cluster;
}

/* Tiles of an item that a block of a cluster has: the lengths of its sweeps, as in cluster_walk. */
inline int64_t block_tiles(const shares &s, int64_t block)
{
    const int64_t bands = bands_of(s);
    int64_t sum = 0;
    for (int64_t band = 0; band < bands; band++) {
        const bool upward = !s.reach && (bands - band) % 2 == 0;
        const int64_t key = band * s.cluster + (upward ? block : s.cluster - 1 - block);
        const int64_t left = key < s.tiles ? s.tiles - key : 0;
        sum += s.reach ? smaller(left, s.reach) : left;
    }
    return sum;
}

/* Tiles of the busiest block. */
inline int64_t longest_of(const shares &s)
{
    if (s.cluster) { /* the busiest is the first or the last */
        const int64_t first = block_tiles(s, 0), last = block_tiles(s, s.cluster - 1);
        return (s.items + s.clusters - 1) / s.clusters * (first > last ? first : last);
    }
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
 * one fits, with a window a smaller one, else blocks that work alone, no more than there are
 * buffers. */
inline shares shares_on(shares s, int64_t processors)
{
    if (s.reach)
        s.cluster = smaller(s.cluster, processors);
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

/* All items by clusters of that many blocks. */
inline shares in_clusters(shares s, int64_t blocks)
{
    s.cluster = blocks;
    s.clusters = smaller(s.items, PROCESSORS / blocks);
    s.places = s.clusters < s.items ? 2 : 1;
    s.whole = 0;
    s.rest = s.items;
    s.cuts = 1;
    return s;
}

/* By the clusters, of at least so many blocks, that finish first. */
inline shares in_best_clusters(const shares &s, int64_t least_blocks)
{
    shares best = in_clusters(s, least_blocks);
    int64_t least = longest_of(best);
    for (int64_t blocks = least_blocks + 1; blocks <= smaller(s.tiles, PROCESSORS); blocks++) {
        const shares t = in_clusters(s, blocks);
        if (longest_of(t) < least) {
            best = t;
            least = longest_of(t);
        }
    }
    return best;
}

/* Tiles of all items: the last sweeps are 1, 2, ... tiles long. */
inline int64_t all_tiles(const shares &s)
{
    const int64_t longest = s.reach ? smaller(s.reach, s.tiles) : s.tiles;
    return s.items * (longest * s.tiles - longest * (longest - 1) / 2);
}

/* With a window, clusters of four or more: of the additions to dq, only the first of a band is of
 * something that has left the cache. Without, two sweeps per block where dq would leave the cache,
 * and what finishes first where more than a quarter of the GPU would be idle and that saves a
 * quarter. */
inline void share_by_clusters(shares *s, enum cuda_clusters clusters)
{
    const int64_t POSSIBLE = 4, LEAST = 8; /* tiles */
    const bool asked = clusters == CUDA_CLUSTERS_WHERE_POSSIBLE;
    if (s->reach) {
        *s =
            asked && s->tiles > 1 ? in_clusters(*s, 2) : in_best_clusters(*s, smaller(4, s->tiles));
        return;
    }
    if (s->tiles < POSSIBLE)
        return;
    if (asked) { /* also of more than two bands */
        *s = in_clusters(*s, s->tiles % 2 ? 2 : smaller(s->tiles / 2, PROCESSORS));
        return;
    }
    if (s->tiles <= PROCESSORS) {
        const shares halves = in_clusters(*s, (s->tiles + 1) / 2);
        if (faster_by_clusters(*s, halves))
            *s = halves;
    }
    if (s->tiles >= LEAST && 4 * all_tiles(*s) < 3 * PROCESSORS * longest_of(*s)) {
        const shares best = in_best_clusters(*s, 2);
        if (4 * longest_of(best) <= 3 * longest_of(*s))
            *s = best;
    }
}

/* late: clusters leave their sums of dq in memory. Here and below, `a` is the result of in_tiles.
 */
inline shares shares_of(struct cuda_heads a, enum cuda_clusters clusters, bool late)
{
    shares s = {a.tokens / TILE, a.heads / a.kv_heads, a.batch * a.kv_heads};
    s.place_bytes = s.group * a.tokens * a.width * (int64_t)sizeof(float);
    s.reach = a.window < a.tokens ? (a.window + TILE - 2) / TILE + 1 : 0;
    s.rest = s.items % PROCESSORS;
    if (!s.reach && a.width == 64)
        cut_by_tile(&s);
    else if (!s.reach)
        cut_to_and_fro(&s);
    s.whole = s.items - s.rest;
    share_by_clusters(&s, clusters);
    if (late)
        s.places = 0;
    return shares_on(s, PROCESSORS);
}

/* What items are made of: sequences and key heads; or, with several query heads per key head,
 * sequences and query heads, if otherwise more than half of the GPU were idle and that saves a
 * third. Their dk and dv are added later. */
inline struct cuda_heads in_items(struct cuda_heads a, enum cuda_clusters clusters)
{
    const int64_t LEAST = 7, ASKED = 4; /* tiles, query heads */
    struct cuda_heads each = a;
    each.kv_heads = a.heads;
    if (clusters == CUDA_CLUSTERS_WHERE_POSSIBLE)
        return a.heads / a.kv_heads > ASKED ? each : a;
    if (a.heads == a.kv_heads || a.tokens <= LEAST * TILE)
        return a;
    const shares s = shares_of(in_tiles(a), clusters, false);
    if (2 * all_tiles(s) > PROCESSORS * longest_of(s))
        return a;
    const shares t = shares_of(in_tiles(each), clusters, false);
    return 3 * longest_of(t) <= 2 * s.group * longest_of(s) ? each : a;
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
