/* ops -- the mathematics of a transformer on device buffers, forward and backward, with the back
 * ends "ref", "cpu" and "cuda".
 *
 * Every function enqueues on a stream, allocates nothing and waits for nothing. Tensors are
 * row-major; comments give their shapes. They are dense, except that the rows of logits may have a
 * stride; what lies between the rows is never changed and never matters. A `void *` has the table's
 * compute type (ops->type: f32 on the CPU, also f64 in "ref", f32, bf16 or f16 on a GPU).
 * Statistics are always `float` and losses `double`, so that they mean the same everywhere.
 * Backward functions OVERWRITE the gradients they write unless they say otherwise: only the store
 * adds. An op takes its shape first; an op with many buffers takes them in a struct of its own
 * name.
 *
 * "ref" is plain loops with double sums and defines the right result. A back end's table starts as
 * a copy of ref's and overrides what the machine does better, so no slot is empty.
 *
 * Bits: a result depends on the values and the shape, never on the number of threads
 * (docs/determinism.md), except after ops_be_fast.
 *
 * Letters: R rows (= B * T tokens), B batch, T tokens of a sequence, C width, V vocabulary, F
 * feed-forward width, H query heads, G key/value heads (H is a multiple of G), D head width, I
 * inputs and K groups of a routed layer.
 */
#ifndef OPS_OPS_H
#define OPS_OPS_H
#include "device/device.h"

struct ops_backend;
struct ops_case;
struct ops_meter;

struct ops {
    const struct ops_backend *backend;
    struct device *device;   /* borrowed */
    enum dtype type;         /* compute type */
    int threads;             /* from the device's env */
    bool fast;               /* see ops_be_fast */
    enum dtype products;     /* see ops_multiply_in */
    void *state;             /* owned by the back end */
    void *workspace;         /* device memory for its libraries, or NULL */
    struct ops_meter *meter; /* borrowed; prices calls on a dry device (ops_price.h), or NULL */
};

/* `backend` "ref" (f32 or f64), "cpu" (f32) or "cuda" (f32, bf16, f16). The caller destroys
 * *ops. */
enum status ops_create(struct device *device, const char *backend, enum dtype type,
                       struct ops **ops);
void ops_destroy(struct ops *ops);
/* Allow results to differ in their bits from run to run where that is faster; call it before the
 * first op. On "cuda", each product uses the algorithm that is fastest when its shape is first
 * seen, and attention's backward pass may add with atomics. The other back ends and the use of
 * memory do not change. */
void ops_be_fast(struct ops *ops);

/* Round the operands of linear layers to `type` (f32: not at all) and sum in f32, on "cpu" where the
 * machine has instructions for that; call it before the first op. No effect elsewhere, nor on
 * products with one row whose W is in f32, on attention and on orthogonalize. The use of memory does not change. */
void ops_multiply_in(struct ops *ops, enum dtype type);
/* Whether linear layers and embeddings take W and wte in bf16 although the compute type is f32:
 * where products round to bf16 anyway. The bits are those of the same values in f32, but for
 * products with one row, which then round like the others. */
bool ops_takes_bf16(const struct ops *ops);

/* On a dry device with a meter, add the price of a call to the stream's clock. The ops themselves
 * do this. */
void ops_spend(struct ops *ops, struct stream *stream, const struct ops_case *c);

/* How many logits a head should compute at a time on this back end. */
int64_t ops_chunk_logits(const struct ops *ops);
/* The stride of rows of `width` elements with which this back end is fastest: at least `width`. */
int64_t ops_row_stride(const struct ops *ops, int64_t width);

/* Flat ranges are processed in whole blocks of this many elements; shards start at multiples of
 * it. */
#define OPS_BLOCK 64

/* Values that change from step to step. Enqueued work reads them from device memory. */
struct step_scalars {
    float loss_scale;  /* loss_scale / (count of valid labels): factor of the loss gradient */
    float lr;          /* of this step */
    float correction1; /* 1 - beta1^t */
    float correction2; /* 1 - beta2^t */
    float grad_scale;  /* clipping / loss_scale: factor of the summed gradient before the update */
};

/* --- linear layers -------------------------------------------------------------------------- */

