/* cuda_impl -- the slots of the cuda back end and what its files share.
 *
 * A slot is plain C: it knows ops, streams and errors, and calls a launcher of kernels.h or a
 * library. Kernels are in .cu files that see kernels.h only.
 *
 *     cuda_linear.c        linear layers: products with bias, GELU and their gradients as epilogues
 *     cuda_product.c       products through cuBLASLt; cuda_columns.cu: bias without an epilogue
 *     cuda_product_tune.c  which algorithm a product takes; cuda_trial.c, cuda_noise.cu: on what they
 *                          are tried
 *     cuda_row.cu          products of one row, as in decoding
 *     cuda_attention.c     attention: which of its ways a shape takes; cuda_cached.cu
 *     cuda_attention_matrix*.cu, matrix*.cuh    on tensor cores of any GPU; cuda_attention_plain.cu
 *                          without them
 *     cuda_attention_forward_hopper.cu, cuda_attention_hopper.cu, hopper*.cuh     its two passes on
 *                          Hopper, with tiles and wgmma
 *     cuda_attention_graph.c, cuda_cudnn.c      attention as cuDNN's graphs; its graph API
 *     cuda_slots.c         the slots of all other ops: shapes to launchers
 *     cuda_norm.cu, cuda_norm_backward.cu, cuda_pointwise.cu, cuda_embedding.cu, cuda_loss.cu,
 *     cuda_flat.cu         their kernels; cuda_norm_backward_hopper.cu, cuda_loss_hopper.cu: two of them
 *                          for Hopper
 *     cuda_adamw.cu, cuda_adamw_hopper.cu, cuda_adamw.cuh     AdamW: two ways to move, one arithmetic
 *     cuda_round.cuh       its copies rounded at random
 *     follow.cuh           kernels of a recording that begin before the one before has ended
 *     ops_cuda.c           the table, opening and closing
 *
 * Bits: every sum has an order fixed by the shape; no float atomics. Compute types: f32 (products
 * and attention in TF32 unless SIFR_CUDA_EXACT=1), bf16, f16; sums and statistics are f32 or f64. Fast mode (ops_be_fast)
 * gives up equal bits in cuda_product.c and cuda_attention.c.
 */
#ifndef OPS_CUDA_CUDA_IMPL_H
#define OPS_CUDA_CUDA_IMPL_H
#include "device/cuda/cuda.h"
#include "ops/cuda/kernels.h"
#include "ops/ops_impl.h"

struct cuda_linear_state;
struct cuda_attention_state;

/* What an ops of this back end owns: ops->state. */
struct cuda_ops {
    struct cuda_linear_state *linear;
    struct cuda_attention_state *attention;
    bool adamw_hopper;               /* AdamW by cuda_adamw_hopper.cu */
    unsigned long long *adamw_taken; /* its count of tiles: device memory, in ops->workspace */
    cudaEvent_t adamw_done;          /* it counts there no more */
    unsigned *cached_arrived;        /* of cuda_cached.cu: device memory, in ops->workspace */
    bool norm_hopper;                /* norms' backward pass by cuda_norm_backward_hopper.cu */
    bool loss_hopper;                /* the loss with its gradient by cuda_loss_hopper.cu */
};

static inline struct cuda_ops *cuda_ops_of(const struct ops *ops)
{
    return ops->state;
}

/* Which of `words` (NULL behind the last) a variable of the environment has; -1: it is not set. Another
 * word is refused. */
enum status cuda_word(struct env *env, const char *variable, const char *const *words, int *word);

/* f32 in fp32 throughout, products and attention: SIFR_CUDA_EXACT=1. Else they round factors to TF32. */
bool cuda_is_exact(void);

/* Make the GPU of ops current for the calling thread; false: refused, and the stream has failed. */
static inline bool cuda_on_gpu(const struct ops *ops, struct stream *stream)
{
    return cuda_enqueued(stream, cudaSetDevice(cuda_device_of(ops->device)->index),
                         "choosing the GPU");
}

/* cuda_linear.c: handles, workspace, the table of chosen algorithms */
enum status cuda_linear_open(struct ops *ops, struct cuda_linear_state **state);
void cuda_linear_close(struct ops *ops, struct cuda_linear_state *state); /* NULL is fine */
/* dbias (columns) = column sums of x (rows, columns), added to it with `add`; in the workspace of the
 * products. */
void cuda_sum_columns(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                      const void *x, bool add, void *dbias);
/* cuda_attention.c: the cuDNN handle and the plans made so far */
enum status cuda_attention_open(struct ops *ops, struct cuda_attention_state **state);
void cuda_attention_close(struct ops *ops, struct cuda_attention_state *state); /* NULL is fine */

/* Each file puts its slots into the table. */
void cuda_linear_fill(struct ops_backend *table);
void cuda_attention_fill(struct ops_backend *table);
void cuda_slots_fill(struct ops_backend *table);

#endif
