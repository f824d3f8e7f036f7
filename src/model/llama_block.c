/* llama_block -- Llama's layer: RMSNorm, rotary attention with grouped queries, RMSNorm, SwiGLU.
 *
 * Matrices are [out][in]; q, k and v are one param, and so are gate and up. Letters: R rows, N of
 * them this rank's rows of the stream, C width, F feed-forward width; H query heads and G key/value
 * heads of width D.
 */
#include "model/model_impl.h"

enum { NORM1, QKV, PROJ, NORM2, GATE_UP, DOWN };
#define BIT(use) (1u << (use))

/* From the block's input, residual + branch, to pre. */
static void attend_and_expand(const struct block *k, struct unit_run *run,
                              const struct block_buffers *b, const void *residual,
                              const void *branch)
{
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    block_add_norm(k, run, b, &b->norm1, residual, branch, w[NORM1], NULL);
    const void *x = region_enter(&b->region, b->own, b->norm1.normed, b->norm1.full);
    ops_linear(o, s, k->qkv, b->rows, x, w[QKV], NULL, b->qkv);
    block_attend(k, run, b);
    block_row_linear(run, b, k->proj, b->attn, w[PROJ], NULL, b->act);
    block_add_norm(k, run, b, &b->norm2, b->norm1.sum, b->act, w[NORM2], NULL);
    x = region_enter(&b->region, b->own, b->norm2.normed, b->norm2.full);
    ops_linear(o, s, k->up, b->rows, x, w[GATE_UP], NULL, b->pre);
}

/* From the gradient of act, in act's buffer, to that of pre, in pre's buffer; act itself is not
 * kept and is computed again on the way. */
static void gate_backward(const struct block *k, struct unit_run *run,
                          const struct block_buffers *b)
{
    ops_swiglu_backward(run->ops, run->stream, b->rows, k->down.in, b->pre, b->act, b->pre, b->act);
}

static void llama_block_forward(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    attend_and_expand(k, run, &b, run->residual, run->pending);
    ops_swiglu(run->ops, run->stream, b.rows, k->down.in, b.pre, b.act);
    block_row_linear(run, &b, k->down, b.act, run->params[DOWN], NULL, run->room);
    run->out_residual = b.norm2.sum;
    run->out_pending = run->room;
}

static void llama_block_rebuild(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    const void *const *w = run->params;
    if (run->rebuild <= KEEP_UNLESS_FULL) {
        attend_and_expand(k, run, &b, b.norm1.sum, NULL);
        return;
    }
    block_norm_again(k, run, &b, &b.norm1, w[NORM1], NULL);
    block_gather_normed(&b, &b.norm1);
    block_norm_again(k, run, &b, &b.norm2, w[NORM2], NULL);
    block_gather_normed(&b, &b.norm2);
    block_await_normed(&b);
}

static void llama_block_backward(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const struct region *r = &b.region;
    const void *const *w = run->params;
    void *const *d = run->grads;
    void *g =
        run->gradient; /* (N, C) of the stream: after the block, then between its halves, at last
                                before it */

    struct column up = {
        .l = k->up, .input = &b.norm2, .dy = b.pre, .w = w[GATE_UP], .dw = d[GATE_UP]};
    const void *dy = region_enter(r, b.own, g, b.d_rows); /* (R, C) */
    block_gather_again(&b, &up);
    ops_linear_dx(o, s, k->down, b.rows, dy, w[DOWN], b.act);
    gate_backward(k, run, &b);
    void *d_normed = block_column_backward(run, &b, &up);
    ops_linear_dw(o, s, k->down, b.rows, &(struct linear_dw){.x = b.act, .dy = dy, .dw = d[DOWN]});
    if (!r->sequence)
        block_column_rest(run, &b, &up);
    region_await(r, REGION_STREAM);
    block_norm_backward(
        k, run, &b, &b.norm2,
        (struct norm_backward){.dy = d_normed, .weight = w[NORM2], .dweight = d[NORM2]});

    /* Attention. The gradient of attn overwrites norm2.normed, that of qkv overwrites act. */
    dy = region_begin_enter(r, REGION_STREAM, b.own, g, b.d_rows);
    if (r->sequence)
        block_column_rest(run, &b, &up);
    region_await(r, REGION_STREAM);
    struct column qkv = {.l = k->qkv, .input = &b.norm1, .w = w[QKV], .dw = d[QKV]};
    block_gather_again(&b, &qkv);
    ops_linear_dx(o, s, k->proj, b.rows, dy, w[PROJ], b.d_attn);
    qkv.dy = block_attend_backward(k, run, &b, NULL);
    d_normed = block_column_backward(run, &b, &qkv);
    ops_linear_dw(o, s, k->proj, b.rows, &(struct linear_dw){.x = b.attn, .dy = dy, .dw = d[PROJ]});
    block_column_rest(run, &b, &qkv);
    region_await(r, REGION_STREAM);
    block_norm_backward(
        k, run, &b, &b.norm1,
        (struct norm_backward){.dy = d_normed, .weight = w[NORM1], .dweight = d[NORM1]});
}

