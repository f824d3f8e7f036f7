/* test_hopper_clusters -- the order in which clusters of blocks do attention's backward pass, on the
 * host: no GPU is needed. The walks of hopper_clusters.cuh are compiled as plain functions. Blocks
 * take steps as on a GPU, each when it is its turn at dq, and the test checks that
 *
 *     every tile of queries gets a part from each tile of keys that it sees, and no other, once;
 *     the first is put, the others added, the last one takes the sum;
 *     tiles at the diagonal and at the edge of a window are masked;
 *     all blocks finish, and as early as the distribution promises.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <map>
#include <tuple>
#include <vector>

/* In place of ops/cuda/common/hopper.cuh. */
#define OPS_CUDA_HOPPER_CUH
#undef __device__
#define __device__
#define __nanosleep(nanoseconds) ((void)0)
#define blockIdx                 block_of_the_host
#define gridDim                  grid_of_the_host
struct host_index {
    unsigned x;
};
[[maybe_unused]] static struct host_index block_of_the_host, grid_of_the_host;

namespace hopper
{
template <int N> struct ring {
    int stage = 0;
    uint32_t parity = 0;
    void step() {}
};
struct corner {
    int column, head, row, sequence;
};
inline uint32_t shared_address(const void *)
{
    return 0;
}
inline void barrier_init(uint32_t, int) {}
inline void barrier_init_done() {}
inline void barrier_wait(uint32_t, uint32_t) {}
inline void barrier_arrive(uint32_t) {}
inline void barrier_expect(uint32_t, int) {}
inline void load_tile(uint32_t, const CUtensorMap *, corner, uint32_t) {}
inline void load_bytes(uint32_t, const void *, int, uint32_t) {}
inline uint32_t load_acquire(const uint32_t *word)
{
    return *word;
}
inline void store_release(uint32_t *word, uint32_t value)
{
    *word = value;
}
} // namespace hopper

#include "ops/cuda/attention/hopper_clusters.cuh"
#include "ops/cuda/attention/hopper_shares.cuh"

using namespace hopper;

static void check(bool right, const struct cuda_heads &a, const shares &s, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "%s: B%d T%d H%d G%d D%d window %d, %d clusters of %d\n", what, (int)a.batch,
            (int)a.tokens, (int)a.heads, (int)a.kv_heads, (int)a.width, (int)a.window,
            (int)s.clusters, (int)s.cluster);
    exit(1);
}

struct parts { /* of dq of a tile of queries */
    std::vector<int> keys;
    int last;
};

/* Steps that the cluster of blocks needs, one for each tile and as many as it waits for its turn. */
template <int WIDTH, bool LATE, bool WINDOW>
static int64_t run(struct cuda_heads a, const shares &s)
{
    const int queries = QUERIES<WIDTH>, query_tiles = (int)s.tiles * QUERY_TILES<WIDTH>;
    problem p = {};
    p.tiles = (int)s.tiles;
    p.heads = (int)a.heads;
    p.kv_heads = (int)a.kv_heads;
    p.group = (int)s.group;
    p.tokens = (int)a.tokens;
    p.window = (int)a.window;
    p.jobs = (int)s.items;
    p.cluster = (int)s.cluster;
    p.clusters = (int)s.clusters;
    p.places = (int)s.places;
    p.bands = (int)bands_of(s);
    std::vector<uint32_t> turns(place_count(s) * s.group * query_tiles);
    std::vector<int64_t> ready(turns.size()), clock(s.blocks);
    std::vector<cluster_walk<WIDTH, LATE, WINDOW>> walks(s.blocks);
    std::map<std::tuple<int, int, int>, parts> seen;
    for (int b = 0; b < s.blocks; b++) {
        blockIdx.x = b;
        walks[b].begin(p);
    }
    for (bool any = true; any;) {
        any = false;
        for (int b = 0; b < s.blocks; b++) {
            auto &w = walks[b];
            blockIdx.x = b;
            for (; w.job < p.jobs; w.step(p)) {
                const size_t at = w.sum(p);
                check(at < turns.size(), a, s, "a sum is beyond its buffers");
                if (turns[at] != w.turn_number(p))
                    break;
                any = true;
                turns[at]++;
                clock[b] = ready[at] = (clock[b] > ready[at] ? clock[b] : ready[at]) + 1;
                const int flags = order_for(w, p, false).flags, way = flags & (PUT | ADD | TAKE);
                parts &of = seen[{w.job, w.head, w.query}];
                check(of.keys.empty() ? way == PUT || way == 0 : way == ADD || way == TAKE, a, s,
                      "a part is put that should be added, or added that should be put");
                check(of.keys.empty() || (of.last != 0 && of.last != TAKE), a, s,
                      "a part comes after the last");
                of.keys.push_back(w.key);
                of.last = way;
                const int first = w.query * queries, key = w.key * TILE;
                check((flags & DIAGONAL) || key + TILE - 1 <= first, a, s, "no causal mask");
                check(!!(flags & BEFORE) == (WINDOW && key <= first + queries - 1 - p.window), a, s,
                      "no mask of the window, or one too many");
            }
        }
    }
    int64_t end = 0;
    for (int b = 0; b < s.blocks; b++) {
        check(walks[b].job >= p.jobs, a, s, "a block waits for ever");
        end = clock[b] > end ? clock[b] : end;
    }
    for (int item = 0; item < s.items; item++)
        for (int head = 0; head < s.group; head++)
            for (int query = 0; query < query_tiles; query++) {
                const parts &of = seen[{item, head, query}];
                std::vector<int> times(s.tiles);
                for (int key : of.keys)
                    times[key]++;
                for (int key = 0; key < s.tiles; key++) {
                    const bool sees =
                        key <= query / QUERY_TILES<WIDTH> &&
                        (!WINDOW || key * TILE + TILE - 1 > query * queries - p.window);
                    check(times[key] == sees, a, s, "a part is missing, or one too many");
                }
                check(LATE || of.last == TAKE || of.last == 0, a, s, "dq is not finished");
            }
    return end;
}