/* y = x W + b. W is stored [out][in] (Llama, PyTorch's Linear) or [in][out] (GPT-2's Conv1D). */
struct linear {
    int64_t in, out;
    bool out_in;      /* W is [out][in] */
    int64_t y_stride; /* elements from one row of y or dy to the next; 0: out. Not with
                         ops_linear_gelu and ops_linear_swiglu, whose y is dense. */
    bool w_bf16;      /* W is in bf16, whatever the compute type: see ops_takes_bf16 */
};
void ops_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                const void *x /* (R, in) */, const void *w, const void *bias /* (out) or NULL */,
                void *y /* (R, out) */);
/* pre = x W + b; y = gelu(pre) */
struct linear_gelu {
    const void *x, *w; /* (R, in); as for ops_linear */
    const void *bias;  /* (out) or NULL */
    void *pre, *y;     /* (R, out) */
};
void ops_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                     const struct linear_gelu *a);
/* Whether ops_gelu(pre) reproduces the bits of y. If not, only running ops_linear_gelu again
 * does. */
bool ops_gelu_remakes(const struct ops *ops);
/* dx (R, in) = dy W^T, dy (R, out) */
void ops_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const void *dy, const void *w, void *dx);
/* For a layer whose input was gelu(pre): dpre = (dy W^T) * gelu'(pre). */
struct linear_dx_dgelu {
    const void *dy, *w, *pre; /* (R, out); as for ops_linear; (R, in) */
    void *dpre;               /* (R, in) */
    void *dbias; /* (in) or NULL: column sums of dpre, the gradient of the bias in pre */
};
void ops_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                         const struct linear_dx_dgelu *a);
/* gate_up = x W + b, gate in the first half of the columns, up in the last (2F = out); act =
 * silu(gate) up, of the rounded gate and up: ops_swiglu(gate_up) has the bits of act. */
struct linear_swiglu {
    const void *x, *w; /* (R, in); as for ops_linear */
    const void *bias;  /* (2F) or NULL */
    void *gate_up;     /* (R, 2F); the bits do not depend on whether act is wanted */
    void *act;         /* (R, F) or NULL */
};
void ops_linear_swiglu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                       const struct linear_swiglu *a);
/* For a layer whose input was swiglu(gate_up), F = in: the gradient of gate_up by way of dy W^T,
 * and act again, as from ops_swiglu_backward. */
struct linear_dx_dswiglu {
    const void *dy, *w;  /* (R, out); as for ops_linear */
    const void *gate_up; /* (R, 2F) */
    void *dgate_up;      /* (R, 2F); may be gate_up */
    void *act;           /* (R, F) */
};
void ops_linear_dx_dswiglu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const struct linear_dx_dswiglu *a);
/* dw = x^T dy in W's own orientation, dbias = column sums of dy. With neither, does nothing. */
struct linear_dw {
    const void *x, *dy; /* (R, in), (R, out) */
    bool add;           /* add to dw and dbias: for a unit that processes its rows in chunks */
    bool several;       /* the step adds the gradients of several micro-batches */
    void *dw, *dbias;   /* W's shape or NULL; (out) or NULL */
};
void ops_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const struct linear_dw *a);
/* The weight gradient of a micro-batch, added to that of the step: sum = r or, with `add`, += r,
 * where r is ops_linear_dw's dw, rounded to `type`. The bits are those of ops_linear_dw, a cast and
 * device_accumulate. */
struct linear_dw_sum {
    const void *x, *dy; /* as in struct linear_dw */
    enum dtype type;    /* f32 or the type of the ops; also another one where ops_sums_dw */
    bool add, several;  /* several: as in struct linear_dw */
    float *sum;         /* W's shape */
    void *dw;           /* W's shape: scratch */
    void *dbias;        /* as in struct linear_dw; never added to */
};
/* Whether the back end does this in one call, and so in less time. */
bool ops_sums_dw(const struct ops *ops, struct linear l, int64_t rows, enum dtype type,
                 bool several);
void ops_linear_dw_sum(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                       const struct linear_dw_sum *a);

/* --- norms, fused with the residual add ----------------------------------------------------- */
enum norm_kind { NORM_LAYER, NORM_RMS };
struct norm {
    enum norm_kind kind;
    int64_t width;
    double eps;
    double offset; /* added to the weight: Gemma's factor is 1 + weight */
};
/* sum = residual + branch; y = norm(sum) * (weight + offset) + bias. The bits are those of: add,
 * round to the compute type, normalize the rounded sum. */
