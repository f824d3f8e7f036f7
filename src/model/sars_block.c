/* sars_block -- SARS' layer: LayerNorm and attention, whose projections q, k, v and o choose their
 * neurons for each token. docs/sars.md has the mathematics.
 *
 *     x -> norm -> [q k v] -> attention -> [o] -> added to the stream
 *
 *     [ ]   a routed projection of its input X:
 *           pre = X Wmu^T + b, logits = X S^T / sqrt(C) - MAS(g), out = silu(pre) where logits > 0
 *     S     the prototypes of this layer: its own P, plus a norm of S of the layer below times Wt.
 *           They are the carry: no tokens, four matrices (C, C) that go from block to block
 *
 * The backward pass has two phases in one walk. The first is that of the loss, with the masks as
 * constants; it gives the gradients of Wmu, b and the norm. The second is that of the entropy of
 * the logits, shifted by the goodness that the first phase has found; it gives the gradients of P
 * and g, and that of the carry. Wt and the chain's norm only hand on: they are never updated.
 *
 * S is kept for the backward pass, so it is not formed again: P is read by the forward pass only.
 * q, k, v and o are one param each of Wmu, b, g, P, Wt, and of the chain's norm. Letters: R rows, C
 * width, H heads of width D = C / H.
 */
#include <math.h>
#include <stdio.h>

#include "model/model_impl.h"

enum { NORM_WEIGHT, NORM_BIAS, MU, MU_BIAS, GATE, PROTO, TRANSFORM, CHAIN_WEIGHT, CHAIN_BIAS };
#define BIT(use) (1u << (use))

enum {
    SUM,
    STATS, /* rstd (R), then mean (R) */
    NORMED,
    PRE,    /* (R, 3, C) of q, k, v; backward: its gradient */
    LOGITS, /* (R, 3, C); forward: first the products with the prototypes; backward: their
               gradient */
    QKV,    /* (R, 3, C) */
    ATTN,
    LSE,
    PRE_OUT, /* (R, C) of o, as PRE */
    LOGITS_OUT,
    PROTOTYPES, /* (4, C, C) S */
    COST,       /* (4, C) MAS(g) */
    D_ATTN,
    D_QKV,
    CHAIN, /* (2, C, C) one kind's product with S of the layer below; backward: and its gradient */
    CHAIN_STATS, /* rstd (C), mean (C), and gradients of the norm that nobody needs (2, C) */
    SUMS,        /* the statistic of a micro-batch, then the gradient of cost (4, C) */
    SCRATCH,
    BUFFER_COUNT
};

enum { QKV_KINDS = 3, OUT_KIND = 3 }; /* q, k, v are groups 0 to 2 of SARS_KINDS, o is group 3 */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static struct routing routing_of(const struct sars_block *k, int groups)
{
    return (struct routing){.in = k->width,
                            .groups = groups,
                            .width = k->width,
                            .minus = k->sars.sign != 0,
                            .standardise = k->sars.standardise};
}

static struct norm chain_norm(const struct sars_block *k)
{
    return (struct norm){NORM_LAYER, k->width, k->block.norm.eps, 0};
}

static struct linear chain_linear(const struct sars_block *k)
{
    return (struct linear){k->width, k->width, .out_in = true};
}

static size_t scratch_bytes(const struct sars_block *k, const struct ops *ops,
                            struct unit_shape shape)
{
    int64_t rows = shape.batch * shape.tokens;
    size_t bytes = ops_attention_scratch(ops, block_attention(&k->block, shape));
    bytes = larger(bytes, ops_norm_scratch(ops, k->block.norm, rows));
    bytes = larger(bytes, ops_norm_scratch(ops, chain_norm(k), k->width));
    bytes = larger(bytes, ops_route_scratch(ops, routing_of(k, QKV_KINDS), rows));
    return larger(bytes, ops_route_scratch(ops, routing_of(k, 1), rows));
}

