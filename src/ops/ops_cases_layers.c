/* ops_cases_layers -- descriptions of linear layers, norms and activations. */
#include <math.h>
#include "ops/ops_cases_impl.h"

/* --- linear --------------------------------------------------------------------------------- */

static void add_w(struct ops_call *call, struct linear l, enum dtype type)
{
    ops_add_tensor(call, "w", OPS_IN, type, l.in * l.out)->scale = 1 / sqrt((double)l.in);
}

static double linear_flops(const struct ops_case *c)
{
    return 2.0 * (double)c->rows * (double)c->linear.in * (double)c->linear.out;
}

OPS_DESCRIBE(linear)
{
    struct linear l = c->linear;
    ops_add_tensor(call, "x", OPS_IN, ops->type, c->rows * l.in);
    add_w(call, l, ops->type);
    if (c->bias)
        ops_add_tensor(call, "bias", OPS_IN, ops->type, l.out);
    ops_add_rows(call, "y", OPS_OUT, ops->type, c->rows, l.out, l.y_stride);
    call->flops = linear_flops(c);
}

OPS_RUN(linear)
{
    ops_linear(ops, stream, c->linear, c->rows, ops_at(call, "x"), ops_at(call, "w"),
               ops_at(call, "bias"), ops_at(call, "y"));
}

OPS_DESCRIBE(linear_gelu)
{
    ops_describe_linear(ops, c, call);
    ops_add_tensor(call, "pre", OPS_OUT, ops->type, c->rows * c->linear.out);
}

OPS_RUN(linear_gelu)
{
    ops_linear_gelu(
        ops, stream, c->linear, c->rows,
        &(struct linear_gelu){OPS_AT(x), OPS_AT(w), OPS_AT(bias), OPS_AT(pre), OPS_AT(y)});
}

OPS_DESCRIBE(linear_dx)
{
    struct linear l = c->linear;
    ops_add_rows(call, "dy", OPS_IN, ops->type, c->rows, l.out, l.y_stride)->cogradient_of = "y";
    add_w(call, l, ops->type);
    ops_add_tensor(call, "dx", OPS_OUT, ops->type, c->rows * l.in)->gradient_of = "x";
    call->flops = linear_flops(c);
}

OPS_RUN(linear_dx)
{
    ops_linear_dx(ops, stream, c->linear, c->rows, ops_at(call, "dy"), ops_at(call, "w"),
                  ops_at(call, "dx"));
}

/* y = gelu(pre) W: not an op, but linear_dx_dgelu is its gradient. */
OPS_DESCRIBE(gelu_linear)
{
    struct linear l = c->linear;
    ops_add_tensor(call, "pre", OPS_IN, ops->type, c->rows * l.in);
    ops_add_tensor(call, "x", OPS_OUT, ops->type, c->rows * l.in);
    add_w(call, l, ops->type);
    ops_add_rows(call, "y", OPS_OUT, ops->type, c->rows, l.out, l.y_stride);
    call->flops = linear_flops(c);
}

OPS_RUN(gelu_linear)
{
    ops_gelu(ops, stream, c->rows * c->linear.in, ops_at(call, "pre"), ops_at(call, "x"));
    ops_linear(ops, stream, c->linear, c->rows, ops_at(call, "x"), ops_at(call, "w"), NULL,
               ops_at(call, "y"));
}

OPS_DESCRIBE(linear_dx_dgelu)
{
    struct linear l = c->linear;
    ops_add_rows(call, "dy", OPS_IN, ops->type, c->rows, l.out, l.y_stride)->cogradient_of = "y";
    add_w(call, l, ops->type);
    ops_add_tensor(call, "pre", OPS_IN, ops->type, c->rows * l.in);
    ops_add_tensor(call, "dpre", OPS_OUT, ops->type, c->rows * l.in)->gradient_of = "pre";
    if (c->bias)
        ops_add_tensor(call, "dbias", OPS_OUT, ops->type, l.in);
    call->flops = linear_flops(c);
}

OPS_RUN(linear_dx_dgelu)
{
    ops_linear_dx_dgelu(
        ops, stream, c->linear, c->rows,
        &(struct linear_dx_dgelu){OPS_AT(dy), OPS_AT(w), OPS_AT(pre), OPS_AT(dpre), OPS_AT(dbias)});
}

