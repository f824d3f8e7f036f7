/* kernels -- launchers of the CUDA kernels: extern "C", raw pointers, a CUDA stream.
 *
 * C and CUDA C++ both include this header, so of sifr it includes dtype numbers and noise only.
 * The structs that kernels read from device memory are repeated here; cuda_slots.c checks that
 * they match ops/ops.h. A launcher only enqueues and returns the launch error. Contracts are those
 * of ops/ops.h; `type` is the compute type.
 *
 * Buffers that are aligned to 16 bytes (device_alloc aligns to 64) are read 16 bytes at a time;
 * others work too, more slowly. The type, the shape and that alignment choose the kernel, and with
 * it the order of every sum. The GPU does not, except where `hopper` is an argument.
 */
#ifndef OPS_CUDA_KERNELS_H
#define OPS_CUDA_KERNELS_H
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/dtype.h"
#include "ops/ops_noise.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kernel_scalars { /* struct step_scalars */
    float loss_scale, lr, correction1, correction2, grad_scale;
};

struct kernel_past { /* struct past */
    int64_t count;
    const int64_t *at;
};

struct kernel_segment { /* struct update_segment */
    int64_t count;
    float *param;
    void *copy;
    enum dtype copy_type, grad_type;
    const void *grad;
    void *m, *v;
    uint8_t *m_scale, *v_scale;
    int64_t first;
    uint32_t key;
    int skip;
    float lr_mul, decay, scale;
};

struct kernel_location { /* struct update_location */
    uint64_t key;
    int64_t first;
    int64_t run, apart, start;
    int64_t lead;
};

/* --- cuda_norm.cu; `layer`: LayerNorm, else RMSNorm ----------------------------------------- */

cudaError_t launch_add_norm(cudaStream_t stream, enum dtype type, bool layer, int64_t width,
                            double eps, double offset, int64_t rows, const void *residual,
                            const void *branch, const void *weight, const void *bias, void *sum,
                            void *y, float *mean, float *rstd);
cudaError_t launch_norm_apply(cudaStream_t stream, enum dtype type, bool layer, int64_t width,
                              double offset, int64_t rows, const void *sum, const void *weight,
                              const void *bias, const float *mean, const float *rstd, void *y);

/* --- cuda_norm_backward.cu ------------------------------------------------------------------ */

struct kernel_norm_backward { /* arguments of ops_norm_backward */
    bool layer;
    int64_t width, rows;
    const void *dy, *sum, *weight;
    const float *mean, *rstd;
    const void *dsum;
    void *dsum_out, *dweight, *dbias, *dsum_columns, *out_columns, *scratch;
    float offset;
};
/* `hopper`: the GPU has compute capability 9.0. */
cudaError_t launch_norm_backward(cudaStream_t stream, enum dtype type,
                                 struct kernel_norm_backward n, bool hopper);
size_t kernel_norm_scratch(enum dtype type, int64_t width, int64_t rows); /* needs no GPU */
/* cuda_norm_backward_hopper.cu. The first returns the number of blocks, 0 if the rows are not
 * supported. The second needs rows aligned to 16 bytes; each block writes its first 1, 2 or 4
 * `sums` (dweight, dbias, dsum_columns, out_columns) to scratch (blocks, sums, C), floats. */
int kernel_norm_hopper_blocks(enum dtype type, int64_t width, int64_t rows);
cudaError_t launch_norm_rows_hopper(cudaStream_t stream, enum dtype type,
                                    struct kernel_norm_backward n, int sums);

/* --- cuda_row.cu ---
 *
 * y (out) = x (in) times w + bias (may be NULL). If `pre` is not NULL, it receives that result and
 * y its GELU. Call the second only where the first returns true. */

bool kernel_linear_row_takes(enum dtype type, bool out_in, int64_t in, int64_t out, const void *x,
                             const void *w);
cudaError_t launch_linear_row(cudaStream_t stream, enum dtype type, bool out_in, int64_t in,
                              int64_t out, const void *x, const void *w, const void *bias,
                              void *pre, void *y);

/* --- cuda_gelu_hopper.cu: linear layers with a GELU, on compute capability 9.0 ---------------
 *
 * Call the others only where the first returns true and all matrices are aligned to 16 bytes.
 * `bias` may be NULL. `processors`: of the GPU. */

