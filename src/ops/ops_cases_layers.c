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

OPS_DESCRIBE(linear_swiglu)
{
    struct linear l = c->linear;
    ops_add_tensor(call, "x", OPS_IN, ops->type, c->rows * l.in);
    add_w(call, l, ops->type);
    if (c->bias)
        ops_add_tensor(call, "bias", OPS_IN, ops->type, l.out);
    ops_add_tensor(call, "gate_up", OPS_OUT, ops->type, c->rows * l.out);
    if (c->act)
        ops_add_tensor(call, "act", OPS_OUT, ops->type, c->rows * l.out / 2);
    call->flops = linear_flops(c);
}

OPS_RUN(linear_swiglu)
{
    ops_linear_swiglu(
        ops, stream, c->linear, c->rows,
        &(struct linear_swiglu){OPS_AT(x), OPS_AT(w), OPS_AT(bias), OPS_AT(gate_up), OPS_AT(act)});
}

/* y = swiglu(gate_up) W: not an op, but linear_dx_dswiglu is its gradient. */
OPS_DESCRIBE(swiglu_linear)
{
    struct linear l = c->linear;
    ops_add_tensor(call, "gate_up", OPS_IN, ops->type, c->rows * 2 * l.in);
    ops_add_tensor(call, "x", OPS_OUT, ops->type, c->rows * l.in);
    add_w(call, l, ops->type);
    ops_add_rows(call, "y", OPS_OUT, ops->type, c->rows, l.out, l.y_stride);
    call->flops = linear_flops(c);
}

OPS_RUN(swiglu_linear)
{
    ops_swiglu(ops, stream, c->rows, c->linear.in, ops_at(call, "gate_up"), ops_at(call, "x"));
    ops_linear(ops, stream, c->linear, c->rows, ops_at(call, "x"), ops_at(call, "w"), NULL,
               ops_at(call, "y"));
}

OPS_DESCRIBE(linear_dx_dswiglu)
{
    struct linear l = c->linear;
    ops_add_rows(call, "dy", OPS_IN, ops->type, c->rows, l.out, l.y_stride)->cogradient_of = "y";
    add_w(call, l, ops->type);
    ops_add_tensor(call, "gate_up", OPS_IN, ops->type, c->rows * 2 * l.in);
    struct ops_tensor *dgate_up =
        ops_add_tensor(call, "dgate_up", OPS_OUT, ops->type, c->rows * 2 * l.in);
    dgate_up->gradient_of = "gate_up";
    dgate_up->may_be[0] = "gate_up";
    ops_add_tensor(call, "act", OPS_OUT, ops->type, c->rows * l.in);
    call->flops = linear_flops(c);
}