OPS_DESCRIBE(linear_dw)
{
    struct linear l = c->linear;
    enum ops_role role = c->add ? OPS_IN_OUT : OPS_OUT;
    ops_add_tensor(call, "x", OPS_IN, ops->type, c->rows * l.in);
    ops_add_rows(call, "dy", OPS_IN, ops->type, c->rows, l.out, l.y_stride)->cogradient_of = "y";
    ops_add_tensor(call, "dw", role, ops->type, l.in * l.out)->gradient_of = c->add ? NULL : "w";
    if (c->bias)
        ops_add_tensor(call, "dbias", role, ops->type, l.out)->gradient_of = c->add ? NULL : "bias";
    call->flops = linear_flops(c);
}

OPS_RUN(linear_dw)
{
    ops_linear_dw(
        ops, stream, c->linear, c->rows,
        &(struct linear_dw){OPS_AT(x), OPS_AT(dy), .add = c->add, OPS_AT(dw), OPS_AT(dbias)});
}

/* --- norms ---------------------------------------------------------------------------------- */

static void add_norm_weights(struct ops_call *call, const struct ops_case *c, enum dtype type)
{
    struct ops_tensor *weight = ops_add_tensor(call, "weight", OPS_IN, type, c->norm.width);
    weight->center = 1;
    weight->scale = 0.25;
    if (c->bias)
        ops_add_tensor(call, "bias", OPS_IN, type, c->norm.width);
}

static void add_statistics(struct ops_call *call, const struct ops_case *c, enum ops_role role)
{
    if (c->norm.kind == NORM_LAYER)
        ops_add_tensor(call, "mean", role, DTYPE_F32, c->rows);
    ops_add_tensor(call, "rstd", role, DTYPE_F32, c->rows);
}

OPS_DESCRIBE(add_norm)
{
    int64_t count = c->rows * c->norm.width;
    ops_add_tensor(call, "residual", OPS_IN, ops->type, count)->center = 0.5;
    if (c->branch)
        ops_add_tensor(call, "branch", OPS_IN, ops->type, count);
    add_norm_weights(call, c, ops->type);
    ops_add_tensor(call, "sum", OPS_OUT, ops->type, count)->may_be[0] = "residual";
    ops_add_tensor(call, "y", OPS_OUT, ops->type, count);
    add_statistics(call, c, OPS_OUT);
    call->flops = 8 * (double)count;
}

OPS_RUN(add_norm)
{
    ops_add_norm(ops, stream, c->norm, c->rows,
                 &(struct add_norm){OPS_AT(residual), OPS_AT(branch), OPS_AT(weight), OPS_AT(bias),
                                    OPS_AT(sum), OPS_AT(y), OPS_AT(mean), OPS_AT(rstd)});
}

OPS_DESCRIBE(norm_apply)
{
    int64_t count = c->rows * c->norm.width;
    ops_add_tensor(call, "sum", OPS_IN, ops->type, count);
    add_norm_weights(call, c, ops->type);
    add_statistics(call, c, OPS_IN);
    ops_add_tensor(call, "y", OPS_OUT, ops->type, count);
    call->flops = 4 * (double)count;
}

OPS_RUN(norm_apply)
{
    ops_norm_apply(ops, stream, c->norm, c->rows,
                   &(struct norm_apply){OPS_AT(sum), OPS_AT(weight), OPS_AT(bias), OPS_AT(mean),
                                        OPS_AT(rstd), OPS_AT(y)});
}

OPS_DESCRIBE(norm_backward)
{
    int64_t count = c->rows * c->norm.width;
    ops_add_tensor(call, "dy", OPS_IN, ops->type, count)->cogradient_of = "y";
    ops_add_tensor(call, "sum", OPS_IN, ops->type, count);
    add_norm_weights(call, c, ops->type);
    add_statistics(call, c, OPS_IN);
    if (c->branch)
        ops_add_tensor(call, "dsum", OPS_IN, ops->type, count)->cogradient_of = "sum";
    struct ops_tensor *dsum_out = ops_add_tensor(call, "dsum_out", OPS_OUT, ops->type, count);
    dsum_out->gradient_of = "residual";
    dsum_out->may_be[0] = "dy";
    dsum_out->may_be[1] = c->branch ? "dsum" : NULL;
    ops_add_tensor(call, "dweight", OPS_OUT, ops->type, c->norm.width)->gradient_of = "weight";
    if (c->bias)
        ops_add_tensor(call, "dbias", OPS_OUT, ops->type, c->norm.width)->gradient_of = "bias";
    if (c->columns) {
        ops_add_tensor(call, "dsum_columns", OPS_OUT, ops->type, c->norm.width);
        ops_add_tensor(call, "out_columns", OPS_OUT, ops->type, c->norm.width);
    }
    ops_add_scratch(call, ops_norm_scratch(ops, c->norm, c->rows));
    call->flops = (c->columns ? 16 : 14) * (double)count;
}