static int sars_block_buffers(const struct unit *unit, const struct ops *ops,
                              struct unit_shape shape, struct unit_buffer *list)
{
    const struct sars_block *k = unit->self;
    size_t element = dtype_bytes(ops->type), width = (size_t)k->width;
    size_t rows = (size_t)(shape.batch * shape.tokens), c = rows * width * element;
    size_t square = width * width * element;
    size_t sums = (size_t)sars_statistic_at(SARS_STATISTICS, k->width) + SARS_KINDS * width;
    uint32_t backward = 1u << PASS_BACKWARD, forward = 1u << PASS_FORWARD | 1u << PASS_DECODE;
    uint32_t routes = forward | 1u << PASS_REBUILD;
    list[SUM] = (struct unit_buffer){"sum", c, KEEP_ALWAYS, 0};
    list[STATS] =
        (struct unit_buffer){"norm statistics", 2 * rows * sizeof(float), KEEP_UNLESS_FULL, 0};
    list[NORMED] = (struct unit_buffer){"normed", c, KEEP_UNLESS_SELECTIVE, 0};
    list[PRE] = (struct unit_buffer){"pre-activation of qkv", 3 * c, KEEP_UNLESS_FULL, 0};
    list[LOGITS] = (struct unit_buffer){"routing logits of qkv", 3 * c, KEEP_UNLESS_FULL, 0};
    list[QKV] = (struct unit_buffer){"qkv", 3 * c, KEEP_UNLESS_FULL, 0};
    list[ATTN] = (struct unit_buffer){"attention", c, KEEP_UNLESS_FULL, 0};
    list[LSE] = (struct unit_buffer){"attention lse", rows * (size_t)k->block.heads * sizeof(float),
                                     KEEP_UNLESS_FULL, 0};
    list[PRE_OUT] = (struct unit_buffer){"pre-activation of o", c, KEEP_UNLESS_FULL, 0};
    list[LOGITS_OUT] = (struct unit_buffer){"routing logits of o", c, KEEP_UNLESS_FULL, 0};
    list[PROTOTYPES] = (struct unit_buffer){"prototypes", SARS_KINDS * square, KEEP_ALWAYS, 0};
    list[COST] =
        (struct unit_buffer){"routing cost", SARS_KINDS * width * element, KEEP_NOT, routes};
    list[D_ATTN] = (struct unit_buffer){"gradient of attention", c, KEEP_NOT, backward};
    list[D_QKV] = (struct unit_buffer){"gradient of qkv", 3 * c, KEEP_NOT, backward};
    list[CHAIN] = (struct unit_buffer){"prototype chain", 2 * square, KEEP_NOT, forward | backward};
    list[CHAIN_STATS] = (struct unit_buffer){
        "prototype chain statistics", 4 * width * sizeof(float), KEEP_NOT, forward | backward};
    list[SUMS] = (struct unit_buffer){"routing sums", sums * sizeof(float), KEEP_NOT, backward};
    list[SCRATCH] = (struct unit_buffer){"block scratch", scratch_bytes(k, ops, shape), KEEP_NOT,
                                         routes | backward};
    return BUFFER_COUNT;
}

/* The block in one run. */
struct sars {
    const struct sars_block *k;
    struct unit_run *run;
    struct block_buffers b; /* what it shares with other blocks */
    int64_t rows;
    char *prototypes; /* S: in a buffer, or in the cache of a decoder */
};

/* The cache holds keys and values, then S. */
static size_t cache_start(const struct sars_block *k, const struct ops *ops, int64_t batch,
                          int64_t tokens)
{
    return (block_cache_size(&k->block, ops, batch, tokens) + 63) / 64 * 64;
}

static size_t sars_cache_bytes(const struct unit *unit, const struct ops *ops, int64_t batch,
                               int64_t tokens)
{
    const struct sars_block *k = unit->self;
    size_t square = (size_t)(k->width * k->width) * dtype_bytes(ops->type);
    return cache_start(k, ops, batch, tokens) + SARS_KINDS * square;
}

static struct sars sars_of(const struct unit *unit, struct unit_run *run)
{
    const struct sars_block *k = unit->self;
    void *const *at = run->buffers;
    int64_t rows = run->shape.batch * run->shape.tokens;
    float *stats = at[STATS];
    struct sars s = {
        .k = k,
        .run = run,
        .b = {.rows = rows,
              .own = rows,
              .norm1 = {.sum = at[SUM],
                        .rstd = stats,
                        .mean = stats + rows,
                        .normed = at[NORMED],
                        .full = at[NORMED]},
              .qkv = at[QKV],
              .attn = at[ATTN],
              .lse = at[LSE],
              .d_attn = at[D_ATTN],
              .act = at[D_QKV],
              .scratch = at[SCRATCH]},
        .rows = rows,
        .prototypes = at[PROTOTYPES],
    };
    if (run->pass == PASS_DECODE)
        s.prototypes =
            (char *)run->cache + cache_start(k, run->ops, run->shape.batch, run->cache_tokens);
    return s;
}

