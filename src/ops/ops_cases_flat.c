/* ops_cases_flat -- descriptions of embedding, loss and the store's arithmetic on flat ranges. */
#include "ops/ops_cases_impl.h"

/* --- embedding and loss --------------------------------------------------------------------- */

static void add_tokens(struct ops_call *call, struct embedding e)
{
    struct ops_tensor *tokens =
        ops_add_tensor(call, "tokens", OPS_IN, DTYPE_I32, e.batch * e.tokens);
    tokens->draw = OPS_BELOW;
    tokens->bound = e.id_count ? e.id_count : e.vocab;
}

OPS_DESCRIBE(embedding)
{
    struct embedding e = c->embedding;
    int64_t count = e.batch * e.tokens * e.width;
    add_tokens(call, e);
    ops_add_past(call, c, c->first);
    ops_add_tensor(call, "wte", OPS_IN, ops->type, e.vocab * e.width);
    if (e.positions > 0)
        ops_add_tensor(call, "wpe", OPS_IN, ops->type, e.positions * e.width);
    ops_add_tensor(call, "out", OPS_OUT, ops->type, count);
    call->flops = (double)count;
}

OPS_RUN(embedding)
{
    ops_embedding(ops, stream, c->embedding, ops_at(call, "tokens"), ops_at(call, "wte"),
                  ops_at(call, "wpe"), ops_past(call, c->first), ops_at(call, "out"));
}

OPS_DESCRIBE(embedding_backward)
{
    struct embedding e = c->embedding;
    int64_t count = e.batch * e.tokens * e.width;
    add_tokens(call, e);
    ops_add_tensor(call, "dout", OPS_IN, ops->type, count)->cogradient_of = "out";
    ops_add_tensor(call, "dwte", OPS_OUT, ops->type, e.vocab * e.width)->gradient_of = "wte";
    if (e.positions > 0)
        ops_add_tensor(call, "dwpe", OPS_OUT, ops->type, e.positions * e.width)->gradient_of =
            "wpe";
    ops_add_scratch(call, ops_embedding_scratch(ops, e));
    call->flops = 2 * (double)count;
}

OPS_RUN(embedding_backward)
{
    ops_embedding_backward(ops, stream, c->embedding, ops_at(call, "tokens"), ops_at(call, "dout"),
                           ops_at(call, "dwte"), ops_at(call, "dwpe"), ops_at(call, "scratch"));
}

static void add_loss_inputs(struct ops_call *call, const struct ops_case *c, enum ops_role role,
                            enum dtype type)
{
    struct ops_tensor *labels = ops_add_tensor(call, "labels", OPS_IN, DTYPE_I32, c->rows);
    labels->draw = OPS_LABELS;
    labels->bound = c->width;
    ops_add_rows(call, "logits", role, type, c->rows, c->width, c->stride)->scale = 2;
    call->flops = 4 * (double)c->rows * (double)c->width;
}

static struct logits whole_logits(const struct ops_case *c)
{
    return (struct logits){.vocab = c->width, .stride = c->stride, .cap = c->cap};
}

OPS_DESCRIBE(cross_entropy)
{
    add_loss_inputs(call, c, OPS_IN, ops->type);
    ops_add_tensor(call, "losses", OPS_OUT, DTYPE_F64, c->rows);
}

OPS_RUN(cross_entropy)
{
    ops_cross_entropy(ops, stream, whole_logits(c), c->rows,
                      &(struct cross_entropy){OPS_AT(labels), OPS_AT(logits), OPS_AT(losses)});
}

static void add_loss_gradients(struct ops_call *call, const struct ops_case *c)
{
    ops_add_tensor(call, "scalars", OPS_IN, DTYPE_F32, sizeof(struct step_scalars) / sizeof(float))
        ->draw = OPS_SCALARS;
    /* Not an argument: the gradient of each loss, for finite differences. */
    struct ops_tensor *dlosses = ops_add_tensor(call, "dlosses", OPS_IN, DTYPE_F64, c->rows);
    dlosses->draw = OPS_CONSTANT;
    dlosses->center = (double)OPS_LOSS_SCALE;
    dlosses->cogradient_of = "losses";
    ops_add_tensor(call, "losses_again", OPS_OUT, DTYPE_F64, c->rows);
}

OPS_DESCRIBE(cross_entropy_gradient)
{
    add_loss_inputs(call, c, OPS_IN_OUT, ops->type);
    call->tensors[call->count - 1].gradient_of = "logits";
    add_loss_gradients(call, c);
}

OPS_RUN(cross_entropy_gradient)
{
    ops_cross_entropy(ops, stream, whole_logits(c), c->rows,
                      &(struct cross_entropy){OPS_AT(labels), .gradient = true, OPS_AT(scalars),
                                              OPS_AT(logits),
                                              .losses = ops_at(call, "losses_again")});
}

/* Columns of another rank, before those of the case. */
enum { OTHERS = 5 };

static struct logits split_logits(const struct ops_case *c)
{
    struct logits l = whole_logits(c);
    l.first_id = OTHERS;
    return l;
}

static void add_split_inputs(struct ops_call *call, const struct ops_case *c, enum ops_role role,
                             enum dtype type)
{
    add_loss_inputs(call, c, role, type);
    call->tensors[0].bound = c->width + OTHERS;
}

OPS_DESCRIBE(cross_entropy_part)
{
    add_split_inputs(call, c, OPS_IN, ops->type);
    ops_add_tensor(call, "parts", OPS_OUT, DTYPE_F64, c->rows * OPS_LOSS_PART);
}