struct add_norm {
    const void *residual; /* (R, C) */
    const void *branch;   /* (R, C); NULL: sum = residual */
    const void *weight;   /* (C) */
    const void *bias;     /* (C) or NULL */
    void *sum;            /* (R, C); may be `residual`; may be NULL when branch is NULL */
    void *y;              /* (R, C) */
    float *mean, *rstd;   /* (R), kept for the backward pass; NORM_RMS does not use `mean` */
};
void ops_add_norm(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                  const struct add_norm *a);
/* Recompute y from the saved sum, mean and rstd: the same bits as from ops_add_norm. */
struct norm_apply {
    const void *sum, *weight, *bias; /* (R, C), (C), (C) or NULL */
    const float *mean, *rstd;        /* (R) */
    void *y;                         /* (R, C) */
};
void ops_norm_apply(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                    const struct norm_apply *a);
/* dsum_out = dsum + gradient through the norm. The column sums dsum_columns and out_columns are the
 * gradients of biases that were added to `sum` and to its sources. All sums over rows run over
 * fixed blocks of rows in a fixed order, whichever of them are requested. */
struct norm_backward {
    const void *dy, *sum, *weight; /* (R, C), (R, C), (C) */
    const float *mean, *rstd;      /* (R) */
    const void *dsum;              /* (R, C) or NULL: 0 */
    void *dsum_out;                /* (R, C); may be `dsum` or `dy` */
    void *dweight, *dbias;         /* (C) or NULL */
    void *dsum_columns;            /* (C) or NULL: column sums of dsum as it was read */
    void *out_columns;             /* (C) or NULL: column sums of dsum_out as it is written */
    void *scratch;                 /* ops_norm_scratch bytes */
};
void ops_norm_backward(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                       const struct norm_backward *a);
size_t ops_norm_scratch(const struct ops *ops, struct norm n, int64_t rows);
void ops_add(struct ops *ops, struct stream *stream, int64_t count, const void *a, const void *b,
             void *sum);

/* RMS norms of the queries and keys in the rows of qkv (R, (H + 2G) D), whose values stay as they
 * are. Each head has a norm of its own, with one weight (D) for the queries and one for the keys;
 * or all query heads have one norm, with a weight (H D), and so do all key heads (G D). In the
 * latter case the heads may be on several ranks: between the two calls of a pass, the caller adds
 * the sums of all ranks. */
struct head_rms {
    int64_t rows, heads, kv_heads, head_width; /* R H G D */
    int64_t whole;                             /* 0: each head has a norm; else the query heads of
                                                  all ranks, which have one */
    double eps;
    double offset; /* added to the weights */
};
static inline int64_t ops_head_groups(struct head_rms n) /* S: norms in a row */
{
    return n.whole ? 2 : n.heads + n.kv_heads;
}
/* sums (R, S): of x^2, or with dy of dy weight x. */
struct head_sums {
    const void *x;     /* without dy: qkv; with dy: as head_rms_forward kept it */
    const void *dy;    /* (R, (H + 2G) D) or NULL */
    const void *q, *k; /* weights; unused without dy */
    double *sums;
};
void ops_head_sums(struct ops *ops, struct stream *stream, struct head_rms n,
                   const struct head_sums *a);
/* x = x / rms(x) (weight + offset), in place. */
struct head_rms_forward {
    const void *q, *k;     /* weights */
    const double *squares; /* (R, S) from ops_head_sums */
    void *kept;            /* (R, (H + G) D) or NULL: x before it is changed, for backward */
    void *qkv;
};
void ops_head_rms(struct ops *ops, struct stream *stream, struct head_rms n,
                  const struct head_rms_forward *a);
/* The gradient of x, in place, and those of the weights. */
struct head_rms_backward {
    const void *q, *k;            /* weights */
    const double *squares, *dots; /* (R, S): of the forward pass; from ops_head_sums with dy */
    const void *kept;             /* (R, (H + G) D) */
    void *dqkv;                   /* (R, (H + 2G) D) */
    void *dq, *dk;                /* gradients of the weights, or NULL */
    void *scratch;                /* ops_head_rms_scratch bytes */
};
void ops_head_rms_backward(struct ops *ops, struct stream *stream, struct head_rms n,
                           const struct head_rms_backward *a);
