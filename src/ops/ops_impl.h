/* ops_impl -- the slots of an ops back end; for src/ops only. There is one slot for each face in
 * ops/ops.h, with the same contract and arguments, except that a stride is never 0. Those before
 * `linear` may be empty. */
#ifndef OPS_OPS_IMPL_H
#define OPS_OPS_IMPL_H
#include <math.h>
#include "ops/ops.h"

struct ops_backend {
    const char *name;
    bool (*supports)(enum dtype type);
    /* It computes on host memory: it runs on the devices cpu and dry. */
    bool on_host;
    /* Acquire what the back end needs (BLAS threads, library handles: ops->state). Not called on a
     * dry device. NULL: nothing to do. */
    enum status (*open)(struct ops *ops);
    void (*close)(struct ops *ops); /* NULL: nothing to do */
    /* Logits that a head should compute at a time: more rows make products faster and cost
     * memory. */
    int64_t chunk_logits;
    bool (*takes_bf16)(const struct ops *); /* ops_takes_bf16; NULL: never */
    int64_t row_bytes;      /* rows of logits should start at multiples of this; 0: anywhere */
    size_t workspace_bytes; /* of ops->workspace; also allocated on a dry device, for `plan` */

    /* Whether linear_gelu applies gelu to sums before they are rounded, so that ops_gelu(pre) has
     * other bits. NULL: no. */
    bool (*gelu_of_sums)(const struct ops *);

    /* Products with SwiGLU, from (R, K) to gate and up, (R, F) each, or with `backward` to their
     * gradients, without a bias and with dense rows: whether the next two slots compute this shape.
     * Also asked on a dry device. NULL: no; the faces then call other ops. */
    bool (*takes_swiglu)(const struct ops *, int64_t rows, int64_t depth, int64_t ff,
                         bool backward);
    /* False: the buffers are not aligned, and nothing was done. */
    bool (*linear_swiglu)(struct ops *, struct stream *, struct linear, int64_t,
                          const struct linear_swiglu *);
    bool (*linear_dx_dswiglu)(struct ops *, struct stream *, struct linear, int64_t,
                              const struct linear_dx_dswiglu *);

