/* block -- the parts of a block: buffers, norms, attention and its cache, and the matrices that are
 * split over ranks.
 *
 *     residual, pending -> sum1 -> normed1 -> qkv -> attn -> sum2 -> normed2 -> pre -> act -> room
 *                          kept    cheap      costly costly  costly  cheap      costly cheap
 *
 * Selective recomputation rebuilds what is cheap (a norm from its saved statistics, an activation);
 * only full recomputation rebuilds what is costly. An act that the backward pass itself recomputes
 * is never kept. A block has no large scratch: a buffer whose contents are no longer needed is
 * reused (model_impl.h lists the users), so two buffers are sized for their largest user.
 *
 * In a TP group, qkv and the first matrix of the MLP are split by columns, the other two by rows;
 * regions.c describes the communication between them. Norms and the stream use this rank's rows.
 *
 * A backward pass in two halves first does everything but the four products for the gradients of
 * the matrices; PASS_BACKWARD_WEIGHT does these. Between the halves live the operands of the
 * products: the inputs of the matrices (normed1, attn, normed2, act) and the gradients of their
 * outputs (in the buffers qkv and pre, d_mid and d_out); and the small gradients that the first
 * half forms as by-products (formed).
 */
#include "model/model_impl.h"

enum {
    SUM1,
    STATS1, /* rstd (R), then mean (R) */
    NORMED1,
    QKV,
    ATTN,
    LSE,
    SUM2,
    STATS2,
    NORMED2,
    PRE,
    ACT,
    SCRATCH,
    GATHERED, /* sequence parallel: the next matrix's input, if not kept gathered */
    PARTIAL,
    D_ROWS,
    MEETING, /* scratch of the collectives */
    D_NORMED,
    D_WIDE,
    D_OUT,
    D_MID,
    FORMED,
    BUFFER_COUNT
};