static int64_t run_any(struct cuda_heads a, const shares &s)
{
    const bool wide = in_tiles(a).width == 128, late = s.places == 0;
    if (s.reach)
        return !wide  ? run<64, false, true>(a, s)
               : late ? run<128, true, true>(a, s)
                      : run<128, false, true>(a, s);
    return !wide  ? run<64, false, false>(a, s)
           : late ? run<128, true, false>(a, s)
                  : run<128, false, false>(a, s);
}

static struct cuda_heads heads_of(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads,
                                  int64_t width, int64_t window)
{
    return {batch, tokens, heads, kv_heads, width, width, window ? window : tokens, 1, 0};
}

/* The multiprocessors of an H200 are busy for at least this share of the time. */
static void test_share(struct cuda_heads shape, double least)
{
    const struct cuda_heads a = in_items(shape, CUDA_CLUSTERS_WHERE_FASTER);
    const shares s = shares_of(in_tiles(a), CUDA_CLUSTERS_WHERE_FASTER, false);
    const int64_t steps = in_tiles(a).width == 64 ? 1 : 2; /* of a tile of 128 queries */
    const int64_t end = s.cluster ? run_any(a, s) : longest_of(s) * s.group * steps;
    const double share = (double)(all_tiles(s) * s.group * steps) / (double)(PROCESSORS * end);
    printf("B%d T%d H%d/%d D%d window %d: %d clusters of %d%s, busy %.2f\n", (int)shape.batch,
           (int)shape.tokens, (int)shape.heads, (int)shape.kv_heads, (int)shape.width,
           (int)shape.window, (int)s.clusters, (int)s.cluster,
           a.kv_heads != shape.kv_heads ? " by query head" : "", share);
    check(share >= least, a, s, "the GPU is idle for too long");
}

static int drawn(unsigned &state, int count)
{
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (unsigned)count);
}

static void test_random(unsigned seed)
{
    const int kv = 1 + drawn(seed, 4), group = 1 + drawn(seed, 3), batch = 1 + drawn(seed, 5);
    const int tokens = 1 + drawn(seed, 1600), width = drawn(seed, 2) ? 64 : 128;
    const int window = drawn(seed, 3) ? 2 + drawn(seed, tokens) : 0;
    const struct cuda_heads a = heads_of(batch, tokens, kv * group, kv, width, window);
    const bool late = width == 128 && drawn(seed, 2);
    const shares chosen = shares_of(in_tiles(a), CUDA_CLUSTERS_WHERE_FASTER, late);
    const shares asked = shares_of(in_tiles(a), CUDA_CLUSTERS_WHERE_POSSIBLE, late);
    shares any = in_clusters(chosen, 1 + drawn(seed, (int)chosen.tiles));
    any = shares_on(any, PROCESSORS);
    for (const shares &s : {chosen, asked, any, shares_on(any, any.cluster + drawn(seed, 9))})
        if (s.cluster)
            run_any(a, s);
    if (any.reach) /* on a part of a GPU */
        run_any(a, shares_on(any, 1 + drawn(seed, (int)any.cluster)));
}

/* Windows that end at the edges of tiles, and next to them. */
static void test_edges(void)
{
    for (int width : {64, 128})
        for (int window : {2, 3, 63, 64, 65, 127, 128, 129, 192, 193, 256, 257, 639}) {
            const struct cuda_heads a = heads_of(2, 640, 2, 1, width, window);
            run_any(a, shares_of(in_tiles(a), CUDA_CLUSTERS_WHERE_FASTER, width == 128));
            run_any(a, shares_of(in_tiles(a), CUDA_CLUSTERS_WHERE_POSSIBLE, false));
        }
}

int main(void)
{
    test_share(heads_of(16, 2048, 32, 8, 64, 0), 0.9);
    test_share(heads_of(4, 2048, 24, 8, 128, 0), 0.9);
    test_share(heads_of(1, 4639, 24, 6, 32, 0), 0.7);
    test_share(heads_of(1, 6513, 7, 1, 96, 0), 0.7);
    test_share(heads_of(1, 32768, 4, 4, 64, 0), 0.9);
    test_share(heads_of(1, 32768, 8, 8, 128, 4096), 0.9);
    test_share(heads_of(1, 8192, 8, 2, 128, 4096), 0.7);
    test_share(heads_of(4, 4096, 32, 32, 96, 2047), 0.85);
    test_edges();
    for (unsigned seed = 1; seed <= 150; seed++)
        test_random(seed);
    return 0;
}