/* --- backward in two halves ----------------------------------------------------------------- */

static const int formed_uses[FORMED_COUNT] = {
    [FORMED_NORM1] = NORM1, [FORMED_BIAS1] = -1,    [FORMED_NORM2] = NORM2,
    [FORMED_BIAS2] = -1,    [FORMED_UP_BIAS] = -1,  [FORMED_QKV_BIAS] = -1,
    [FORMED_OUT_BIAS] = -1, [FORMED_PROJ_BIAS] = -1};

static void llama_block_input(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    void *const *f = b.formed;
    void *g =
        run->gradient; /* (N, C) of the stream: after the block, then between its halves, at last
                                before it */

    block_choose_formed(unit, formed_uses, &b);
    /* MLP. The gradient of pre overwrites pre. */
    region_keep(&b.region, b.own, g, b.d_out);
    ops_linear_dx(o, s, k->down, b.rows, b.d_out, w[DOWN], b.act);
    gate_backward(k, run, &b);
    void *d_normed = block_column_input(run, &b, k->up, b.pre, w[GATE_UP], b.d_normed);
    block_norm_backward(
        k, run, &b, &b.norm2,
        (struct norm_backward){.dy = d_normed, .weight = w[NORM2], .dweight = f[FORMED_NORM2]});

    /* Attention. The gradient of qkv overwrites qkv. */
    region_keep(&b.region, b.own, g, b.d_mid);
    ops_linear_dx(o, s, k->proj, b.rows, b.d_mid, w[PROJ], b.d_attn);
    void *d_qkv = block_attend_backward(k, run, &b, NULL);
    d_normed = block_column_input(run, &b, k->qkv, d_qkv, w[QKV], b.d_normed);
    block_norm_backward(
        k, run, &b, &b.norm1,
        (struct norm_backward){.dy = d_normed, .weight = w[NORM1], .dweight = f[FORMED_NORM1]});
    block_end_input(run, &b);
}

static void llama_block_weight(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    void *const *d = run->grads;
    block_choose_formed(unit, formed_uses, &b);
    struct column up = {.l = k->up, .input = &b.norm2, .dy = b.pre, .dw = d[GATE_UP]};
    struct column qkv = {.l = k->qkv, .input = &b.norm1, .dy = b.qkv, .dw = d[QKV]};
    block_gather_again(&b, &up);
    ops_linear_dw(o, s, k->down, b.rows,
                  &(struct linear_dw){.x = b.act, .dy = b.d_out, .dw = d[DOWN]});
    block_column_weight(run, &b, &up);
    block_gather_again(&b, &qkv);
    ops_linear_dw(o, s, k->proj, b.rows,
                  &(struct linear_dw){.x = b.attn, .dy = b.d_mid, .dw = d[PROJ]});
    block_column_weight(run, &b, &qkv);
    block_hand_over(k, run, &b, formed_uses);
}

const struct unit_type llama_block_type = {
    .name = "llama block",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES,
              [PASS_REBUILD] = UNIT_ALL_USES & ~BIT(DOWN),
              [PASS_BACKWARD] = UNIT_ALL_USES,
              [PASS_BACKWARD_INPUT] = UNIT_ALL_USES,
              [PASS_DECODE] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES, [PASS_BACKWARD_WEIGHT] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = llama_block_forward,
            [PASS_REBUILD] = llama_block_rebuild,
            [PASS_BACKWARD] = llama_block_backward,
            [PASS_BACKWARD_INPUT] = llama_block_input,
            [PASS_BACKWARD_WEIGHT] = llama_block_weight,
            [PASS_DECODE] = llama_block_forward},
    .buffers = block_list_buffers,
    .work = block_work,
    .cache_bytes = block_cache_bytes,
};
