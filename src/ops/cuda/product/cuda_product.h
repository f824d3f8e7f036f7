/* cuda_product -- matrix products by cuBLASLt, in its own view of memory: columns one after the
 * other.
 *
 * The descriptors and the algorithm of a product are made when its shape is first met and kept in
 * a table; the next call only sets pointers.
 *
 * Bits: they are those of the first algorithm that the heuristic names, which depends on shape,
 * types, alignment and GPU. Allowed are one pass over k, and split k with partial sums of the
 * compute type that are added in a second step, in order (weight gradients need it: m x n is
 * small, k is all rows). Not allowed are split k in place, and partial sums rounded to the output
 * type.
 *
 * Which algorithm forms them is another matter (cuda_product_tune.c): many differ in tiles and in
 * the order of blocks alone, and add up each sum alike. Products large enough to matter take the
 * fastest of those that give the same bits as the first on operands made to show a difference
 * (cuda_trial.h).
 *
 * In fast mode (ops_be_fast) it is the fastest of all that the heuristic names, timed on the
 * operands with which the shape is first met (ops_tune.h): the same for the rest of a run, but by
 * chance, so another run may have other bits. A product that adds can't be run again and again:
 * it takes what was chosen for the same product without adding, where that has come first (a
 * head's first chunk).
 */
#ifndef OPS_CUDA_CUDA_PRODUCT_H
#define OPS_CUDA_CUDA_PRODUCT_H
#include <cublasLt.h>
#include "ops/cuda/cuda_impl.h"

/* D = op(A) op(B), m x n, over k; dense: the leading dimension is the number of rows. */
struct product {
    int64_t m, n, k;
    bool turn_a, turn_b; /* A is k x m, B is n x k */
    bool add;            /* D += */
    cublasLtEpilogue_t epilogue;
};

struct operands {
    const void *a, *b;
    void *d;
    const void *bias; /* of the epilogue: (m), read or written; (n) of BGRADB */
    const void *aux;  /* of the epilogue: m x n, the input of a GELU */
};

static inline bool product_has_bias(int epilogue) /* reads or writes a vector */
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB ||
           epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

static inline bool product_has_aux(int epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

struct products; /* those of one ops */

enum products_choice {
    PRODUCTS_BY_MODE, /* fastest in fast mode, else same */
    PRODUCTS_FIRST,   /* what the heuristic names first */
    PRODUCTS_SAME,    /* the fastest with its bits */
    PRODUCTS_FASTEST  /* of all */
};

/* `exact`: f32 in f32, not in TF32. Where algorithms are timed each shape has a line at level
 * debug. */
enum status products_create(struct ops *ops, bool exact, enum products_choice choice,
                            struct products **products);
void products_destroy(struct products *products); /* NULL is fine */

/* Enqueue; false: cuBLASLt has no algorithm with this epilogue, and nothing was done. A failure is
 * the stream's, and true. */
bool products_run(struct products *products, struct stream *stream, struct product product,
                  struct operands operands);
/* Bytes of ops->workspace, for one product at a time: all linear layers are on one stream. cuBLASLt
 * asks for 32 MiB on Hopper. */
#define PRODUCTS_WORKSPACE ((size_t)64 << 20)
/* The same memory, for others on that stream after a product. */
void *products_workspace(struct products *products, size_t *bytes);

#endif
