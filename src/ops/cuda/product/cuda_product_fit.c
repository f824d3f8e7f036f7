/* cuda_product_fit -- tile sizes that cuBLASLt's heuristic does not propose.
 *
 * The gradient of a weight is a product of few tiles, and the last round of them may leave most of
 * the GPU idle: 5632 x 2048 is 352 tiles of 128 x 256; 132 multiprocessors take two full rounds
 * and a third that is two thirds full, while 128 x 176 takes four full rounds of tiles that are a
 * third smaller. The heuristic knows few sizes; the library has one for every multiple of 8.
 * ops_tune_busiest estimates their cost, and the most promising are tried together with the
 * heuristic's own: that trial decides whether they have the same bits and are faster.
 */
#include <math.h>
#include "ops/cuda/product/cuda_product_impl.h"
#include "ops/ops_tune.h"

struct tile {
    uint32_t id;
    int m, n;
};

#define TILE(m, n)                           \
    {                                        \
        CUBLASLT_MATMUL_TILE_##m##x##n, m, n \
    }
#define TILES(other) TILE(128, other), TILE(other, 128)

static const struct tile tiles[] = {
    TILE(128, 128), TILES(144), TILES(160), TILES(176),     TILES(192),    TILES(208),
    TILES(224),     TILES(240), TILES(256), TILE(192, 192), TILE(96, 256), TILE(256, 96),
};
enum { TILE_COUNT = sizeof tiles / sizeof *tiles };

static uint32_t config_of(const cublasLtMatmulAlgo_t *algorithm,
                          cublasLtMatmulAlgoConfigAttributes_t attribute)
{
    uint32_t value = 0;
    size_t written;
    return cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, &value, sizeof value,
                                                &written) == CUBLAS_STATUS_SUCCESS
               ? value
               : 0;
}

/* --- the cost of tiles ------------------------------------------------------------------------ */

struct cost {
    const struct key *key;
    int parts; /* parts of k, those of the first algorithm */
    int processors;
};

static double cost_of(const struct cost *c, const struct tile *tile)
{
    return ops_tune_busiest(c->key->m, c->key->n, tile->m, tile->n, c->parts, c->processors);
}

/* The lowest cost among the named algorithms; infinite if none of their tiles is known here. */
static double least_named(const struct cost *c, const cublasLtMatmulHeuristicResult_t *found,
                          int count)
{
    double least = INFINITY;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < TILE_COUNT; k++)
            if (tiles[k].id == config_of(&found[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID))
                least = fmin(least, cost_of(c, &tiles[k]));
    return least;
}

/* --- algorithms with these tiles -------------------------------------------------------------- */

static bool set(cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
                const void *value, size_t bytes)
{
    return cublasLtMatmulAlgoConfigSetAttribute(algorithm, attribute, value, bytes) ==
           CUBLAS_STATUS_SUCCESS;
}

/* `option` is one that the library does not document. False: there is no such algorithm. */
static bool make_algorithm(struct products *x, const struct entry *p, cublasLtMatmulAlgo_t first,
                           const struct tile *tile, uint16_t cluster, uint32_t option,
                           cublasLtMatmulHeuristicResult_t *found)
{
    return set(&first, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile->id, sizeof tile->id) &&
           set(&first, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof cluster) &&
           set(&first, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &option, sizeof option) &&
           cublasLtMatmulAlgoCheck(x->handle, p->how, p->a, p->b, p->d, p->d, &first, found) ==
               CUBLAS_STATUS_SUCCESS &&
           found->workspaceSize <= PRODUCTS_WORKSPACE;
}

static void add_options(struct products *x, const struct entry *p, const struct tile *tile,
                        uint16_t cluster, int most, cublasLtMatmulHeuristicResult_t *found,
                        int *count)
{
    int last = 0;
    size_t written;
    if (cublasLtMatmulAlgoCapGetAttribute(&found[0].algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX,
                                          &last, sizeof last, &written) != CUBLAS_STATUS_SUCCESS)
        return;
    for (int option = 0; option <= last && *count < most; option++)
        *count +=
            make_algorithm(x, p, found[0].algo, tile, cluster, (uint32_t)option, &found[*count]);
}

void products_add_fitting(struct products *x, const struct entry *p, int most,
                          cublasLtMatmulHeuristicResult_t *found, int *count)
{
    static const uint16_t clusters[] = {CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1};
    uint32_t parts = config_of(&found[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    const struct cost cost = {.key = &p->key,
                              .parts = parts > 1 ? (int)parts : 1,
                              .processors = cuda_device_of(x->ops->device)->processors};
    double least = INFINITY, named = least_named(&cost, found, *count);
    for (int k = 0; k < TILE_COUNT; k++)
        least = fmin(least, cost_of(&cost, &tiles[k]));
    if (isinf(named) || least > (1 - TUNE_GAIN) * named)
        return;
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters; i++)
        for (int k = 0; k < TILE_COUNT; k++)
            if (cost_of(&cost, &tiles[k]) <= least)
                add_options(x, p, &tiles[k], clusters[i], most, found, count);
}
