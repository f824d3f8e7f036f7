/* block -- the parts of a block: buffers, norms, attention and its cache, and the matrices that are
 * split over ranks.
 *
 *     residual, pending -> sum1 -> normed1 -> qkv -> attn -> sum2 -> normed2 -> pre -> act -> room
 *                          kept    cheap      costly costly  costly  cheap      costly cheap
 *
 * Where the outputs of attention and MLP have norms, post1 and post2 keep their inputs, which are
 * costly. Where q and k have norms, `heads` has their inputs, which are costly, and qkv has the
 * outputs.
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
    HEADS,
    SQUARES,
    ATTN,
    LSE,
    POST1,
    POST_STATS1,
    SUM2,
    STATS2,
    NORMED2,
    PRE,
    ACT,
    POST2,
    POST_STATS2,
    D_BRANCH,
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
                              .window = k->window,
                              .scale = k->scale,
                              .cap = k->cap,
                              .rotary = k->rope.table ? k->rope.width : 0};
}

static bool has_head_norms(const struct block *k)
{
    return k->uses[BLOCK_Q_NORM] >= 0;
}

bool block_has_posts(const struct block *k)
{
    return k->uses[BLOCK_POST1] >= 0;
}

static struct head_rms head_norms(const struct block *k, int64_t rows)
{
    struct head_rms n = k->head_rms;
    n.rows = rows;
    return n;
}

/* Numbers that the norms of heads keep for `rows` rows. */
static int64_t head_numbers(const struct block *k, int64_t rows)
{
    return has_head_norms(k) ? rows * ops_head_groups(k->head_rms) : 0;
}

/* The use that a by-product is the gradient of; -1: none. An MLP that is gated, or whose GELU is
 * exact, forms its bias's gradient with that of the matrix, and so do qkv where q and k have norms,
 * and proj and down where their outputs have. */
static int formed_use(const struct block *k, int i)
{
    static const enum block_use uses[FORMED_COUNT] = {
        [FORMED_NORM1] = BLOCK_NORM1,         [FORMED_BIAS1] = BLOCK_NORM1_BIAS,
        [FORMED_NORM2] = BLOCK_NORM2,         [FORMED_BIAS2] = BLOCK_NORM2_BIAS,
        [FORMED_UP_BIAS] = BLOCK_UP_BIAS,     [FORMED_QKV_BIAS] = BLOCK_QKV_BIAS,
        [FORMED_DOWN_BIAS] = BLOCK_DOWN_BIAS, [FORMED_PROJ_BIAS] = BLOCK_PROJ_BIAS,
        [FORMED_Q_NORM] = BLOCK_Q_NORM,       [FORMED_K_NORM] = BLOCK_K_NORM,
        [FORMED_POST1] = BLOCK_POST1,         [FORMED_POST2] = BLOCK_POST2};
    bool elsewhere = ((k->gated || k->exact) && i == FORMED_UP_BIAS) ||
                     (has_head_norms(k) && i == FORMED_QKV_BIAS) ||
                     (block_has_posts(k) && (i == FORMED_DOWN_BIAS || i == FORMED_PROJ_BIAS));
    return elsewhere ? -1 : k->uses[uses[i]];
}

/* Elements of a by-product gradient: those of the norms, and of the biases whose gradients the
 * activation, attention or a norm forms. */
