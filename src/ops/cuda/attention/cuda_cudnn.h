/* cuda_cudnn -- the part of cuDNN 9's graph API (C form) that attention needs.
 *
 * A graph is written like a formula: tensors, then operations from tensor to tensor. The first
 * failure sticks to the graph and later calls do nothing, so that builders need no error handling;
 * making the plan reports it. A plan is a graph that a cuDNN engine agreed to run, with the
 * addresses of the named tensors.
 *
 * Nothing newer than cuDNN 9.14 is used.
 */
#ifndef OPS_CUDA_CUDA_CUDNN_H
#define OPS_CUDA_CUDA_CUDNN_H
#include <cudnn.h>
#include "ops/ops.h"

enum { DNN_DESCRIPTORS = 128, DNN_OPERATIONS = 32, DNN_NAMES = 16 };

typedef cudnnBackendDescriptor_t dnn_tensor;

struct dnn_shape {
    int64_t sizes[4];   /* batch, heads, rows, columns */
    int64_t strides[4]; /* in elements */
};

struct dnn_graph {
    struct env *env;   /* borrowed */
    enum status error; /* the first failure, already logged */
    cudnnBackendDescriptor_t descriptors[DNN_DESCRIPTORS];
    cudnnBackendDescriptor_t operations[DNN_OPERATIONS]; /* among them */
    int descriptor_count, operation_count;
    int64_t virtual_count;
};

struct dnn_shape dnn_dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns);
struct dnn_shape dnn_transposed(struct dnn_shape shape); /* swaps rows and columns */

void dnn_graph_open(struct dnn_graph *graph, struct env *env);
void dnn_graph_close(struct dnn_graph *graph);

/* A tensor in memory, named by a number from 1 to 999; an intermediate tensor; a float in host
 * memory that is read when the plan runs. */
dnn_tensor dnn_real(struct dnn_graph *graph, int64_t name, cudnnDataType_t type,
                    struct dnn_shape shape);
dnn_tensor dnn_virtual(struct dnn_graph *graph, cudnnDataType_t type, struct dnn_shape shape);
dnn_tensor dnn_scalar(struct dnn_graph *graph, int64_t name);

/* Each adds an operation that writes `y`, and returns `y`. */
dnn_tensor dnn_matmul(struct dnn_graph *graph, dnn_tensor a, dnn_tensor b, dnn_tensor y);
/* y = mode(x, b); b NULL where the mode takes one argument; broadcast where a size of b is 1. */
dnn_tensor dnn_pointwise(struct dnn_graph *graph, cudnnPointwiseMode_t mode, dnn_tensor x,
                         dnn_tensor b, dnn_tensor y);
dnn_tensor dnn_compare(struct dnn_graph *graph, cudnnPointwiseMode_t mode, dnn_tensor x,
                       dnn_tensor b, dnn_tensor y); /* y is boolean */
dnn_tensor dnn_index(struct dnn_graph *graph, int64_t axis, dnn_tensor x, dnn_tensor y);
dnn_tensor dnn_select(struct dnn_graph *graph, dnn_tensor mask, dnn_tensor x, dnn_tensor otherwise,
                      dnn_tensor y);
/* Reduces every axis where y has size 1 and x does not. */
dnn_tensor dnn_reduce(struct dnn_graph *graph, cudnnReduceTensorOp_t op, dnn_tensor x,
                      dnn_tensor y);
dnn_tensor dnn_reshape(struct dnn_graph *graph, dnn_tensor x, dnn_tensor y);

struct dnn_plan {
    struct dnn_graph graph; /* kept: the plan refers to it */
    cudnnBackendDescriptor_t plan;
};

/* Finds an engine that runs the graph in at most `workspace_bytes`; with `exact`, one that does
 * not declare its results to vary from run to run (no guarantee: 9.19 does not declare it for
 * attention that adds with atomics). Takes ownership of the graph's resources in every case.
 * STATUS_OK with plan->plan NULL: there is no engine (the reason is logged at level debug). */
enum status dnn_plan_create(struct dnn_graph *graph, cudnnHandle_t handle, bool exact,
                            size_t workspace_bytes, struct dnn_plan *plan);
void dnn_plan_destroy(struct dnn_plan *plan);

/* Enqueues on the stream of the handle. */
enum status dnn_plan_run(const struct dnn_plan *plan, cudnnHandle_t handle, int count,
                         const int64_t *names, void *const *addresses, void *workspace);

/* STATUS_OK, or STATUS_DEVICE with a message of cuDNN's text and `what`. */
enum status dnn_status(struct env *env, cudnnStatus_t status, const char *what);

/* --- attention as graphs, and the memory they need (cuda_attention_graph.c) ------------------ */

/* BACKWARD_FAST zeroes DQ_SUM and adds to it with atomics: bits differ from run to run. */
enum attention_pass { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_BACKWARD_FAST };

/* Names of the tensors. SUMS (B, H, T) floats and, in the fast form, DQ_SUM (B, H, T, D) floats
 * are scratch that cuDNN fills; SCALE, MASKED and ONE are floats in host memory. */
enum attention_name { Q = 1, K, V, OUT, LSE, DOUT, DQ, DK, DV, SUMS, SCALE, MASKED, ONE, DQ_SUM };

/* Whether there may be an engine: bf16 or f16, D a multiple of 8 and at most 256. Only making a
 * plan tells: by NVIDIA's table for 9.18, Ampere and Ada have none for bprop above 128. */
bool attention_graph_takes(enum dtype type, struct attention a);
/* A plan for `a` in at most `workspace_bytes` (dnn_plan_create). */
enum status attention_graph_plan(struct env *env, enum dtype type, struct attention a,
                                 enum attention_pass pass, cudnnHandle_t handle,
                                 size_t workspace_bytes, struct dnn_plan *plan);
/* Bytes of dS, in full tiles of 128; and an upper bound of a pass's workspace: dS where it is
 * kept, with grouped queries the gradients of k and v by query head before they are summed, and a
 * little more. */
size_t attention_graph_scores(struct attention a);
size_t attention_graph_workspace(enum attention_pass pass, struct attention a);

#endif