static int64_t max2(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct attention block_attention(const struct block *k, struct unit_shape shape)
{
    return (struct attention){.batch = shape.batch,
                              .tokens = shape.tokens,
                              .heads = k->heads,
                              .kv_heads = k->kv_heads,
                              .head_width = k->head_width,
                              .rotary = k->rope.table ? k->rope.width : 0};
}

/* The use that a by-product is the gradient of; -1: none. A gated MLP forms its bias's gradient
 * with that of the matrix. */
static int formed_use(const struct block *k, int i)
{
    static const enum block_use uses[FORMED_COUNT] = {
        [FORMED_NORM1] = BLOCK_NORM1,         [FORMED_BIAS1] = BLOCK_NORM1_BIAS,
        [FORMED_NORM2] = BLOCK_NORM2,         [FORMED_BIAS2] = BLOCK_NORM2_BIAS,
        [FORMED_UP_BIAS] = BLOCK_UP_BIAS,     [FORMED_QKV_BIAS] = BLOCK_QKV_BIAS,
        [FORMED_DOWN_BIAS] = BLOCK_DOWN_BIAS, [FORMED_PROJ_BIAS] = BLOCK_PROJ_BIAS};
    return k->gated && i == FORMED_UP_BIAS ? -1 : k->uses[uses[i]];
}

/* Elements of a by-product gradient: those of the norms, and of the biases whose gradients the
 * activation, attention or a norm forms. */
static int64_t formed_count(const struct block *k, int i)
{
    if (formed_use(k, i) < 0)
        return 0;
    return i == FORMED_UP_BIAS ? k->up.out : i == FORMED_QKV_BIAS ? k->qkv.out : k->norm.width;
}

/* Its first element in the buffer FORMED; for FORMED_COUNT, the end of the last one. */
static int64_t formed_at(const struct block *k, int i)
{
    int64_t at = 0;
    for (int before = 0; before < i; before++)
        at += (formed_count(k, before) + OPS_BLOCK - 1) / OPS_BLOCK * OPS_BLOCK;
    return at;
}

/* Buffers of a backward pass in two halves: what the second half needs of the first, and
 * scratch. */
static void list_parts(const struct block *k, const struct ops *ops, struct unit_shape shape,
                       struct unit_buffer *list)
{
    size_t element = dtype_bytes(ops->type);
    size_t column = (size_t)(shape.batch * shape.tokens) * element;
    size_t gathered = shape.sequence != 0 ? (size_t)k->norm.width * column : 0;
    uint32_t input = 1u << PASS_BACKWARD_INPUT;
    int64_t wide = max2(k->gated ? 0 : k->up.out, k->qkv.out);
    list[D_NORMED] = (struct unit_buffer){
        "gradient of normed", (size_t)max2(k->norm.width, k->proj.in) * column, KEEP_NOT, input};
    list[D_WIDE] =
        (struct unit_buffer){"gradient of qkv, mlp", (size_t)wide * column, KEEP_NOT, input};
    list[D_OUT] = (struct unit_buffer){"gradient of the output", gathered, KEEP_NOT, UNIT_PARTS};
    list[D_MID] = (struct unit_buffer){"gradient of sum 2", gathered, KEEP_NOT, UNIT_PARTS};
    list[FORMED] = (struct unit_buffer){
        "small gradients", (size_t)formed_at(k, FORMED_COUNT) * element, KEEP_NOT, UNIT_PARTS};
}

int block_list_buffers(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                       struct unit_buffer *list)
{
    const struct block *k = unit->self;
    int64_t rows = shape.batch * shape.tokens, own = unit_stream_rows(shape);
    int64_t width = k->norm.width;
    bool parallel = k->tp_group.size > 1, sequence = shape.sequence != 0;
    size_t stats = (size_t)(k->norm.kind == NORM_RMS ? own : 2 * own) * sizeof(float);
    size_t column = (size_t)rows * dtype_bytes(ops->type); /* bytes of an (R, 1) tensor */
    size_t attention = ops_attention_scratch(ops, block_attention(k, shape));
    size_t norm = ops_norm_scratch(ops, k->norm, own);
    size_t full = (size_t)width * column; /* (R, C) */
    size_t c = (size_t)(own * width) * dtype_bytes(ops->type);
    size_t normed = sequence && !k->tp_group.regather ? full : c;
    size_t d_attn = (size_t)k->proj.in * column;
    size_t act = (size_t)max2(k->down.in, k->qkv.out) * column;
    uint32_t backward = 1u << PASS_BACKWARD, input = 1u << PASS_BACKWARD_INPUT,
             weight = 1u << PASS_BACKWARD_WEIGHT;
    uint32_t passes = 1u << PASS_FORWARD | 1u << PASS_REBUILD | backward | 1u << PASS_DECODE;
    uint32_t sums = sequence ? 0 : UNIT_PARTS; /* reused for d_out and d_mid */

    list[SUM1] = (struct unit_buffer){"sum 1", c, KEEP_ALWAYS, sums};
    list[STATS1] = (struct unit_buffer){"norm 1 statistics", stats, KEEP_UNLESS_FULL, 0};
    list[NORMED1] = (struct unit_buffer){"normed 1", normed, KEEP_UNLESS_SELECTIVE, UNIT_PARTS};
    list[QKV] =
        (struct unit_buffer){"qkv", (size_t)k->qkv.out * column, KEEP_UNLESS_FULL, UNIT_PARTS};
    list[ATTN] = (struct unit_buffer){"attention", (size_t)k->proj.in * column, KEEP_UNLESS_FULL,
                                      UNIT_PARTS};
    list[LSE] = (struct unit_buffer){"attention lse", (size_t)(rows * k->heads) * sizeof(float),
                                     KEEP_UNLESS_FULL, 0};
    list[SUM2] = (struct unit_buffer){"sum 2", c, KEEP_UNLESS_FULL, sums};
    list[STATS2] = (struct unit_buffer){"norm 2 statistics", stats, KEEP_UNLESS_FULL, 0};
    list[NORMED2] = (struct unit_buffer){"normed 2", normed > d_attn ? normed : d_attn,
                                         KEEP_UNLESS_SELECTIVE, UNIT_PARTS};
    list[PRE] =
        (struct unit_buffer){"mlp", (size_t)k->up.out * column, KEEP_UNLESS_FULL, UNIT_PARTS};
    list[ACT] =
        (struct unit_buffer){"mlp activation", act > c ? act : c,
                             k->gated ? KEEP_NOT : KEEP_UNLESS_SELECTIVE, passes | UNIT_PARTS};
    list[SCRATCH] = (struct unit_buffer){"block scratch", attention > norm ? attention : norm,
                                         KEEP_NOT, passes | input};
    list[GATHERED] = (struct unit_buffer){
        "gathered rows", sequence && k->tp_group.regather ? full : 0, KEEP_NOT, passes | weight};
    list[PARTIAL] = (struct unit_buffer){"rows to be summed", parallel ? full : 0, KEEP_NOT,
                                         (sequence ? passes : backward) | input};
    list[D_ROWS] =
        (struct unit_buffer){"gradient of all rows", sequence ? full : 0, KEEP_NOT, backward};
    list[MEETING] = (struct unit_buffer){"tensor parallel scratch",
                                         region_scratch(&k->tp_group, ops, sequence, rows, width),
                                         KEEP_NOT, passes | input};
    list_parts(k, ops, shape, list);
    return BUFFER_COUNT;
}

struct block_buffers block_buffers_of(const struct block *k, const struct unit_run *run)
{
    void *const *at = run->buffers;
    int64_t own = unit_stream_rows(run->shape);
    bool rms = k->norm.kind == NORM_RMS;
    float *stats1 = at[STATS1], *stats2 = at[STATS2];
    struct region region = region_of(&k->tp_group, run, k->norm.width, at[MEETING]);
    bool regather = region.sequence && k->tp_group.regather;
    struct block_buffers b = {
        .region = region,
        .rows = run->shape.batch * run->shape.tokens,
        .own = own,
        .norm1 = {.sum = at[SUM1],
                  .rstd = stats1,
                  .mean = rms ? NULL : stats1 + own,
                  .normed = regather ? at[NORMED1] : region_own(&region, own, at[NORMED1]),
                  .full = regather ? at[GATHERED] : at[NORMED1]},
        .qkv = at[QKV],
        .attn = at[ATTN],
        .lse = at[LSE],
        .norm2 = {.sum = at[SUM2],
                  .rstd = stats2,
                  .mean = rms ? NULL : stats2 + own,
                  .normed = regather ? at[NORMED2] : region_own(&region, own, at[NORMED2]),
                  .full = regather ? at[GATHERED] : at[NORMED2]},
        .d_normed = at[D_NORMED],
        .d_attn = run->pass == PASS_BACKWARD_INPUT ? at[D_NORMED] : at[NORMED2],
        .d_wide = at[D_WIDE],
        .d_out = region.sequence                    ? at[D_OUT]
                 : run->pass == PASS_BACKWARD_INPUT ? run->room
                                                    : at[SUM1],
        .d_mid = region.sequence ? at[D_MID] : at[SUM2],
        .partial = at[PARTIAL],
        .d_rows = at[D_ROWS],
        .pre = at[PRE],
        .act = at[ACT],
        .scratch = at[SCRATCH],
    };
    for (int i = 0; i < FORMED_COUNT && at[FORMED]; i++)
        b.formed[i] = (char *)at[FORMED] + (size_t)formed_at(k, i) * dtype_bytes(run->ops->type);
    return b;
}

static int64_t product_work(struct linear l, int64_t rows)
{
    return 2 * rows * l.in * l.out;
}

int64_t block_work(const struct unit *unit, struct unit_shape shape)
{
    const struct block *k = unit->self;
    int64_t rows = shape.batch * shape.tokens;
    int64_t attention = 2 * rows * shape.tokens * k->heads * k->head_width; /* half is masked */
    return product_work(k->qkv, rows) + product_work(k->proj, rows) + product_work(k->up, rows) +
           product_work(k->down, rows) + attention;
}

/* --- norms ---------------------------------------------------------------------------------- */

void block_add_norm(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                    const struct block_norm *n, const void *residual, const void *branch,
                    const void *weight, const void *bias)
{
    bool in_place = residual == n->sum && branch == NULL;
    ops_add_norm(run->ops, run->stream, k->norm, b->own,
                 &(struct add_norm){.residual = residual,
                                    .branch = branch,
                                    .weight = weight,
                                    .bias = bias,
                                    .sum = in_place ? NULL : n->sum,
                                    .y = n->normed,
                                    .mean = n->mean,
                                    .rstd = n->rstd});
}

void block_norm_again(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                      const struct block_norm *n, const void *weight, const void *bias)
{
    ops_norm_apply(run->ops, run->stream, k->norm, b->own,
                   &(struct norm_apply){.sum = n->sum,
                                        .weight = weight,
                                        .bias = bias,
                                        .mean = n->mean,
                                        .rstd = n->rstd,
                                        .y = n->normed});
}

void block_norm_backward(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                         const struct block_norm *n, struct norm_backward a)
{
    a.sum = n->sum;
    a.mean = n->mean;
    a.rstd = n->rstd;
    a.dsum = a.dsum_out = run->gradient;
    a.scratch = b->scratch;
    ops_norm_backward(run->ops, run->stream, k->norm, b->own, &a);
}

/* --- matrices that are split over ranks by rows or by columns -------------------------------- */

void block_row_linear(struct unit_run *run, const struct block_buffers *b, struct linear l,
                      const void *x, const void *w, const void *bias, void *y)
{
    const struct region *r = &b->region;
    void *partial = r->sequence ? b->partial : y;
    ops_linear(run->ops, run->stream, l, b->rows, x, w, r->tp_group->rank == 0 ? bias : NULL,
               partial);
    region_leave(r, b->own, partial, y);
}

void block_gather_normed(const struct block_buffers *b, const struct block_norm *n)
{
    enum region_call call = n == &b->norm1 ? REGION_STREAM : REGION_AGAIN;
    if (!b->region.tp_group->regather)
        region_begin_enter(&b->region, call, b->own, n->normed, n->full);
}

void block_await_normed(const struct block_buffers *b)
{
    region_await(&b->region, REGION_STREAM);
    region_await(&b->region, REGION_AGAIN);
}

const void *block_all_normed2(const struct block_buffers *b)
{
    if (!b->region.tp_group->regather)
        return b->norm2.full;
    return region_enter(&b->region, b->own, b->norm2.normed, b->norm2.full);
}

void block_gather_again(const struct block_buffers *b, const struct column *c)
{
    if (b->region.tp_group->regather && c->dw)
        region_begin_enter(&b->region, REGION_AGAIN, b->own, c->input->normed, c->input->full);
}

void *block_column_input(struct unit_run *run, const struct block_buffers *b, struct linear l,
                         const void *dy, const void *w, void *d_normed)
{
    const struct region *r = &b->region;
    void *full = r->parallel ? b->partial : d_normed, *dx = region_own(r, b->own, full);
    ops_linear_dx(run->ops, run->stream, l, b->rows, dy, w, full);
    region_leave(r, b->own, full, dx);
    return dx;
}

void block_column_weight(struct unit_run *run, const struct block_buffers *b,
                         const struct column *c)
{
    region_await(&b->region, REGION_AGAIN);
    ops_linear_dw(
        run->ops, run->stream, c->l, b->rows,
        &(struct linear_dw){.x = c->input->full, .dy = c->dy, .dw = c->dw, .dbias = c->dbias});
}

void *block_column_backward(struct unit_run *run, const struct block_buffers *b,
                            const struct column *c)
{
    const struct region *r = &b->region;
    if (!r->parallel) { /* the gradient overwrites the input */
        block_column_weight(run, b, c);
        ops_linear_dx(run->ops, run->stream, c->l, b->rows, c->dy, c->w, c->input->normed);
        return c->input->normed;
    }
    void *dx = region_own(r, b->own, b->partial);
    ops_linear_dx(run->ops, run->stream, c->l, b->rows, c->dy, c->w, b->partial);
    region_begin_leave(r, b->own, b->partial, dx);
    return dx;
}

void block_column_rest(struct unit_run *run, const struct block_buffers *b, const struct column *c)
{
    if (b->region.parallel)
        block_column_weight(run, b, c);
}

void block_end_input(struct unit_run *run, const struct block_buffers *b)
{
    size_t bytes = (size_t)(b->own * b->region.width) * dtype_bytes(run->ops->type);
    if (!b->region.sequence)
        device_copy(run->stream, b->norm1.sum, b->d_out, bytes);
}

void block_choose_formed(const struct unit *unit, struct block_buffers *b)
{
    for (int i = 0; i < FORMED_COUNT; i++) {
        bool partial = b->region.sequence && (i == FORMED_DOWN_BIAS || i == FORMED_PROJ_BIAS);
        int use = formed_use(unit->self, i);
        if (partial || use < 0 || unit->frozen >> use & 1)
            b->formed[i] = NULL;
    }
}

void block_hand_over(const struct block *k, struct unit_run *run, const struct block_buffers *b)
{
    for (int i = 0; i < FORMED_COUNT; i++) {
        int use = formed_use(k, i);
        if (use >= 0 && b->formed[i])
            device_copy(run->stream, run->grads[use], b->formed[i],
                        (size_t)formed_count(k, i) * dtype_bytes(run->ops->type));
    }
}

/* --- attention ------------------------------------------------------------------------------ */
/* The cache holds K, then V: (B, cache_tokens, G D) each. */
static size_t cache_half(const struct block *k, const struct ops *ops, int64_t batch,
                         int64_t tokens)
{
    return (size_t)(batch * tokens * k->kv_heads * k->head_width) * dtype_bytes(ops->type);
}

size_t block_cache_size(const struct block *k, const struct ops *ops, int64_t batch, int64_t tokens)
{
    return 2 * cache_half(k, ops, batch, tokens);
}

size_t block_cache_bytes(const struct unit *unit, const struct ops *ops, int64_t batch,
                         int64_t tokens)
{
    return block_cache_size(unit->self, ops, batch, tokens);
}

void block_attend(const struct block *k, struct unit_run *run, const struct block_buffers *b)
{
    struct attention a = block_attention(k, run->shape);
    bool cached = run->pass == PASS_DECODE;
    const float *rope = rope_for(&k->rope, cached ? run->cache_tokens : a.tokens);
    if (rope)
        ops_rope(run->ops, run->stream, a, rope, cached ? run->past : (struct past){0}, false,
                 b->qkv);
    if (!cached) {
        ops_attention(run->ops, run->stream, a, b->qkv, b->attn, b->lse, b->scratch);
        return;
    }
    size_t half = cache_half(k, run->ops, run->shape.batch, run->cache_tokens);
    ops_attention_cached(run->ops, run->stream, a,
                         &(struct attention_cached){.past = run->past,
                                                    .room = run->cache_tokens,
                                                    .qkv = b->qkv,
                                                    .cache_k = run->cache,
                                                    .cache_v = (char *)run->cache + half,
                                                    .out = b->attn,
                                                    .scratch = b->scratch});
}

void *block_attend_backward(const struct block *k, struct unit_run *run,
                            const struct block_buffers *b, void *dbias)
{
    struct attention a = block_attention(k, run->shape);
    bool parts = run->pass == PASS_BACKWARD_INPUT;
    void *d_qkv = parts ? b->d_wide : b->act;
    ops_attention_backward(run->ops, run->stream, a,
                           &(struct attention_backward){.rope = rope_for(&k->rope, a.tokens),
                                                        .qkv = b->qkv,
                                                        .out = b->attn,
                                                        .lse = b->lse,
                                                        .dout = b->d_attn,
                                                        .dqkv = d_qkv,
                                                        .dbias = dbias,
                                                        .scratch = b->scratch});
    if (!parts)
        return d_qkv;
    device_copy(run->stream, b->qkv, d_qkv,
                (size_t)(b->rows * k->qkv.out) * dtype_bytes(run->ops->type));
    return b->qkv;
}
