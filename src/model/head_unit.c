/* head_unit -- the last norm, the matrix to the vocabulary and the loss, in chunks of rows.
 *
 * The full logits (R, V) never exist. For one chunk of rows at a time:
 *
 *     normed = norm(residual + pending)       (chunk, C)
 *     logits = normed W^T                     (chunk, V)
 *     losses, and for training the gradient of the logits in place
 *     gradient of normed = d_logits W         (chunk, C)
 *     dW += d_logits^T normed                 (V, C)
 *
 * The chunks depend only on the shape and the back end, and so does the order of every sum. The
 * norm's backward runs once over all rows. A plain head has no norm: normed is the sum itself.
 *
 *     room       (N, C)      the sum of residual and pending, kept for the norm's backward
 *     gradient   (N, C)      PASS_LOSS: of the normed rows, then, in place, of the stream
 *
 * In a TP group each rank has some columns of the logits. The ranks exchange three numbers a row
 * (ops_cross_entropy_part), never the logits. In a sequence-parallel run a chunk consists of the
 * same own rows of every rank: each rank normalizes its own, they are gathered, and the gradient is
 * summed back to them. Only PASS_LOGITS assembles logits of all columns; it needs all rows of the
 * stream on every rank (shape.sequence 0).
 *
 * Letters: R rows, N of them this rank's, C width, V vocabulary.
 */
#include "comm/comm.h"
#include "model/model_impl.h"

enum {
    STATS /* rstd (N), then mean (N) */,
    NORMED,
    LOGITS,
    LOSSES,
    SCRATCH,
    PARTS,        /* (ranks, chunk, 3) parts of the loss from each rank's columns */
    D_NORMED,     /* sequence parallel: gradient of a chunk's normed rows, before it is summed */
    CHUNK_LABELS, /* sequence parallel */
    CHUNK_LOSSES, /* sequence parallel */
    COLUMNS,      /* PASS_LOGITS: a few rows of every rank's logits */
    MEETING,
    BUFFER_COUNT
};

enum {
    CHUNK_MIN = 512,  /* with fewer rows, reading the matrix and adding to its gradient dominate */
    COLUMNS_ROWS = 64 /* rows of logits that are assembled at a time */
};

int64_t head_chunk_rows(const struct ops *ops, int64_t rows, int64_t vocab)
{
    int64_t most = ops_chunk_logits(ops) / vocab / OPS_BLOCK * OPS_BLOCK;
    if (most < CHUNK_MIN)
        most = CHUNK_MIN;
    if (rows <= most)
        return rows;
    int64_t chunks = (rows + most - 1) / most; /* of nearly equal size */
    int64_t even = (rows + chunks - 1) / chunks;
    return (even + OPS_BLOCK - 1) / OPS_BLOCK * OPS_BLOCK;
}