size_t ops_head_rms_scratch(const struct ops *ops, struct head_rms n);

/* --- activations ---------------------------------------------------------------------------- */
void ops_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
              void *y); /* tanh form */
void ops_gelu_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                       const void *dy, void *dpre /* may be dy */);
/* The exact form, x (1 + erf(x / sqrt(2))) / 2. */
void ops_gelu_exact(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                    void *y);
void ops_gelu_exact_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                             const void *dy, void *dpre /* may be dy or pre */);
/* gate_up (R, 2F): gate in the first F columns, up in the last; y = silu(gate) * up, (R, F) */
void ops_swiglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                const void *gate_up, void *y);
/* With `act` (R, F), also recomputes y with the bits of ops_swiglu, so that y need not be kept. */
void ops_swiglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                         const void *gate_up, const void *dy, void *dgate_up /* may be gate_up */,
                         void *act /* or NULL; may be dy */);

/* The same with y = gelu(gate) * up, in tanh form. */
void ops_geglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
               const void *gate_up, void *y);
void ops_geglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                        const void *gate_up, const void *dy, void *dgate_up, void *act);
/* x = factor x, in place */
void ops_scale(struct ops *ops, struct stream *stream, int64_t count, double factor, void *x);

/* --- attention ------------------------------------------------------------------------------ */
struct attention {
    int64_t batch, tokens, heads, kv_heads, head_width; /* B T H G D */
    int64_t window; /* keys that a query sees: its own and window - 1 before it; 0: all of them */
    int64_t rotary; /* columns of a head that rope rotates, the first ones; 0: all of them */
    double scale;   /* of the scores q . k; 0: 1 / sqrt(D) */
    double cap;     /* scaled scores become cap tanh(score / cap); 0: they stay as they are */
};
/* An initializer with everything else as usual. */
#define OPS_HEADS(b, t, h, g, d)                                                      \
    {                                                                                 \
        .batch = (b), .tokens = (t), .heads = (h), .kv_heads = (g), .head_width = (d) \
    }
/* The number of positions before the first row of a call: `count`, or, if `at` is not NULL, the
 * value that it points to in device memory when the work runs. The latter is for work that is
 * recorded once and replayed (device.h); `count` is then the current value. */
struct past {
    int64_t count;
    const int64_t *at;
};
/* Rotate-half RoPE in place on the query and key columns of qkv (B, T, (H + 2G) D): of the N rotary
 * columns of a head, pairs (i, i + N/2). table (positions, N/2, 2) holds cos and sin, both times a
 * factor where a model has one; row t of a sequence uses table row past + t. `inverse` multiplies by
 * the transposed matrices: the backward pass, which rotates back. */
void ops_rope(struct ops *ops, struct stream *stream, struct attention a, const float *table,
              struct past past, bool inverse, void *qkv);
/* Causal softmax(scale q k^T) v, with the scores capped and each query's past cut off as struct
 * attention says. qkv (B, T, (H + 2G) D): all query heads, then key heads, then value heads; query
 * head h reads key head h / (H / G). out (B, T, H D); lse (B, H, T): log of the softmax's
 * denominator. The T x T matrix is never stored. */
void ops_attention(struct ops *ops, struct stream *stream, struct attention a, const void *qkv,
                   void *out, float *lse, void *scratch);
/* Gradient of the attention's qkv. The score of a query that sees one key has no gradient: in every
 * back end the dq of the first query of a sequence, or of every query with a window of 1, is
 * exactly 0 (of either sign), and it adds exactly 0 to dk. */
struct attention_backward {
    const float *rope;     /* the table that rotated qkv, at past 0: dq and dk are rotated back, and
                              dqkv is the gradient of what ops_rope was given; NULL: no rotation */
    const void *qkv, *out; /* as for ops_attention */
    const float *lse;
    const void *dout; /* (B, T, H D) */
    void *dqkv;       /* (B, T, (H + 2G) D) */
    void *dbias;      /* ((H + 2G) D) or NULL: column sums of dqkv, the gradient of a bias that was
                         added to every row; a GPU may sum values before they are rounded */
    void *scratch;    /* ops_attention_scratch bytes */
};
void ops_attention_backward(struct ops *ops, struct stream *stream, struct attention a,
                            const struct attention_backward *b);
