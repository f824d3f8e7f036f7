/* gpt2_block -- GPT-2's layer: LayerNorm, attention over one fused c_attn, LayerNorm, MLP with
 * GELU; biases everywhere.
 *
 * Matrices are [in][out]. Letters: R rows, C width, F feed-forward width; H heads of
 * width D = C / H.
 */
#include "model/model_impl.h"

enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };
#define BIT(use) (1u << (use))

/* From attn to act: the second half of the block up to its last matrix. */
static void project_and_expand(const struct block *k, struct unit_run *run,
                               const struct block_buffers *b)
{
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    ops_linear(o, s, k->proj, b->rows, b->attn, w[PROJ_W], w[PROJ_B], b->act);
    ops_add_norm(o, s, k->norm, b->rows, b->sum1, b->act, w[LN2_W], w[LN2_B], b->sum2, b->normed2,
                 b->mean2, b->rstd2);
    ops_linear_gelu(o, s, k->up, b->rows, b->normed2, w[FC_W], w[FC_B], b->pre, b->act);
}

static void forward(const struct unit *unit, struct unit_run *run,
                    void (*attend)(const struct block *, struct unit_run *,
                                   const struct block_buffers *))
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    ops_add_norm(o, s, k->norm, b.rows, run->residual, run->pending, w[LN1_W], w[LN1_B], b.sum1,
                 b.normed1, b.mean1, b.rstd1);
    ops_linear(o, s, k->qkv, b.rows, b.normed1, w[QKV_W], w[QKV_B], b.qkv);
    attend(k, run, &b);
    project_and_expand(k, run, &b);
    ops_linear(o, s, k->down, b.rows, b.act, w[OUT_W], w[OUT_B], run->room);
    run->out_residual = b.sum2;
    run->out_pending = run->room;
}

static void gpt2_block_forward(const struct unit *unit, struct unit_run *run)
{
    forward(unit, run, block_attend);
}

static void gpt2_block_decode(const struct unit *unit, struct unit_run *run)
{
    forward(unit, run, block_attend_cached);
}

static void gpt2_block_rebuild(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    if (run->rebuild > KEEP_UNLESS_FULL) {
        ops_norm_apply(o, s, k->norm, b.rows, b.sum1, w[LN1_W], w[LN1_B], b.mean1, b.rstd1,
                       b.normed1);
        ops_norm_apply(o, s, k->norm, b.rows, b.sum2, w[LN2_W], w[LN2_B], b.mean2, b.rstd2,
                       b.normed2);
        ops_gelu(o, s, b.rows * k->up.out, b.pre, b.act);
        return;
    }
    ops_add_norm(o, s, k->norm, b.rows, b.sum1, NULL, w[LN1_W], w[LN1_B], NULL, b.normed1, b.mean1,
                 b.rstd1);
    ops_linear(o, s, k->qkv, b.rows, b.normed1, w[QKV_W], w[QKV_B], b.qkv);
    block_attend(k, run, &b);
    project_and_expand(k, run, &b);
}

static void gpt2_block_backward(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct ops *o = run->ops;
    struct stream *s = run->stream;
    const void *const *w = run->params;
    void *const *d = run->grads;
    void *g = run->gradient; /* (R, C): of the stream, first after the block, then before it */

    /* MLP: the gradient of pre takes act's place, that of normed2 its own. */
    ops_linear_dw(o, s, k->down, b.rows, b.act, g, false, d[OUT_W], d[OUT_B]);
    void *d_pre = b.act;
    ops_linear_dx_dgelu(o, s, k->down, b.rows, g, w[OUT_W], b.pre, d_pre, d[FC_B]);
    ops_linear_dw(o, s, k->up, b.rows, b.normed2, d_pre, false, d[FC_W], NULL);
    void *d_normed2 = b.normed2;
    ops_linear_dx(o, s, k->up, b.rows, d_pre, w[FC_W], d_normed2);
    ops_norm_backward(o, s, k->norm, b.rows, d_normed2, b.sum2, w[LN2_W], b.mean2, b.rstd2, g, g,
                      d[LN2_W], d[LN2_B], b.scratch);

    /* Attention: the gradient of attn goes to normed2's place, that of qkv to act's. */
    ops_linear_dw(o, s, k->proj, b.rows, b.attn, g, false, d[PROJ_W], d[PROJ_B]);
    ops_linear_dx(o, s, k->proj, b.rows, g, w[PROJ_W], b.normed2);
    block_attend_backward(k, run, &b);
    void *d_qkv = b.act;
    ops_linear_dw(o, s, k->qkv, b.rows, b.normed1, d_qkv, false, d[QKV_W], d[QKV_B]);
    void *d_normed1 = b.normed1;
    ops_linear_dx(o, s, k->qkv, b.rows, d_qkv, w[QKV_W], d_normed1);
    ops_norm_backward(o, s, k->norm, b.rows, d_normed1, b.sum1, w[LN1_W], b.mean1, b.rstd1, g, g,
                      d[LN1_W], d[LN1_B], b.scratch);
}

const struct unit_type gpt2_block_type = {
    .name = "gpt2 block",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES,
              [PASS_REBUILD] = UNIT_ALL_USES & ~(BIT(OUT_W) | BIT(OUT_B)),
              [PASS_BACKWARD] =
                  BIT(LN1_W) | BIT(QKV_W) | BIT(PROJ_W) | BIT(LN2_W) | BIT(FC_W) | BIT(OUT_W),
              [PASS_DECODE] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = gpt2_block_forward,
            [PASS_REBUILD] = gpt2_block_rebuild,
            [PASS_BACKWARD] = gpt2_block_backward,
            [PASS_DECODE] = gpt2_block_decode},
    .buffers = block_list_buffers,
    .work = block_work,
    .cache_bytes = block_cache_bytes,
};
