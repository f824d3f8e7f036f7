/* user_unit -- the passes of a program's unit behind the unit interface.
 *
 * A unit's input is formed in a buffer of its own, which is kept in every mode, so that forward can
 * be rerun from it. The output goes to the engine's room. Of a `residual` unit the stream is a
 * pair, which the next unit adds.
 *
 * In checking mode a unit writes to memory of its own with guard zones, filled with a pattern.
 * After the pass the guards are compared, gradients are searched for the pattern, and the rest is
 * copied to where it belongs.
 */
#include <stdio.h>
#include <string.h>

#include "lib/lib_impl.h"

enum { BUFFER_INPUT, BUFFER_CHECKED, BUFFER_FIRST };
enum { GUARD = 64 };                        /* bytes behind each array in checking mode */
static const uint32_t PATTERN = 0x7fa5a5a5; /* a NaN that no arithmetic produces */

#define ALL_PASSES                                                                \
    (1u << PASS_FORWARD | 1u << PASS_REBUILD | 1u << PASS_BACKWARD | UNIT_PARTS | \
     1u << PASS_LOSS | 1u << PASS_EVAL)

static int64_t rows_of(struct unit_shape shape)
{
    return shape.batch * shape.tokens;
}

static size_t type_bytes(enum sifr_type type)
{
    switch (type) {
    case SIFR_F64: return 8;
    case SIFR_BF16:
    case SIFR_F16: return 2;
    case SIFR_U8: return 1;
    default: return 4;
    }
}

/* --- buffers -------------------------------------------------------------------------------- */

static size_t guarded(size_t bytes)
{
    return (bytes + 63) / 64 * 64 + GUARD;
}

static size_t stream_bytes(int64_t width, struct unit_shape shape)
{
    return (size_t)(rows_of(shape) * width) * sizeof(float);
}

static size_t buffer_bytes(const struct sifr_buffer *buffer, struct unit_shape shape)
{
    return (size_t)(buffer->per_row * rows_of(shape) + buffer->fixed) * type_bytes(buffer->type);
}

static size_t param_bytes(const struct user_unit *user, int use)
{
    const struct unit_graph *graph = &user->model->graph;
    return (size_t)unit_param_count(graph, user->whole->uses[use]) * sizeof(float);
}

/* The memory that checking mode needs: output, gradient, gradients of the parameters. */
static size_t checked_bytes(const struct user_unit *user, struct unit_shape shape)
{
    int64_t wide = user->in_width > user->unit.width ? user->in_width : user->unit.width;
    size_t bytes =
        guarded(stream_bytes(user->unit.width, shape)) + guarded(stream_bytes(wide, shape));
    for (int i = 0; i < user->unit.param_count; i++)
        bytes += guarded(param_bytes(user, i));
    return user->model->checked ? bytes : 0;
}

static int user_buffers(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                        struct unit_buffer *list)
{
    const struct user_unit *user = unit->self;
    (void)ops;
    list[BUFFER_INPUT] =
        (struct unit_buffer){"input", stream_bytes(user->in_width, shape), KEEP_ALWAYS, UNIT_PARTS};
    list[BUFFER_CHECKED] =
        (struct unit_buffer){"checked", checked_bytes(user, shape), KEEP_NOT, ALL_PASSES};
    for (int i = 0; i < user->unit.buffer_count; i++) {
        const struct sifr_buffer *b = &user->buffers[i];
        static const uint32_t passes[] = {[SIFR_KEEP] = UNIT_PARTS,
                                          [SIFR_SCRATCH] = ALL_PASSES,
                                          [SIFR_BETWEEN] = 1u << PASS_BACKWARD | UNIT_PARTS};
        list[BUFFER_FIRST + i] = (struct unit_buffer){
            b->name, buffer_bytes(b, shape) + (user->model->checked ? GUARD : 0),
            b->lifetime == SIFR_KEEP ? KEEP_UNLESS_FULL : KEEP_NOT, passes[b->lifetime]};
    }
    return BUFFER_FIRST + user->unit.buffer_count;
}

/* --- one call ------------------------------------------------------------------------------- */

static struct sifr_call public_call(const struct user_unit *user, enum sifr_pass pass,
                                    const struct unit_run *run)
{
    const struct user_model *m = user->model;
    bool scaled = run->scalars && !device_is_dry(run->ops->device);
    return (struct sifr_call){
        .size = sizeof(struct sifr_call),
        .pass = pass,
        .type = SIFR_F32,
        .batch = run->shape.batch,
        .tokens = run->shape.tokens,
        .rows = rows_of(run->shape),
        .inputs = run->inputs,
        .ids = m->ids < 0 ? NULL : run->inputs[m->ids],
        .labels = m->labels < 0 ? NULL : run->inputs[m->labels],
        .params = run->params,
        .buffers = run->buffers + BUFFER_FIRST,
        .input = user->in_width > 0 ? run->buffers[BUFFER_INPUT] : NULL,
        .loss_scale = scaled ? run->scalars->loss_scale : 0.0f,
        .loss = run->loss,
        .statistic = run->statistic,
        .context = user->context,
    };
}