size_t ops_attention_scratch(const struct ops *ops,
                             struct attention a); /* bytes, for forward and backward */
/* Decoding: a.tokens new positions after `past` earlier ones. Their keys and values are first
 * stored in the cache, at rows past .. past + T - 1; then each position attends to the rows of its
 * window, up to its own. Other rows are not read. */
struct attention_cached {
    struct past past;
    int64_t room;            /* rows of the cache for one sequence */
    const void *qkv;         /* (B, T, (H + 2G) D) */
    void *cache_k, *cache_v; /* (B, room, G D) */
    void *out;               /* (B, T, H D) */
    void *scratch;           /* ops_attention_scratch bytes */
};
void ops_attention_cached(struct ops *ops, struct stream *stream, struct attention a,
                          const struct attention_cached *c);

/* --- embedding and loss --------------------------------------------------------------------- */
struct embedding {
    int64_t batch, tokens, width, vocab; /* B T C V */
    int64_t positions;                   /* rows of wpe; 0: no wpe */
    /* The table may be a part of a larger one: its rows are the tokens first_id .. first_id + vocab
     * - 1 of id_count tokens in all (0: the table is complete). Other tokens give rows of zeros and
     * have no gradient. */
    int64_t first_id, id_count;
    bool wte_bf16; /* wte is in bf16, whatever the compute type: see ops_takes_bf16 */
};
/* out (B, T, C) = wte[token] + wpe[past + t]; wpe may be NULL */
void ops_embedding(struct ops *ops, struct stream *stream, struct embedding e,
                   const int32_t *tokens, const void *wte, const void *wpe, struct past past,
                   void *out);
/* dwte (V, C) and dwpe (positions, C) are overwritten completely; rows of dout are added in
 * order. Either may be NULL. */
void ops_embedding_backward(struct ops *ops, struct stream *stream, struct embedding e,
                            const int32_t *tokens, const void *dout, void *dwte, void *dwpe,
                            void *scratch);
size_t ops_embedding_scratch(const struct ops *ops, struct embedding e);
/* Rows of logits (R, V), or of the V columns that a rank holds: the tokens from first_id. */
struct logits {
    int64_t vocab;    /* V */
    int64_t stride;   /* elements from one row to the next; 0: V */
    int64_t first_id; /* 0 in ops_cross_entropy */
    double cap;       /* a logit counts as cap tanh(logit / cap); 0: as it is */
};
/* losses[r] = -log softmax(logits[r])[labels[r]], 0 where the label is -1. With `gradient`, logits
 * become (softmax - onehot) * scalars->loss_scale (0 for a row whose label is -1), times the slope
 * of the cap; otherwise they are not changed. */
struct cross_entropy {
    const int32_t *labels; /* (R) */
    bool gradient;
    const struct step_scalars *scalars; /* may be NULL without `gradient` */
    void *logits;                       /* (R, V) */
    double *losses;                     /* (R) */
};
void ops_cross_entropy(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                       const struct cross_entropy *a);
/* The same in two halves, for ranks that hold some columns of the logits each. The first half
 * describes these columns in parts (R, 3): for each row the largest logit (after the cap, as in all
 * that follows), the sum of exp(logit - largest), and the label's logit (0 where the label is not
 * among these columns). The second half
 * joins the parts of all ranks, (ranks, R, 3), in rank order: losses as above, with the same bits
 * on every rank, and with `gradient` that of these columns, in place. */
enum { OPS_LOSS_PART = 3 };
void ops_cross_entropy_part(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            const int32_t *labels, const void *logits, double *parts);
void ops_cross_entropy_join(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            int ranks, const double *parts, const struct cross_entropy *a);
/* x = cap tanh(x / cap): logits as the loss sees them, for decoding */
void ops_softcap(struct ops *ops, struct stream *stream, int64_t count, double cap, void *x);
/* *sum = the sum of all values in the order of a binary tree: pairs of neighbours, then pairs of
 * these sums, and so on; a value without a neighbour moves up unchanged. No values: 0. */
void ops_sum(struct ops *ops, struct stream *stream, int64_t count, const double *values,
             double *sum);
