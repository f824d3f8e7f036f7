/* ops_cases_route -- descriptions of routed layers (SARS) and of the gate on their gradients. */
#include <math.h>
#include "ops/ops_cases_impl.h"

/* --- the cost of a neuron --------------------------------------------------------------------- */

static void add_gate(struct ops_call *call, const struct ops_case *c, enum dtype type)
{
    struct ops_tensor *gate =
        ops_add_tensor(call, "gate", OPS_IN, type, c->routing.groups * c->routing.width);
    gate->draw = c->zeros ? OPS_CONSTANT : c->ties ? OPS_SIGNS : OPS_NORMAL;
    gate->scale = 0.5;
}

OPS_DESCRIBE(mas)
{
    int64_t count = c->routing.groups * c->routing.width;
    add_gate(call, c, ops->type);
    ops_add_tensor(call, "cost", OPS_OUT, ops->type, count);
    call->flops = 2 * (double)count;
}

OPS_RUN(mas)
{
    ops_mas(ops, stream, c->routing.groups, c->routing.width, ops_at(call, "gate"),
            ops_at(call, "cost"));
}

OPS_DESCRIBE(mas_backward)
{
    int64_t count = c->routing.groups * c->routing.width;
    add_gate(call, c, ops->type);
    struct ops_tensor *dcost = ops_add_tensor(call, "dcost", OPS_IN, DTYPE_F32, count);
    dcost->scale = c->zeros ? 1e-6 : 1; /* dgate = 1e9 dcost then, which must not overflow in f16 */
    dcost->cogradient_of = "cost";
    ops_add_tensor(call, "dgate", OPS_OUT, ops->type, count)->gradient_of = "gate";
    call->flops = 5 * (double)count;
}

OPS_RUN(mas_backward)
{
    ops_mas_backward(ops, stream, c->routing.groups, c->routing.width, ops_at(call, "gate"),
                     ops_at(call, "dcost"), ops_at(call, "dgate"));
}

/* --- routing ---------------------------------------------------------------------------------- */

static int64_t routed(const struct ops_case *c)
{
    return c->rows * c->routing.groups * c->routing.width;
}

OPS_DESCRIBE(route)
{
    struct routing n = c->routing;
    ops_add_tensor(call, "pre", OPS_IN, ops->type, routed(c))->scale = 2;
    ops_add_tensor(call, "match", OPS_IN, ops->type, routed(c))->scale = sqrt((double)n.in);
    ops_add_tensor(call, "cost", OPS_IN, ops->type, n.groups * n.width)->scale = 0.5;
    ops_add_tensor(call, "logits", OPS_OUT, ops->type, routed(c))->may_be[0] = "match";
    ops_add_tensor(call, "out", OPS_OUT, ops->type, routed(c));
    call->flops = 7 * (double)routed(c);
}

OPS_RUN(route)
{
    ops_route(
        ops, stream, c->routing, c->rows,
        &(struct route){OPS_AT(pre), OPS_AT(match), OPS_AT(cost), OPS_AT(logits), OPS_AT(out)});
}

OPS_DESCRIBE(route_backward)
{
    struct routing n = c->routing;
    int64_t columns = n.groups * n.width;
    ops_add_tensor(call, "x", OPS_IN, ops->type, c->rows * n.in);
    struct ops_tensor *dout = ops_add_tensor(call, "dout", OPS_IN, ops->type, routed(c));
    dout->draw = c->zeros ? OPS_ROWS : OPS_NORMAL;
    dout->bound = n.width;
    if (c->zeros && ops->type != DTYPE_F16) /* so small that the 1e-9 of MAS changes G */
        dout->scale = 1e-8;
    dout->cogradient_of = "out";
    ops_add_tensor(call, "pre", OPS_IN, ops->type, routed(c));
    ops_add_tensor(call, "logits", OPS_IN, ops->type, routed(c));
    struct ops_tensor *dpre = ops_add_tensor(call, "dpre", OPS_OUT, ops->type, routed(c));
    dpre->gradient_of = "pre";
    dpre->may_be[0] = "dout";
    dpre->may_be[1] = "pre";
    ops_add_tensor(call, "dmatch", OPS_OUT, ops->type, routed(c))->may_be[0] = "logits";
    ops_add_tensor(call, "goodness", OPS_OUT, DTYPE_F32, columns);
    ops_add_tensor(call, "active", OPS_OUT, DTYPE_F32, columns);
    ops_add_tensor(call, "dcost", OPS_OUT, DTYPE_F32, columns);
    ops_add_tensor(call, "entropy", OPS_OUT, DTYPE_F32, n.groups);
    ops_add_scratch(call, ops_route_scratch(ops, n, c->rows));
    call->flops = 40 * (double)routed(c) + 2 * (double)c->rows * (double)n.in;
}

OPS_RUN(route_backward)
{
    ops_route_backward(
        ops, stream, c->routing, c->rows,
        &(struct route_backward){OPS_AT(x), OPS_AT(dout), OPS_AT(pre), OPS_AT(logits),
                                 .weight = OPS_ROUTE_WEIGHT(c->routing.width), OPS_AT(dpre),
                                 OPS_AT(dmatch), OPS_AT(goodness), OPS_AT(active), OPS_AT(dcost),
                                 OPS_AT(entropy), OPS_AT(scratch)});
}

/* --- the gate --------------------------------------------------------------------------------- */

OPS_DESCRIBE(gate_rows)
{
    (void)ops;
    ops_add_tensor(call, "x", OPS_IN_OUT, c->from, c->count);
    if (c->width > 0)
        ops_add_tensor(call, "goodness", OPS_IN, DTYPE_F32,
                       (c->first + c->count - 1) / c->width + 1);
    call->flops = 2 * (double)c->count;
}

OPS_RUN(gate_rows)
{
    ops_gate_rows(ops, stream, c->from,
                  &(struct gate_rows){.first = c->first,
                                      .count = c->count,
                                      .columns = c->width,
                                      OPS_AT(goodness),
                                      .limit = 1,
                                      OPS_AT(x)});
}