typedef void user_fn(void *user, const struct sifr_call *call);

/* --- checking mode -------------------------------------------------------------------------- */

static void fill(void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof PATTERN; i++)
        memcpy((char *)at + i * sizeof PATTERN, &PATTERN, sizeof PATTERN);
}

static bool is_pattern(const void *at)
{
    return memcmp(at, &PATTERN, sizeof PATTERN) == 0;
}

static void fail(const struct user_unit *user, struct unit_run *run, const char *what,
                 const char *name, int64_t element)
{
    char where[48] = "";
    if (element >= 0)
        snprintf(where, sizeof where, ", element %lld", (long long)element);
    if (stream_failed(run->stream))
        return;
    stream_fail(run->stream, FAIL(&user->context->env, CONFIG, "unit '%s', %s pass: %s '%s'%s",
                                  user->unit.name, pass_word(run->pass), what, name, where));
}

/* One array that the unit writes: `from` is what it is given, `to` where it belongs. */
struct checked {
    const char *name;
    char *from;
    void *to;
    size_t bytes;
    bool must_write; /* every element */
};

enum { MOST_CHECKED = 2 + SIFR_MAX_PARAMS };

static struct checked *add_checked(struct checked *list, int *count, char **next, const char *name,
                                   void *to, size_t bytes)
{
    struct checked *c = &list[(*count)++];
    *c = (struct checked){.name = name, .from = *next, .to = to, .bytes = bytes};
    *next += guarded(bytes);
    fill(c->from, guarded(bytes));
    return c;
}

static void check_guard(const struct user_unit *user, struct unit_run *run, const char *name,
                        const char *end, size_t bytes)
{
    for (size_t i = 0; i + sizeof PATTERN <= bytes; i += sizeof PATTERN)
        if (!is_pattern(end + i)) {
            fail(user, run, "wrote past the end of", name, -1);
            return;
        }
}

static void end_checked(const struct user_unit *user, struct unit_run *run, const struct checked *c)
{
    check_guard(user, run, c->name, c->from + c->bytes, guarded(c->bytes) - c->bytes);
    for (size_t i = 0; c->must_write && i < c->bytes; i += sizeof(float))
        if (is_pattern(c->from + i)) {
            fail(user, run, "did not write", c->name, (int64_t)(i / sizeof(float)));
            break;
        }
    memcpy(c->to, c->from, c->bytes);
}

static void run_checked(const struct user_unit *user, struct unit_run *run, user_fn *fn,
                        struct sifr_call *call)
{
    struct checked list[MOST_CHECKED], *c;
    void *grads[SIFR_MAX_PARAMS];
    char *next = run->buffers[BUFFER_CHECKED];
    int count = 0;
    bool loss = run->pass == PASS_LOSS;
    if (call->output) {
        c = add_checked(list, &count, &next, "output", call->output,
                        stream_bytes(user->unit.width, run->shape));
        c->must_write = call->pass != SIFR_RECOMPUTE; /* its output is not used */
        call->output = c->from;
    }
    if (call->gradient) {
        int64_t before = loss ? 0 : user->unit.width, after = user->in_width;
        size_t bytes = stream_bytes(before > after ? before : after, run->shape);
        c = add_checked(list, &count, &next, "gradient", call->gradient, bytes);
        if (!loss)
            memcpy(c->from, call->gradient, stream_bytes(before, run->shape));
        c->must_write = loss && after > 0;
        call->gradient = c->from;
    }
    for (int i = 0; call->grads && i < user->unit.param_count; i++) {
        const struct unit_param *param = &user->model->graph.params[user->whole->uses[i]];
        c = add_checked(list, &count, &next, user->model->tensors[param->first_tensor].name,
                        call->grads[i], param_bytes(user, i));
        c->must_write = true;
        grads[i] = c->from;
    }
    if (call->grads)
        call->grads = grads;
    for (int i = 0; i < user->unit.buffer_count; i++)
        if (call->buffers[i])
            fill((char *)call->buffers[i] + buffer_bytes(&user->buffers[i], run->shape), GUARD);
    fn(user->unit.user, call);
    for (int i = 0; i < count; i++)
        end_checked(user, run, &list[i]);
    for (int i = 0; i < user->unit.buffer_count; i++)
        if (call->buffers[i])
            check_guard(user, run, user->buffers[i].name,
                        (char *)call->buffers[i] + buffer_bytes(&user->buffers[i], run->shape),
                        GUARD);
}

static void call_unit(const struct user_unit *user, struct unit_run *run, user_fn *fn,
                      struct sifr_call *call)
{
    if (device_is_dry(run->ops->device) || stream_failed(run->stream))
        return;
    if (user->model->checked)
        run_checked(user, run, fn, call);
    else
        fn(user->unit.user, call);
}

