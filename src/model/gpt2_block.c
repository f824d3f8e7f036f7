/* gpt2_block -- GPT-2's layer: LayerNorm, attention over one fused c_attn, LayerNorm, MLP with
 * GELU; biases everywhere.
 *
 * Matrices are [in][out]. Letters: R rows, N of them this rank's rows of the stream, C width,
 * F feed-forward width; H heads of width D = C / H.
 */
#include "model/model_impl.h"

enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };
#define BIT(use) (1u << (use))

/* From the block's input, residual + branch, to act. */
static void attend_and_expand(const struct block *k, struct unit_run *run,
                              const struct block_buffers *b, const void *residual,
                              const void *branch)
{
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    block_add_norm(k, run, b, &b->norm1, residual, branch, w[LN1_W], w[LN1_B]);
    const void *x = region_enter(&b->region, b->own, b->norm1.normed, b->norm1.full);
    ops_linear(o, s, k->qkv, b->rows, x, w[QKV_W], w[QKV_B], b->qkv);
    block_attend(k, run, b);
    block_row_linear(run, b, k->proj, b->attn, w[PROJ_W], w[PROJ_B], b->act);
    block_add_norm(k, run, b, &b->norm2, b->norm1.sum, b->act, w[LN2_W], w[LN2_B]);
    x = region_enter(&b->region, b->own, b->norm2.normed, b->norm2.full);
    ops_linear_gelu(
        o, s, k->up, b->rows,
        &(struct linear_gelu){.x = x, .w = w[FC_W], .bias = w[FC_B], .pre = b->pre, .y = b->act});
}

static void gpt2_block_forward(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    const void *const *w = run->params;
    attend_and_expand(k, run, &b, run->residual, run->pending);
    block_row_linear(run, &b, k->down, b.act, w[OUT_W], w[OUT_B], run->room);
    run->out_residual = b.norm2.sum;
    run->out_pending = run->room;
}

static void gpt2_block_rebuild(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    if (run->rebuild <= KEEP_UNLESS_FULL) {
        attend_and_expand(k, run, &b, b.norm1.sum, NULL);
        return;
    }
    block_norm_again(k, run, &b, &b.norm1, w[LN1_W], w[LN1_B]);
    block_gather_normed(&b, &b.norm1);
    block_norm_again(k, run, &b, &b.norm2, w[LN2_W], w[LN2_B]);
    block_gather_normed(&b, &b.norm2);
    bool remakes = ops_gelu_remakes(o);
    if (remakes)
        ops_gelu(o, s, b.rows * k->up.out, b.pre, b.act);
    block_await_normed(&b);
    if (!remakes)
        ops_linear_gelu(o, s, k->up, b.rows,
                        &(struct linear_gelu){.x = block_all_normed2(&b),
                                              .w = w[FC_W],
                                              .bias = w[FC_B],
                                              .pre = b.pre,
                                              .y = b.act});
}

/* Where the biases of proj and out get their gradients. These are column sums of the stream's
 * gradient, which the second norm's backward pass reads and writes, so it can form them at no cost.
 * In a sequence-parallel run that pass sees only this rank's rows, and ops_linear_dw forms them. */
struct stream_biases {
    void *out, *proj;           /* for ops_norm_backward, or NULL */
    void *with_out, *with_proj; /* for ops_linear_dw, or NULL */
};

static struct stream_biases stream_biases(const struct region *r, void *out, void *proj)
{
    return r->sequence ? (struct stream_biases){.with_out = out, .with_proj = proj}
                       : (struct stream_biases){.out = out, .proj = proj};
}

static void gpt2_block_backward(const struct unit *unit, struct unit_run *run)
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
    struct stream_biases biases = stream_biases(r, d[OUT_B], d[PROJ_B]);

    /* MLP. The gradient of pre overwrites act, so the gradient of the last matrix comes first. */
    void *d_pre = b.act;
    struct column up = {.l = k->up, .input = &b.norm2, .dy = d_pre, .w = w[FC_W], .dw = d[FC_W]};
    const void *dy = region_enter(r, b.own, g, b.d_rows); /* (R, C) */
    block_gather_again(&b, &up);
    ops_linear_dw(
        o, s, k->down, b.rows,
        &(struct linear_dw){.x = b.act, .dy = dy, .dw = d[OUT_W], .dbias = biases.with_out});
    ops_linear_dx_dgelu(
        o, s, k->down, b.rows,
        &(struct linear_dx_dgelu){
            .dy = dy, .w = w[OUT_W], .pre = b.pre, .dpre = d_pre, .dbias = d[FC_B]});
    void *d_normed = block_column_backward(run, &b, &up);
    block_column_rest(run, &b, &up);
    region_await(r, REGION_STREAM);
    block_norm_backward(k, run, &b, &b.norm2,
                        (struct norm_backward){.dy = d_normed,
                                               .weight = w[LN2_W],
                                               .dweight = d[LN2_W],
                                               .dbias = d[LN2_B],
                                               .dsum_columns = biases.out,
                                               .out_columns = biases.proj});

    /* Attention. The gradient of attn overwrites norm2.normed, that of qkv overwrites act. */
    struct column qkv = {.l = k->qkv, .input = &b.norm1, .w = w[QKV_W], .dw = d[QKV_W]};
    dy = region_enter(r, b.own, g, b.d_rows);
    block_gather_again(&b, &qkv);
    ops_linear_dx(o, s, k->proj, b.rows, dy, w[PROJ_W], b.d_attn);
    qkv.dy = block_attend_backward(k, run, &b, d[QKV_B]);
    d_normed = block_column_backward(run, &b, &qkv);
    ops_linear_dw(
        o, s, k->proj, b.rows,
        &(struct linear_dw){.x = b.attn, .dy = dy, .dw = d[PROJ_W], .dbias = biases.with_proj});
    block_column_rest(run, &b, &qkv);
    region_await(r, REGION_STREAM);
    block_norm_backward(
        k, run, &b, &b.norm1,
        (struct norm_backward){
            .dy = d_normed, .weight = w[LN1_W], .dweight = d[LN1_W], .dbias = d[LN1_B]});
}

