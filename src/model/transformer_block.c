/* transformer_block -- a layer of attention and MLP, as GPT-2, Llama and their relatives have it. What
 * differs between them is in struct block: the kind of the norms, which of the params exist, and
 * whether the MLP is gated. There may be norms before attention and MLP, or of their outputs, or
 * both.
 *
 *     x = x + proj(attention(qkv(norm1(x))))   q and k may have norms of their own
 *     x = x + down(act(up(norm2(x))))          act: GELU, or SwiGLU or GeGLU of gate and up, one
 *                                              matrix
 *
 * Letters: R rows, N of them this rank's rows of the stream, C width, F feed-forward width; H query
 * heads and G key/value heads of width D.
 */
#include "model/model_impl.h"

static const void *param(const struct block *k, const struct unit_run *run, enum block_use use)
{
    return k->uses[use] < 0 ? NULL : run->params[k->uses[use]];
}

static void *grad(const struct block *k, const struct unit_run *run, enum block_use use)
{
    return k->uses[use] < 0 ? NULL : run->grads[k->uses[use]];
}

/* A matrix of the block in this pass */
static struct linear matrix(const struct unit_run *run, struct linear l)
{
    l.w_bf16 = run->bf16;
    return l;
}

/* --- forward -------------------------------------------------------------------------------- */

static bool is_swiglu(const struct block *k)
{
    return k->gated && !k->geglu;
}

/* pre, from the normed rows, and act. With GeGLU, contract() forms act. Where a pass rebuilds pre
 * and needs no output, it needs no act of SwiGLU. */
static void expand(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                   const void *x)
{
    const void *w = param(k, run, BLOCK_UP), *bias = param(k, run, BLOCK_UP_BIAS);
    bool contracts = run->pass != PASS_REBUILD || block_has_posts(k);
    if (is_swiglu(k))
        ops_linear_swiglu(
            run->ops, run->stream, matrix(run, k->up), b->rows,
            &(struct linear_swiglu){
                .x = x, .w = w, .bias = bias, .gate_up = b->pre, .act = contracts ? b->act : NULL});
    if (k->geglu || k->exact)
        ops_linear(run->ops, run->stream, matrix(run, k->up), b->rows, x, w, bias, b->pre);
    if (k->exact)
        ops_gelu_exact(run->ops, run->stream, b->rows * k->up.out, b->pre, b->act);
    if (!k->gated && !k->exact)
        ops_linear_gelu(
            run->ops, run->stream, matrix(run, k->up), b->rows,
            &(struct linear_gelu){.x = x, .w = w, .bias = bias, .pre = b->pre, .y = b->act});
}

/* From the block's input, residual + branch, to pre and act, as expand() forms them. */
static void attend_and_expand(const struct block *k, struct unit_run *run,
                              const struct block_buffers *b, const void *residual,
                              const void *branch)
{
    block_add_norm(k, run, b, &b->norm1, residual, branch, param(k, run, BLOCK_NORM1),
                   param(k, run, BLOCK_NORM1_BIAS));
    const void *x = region_enter(&b->region, b->own, b->norm1.normed, b->norm1.full);
    ops_linear(run->ops, run->stream, matrix(run, k->qkv), b->rows, x, param(k, run, BLOCK_QKV),
               param(k, run, BLOCK_QKV_BIAS), b->qkv);
    block_norm_heads(k, run, b, param(k, run, BLOCK_Q_NORM), param(k, run, BLOCK_K_NORM));
    block_attend(k, run, b);
    block_branch(k, run, b,
                 &(struct branch){.l = matrix(run, k->proj),
                                  .x = b->attn,
                                  .w = param(k, run, BLOCK_PROJ),
                                  .bias = param(k, run, BLOCK_PROJ_BIAS),
                                  .post = &b->post1,
                                  .post_weight = param(k, run, BLOCK_POST1),
                                  .out = b->act});
    block_add_norm(k, run, b, &b->norm2, b->norm1.sum, b->act, param(k, run, BLOCK_NORM2),
                   param(k, run, BLOCK_NORM2_BIAS));
    expand(k, run, b, region_enter(&b->region, b->own, b->norm2.normed, b->norm2.full));
}

