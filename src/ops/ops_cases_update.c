/* ops_cases_update -- descriptions of the rules of ops_update.
 *
 * Every call has two segments with factors of their own, cut at a multiple of the block. The second
 * starts inside a block of adamw8's. Their tables are written before the call.
 */
#include "ops/ops_cases_impl.h"

enum {
    SEGMENTS = 2,
    CODE_VALUES = 256,
    SKIP = 27 /* of the second segment */
};

/* A whole tensor that starts at a multiple of four; and runs of odd length, of which the first is
 * longer, which share blocks of random bits. */
const struct update_location ops_update_locations[SEGMENTS] = {
    {0x243f6a8885a308d3u, 1020, INT64_MAX, 0, 0, 0},
    {0x13198a2e03707344u, 3, 101, 203, 5, 2},
};

/* --- tensors -------------------------------------------------------------------------------- */

/* Elements of the first segment. */
static int64_t cut_of(const struct ops_case *c)
{
    return c->count / 2 / OPS_BLOCK * OPS_BLOCK;
}

static int64_t blocks_of(const struct ops_case *c)
{
    return cut_of(c) / OPS_BLOCK + (c->count - cut_of(c) + SKIP + OPS_BLOCK - 1) / OPS_BLOCK;
}

static void add_bytes(struct ops_call *call, const char *name, int64_t count, double least,
                      int64_t bound)
{
    struct ops_tensor *t = ops_add_tensor(call, name, OPS_IN_OUT, DTYPE_U8, count);
    t->draw = OPS_BELOW;
    t->center = least;
    t->bound = bound;
}

/* What every rule has; flops are those of one element. */
static void describe(struct ops_call *call, const struct ops_case *c, double flops)
{
    ops_add_tensor(call, "scalars", OPS_IN, DTYPE_F32, sizeof(struct step_scalars) / sizeof(float))
        ->draw = OPS_SCALARS;
    ops_add_tensor(call, "grad", OPS_IN, c->from, c->count);
    ops_add_tensor(call, "segments", OPS_SCRATCH, DTYPE_U8,
                   SEGMENTS * sizeof(struct update_segment));
    if (c->random)
        ops_add_tensor(call, "locations", OPS_SCRATCH, DTYPE_U8, sizeof ops_update_locations);
    call->flops = flops * (double)c->count;
}

static void add_param(struct ops_call *call, const struct ops_case *c)
{
    ops_add_tensor(call, "param", OPS_IN_OUT, DTYPE_F32, c->count);
    if (c->to != DTYPE_F32)
        ops_add_tensor(call, "copy", OPS_OUT, c->to, c->count);
}

/* --- calls ---------------------------------------------------------------------------------- */

static char *past(const struct ops_call *call, const char *name, int64_t elements)
{
    const struct ops_tensor *t = ops_find_tensor(call, name);
    return t ? (char *)t->data + (size_t)elements * dtype_bytes(t->type) : NULL;
}

/* Elements first .. first + count - 1 of the call. */
static struct update_segment segment(const struct ops_case *c, const struct ops_call *call,
                                     int64_t first, int64_t count)
{
    return (struct update_segment){.count = count,
                                   .param = (float *)past(call, "param", first),
                                   .copy = past(call, "copy", first),
                                   .copy_type = c->to,
                                   .grad_type = c->from,
                                   .grad = past(call, "grad", first),
                                   .m = past(call, "m", first),
                                   .v = past(call, "v", first),
                                   .m_scale = (uint8_t *)past(call, "m_scale", first / OPS_BLOCK),
                                   .v_scale = (uint8_t *)past(call, "v_scale", first / OPS_BLOCK),
                                   .first = first,
                                   .key = 0xa4093822u};
}

static void run(struct ops *ops, struct stream *stream, const struct ops_case *c,
                const struct ops_call *call, enum update_rule rule)
{
    struct update_segment segments[SEGMENTS] = {segment(c, call, 0, cut_of(c)),
                                                segment(c, call, cut_of(c), c->count - cut_of(c))};
    segments[0].lr_mul = 1.0f;
    segments[0].decay = 0.1f;
    segments[0].scale = 3.0f;
    segments[1].lr_mul = 0.5f;
    segments[1].scale = 0.7f;
    segments[1].skip = rule == UPDATE_ADAMW8 ? SKIP : 0;
    struct update update = {.rule = rule,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .nesterov = c->nesterov,
                            OPS_AT(locations),
                            .number = OPS_UPDATE};
    device_copy(stream, ops_at(call, "segments"), segments, sizeof segments);
    if (update.locations)
        device_copy(stream, ops_at(call, "locations"), ops_update_locations,
                    sizeof ops_update_locations);
    ops_update(ops, stream, &update, ops_at(call, "scalars"), ops_at(call, "segments"), SEGMENTS);
}

/* --- the rules ------------------------------------------------------------------------------ */

OPS_DESCRIBE(adamw)
{
    (void)ops;
    describe(call, c, 16);
    add_param(call, c);
    ops_add_tensor(call, "m", OPS_IN_OUT, DTYPE_F32, c->count);
    ops_add_tensor(call, "v", OPS_IN_OUT, DTYPE_F32, c->count)->draw = OPS_SQUARES;
}

OPS_RUN(adamw)
{
    run(ops, stream, c, call, UPDATE_ADAMW);
}

OPS_DESCRIBE(adamw8)
{
    (void)ops;
    describe(call, c, 19);
    add_param(call, c);
    add_bytes(call, "m", c->count, 0, CODE_VALUES);
    add_bytes(call, "v", c->count, 0, CODE_VALUES);
    add_bytes(call, "m_scale", blocks_of(c), 120, 8);
    add_bytes(call, "v_scale", blocks_of(c), 120, 8);
}

OPS_RUN(adamw8)
{
    run(ops, stream, c, call, UPDATE_ADAMW8);
}

OPS_DESCRIBE(sgd)
{
    (void)ops;
    describe(call, c, c->momentum ? 7 : 5);
    add_param(call, c);
    if (c->momentum)
        ops_add_tensor(call, "m", OPS_IN_OUT, DTYPE_F32, c->count);
}

OPS_RUN(sgd)
{
    run(ops, stream, c, call, UPDATE_SGD);
}

OPS_DESCRIBE(muon)
{
    (void)ops;
    describe(call, c, 4);
    ops_add_tensor(call, "m", OPS_IN_OUT, DTYPE_F32, c->count);
    ops_add_tensor(call, "copy", OPS_OUT, c->to, c->count);
}

OPS_RUN(muon)
{
    run(ops, stream, c, call, UPDATE_MUON);
}

OPS_DESCRIBE(apply)
{
    (void)ops;
    describe(call, c, 5);
    add_param(call, c);
}

OPS_RUN(apply)
{
    run(ops, stream, c, call, UPDATE_APPLY);
}