/* sums[i] = ops_sum of values[i << level] .. values[((i + 1) << level) - 1]. `count` is a multiple
 * of 1 << level. */
void ops_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                   const double *values, double *sums);

/* --- routing: layers that choose their neurons for each token (SARS) -------------------------- */

/* A routed layer has K groups of C neurons (q, k and v of a block: K = 3), which all read the input
 * x (R, I). Everything below that looks at several neurons looks at those of one group. MAS(v)[j] =
 * v[j] / (max |v| + 1e-9), with its sign. */
struct routing {
    int64_t in, groups, width; /* I K C; C is at most OPS_ROUTE_WIDTH */
    bool minus;                /* ops_route_backward: z = logits - G instead of logits + G */
    bool standardise; /* ops_route_backward: z has (G - mean) / sqrt(variance + 1e-5) in place of G,
                         both over the C neurons, the variance with divisor C */
};
enum { OPS_ROUTE_WIDTH = 16384 };

/* cost (K, C) = MAS(gate), gate (K, C). */
void ops_mas(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
             const void *gate, void *cost);
/* dgate (K, C). Of equal largest |gate|, the first counts; at 0 the largest has no slope. */
void ops_mas_backward(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
                      const void *gate, const float *dcost /* (K, C) */, void *dgate);
/* logits = match / sqrt(I) - cost; out = silu(pre) where logits > 0, else 0. The factor is rounded
 * to float. The mask is that of the rounded logits, which are kept for the backward pass. */
struct route {
    const void *pre;   /* (R, K, C) x times the weights, plus bias */
    const void *match; /* (R, K, C) x times the prototypes */
    const void *cost;  /* (K, C) */
    void *logits;      /* (R, K, C); may be `match` */
    void *out;         /* (R, K, C) */
};
void ops_route(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
               const struct route *a);
/* Both phases of the backward pass, with the mask as a constant.
 *
 *     dpre = dout silu'(pre) where logits > 0, else 0
 *     G = MAS(|dout|) (MAS(logits) - MAS(|dout| |x|)), |x| the Euclidean norm of the row of x
 *     p = softmax(z), z = logits + G; H = - sum of p log(p + 1e-9)
 *     dmatch = weight dH / d match, with G as a constant
 *
 * The sums over rows run over fixed blocks of rows in a fixed order. */
struct route_backward {
    const void *x;            /* (R, I) */
    const void *dout;         /* (R, K, C) the gradient of `out`, also where the mask is 0 */
    const void *pre, *logits; /* (R, K, C) */
    float weight;             /* of the entropy H of one row and group in the second loss */
    void *dpre;               /* (R, K, C); may be `dout` or `pre` */
    void *dmatch;             /* (R, K, C); may be `logits` */
    float *goodness;          /* (K, C) sums of G over the rows */
    float *active;            /* (K, C) number of rows with logits > 0 */
    float *dcost;             /* (K, C) gradient of the cost: minus the sums of weight dH/dlogits */
    float *entropy;           /* (K) sums of H over the rows */
    void *scratch;            /* ops_route_scratch bytes */
};
void ops_route_backward(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
                        const struct route_backward *a);
size_t ops_route_scratch(const struct ops *ops, struct routing n, int64_t rows);
/* The gate, on a flat range of the gradient of a tensor (rows, columns): elements of rows whose
 * goodness is not above 0 become 0, then all are clamped to -limit .. limit. A value that is not
 * finite stays as it is, wherever it is, so that ops_find_nonfinite finds it. The bits are the same
 * in every back end. */
struct gate_rows {
    int64_t first, count;  /* the range, which may begin and end inside a row */
    int64_t columns;       /* 0 without goodness */
    const float *goodness; /* (rows) or NULL: all rows are kept */
    float limit;           /* above 0; INFINITY: no clamping */
    void *x;               /* (count) from element `first` of the tensor; f32, bf16 or f16 */
};
void ops_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                   const struct gate_rows *a);

/* --- flat ranges: the store's arithmetic, with types of their own ---------------------------- */

void ops_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count);
/* For each range: sums[b] = sum of squares of elements 64 b .. 64 b + 63 in double (the last block
 * may be short: zeros follow). Four elements are added in order, starting from 0, then sixteen such
 * sums as a tree: pairs of neighbours, and so on; so the bits are the same in every back end. x has
 * the given type, f32, bf16 or f16; equal values give equal bits in all three. `ranges` is in host
 * memory and is read before the call returns. */