/* From act, or from pre with GeGLU, to the branch that the next unit adds. */
static void contract(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                     void *out)
{
    if (k->geglu)
        ops_geglu(run->ops, run->stream, b->rows, k->down.in, b->pre, b->act);
    block_branch(k, run, b,
                 &(struct branch){.l = matrix(run, k->down),
                                  .x = b->act,
                                  .w = param(k, run, BLOCK_DOWN),
                                  .bias = param(k, run, BLOCK_DOWN_BIAS),
                                  .post = &b->post2,
                                  .post_weight = param(k, run, BLOCK_POST2),
                                  .out = out});
}

static void forward(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    attend_and_expand(k, run, &b, run->residual, run->pending);
    contract(k, run, &b, run->room);
    run->out_residual = b.norm2.sum;
    run->out_pending = run->room;
}

static void rebuild(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    if (run->rebuild <= KEEP_UNLESS_FULL) {
        attend_and_expand(k, run, &b, b.norm1.sum, NULL);
        if (block_has_posts(k)) /* for post2's input and statistics */
            contract(k, run, &b, b.act);
        return;
    }
    block_norm_again(k, run, &b, &b.norm1, param(k, run, BLOCK_NORM1),
                     param(k, run, BLOCK_NORM1_BIAS));
    block_gather_normed(&b, &b.norm1);
    block_norm_again(k, run, &b, &b.norm2, param(k, run, BLOCK_NORM2),
                     param(k, run, BLOCK_NORM2_BIAS));
    block_gather_normed(&b, &b.norm2);
    bool needs_act = !k->gated, remakes = needs_act && (k->exact || ops_gelu_remakes(run->ops));
    if (remakes && k->exact)
        ops_gelu_exact(run->ops, run->stream, b.rows * k->up.out, b.pre, b.act);
    else if (remakes)
        ops_gelu(run->ops, run->stream, b.rows * k->up.out, b.pre, b.act);
    block_await_normed(&b);
    if (needs_act && !remakes)
        expand(k, run, &b, block_all_normed2(&b));
}

/* --- backward ------------------------------------------------------------------------------- */

/* Where the biases of proj and down get their gradients. These are column sums of the stream's
 * gradient, which the second norm's backward pass reads and writes, so it can form them at no cost.
 * In a sequence-parallel run that pass sees only this rank's rows, and where the outputs of the
 * matrices have norms it sees other gradients: then ops_linear_dw forms them. */
struct stream_biases {
    void *down, *proj;           /* for ops_norm_backward, or NULL */
    void *with_down, *with_proj; /* for ops_linear_dw, or NULL */
};

static struct stream_biases stream_biases(const struct block *k, const struct unit_run *run,
                                          const struct region *r)
{
    void *down = grad(k, run, BLOCK_DOWN_BIAS), *proj = grad(k, run, BLOCK_PROJ_BIAS);
    return r->sequence || block_has_posts(k)
               ? (struct stream_biases){.with_down = down, .with_proj = proj}
               : (struct stream_biases){.down = down, .proj = proj};
}

/* From dy, the stream's gradient (R, C), to that of pre, in pre's buffer; act itself is not kept
 * and is computed again on the way. */
static void gate_backward(const struct block *k, struct unit_run *run,
                          const struct block_buffers *b, const void *dy)
{
    const void *w = param(k, run, BLOCK_DOWN);
    if (is_swiglu(k)) {
        ops_linear_dx_dswiglu(
            run->ops, run->stream, matrix(run, k->down), b->rows,
            &(struct linear_dx_dswiglu){
                .dy = dy, .w = w, .gate_up = b->pre, .dgate_up = b->pre, .act = b->act});
        return;
    }
    ops_linear_dx(run->ops, run->stream, matrix(run, k->down), b->rows, dy, w, b->act);
    ops_geglu_backward(run->ops, run->stream, b->rows, k->down.in, b->pre, b->act, b->pre, b->act);
}

