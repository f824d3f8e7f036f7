/* user_graph -- a user's units behind the unit interface.
 *
 * User units pass one tensor from unit to unit. A unit's input is copied into a buffer of its own,
 * which is kept in every mode, so that forward can be rerun from it. Its output goes to the
 * engine's room. A parameter that two units name is one param and a piece of its own; the other
 * parameters of a unit form one piece.
 */
#include <stdio.h>
#include <string.h>

#include "lib/lib_impl.h"

enum { BUFFER_INPUT, BUFFER_FIRST_KEPT };

/* --- the passes ----------------------------------------------------------------------------- */

static struct sifr_run public_run(const struct user_unit *user, const struct unit_run *run)
{
    return (struct sifr_run){
        .batch = run->shape.batch,
        .tokens = run->shape.tokens,
        .rows = run->shape.batch * run->shape.tokens,
        .ids = run->tokens,
        .labels = run->labels,
        .params = (const float *const *)run->params,
        .kept = (float *const *)(run->buffers + BUFFER_FIRST_KEPT),
        .loss_scale = run->scalars ? run->scalars->loss_scale : 0.0f,
        .loss = run->loss,
        .context = user->context,
    };
}

static size_t stream_bytes(const struct user_unit *user, struct unit_shape shape)
{
    return (size_t)(shape.batch * shape.tokens * user->width) * sizeof(float);
}

static const float *take_input(const struct user_unit *user, struct unit_run *run)
{
    if (!run->residual)
        return NULL;
    device_copy(run->stream, run->buffers[BUFFER_INPUT], run->residual,
                stream_bytes(user, run->shape));
    return run->buffers[BUFFER_INPUT];
}

/* PASS_FORWARD and PASS_REBUILD, which finds its input in the buffer. */
static void user_forward(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    struct sifr_run view = public_run(user, run);
    view.input = run->pass == PASS_REBUILD ? run->buffers[BUFFER_INPUT] : take_input(user, run);
    view.output = run->room;
    user->unit.forward(user->unit.user, &view);
    run->out_residual = run->room;
}

static void user_backward(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    struct sifr_run view = public_run(user, run);
    view.input = run->buffers[BUFFER_INPUT];
    view.grads = (float *const *)run->grads;
    view.gradient = run->gradient;
    user->unit.backward(user->unit.user, &view);
}

static void user_loss(const struct unit *unit, struct unit_run *run)
{
    const struct user_unit *user = unit->self;
    struct sifr_run view = public_run(user, run);
    view.input = take_input(user, run);
    if (run->pass == PASS_LOSS) {
        view.grads = (float *const *)run->grads;
        view.gradient = run->gradient;
    }
    user->unit.loss(user->unit.user, &view);
}

static int user_buffers(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                        struct unit_buffer *list)
{
    const struct user_unit *user = unit->self;
    (void)ops;
    list[BUFFER_INPUT] = (struct unit_buffer){"input", stream_bytes(user, shape), KEEP_ALWAYS, 0};
    for (int i = 0; i < user->kept_count; i++)
        list[BUFFER_FIRST_KEPT + i] = (struct unit_buffer){
            "kept", (size_t)(shape.batch * shape.tokens * user->unit.kept[i]) * sizeof(float),
            KEEP_UNLESS_FULL, 0};
    return BUFFER_FIRST_KEPT + user->kept_count;
}

static const struct unit_type inner_type = {
    .name = "user unit",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES,
              [PASS_REBUILD] = UNIT_ALL_USES,
              [PASS_BACKWARD] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = user_forward,
            [PASS_REBUILD] = user_forward,
            [PASS_BACKWARD] = user_backward},
    .buffers = user_buffers,
};

static const struct unit_type last_type = {
    .name = "user loss",
    .reads = {[PASS_LOSS] = UNIT_ALL_USES, [PASS_EVAL] = UNIT_ALL_USES},
    .writes = {[PASS_LOSS] = UNIT_ALL_USES},
    .run = {[PASS_LOSS] = user_loss, [PASS_EVAL] = user_loss},
    .buffers = user_buffers,
};