struct square_range {
    const void *x;
    int64_t count;
    double *sums;
};
void ops_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                     const struct square_range *ranges, int range_count);
/* *first = index of the first element that is not finite, or -1; `type` as above. */
void ops_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first);

/* Counts the changes of the last bits that the cpu back end computes. 2: AdamW divides exactly, and
 * the norm adds in another order. 3: attention's first query adds no rounding to dq and dk. 4: our
 * own kernels for products and attention; a head has at least 512 rows in a chunk. 5: query heads
 * that share a key head sum dk and dv one by one. */
enum { OPS_ARITHMETIC = 5 };

/* --- updates: what an optimizer does to its segments of the parameters ------------------------ */

/* In all rules g = grad * grad_scale, rate = lr * lr_mul, and all is computed in f32, one rounded
 * operation after the other, except that 1 - b is formed in double and rounded once: 1 - 0.999f
 * would be off by 1e-5. The bits are the same in every back end.
 *
 *     adamw    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
 *              p -= rate (m / correction1 / (sqrt(v / correction2) + eps) + decay p)
 *     adamw8   the same; m and v are kept as 8-bit codes (ops_code8.h)
 *     sgd      g += decay p; m = b1 m + g; p -= rate (nesterov ? g + b1 m : m), as in PyTorch;
 *              without m: p -= rate g
 *     muon     m = b1 m + (1 - b1) g; copy = nesterov ? b1 m + (1 - b1) g : m. The direction, to be
 *              orthogonalized; p is not changed
 *     apply    p -= rate (scale grad + decay p), where grad is the direction of a muon segment
 */
enum update_rule {
    UPDATE_ADAMW,
    UPDATE_ADAMW8,
    UPDATE_SGD,
    UPDATE_MUON,
    UPDATE_APPLY,
    UPDATE_RULES
};
const char *update_word(enum update_rule rule); /* "adamw" */

struct update {
    enum update_rule rule;
    double beta1, beta2, eps;
    bool nesterov;
    const struct update_location *locations; /* (segments) in device memory: 16-bit copies of params
                                                are rounded stochastically; NULL: to nearest */
    int64_t number; /* of this update, from which the random bits are derived */
};
/* Where a segment's elements are in their whole tensor. The random bits depend on it: copy =
 * round(param, rng_word(key, ops_whole_element(location, i), number)), with the rounding of
 * base/dtype.h. This rank's part of the tensor consists of runs of consecutive elements, all of the
 * same length; or the first is `lead` times as long as the others, which begins at lead * start. */
struct update_location {
    uint64_t key;              /* of a struct rng: seed and tensor */
    int64_t first;             /* index of the segment's first element in this rank's part */
    int64_t run, apart, start; /* elements of a run; distance between the starts of two runs in the
                                  whole tensor; start of the first run */
    int64_t lead;              /* 0 means 1 */
};
static inline int64_t ops_whole_element(const struct update_location *l, int64_t i)
{
    int64_t local = l->first + i;
    if (l->lead > 1 && local < l->lead * l->run)
        return l->lead * l->start + local;
    return local / l->run * l->apart + l->start + local % l->run;
}
struct update_segment {
    int64_t count;
    float *param; /* fp32 master; muon: not used */
    void *copy;   /* the parameter rounded to copy_type, or NULL; muon: the direction */
    enum dtype copy_type, grad_type; /* of grad: f32, bf16 or f16 */
    const void *grad;
    void *m, *v; /* adamw: float; adamw8: codes of one byte; sgd: float m, or NULL; muon: float m */
    uint8_t *m_scale, *v_scale; /* adamw8: one per block of the segment */
    int64_t first;              /* adamw8: index of the first element in its tensor */
    uint32_t key;               /* adamw8: of the tensor, for the rounding of v */
    int skip;                   /* adamw8: elements of the first block before the first element */
    float lr_mul, decay;        /* decay: 0 = none */
    float scale;                /* apply */
};
/* `scalars` and `segments` are in device memory. On a dry device they cannot be read, so the
 * call takes no time: the caller describes the update to ops_spend. */