static struct column up_column(const struct block *k, const struct unit_run *run,
                               const struct block_buffers *b, const void *d_pre)
{
    return (struct column){.l = matrix(run, k->up),
                           .input = &b->norm2,
                           .dy = d_pre,
                           .w = param(k, run, BLOCK_UP),
                           .use = k->uses[BLOCK_UP],
                           .dbias = k->gated || k->exact ? grad(k, run, BLOCK_UP_BIAS) : NULL};
}

static struct column qkv_column(const struct block *k, const struct unit_run *run,
                                const struct block_buffers *b)
{
    bool normed = k->uses[BLOCK_Q_NORM] >= 0;
    return (struct column){.l = matrix(run, k->qkv),
                           .input = &b->norm1,
                           .w = param(k, run, BLOCK_QKV),
                           .use = k->uses[BLOCK_QKV],
                           .dbias = normed ? grad(k, run, BLOCK_QKV_BIAS) : NULL};
}

/* The gradient of pre, and that of the last matrix, where dy is the stream's (R, C). A GELU's
 * overwrites act, so the gradient of the last matrix comes first; a gate's is in pre, and act is
 * there once it is computed again. */
static void *activation_backward(const struct block *k, struct unit_run *run,
                                 const struct block_buffers *b, const void *dy, void *with_down)
{
    const void *w = param(k, run, BLOCK_DOWN);
    if (k->gated) {
        gate_backward(k, run, b, dy);
        return b->pre;
    }
    block_weight(run, b, k->down, k->uses[BLOCK_DOWN], b->act, dy, with_down);
    if (k->exact) {
        ops_linear_dx(run->ops, run->stream, matrix(run, k->down), b->rows, dy, w, b->act);
        ops_gelu_exact_backward(run->ops, run->stream, b->rows * k->up.out, b->pre, b->act, b->act);
        return b->act;
    }
    ops_linear_dx_dgelu(
        run->ops, run->stream, matrix(run, k->down), b->rows,
        &(struct linear_dx_dgelu){
            .dy = dy, .w = w, .pre = b->pre, .dpre = b->act, .dbias = grad(k, run, BLOCK_UP_BIAS)});
    return b->act;
}

static void backward(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    const struct region *r = &b.region;
    /* run->gradient is that of the stream (N, C): after the block, then between its halves, at last
     * before it. */
    struct stream_biases biases = stream_biases(k, run, r);
    bool later = r->sequence && k->gated; /* the last matrix's gradient overlaps with the sum, and
                                             that of `up` with the next gather */

    struct column up = up_column(k, run, &b, NULL), qkv = qkv_column(k, run, &b);
    const void *d_branch = block_branch_backward(k, run, &b, &b.post2, param(k, run, BLOCK_POST2),
                                                 grad(k, run, BLOCK_POST2));
    const void *dy = region_enter(r, b.own, d_branch, b.d_rows); /* (R, C) */
    block_gather_again(&b, &up);
    up.dy = activation_backward(k, run, &b, dy, biases.with_down);
    void *d_normed = block_column_backward(run, &b, &up);
    if (k->gated)
        block_weight(run, &b, k->down, k->uses[BLOCK_DOWN], b.act, dy, biases.with_down);
    if (!later)
        block_column_rest(run, &b, &up);
    region_await(r, REGION_STREAM);
    block_norm_backward(k, run, &b, &b.norm2,
                        (struct norm_backward){.dy = d_normed,
                                               .weight = param(k, run, BLOCK_NORM2),
                                               .dweight = grad(k, run, BLOCK_NORM2),
                                               .dbias = grad(k, run, BLOCK_NORM2_BIAS),
                                               .dsum_columns = biases.down,
                                               .out_columns = biases.proj});

    /* Attention. The gradient of attn overwrites norm2.normed, that of qkv overwrites act. */
    d_branch = block_branch_backward(k, run, &b, &b.post1, param(k, run, BLOCK_POST1),
                                     grad(k, run, BLOCK_POST1));
    dy = region_begin_enter(r, REGION_STREAM, b.own, d_branch, b.d_rows);
    if (later)
        block_column_rest(run, &b, &up);
    region_await(r, REGION_STREAM);
    if (!k->head_rms.whole)
        block_gather_again(&b, &qkv); /* overlaps with the backward pass of attention */
    ops_linear_dx(run->ops, run->stream, matrix(run, k->proj), b.rows, dy,
                  param(k, run, BLOCK_PROJ), b.d_attn);
    qkv.dy = block_attend_backward(
        k, run, &b,
        &(struct attend_backward){.dbias = qkv.dbias ? NULL : grad(k, run, BLOCK_QKV_BIAS),
                                  .q = param(k, run, BLOCK_Q_NORM),
                                  .k = param(k, run, BLOCK_K_NORM),
                                  .dq = grad(k, run, BLOCK_Q_NORM),
                                  .dk = grad(k, run, BLOCK_K_NORM)});
    if (k->head_rms.whole) /* the ranks have summed norms of heads meanwhile: one call at a time */
        block_gather_again(&b, &qkv);
    d_normed = block_column_backward(run, &b, &qkv);
    block_weight(run, &b, k->proj, k->uses[BLOCK_PROJ], b.attn, dy, biases.with_proj);
    block_column_rest(run, &b, &qkv);
    region_await(r, REGION_STREAM);
    block_norm_backward(k, run, &b, &b.norm1,
                        (struct norm_backward){.dy = d_normed,
                                               .weight = param(k, run, BLOCK_NORM1),
                                               .dweight = grad(k, run, BLOCK_NORM1),
                                               .dbias = grad(k, run, BLOCK_NORM1_BIAS)});
}

