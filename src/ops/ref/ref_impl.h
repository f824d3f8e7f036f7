/* ref_impl -- what the files of the reference share: scalar functions in double, and the slots that
 * do not depend on the compute type. */
#ifndef OPS_REF_REF_IMPL_H
#define OPS_REF_REF_IMPL_H
#include <math.h>
#include "ops/ops_impl.h"

/* The reference runs immediately on the caller's thread, so its slots do not use `ops` and
 * `stream`. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define REF_GELU_CUBE 0.044715
#define REF_GELU_RATE 0.79788456080286535588 /* sqrt(2 / pi) */

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
static inline double ref_gelu(double x)
{
    return 0.5 * x * (1 + tanh(REF_GELU_RATE * (x + REF_GELU_CUBE * x * x * x)));
}

static inline double ref_gelu_slope(double x)
{
    double t = tanh(REF_GELU_RATE * (x + REF_GELU_CUBE * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * REF_GELU_RATE * (1 + 3 * REF_GELU_CUBE * x * x);
}

static inline double ref_gelu_exact(double x)
{
    return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
}

static inline double ref_gelu_exact_slope(double x)
{
    return 0.5 * (1 + erf(x * 0.70710678118654752440)) +
           x * exp(-0.5 * x * x) * 0.39894228040143267794;
}

/* x, rounded once to `type` */
static inline float ref_rounded(double x, enum dtype type)
{
    double number; /* room for any type */
    float rounded;
    dtype_convert(&number, type, &x, DTYPE_F64, 1);
    dtype_convert(&rounded, DTYPE_F32, &number, type, 1);
    return rounded;
}

static inline double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* silu(gate) up */
static inline double ref_gated(double gate, double up)
{
    return gate * ref_sigmoid(gate) * up;
}

/* cap tanh(x / cap); cap 0: x. And the slope where that is y. */
static inline double ref_softcap(double cap, double x)
{
    return cap > 0 ? cap * tanh(x / cap) : x;
}

static inline double ref_softcap_slope(double cap, double y)
{
    return cap > 0 ? 1 - y / cap * (y / cap) : 1;
}

/* 16-bit compute types */
struct ref_bf16 {
    uint16_t bits;
};
struct ref_f16 {
    uint16_t bits;
};

static inline float ref_from_bf16(struct ref_bf16 value)
{
    return bf16_to_f32(value.bits);
}

static inline struct ref_bf16 ref_to_bf16(float value)
{
    return (struct ref_bf16){f32_to_bf16(value)};
}

static inline float ref_from_f16(struct ref_f16 value)
{
    return f16_to_f32(value.bits);
}

static inline struct ref_f16 ref_to_f16(float value)
{
    return (struct ref_f16){f32_to_f16(value)};
}

struct ref_statistics { /* of one row of a norm */
    double mean, rstd;
};

struct ref_loss_row { /* of a whole row of logits, joined from the parts of all ranks */
    double largest, denominator, wanted;
};

static inline struct ref_loss_row ref_join_row(int64_t rows, int64_t r, int ranks,
                                               const double *parts)
{
    struct ref_loss_row row = {-INFINITY, 0, 0};
    const int64_t stride = rows * OPS_LOSS_PART;
    const double *part = parts + r * OPS_LOSS_PART; /* largest, sum, wanted */
    for (int k = 0; k < ranks; k++)
        row.largest = part[k * stride] > row.largest ? part[k * stride] : row.largest;
    for (int k = 0; k < ranks; k++) {
        row.denominator += part[k * stride + 1] * exp(part[k * stride] - row.largest);
        row.wanted += part[k * stride + 2];
    }
    return row;
}

/* silu'(x) */
static inline double ref_silu_slope(double x)
{
    double s = ref_sigmoid(x);
    return s * (1 + x * (1 - s));
}

/* Sums over rows in ops_route_backward, and buffers for one group of neurons. */
struct ref_route {
    double *goodness, *active, *dcost; /* (K, C) */
    double *entropy;                   /* (K) */
    double *z, *slope;                 /* (C) */
};
/* g = (g - mean) / (deviation + eps) */
void ref_standardise(int64_t width, double *g);
/* Returns H of softmax(z), and in slope dH/dz. */
double ref_entropy(int64_t width, const double *z, double *slope);

/* ref_flat.c */
void ref_sum(struct ops *ops, struct stream *stream, int64_t count, const double *values,
             double *sum);
void ref_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                   const double *values, double *sums);
void ref_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count);
void ref_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                     const struct square_range *ranges, int range_count);
void ref_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first);
void ref_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                   const struct gate_rows *a);
float ref_element(const void *x, enum dtype type, int64_t i); /* f32, bf16 or f16 */
/* ref_update.c */
void ref_update(struct ops *ops, struct stream *stream, const struct update *update,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count);
void ref_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                       void *x, void *scratch);
size_t ref_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns);

#endif