/* Element `index` of a tensor in the compute type. */
static void *at(const struct sars *s, const void *tensor, int64_t index)
{
    return (char *)tensor + (size_t)index * dtype_bytes(s->run->ops->type);
}

/* --- the chain of prototypes ------------------------------------------------------------------ */

/* product = S of the layer below times Wt, for one kind; and its statistics. `normed` is their
 * norm. */
static void chain_product(const struct sars *s, int kind, void *product, void *normed)
{
    struct unit_run *run = s->run;
    int64_t width = s->k->width, square = width * width;
    float *rstd = run->buffers[CHAIN_STATS];
    ops_linear(run->ops, run->stream, chain_linear(s->k), width, at(s, run->carry, kind * square),
               at(s, run->params[TRANSFORM], kind * square), NULL, product);
    ops_add_norm(run->ops, run->stream, chain_norm(s->k), width,
                 &(struct add_norm){.residual = product,
                                    .weight = at(s, run->params[CHAIN_WEIGHT], kind * width),
                                    .bias = at(s, run->params[CHAIN_BIAS], kind * width),
                                    .y = normed,
                                    .mean = rstd + width,
                                    .rstd = rstd});
}

/* S = P, plus what the layer below hands on. S may be the memory of the carry, which a kind no
 * longer needs once its product exists. */
static void form_prototypes(const struct sars *s)
{
    struct unit_run *run = s->run;
    int64_t square = s->k->width * s->k->width, all = SARS_KINDS * square;
    const void *own = run->params[PROTO];
    if (!run->carry) {
        device_copy(run->stream, s->prototypes, own, (size_t)all * dtype_bytes(run->ops->type));
        return;
    }
    for (int kind = 0; kind < SARS_KINDS; kind++)
        chain_product(s, kind, run->buffers[CHAIN], at(s, s->prototypes, kind * square));
    ops_add(run->ops, run->stream, all, own, s->prototypes, s->prototypes);
}

/* From the gradient of S, which is also that of P, to that of the carry. */
static void chain_backward(const struct sars *s)
{
    struct unit_run *run = s->run;
    int64_t width = s->k->width, square = width * width;
    void *product = run->buffers[CHAIN], *d_product = at(s, product, square);
    float *rstd = run->buffers[CHAIN_STATS];
    for (int kind = 0; run->carry && kind < SARS_KINDS; kind++) {
        chain_product(s, kind, product, d_product);
        ops_norm_backward(
            run->ops, run->stream, chain_norm(s->k), width,
            &(struct norm_backward){.dy = at(s, run->grads[PROTO], kind * square),
                                    .sum = product,
                                    .weight = at(s, run->params[CHAIN_WEIGHT], kind * width),
                                    .mean = rstd + width,
                                    .rstd = rstd,
                                    .dsum_out = d_product,
                                    .dweight = rstd + 2 * width,
                                    .dbias = rstd + 3 * width,
                                    .scratch = s->b.scratch});
        ops_linear_dx(run->ops, run->stream, chain_linear(s->k), width, d_product,
                      at(s, run->params[TRANSFORM], kind * square),
                      at(s, run->carry_gradient, kind * square));
    }
}

/* --- routed projections ----------------------------------------------------------------------- */

/* Kinds first .. first + groups - 1, which have the same input x (R, C). */
struct projection {
    int first, groups;
    const void *x;
    void *pre, *logits, *out; /* (R, groups, C) */
};

static struct projection qkv_of(const struct sars *s)
{
    void *const *b = s->run->buffers;
    return (struct projection){0, QKV_KINDS, b[NORMED], b[PRE], b[LOGITS], b[QKV]};
}

static struct projection out_of(const struct sars *s)
{
    void *const *b = s->run->buffers;
    return (struct projection){OUT_KIND, 1, b[ATTN], b[PRE_OUT], b[LOGITS_OUT], s->run->room};
}

static struct linear linear_of(const struct sars *s, const struct projection *p)
{
    return (struct linear){s->k->width, p->groups * s->k->width, .out_in = true};
}