/* --- passes --------------------------------------------------------------------------------- */

/* Form the input from what the previous unit passed on, unless the unit does it itself. */
static void take_input(const struct user_unit *user, struct unit_run *run, struct sifr_call *call)
{
    int64_t count = rows_of(run->shape) * user->in_width;
    if (count == 0)
        return;
    if (user->unit.adds) {
        call->residual = run->residual;
        call->pending = run->pending;
        call->sum = run->buffers[BUFFER_INPUT];
    } else if (run->pending) {
        ops_add(run->ops, run->stream, count, run->residual, run->pending,
                run->buffers[BUFFER_INPUT]);
    } else {
        device_copy(run->stream, run->buffers[BUFFER_INPUT], run->residual,
                    (size_t)count * sizeof(float));
    }
}

static void user_forward(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    struct sifr_call call = public_call(user, SIFR_FORWARD, run);
    take_input(user, run, &call);
    call.output = run->room;
    call_unit(user, run, user->unit.forward, &call);
    int added = user->unit.residual;
    run->out_residual = added == 0                ? run->room
                        : added == SIFR_ADD_INPUT ? run->buffers[BUFFER_INPUT]
                                                  : run->buffers[BUFFER_FIRST + added - 1];
    run->out_pending = added == 0 ? NULL : run->room;
}

static void user_rebuild(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    struct sifr_call call = public_call(user, SIFR_RECOMPUTE, run);
    call.residual = user->unit.adds ? call.input : NULL;
    call.sum = user->unit.adds ? run->buffers[BUFFER_INPUT] : NULL;
    call.output = run->room;
    call_unit(user, run, user->unit.forward, &call);
}

static void user_backward(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    bool whole = run->pass == PASS_BACKWARD;
    struct sifr_call call = public_call(user, whole ? SIFR_BACKWARD : SIFR_BACKWARD_INPUT, run);
    call.grads = whole ? run->grads : NULL;
    call.gradient = run->gradient;
    call_unit(user, run, user->unit.backward, &call);
}

static void user_weights(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    struct sifr_call call = public_call(user, SIFR_BACKWARD_WEIGHT, run);
    call.params = NULL;
    call.grads = run->grads;
    call_unit(user, run, user->unit.weights, &call);
}

static void user_loss(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    bool learns = run->pass == PASS_LOSS;
    struct sifr_call call = public_call(user, learns ? SIFR_LOSS : SIFR_EVAL, run);
    take_input(user, run, &call);
    call.grads = learns ? run->grads : NULL;
    call.gradient = learns ? run->gradient : NULL;
    call_unit(user, run, user->unit.loss, &call);
}

/* The guess counts the elements of the unit's parameters: most units are matrix products. */
static int64_t user_work(const struct unit *unit, struct unit_shape shape)
{
    const struct user_unit *user = unit->self;
    double per_row = user->unit.work;
    for (int i = 0; user->unit.work <= 0 && i < user->unit.param_count; i++)
        per_row += 2.0 * (double)(param_bytes(user, i) / sizeof(float));
    return (int64_t)(per_row * (double)rows_of(shape));
}

static const struct unit_type inner_type = {
    .name = "user unit",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES,
              [PASS_REBUILD] = UNIT_ALL_USES,
              [PASS_BACKWARD] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = user_forward,
            [PASS_REBUILD] = user_rebuild,
            [PASS_BACKWARD] = user_backward},
    .buffers = user_buffers,
    .work = user_work,
    .differs = true,
};

static const struct unit_type split_type = {
    .name = "user unit with a split backward pass",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES,
              [PASS_REBUILD] = UNIT_ALL_USES,
              [PASS_BACKWARD] = UNIT_ALL_USES,
              [PASS_BACKWARD_INPUT] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES, [PASS_BACKWARD_WEIGHT] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = user_forward,
            [PASS_REBUILD] = user_rebuild,
            [PASS_BACKWARD] = user_backward,
            [PASS_BACKWARD_INPUT] = user_backward,
            [PASS_BACKWARD_WEIGHT] = user_weights},
    .buffers = user_buffers,
    .work = user_work,
    .differs = true,
};

static const struct unit_type last_type = {
    .name = "user loss",
    .reads = {[PASS_LOSS] = UNIT_ALL_USES, [PASS_EVAL] = UNIT_ALL_USES},
    .writes = {[PASS_LOSS] = UNIT_ALL_USES},
    .run = {[PASS_LOSS] = user_loss, [PASS_EVAL] = user_loss},
    .buffers = user_buffers,
    .work = user_work,
};

const struct unit_type *user_unit_type(const struct sifr_unit *unit)
{
    return unit->loss ? &last_type : unit->weights ? &split_type : &inner_type;
}