static int64_t min2(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The number of ranks whose rows a chunk contains. */
static int64_t row_ranks_of(struct unit_shape shape)
{
    return shape.sequence != 0 ? shape.sequence : 1;
}

/* This rank's rows of a chunk: the same number on every rank. */
static int64_t own_chunk(const struct head_unit *k, const struct ops *ops, struct unit_shape shape)
{
    int64_t row_ranks = row_ranks_of(shape);
    return (head_chunk_rows(ops, shape.batch * shape.tokens, k->most) + row_ranks - 1) / row_ranks;
}

/* The head in one run: sizes, params and buffers by name. */
struct head {
    const struct head_unit *k;
    struct unit_run *run;
    struct region region;
    struct linear to_chunk;             /* the matrix, with the stride of the logits chunk */
    size_t element;                     /* bytes of one value */
    int64_t own, row_ranks;             /* N, and R / N ranks */
    const void *weight, *bias, *matrix; /* bias NULL: none */
    int matrix_use;
    float *rstd, *mean;
};

/* Rows of the logits chunk start where this back end is fast, whatever the vocabulary. */
static struct linear linear_to_chunk(const struct head_unit *k, const struct ops *ops)
{
    struct linear l = k->linear;
    l.y_stride = ops_row_stride(ops, l.out);
    return l;
}

static int matrix_use_of(const struct head_unit *k)
{
    return k->plain ? 0 : k->norm_bias ? 2 : 1;
}

static struct head head_of(const struct unit *unit, struct unit_run *run)
{
    const struct head_unit *k = unit->self;
    int64_t own = unit_stream_rows(run->shape);
    int matrix_use = matrix_use_of(k);
    float *stats = run->buffers[STATS];
    struct linear to_chunk = linear_to_chunk(k, run->ops);
    to_chunk.w_bf16 = run->bf16;
    return (struct head){.k = k,
                         .run = run,
                         .region =
                             region_of(&k->tp_group, run, k->norm.width, run->buffers[MEETING]),
                         .to_chunk = to_chunk,
                         .element = dtype_bytes(run->ops->type),
                         .own = own,
                         .row_ranks = row_ranks_of(run->shape),
                         .weight = k->plain ? NULL : run->params[0],
                         .bias = k->norm_bias ? run->params[1] : NULL,
                         .matrix = run->params[matrix_use],
                         .matrix_use = matrix_use,
                         .rstd = stats,
                         .mean = k->norm.kind == NORM_RMS ? NULL : stats + own};
}

/* Buffers that only a TP group needs; with one rank they have 0 bytes. */
static void list_shared(const struct head_unit *k, const struct ops *ops, struct unit_shape shape,
                        struct unit_buffer *list)
{
    bool parallel = k->tp_group.size > 1, sequence = shape.sequence != 0;
    int64_t chunk = own_chunk(k, ops, shape) * row_ranks_of(shape), few = min2(chunk, COLUMNS_ROWS);
    size_t element = dtype_bytes(ops->type), rows = (size_t)chunk, ranks = (size_t)k->tp_group.size;
    size_t part = OPS_LOSS_PART * sizeof(double), width = (size_t)k->norm.width;
    uint32_t losses = 1u << PASS_LOSS | 1u << PASS_EVAL, training = 1u << PASS_LOSS;

    list[PARTS] = (struct unit_buffer){"parts of losses", parallel ? ranks * rows * part : 0,
                                       KEEP_NOT, losses};
    list[D_NORMED] = (struct unit_buffer){
        "head rows to be summed", sequence ? rows * width * element : 0, KEEP_NOT, training};
    list[CHUNK_LABELS] = (struct unit_buffer){
        "labels of a chunk", sequence ? rows * sizeof(int32_t) : 0, KEEP_NOT, losses};
    list[CHUNK_LOSSES] = (struct unit_buffer){
        "losses of a chunk", sequence ? rows * sizeof(double) : 0, KEEP_NOT, losses};
    list[COLUMNS] = (struct unit_buffer){
        "logits of all ranks", parallel ? (ranks + 1) * (size_t)(few * k->most) * element : 0,
        KEEP_NOT, 1u << PASS_LOGITS};
    list[MEETING] = (struct unit_buffer){
        "tensor parallel scratch",
        region_scratch(&k->tp_group, ops, sequence, chunk, k->norm.width), KEEP_NOT, training};
}

static int head_unit_buffers(const struct unit *unit, const struct ops *ops,
                             struct unit_shape shape, struct unit_buffer *list)
{
    const struct head_unit *k = unit->self;
    int64_t rows = shape.batch * shape.tokens, own = unit_stream_rows(shape);
    size_t element = dtype_bytes(ops->type),
           chunk = (size_t)(own_chunk(k, ops, shape) * row_ranks_of(shape));
    size_t stats = (size_t)(k->norm.kind == NORM_RMS ? own : 2 * own) * sizeof(float);
    uint32_t losses = 1u << PASS_LOSS | 1u << PASS_EVAL, all = losses | 1u << PASS_LOGITS;

    list[STATS] = (struct unit_buffer){"head statistics", stats, KEEP_NOT, all};
    list[NORMED] = (struct unit_buffer){
        "head normed chunk", k->plain ? 0 : chunk * (size_t)k->norm.width * element, KEEP_NOT, all};
    list[LOGITS] = (struct unit_buffer){"logits chunk",
                                        chunk * (size_t)linear_to_chunk(k, ops).y_stride * element,
                                        KEEP_NOT, losses};
    list[LOSSES] = (struct unit_buffer){"losses", (size_t)rows * sizeof(double), KEEP_NOT, losses};
    list[SCRATCH] = (struct unit_buffer){"head scratch", ops_norm_scratch(ops, k->norm, own),
                                         KEEP_NOT, 1u << PASS_LOSS};
    list_shared(k, ops, shape, list);
    return BUFFER_COUNT;
}

static void *row_of(const struct head *h, const void *tensor, int64_t row)
{
    return tensor ? (char *)tensor + (size_t)(row * h->k->norm.width) * h->element : NULL;
}

/* --- chunks: own rows first .. first + count - 1 of every rank ------------------------------ */

/* Without a norm: write the sum of these rows to room, and return it. */
static const void *chunk_sum(const struct head *h, int64_t first, int64_t count)
{
    struct unit_run *run = h->run;
    const void *residual = row_of(h, run->residual, first);
    void *sum = row_of(h, run->room, first);
    if (run->pending)
        ops_add(run->ops, run->stream, count * h->k->norm.width, residual,
                row_of(h, run->pending, first), sum);
    else
        device_copy(run->stream, sum, residual, (size_t)(count * h->k->norm.width) * h->element);
    return sum;
}

/* Write the sum of these rows to room, and return their norm, (count x ranks, C). */
static const void *chunk_normed(const struct head *h, int64_t first, int64_t count)
{
    struct unit_run *run = h->run;
    void *normed = run->buffers[NORMED], *own = region_own(&h->region, count, normed);
    if (h->k->plain)
        return chunk_sum(h, first, count);
    ops_add_norm(run->ops, run->stream, h->k->norm, count,
                 &(struct add_norm){.residual = row_of(h, run->residual, first),
                                    .branch = row_of(h, run->pending, first),
                                    .weight = h->weight,
                                    .bias = h->bias,
                                    .sum = row_of(h, run->room, first),
                                    .y = own,
                                    .mean = h->mean ? h->mean + first : NULL,
                                    .rstd = h->rstd + first});
    return region_enter(&h->region, count, own, normed);
}

static const int32_t *chunk_labels(const struct head *h, int64_t first, int64_t count)
{
    struct unit_run *run = h->run;
    int32_t *labels = run->buffers[CHUNK_LABELS];
    if (!h->region.sequence)
        return run->labels + first;
    for (int64_t p = 0; p < h->row_ranks; p++)
        device_copy(run->stream, labels + p * count, run->labels + p * h->own + first,
                    (size_t)count * sizeof *labels);
    return labels;
}

/* losses (rows) of a chunk; with `gradient`, also the gradient of the logits, in place. */
static void chunk_losses(const struct head *h, int64_t rows, const int32_t *labels, bool gradient,
                         void *logits, double *losses)
{
    const struct head_unit *k = h->k;
    struct unit_run *run = h->run;
    double *parts = run->buffers[PARTS];
    struct logits l = {.vocab = k->linear.out,
                       .stride = h->to_chunk.y_stride,
                       .first_id = k->first_id,
                       .cap = k->logit_cap};
    if (!h->region.parallel) {
        ops_cross_entropy(run->ops, run->stream, l, rows,
                          &(struct cross_entropy){.labels = labels,
                                                  .gradient = gradient,
                                                  .scalars = run->scalars,
                                                  .logits = logits,
                                                  .losses = losses});
        return;
    }
    int64_t part = rows * OPS_LOSS_PART;
    double *mine = parts + k->tp_group.rank * part;
    ops_cross_entropy_part(run->ops, run->stream, l, rows, labels, logits, mine);
    comm_label(run->group, "parts of losses");
    comm_all_gather(run->group, mine, parts, part, DTYPE_F64, run->stream);
    ops_cross_entropy_join(run->ops, run->stream, l, rows, k->tp_group.size, parts,
                           &(struct cross_entropy){.labels = labels,
                                                   .gradient = gradient,
                                                   .scalars = run->scalars,
                                                   .logits = logits,
                                                   .losses = losses});
}

/* From the gradient of a chunk's logits, the gradients of the normed rows and of the matrix. */
static void chunk_gradients(const struct head *h, int64_t first, int64_t count, const void *normed,
                            const void *d_logits)
{
    struct unit_run *run = h->run;
    int64_t rows = count * h->row_ranks;
    void *own = row_of(h, run->gradient, first);
    void *partial = h->region.sequence ? run->buffers[D_NORMED] : own;
    ops_linear_dx(run->ops, run->stream, h->to_chunk, rows, d_logits, h->matrix, partial);
    region_begin_leave(&h->region, count, partial, own);
    ops_linear_dw(
        run->ops, run->stream, h->to_chunk, rows,
        &(struct linear_dw){
            .x = normed, .dy = d_logits, .add = first > 0, .dw = run->grads[h->matrix_use]});
    region_await(&h->region, REGION_STREAM);
}

/* PASS_LOSS and PASS_EVAL: losses of all rows; PASS_LOSS also writes the gradients. */
static void head_unit_loss(const struct unit *unit, struct unit_run *run)
{
    struct head head = head_of(unit, run), *h = &head;
    bool gradient = run->pass == PASS_LOSS;
    int64_t chunk = own_chunk(h->k, run->ops, run->shape);
    void *logits = run->buffers[LOGITS];
    double *each = run->buffers[LOSSES];
    for (int64_t first = 0; first < h->own; first += chunk) {
        int64_t count = min2(chunk, h->own - first), rows = count * h->row_ranks;
        double *some = h->region.sequence ? run->buffers[CHUNK_LOSSES] : each + first;
        const void *normed = chunk_normed(h, first, count);
        ops_linear(run->ops, run->stream, h->to_chunk, rows, normed, h->matrix, NULL, logits);
        chunk_losses(h, rows, chunk_labels(h, first, count), gradient, logits, some);
        for (int64_t p = 0; h->region.sequence && p < h->row_ranks; p++)
            device_copy(run->stream, each + p * h->own + first, some + p * count,
                        (size_t)count * sizeof *each);
        if (gradient)
            chunk_gradients(h, first, count, normed, logits);
    }
    ops_sum(run->ops, run->stream, h->own * h->row_ranks, each, run->loss);
    if (gradient && !h->k->plain)
        ops_norm_backward(run->ops, run->stream, h->k->norm, h->own,
                          &(struct norm_backward){.dy = run->gradient,
                                                  .sum = run->room,
                                                  .weight = h->weight,
                                                  .mean = h->mean,
                                                  .rstd = h->rstd,
                                                  .dsum_out = run->gradient,
                                                  .dweight = run->grads[0],
                                                  .dbias = h->k->norm_bias ? run->grads[1] : NULL,
                                                  .scratch = run->buffers[SCRATCH]});
}

/* --- logits --------------------------------------------------------------------------------- */

/* A few rows of logits, (count, V), from every rank's columns: gathered as one block per rank, then
 * copied row by row. */
static void assemble_logits(const struct head *h, int64_t count, const void *normed, char *logits)
{
    const struct head_unit *k = h->k;
    struct unit_run *run = h->run;
    size_t element = h->element, each = (size_t)(count * k->most) * element;
    char *mine = run->buffers[COLUMNS], *all = mine + each;
    ops_linear(run->ops, run->stream, k->linear, count, normed, h->matrix, NULL, mine);
    comm_label(run->group, "logits");
    comm_all_gather(run->group, mine, all, count * k->most, run->ops->type, run->stream);
    for (int r = 0; r < k->tp_group.size; r++) {
        struct unit_split part = part_of_vocab(&k->tp_group, k->vocab, r);
        size_t bytes = (size_t)part.count * element;
        for (int64_t i = 0; i < count; i++)
            device_copy(run->stream, logits + (size_t)(i * k->vocab + part.first) * element,
                        all + (size_t)r * each + (size_t)i * bytes, bytes);
    }
}

static void head_unit_logits(const struct unit *unit, struct unit_run *run)
{
    struct head h = head_of(unit, run);
    int64_t tokens = run->shape.tokens, last = run->logit_tokens;
    int64_t chunk = own_chunk(h.k, run->ops, run->shape);
    CHECK_LE(last, tokens);
    CHECK(!h.region.sequence);
    if (h.region.parallel)
        chunk = min2(chunk, COLUMNS_ROWS);
    for (int64_t b = 0; b < run->shape.batch; b++) {
        for (int64_t t = 0; t < last; t += chunk) {
            int64_t count = min2(chunk, last - t), row = b * tokens + tokens - last + t;
            char *logits = (char *)run->logits + (size_t)((b * last + t) * h.k->vocab) * h.element;
            const void *normed = chunk_normed(&h, row, count);
            if (h.region.parallel)
                assemble_logits(&h, count, normed, logits);
            else
                ops_linear(run->ops, run->stream, h.k->linear, count, normed, h.matrix, NULL,
                           logits);
            if (h.k->logit_cap > 0)
                ops_softcap(run->ops, run->stream, count * h.k->vocab, h.k->logit_cap, logits);
        }
    }
}

static int64_t head_unit_work(const struct unit *unit, struct unit_shape shape)
{
    const struct head_unit *k = unit->self;
    return 2 * shape.batch * shape.tokens * k->linear.in * k->linear.out;
}

static const struct unit_type head_type = {
    .name = "head",
    .reads =
        {[PASS_LOSS] = UNIT_ALL_USES, [PASS_EVAL] = UNIT_ALL_USES, [PASS_LOGITS] = UNIT_ALL_USES},
    .writes = {[PASS_LOSS] = UNIT_ALL_USES},
    .run = {[PASS_LOSS] = head_unit_loss,
            [PASS_EVAL] = head_unit_loss,
            [PASS_LOGITS] = head_unit_logits},
    .buffers = head_unit_buffers,
    .work = head_unit_work,
};

struct unit_type head_unit_type(const struct head_unit *k)
{
    struct unit_type type = head_type;
    type.takes_bf16[PASS_LOSS] = type.takes_bf16[PASS_EVAL] = 1u << matrix_use_of(k);
    return type;
}
