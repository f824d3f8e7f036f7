/* user_model -- checks and copies a program's model, and builds the tables that store and engine
 * work with. A parameter that two units name is one param and a piece of its own; the other
 * parameters of a unit form one piece. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/lib_impl.h"

/* --- entries of the program's tables -------------------------------------------------------- */

/* Sizes of the first version: entries are at least this long. */
enum {
    PARAM_LEAST = offsetof(struct sifr_param, decay) + sizeof(int),
    BUFFER_LEAST = offsetof(struct sifr_buffer, lifetime) + sizeof(enum sifr_lifetime),
    UNIT_LEAST = offsetof(struct sifr_unit, work) + sizeof(double),
    INPUT_LEAST = offsetof(struct sifr_input, masked) + sizeof(int),
    MODEL_LEAST = offsetof(struct sifr_model, user) + sizeof(void *),
};

void copy_entry(void *to, size_t bytes, const void *table, size_t stride, int i)
{
    memset(to, 0, bytes);
    memcpy(to, (const char *)table + (size_t)i * stride, stride < bytes ? stride : bytes);
}

static struct sifr_unit unit_at(const struct sifr_model *model, int u)
{
    struct sifr_unit unit;
    copy_entry(&unit, sizeof unit, model->units, model->unit_size, u);
    return unit;
}

static struct sifr_param param_at(const struct sifr_unit *unit, int i)
{
    struct sifr_param param;
    copy_entry(&param, sizeof param, unit->params, unit->param_size, i);
    return param;
}

static enum status check_table(struct env *env, const char *what, const void *table, int count,
                               int most, size_t stride, size_t least)
{
    if (count < 0 || count > most)
        return FAIL(env, CONFIG, "%s: %d entries; 0 to %d are possible", what, count, most);
    if (count > 0 && (!table || stride < least))
        return FAIL(env, CONFIG,
                    "%s: %s; set pointer, count and entry size with SIFR_TABLE or sizeof", what,
                    table ? "the size of an entry is too small" : "there is no table");
    return STATUS_OK;
}

/* --- checks --------------------------------------------------------------------------------- */

static enum status check_name(struct env *env, const char *what, const char *owner,
                              const char *name)
{
    if (name && *name && strlen(name) < UNIT_NAME)
        return STATUS_OK;
    return FAIL(env, CONFIG, "%s%s%s needs a name of 1 to %d bytes", owner, *owner ? ": " : "",
                what, UNIT_NAME - 1);
}

static bool is_printable(const char *name)
{
    for (; *name; name++)
        if (*name < ' ' || *name > '~')
            return false;
    return true;
}

static enum status check_param(struct env *env, const char *unit, const struct sifr_param *param)
{
    TRY(check_name(env, "a parameter", unit, param->name));
    if (param->dims < 1 || param->dims > 4)
        return FAIL(env, CONFIG, "parameter '%s': dims is %d; 1 to 4 are possible", param->name,
                    param->dims);
    for (int d = 0; d < param->dims; d++)
        if (param->shape[d] < 1 || param->shape[d] > INT32_MAX)
            return FAIL(env, CONFIG, "parameter '%s': shape[%d] is %lld", param->name, d,
                        (long long)param->shape[d]);
    if (param->init < SIFR_ZERO || param->init > SIFR_UNIFORM || !isfinite(param->scale))
        return FAIL(env, CONFIG, "parameter '%s': init is %d, scale %g", param->name,
                    (int)param->init, param->scale);
    if (param->matrices < 0 ||
        (param->matrices > 0 && (param->dims != 2 || param->shape[1] % param->matrices != 0)))
        return FAIL(env, CONFIG,
                    "parameter '%s': matrices is %lld; it needs 2 dims and must divide shape[1]",
                    param->name, (long long)param->matrices);
    if (strcmp(param->name, "__metadata__") == 0 || !is_printable(param->name))
        return FAIL(env, CONFIG,
                    "parameter '%s': files cannot hold this name; use printable ASCII other than "
                    "__metadata__",
                    param->name);
    return STATUS_OK;
}

static enum status check_functions(struct env *env, const struct sifr_unit *unit, bool last)
{
    if (last && !unit->loss)
        return FAIL(env, CONFIG, "unit '%s' is the last one and has no loss function", unit->name);
    if (last && (unit->forward || unit->backward || unit->weights || unit->residual))
        return FAIL(env, CONFIG,
                    "unit '%s' is the last one: it has a loss function only, and no residual",
                    unit->name);
    if (!last && unit->loss)
        return FAIL(env, CONFIG, "unit '%s' has a loss function, but it is not the last one",
                    unit->name);
    if (!last && (!unit->forward || !unit->backward))
        return FAIL(env, CONFIG, "unit '%s' has no forward or no backward function", unit->name);
    return STATUS_OK;
}