void ops_update(struct ops *ops, struct stream *stream, const struct update *update,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count);
/* The same on host memory, by `threads` threads of the CPU: done when it returns, on any thread,
 * whatever the device is. */
void ops_update_on_host(int threads, const struct update *update,
                        const struct step_scalars *scalars, const struct update_segment *segments,
                        int segment_count);

/* x (rows, columns), of the compute type, becomes roughly the nearest matrix whose singular values
 * are all 1: x / |x|, then five Newton-Schulz iterations x = a x + (b A + c A^2) x with A = x x^T,
 * a = 3.4445, b = -4.7750, c = 2.0315; with rows > columns on the other side, x = x (...). The
 * singular values end between 0.7 and 1.2. Zeros stay zeros. */
void ops_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                       void *x, void *scratch);
size_t ops_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns); /* bytes */

/* --- the cpu back end on this machine ------------------------------------------------------- */

/* Upper bound of the address space of one OpenBLAS buffer (cpu_blas.c). */
#define OPS_BLAS_BUFFER_BYTES ((size_t)129 << 20)

/* What it was built with and runs on, for `sifr doctor` and the fingerprint of a run. */
struct ops_info {
    const char *blas;          /* "OpenBLAS 0.3.21 DYNAMIC_ARCH ...", as the library reports it */
    const char *core;          /* the CPU type whose kernels the BLAS chose: "NEOVERSEV1" */
    const char *flavour;       /* threading of the BLAS library: "openmp", "pthread" or "serial" */
    const char *kernels;       /* the set that the next three are from, as in run.kernels: "avx2" */
    const char *vectors;       /* instructions of the loops besides products: "NEON", "AVX2" */
    const char *products;      /* kernel of our own for products: "AVX-512", or "OpenBLAS" */
    const char *bf16_products; /* the one for operands rounded to bf16: "AMX"; "": none */
    const char *note;          /* why a faster kernel is not used; "": none is known */
    int openmp;                /* year and month of the OpenMP version: 201511 */
};

void ops_cpu_info(struct ops_info *info); /* the strings live as long as the process */
/* Use the named set of kernels on the CPU, in the whole process; "auto": the fastest. Refuses names
 * of sets that do not run here, and another set while ops are open. */
enum status ops_cpu_use(struct env *env, const char *name);

/* --- calls described -------------------------------------------------------------------------- */

/* A call as the name of an op and a shape, for prices, tests and benchmarks. Only the fields that
 * the op reads are set. */
struct ops_case {
    const char *op; /* "linear_dw" */
    int64_t rows;   /* linear, norm, swiglu, cross_entropy, orthogonalize, route */
    struct linear linear;
    struct norm norm;
    struct attention attention; /* rope, attention */
    struct embedding embedding;
    struct routing routing; /* route; mas: without `in` */
    int64_t count;          /* add, gelu, softcap, flat ranges */
    int64_t width;          /* swiglu: F; cross_entropy: V; orthogonalize, gate_rows: columns;
                               head_rms: heads under one norm */
    int64_t stride;         /* cross_entropy: of the logits, 0: V */
    int64_t first;          /* rope, embedding, gate_rows */
    int64_t past, room;     /* attention_cached */
    bool at;                /* rope, embedding, attention_cached: past is read from device memory */
    double cap;             /* cross_entropy, softcap */
    int level;              /* tree_sums: each sum is over 1 << level values */
    int64_t bad;            /* find_nonfinite: index of an infinity, NaN after it; -1: all finite */
    enum dtype from, to;    /* cast; updates: gradient and copy, F32 = no copy; square_sums,
                               find_nonfinite, gate_rows: `from` */
    bool bias, branch, add; /* linear, norm: whether there is one; linear_dw: add to dw;
                               attention_backward: bias = column sums */
    bool act;               /* swiglu_backward: also recompute y; linear_swiglu: compute act */
    bool columns;           /* norm_backward: column sums of dsum and dsum_out */
    bool random;            /* updates: the copy is rounded stochastically */
    bool momentum;          /* sgd: there is one */
    bool nesterov;          /* sgd, muon */
    bool zeros; /* route_backward: every third row of dout is 0, the others are tiny; mas: all of
                   the gate is 0 */
    bool ties;  /* mas: the elements of the gate differ in their signs only */
};

#endif