static int64_t formed_count(const struct block *k, int i)
{
    if (formed_use(k, i) < 0)
        return 0;
    switch (i) {
    case FORMED_UP_BIAS: return k->up.out;
    case FORMED_QKV_BIAS: return k->qkv.out;
    case FORMED_Q_NORM: return k->head_rms.whole ? k->proj.in : k->head_width;
    case FORMED_K_NORM: return (k->head_rms.whole ? k->kv_heads : 1) * k->head_width;
    default: return k->norm.width;
    }
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

/* The numbers of the norms of heads, before the rest of the scratch. */
static size_t dots_bytes(const struct block *k, int64_t rows)
{
    size_t unit = 64;
    return ((size_t)head_numbers(k, rows) * sizeof(double) + unit - 1) / unit * unit;
}

static size_t scratch_bytes(const struct block *k, const struct ops *ops, struct unit_shape shape)
{
    int64_t rows = shape.batch * shape.tokens;
    size_t most = ops_attention_scratch(ops, block_attention(k, shape));
    size_t norm = ops_norm_scratch(ops, k->norm, unit_stream_rows(shape));
    size_t heads = has_head_norms(k) ? ops_head_rms_scratch(ops, head_norms(k, rows)) : 0;
    most = norm > most ? norm : most;
    most = heads > most ? heads : most;
    return dots_bytes(k, rows) + most;
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
    size_t meeting = region_scratch(&k->tp_group, ops, sequence, rows, width);
    size_t numbers = region_numbers_scratch(&k->tp_group, head_numbers(k, rows));
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
    list[HEADS] = (struct unit_buffer){
        "q and k before their norms",
        has_head_norms(k) ? (size_t)((k->heads + k->kv_heads) * k->head_width) * column : 0,
        KEEP_UNLESS_FULL, 0};
    list[SQUARES] =
        (struct unit_buffer){"head norm statistics", (size_t)head_numbers(k, rows) * sizeof(double),
                             KEEP_UNLESS_FULL, 0};
    list[ATTN] = (struct unit_buffer){"attention", (size_t)k->proj.in * column, KEEP_UNLESS_FULL,
                                      UNIT_PARTS};
    list[LSE] = (struct unit_buffer){"attention lse", (size_t)(rows * k->heads) * sizeof(float),
                                     KEEP_UNLESS_FULL, 0};
    size_t post = block_has_posts(k) ? c : 0, post_stats = block_has_posts(k) ? stats : 0;
    list[POST1] = (struct unit_buffer){"output of attention", post, KEEP_UNLESS_FULL, 0};
    list[POST_STATS1] =
        (struct unit_buffer){"its norm's statistics", post_stats, KEEP_UNLESS_FULL, 0};
    list[POST2] = (struct unit_buffer){"output of mlp", post, KEEP_UNLESS_FULL, 0};
    list[POST_STATS2] =
        (struct unit_buffer){"its norm's statistics", post_stats, KEEP_UNLESS_FULL, 0};
    list[D_BRANCH] = (struct unit_buffer){"gradient of a branch", post, KEEP_NOT, backward | input};
    list[SUM2] = (struct unit_buffer){"sum 2", c, KEEP_UNLESS_FULL, sums};
    list[STATS2] = (struct unit_buffer){"norm 2 statistics", stats, KEEP_UNLESS_FULL, 0};
    list[NORMED2] = (struct unit_buffer){"normed 2", normed > d_attn ? normed : d_attn,
                                         KEEP_UNLESS_SELECTIVE, UNIT_PARTS};
    list[PRE] =
        (struct unit_buffer){"mlp", (size_t)k->up.out * column, KEEP_UNLESS_FULL, UNIT_PARTS};
    list[ACT] =
        (struct unit_buffer){"mlp activation", act > c ? act : c,
                             k->gated ? KEEP_NOT : KEEP_UNLESS_SELECTIVE, passes | UNIT_PARTS};
    list[SCRATCH] = (struct unit_buffer){"block scratch", scratch_bytes(k, ops, shape), KEEP_NOT,
                                         passes | input};
    list[GATHERED] = (struct unit_buffer){
        "gathered rows", sequence && k->tp_group.regather ? full : 0, KEEP_NOT, passes | weight};
    list[PARTIAL] = (struct unit_buffer){"rows to be summed", parallel ? full : 0, KEEP_NOT,
                                         (sequence ? passes : backward) | input};
    list[D_ROWS] =
        (struct unit_buffer){"gradient of all rows", sequence ? full : 0, KEEP_NOT, backward};
    list[MEETING] = (struct unit_buffer){
        "tensor parallel scratch", meeting > numbers ? meeting : numbers, KEEP_NOT, passes | input};
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
        .heads = at[HEADS],
        .squares = at[SQUARES],
        .attn = at[ATTN],
        .lse = at[LSE],
        .norm2 = {.sum = at[SUM2],
                  .rstd = stats2,
                  .mean = rms ? NULL : stats2 + own,
                  .normed = regather ? at[NORMED2] : region_own(&region, own, at[NORMED2]),
                  .full = regather ? at[GATHERED] : at[NORMED2]},
        .post1 = {.sum = at[POST1], .rstd = at[POST_STATS1]},
        .post2 = {.sum = at[POST2], .rstd = at[POST_STATS2]},
        .d_branch = at[D_BRANCH],
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
        .dots = at[SCRATCH],
    };
    if (b.dots)
        b.scratch = (char *)b.dots + dots_bytes(k, run->shape.batch * run->shape.tokens);
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

static void copy_rows(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                      void *to, const void *from)
{
    device_copy(run->stream, to, from,
                (size_t)(b->own * k->norm.width) * dtype_bytes(run->ops->type));
}

void block_add_norm(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                    const struct block_norm *n, const void *residual, const void *branch,
                    const void *weight, const void *bias)
{
    bool in_place = residual == n->sum && branch == NULL;
    if (!weight) {
        int64_t count = b->own * k->norm.width;
        if (branch)
            ops_add(run->ops, run->stream, count, residual, branch, n->sum);
        else if (!in_place)
            copy_rows(k, run, b, n->sum, residual);
        copy_rows(k, run, b, n->normed, n->sum);
        return;
    }
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
    if (!weight) {
        copy_rows(k, run, b, n->normed, n->sum);
        return;
    }
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
    if (!a.weight) {
        ops_add(run->ops, run->stream, b->own * k->norm.width, run->gradient, a.dy, run->gradient);
        return;
    }
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

void block_branch(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                  const struct branch *a)
{
    void *y = block_has_posts(k) ? a->post->sum : a->out;
    block_row_linear(run, b, a->l, a->x, a->w, a->bias, y);
    if (block_has_posts(k))
        ops_add_norm(
            run->ops, run->stream, k->norm, b->own,
            &(struct add_norm){
                .residual = y, .weight = a->post_weight, .y = a->out, .rstd = a->post->rstd});
}

const void *block_branch_backward(const struct block *k, struct unit_run *run,
                                  const struct block_buffers *b, const struct block_norm *post,
                                  const void *weight, void *dweight)
{
    if (!block_has_posts(k))
        return run->gradient;
    ops_norm_backward(run->ops, run->stream, k->norm, b->own,
                      &(struct norm_backward){.dy = run->gradient,
                                              .sum = post->sum,
                                              .weight = weight,
                                              .rstd = post->rstd,
                                              .dsum_out = b->d_branch,
                                              .dweight = dweight,
                                              .scratch = b->scratch});
    return b->d_branch;
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
    if (b->region.tp_group->regather && b->region.run->grads[c->use])
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

void block_weight(struct unit_run *run, const struct block_buffers *b, struct linear l, int use,
                  const void *x, const void *dy, void *dbias)
{
    struct unit_sums *sums = &run->sums;
    void *dw = run->grads[use];
    if (!dw || !sums->at[use] || !ops_sums_dw(run->ops, l, b->rows, sums->type, sums->several)) {
        ops_linear_dw(run->ops, run->stream, l, b->rows,
                      &(struct linear_dw){
                          .x = x, .dy = dy, .several = sums->several, .dw = dw, .dbias = dbias});
        return;
    }
    ops_linear_dw_sum(run->ops, run->stream, l, b->rows,
                      &(struct linear_dw_sum){.x = x,
                                              .dy = dy,
                                              .type = sums->type,
                                              .add = sums->add,
                                              .several = sums->several,
                                              .sum = sums->at[use],
                                              .dw = dw,
                                              .dbias = dbias});
    sums->added |= 1u << use;
}

void block_column_weight(struct unit_run *run, const struct block_buffers *b,
                         const struct column *c)
{
    region_await(&b->region, REGION_AGAIN);
    block_weight(run, b, c->l, c->use, c->input->full, c->dy, c->dbias);
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
    const float *rope = rope_for(&k->rope, cached ? run->text_tokens : a.tokens);
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

/* Where one norm is over the heads of all ranks, they add their sums. */
static void sum_heads(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                      const struct head_sums *a)
{
    ops_head_sums(run->ops, run->stream, head_norms(k, b->rows), a);
    if (k->head_rms.whole)
        region_add_numbers(&b->region, head_numbers(k, b->rows), a->sums);
}

void block_norm_heads(const struct block *k, struct unit_run *run, const struct block_buffers *b,
                      const void *q_weight, const void *k_weight)
{
    if (!has_head_norms(k))
        return;
    sum_heads(k, run, b, &(struct head_sums){.x = b->qkv, .sums = b->squares});
    ops_head_rms(
        run->ops, run->stream, head_norms(k, b->rows),
        &(struct head_rms_forward){
            .q = q_weight, .k = k_weight, .squares = b->squares, .kept = b->heads, .qkv = b->qkv});
}

static void head_norms_backward(const struct block *k, struct unit_run *run,
                                const struct block_buffers *b, const struct attend_backward *a,
                                void *d_qkv)
{
    sum_heads(
        k, run, b,
        &(struct head_sums){.x = b->heads, .dy = d_qkv, .q = a->q, .k = a->k, .sums = b->dots});
    ops_head_rms_backward(run->ops, run->stream, head_norms(k, b->rows),
                          &(struct head_rms_backward){.q = a->q,
                                                      .k = a->k,
                                                      .squares = b->squares,
                                                      .dots = b->dots,
                                                      .kept = b->heads,
                                                      .dqkv = d_qkv,
                                                      .dq = a->dq,
                                                      .dk = a->dk,
                                                      .scratch = b->scratch});
}

void *block_attend_backward(const struct block *k, struct unit_run *run,
                            const struct block_buffers *b, const struct attend_backward *norms)
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
                                                        .dbias = norms->dbias,
                                                        .scratch = b->scratch});
    if (has_head_norms(k))
        head_norms_backward(k, run, b, norms, d_qkv);
    if (!parts)
        return d_qkv;
    device_copy(run->stream, b->qkv, d_qkv,
                (size_t)(b->rows * k->qkv.out) * dtype_bytes(run->ops->type));
    return b->qkv;
}