static enum status check_widths(struct env *env, const struct sifr_unit *unit, int64_t in,
                                bool last)
{
    if (!last && (unit->width < 1 || unit->width > INT32_MAX))
        return FAIL(env, CONFIG, "unit '%s': width is %lld; it must be at least 1", unit->name,
                    (long long)unit->width);
    if (unit->residual < SIFR_ADD_INPUT || unit->residual > unit->buffer_count)
        return FAIL(env, CONFIG, "unit '%s': residual is %d; it has %d buffers", unit->name,
                    unit->residual, unit->buffer_count);
    if (unit->residual == SIFR_ADD_INPUT && unit->width != in)
        return FAIL(env, CONFIG,
                    "unit '%s' adds its input, so its width must be that of its input, %lld, not "
                    "%lld",
                    unit->name, (long long)in, (long long)unit->width);
    if (unit->adds && in == 0)
        return FAIL(env, CONFIG, "unit '%s' is the first one: it has no input to add", unit->name);
    if (unit->statistics < 0 || unit->statistics > INT32_MAX)
        return FAIL(env, CONFIG, "unit '%s': statistics is %lld", unit->name,
                    (long long)unit->statistics);
    return STATUS_OK;
}

static enum status check_buffer(struct env *env, const char *unit, const struct sifr_buffer *b)
{
    TRY(check_name(env, "a buffer", unit, b->name));
    if (b->per_row < 0 || b->fixed < 0 || b->per_row > INT32_MAX || b->fixed > INT64_C(1) << 40)
        return FAIL(env, CONFIG, "unit '%s', buffer '%s': %lld elements per row and %lld more",
                    unit, b->name, (long long)b->per_row, (long long)b->fixed);
    if (b->type < SIFR_F32 || b->type > SIFR_F64 || b->lifetime < SIFR_KEEP ||
        b->lifetime > SIFR_BETWEEN)
        return FAIL(env, CONFIG, "unit '%s', buffer '%s': type is %d, lifetime %d", unit, b->name,
                    (int)b->type, (int)b->lifetime);
    return STATUS_OK;
}

static enum status check_unit(struct env *env, const struct sifr_unit *unit, int64_t in, bool last)
{
    TRY(check_name(env, "a unit", "", unit->name));
    TRY(check_table(env, unit->name, unit->params, unit->param_count, SIFR_MAX_PARAMS,
                    unit->param_size, PARAM_LEAST));
    TRY(check_table(env, unit->name, unit->buffers, unit->buffer_count, SIFR_MAX_BUFFERS,
                    unit->buffer_size, BUFFER_LEAST));
    TRY(check_functions(env, unit, last));
    TRY(check_widths(env, unit, in, last));
    for (int i = 0; i < unit->param_count; i++) {
        struct sifr_param param = param_at(unit, i);
        TRY(check_param(env, unit->name, &param));
    }
    return STATUS_OK;
}

/* --- inputs --------------------------------------------------------------------------------- */

static enum status add_input(struct env *env, struct user_model *m, const struct sifr_input *input)
{
    static const size_t bytes[] = {[SIFR_F32] = 4, [SIFR_I32] = 4, [SIFR_U8] = 1};
    int i = m->graph.input_count;
    TRY(check_name(env, "an input", "", input->name));
    if (input->type != SIFR_F32 && input->type != SIFR_I32 && input->type != SIFR_U8)
        return FAIL(env, CONFIG, "input '%s': the type must be SIFR_I32, SIFR_F32 or SIFR_U8",
                    input->name);
    if (input->count < 1 || input->count > INT32_MAX || input->limit < 0)
        return FAIL(env, CONFIG, "input '%s': %lld elements per sample, limit %lld", input->name,
                    (long long)input->count, (long long)input->limit);
    snprintf(m->input_names[i], sizeof m->input_names[i], "%s", input->name);
    m->input_specs[i] = *input;
    m->input_specs[i].name = m->input_names[i];
    m->inputs[i] =
        (struct unit_input){m->input_names[i], (size_t)input->count * bytes[input->type]};
    if (input->type == SIFR_I32 && strcmp(input->name, "ids") == 0)
        m->ids = i;
    if (input->type == SIFR_I32 && strcmp(input->name, "labels") == 0)
        m->labels = i;
    m->graph.input_count++;
    return STATUS_OK;
}

