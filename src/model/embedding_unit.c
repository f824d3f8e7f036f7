/* embedding_unit -- tokens to the residual stream: a row of wte, plus a row of wpe where positions
 * are learned.
 *
 * Its output lies in the engine's room and is copied by the first block into its own sum, so
 * nothing is kept. Backward reads no parameter and fills whole gradients: rows of tokens that did
 * not occur become zero.
 */
#include "model/model_impl.h"

enum { WTE, WPE };

static struct embedding shape_of(const struct unit *unit, struct unit_shape shape)
{
    const struct embedding_unit *k = unit->self;
    return (struct embedding){.batch = shape.batch,
                              .tokens = shape.tokens,
                              .width = k->width,
                              .vocab = k->vocab,
                              .positions = k->positions};
}

static int embedding_unit_buffers(const struct unit *unit, const struct ops *ops,
                                  struct unit_shape shape, struct unit_buffer *list)
{
    list[0] =
        (struct unit_buffer){"embedding scratch", ops_embedding_scratch(ops, shape_of(unit, shape)),
                             KEEP_NOT, 1u << PASS_BACKWARD};
    return 1;
}

static void look_up(const struct unit *unit, struct unit_run *run, int64_t first)
{
    struct embedding e = shape_of(unit, run->shape);
    ops_embedding(run->ops, run->stream, e, run->tokens, run->params[WTE],
                  e.positions ? run->params[WPE] : NULL, first, run->room);
    run->out_residual = run->room;
    run->out_pending = NULL;
}

static void embedding_unit_forward(const struct unit *unit, struct unit_run *run)
{
    look_up(unit, run, 0);
}

static void embedding_unit_decode(const struct unit *unit, struct unit_run *run)
{
    look_up(unit, run, run->past);
}

static void embedding_unit_backward(const struct unit *unit, struct unit_run *run)
{
    struct embedding e = shape_of(unit, run->shape);
    ops_embedding_backward(run->ops, run->stream, e, run->tokens, run->gradient, run->grads[WTE],
                           e.positions ? run->grads[WPE] : NULL, run->buffers[0]);
}

const struct unit_type embedding_unit_type = {
    .name = "embedding",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES, [PASS_DECODE] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = embedding_unit_forward,
            [PASS_BACKWARD] = embedding_unit_backward,
            [PASS_DECODE] = embedding_unit_decode},
    .buffers = embedding_unit_buffers,
};