/* --- backward in two halves ----------------------------------------------------------------- */

/* The gradient of pre, to pre's buffer. */
static void activation_input(const struct block *k, struct unit_run *run,
                             const struct block_buffers *b)
{
    const void *w = param(k, run, BLOCK_DOWN);
    if (k->gated) {
        gate_backward(k, run, b, b->d_out);
        return;
    }
    if (k->exact) {
        ops_linear_dx(run->ops, run->stream, matrix(run, k->down), b->rows, b->d_out, w, b->d_wide);
        ops_gelu_exact_backward(run->ops, run->stream, b->rows * k->up.out, b->pre, b->d_wide,
                                b->pre);
        return;
    }
    ops_linear_dx_dgelu(run->ops, run->stream, matrix(run, k->down), b->rows,
                        &(struct linear_dx_dgelu){.dy = b->d_out,
                                                  .w = w,
                                                  .pre = b->pre,
                                                  .dpre = b->d_wide,
                                                  .dbias = b->formed[FORMED_UP_BIAS]});
    device_copy(run->stream, b->pre, b->d_wide,
                (size_t)(b->rows * k->up.out) * dtype_bytes(run->ops->type));
}

static void backward_input(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    void *const *f = b.formed;
    block_choose_formed(unit, &b);

    region_keep(
        &b.region, b.own,
        block_branch_backward(k, run, &b, &b.post2, param(k, run, BLOCK_POST2), f[FORMED_POST2]),
        b.d_out);
    activation_input(k, run, &b);
    void *d_normed =
        block_column_input(run, &b, matrix(run, k->up), b.pre, param(k, run, BLOCK_UP), b.d_normed);
    block_norm_backward(k, run, &b, &b.norm2,
                        (struct norm_backward){.dy = d_normed,
                                               .weight = param(k, run, BLOCK_NORM2),
                                               .dweight = f[FORMED_NORM2],
                                               .dbias = f[FORMED_BIAS2],
                                               .dsum_columns = f[FORMED_DOWN_BIAS],
                                               .out_columns = f[FORMED_PROJ_BIAS]});

    /* Attention. The gradient of qkv overwrites qkv. */
    region_keep(
        &b.region, b.own,
        block_branch_backward(k, run, &b, &b.post1, param(k, run, BLOCK_POST1), f[FORMED_POST1]),
        b.d_mid);
    ops_linear_dx(run->ops, run->stream, matrix(run, k->proj), b.rows, b.d_mid,
                  param(k, run, BLOCK_PROJ), b.d_attn);
    void *d_qkv = block_attend_backward(k, run, &b,
                                        &(struct attend_backward){.dbias = f[FORMED_QKV_BIAS],
                                                                  .q = param(k, run, BLOCK_Q_NORM),
                                                                  .k = param(k, run, BLOCK_K_NORM),
                                                                  .dq = f[FORMED_Q_NORM],
                                                                  .dk = f[FORMED_K_NORM]});
    d_normed = block_column_input(run, &b, matrix(run, k->qkv), d_qkv, param(k, run, BLOCK_QKV),
                                  b.d_normed);
    block_norm_backward(k, run, &b, &b.norm1,
                        (struct norm_backward){.dy = d_normed,
                                               .weight = param(k, run, BLOCK_NORM1),
                                               .dweight = f[FORMED_NORM1],
                                               .dbias = f[FORMED_BIAS1]});
    block_end_input(run, &b);
}