bool kernel_gelu_hopper_takes(enum dtype type, int64_t rows, int64_t in, int64_t out);
cudaError_t launch_linear_gelu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                      int64_t rows, int64_t in, int64_t out, const void *x,
                                      const void *w, const void *bias, void *pre, void *y,
                                      int processors);
cudaError_t launch_linear_dgelu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                       int64_t rows, int64_t in, int64_t out, const void *dy,
                                       const void *w, const void *pre, void *dpre, int processors);

/* --- cuda_swiglu_hopper.cu: linear layers with SwiGLU, on compute capability 9.0 -------------
 *
 * As above; F is `ff`, C is `width`. act of the first may be NULL; dgate_up may be gate_up. */

bool kernel_swiglu_hopper_takes(enum dtype type, int64_t rows, int64_t width, int64_t ff);
cudaError_t launch_linear_swiglu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                        int64_t rows, int64_t width, int64_t ff, const void *x,
                                        const void *w, void *gate_up, void *act, int processors);
cudaError_t launch_linear_dswiglu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                         int64_t rows, int64_t width, int64_t ff, const void *dy,
                                         const void *w, const void *gate_up, void *dgate_up,
                                         void *act, int processors);

/* --- cuda_dw_hopper.cu: a weight's gradient, on compute capability 9.0 ------------------------
 *
 * dw (down, across) = a^T b, a (tokens, down), b (tokens, across), rounded to `type`. Where `sum`
 * is not NULL, dw is not touched: sum becomes those rounded numbers, or with `add` they are added
 * to it. Neither `add` nor `sum` changes their bits. Call the second only where the first, which
 * looks at sizes and strides, returns true and all matrices are aligned to 16 bytes. */

struct kernel_dw {
    int64_t tokens, down, across;
    const void *a, *b;
    int64_t a_stride, b_stride; /* elements from one row to the next; 0: dense */
    void *dw;
    float *sum;
    bool add;
};
bool kernel_dw_hopper_takes(enum dtype type, struct kernel_dw w);
cudaError_t launch_dw_hopper(cudaStream_t stream, enum dtype type, struct kernel_dw w,
                             int processors);

/* --- cuda_columns.cu: a bias and its gradient, where no product's epilogue computes it ------- */

/* y[r][c] += bias[c]; rows of y are `stride` elements apart. */
cudaError_t cuda_add_bias(int type, int64_t rows, int64_t columns, int64_t stride, const void *bias,
                          void *y, cudaStream_t stream);
/* sums[c] = sum of x[r][c], or += with `keep`; rows of x are `stride` elements apart. The order of
 * the sum depends on rows, columns and `room` alone; `scratch` has `room` bytes, at least 4 per
 * column. */
cudaError_t cuda_column_sums(int type, int64_t rows, int64_t columns, int64_t stride, const void *x,
                             bool keep, void *sums, float *scratch, size_t room,
                             cudaStream_t stream);

/* The same from the partial sums (blocks, columns), in an order that depends on `blocks` alone.
 * The columns of all parts follow each other. */
struct kernel_sums {
    struct {
        int64_t columns; /* 0: no such part */
        void *sums;
    } parts[4];
};
cudaError_t cuda_add_partials(int type, int blocks, const float *partials, bool keep,
                              struct kernel_sums to, cudaStream_t stream);

/* --- cuda_pointwise.cu ---------------------------------------------------------------------- */

cudaError_t launch_add(cudaStream_t stream, enum dtype type, int64_t count, const void *a,
                       const void *b, void *sum);
cudaError_t launch_gelu(cudaStream_t stream, enum dtype type, int64_t count, const void *pre,
                        void *y);
cudaError_t launch_gelu_backward(cudaStream_t stream, enum dtype type, int64_t count,
                                 const void *pre, const void *dy, void *dpre);
cudaError_t launch_gelu_exact(cudaStream_t stream, enum dtype type, int64_t count, const void *pre,
                              void *y);
cudaError_t launch_gelu_exact_backward(cudaStream_t stream, enum dtype type, int64_t count,
                                       const void *pre, const void *dy, void *dpre);