static void project(const struct sars *s, struct projection p)
{
    struct unit_run *run = s->run;
    struct linear l = linear_of(s, &p);
    int64_t width = s->k->width, first = p.first * width;
    ops_linear(run->ops, run->stream, l, s->rows, p.x, at(s, run->params[MU], first * width),
               at(s, run->params[MU_BIAS], first), p.pre);
    ops_linear(run->ops, run->stream, l, s->rows, p.x, at(s, s->prototypes, first * width), NULL,
               p.logits);
    ops_route(run->ops, run->stream, routing_of(s->k, p.groups), s->rows,
              &(struct route){.pre = p.pre,
                              .match = p.logits,
                              .cost = at(s, run->buffers[COST], first),
                              .logits = p.logits,
                              .out = p.out});
}

/* Both phases, from the gradient of the output to those of the matrices. Afterwards p.pre has the
 * gradient of the pre-activation. The gradient of the prototypes is added. */
static void project_backward(const struct sars *s, struct projection p, const void *d_out)
{
    struct unit_run *run = s->run;
    struct linear l = linear_of(s, &p);
    int64_t width = s->k->width, first = p.first * width;
    float *sums = run->buffers[SUMS];
    float *dcost = sums + sars_statistic_at(SARS_STATISTICS, width);
    double entropies = (double)(SARS_KINDS * s->k->layers) * (double)run->step_rows;
    ops_route_backward(
        run->ops, run->stream, routing_of(s->k, p.groups), s->rows,
        &(struct route_backward){.x = p.x,
                                 .dout = d_out,
                                 .pre = p.pre,
                                 .logits = p.logits,
                                 .weight = (float)(s->k->sars.meta_weight / entropies),
                                 .dpre = p.pre,
                                 .dmatch = p.logits,
                                 .goodness = sums + sars_statistic_at(SARS_GOODNESS, width) + first,
                                 .active = sums + sars_statistic_at(SARS_ACTIVE, width) + first,
                                 .entropy = sums + sars_statistic_at(SARS_ENTROPY, width) + p.first,
                                 .dcost = dcost + first,
                                 .scratch = s->b.scratch});
    ops_linear_dw(run->ops, run->stream, l, s->rows,
                  &(struct linear_dw){.x = p.x,
                                      .dy = p.pre,
                                      .dw = at(s, run->grads[MU], first * width),
                                      .dbias = at(s, run->grads[MU_BIAS], first)});
    ops_linear_dw(
        run->ops, run->stream, l, s->rows,
        &(struct linear_dw){
            .x = p.x, .dy = p.logits, .add = true, .dw = at(s, run->grads[PROTO], first * width)});
}

/* --- passes ----------------------------------------------------------------------------------- */

/* From the block's input, residual + branch, to the output of o in `room`. */
static void compute(const struct sars *s, const void *residual, const void *branch)
{
    struct unit_run *run = s->run;
    const void *const *w = run->params;
    block_add_norm(&s->k->block, run, &s->b, &s->b.norm1, residual, branch, w[NORM_WEIGHT],
                   w[NORM_BIAS]);
    ops_mas(run->ops, run->stream, SARS_KINDS, s->k->width, w[GATE], run->buffers[COST]);
    project(s, qkv_of(s));
    block_attend(&s->k->block, run, &s->b);
    project(s, out_of(s));
}

/* A decoder forms S with the first tokens of a text and keeps it. */
static void sars_block_forward(const struct unit *unit, struct unit_run *run)
{
    struct sars s = sars_of(unit, run);
    if (run->pass != PASS_DECODE || run->past.count == 0)
        form_prototypes(&s);
    compute(&s, run->residual, run->pending);
    run->out_residual = s.b.norm1.sum;
    run->out_pending = run->room;
    run->out_carry = s.prototypes;
}

static void sars_block_rebuild(const struct unit *unit, struct unit_run *run)
{
    struct sars s = sars_of(unit, run);
    if (run->rebuild <= KEEP_UNLESS_FULL)
        compute(&s, s.b.norm1.sum, NULL);
    else
        block_norm_again(&s.k->block, run, &s.b, &s.b.norm1, run->params[NORM_WEIGHT],
                         run->params[NORM_BIAS]);
}

