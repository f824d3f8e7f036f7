/* cuda_attention_cudnn -- attention by cuDNN's flash engines: plans, sub-batches, and sequences
 * that are filled up. */
#ifndef OPS_CUDA_CUDA_ATTENTION_CUDNN_H
#define OPS_CUDA_CUDA_ATTENTION_CUDNN_H
#include "ops/cuda/cuda_impl.h"

struct dnn_attention;

/* `used`: whether it may compute anything. On the current GPU; the caller closes *dnn. */
enum status dnn_attention_open(struct env *env, bool used, struct dnn_attention **dnn);
void dnn_attention_close(struct env *env, struct dnn_attention *dnn); /* NULL is fine */

/* As the slots of ops, with scratch of dnn_attention_scratch bytes. False: the shape is not
 * supported, and nothing was done. The backward pass neither undoes RoPE nor sums columns. */
bool dnn_attention_forward(struct ops *ops, struct dnn_attention *dnn, struct stream *stream,
                           struct attention a, const void *qkv, void *out, float *lse,
                           void *scratch);
bool dnn_attention_backward(struct ops *ops, struct dnn_attention *dnn, struct stream *stream,
                            struct attention a, const struct attention_backward *g);

/* Whether the backward pass may support a shape, apart from the engines of a GPU. Asks none. */
bool dnn_attention_backward_takes(const struct ops *ops, struct attention a);
/* 0: it takes no such shape. Asks no GPU. */
size_t dnn_attention_scratch(enum dtype type, struct attention a);
/* The shape with as many tokens as the backward pass computes */
struct attention dnn_attention_filled(struct attention a);

#endif