cudaError_t launch_swiglu(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                          const void *gate_up, void *y);
cudaError_t launch_swiglu_backward(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                                   const void *gate_up, const void *dy, void *dgate_up, void *act);
cudaError_t launch_geglu(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                         const void *gate_up, void *y);
cudaError_t launch_geglu_backward(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                                  const void *gate_up, const void *dy, void *dgate_up, void *act);
cudaError_t launch_scale(cudaStream_t stream, enum dtype type, int64_t count, float factor,
                         void *x);
/* Rotates the first `rotary` columns of `heads` heads of `head_width` in each of `rows` rows,
 * `row_width` apart; row r uses row past + r % tokens of the table. */
cudaError_t launch_rope(cudaStream_t stream, enum dtype type, int64_t rows, int64_t tokens,
                        int64_t heads, int64_t head_width, int64_t rotary, int64_t row_width,
                        const float *table, struct kernel_past past, bool inverse, void *qkv);

/* --- cuda_heads.cu -------------------------------------------------------------------------- */

struct kernel_heads { /* struct head_rms */
    int64_t rows, heads, kv_heads, head_width, whole;
    float eps, offset;
};
cudaError_t launch_head_sums(cudaStream_t stream, enum dtype type, struct kernel_heads n,
                             const void *x, const void *dy, const void *q, const void *k,
                             double *sums);
cudaError_t launch_head_rms(cudaStream_t stream, enum dtype type, struct kernel_heads n,
                            const void *q, const void *k, const double *squares, void *kept,
                            void *qkv);
cudaError_t launch_head_rms_backward(cudaStream_t stream, enum dtype type, struct kernel_heads n,
                                     const void *q, const void *k, const double *squares,
                                     const double *dots, const void *kept, void *dqkv, void *dq,
                                     void *dk, float *scratch);
size_t kernel_head_scratch(struct kernel_heads n); /* needs no GPU */

/* --- cuda_embedding.cu ---------------------------------------------------------------------- */

struct kernel_ids { /* ids of a table whose rows are tokens first .. first + vocab - 1 */
    const int32_t *ids;
    int64_t first, vocab;
    bool part; /* the table is part of a larger one */
};
cudaError_t launch_embedding(cudaStream_t stream, enum dtype type, int64_t rows, int64_t tokens,
                             int64_t width, struct kernel_ids ids, const void *wte, const void *wpe,
                             struct kernel_past past, void *out);
cudaError_t launch_embedding_backward(cudaStream_t stream, enum dtype type, int64_t batch,
                                      int64_t tokens, int64_t width, int64_t positions,
                                      struct kernel_ids ids, const void *dout, void *dwte,
                                      void *dwpe, void *scratch);
size_t kernel_embedding_scratch(int64_t rows, int64_t width, int64_t vocab); /* needs no GPU */

/* --- cuda_loss.cu --------------------------------------------------------------------------- */

struct kernel_logits { /* struct logits; the stride is never 0 */
    int64_t vocab, stride, first_id;
    float cap;
};
cudaError_t launch_cross_entropy(cudaStream_t stream, enum dtype type, struct kernel_logits l,
                                 int64_t rows, const int32_t *labels, bool gradient,
                                 const struct kernel_scalars *scalars, void *logits,
                                 double *losses);
/* cuda_loss_hopper.cu, with the gradient, for compute capability 9.0: same bits. Call the second
 * only where the first returns true. */
bool kernel_loss_hopper_takes(enum dtype type, struct kernel_logits l, const void *logits);
cudaError_t launch_cross_entropy_hopper(cudaStream_t stream, enum dtype type,
                                        struct kernel_logits l, int64_t rows, const int32_t *labels,
                                        const struct kernel_scalars *scalars, void *logits,
                                        double *losses);
enum { KERNEL_LOSS_PART = 3 }; /* OPS_LOSS_PART */
cudaError_t launch_cross_entropy_part(cudaStream_t stream, enum dtype type, struct kernel_logits l,
                                      int64_t rows, const int32_t *labels, const void *logits,
                                      double *parts);
cudaError_t launch_cross_entropy_join(cudaStream_t stream, enum dtype type, struct kernel_logits l,
                                      int64_t rows, const int32_t *labels, int ranks,
                                      const double *parts, bool gradient,
                                      const struct kernel_scalars *scalars, void *logits,
                                      double *losses);
