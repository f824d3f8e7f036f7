/* ops_cases -- one description of every op: its tensors, how they are drawn, its call, its cost.
 *
 * Agreement with ref, finite differences, equal bits and timing (`sifr bench`) all follow from
 * it, so that an op is described once. A case is an op's name and a shape; describing a case
 * lists its tensors (ops_call); ops_trial.h puts them into memory and runs them. A tensor that is
 * not listed is NULL.
 */
#ifndef OPS_OPS_CASES_H
#define OPS_OPS_CASES_H
#include "ops/ops.h"

enum ops_role { OPS_IN, OPS_OUT, OPS_IN_OUT, OPS_SCRATCH };

/* How an input is drawn. All values are floats, so that every compute type sees the same. */
enum ops_draw {
    OPS_NORMAL,   /* mean `center`, deviation `scale` */
    OPS_SQUARES,  /* squares of these: AdamW's v */
    OPS_CONSTANT, /* `center` */
    OPS_BELOW,    /* integers 0 .. bound-1: tokens */
    OPS_LABELS,   /* the same, and about one in five -1; never all -1 */
    OPS_ANGLES,   /* pairs cos, sin of random angles */
    OPS_SCALARS,  /* a struct step_scalars */
    OPS_NONFINITE /* normal, infinity at `bound`, NaN after it; none when bound is -1 */
};

struct ops_tensor {
    const char *name;
    enum ops_role role;
    enum dtype type;
    int64_t count; /* elements; bytes of scratch */
    enum ops_draw draw;
    double center, scale;
    int64_t bound;
    const char *cogradient_of; /* before the call: dL / d this output of the forward op */
    const char *gradient_of;   /* after the call: dL / d this input of the forward op */
    const char *may_be[2];     /* outputs: the inputs whose place it may take */
    void *data;                /* set by ops_trial */
};

#define OPS_LOSS_SCALE 0.375f /* what OPS_SCALARS draws as loss_scale */

/* Of adamw's two segments, where their copies are random. */
extern const struct adamw_location ops_adamw_locations[2];
#define OPS_ADAMW_UPDATE 3

enum { OPS_CALL_TENSORS = 14 };

struct ops_call {
    struct ops_tensor tensors[OPS_CALL_TENSORS];
    int count;
    double flops; /* multiplications and additions; a transcendental function is one */
};

struct ops_op {
    const char *name;
    /* The op whose tensors of the same name this one goes on with: outputs are taken as it
     * computed them. Also what this op's gradients are gradients of. NULL: none. */
    const char *forward;
    double bound; /* of ||a - b|| / ||b|| against ref in f64, for a back end in f32 */
    void (*describe)(const struct ops *ops, const struct ops_case *c, struct ops_call *call);
    void (*run)(struct ops *ops, struct stream *stream, const struct ops_case *c,
                const struct ops_call *call);
};

extern const struct ops_op ops_ops[];
extern const int ops_op_count;

const struct ops_op *ops_find_op(const char *name); /* CHECKs that there is one */
const struct ops_tensor *ops_find_tensor(const struct ops_call *call,
                                         const char *name); /* NULL: not listed */
double ops_call_bytes(const struct ops_call *call); /* read and written, scratch not counted */
enum { OPS_CASE_NAME = 160 };
/* "linear_dw R7 13x5 [in][out] add" into out (OPS_CASE_NAME bytes); returns out. */
char *ops_case_name(const struct ops_case *c, char *out);

#endif