OPS_RUN(linear_dx_dswiglu)
{
    ops_linear_dx_dswiglu(ops, stream, c->linear, c->rows,
                          &(struct linear_dx_dswiglu){OPS_AT(dy), OPS_AT(w), OPS_AT(gate_up),
                                                      OPS_AT(dgate_up), OPS_AT(act)});
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

OPS_DESCRIBE(linear_dw_sum)
{
    struct linear l = c->linear;
    ops_add_tensor(call, "x", OPS_IN, ops->type, c->rows * l.in);
    ops_add_rows(call, "dy", OPS_IN, ops->type, c->rows, l.out, l.y_stride);
    ops_add_tensor(call, "sum", c->add ? OPS_IN_OUT : OPS_OUT, DTYPE_F32, l.in * l.out);
    if (c->bias)
        ops_add_tensor(call, "dbias", OPS_OUT, ops->type, l.out);
    ops_add_tensor(call, "dw", OPS_SCRATCH, ops->type, l.in * l.out);
    call->flops = linear_flops(c);
}

OPS_RUN(linear_dw_sum)
{
    ops_linear_dw_sum(ops, stream, c->linear, c->rows,
                      &(struct linear_dw_sum){.x = ops_at(call, "x"),
                                              .dy = ops_at(call, "dy"),
                                              .type = c->to,
                                              .add = c->add,
                                              .several = true,
                                              .sum = ops_at(call, "sum"),
                                              .dw = ops_at(call, "dw"),
                                              .dbias = ops_at(call, "dbias")});
}

/* --- norms ---------------------------------------------------------------------------------- */

static void add_norm_weights(struct ops_call *call, const struct ops_case *c, enum dtype type)
{
    struct ops_tensor *weight = ops_add_tensor(call, "weight", OPS_IN, type, c->norm.width);
    weight->center = 1 - c->norm.offset;
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

/* --- norms of heads ------------------------------------------------------------------------- */

static struct head_rms heads_of(const struct ops_case *c)
{
    struct attention a = c->attention;
    return (struct head_rms){.rows = a.batch * a.tokens,
                             .heads = a.heads,
                             .kv_heads = a.kv_heads,
                             .head_width = a.head_width,
                             .whole = c->width,
                             .eps = 1e-5,
                             .offset = c->bias ? 1 : 0};
}

static int64_t head_kept(struct head_rms n)
{
    return n.rows * (n.heads + n.kv_heads) * n.head_width;
}

static int64_t head_row(struct head_rms n)
{
    return n.rows * (n.heads + 2 * n.kv_heads) * n.head_width;
}

static void add_head_weights(struct ops_call *call, struct head_rms n, enum dtype type)
{
    static const char *const names[] = {"q", "k"};
    for (int key = 0; key < 2; key++) {
        int64_t count = n.whole ? (key ? n.kv_heads : n.heads) * n.head_width : n.head_width;
        struct ops_tensor *weight = ops_add_tensor(call, names[key], OPS_IN, type, count);
        weight->center = 1 - n.offset;
        weight->scale = 0.25;
    }
}

OPS_DESCRIBE(head_sums)
{
    struct head_rms n = heads_of(c);
    if (c->branch)
        add_head_weights(call, n, ops->type);
    ops_add_tensor(call, "x", OPS_IN, ops->type, c->branch ? head_kept(n) : head_row(n));
    if (c->branch) /* near x, so that the sums do not cancel */
        ops_add_tensor(call, "dy", OPS_IN, ops->type, head_row(n))->center = 1;
    if (c->branch)
        call->tensors[call->count - 2].center = 1;
    ops_add_tensor(call, "sums", OPS_OUT, DTYPE_F64, n.rows * ops_head_groups(n));
    call->flops = (c->branch ? 4 : 2) * (double)head_kept(n);
}

OPS_RUN(head_sums)
{
    ops_head_sums(ops, stream, heads_of(c),
                  &(struct head_sums){OPS_AT(x), OPS_AT(dy), OPS_AT(q), OPS_AT(k), OPS_AT(sums)});
}

/* With the sums before it, of one rank. */
OPS_DESCRIBE(head_rms)
{
    struct head_rms n = heads_of(c);
    add_head_weights(call, n, ops->type);
    ops_add_tensor(call, "squares", OPS_OUT, DTYPE_F64, n.rows * ops_head_groups(n));
    ops_add_tensor(call, "kept", OPS_OUT, ops->type, head_kept(n));
    ops_add_tensor(call, "qkv", OPS_IN_OUT, ops->type, head_row(n));
    call->flops = 4 * (double)head_kept(n);
}

OPS_RUN(head_rms)
{
    struct head_rms n = heads_of(c);
    void *qkv = ops_at(call, "qkv");
    ops_head_sums(ops, stream, n, &(struct head_sums){.x = qkv, .sums = ops_at(call, "squares")});
    ops_head_rms(ops, stream, n,
                 &(struct head_rms_forward){OPS_AT(q), OPS_AT(k), OPS_AT(squares), OPS_AT(kept),
                                            .qkv = qkv});
}

OPS_DESCRIBE(head_rms_backward)
{
    struct head_rms n = heads_of(c);
    add_head_weights(call, n, ops->type);
    ops_add_tensor(call, "squares", OPS_IN, DTYPE_F64, n.rows * ops_head_groups(n));
    ops_add_tensor(call, "kept", OPS_IN, ops->type, head_kept(n));
    ops_add_tensor(call, "dots", OPS_OUT, DTYPE_F64, n.rows * ops_head_groups(n));
    struct ops_tensor *dqkv = ops_add_tensor(call, "dqkv", OPS_IN_OUT, ops->type, head_row(n));
    dqkv->cogradient_of = dqkv->gradient_of = "qkv";
    int64_t query = call->tensors[0].count, key = call->tensors[1].count;
    ops_add_tensor(call, "dq", OPS_OUT, ops->type, query)->gradient_of = "q";
    ops_add_tensor(call, "dk", OPS_OUT, ops->type, key)->gradient_of = "k";
    ops_add_scratch(call, ops_head_rms_scratch(ops, n));
    call->flops = 8 * (double)head_kept(n);
}

OPS_RUN(head_rms_backward)
{
    struct head_rms n = heads_of(c);
    ops_head_sums(ops, stream, n,
                  &(struct head_sums){.x = ops_at(call, "kept"),
                                      .dy = ops_at(call, "dqkv"),
                                      OPS_AT(q),
                                      OPS_AT(k),
                                      .sums = ops_at(call, "dots")});
    ops_head_rms_backward(ops, stream, n,
                          &(struct head_rms_backward){OPS_AT(q), OPS_AT(k), OPS_AT(squares),
                                                      OPS_AT(dots), OPS_AT(kept), OPS_AT(dqkv),
                                                      OPS_AT(dq), OPS_AT(dk), OPS_AT(scratch)});
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

OPS_DESCRIBE(geglu)
{
    ops_describe_swiglu(ops, c, call);
}

OPS_RUN(geglu)
{
    ops_geglu(ops, stream, c->rows, c->width, ops_at(call, "gate_up"), ops_at(call, "y"));
}

OPS_DESCRIBE(geglu_backward)
{
    ops_describe_swiglu_backward(ops, c, call);
}

OPS_RUN(geglu_backward)
{
    ops_geglu_backward(ops, stream, c->rows, c->width, ops_at(call, "gate_up"), ops_at(call, "dy"),
                       ops_at(call, "dgate_up"), ops_at(call, "act"));
}

OPS_DESCRIBE(scale)
{
    ops_add_tensor(call, "x", OPS_IN_OUT, ops->type, c->count);
    call->flops = (double)c->count;
}

OPS_RUN(scale)
{
    ops_scale(ops, stream, c->count, 1.75, ops_at(call, "x"));
}

OPS_DESCRIBE(gelu_exact)
{
    ops_describe_gelu(ops, c, call);
}

OPS_RUN(gelu_exact)
{
    ops_gelu_exact(ops, stream, c->count, ops_at(call, "pre"), ops_at(call, "y"));
}

OPS_DESCRIBE(gelu_exact_backward)
{
    ops_describe_gelu_backward(ops, c, call);
}

OPS_RUN(gelu_exact_backward)
{
    ops_gelu_exact_backward(ops, stream, c->count, ops_at(call, "pre"), ops_at(call, "dy"),
                            ops_at(call, "dpre"));
}