OPS_RUN(cross_entropy_part)
{
    ops_cross_entropy_part(ops, stream, split_logits(c), c->rows, ops_at(call, "labels"),
                           ops_at(call, "logits"), ops_at(call, "parts"));
}

/* Both halves on two ranks: not an op, but the forward op of cross_entropy_join. Rank 0 has the
 * other columns. */
OPS_DESCRIBE(cross_entropy_parts)
{
    add_split_inputs(call, c, OPS_IN, ops->type);
    ops_add_tensor(call, "others", OPS_IN, ops->type, c->rows * OTHERS)->scale = 2;
    ops_add_tensor(call, "parts", OPS_OUT, DTYPE_F64, 2 * c->rows * OPS_LOSS_PART);
    ops_add_tensor(call, "losses", OPS_OUT, DTYPE_F64, c->rows);
}

OPS_RUN(cross_entropy_parts)
{
    const int32_t *labels = ops_at(call, "labels");
    double *parts = ops_at(call, "parts");
    void *others = ops_at(call, "others"), *logits = ops_at(call, "logits");
    ops_cross_entropy_part(ops, stream, (struct logits){.vocab = OTHERS, .cap = c->cap}, c->rows,
                           labels, others, parts);
    ops_cross_entropy_part(ops, stream, split_logits(c), c->rows, labels, logits,
                           parts + c->rows * OPS_LOSS_PART);
    ops_cross_entropy_join(
        ops, stream, split_logits(c), c->rows, 2, parts,
        &(struct cross_entropy){.labels = labels, .logits = logits, OPS_AT(losses)});
}

OPS_DESCRIBE(cross_entropy_join)
{
    add_split_inputs(call, c, OPS_IN_OUT, ops->type);
    call->tensors[call->count - 1].gradient_of = "logits";
    ops_add_tensor(call, "parts", OPS_IN, DTYPE_F64, 2 * c->rows * OPS_LOSS_PART);
    add_loss_gradients(call, c);
}

OPS_RUN(cross_entropy_join)
{
    ops_cross_entropy_join(ops, stream, split_logits(c), c->rows, 2, ops_at(call, "parts"),
                           &(struct cross_entropy){OPS_AT(labels), .gradient = true,
                                                   OPS_AT(scalars), OPS_AT(logits),
                                                   .losses = ops_at(call, "losses_again")});
}

OPS_DESCRIBE(softcap)
{
    ops_add_tensor(call, "x", OPS_IN_OUT, ops->type, c->count)->scale = 2;
    call->flops = 3 * (double)c->count;
}

OPS_RUN(softcap)
{
    ops_softcap(ops, stream, c->count, c->cap, ops_at(call, "x"));
}

OPS_DESCRIBE(sum)
{
    (void)ops;
    ops_add_tensor(call, "values", OPS_IN, DTYPE_F64, c->count)->center = 1;
    ops_add_tensor(call, "sum", OPS_OUT, DTYPE_F64, 1);
    call->flops = (double)c->count;
}

OPS_RUN(sum)
{
    ops_sum(ops, stream, c->count, ops_at(call, "values"), ops_at(call, "sum"));
}

OPS_DESCRIBE(tree_sums)
{
    (void)ops;
    ops_add_tensor(call, "values", OPS_IN, DTYPE_F64, c->count)->center = 1;
    ops_add_tensor(call, "sums", OPS_OUT, DTYPE_F64, c->count >> c->level);
    call->flops = (double)c->count;
}

OPS_RUN(tree_sums)
{
    ops_tree_sums(ops, stream, c->count, c->level, ops_at(call, "values"), ops_at(call, "sums"));
}

/* --- flat ranges ---------------------------------------------------------------------------- */

OPS_DESCRIBE(cast)
{
    (void)ops;
    ops_add_tensor(call, "src", OPS_IN, c->from, c->count);
    ops_add_tensor(call, "dst", OPS_OUT, c->to, c->count);
}

OPS_RUN(cast)
{
    ops_cast(ops, stream, ops_at(call, "dst"), c->to, ops_at(call, "src"), c->from, c->count);
}

OPS_DESCRIBE(square_sums)
{
    (void)ops;
    ops_add_tensor(call, "x", OPS_IN, c->from, c->count);
    ops_add_tensor(call, "sums", OPS_OUT, DTYPE_F64, (c->count + OPS_BLOCK - 1) / OPS_BLOCK);
    call->flops = 2 * (double)c->count;
}

/* Ranges of 1, 2, 4, ... blocks and the rest: with enough elements, more ranges than one kernel
 * launch takes. */
OPS_RUN(square_sums)
{
    enum { MOST = 40 };
    struct square_range ranges[MOST];
    const char *x = ops_at(call, "x");
    double *sums = ops_at(call, "sums");
    int n = 0;
    for (int64_t done = 0, count; done < c->count; done += count, n++) {
        count = n + 1 < MOST ? (int64_t)OPS_BLOCK << n % 4 : c->count - done;
        count = count < c->count - done ? count : c->count - done;
        ranges[n] = (struct square_range){x + (size_t)done * dtype_bytes(c->from), count,
                                          sums + done / OPS_BLOCK};
    }
    ops_square_sums(ops, stream, c->from, ranges, n);
}

OPS_DESCRIBE(find_nonfinite)
{
    (void)ops;
    struct ops_tensor *x = ops_add_tensor(call, "x", OPS_IN, c->from, c->count);
    x->draw = OPS_NONFINITE;
    x->bound = c->bad;
    ops_add_tensor(call, "first", OPS_OUT, DTYPE_I64, 1);
}

OPS_RUN(find_nonfinite)
{
    ops_find_nonfinite(ops, stream, c->from, ops_at(call, "x"), c->count, ops_at(call, "first"));
}