static enum status add_inputs(struct env *env, struct user_model *m, const struct sifr_model *model,
                              int64_t tokens)
{
    const struct sifr_input language[] = {{"ids", SIFR_I32, tokens, model->vocab, 0},
                                          {"labels", SIFR_I32, tokens, model->vocab, 1}};
    m->ids = m->labels = -1;
    TRY(check_table(env, "inputs", model->inputs, model->input_count, SIFR_MAX_INPUTS,
                    model->input_size, INPUT_LEAST));
    if (model->input_count == 0 && model->vocab < 1)
        return FAIL(env, CONFIG, "a model needs inputs, or a vocab of at least 1 for token ids");
    for (int i = 0; model->input_count == 0 && i < 2; i++)
        TRY(add_input(env, m, &language[i]));
    for (int i = 0; i < model->input_count; i++) {
        struct sifr_input input;
        copy_entry(&input, sizeof input, model->inputs, model->input_size, i);
        TRY(add_input(env, m, &input));
    }
    return STATUS_OK;
}

/* What the loss of a micro-batch is divided by. */
static double count_batch(const struct unit_graph *graph, struct unit_shape shape,
                          const void *const *inputs)
{
    const struct user_model *m = graph->self;
    int64_t valid = 0;
    if (m->count)
        return m->count(m->user, shape.batch, shape.tokens, inputs);
    if (m->labels < 0)
        return (double)shape.batch;
    const int32_t *labels = inputs[m->labels];
    for (int64_t i = 0; i < shape.batch * m->input_specs[m->labels].count; i++)
        valid += labels[i] >= 0;
    return (double)valid;
}

/* --- tables --------------------------------------------------------------------------------- */

/* How many units name this parameter; if several, it is tied. */
static int count_users(const struct sifr_model *model, const char *name)
{
    int users = 0;
    for (int u = 0; u < model->unit_count; u++) {
        struct sifr_unit unit = unit_at(model, u);
        for (int i = 0; i < unit.param_count; i++)
            users += strcmp(param_at(&unit, i).name, name) == 0;
    }
    return users;
}

static int find_tensor(const struct unit_graph *graph, const char *name)
{
    for (int t = 0; t < graph->tensor_count; t++)
        if (strcmp(graph->tensors[t].name, name) == 0)
            return t;
    return -1;
}

static void add_param(struct user_model *m, const struct sifr_param *param, int piece)
{
    int index = m->graph.param_count++;
    struct unit_tensor *tensor = &m->tensors[m->graph.tensor_count++];
    *tensor = (struct unit_tensor){.dims = param->dims,
                                   .init = (enum unit_init)param->init,
                                   .init_scale = param->scale,
                                   .decay = param->decay != 0,
                                   .matrices = (int)param->matrices};
    snprintf(tensor->name, sizeof tensor->name, "%s", param->name);
    memcpy(tensor->shape, param->shape, sizeof tensor->shape);
    m->params[index] = (struct unit_param){index, 1, piece};
    m->pieces[piece].param_count++;
}

static int add_piece(struct user_model *m, const char *name)
{
    int piece = m->graph.piece_count++;
    m->pieces[piece] = (struct unit_piece){.first_param = m->graph.param_count};
    snprintf(m->pieces[piece].name, sizeof m->pieces[piece].name, "%s", name);
    return piece;
}

static bool same_shape(const struct unit_tensor *a, const struct sifr_param *b)
{
    return a->dims == b->dims && a->matrices == b->matrices &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape) == 0;
}

/* Add the new parameters of a unit: first those that only this unit uses, as one piece, then each
 * tied one as a piece of its own. */
static enum status add_params(struct env *env, struct user_model *m, const struct sifr_model *model,
                              const struct sifr_unit *unit)
{
    int piece = -1;
    for (int tied = 0; tied < 2; tied++)
        for (int i = 0; i < unit->param_count; i++) {
            struct sifr_param param = param_at(unit, i);
            int known = find_tensor(&m->graph, param.name);
            if ((count_users(model, param.name) > 1) != tied)
                continue;
            if (known >= 0 && !same_shape(&m->tensors[known], &param))
                return FAIL(
                    env, CONFIG,
                    "parameter '%s' of unit '%s' has another shape in the unit that shares it",
                    param.name, unit->name);
            if (known >= 0)
                continue;
            if (piece < 0 || tied)
                piece = add_piece(m, tied ? param.name : unit->name);
            add_param(m, &param, piece);
        }
    return STATUS_OK;
}

static enum status add_buffers(struct env *env, const struct sifr_unit *from,
                               struct user_unit *user)
{
    for (int i = 0; i < from->buffer_count; i++) {
        copy_entry(&user->buffers[i], sizeof user->buffers[i], from->buffers, from->buffer_size, i);
        TRY(check_buffer(env, from->name, &user->buffers[i]));
        snprintf(user->buffer_names[i], UNIT_NAME, "%s", user->buffers[i].name);
        user->buffers[i].name = user->buffer_names[i];
    }
    if (from->residual <= 0)
        return STATUS_OK;
    const struct sifr_buffer *added = &user->buffers[from->residual - 1];
    if (added->per_row != from->width || added->type != SIFR_F32 || added->lifetime != SIFR_KEEP)
        return FAIL(env, CONFIG,
                    "unit '%s' adds its buffer '%s', which must be kept and have %lld floats per "
                    "row",
                    from->name, added->name, (long long)from->width);
    return STATUS_OK;
}