    void (*linear)(struct ops *, struct stream *, struct linear, int64_t, const void *,
                   const void *, const void *, void *);
    void (*linear_gelu)(struct ops *, struct stream *, struct linear, int64_t,
                        const struct linear_gelu *);
    void (*linear_dx)(struct ops *, struct stream *, struct linear, int64_t, const void *,
                      const void *, void *);
    void (*linear_dx_dgelu)(struct ops *, struct stream *, struct linear, int64_t,
                            const struct linear_dx_dgelu *);
    void (*linear_dw)(struct ops *, struct stream *, struct linear, int64_t,
                      const struct linear_dw *);
    /* Whether linear_dw_sum is called for the sake of speed. NULL: never. */
    bool (*sums_dw)(const struct ops *, struct linear, int64_t, enum dtype, bool);
    /* NULL: by other calls. Only called where sums_dw is true, or NULL. */
    void (*linear_dw_sum)(struct ops *, struct stream *, struct linear, int64_t,
                          const struct linear_dw_sum *);
    void (*add_norm)(struct ops *, struct stream *, struct norm, int64_t, const struct add_norm *);
    void (*norm_apply)(struct ops *, struct stream *, struct norm, int64_t,
                       const struct norm_apply *);
    void (*norm_backward)(struct ops *, struct stream *, struct norm, int64_t,
                          const struct norm_backward *);
    size_t (*norm_scratch)(const struct ops *, struct norm, int64_t);
    void (*head_sums)(struct ops *, struct stream *, struct head_rms, const struct head_sums *);
    void (*head_rms)(struct ops *, struct stream *, struct head_rms,
                     const struct head_rms_forward *);
    void (*head_rms_backward)(struct ops *, struct stream *, struct head_rms,
                              const struct head_rms_backward *);
    size_t (*head_rms_scratch)(const struct ops *, struct head_rms);
    void (*add)(struct ops *, struct stream *, int64_t, const void *, const void *, void *);
    void (*gelu)(struct ops *, struct stream *, int64_t, const void *, void *);
    void (*gelu_backward)(struct ops *, struct stream *, int64_t, const void *, const void *,
                          void *);
    void (*gelu_exact)(struct ops *, struct stream *, int64_t, const void *, void *);
    void (*gelu_exact_backward)(struct ops *, struct stream *, int64_t, const void *, const void *,
                                void *);
    void (*swiglu)(struct ops *, struct stream *, int64_t, int64_t, const void *, void *);
    void (*swiglu_backward)(struct ops *, struct stream *, int64_t, int64_t, const void *,
                            const void *, void *, void *);
    void (*geglu)(struct ops *, struct stream *, int64_t, int64_t, const void *, void *);
    void (*geglu_backward)(struct ops *, struct stream *, int64_t, int64_t, const void *,
                           const void *, void *, void *);
    void (*scale)(struct ops *, struct stream *, int64_t, double, void *);
    void (*rope)(struct ops *, struct stream *, struct attention, const float *, struct past, bool,
                 void *);
    void (*attention)(struct ops *, struct stream *, struct attention, const void *, void *,
                      float *, void *);
    void (*attention_backward)(struct ops *, struct stream *, struct attention,
                               const struct attention_backward *);
    size_t (*attention_scratch)(const struct ops *, struct attention);
    /* For prices: the shape rounded up to the tiles that are computed. NULL: no rounding. */
    struct attention (*attention_tiles)(const struct ops *, struct attention);
    /* For prices: how many times as long an operation takes as at the machine's rate, which is that
     * of the fastest kernels. NULL: 1. */
    double (*attention_times)(const struct ops *, struct attention, bool backward);
    /* The same for a product (m, k) (k, n). NULL: 1. */
    double (*product_times)(int64_t m, int64_t n, int64_t k);
    void (*attention_cached)(struct ops *, struct stream *, struct attention,
                             const struct attention_cached *);
    void (*embedding)(struct ops *, struct stream *, struct embedding, const int32_t *,
                      const void *, const void *, struct past, void *);
    void (*embedding_backward)(struct ops *, struct stream *, struct embedding, const int32_t *,
                               const void *, void *, void *, void *);
    size_t (*embedding_scratch)(const struct ops *, struct embedding);
    void (*cross_entropy)(struct ops *, struct stream *, struct logits, int64_t,
                          const struct cross_entropy *);
    void (*cross_entropy_part)(struct ops *, struct stream *, struct logits, int64_t,
                               const int32_t *, const void *, double *);
    void (*cross_entropy_join)(struct ops *, struct stream *, struct logits, int64_t, int,
                               const double *, const struct cross_entropy *);
    void (*softcap)(struct ops *, struct stream *, int64_t, double, void *);
    void (*mas)(struct ops *, struct stream *, int64_t, int64_t, const void *, void *);
    void (*mas_backward)(struct ops *, struct stream *, int64_t, int64_t, const void *,
                         const float *, void *);
    void (*route)(struct ops *, struct stream *, struct routing, int64_t, const struct route *);
    void (*route_backward)(struct ops *, struct stream *, struct routing, int64_t,
                           const struct route_backward *);
    size_t (*route_scratch)(const struct ops *, struct routing, int64_t);
    void (*gate_rows)(struct ops *, struct stream *, enum dtype, const struct gate_rows *);
    void (*sum)(struct ops *, struct stream *, int64_t, const double *, double *);
    void (*tree_sums)(struct ops *, struct stream *, int64_t, int, const double *, double *);
    void (*cast)(struct ops *, struct stream *, void *, enum dtype, const void *, enum dtype,
                 int64_t);
    void (*square_sums)(struct ops *, struct stream *, enum dtype, const struct square_range *,
                        int);
    void (*find_nonfinite)(struct ops *, struct stream *, enum dtype, const void *, int64_t,
                           int64_t *);
    void (*update)(struct ops *, struct stream *, const struct update *,
                   const struct step_scalars *, const struct update_segment *, int);
    void (*orthogonalize)(struct ops *, struct stream *, int64_t, int64_t, void *, void *);
    size_t (*orthogonalize_scratch)(const struct ops *, int64_t, int64_t);
};

