/* cuda_attention_graph -- attention as graphs for cuDNN, and the memory they need. Separate from
 * the slots, so that plans can be made and inspected without a GPU.
 */
#ifndef OPS_CUDA_CUDA_ATTENTION_GRAPH_H
#define OPS_CUDA_CUDA_ATTENTION_GRAPH_H
#include "ops/cuda/attention/cuda_cudnn.h"
#include "ops/ops.h"

/* BACKWARD_FAST zeroes DQ_SUM and adds to it with atomics: bits differ from run to run. */
enum attention_pass { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_BACKWARD_FAST };

/* Names of the tensors. SUMS (B, H, T) floats and, in the fast form, DQ_SUM (B, H, T, D) floats
 * are scratch that cuDNN fills; SCALE, MASKED and ONE are floats in host memory. */
enum attention_name { Q = 1, K, V, OUT, LSE, DOUT, DQ, DK, DV, SUMS, SCALE, MASKED, ONE, DQ_SUM };

/* Whether there may be an engine: bf16 or f16, D a multiple of 8 and at most 256 (on Hopper; 128 in
 * bprop elsewhere). */
bool attention_graph_takes(enum dtype type, struct attention a);
/* A plan for `a` in at most `workspace_bytes`, for the GPU of `handle` or the one that
 * `properties` describes (dnn_plan_create). */
enum status attention_graph_plan(struct env *env, enum dtype type, struct attention a,
                                 enum attention_pass pass, cudnnHandle_t handle,
                                 cudnnBackendDescriptor_t properties, size_t workspace_bytes,
                                 struct dnn_plan *plan);
/* Bytes of dS, in full tiles of 128; and an upper bound of a pass's workspace: dS where it is
 * kept, with grouped queries the gradients of k and v by query head before they are summed, and a
 * little more. */
size_t attention_graph_scores(struct attention a);
size_t attention_graph_workspace(enum attention_pass pass, struct attention a);

#endif
