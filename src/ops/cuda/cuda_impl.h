/* cuda_impl -- the slots of the cuda back end and what its files share.
 *
 * A slot is plain C: it knows ops, streams and errors, and calls a launcher of kernels.h or a
 * library. Kernels are in .cu files, which see kernels.h only.
 *
 *     cuda_linear.c        linear layers: products with bias, GELU, SwiGLU and their gradients
 *     cuda_product.c       products through cuBLASLt; cuda_columns.cu: bias without an epilogue
 *     cuda_product_tune.c  chooses the algorithm of a product; cuda_trial.c, cuda_noise.cu: the
 *                          operands that candidates are tried on
 *     cuda_gelu_hopper.cu, cuda_swiglu_hopper.cu, cuda_dw_hopper.cu, hopper_launch.cuh,
 *     hopper_product.cuh   products with a GELU or SwiGLU, and weights' gradients, on Hopper
 *     cuda_row.cu          products of one row, as in decoding
 *     cuda_orthogonalize.c, cuda_orthogonalize.cu     Newton-Schulz iterations, by products
 *     cuda_attention.c     chooses the attention kernel for a shape; cuda_cached.cu: with a cache
 *     cuda_attention_matrix*.cu, matrix*.cuh    attention on tensor cores of any GPU
 *     cuda_attention_plain.cu                   attention without tensor cores
 *     cuda_attention_forward_hopper.cu, cuda_attention_hopper.cu, hopper*.cuh
 *                          forward and backward attention on Hopper, with tiles and wgmma
 *     cuda_attention_cudnn.c, cuda_attention_graph.c, cuda_cudnn.c
 *                          attention by cuDNN: plans and runs; its graphs; cuDNN's graph API
 *     cuda_slots.c         the slots of all other ops: shapes to launchers
 *     cuda_norm.cu, cuda_norm_backward.cu, cuda_pointwise.cu, cuda_embedding.cu, cuda_loss.cu,
 *     cuda_route.cu, cuda_gate.cu, cuda_flat.cu   their kernels; *_hopper.cu: variants for Hopper
 *     cuda_update.cu, cuda_update.cuh, cuda_code8.h   the update rules; cuda_adamw_hopper.cu: AdamW
 *                          on another data path, with the same arithmetic
 *     follow.cuh           kernels of a recording that start before their predecessor has ended
 *     ops_cuda.c           the table, opening and closing
 *
 * Bits: the shape fixes the order of every sum; no float atomics. Compute types: f32 (products and
 * attention in TF32 unless SIFR_CUDA_EXACT=1), bf16, f16; sums and statistics are f32 or f64. Fast
 * mode (ops_be_fast) gives up equal bits in cuda_product.c and cuda_attention_cudnn.c.
 *
 * Environment variables, read when ops are opened. Users need the first only; the others are for
 * tests and measurements.
 *
 *     SIFR_CUDA_EXACT=1                       f32 products and attention in fp32, without TF32
 *     SIFR_CUDA_PRODUCTS=first|same|fastest   how a product chooses its algorithm, in any mode
 *                                             (cuda_product.h)
 *     SIFR_CUDA_GELU=library|large|own        products with a GELU on Hopper: by cuBLASLt, by our
 *                                             kernel if they are large (default), or at any size
 *                                             (cuda_linear.c)
 *     SIFR_CUDA_SWIGLU=library|large|own      the same for SwiGLU; library: cuBLASLt's product and
 *                                             a kernel for SwiGLU
 *     SIFR_CUDA_DW=library|large|own          weight gradients on Hopper: by cuBLASLt; by our
 *                                             kernels if they are large and the step has
 *                                             several micro-batches (default); or always
 *     SIFR_CUDA_ATTENTION=matrix|clusters     attention on the kernels for any GPU; the Hopper
 *                                             backward pass in clusters wherever it can
 *     SIFR_CUDA_GRAPH=off                     record no graphs (device/cuda/stream_cuda.c)
 */
#ifndef OPS_CUDA_CUDA_IMPL_H
#define OPS_CUDA_CUDA_IMPL_H
#include "device/cuda/cuda.h"
#include "ops/cuda/kernels.h"
#include "ops/ops_impl.h"

struct cuda_linear_state;
struct cuda_attention_state;

/* ops->state of this back end */
struct cuda_ops {
    struct cuda_linear_state *linear;
    struct cuda_attention_state *attention;
    bool is_hopper; /* use the *_hopper.cu kernels of AdamW, norms, products, the loss */
    unsigned long long
        *adamw_taken; /* tile counter of cuda_adamw_hopper.cu: device memory, in ops->workspace */
    cudaEvent_t adamw_done;   /* recorded after each use of the counter */
    unsigned *cached_arrived; /* counters of cuda_cached.cu: device memory, in ops->workspace */
};

static inline struct cuda_ops *cuda_ops_of(const struct ops *ops)
{
    return ops->state;
}

/* The index in `words` (NULL-terminated) of an environment variable's value, -1 if it is not set.
 * Any other value is an error. */
enum status cuda_word(struct env *env, const char *variable, const char *const *words, int *word);

/* SIFR_CUDA_EXACT=1: f32 products and attention stay in fp32. Otherwise their factors are rounded
 * to TF32. */
bool cuda_is_exact(void);

/* Make the GPU of `ops` current for the calling thread. On failure the stream fails and the result
 * is false. */
static inline bool cuda_on_gpu(const struct ops *ops, struct stream *stream)
{
    return cuda_enqueued(stream, cudaSetDevice(cuda_device_of(ops->device)->index),
                         "choosing the GPU");
}

/* cuda_linear.c: handles, workspace, the table of chosen algorithms. */
enum status cuda_linear_open(struct ops *ops, struct cuda_linear_state **state);
void cuda_linear_close(struct ops *ops, struct cuda_linear_state *state); /* state may be NULL */
/* dbias (columns) = column sums of x (rows, columns), or += with `add`. Uses the workspace of the
 * products. */
void cuda_sum_columns(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                      const void *x, bool add, void *dbias);
/* cuda_attention.c: which kernels may be used, and cuDNN's plans. */
enum status cuda_attention_open(struct ops *ops, struct cuda_attention_state **state);
void cuda_attention_close(struct ops *ops,
                          struct cuda_attention_state *state); /* state may be NULL */

/* Each adds its slots to the table. */
void cuda_linear_fill(struct ops_backend *table);
void cuda_orthogonalize_fill(struct ops_backend *table);
void cuda_attention_fill(struct ops_backend *table);
void cuda_slots_fill(struct ops_backend *table);

#endif
