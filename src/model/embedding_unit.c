/* embedding_unit -- tokens to the residual stream: a row of wte, plus a row of wpe where positions
 * are learned.
 *
 * The output is in the engine's room, and the first block copies it into its own sum, so nothing is
 * kept. Backward reads no parameter and writes whole gradients: rows of tokens that did not occur
 * become zero.
 *
 * In a TP group each rank has some rows of wte. A rank writes zeros for the tokens that it does not
 * have, rank 0 adds the positions, and the sum over the ranks has the same bits as on one rank.
 * Backward needs the gradient of all rows on every rank; the gradient of wpe is then the same on
 * each.
 *
 * The input, token ids, has no gradient. When backward runs in two halves, the first keeps the
 * gradient of all rows and the second does the rest.
 */
#include "model/model_impl.h"

enum { WTE, WPE };
enum { SCRATCH, ROWS /* (R, C) of all ranks */, MEETING, D_OUT /* (R, C) */, BUFFER_COUNT };

static struct embedding shape_of(const struct unit *unit, struct unit_shape shape)
{
    const struct embedding_unit *k = unit->self;
    return (struct embedding){.batch = shape.batch,
                              .tokens = shape.tokens,
                              .width = k->width,
                              .vocab = k->vocab,
                              .positions = k->positions,
                              .first_id = k->first_id,
                              .id_count = k->id_count};
}

static int embedding_unit_buffers(const struct unit *unit, const struct ops *ops,
                                  struct unit_shape shape, struct unit_buffer *list)
{
    const struct embedding_unit *k = unit->self;
    int64_t rows = shape.batch * shape.tokens;
    bool sequence = shape.sequence != 0;
    size_t full = (size_t)(rows * k->width) * dtype_bytes(ops->type);
    uint32_t forward = 1u << PASS_FORWARD | 1u << PASS_DECODE, backward = 1u << PASS_BACKWARD;
    list[SCRATCH] =
        (struct unit_buffer){"embedding scratch", ops_embedding_scratch(ops, shape_of(unit, shape)),
                             KEEP_NOT, backward | 1u << PASS_BACKWARD_WEIGHT};
    list[ROWS] = (struct unit_buffer){"rows of all ranks", sequence ? full : 0, KEEP_NOT,
                                      forward | backward};
    list[D_OUT] = (struct unit_buffer){"embedding gradient", full, KEEP_NOT, UNIT_PARTS};
    list[MEETING] = (struct unit_buffer){
        "tensor parallel scratch", region_scratch(&k->tp_group, ops, sequence, rows, k->width),
        KEEP_NOT, forward};
    return BUFFER_COUNT;
}

static struct region region_here(const struct unit *unit, struct unit_run *run)
{
    const struct embedding_unit *k = unit->self;
    return region_of(&k->tp_group, run, k->width, run->buffers[MEETING]);
}

/* Multiply rows, or their gradient, by the factor; transformers rounds it, too. */
static void scale_rows(const struct unit *unit, struct unit_run *run, int64_t rows, void *x)
{
    const struct embedding_unit *k = unit->self;
    double factor = k->scale;
    unsigned char rounded[sizeof factor];
    if (k->scale == 0)
        return;
    dtype_convert(rounded, run->ops->type, &k->scale, DTYPE_F64, 1);
    dtype_convert(&factor, DTYPE_F64, rounded, run->ops->type, 1);
    ops_scale(run->ops, run->stream, rows * k->width, factor, x);
}

static void embedding_unit_forward(const struct unit *unit, struct unit_run *run)
{
    struct past past = run->pass == PASS_DECODE ? run->past : (struct past){0};
    struct embedding e = shape_of(unit, run->shape);
    struct region region = region_here(unit, run);
    e.wte_bf16 = run->bf16;
    bool adds_positions = e.positions != 0 && region.tp_group->rank == 0;
    void *rows = region.sequence ? run->buffers[ROWS] : run->room;
    ops_embedding(run->ops, run->stream, e, run->tokens, run->params[WTE],
                  adds_positions ? run->params[WPE] : NULL, past, rows);
    scale_rows(unit, run, e.batch * e.tokens, rows);
    region_leave(&region, unit_stream_rows(run->shape), rows, run->room);
    run->out_residual = run->room;
    run->out_pending = NULL;
}

static void scatter_back(const struct unit *unit, struct unit_run *run, const void *dy)
{
    struct embedding e = shape_of(unit, run->shape);
    ops_embedding_backward(run->ops, run->stream, e, run->tokens, dy, run->grads[WTE],
                           e.positions ? run->grads[WPE] : NULL, run->buffers[SCRATCH]);
}

static void embedding_unit_backward(const struct unit *unit, struct unit_run *run)
{
    struct region region = region_here(unit, run);
    int64_t own = unit_stream_rows(run->shape);
    if (unit_is_frozen(unit))
        return;
    scale_rows(unit, run, own, run->gradient);
    scatter_back(unit, run, region_enter(&region, own, run->gradient, run->buffers[ROWS]));
}

static void embedding_unit_input(const struct unit *unit, struct unit_run *run)
{
    struct region region = region_here(unit, run);
    if (unit_is_frozen(unit))
        return;
    scale_rows(unit, run, unit_stream_rows(run->shape), run->gradient);
    region_keep(&region, unit_stream_rows(run->shape), run->gradient, run->buffers[D_OUT]);
}

static void embedding_unit_weight(const struct unit *unit, struct unit_run *run)
{
    scatter_back(unit, run, run->buffers[D_OUT]);
}

const struct unit_type embedding_unit_type = {
    .name = "embedding",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES, [PASS_DECODE] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES, [PASS_BACKWARD_WEIGHT] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = embedding_unit_forward,
            [PASS_BACKWARD] = embedding_unit_backward,
            [PASS_BACKWARD_INPUT] = embedding_unit_input,
            [PASS_BACKWARD_WEIGHT] = embedding_unit_weight,
            [PASS_DECODE] = embedding_unit_forward},
    .takes_bf16 = {[PASS_FORWARD] = 1u << WTE},
    .buffers = embedding_unit_buffers,
};