static enum status add_unit(struct sifr_context *context, struct user_model *m,
                            const struct sifr_model *model, int u)
{
    struct env *env = &context->env;
    struct sifr_unit from = unit_at(model, u);
    struct user_unit *user = &m->users[u];
    struct unit *to = &m->units[u];
    int64_t in = u == 0 ? 0 : m->users[u - 1].unit.width;
    *user = (struct user_unit){.unit = from,
                               .buffers = m->buffers + u * SIFR_MAX_BUFFERS,
                               .context = context,
                               .model = m,
                               .whole = to,
                               .in_width = in};
    TRY(add_buffers(env, &from, user));
    *to = (struct unit){.type = user_unit_type(&from),
                        .self = user,
                        .in_width = in,
                        .out_width = from.width,
                        .use_count = from.param_count,
                        .first_statistic = m->graph.statistics,
                        .statistic_count = from.statistics};
    snprintf(to->name, sizeof to->name, "%s", from.name);
    user->unit.name = to->name;
    for (int other = 0; other < u; other++)
        if (strcmp(m->units[other].name, to->name) == 0)
            return FAIL(env, CONFIG, "two units have the name '%s'", to->name);
    TRY(add_params(env, m, model, &from));
    for (int i = 0; i < from.param_count; i++) /* each param has one tensor */
        to->uses[i] = find_tensor(&m->graph, param_at(&from, i).name);
    m->graph.statistics += from.statistics;
    m->graph.unit_count++;
    if (from.width > m->graph.stream_width)
        m->graph.stream_width = from.width;
    return STATUS_OK;
}

static enum status alloc_tables(struct env *env, int unit_count, struct user_model *m)
{
    size_t units = (size_t)unit_count, params = units * SIFR_MAX_PARAMS;
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", params, sizeof *m->tensors, &m->tensors));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", params, sizeof *m->params, &m->params));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", params, sizeof *m->pieces, &m->pieces));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", units, sizeof *m->units, &m->units));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", units, sizeof *m->users, &m->users));
    TRY(mem_alloc_array(env, MEM_OTHER, "graph", units * SIFR_MAX_BUFFERS, sizeof *m->buffers,
                        &m->buffers));
    m->graph.tensors = m->tensors;
    m->graph.params = m->params;
    m->graph.pieces = m->pieces;
    m->graph.units = m->units;
    return STATUS_OK;
}

static enum status build(struct sifr_context *context, const struct sifr_model *model,
                         const struct sifr_options *options, struct user_model *m)
{
    struct env *env = &context->env;
    TRY(check_table(env, "units", model->units, model->unit_count, 1 << 16, model->unit_size,
                    UNIT_LEAST));
    if (model->unit_count < 1)
        return FAIL(env, CONFIG, "a model needs at least one unit");
    TRY(alloc_tables(env, model->unit_count, m));
    TRY(add_inputs(env, m, model, options->tokens));
    m->graph.stream_width = 1;
    for (int u = 0; u < model->unit_count; u++) { /* all are checked before any is used */
        struct sifr_unit unit = unit_at(model, u);
        int64_t in = u == 0 ? 0 : unit_at(model, u - 1).width;
        TRY(check_unit(env, &unit, in, u == model->unit_count - 1));
    }
    for (int u = 0; u < model->unit_count; u++)
        TRY(add_unit(context, m, model, u));
    return m->graph.param_count > 0 ? STATUS_OK : FAIL(env, CONFIG, "the model has no parameters");
}

enum status user_model_create(struct sifr_context *context, const struct sifr_model *model,
                              const struct sifr_options *options, struct user_model *m)
{
    struct sifr_model copy;
    *m = (struct user_model){.checked = options->checked != 0};
    if (!model || !copy_sized(&copy, sizeof copy, model, MODEL_LEAST))
        return FAIL(&context->env, CONFIG,
                    "sifr_model: wrong size, or a field that this version does not know");
    m->count = copy.count;
    m->user = copy.user;
    m->graph = (struct unit_graph){.vocab = copy.vocab > 0 ? copy.vocab : 1,
                                   .context = options->tokens,
                                   .inputs = m->inputs,
                                   .count = count_batch,
                                   .self = m};
    enum status st = build(context, &copy, options, m);
    if (st != STATUS_OK)
        user_model_free(context, m);
    return st;
}

void user_model_free(struct sifr_context *context, struct user_model *m)
{
    mem_free(&context->env, m->buffers);
    mem_free(&context->env, m->users);
    mem_free(&context->env, m->units);
    mem_free(&context->env, m->pieces);
    mem_free(&context->env, m->params);
    mem_free(&context->env, m->tensors);
    *m = (struct user_model){0};
}
