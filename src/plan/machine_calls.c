/* machine_calls -- one measured call of an op in a profile: one table of fields for reading and
 * printing.
 *
 * The fields of a shape that an op needs must be present, and small enough for exact arithmetic. So
 * a call that was read can be described (ops_cases.h) and priced without further checks.
 */
#include <inttypes.h>
#include <math.h>
#include "plan/machine_file.h"

enum field_type { FIELD_COUNT, FIELD_INT, FIELD_BOOL, FIELD_REAL, FIELD_DTYPE, FIELD_NORM };

struct field {
    const char *key;
    enum field_type type;
    size_t offset;
};

#define FIELD(name, kind)                                    \
    {                                                        \
#name, FIELD_##kind, offsetof(struct ops_case, name) \
    }
static const struct field fields[] = {
    FIELD(rows, COUNT),
    FIELD(linear.in, COUNT),
    FIELD(linear.out, COUNT),
    FIELD(linear.out_in, BOOL),
    FIELD(norm.kind, NORM),
    FIELD(norm.width, COUNT),
    FIELD(norm.eps, REAL),
    FIELD(attention.batch, COUNT),
    FIELD(attention.tokens, COUNT),
    FIELD(attention.heads, COUNT),
    FIELD(attention.kv_heads, COUNT),
    FIELD(attention.head_width, COUNT),
    FIELD(attention.window, COUNT),
    FIELD(attention.cap, REAL),
    FIELD(embedding.batch, COUNT),
    FIELD(embedding.tokens, COUNT),
    FIELD(embedding.width, COUNT),
    FIELD(embedding.vocab, COUNT),
    FIELD(embedding.positions, COUNT),
    FIELD(embedding.first_id, COUNT),
    FIELD(embedding.id_count, COUNT),
    FIELD(routing.in, COUNT),
    FIELD(routing.groups, COUNT),
    FIELD(routing.width, COUNT),
    FIELD(routing.minus, BOOL),
    FIELD(routing.standardise, BOOL),
    FIELD(count, COUNT),
    FIELD(width, COUNT),
    FIELD(first, COUNT),
    FIELD(past, COUNT),
    FIELD(room, COUNT),
    FIELD(level, INT),
    FIELD(bad, COUNT),
    FIELD(from, DTYPE),
    FIELD(to, DTYPE),
    FIELD(bias, BOOL),
    FIELD(branch, BOOL),
    FIELD(add, BOOL),
    FIELD(act, BOOL),
    FIELD(columns, BOOL),
    FIELD(momentum, BOOL),
};
#undef FIELD
enum { FIELDS = sizeof fields / sizeof fields[0] };

static const char *const norm_words[] = {[NORM_LAYER] = "layer", [NORM_RMS] = "rms"};
static const double most_elements = 1e15; /* of a tensor: byte counts and products stay exact */

/* --- printing ------------------------------------------------------------------------------- */

static void print_field(const struct field *field, const struct ops_case *c, struct text *text)
{
    const char *at = (const char *)c + field->offset;
    int64_t whole = field->type == FIELD_COUNT  ? *(const int64_t *)at
                    : field->type == FIELD_INT  ? *(const int *)at
                    : field->type == FIELD_BOOL ? *(const bool *)at
                                                : 0;
    double real = field->type == FIELD_REAL ? *(const double *)at : 0;
    enum dtype type = field->type == FIELD_DTYPE ? *(const enum dtype *)at : DTYPE_F32;
    bool named = field->type == FIELD_NORM && c->norm.width > 0;
    if (whole == 0 && !(real > 0) && type == DTYPE_F32 && !named)
        return;
    text_printf(text, ", \"%s\": ", field->key);
    if (field->type == FIELD_BOOL)
        text_add(text, "true");
    else if (field->type == FIELD_REAL)
        text_json_real(text, real);
    else if (field->type == FIELD_DTYPE)
        text_printf(text, "\"%s\"", dtype_name(type));
    else if (named)
        text_printf(text, "\"%s\"", norm_words[c->norm.kind]);
    else
        text_printf(text, "%" PRId64, whole);
}

void machine_call_print(const struct ops_measured *call, struct text *text)
{
    text_printf(text, "{\"op\": \"%s\", \"type\": \"%s\"", call->shape.op, dtype_name(call->type));
    for (int i = 0; i < FIELDS; i++)
        print_field(&fields[i], &call->shape, text);
    text_add(text, ", \"seconds\": ");
    text_json_real(text, call->seconds);
    text_add(text, "}");
}

/* --- reading -------------------------------------------------------------------------------- */

static const struct field *find_field(const char *key)
{
    for (int i = 0; i < FIELDS; i++) {
        if (strcmp(fields[i].key, key) == 0)
            return &fields[i];
    }
    return NULL;
}

static bool read_type(const json_t *value, enum dtype *type)
{
    const char *word = json_string_value(value);
    return word && dtype_parse(word, type);
}

