/* ops_cases_attention -- descriptions of rotary embedding and attention. */
#include "ops/ops_cases_impl.h"
#include "ops/ops_impl.h"

static int64_t qkv_count(struct attention a)
{
    return a.batch * a.tokens * (a.heads + 2 * a.kv_heads) * a.head_width;
}

static int64_t out_count(struct attention a)
{
    return a.batch * a.tokens * a.heads * a.head_width;
}

static void add_table(struct ops_call *call, struct attention a, int64_t rows)
{
    int64_t columns = a.rotary ? a.rotary : a.head_width;
    ops_add_tensor(call, "table", OPS_IN, DTYPE_F32, rows * columns)->draw = OPS_ANGLES;
}

OPS_DESCRIBE(rope)
{
    struct attention a = c->attention;
    add_table(call, a, c->first + a.tokens);
    ops_add_past(call, c, c->first);
    ops_add_tensor(call, "qkv", OPS_IN_OUT, ops->type, qkv_count(a));
    call->flops = 3 * (double)qkv_count(a);
}

OPS_RUN(rope)
{
    ops_rope(ops, stream, c->attention, ops_at(call, "table"), ops_past(call, c->first), false,
             ops_at(call, "qkv"));
}

OPS_DESCRIBE(rope_inverse)
{
    ops_describe_rope(ops, c, call);
    struct ops_tensor *dqkv = &call->tensors[call->count - 1];
    dqkv->name = "dqkv";
    dqkv->cogradient_of = dqkv->gradient_of = "qkv";
}

OPS_RUN(rope_inverse)
{
    ops_rope(ops, stream, c->attention, ops_at(call, "table"), ops_past(call, c->first), true,
             ops_at(call, "dqkv"));
}

/* Operations of one of the two products of the forward pass, without those of masked scores. */
static double attention_flops(struct attention a)
{
    return 2 * (double)(a.batch * a.heads) * ops_attention_pairs(a, a.tokens) *
           (double)a.head_width;
}

OPS_DESCRIBE(attention)
{
    struct attention a = c->attention;
    ops_add_tensor(call, "qkv", OPS_IN, ops->type, qkv_count(a));
    ops_add_tensor(call, "out", OPS_OUT, ops->type, out_count(a));
    ops_add_tensor(call, "lse", OPS_OUT, DTYPE_F32, a.batch * a.heads * a.tokens);
    ops_add_scratch(call, ops_attention_scratch(ops, a));
    call->flops = 2 * attention_flops(a);
}

OPS_RUN(attention)
{
    ops_attention(ops, stream, c->attention, ops_at(call, "qkv"), ops_at(call, "out"),
                  ops_at(call, "lse"), ops_at(call, "scratch"));
}

OPS_DESCRIBE(attention_backward)
{
    struct attention a = c->attention;
    ops_add_tensor(call, "qkv", OPS_IN, ops->type, qkv_count(a));
    ops_add_tensor(call, "out", OPS_IN, ops->type, out_count(a));
    ops_add_tensor(call, "lse", OPS_IN, DTYPE_F32, a.batch * a.heads * a.tokens);
    ops_add_tensor(call, "dout", OPS_IN, ops->type, out_count(a))->cogradient_of = "out";
    ops_add_tensor(call, "dqkv", OPS_OUT, ops->type, qkv_count(a))->gradient_of = "qkv";
    if (c->bias)
        ops_add_tensor(call, "dbias", OPS_OUT, ops->type, qkv_count(a) / (a.batch * a.tokens));
    ops_add_scratch(call, ops_attention_scratch(ops, a));
    call->flops = 5 * attention_flops(a); /* recomputed scores, dv, dP, dq, dk */
}

/* "table" and "dbias" are optional. */
OPS_RUN(attention_backward)
{
    ops_attention_backward(ops, stream, c->attention,
                           &(struct attention_backward){.rope = ops_at(call, "table"),
                                                        OPS_AT(qkv),
                                                        OPS_AT(out),
                                                        OPS_AT(lse),
                                                        OPS_AT(dout),
                                                        OPS_AT(dqkv),
                                                        OPS_AT(dbias),
                                                        OPS_AT(scratch)});
}

/* Rotation of raw, then attention: not an op, but attention_backward_rope is its gradient. */
OPS_DESCRIBE(rope_attention)
{
    struct attention a = c->attention;
    add_table(call, a, a.tokens);
    ops_add_tensor(call, "raw", OPS_IN, ops->type, qkv_count(a));
    ops_add_tensor(call, "qkv", OPS_OUT, ops->type, qkv_count(a));
    ops_add_tensor(call, "out", OPS_OUT, ops->type, out_count(a));
    ops_add_tensor(call, "lse", OPS_OUT, DTYPE_F32, a.batch * a.heads * a.tokens);
    ops_add_scratch(call, ops_attention_scratch(ops, a));
    call->flops = 2 * attention_flops(a) + 3 * (double)qkv_count(a);
}

OPS_RUN(rope_attention)
{
    device_copy(stream, ops_at(call, "qkv"), ops_at(call, "raw"),
                (size_t)qkv_count(c->attention) * dtype_bytes(ops->type));
    ops_rope(ops, stream, c->attention, ops_at(call, "table"), (struct past){0}, false,
             ops_at(call, "qkv"));
    ops_run_attention(ops, stream, c, call);
}

OPS_DESCRIBE(attention_backward_rope)
{
    ops_describe_attention_backward(ops, c, call);
    for (int i = 0; i < call->count; i++)
        if (call->tensors[i].gradient_of)
            call->tensors[i].gradient_of = "raw";
    add_table(call, c->attention, c->attention.tokens);
    call->flops += 3 * (double)qkv_count(c->attention);
}

OPS_RUN(attention_backward_rope)
{
    ops_run_attention_backward(ops, stream, c, call);
}

OPS_DESCRIBE(attention_cached)
{
    struct attention a = c->attention;
    int64_t cache_count = a.batch * c->room * a.kv_heads * a.head_width;
    ops_add_past(call, c, c->past);
    ops_add_tensor(call, "qkv", OPS_IN, ops->type, qkv_count(a));
    ops_add_tensor(call, "cache_k", OPS_IN_OUT, ops->type, cache_count);
    ops_add_tensor(call, "cache_v", OPS_IN_OUT, ops->type, cache_count);
    ops_add_tensor(call, "out", OPS_OUT, ops->type, out_count(a));
    ops_add_scratch(call, ops_attention_scratch(ops, a));
    call->flops = 4 * (double)(a.batch * a.heads * a.head_width) *
                  (ops_attention_pairs(a, c->past + a.tokens) - ops_attention_pairs(a, c->past));
}

OPS_RUN(attention_cached)
{
    ops_attention_cached(ops, stream, c->attention,
                         &(struct attention_cached){.past = ops_past(call, c->past),
                                                    .room = c->room,
                                                    OPS_AT(qkv),
                                                    OPS_AT(cache_k),
                                                    OPS_AT(cache_v),
                                                    OPS_AT(out),
                                                    OPS_AT(scratch)});
}
