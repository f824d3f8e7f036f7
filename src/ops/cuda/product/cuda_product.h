/* cuda_product -- matrix products by cuBLASLt, which sees memory as column-major.
 *
 * The descriptors and the algorithm of a product are made when its shape is first seen and kept in
 * a table; later calls only set pointers.
 *
 * Bits: those of the first algorithm that the heuristic names, which depends on shape, types,
 * alignment and GPU. Allowed are one pass over k, and split k with partial sums in the compute
 * type that a second step adds in order (weight gradients need it: m x n is small, k is all rows).
 * Not allowed are split k in place, and partial sums rounded to the output type.
 *
 * The algorithm that runs may be another one (cuda_product_tune.c): many differ only in tiles and
 * in the order of blocks, and form each sum in the same order. Products large enough to matter
 * take the fastest of those that give the same bits as the first, on operands made to reveal a
 * difference (cuda_trial.h).
 *
 * In fast mode (ops_be_fast) a product takes the fastest algorithm that the heuristic names, timed
 * on the operands of the first call with that shape (ops_tune.h). It stays the same for the rest
 * of a run, but timing decides, so another run may have other bits. A product that adds cannot be
 * repeated for timing: it takes the choice of the same product without adding, if that came first
 * (a head's first chunk).
 */
#ifndef OPS_CUDA_CUDA_PRODUCT_H
#define OPS_CUDA_CUDA_PRODUCT_H
#include <cublasLt.h>
#include "ops/cuda/cuda_impl.h"

/* D = alpha op(A) op(B) + beta C, m x n, over k. */
struct product {
    int64_t m, n, k;
    bool turn_a, turn_b;                  /* A is k x m, B is n x k */
    int64_t a_stride, b_stride, d_stride; /* leading dimensions, d's also of C; 0: dense */
    float alpha, beta;                    /* beta 0: C is not read */
    cublasLtEpilogue_t epilogue;
};

struct operands {
    const void *a, *b;
    void *d;
    const void *c;    /* NULL: d, so that beta 1 adds to it */
    const void *bias; /* of the epilogue: (m) */
    const void *aux;  /* of the epilogue: m x n, the input of a GELU */
};

static inline bool product_has_bias(int epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static inline bool product_has_aux(int epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* Leading dimensions. */
static inline int64_t product_lda(const struct product *p)
{
    return p->a_stride ? p->a_stride : p->turn_a ? p->k : p->m;
}

static inline int64_t product_ldb(const struct product *p)
{
    return p->b_stride ? p->b_stride : p->turn_b ? p->n : p->k;
}

static inline int64_t product_ldd(const struct product *p)
{
    return p->d_stride ? p->d_stride : p->m;
}

struct products; /* the products of one ops */

enum products_choice {
    PRODUCTS_BY_MODE, /* fastest in fast mode, else same */
    PRODUCTS_FIRST,   /* the first that the heuristic names */
    PRODUCTS_SAME,    /* the fastest with the bits of the first */
    PRODUCTS_FASTEST  /* the fastest, whatever its bits */
};

/* `exact`: f32 products in fp32, not TF32. Each shape that is timed logs a line at level debug. */
enum status products_create(struct ops *ops, bool exact, enum products_choice choice,
                            struct products **products);
void products_destroy(struct products *products); /* may be NULL */

/* Enqueues the product. False: cuBLASLt has no algorithm with this epilogue, and nothing was done.
 * On failure the stream fails and the result is true. */
bool products_run(struct products *products, struct stream *stream, struct product product,
                  struct operands operands);
/* The same without an epilogue; the stream fails where cuBLASLt has no algorithm. */
void cuda_multiply(struct ops *ops, struct stream *stream, struct product product,
                   struct operands operands);
/* Bytes of ops->workspace, for one product at a time: all products run on one stream.
 * cuBLASLt asks for 32 MiB on Hopper. Other work on that stream may use it after a product. */
#define PRODUCTS_WORKSPACE ((size_t)64 << 20)

#endif