static void backward_weight(const struct unit *unit, struct unit_run *run)
{
    const struct block *k = unit->self;
    struct block_buffers b = block_buffers_of(k, run);
    struct stream_biases biases = stream_biases(k, run, &b.region);
    struct column up = up_column(k, run, &b, b.pre), qkv = qkv_column(k, run, &b);
    qkv.dy = b.qkv;
    block_choose_formed(unit, &b);
    block_gather_again(&b, &up);
    block_weight(run, &b, k->down, k->uses[BLOCK_DOWN], b.act, b.d_out, biases.with_down);
    block_column_weight(run, &b, &up);
    block_gather_again(&b, &qkv);
    block_weight(run, &b, k->proj, k->uses[BLOCK_PROJ], b.attn, b.d_mid, biases.with_proj);
    block_column_weight(run, &b, &qkv);
    block_hand_over(k, run, &b);
}

/* --- the type ------------------------------------------------------------------------------- */

static uint32_t bit_of(const struct block *k, enum block_use use)
{
    return k->uses[use] < 0 ? 0 : 1u << k->uses[use];
}

struct unit_type transformer_block_type(const struct block *k)
{
    uint32_t last = bit_of(k, BLOCK_DOWN) | bit_of(k, BLOCK_DOWN_BIAS), weights = 0;
    uint32_t matrices =
        bit_of(k, BLOCK_QKV) | bit_of(k, BLOCK_PROJ) | bit_of(k, BLOCK_UP) | bit_of(k, BLOCK_DOWN);
    static const enum block_use read[] = {BLOCK_NORM1, BLOCK_QKV,   BLOCK_Q_NORM, BLOCK_K_NORM,
                                          BLOCK_PROJ,  BLOCK_POST1, BLOCK_NORM2,  BLOCK_UP,
                                          BLOCK_DOWN,  BLOCK_POST2};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) /* no biases */
        weights |= bit_of(k, read[i]);
    return (struct unit_type){
        .name = "transformer block",
        .reads = {[PASS_FORWARD] = UNIT_ALL_USES,
                  [PASS_REBUILD] = block_has_posts(k) ? UNIT_ALL_USES : UNIT_ALL_USES & ~last,
                  [PASS_BACKWARD] = weights,
                  [PASS_BACKWARD_INPUT] = weights,
                  [PASS_DECODE] = UNIT_ALL_USES},
        .writes = {[PASS_BACKWARD] = UNIT_ALL_USES, [PASS_BACKWARD_WEIGHT] = UNIT_ALL_USES},
        .takes_bf16 = {[PASS_FORWARD] = matrices,
                       [PASS_REBUILD] = matrices,
                       [PASS_BACKWARD] = matrices,
                       [PASS_BACKWARD_INPUT] = matrices},
        .run = {[PASS_FORWARD] = forward,
                [PASS_REBUILD] = rebuild,
                [PASS_BACKWARD] = backward,
                [PASS_BACKWARD_INPUT] = backward_input,
                [PASS_BACKWARD_WEIGHT] = backward_weight,
                [PASS_DECODE] = forward},
        .buffers = block_list_buffers,
        .work = block_work,
        .cache_bytes = block_cache_bytes,
    };
}