/* --- the tables ----------------------------------------------------------------------------- */

static enum status check_param(struct env *env, const char *unit, const struct sifr_param *param)
{
    if (!param->name || !*param->name || strlen(param->name) >= UNIT_NAME)
        return FAIL(env, CONFIG, "unit '%s': a parameter needs a name of at most %d bytes", unit,
                    UNIT_NAME - 1);
    if (param->dims < 1 || param->dims > 4)
        return FAIL(env, CONFIG, "parameter '%s': dims is %d; 1 to 4 are possible", param->name,
                    param->dims);
    for (int d = 0; d < param->dims; d++)
        if (param->shape[d] < 1 || param->shape[d] > INT32_MAX)
            return FAIL(env, CONFIG, "parameter '%s': shape[%d] is %lld", param->name, d,
                        (long long)param->shape[d]);
    return STATUS_OK;
}

static enum status check_unit(struct env *env, const struct sifr_unit *unit, bool last)
{
    if (!unit->name || strlen(unit->name) >= UNIT_NAME)
        return FAIL(env, CONFIG, "a unit needs a name of at most %d bytes", UNIT_NAME - 1);
    if (unit->param_count < 0 || unit->param_count > SIFR_MAX_PARAMS)
        return FAIL(env, CONFIG, "unit '%s' has %d parameters; at most %d", unit->name,
                    unit->param_count, SIFR_MAX_PARAMS);
    if (last && !unit->loss)
        return FAIL(env, CONFIG, "unit '%s' is the last one and has no loss function", unit->name);
    if (!last && (!unit->forward || !unit->backward))
        return FAIL(env, CONFIG, "unit '%s' has no forward or no backward function", unit->name);
    for (int i = 0; i < unit->param_count; i++)
        TRY(check_param(env, unit->name, &unit->params[i]));
    for (int i = 0; i < SIFR_MAX_KEPT; i++)
        if (unit->kept[i] < 0)
            return FAIL(env, CONFIG, "unit '%s': kept[%d] is negative", unit->name, i);
    return STATUS_OK;
}

/* How many units name this parameter; if several, it is tied. */
static int count_users(const struct sifr_model *model, const char *name)
{
    int users = 0;
    for (int u = 0; u < model->unit_count; u++)
        for (int i = 0; i < model->units[u].param_count; i++)
            users += strcmp(model->units[u].params[i].name, name) == 0;
    return users;
}

int user_graph_find(const struct unit_graph *graph, const char *name)
{
    for (int t = 0; t < graph->tensor_count; t++)
        if (strcmp(graph->tensors[t].name, name) == 0)
            return t;
    return -1;
}

static void add_param(struct user_graph *g, const struct sifr_param *param, int piece)
{
    int index = g->graph.param_count++;
    struct unit_tensor *tensor = &g->tensors[g->graph.tensor_count++];
    *tensor = (struct unit_tensor){.dims = param->dims,
                                   .init = (enum unit_init)param->init,
                                   .init_scale = param->scale,
                                   .decay = param->decay != 0};
    snprintf(tensor->name, sizeof tensor->name, "%s", param->name);
    memcpy(tensor->shape, param->shape, sizeof tensor->shape);
    g->params[index] = (struct unit_param){index, 1, piece};
    g->pieces[piece].param_count++;
}

static int add_piece(struct user_graph *g, const char *name)
{
    int piece = g->graph.piece_count++;
    g->pieces[piece] = (struct unit_piece){.first_param = g->graph.param_count};
    snprintf(g->pieces[piece].name, sizeof g->pieces[piece].name, "%s", name);
    return piece;
}

