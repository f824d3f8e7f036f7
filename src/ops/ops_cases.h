/* ops_cases -- one description of every op: its tensors, their random values, its call, its cost.
 *
 * The tests (agreement with ref, finite differences, equal bits), prices and timing (`sifr bench`)
 * all use it, so an op is described once. Describing a case (struct ops_case) lists its tensors in
 * a struct ops_call; ops_trial.h allocates them and runs the op. A tensor that is not listed is
 * NULL.
 */
#ifndef OPS_OPS_CASES_H
#define OPS_OPS_CASES_H
#include "ops/ops.h"

enum ops_role { OPS_IN, OPS_OUT, OPS_IN_OUT, OPS_SCRATCH };

/* How the values of an input are drawn. All are floats first, the same for every compute type. */
enum ops_draw {
    OPS_NORMAL,   /* mean `center`, standard deviation `scale` */
    OPS_SQUARES,  /* squares of OPS_NORMAL: AdamW's v */
    OPS_CONSTANT, /* `center` */
    OPS_BELOW,    /* `bound` integers from `center` on: tokens */
    OPS_LABELS,   /* the same, with about one in five -1; never all -1 */
    OPS_ANGLES,   /* pairs cos, sin of random angles */
    OPS_SCALARS,  /* a struct step_scalars */
    OPS_SIGNS,    /* `scale` or minus `scale` */
    OPS_ROWS,     /* normal; every third run of `bound` values is 0 */
    OPS_NONFINITE /* normal, infinity at `bound`, NaN after it; bound -1: all finite */
};

struct ops_tensor {
    const char *name;
    enum ops_role role;
    enum dtype type;
    int64_t count;         /* elements, with those between rows; bytes of scratch */
    int64_t width, stride; /* of rows with a stride; stride 0: dense */
    enum ops_draw draw;
    double center, scale;
    int64_t bound;
    const char *cogradient_of; /* before the call: dL / d this output of the forward op */
    const char *gradient_of;   /* after the call: dL / d this input of the forward op */
    const char *may_be[2];     /* outputs: inputs that it may overwrite */
    void *data;                /* set by ops_trial */
};

#define OPS_LOSS_SCALE 0.375f /* loss_scale of OPS_SCALARS */

/* Of the entropies in route_backward; with the width, so that slopes do not underflow in f16. */
#define OPS_ROUTE_WEIGHT(width) (0.25f * (float)(width))

/* Of an update's two segments, for stochastic rounding. */
extern const struct update_location ops_update_locations[2];
#define OPS_UPDATE 3

enum { OPS_CALL_TENSORS = 14 };

struct ops_call {
    struct ops_tensor tensors[OPS_CALL_TENSORS];
    int count;
    double flops; /* multiplications and additions; a transcendental function counts as one */
};

struct ops_op {
    const char *name;
    /* The op whose tensors of the same name are inputs of this one, with the outputs that it
     * computed. This op's gradients are gradients of that op. May be NULL. */
    const char *forward;
    double bound; /* of ||a - b|| / ||b|| against ref in f64, for a back end in f32 */
    void (*describe)(const struct ops *ops, const struct ops_case *c, struct ops_call *call);
    void (*run)(struct ops *ops, struct stream *stream, const struct ops_case *c,
                const struct ops_call *call);
};

extern const struct ops_op ops_ops[];
extern const int ops_op_count;

const struct ops_op *ops_find_op(const char *name); /* CHECKs that it exists */
const struct ops_tensor *ops_find_tensor(const struct ops_call *call,
                                         const char *name); /* NULL: not listed */
/* Elements without those between rows; and whether element i is one of the latter. */
static inline int64_t ops_value_count(const struct ops_tensor *t)
{
    return t->stride > 0 ? t->count / t->stride * t->width : t->count;
}
static inline bool ops_is_between(const struct ops_tensor *t, int64_t i)
{
    return t->stride > 0 && i % t->stride >= t->width;
}
double ops_call_bytes(const struct ops_call *call); /* read and written, without scratch */
enum { OPS_CASE_NAME = 160 };
/* Writes "linear_dw R7 13x5 [in][out] add" to out (OPS_CASE_NAME bytes) and returns it. */
char *ops_case_name(const struct ops_case *c, char *out);

#endif