/* Returns false if the value has the wrong type or range. */
static bool read_field(const struct field *field, const json_t *value, struct ops_case *c)
{
    char *at = (char *)c + field->offset;
    const char *word = json_string_value(value);
    int64_t whole = json_integer_value(value), least = strcmp(field->key, "bad") == 0 ? -1 : 0;
    double real = json_number_value(value);
    switch (field->type) {
    case FIELD_COUNT:
        *(int64_t *)at = whole;
        return json_is_integer(value) && whole >= least && (double)whole <= most_elements;
    case FIELD_INT:
        *(int *)at = (int)whole;
        return json_is_integer(value) && whole >= 0 && whole < 32;
    case FIELD_BOOL: *(bool *)at = json_is_true(value); return json_is_boolean(value);
    case FIELD_REAL: *(double *)at = real; return machine_is_figure(value, false);
    case FIELD_DTYPE: return read_type(value, (enum dtype *)at);
    case FIELD_NORM:
        if (!word || (strcmp(word, "layer") != 0 && strcmp(word, "rms") != 0))
            return false;
        c->norm.kind = strcmp(word, "rms") == 0 ? NORM_RMS : NORM_LAYER;
        return true;
    }
    return false;
}

static const char *known_op(const char *name)
{
    for (int i = 0; name && i < ops_op_count; i++) {
        if (strcmp(ops_ops[i].name, name) == 0)
            return ops_ops[i].name;
    }
    return NULL;
}

static bool starts(const char *op, const char *with)
{
    return strncmp(op, with, strlen(with)) == 0;
}

static bool fits(double elements)
{
    return elements > 0 && elements <= most_elements;
}

/* Whether the call has the fields of the shape that its op reads. */
static bool is_whole(const struct ops_case *c)
{
    double rows = (double)c->rows;
    struct attention a = c->attention;
    struct embedding e = c->embedding;
    struct routing n = c->routing;
    if (strstr(c->op, "linear"))
        return fits(rows * (double)c->linear.in) && fits(rows * (double)c->linear.out) &&
               fits((double)c->linear.in * (double)c->linear.out);
    if (strstr(c->op, "norm"))
        return fits(rows * (double)c->norm.width);
    if (starts(c->op, "attention") || starts(c->op, "rope") || starts(c->op, "head_")) {
        double tokens = (double)(a.tokens + c->first) + (double)c->room;
        return a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.tokens > 0 &&
               (!starts(c->op, "attention_cached") ||
                (double)c->room >= (double)(c->past + a.tokens)) &&
               fits((double)a.batch * tokens * 3 * (double)a.heads * (double)a.head_width);
    }
    if (starts(c->op, "embedding"))
        return fits((double)e.batch * (double)e.tokens * (double)e.width) &&
               fits((double)e.vocab * (double)e.width) &&
               (double)e.positions * (double)e.width <= most_elements;
    if (starts(c->op, "route"))
        return n.width <= OPS_ROUTE_WIDTH && fits(rows * (double)n.in) &&
               fits(rows * (double)n.groups * (double)n.width);
    if (starts(c->op, "mas"))
        return fits((double)n.groups * (double)n.width);
    if (strstr(c->op, "glu") || starts(c->op, "cross_entropy"))
        return fits(2 * rows * (double)c->width);
    return c->count > 0;
}

enum status machine_call_read(const struct machine_reader *r, json_t *object, size_t index,
                              struct ops_measured *call)
{
    const char *key, *op = known_op(json_string_value(json_object_get(object, "op")));
    const json_t *seconds = json_object_get(object, "seconds");
    json_t *value;
    *call = (struct ops_measured){.shape = {.op = op}, .seconds = json_number_value(seconds)};
    if (!json_is_object(object) || !op)
        return FAIL(r->env, FORMAT,
                    "'%s': ops.measured[%zu]: \"op\" is not an operation of this sifr", r->origin,
                    index);
    if (!machine_is_figure(seconds, true))
        return FAIL(r->env, FORMAT, "'%s': ops.measured[%zu]: \"seconds\" is not a positive number",
                    r->origin, index);
    if (!read_type(json_object_get(object, "type"), &call->type))
        return FAIL(r->env, FORMAT,
                    "'%s': ops.measured[%zu]: \"type\" is not a type such as \"f32\"", r->origin,
                    index);
    json_object_foreach(object, key, value)
    {
        const struct field *field = find_field(key);
        if (strcmp(key, "op") == 0 || strcmp(key, "seconds") == 0 || strcmp(key, "type") == 0)
            continue;
        if (!field)
            return FAIL(r->env, FORMAT, "'%s': ops.measured[%zu]: unknown key \"%s\"", r->origin,
                        index, key);
        if (!read_field(field, value, &call->shape))
            return FAIL(r->env, FORMAT, "'%s': ops.measured[%zu]: invalid value of \"%s\"",
                        r->origin, index, key);
    }
    if (!is_whole(&call->shape))
        return FAIL(r->env, FORMAT, "'%s': ops.measured[%zu]: invalid shape for %s", r->origin,
                    index, op);
    return STATUS_OK;
}