cudaError_t launch_softcap(cudaStream_t stream, enum dtype type, int64_t count, float cap, void *x);
cudaError_t launch_sum(cudaStream_t stream, int64_t count, const double *values, double *sum);
cudaError_t launch_tree_sums(cudaStream_t stream, int64_t count, int level, const double *values,
                             double *sums);

/* --- cuda_route.cu -------------------------------------------------------------------------- */

/* `width` is that of a row: all groups. */
cudaError_t launch_route(cudaStream_t stream, enum dtype type, int64_t rows, int64_t width,
                         float scale, const void *pre, const void *match, const void *cost,
                         void *logits, void *out);
enum { KERNEL_ROUTE_WIDTH = 16384 }; /* OPS_ROUTE_WIDTH */
struct kernel_route {                /* arguments of ops_route_backward */
    int64_t in, groups, width, rows;
    bool minus, standardise;
    float scale, weight; /* of the match, of the entropies */
    const void *x, *dout, *pre, *logits;
    void *dpre, *dmatch;
    float *goodness, *active, *dcost, *entropy;
    void *scratch;
};
cudaError_t launch_route_backward(cudaStream_t stream, enum dtype type, struct kernel_route n);
size_t kernel_route_scratch(int64_t groups, int64_t width, int64_t rows); /* needs no GPU */

/* --- cuda_gate.cu --------------------------------------------------------------------------- */

cudaError_t launch_mas(cudaStream_t stream, enum dtype type, int64_t groups, int64_t width,
                       const void *gate, void *cost);
cudaError_t launch_mas_backward(cudaStream_t stream, enum dtype type, int64_t groups, int64_t width,
                                const void *gate, const float *dcost, void *dgate);
cudaError_t launch_gate_rows(cudaStream_t stream, enum dtype type, int64_t first, int64_t count,
                             int64_t columns, const float *goodness, float limit, void *x);

/* --- cuda_flat.cu --------------------------------------------------------------------------- */

cudaError_t launch_cast(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                        enum dtype src_type, int64_t count);
struct kernel_range { /* struct square_range */
    const void *x;
    int64_t count;
    double *sums;
};
cudaError_t launch_square_sums(cudaStream_t stream, enum dtype type,
                               const struct kernel_range *ranges /* host memory */,
                               int range_count);
cudaError_t launch_find_nonfinite(cudaStream_t stream, enum dtype type, const void *x,
                                  int64_t count, int64_t *first);

/* --- cuda_update.cu ---
 *
 * `segments` and `locations` (NULL: copies are rounded to nearest) are in device memory, `update`
 * in host memory. */

enum kernel_rule { /* enum update_rule */
                   KERNEL_ADAMW,
                   KERNEL_ADAMW8,
                   KERNEL_SGD,
                   KERNEL_MUON,
                   KERNEL_APPLY
};
struct kernel_update {
    enum kernel_rule rule;
    float beta1, rest1, beta2, rest2, eps; /* rest: 1 - beta */
    bool nesterov;
    int64_t number;
};
cudaError_t launch_update(cudaStream_t stream, struct kernel_update update,
                          const struct kernel_scalars *scalars,
                          const struct kernel_segment *segments,
                          const struct kernel_location *locations, int segment_count);
/* cuda_adamw_hopper.cu: rule adamw with the same bits on compute capability 9.0, rounded to
 * nearest. `processors`: the multiprocessors of the GPU. `taken` is in device memory and belongs to
 * the launch while it runs. */
cudaError_t launch_adamw_hopper(cudaStream_t stream, struct kernel_update update,
                                const struct kernel_scalars *scalars,
                                const struct kernel_segment *segments, int segment_count,
                                int processors, unsigned long long *taken);

/* --- cuda_orthogonalize.cu ------------------------------------------------------------------ */

/* to = x / sqrt(*squares); a copy of x if *squares, in device memory, is 0. */
cudaError_t launch_normalize(cudaStream_t stream, enum dtype type, int64_t count,
                             const double *squares, const void *x, void *to);

/* --- cuda_noise.cu -------------------------------------------------------------------------- */

cudaError_t launch_noise(cudaStream_t stream, enum dtype type, struct noise noise, void *x);
/* Adds the fingerprint of x to two sums in device memory. */
cudaError_t launch_fingerprint(cudaStream_t stream, enum dtype type, int64_t count, const void *x,
                               unsigned long long *sums);

#ifdef __cplusplus
}
#endif

#endif
