/* ops_cases -- the table of described ops, and lists of tensors. The descriptions are in
 * ops_cases_layers.c, ops_cases_attention.c, ops_cases_route.c, ops_cases_flat.c,
 * ops_cases_update.c and ops_cases_matrix.c. */
#include "ops/ops_cases.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "ops/ops_cases_impl.h"

const struct ops_op ops_ops[] = {
#define X(op, from, limit)          \
    {.name = #op,                   \
     .forward = from,               \
     .bound = limit,                \
     .describe = ops_describe_##op, \
     .run = ops_run_##op},
    OPS_LIST(X)
#undef X
};
const int ops_op_count = sizeof ops_ops / sizeof ops_ops[0];

const struct ops_op *ops_find_op(const char *name)
{
    int i = 0;
    while (i < ops_op_count && strcmp(ops_ops[i].name, name) != 0)
        i++;
    CHECK_LT(i, ops_op_count);
    return &ops_ops[i];
}

const struct ops_tensor *ops_find_tensor(const struct ops_call *call, const char *name)
{
    for (int i = 0; i < call->count; i++) {
        if (strcmp(call->tensors[i].name, name) == 0)
            return &call->tensors[i];
    }
    return NULL;
}

double ops_call_bytes(const struct ops_call *call)
{
    double bytes = 0;
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        double times = t->role == OPS_SCRATCH ? 0 : t->role == OPS_IN_OUT ? 2 : 1;
        bytes += times * (double)ops_value_count(t) * (double)dtype_bytes(t->type);
    }
    return bytes;
}

struct ops_tensor *ops_add_tensor(struct ops_call *call, const char *name, enum ops_role role,
                                  enum dtype type, int64_t count)
{
    CHECK_LT(call->count, OPS_CALL_TENSORS);
    struct ops_tensor *t = &call->tensors[call->count++];
    *t = (struct ops_tensor){.name = name, .role = role, .type = type, .count = count, .scale = 1};
    return t;
}

struct ops_tensor *ops_add_rows(struct ops_call *call, const char *name, enum ops_role role,
                                enum dtype type, int64_t rows, int64_t width, int64_t stride)
{
    struct ops_tensor *t =
        ops_add_tensor(call, name, role, type, rows * (stride > 0 ? stride : width));
    t->width = width;
    t->stride = stride;
    return t;
}

void ops_add_scratch(struct ops_call *call, size_t bytes)
{
    ops_add_tensor(call, "scratch", OPS_SCRATCH, DTYPE_U8, (int64_t)bytes);
}

void ops_add_past(struct ops_call *call, const struct ops_case *c, int64_t count)
{
    if (!c->at)
        return;
    struct ops_tensor *past = ops_add_tensor(call, "past", OPS_IN, DTYPE_I64, 1);
    past->draw = OPS_CONSTANT;
    past->center = (double)count;
}

struct past ops_past(const struct ops_call *call, int64_t count)
{
    return (struct past){.count = count, .at = ops_at(call, "past")};
}

void *ops_at(const struct ops_call *call, const char *name)
{
    const struct ops_tensor *t = ops_find_tensor(call, name);
    return t != NULL ? t->data : NULL;
}

/* Append to a string of OPS_CASE_NAME bytes. */
__attribute__((format(printf, 2, 3))) static void append(char *out, const char *format, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, OPS_CASE_NAME - used, format, args);
    va_end(args);
}

#define LL(value) ((long long)(value))

char *ops_case_name(const struct ops_case *c, char *out)
{
    struct attention a = c->attention;
    struct embedding e = c->embedding;
    snprintf(out, OPS_CASE_NAME, "%s", c->op);
    if (c->rows > 0)
        append(out, " R%lld", LL(c->rows));
    if (c->linear.in > 0)
        append(out, " %lldx%lld %s", LL(c->linear.in), LL(c->linear.out),
               c->linear.out_in ? "[out][in]" : "[in][out]");
    if (c->linear.y_stride > c->linear.out)
        append(out, " stride %lld", LL(c->linear.y_stride));
    if (c->norm.width > 0)
        append(out, " %s C%lld", c->norm.kind == NORM_LAYER ? "layer" : "rms", LL(c->norm.width));
    if (a.batch > 0)
        append(out, " B%lld T%lld H%lld G%lld D%lld", LL(a.batch), LL(a.tokens), LL(a.heads),
               LL(a.kv_heads), LL(a.head_width));
    if (a.window > 0)
        append(out, " window %lld", LL(a.window));
    if (a.rotary > 0)
        append(out, " rotary %lld", LL(a.rotary));
    if (a.scale > 0)
        append(out, " scale %g", a.scale);
    if (a.cap > 0)
        append(out, " cap %g", a.cap);
    if (c->room > 0)
        append(out, " past %lld of %lld", LL(c->past), LL(c->room));
    if (e.batch > 0)
        append(out, " B%lld T%lld C%lld V%lld P%lld", LL(e.batch), LL(e.tokens), LL(e.width),
               LL(e.vocab), LL(e.positions));
    if (e.id_count > 0)
        append(out, " from %lld of %lld", LL(e.first_id), LL(e.id_count));
    if (c->routing.groups > 0)
        append(out, " I%lld K%lld C%lld%s%s", LL(c->routing.in), LL(c->routing.groups),
               LL(c->routing.width), c->routing.minus ? " minus" : "",
               c->routing.standardise ? " standardised" : "");
    if (c->width > 0)
        append(out, " x %lld", LL(c->width));
    if (c->stride > c->width)
        append(out, " stride %lld", LL(c->stride));
    if (c->cap > 0)
        append(out, " cap %g", c->cap);
    if (c->count > 0)
        append(out, " n %lld", LL(c->count));
    if (c->level > 0)
        append(out, " level %d", c->level);
    if (c->from != c->to)
        append(out, " %s to %s", dtype_name(c->from), dtype_name(c->to));
    append(out, "%s%s%s%s%s%s%s%s%s%s%s", c->bias ? " bias" : "", c->branch ? " branch" : "",
           c->add ? " add" : "", c->act ? " act" : "", c->columns ? " columns" : "",
           c->random ? " random" : "", c->at ? " at" : "", c->momentum ? " momentum" : "",
           c->nesterov ? " nesterov" : "", c->zeros ? " zeros" : "", c->ties ? " ties" : "");
    return out;
}