/* The gate of each micro-batch by its own goodness. */
static void gate_locally(const struct sars *s)
{
    struct unit_run *run = s->run;
    const float *goodness =
        (float *)run->buffers[SUMS] + sars_statistic_at(SARS_GOODNESS, s->k->width);
    int64_t neurons = SARS_KINDS * s->k->width;
    if (s->k->sars.gate != SARS_GATE_LOCAL)
        return;
    ops_gate_rows(run->ops, run->stream, run->ops->type,
                  &(struct gate_rows){.count = neurons * s->k->width,
                                      .columns = s->k->width,
                                      .goodness = goodness,
                                      .limit = INFINITY,
                                      .x = run->grads[MU]});
    ops_gate_rows(run->ops, run->stream, run->ops->type,
                  &(struct gate_rows){.count = neurons,
                                      .columns = 1,
                                      .goodness = goodness,
                                      .limit = INFINITY,
                                      .x = run->grads[MU_BIAS]});
}

static void sars_block_backward(const struct unit *unit, struct unit_run *run)
{
    struct sars s = sars_of(unit, run);
    const struct sars_block *k = s.k;
    struct ops *o = run->ops;
    int64_t width = k->width, square = width * width;
    float *sums = run->buffers[SUMS];
    struct projection qkv = qkv_of(&s), out = out_of(&s);
    device_copy(run->stream, run->grads[PROTO], run->carry_gradient,
                (size_t)(SARS_KINDS * square) * dtype_bytes(o->type));
    project_backward(&s, out, run->gradient);
    ops_linear_dx(o, run->stream, linear_of(&s, &out), s.rows, out.pre,
                  at(&s, run->params[MU], OUT_KIND * square), s.b.d_attn);
    const void *d_qkv = block_attend_backward(&k->block, run, &s.b, &(struct attend_backward){0});
    project_backward(&s, qkv, d_qkv);
    ops_linear_dx(o, run->stream, linear_of(&s, &qkv), s.rows, qkv.pre, run->params[MU],
                  s.b.norm1.normed); /* which nobody needs any more */
    block_norm_backward(&k->block, run, &s.b, &s.b.norm1,
                        (struct norm_backward){.dy = s.b.norm1.normed,
                                               .weight = run->params[NORM_WEIGHT],
                                               .dweight = run->grads[NORM_WEIGHT],
                                               .dbias = run->grads[NORM_BIAS]});
    gate_locally(&s);
    ops_mas_backward(o, run->stream, SARS_KINDS, width, run->params[GATE],
                     sums + sars_statistic_at(SARS_STATISTICS, width), run->grads[GATE]);
    chain_backward(&s);
    if (run->statistic)
        device_accumulate(run->stream, run->statistic, DTYPE_F32, sums, DTYPE_F32,
                          sars_statistic_at(SARS_STATISTICS, width));
}

static int64_t sars_block_work(const struct unit *unit, struct unit_shape shape)
{
    const struct sars_block *k = unit->self;
    int64_t rows = shape.batch * shape.tokens, square = k->width * k->width;
    return 2 * SARS_KINDS * square * (2 * rows + k->width) + 2 * rows * shape.tokens * k->width;
}

/* The first block has no carry: its maps of the chain exist, as in all blocks, but nobody reads
 * them. */
#define CHAIN_USES (BIT(TRANSFORM) | BIT(CHAIN_WEIGHT) | BIT(CHAIN_BIAS))
#define OWN_USES   (BIT(NORM_WEIGHT) | BIT(NORM_BIAS) | BIT(MU) | BIT(MU_BIAS) | BIT(GATE))
#define BLOCK_TYPE(name_, chain_)                                                             \
    {                                                                                         \
        .name = name_,                                                                        \
        .reads = {[PASS_FORWARD] = OWN_USES | BIT(PROTO) | (chain_),                          \
                  [PASS_REBUILD] = OWN_USES,                                                  \
                  [PASS_BACKWARD] = OWN_USES | (chain_),                                      \
                  [PASS_DECODE] = OWN_USES | BIT(PROTO) | (chain_)},                          \
        .writes = {[PASS_BACKWARD] = OWN_USES | BIT(PROTO)},                                  \
        .run = {[PASS_FORWARD] = sars_block_forward,                                          \
                [PASS_REBUILD] = sars_block_rebuild,                                          \
                [PASS_BACKWARD] = sars_block_backward,                                        \
                [PASS_DECODE] = sars_block_forward},                                          \
        .takes_carry = (chain_) != 0, .buffers = sars_block_buffers, .work = sars_block_work, \
        .cache_bytes = sars_cache_bytes                                                       \
    }
const struct unit_type sars_first_block_type = BLOCK_TYPE("first sars block", 0);
const struct unit_type sars_block_type = BLOCK_TYPE("sars block", CHAIN_USES);
