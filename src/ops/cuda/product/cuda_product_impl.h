/* cuda_product_impl -- the table of products: cuda_product.c creates and runs its entries,
 * cuda_product_tune.c chooses their algorithms, cuda_product_fit.c proposes further ones.
 */
#ifndef OPS_CUDA_CUDA_PRODUCT_IMPL_H
#define OPS_CUDA_CUDA_PRODUCT_IMPL_H
#include "ops/cuda/product/cuda_product.h"

enum { PRODUCTS_TABLE = 1024 };

struct key { /* compared as bytes */
    int64_t m, n, k;
    int64_t lda, ldb, ldd;
    int16_t turn_a, turn_b;
    int32_t epilogue;
    float alpha, beta;
    int32_t alignment;      /* bytes, of the matrices; at most 256 */
    int32_t side_alignment; /* of bias and aux */
};

_Static_assert(sizeof(struct key) == 6 * sizeof(int64_t) + 6 * sizeof(int32_t), "no padding");

struct entry {
    struct key key; /* m 0: free entry */
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    bool works; /* there is an algorithm */
};

struct products {
    struct ops *ops; /* borrowed */
    struct env *env; /* borrowed */
    cublasLtHandle_t handle;
    bool exact;
    enum products_choice choice;
    int tried; /* shapes tried so far on operands of their own */
    int count;
    struct entry table[PRODUCTS_TABLE]; /* open addressing */
};

/* --- cuda_product.c ------------------------------------------------------------------------- */

/* The entry of a key, or the free one where it would be created. */
struct entry *products_find(struct products *products, const struct key *key);
/* Sets the epilogue's operands, before a call. */
enum status products_point(struct env *env, struct entry *entry, const struct operands *operands);
/* Up to `most` algorithms that the heuristic names, best first; *count 0: none. The epilogue's
 * operands must be set, since the heuristic looks at their alignment. */
enum status products_candidates(struct products *products, const struct entry *entry, int most,
                                cublasLtMatmulHeuristicResult_t *found, int *count);
cublasStatus_t products_multiply(struct products *products, const struct entry *entry,
                                 const cublasLtMatmulAlgo_t *algorithm,
                                 const struct operands *operands, cudaStream_t stream);

/* --- cuda_product_tune.c -------------------------------------------------------------------- */

/* Chooses the algorithm of a new entry for a call with these operands, if there is one. The
 * entry's operands may be others afterwards. */
enum status products_choose(struct products *products, struct entry *entry,
                            const struct operands *operands, cudaStream_t stream);

/* --- cuda_product_fit.c --------------------------------------------------------------------- */

/* Appends to the `count` algorithms in `found`, up to `most` in all: the first one with tile sizes
 * that the heuristic did not name, where these load the multiprocessors more evenly. */
void products_add_fitting(struct products *products, const struct entry *entry, int most,
                          cublasLtMatmulHeuristicResult_t *found, int *count);

#endif
