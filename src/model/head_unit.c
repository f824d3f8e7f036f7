/* head_unit -- the last norm, the matrix to the vocabulary and the loss, in chunks of rows.
 *
 * Logits never exist whole: a chunk of rows is normed, multiplied, turned into losses and (for
 * training) into its own gradient in place, from which come the chunk's share of the matrix's
 * gradient and the rows' gradient before the matrix. The chunks are a function of the shape and
 * the back end alone, so the order of every sum is. The norm's backward runs once over all rows.
 *
 *     room       (R, C)      the sum of residual and pending, kept for the norm's backward
 *     gradient   (R, C)      PASS_LOSS: of the normed rows, then, in place, of the stream
 *
 * Letters: R rows, C width, V vocabulary.
 */
#include "model/model_impl.h"

enum { STATS /* rstd (R), then mean (R) */, NORMED, LOGITS, LOSSES, SCRATCH, BUFFER_COUNT };

enum { CHUNK_MIN = 256 }; /* fewer rows spend their time adding to the matrix's gradient */

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

/* The head of one run: sizes, params and places by name. */
struct head {
    const struct head_unit *k;
    struct unit_run *run;
    size_t element;                     /* bytes of one value */
    const void *weight, *bias, *matrix; /* bias NULL: none */
    int matrix_use;
    float *rstd, *mean;
    void *normed; /* (chunk, C) */
};

static struct head head_of(const struct unit *unit, struct unit_run *run)
{
    const struct head_unit *k = unit->self;
    int64_t rows = run->shape.batch * run->shape.tokens;
    int matrix_use = k->norm_bias ? 2 : 1;
    float *stats = run->buffers[STATS];
    return (struct head){.k = k,
                         .run = run,
                         .element = dtype_bytes(run->ops->type),
                         .weight = run->params[0],
                         .bias = k->norm_bias ? run->params[1] : NULL,
                         .matrix = run->params[matrix_use],
                         .matrix_use = matrix_use,
                         .rstd = stats,
                         .mean = k->norm.kind == NORM_RMS ? NULL : stats + rows,
                         .normed = run->buffers[NORMED]};
}

static int head_unit_buffers(const struct unit *unit, const struct ops *ops,
                             struct unit_shape shape, struct unit_buffer *list)
{
    const struct head_unit *k = unit->self;
    int64_t rows = shape.batch * shape.tokens;
    size_t element = dtype_bytes(ops->type),
           chunk = (size_t)head_chunk_rows(ops, rows, k->linear.out);
    size_t stats = (size_t)(k->norm.kind == NORM_RMS ? rows : 2 * rows) * sizeof(float);
    uint32_t losses = 1u << PASS_LOSS | 1u << PASS_EVAL, all = losses | 1u << PASS_LOGITS;

    list[STATS] = (struct unit_buffer){"head statistics", stats, KEEP_NOT, all};
    list[NORMED] = (struct unit_buffer){"head normed chunk",
                                        chunk * (size_t)k->norm.width * element, KEEP_NOT, all};
    list[LOGITS] = (struct unit_buffer){"logits chunk", chunk * (size_t)k->linear.out * element,
                                        KEEP_NOT, losses};
    list[LOSSES] = (struct unit_buffer){"losses", (size_t)rows * sizeof(double), KEEP_NOT, losses};
    list[SCRATCH] = (struct unit_buffer){"head scratch", ops_norm_scratch(ops, k->norm, rows),
                                         KEEP_NOT, 1u << PASS_LOSS};
    return BUFFER_COUNT;
}

static void *row_of(const struct head *h, const void *tensor, int64_t row)
{
    return tensor ? (char *)tensor + (size_t)(row * h->k->norm.width) * h->element : NULL;
}

/* Rows first .. first + count - 1: their sum to room, their norm to the chunk, their logits to
 * `logits`. */
static void chunk_logits(const struct head *h, int64_t first, int64_t count, void *logits)
{
    struct unit_run *run = h->run;
    ops_add_norm(run->ops, run->stream, h->k->norm, count, row_of(h, run->residual, first),
                 row_of(h, run->pending, first), h->weight, h->bias, row_of(h, run->room, first),
                 h->normed, h->mean ? h->mean + first : NULL, h->rstd + first);
    ops_linear(run->ops, run->stream, h->k->linear, count, h->normed, h->matrix, NULL, logits);
}

/* Losses of all rows; with `gradient`, the matrix's gradient and that of the normed rows too. */
static void losses(const struct head *h, bool gradient)
{
    struct unit_run *run = h->run;
    int64_t rows = run->shape.batch * run->shape.tokens, vocab = h->k->linear.out;
    int64_t chunk = head_chunk_rows(run->ops, rows, vocab);
    void *logits = run->buffers[LOGITS];
    double *each = run->buffers[LOSSES];
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = rows - first < chunk ? rows - first : chunk;
        chunk_logits(h, first, count, logits);
        ops_cross_entropy(run->ops, run->stream, count, vocab, run->labels + first, gradient,
                          run->scalars, logits, each + first);
        if (!gradient)
            continue;
        ops_linear_dw(run->ops, run->stream, h->k->linear, count, h->normed, logits, first > 0,
                      run->grads[h->matrix_use], NULL);
        ops_linear_dx(run->ops, run->stream, h->k->linear, count, logits, h->matrix,
                      row_of(h, run->gradient, first));
    }
    ops_sum(run->ops, run->stream, rows, each, run->loss);
}

static void head_unit_loss(const struct unit *unit, struct unit_run *run)
{
    struct head h = head_of(unit, run);
    losses(&h, true);
    ops_norm_backward(run->ops, run->stream, h.k->norm, run->shape.batch * run->shape.tokens,
                      run->gradient, run->room, h.weight, h.mean, h.rstd, NULL, run->gradient,
                      run->grads[0], h.k->norm_bias ? run->grads[1] : NULL, run->buffers[SCRATCH]);
}

static void head_unit_eval(const struct unit *unit, struct unit_run *run)
{
    struct head h = head_of(unit, run);
    losses(&h, false);
}

static void head_unit_logits(const struct unit *unit, struct unit_run *run)
{
    struct head h = head_of(unit, run);
    int64_t tokens = run->shape.tokens, last = run->logit_tokens, vocab = h.k->linear.out;
    int64_t chunk = head_chunk_rows(run->ops, run->shape.batch * tokens, vocab);
    CHECK_LE(last, tokens);
    for (int64_t b = 0; b < run->shape.batch; b++) {
        for (int64_t t = 0; t < last; t += chunk) {
            int64_t count = last - t < chunk ? last - t : chunk;
            char *logits = (char *)run->logits + (size_t)((b * last + t) * vocab) * h.element;
            chunk_logits(&h, b * tokens + tokens - last + t, count, logits);
        }
    }
}

static int64_t head_unit_work(const struct unit *unit, struct unit_shape shape)
{
    const struct head_unit *k = unit->self;
    return 2 * shape.batch * shape.tokens * k->linear.in * k->linear.out;
}

const struct unit_type head_unit_type = {
    .name = "head",
    .reads =
        {[PASS_LOSS] = UNIT_ALL_USES, [PASS_EVAL] = UNIT_ALL_USES, [PASS_LOGITS] = UNIT_ALL_USES},
    .writes = {[PASS_LOSS] = UNIT_ALL_USES},
    .run = {[PASS_LOSS] = head_unit_loss,
            [PASS_EVAL] = head_unit_eval,
            [PASS_LOGITS] = head_unit_logits},
    .buffers = head_unit_buffers,
    .work = head_unit_work,
};