static bool same_shape(const struct unit_tensor *a, const struct sifr_param *b)
{
    if (a->dims != b->dims)
        return false;
    for (int d = 0; d < a->dims; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}

/* Add the new parameters of a unit: first those that only this unit uses, as one piece, then each
 * tied one as a piece of its own. */
static enum status add_params(struct env *env, struct user_graph *g, const struct sifr_model *model,
                              const struct sifr_unit *unit)
{
    int piece = -1;
    for (int tied = 0; tied < 2; tied++)
        for (int i = 0; i < unit->param_count; i++) {
            const struct sifr_param *param = &unit->params[i];
            int known = user_graph_find(&g->graph, param->name);
            if ((count_users(model, param->name) > 1) != tied)
                continue;
            if (known >= 0 && !same_shape(&g->tensors[known], param))
                return FAIL(
                    env, CONFIG,
                    "parameter '%s' of unit '%s' has another shape in the unit that shares it",
                    param->name, unit->name);
            if (known >= 0)
                continue;
            if (piece < 0 || tied)
                piece = add_piece(g, tied ? param->name : unit->name);
            add_param(g, param, piece);
        }
    return STATUS_OK;
}

static enum status build(struct sifr_context *context, const struct sifr_model *model,
                         struct user_graph *g)
{
    struct env *env = &context->env;
    for (int u = 0; u < model->unit_count; u++) {
        const struct sifr_unit *from = &model->units[u];
        struct unit *to = &g->units[u];
        bool last = u == model->unit_count - 1;
        TRY(check_unit(env, from, last));
        g->users[u] = (struct user_unit){.unit = *from, .context = context, .width = model->width};
        while (g->users[u].kept_count < SIFR_MAX_KEPT && from->kept[g->users[u].kept_count] > 0)
            g->users[u].kept_count++;
        *to = (struct unit){.type = last ? &last_type : &inner_type,
                            .self = &g->users[u],
                            .use_count = from->param_count};
        snprintf(to->name, sizeof to->name, "%s", from->name);
        TRY(add_params(env, g, model, from));
        for (int i = 0; i < from->param_count; i++)
            to->uses[i] =
                user_graph_find(&g->graph, from->params[i].name); /* each param has one tensor */
        g->graph.unit_count++;
    }
    return g->graph.param_count > 0 ? STATUS_OK : FAIL(env, CONFIG, "the model has no parameters");
}

static enum status alloc_tables(struct env *env, const struct sifr_model *model,
                                struct user_graph *g)
{
    size_t units = (size_t)model->unit_count, params = units * SIFR_MAX_PARAMS;
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", params, sizeof *g->tensors, &g->tensors));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", params, sizeof *g->params, &g->params));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", params, sizeof *g->pieces, &g->pieces));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", units, sizeof *g->units, &g->units));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", units, sizeof *g->users, &g->users));
    g->graph.tensors = g->tensors;
    g->graph.params = g->params;
    g->graph.pieces = g->pieces;
    g->graph.units = g->units;
    return STATUS_OK;
}

enum status user_graph_create(struct sifr_context *context, const struct sifr_model *model,
                              int64_t tokens, struct user_graph *g)
{
    struct env *env = &context->env;
    enum status st;
    *g = (struct user_graph){
        .graph = {.stream_width = model->width, .vocab = model->vocab, .context = tokens}};
    if (model->unit_count < 1 || model->width < 1 || model->vocab < 1)
        return FAIL(env, CONFIG, "a model needs units, a width and a vocabulary of at least one");
    TRY_OR(undo, alloc_tables(env, model, g));
    TRY_OR(undo, build(context, model, g));
    return STATUS_OK;
undo:
    user_graph_free(context, g);
    return st;
}

void user_graph_free(struct sifr_context *context, struct user_graph *g)
{
    mem_free(&context->env, g->users);
    mem_free(&context->env, g->units);
    mem_free(&context->env, g->pieces);
    mem_free(&context->env, g->params);
    mem_free(&context->env, g->tensors);
    *g = (struct user_graph){0};
}