/* Group s of head_rms: its columns in a row of qkv, and what its sum is divided by. */
struct head_span {
    bool key;
    int64_t first, count;
    double total;
};
static inline struct head_span ops_head_span(struct head_rms n, int64_t s)
{
    int64_t query = n.heads * n.head_width, key = n.kv_heads * n.head_width;
    if (!n.whole)
        return (struct head_span){s >= n.heads, s * n.head_width, n.head_width,
                                  (double)n.head_width};
    double ranks = (double)n.whole / (double)n.heads;
    return s == 0 ? (struct head_span){false, 0, query, ranks * (double)query}
                  : (struct head_span){true, query, key, ranks * (double)key};
}
/* Elements of the weights of queries and of keys. */
static inline int64_t ops_head_weight(struct head_rms n, bool key)
{
    return n.whole ? (key ? n.kv_heads : n.heads) * n.head_width : n.head_width;
}

/* The factor of the scores q . k. */
static inline double ops_attention_scale(struct attention a)
{
    return a.scale > 0 ? a.scale : 1 / sqrt((double)a.head_width);
}
/* The first of the keys that the query at position `at` sees. */
static inline int64_t ops_first_key(struct attention a, int64_t at)
{
    return a.window > 0 && at >= a.window ? at - a.window + 1 : 0;
}
/* Whether the query at position `at` sees its own key only, so that its score has no gradient. */
static inline bool ops_sees_one(struct attention a, int64_t at)
{
    return ops_first_key(a, at) == at;
}
/* The pairs of a query and a key that it sees among the first `count` positions. */
static inline double ops_attention_pairs(struct attention a, int64_t count)
{
    double tokens = (double)count, window = (double)a.window;
    return a.window > 0 && a.window < count ? window * (tokens - (window - 1) / 2)
                                            : tokens * (tokens + 1) / 2;
}

/* What the faces know of a meter (ops_price.c). */
struct ops_meter {
    void (*spend)(struct ops *ops, struct stream *stream, const struct ops_case *c);
};

#define OPS_MAS_EPS         1e-9 /* of MAS, and under the logarithm of the entropy */
#define OPS_STANDARDISE_EPS 1e-5 /* added to the variance */
/* 1 / sqrt(I), the factor of the match: a float everywhere, so that all back ends have one mask. */
static inline float ops_route_scale(struct routing n)
{
    return (float)(1 / sqrt((double)n.in));
}

/* The iterations of ops_orthogonalize. */
enum { OPS_NEWTON_SCHULZ = 5 };
#define OPS_NEWTON_SCHULZ_A 3.4445
#define OPS_NEWTON_SCHULZ_B (-4.7750)
#define OPS_NEWTON_SCHULZ_C 2.0315

/* CHECKs one segment; for host back ends, which can read the table. */
void ops_check_segment(const struct update *update, const struct update_segment *segment);
/* Whether the copy of a segment is rounded stochastically. */
static inline bool ops_rounds_at_random(const struct update *update, const struct update_segment *s)
{
    return update->rule != UPDATE_MUON && update->locations && s->copy &&
           (s->copy_type == DTYPE_BF16 || s->copy_type == DTYPE_F16);
}

/* The back ends compiled in. ops_ref_fill fills the whole table, ops_cpu_fill overrides its
 * slots. */
void ops_ref_fill(struct ops_backend *table, enum dtype type);
void ops_cpu_fill(struct ops_backend *table);

/* The entry point of libsifr-cuda for ops: overrides every slot. */
#define OPS_CUDA_ENTRY "sifr_ops_cuda_fill"
typedef void ops_fill_fn(struct ops_backend *table);

#endif