/* --- backward in two halves ----------------------------------------------------------------- */

static const int formed_uses[FORMED_COUNT] = {
    [FORMED_NORM1] = LN1_W,    [FORMED_BIAS1] = LN1_B,     [FORMED_NORM2] = LN2_W,
    [FORMED_BIAS2] = LN2_B,    [FORMED_UP_BIAS] = FC_B,    [FORMED_QKV_BIAS] = QKV_B,
    [FORMED_OUT_BIAS] = OUT_B, [FORMED_PROJ_BIAS] = PROJ_B};

static void gpt2_block_input(const struct unit *unit, struct unit_run *run)
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
    void *d_pre = b.pre;
    ops_linear_dx_dgelu(o, s, k->down, b.rows,
                        &(struct linear_dx_dgelu){.dy = b.d_out,
                                                  .w = w[OUT_W],
                                                  .pre = b.pre,
                                                  .dpre = b.d_wide,
                                                  .dbias = f[FORMED_UP_BIAS]});
    device_copy(s, d_pre, b.d_wide, (size_t)(b.rows * k->up.out) * dtype_bytes(o->type));
    void *d_normed = block_column_input(run, &b, k->up, d_pre, w[FC_W], b.d_normed);
    block_norm_backward(k, run, &b, &b.norm2,
                        (struct norm_backward){.dy = d_normed,
                                               .weight = w[LN2_W],
                                               .dweight = f[FORMED_NORM2],
                                               .dbias = f[FORMED_BIAS2],
                                               .dsum_columns = f[FORMED_OUT_BIAS],
                                               .out_columns = f[FORMED_PROJ_BIAS]});

    /* Attention. The gradient of qkv overwrites qkv. */
    region_keep(&b.region, b.own, g, b.d_mid);
    ops_linear_dx(o, s, k->proj, b.rows, b.d_mid, w[PROJ_W], b.d_attn);
    void *d_qkv = block_attend_backward(k, run, &b, f[FORMED_QKV_BIAS]);
    d_normed = block_column_input(run, &b, k->qkv, d_qkv, w[QKV_W], b.d_normed);
    block_norm_backward(k, run, &b, &b.norm1,
                        (struct norm_backward){.dy = d_normed,
                                               .weight = w[LN1_W],
                                               .dweight = f[FORMED_NORM1],
                                               .dbias = f[FORMED_BIAS1]});
    block_end_input(run, &b);
}

static void gpt2_block_weight(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    void *const *d = run->grads;
    struct stream_biases biases = stream_biases(&b.region, d[OUT_B], d[PROJ_B]);
    block_choose_formed(unit, formed_uses, &b);
    struct column up = {.l = k->up, .input = &b.norm2, .dy = b.pre, .dw = d[FC_W]};
    struct column qkv = {.l = k->qkv, .input = &b.norm1, .dy = b.qkv, .dw = d[QKV_W]};
    block_gather_again(&b, &up);
    ops_linear_dw(
        o, s, k->down, b.rows,
        &(struct linear_dw){.x = b.act, .dy = b.d_out, .dw = d[OUT_W], .dbias = biases.with_out});
    block_column_weight(run, &b, &up);
    block_gather_again(&b, &qkv);
    ops_linear_dw(o, s, k->proj, b.rows,
                  &(struct linear_dw){
                      .x = b.attn, .dy = b.d_mid, .dw = d[PROJ_W], .dbias = biases.with_proj});
    block_column_weight(run, &b, &qkv);
    block_hand_over(k, run, &b, formed_uses);
}

#define BACKWARD_READS (BIT(LN1_W) | BIT(QKV_W) | BIT(PROJ_W) | BIT(LN2_W) | BIT(FC_W) | BIT(OUT_W))

const struct unit_type gpt2_block_type = {
    .name = "gpt2 block",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES,
              [PASS_REBUILD] = UNIT_ALL_USES & ~(BIT(OUT_W) | BIT(OUT_B)),
              [PASS_BACKWARD] = BACKWARD_READS,
              [PASS_BACKWARD_INPUT] = BACKWARD_READS,
              [PASS_DECODE] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES, [PASS_BACKWARD_WEIGHT] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = gpt2_block_forward,
            [PASS_REBUILD] = gpt2_block_rebuild,
            [PASS_BACKWARD] = gpt2_block_backward,
            [PASS_BACKWARD_INPUT] = gpt2_block_input,
            [PASS_BACKWARD_WEIGHT] = gpt2_block_weight,
            [PASS_DECODE] = gpt2_block_forward},
    .buffers = block_list_buffers,
    .work = block_work,
    .cache_bytes = block_cache_bytes,
};
