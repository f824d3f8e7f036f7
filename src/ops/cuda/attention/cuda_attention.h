/* cuda_attention -- launchers of our own attention kernels.
 *
 * C and CUDA C++ both include this header. Launchers are as in kernels.h, with the contracts of
 * ops/ops.h.
 */
#ifndef OPS_CUDA_CUDA_ATTENTION_H
#define OPS_CUDA_CUDA_ATTENTION_H
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ops/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* B T H G D of struct attention; `type` is the compute type (enum dtype). `valid` is D, and `width`
 * too, unless heads were padded to `width` with zeros. A query sees `window` keys at most, never
 * 0; cap 0: none. */
struct cuda_heads {
    int64_t batch, tokens, heads, kv_heads, width, valid, window;
    float scale, cap;
};

/* cuda_attention_plain.cu: any type and width, fp32 inside, correct but slow. `sums` has B H T
 * floats; cuda_attend_sums fills it with row sums of dout . out for the backward pass. */
cudaError_t cuda_attend_sums(int type, struct cuda_heads a, const void *out, const void *dout,
                             float *sums, cudaStream_t stream);
cudaError_t cuda_attend_forward(int type, struct cuda_heads a, const void *qkv, void *out,
                                float *lse, cudaStream_t stream);
cudaError_t cuda_attend_backward(int type, struct cuda_heads a, const void *qkv, const void *out,
                                 const float *lse, const void *dout, void *dqkv, float *sums,
                                 cudaStream_t stream);

/* cuda_attention_matrix.cu: on the tensor cores of any GPU from compute capability 8.0 on, the same
 * contract; fp32 in TF32. */
bool cuda_attend_matrix_takes(struct cuda_heads a);
int64_t
cuda_attend_matrix_width(int64_t width); /* the width that heads of this width are computed at */
cudaError_t cuda_attend_matrix_forward(int type, struct cuda_heads a, const void *qkv, void *out,
                                       float *lse, cudaStream_t stream);
cudaError_t cuda_attend_matrix_backward(int type, struct cuda_heads a, const void *qkv,
                                        const void *out, const float *lse, const void *dout,
                                        void *dqkv, float *sums, cudaStream_t stream);

/* When groups of blocks ("clusters", see hopper_clusters.cuh) do the backward pass on Hopper: for
 * shapes so large that they are faster, or wherever they can, so that tests reach them with small
 * shapes. The choice changes bits and scratch. */
enum cuda_clusters { CUDA_CLUSTERS_WHERE_FASTER, CUDA_CLUSTERS_WHERE_POSSIBLE };

/* cuda_attention_hopper.cu: the backward pass on compute capability 9.0 with `processors`
 * multiprocessors, for the shapes it takes, without a cap; otherwise the same contract. All
 * pointers are multiples of 16. With `rope` (may be NULL) dq and dk are rotated back before they
 * are rounded, at the widths for which cuda_attend_hopper_turns returns true. Without it, `dbias`
 * (may be NULL) receives column sums of dqkv, those of dk and dv from unrounded values, for the
 * shapes for which cuda_attend_hopper_sums returns true; both together are an error. Pass the same
 * `clusters` to all. */
bool cuda_attend_hopper_takes(int type, struct cuda_heads a, enum cuda_clusters clusters);
/* The columns that they compute */
int64_t cuda_attend_hopper_columns(struct cuda_heads a);
bool cuda_attend_hopper_turns(struct cuda_heads a);
bool cuda_attend_hopper_sums(struct cuda_heads a, enum cuda_clusters clusters);
size_t cuda_attend_hopper_scratch(struct cuda_heads a, enum cuda_clusters clusters);
cudaError_t cuda_attend_backward_hopper(int type, struct cuda_heads a, enum cuda_clusters clusters,
                                        const float *rope, const void *qkv, const void *out,
                                        const float *lse, const void *dout, void *dqkv, void *dbias,
                                        float *scratch, int processors, cudaStream_t stream);

/* cuda_attention_forward_hopper.cu: the forward pass, likewise. The bits do not
 * depend on the number of multiprocessors. */
bool cuda_attend_forward_hopper_takes(int type, struct cuda_heads a);
cudaError_t cuda_attend_forward_hopper(int type, struct cuda_heads a, const void *qkv, void *out,
                                       float *lse, int processors, cudaStream_t stream);

/* cuda_attention_pad.cu: copies `heads` consecutive heads of a 16-bit type from one width to
 * another, truncated or filled with zeros. Pointers are multiples of 16. */
cudaError_t cuda_resize_heads(int64_t heads, int64_t from_width, int64_t to_width, const void *from,
                              void *to, cudaStream_t stream);
/* Copies sequences of rows of `row_bytes`, a multiple of 16, from one length to another, cut off or
 * filled with zeros. Pointers are multiples of 16. */
cudaError_t cuda_resize_sequences(int64_t sequences, int64_t from_tokens, int64_t to_tokens,
                                  int64_t row_bytes, const void *from, void *to,
                                  cudaStream_t stream);

/* cuda_attention_first.cu: before and after a backward pass that does not know that the first query
 * of a sequence has no dS, of a 16-bit type. The pass gets `hidden` (B, H, filled) instead of lse,
 * where it computes `filled` queries of each sequence, at least T; then the first query is added to
 * dv. */
cudaError_t cuda_attend_hide_first(struct cuda_heads a, int64_t filled, const float *lse,
                                   float *hidden, cudaStream_t stream);
cudaError_t cuda_attend_add_first(int type, struct cuda_heads a, const void *dout, void *dqkv,
                                  cudaStream_t stream);

/* cuda_cached.cu: with a cache of keys and values (B, room, G D); scratch of
 * cuda_attend_cached_scratch bytes, enough for every shape of this width. `arrived` is in device
 * memory and zero before and after. */
enum { CUDA_CACHED_ARRIVED = 2048 };
cudaError_t cuda_attend_cached(int type, struct cuda_heads a, struct kernel_past past, int64_t room,
                               const void *qkv, void *cache_k, void *cache_v, void *out,
                               float *scratch, unsigned *arrived, cudaStream_t stream);
size_t cuda_attend_cached_scratch(int64_t width);

#ifdef __cplusplus
}
#endif

#endif