OPS_RUN(norm_backward)
{
    ops_norm_backward(ops, stream, c->norm, c->rows,
                      &(struct norm_backward){OPS_AT(dy), OPS_AT(sum), OPS_AT(weight), OPS_AT(mean),
                                              OPS_AT(rstd), OPS_AT(dsum), OPS_AT(dsum_out),
                                              OPS_AT(dweight), OPS_AT(dbias), OPS_AT(dsum_columns),
                                              OPS_AT(out_columns), OPS_AT(scratch)});
}

OPS_DESCRIBE(add)
{
    ops_add_tensor(call, "a", OPS_IN, ops->type, c->count);
    ops_add_tensor(call, "b", OPS_IN, ops->type, c->count);
    ops_add_tensor(call, "sum", OPS_OUT, ops->type, c->count);
    call->flops = (double)c->count;
}

OPS_RUN(add)
{
    ops_add(ops, stream, c->count, ops_at(call, "a"), ops_at(call, "b"), ops_at(call, "sum"));
}

/* --- activations ---------------------------------------------------------------------------- */

OPS_DESCRIBE(gelu)
{
    ops_add_tensor(call, "pre", OPS_IN, ops->type, c->count)->scale = 2;
    ops_add_tensor(call, "y", OPS_OUT, ops->type, c->count);
    call->flops = 8 * (double)c->count;
}

OPS_RUN(gelu)
{
    ops_gelu(ops, stream, c->count, ops_at(call, "pre"), ops_at(call, "y"));
}

OPS_DESCRIBE(gelu_backward)
{
    ops_add_tensor(call, "pre", OPS_IN, ops->type, c->count)->scale = 2;
    ops_add_tensor(call, "dy", OPS_IN, ops->type, c->count)->cogradient_of = "y";
    struct ops_tensor *dpre = ops_add_tensor(call, "dpre", OPS_OUT, ops->type, c->count);
    dpre->gradient_of = "pre";
    dpre->may_be[0] = "dy";
    call->flops = 16 * (double)c->count;
}

OPS_RUN(gelu_backward)
{
    ops_gelu_backward(ops, stream, c->count, ops_at(call, "pre"), ops_at(call, "dy"),
                      ops_at(call, "dpre"));
}

OPS_DESCRIBE(swiglu)
{
    ops_add_tensor(call, "gate_up", OPS_IN, ops->type, c->rows * 2 * c->width)->scale = 2;
    ops_add_tensor(call, "y", OPS_OUT, ops->type, c->rows * c->width);
    call->flops = 5 * (double)c->rows * (double)c->width;
}

OPS_RUN(swiglu)
{
    ops_swiglu(ops, stream, c->rows, c->width, ops_at(call, "gate_up"), ops_at(call, "y"));
}

OPS_DESCRIBE(swiglu_backward)
{
    int64_t count = c->rows * c->width;
    ops_add_tensor(call, "gate_up", OPS_IN, ops->type, 2 * count)->scale = 2;
    ops_add_tensor(call, "dy", OPS_IN, ops->type, count)->cogradient_of = "y";
    struct ops_tensor *dgate_up = ops_add_tensor(call, "dgate_up", OPS_OUT, ops->type, 2 * count);
    dgate_up->gradient_of = "gate_up";
    dgate_up->may_be[0] = "gate_up";
    if (c->act)
        ops_add_tensor(call, "act", OPS_OUT, ops->type, count)->may_be[0] = "dy";
    call->flops = 12 * (double)count;
}

OPS_RUN(swiglu_backward)
{
    ops_swiglu_backward(ops, stream, c->rows, c->width, ops_at(call, "gate_up"), ops_at(call, "dy"),
                        ops_at(call, "dgate_up"), ops_at(call, "act"));
}
