/* machine_file -- objects of figures are tables of their fields, so that printing and reading
 * agree. */
#include "plan/machine_file.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "base/json_doc.h"
#include "base/printable.h"

static const char FORMAT_WORD[] = "sifr machine";
enum { VERSION = 1 };

struct figure { /* the last of a table has no key */
    const char *key;
    size_t offset; /* of a double */
    bool positive; /* a rate: must not be 0 */
};

static const struct figure rate_figures[] = {
    {"call", offsetof(struct ops_rate, call), false},
    {"flops_per_second", offsetof(struct ops_rate, flops_per_second), true},
    {"bytes_per_second", offsetof(struct ops_rate, bytes_per_second), true},
    {0},
};
static const struct figure wire_figures[] = {
    {"latency", offsetof(struct comm_wire, latency), false},
    {"message", offsetof(struct comm_wire, message), false},
    {"bytes_per_second", offsetof(struct comm_wire, bytes_per_second), true},
    {0},
};
static const struct figure comm_figures[] = {
    {"exchange", offsetof(struct comm_prices, exchange), false},
    {"theft", offsetof(struct comm_prices, theft), false},
    {"sum_bytes_per_second", offsetof(struct comm_prices, sum_bytes_per_second), true},
    {0},
};
static const struct figure offload_figures[] = {
    {"link_bytes_per_second", offsetof(struct machine_offload, link), false},
    {"disk_read_bytes_per_second", offsetof(struct machine_offload, disk_read), false},
    {"disk_write_bytes_per_second", offsetof(struct machine_offload, disk_write), false},
    {"host_update_bytes_per_second", offsetof(struct machine_offload, host_update), false},
    {0},
};
enum { MOST_FIGURES = 4 }; /* of a table */

/* --- printing ------------------------------------------------------------------------------- */

static void print_figures(struct text *text, const struct figure *figures, const void *from)
{
    for (int i = 0; figures[i].key; i++) {
        text_printf(text, "%s\"%s\": ", i ? ", " : "", figures[i].key);
        text_json_real(text, *(const double *)((const char *)from + figures[i].offset));
    }
}

static void print_object(struct text *text, const char *key, const struct figure *figures,
                         const void *from)
{
    text_printf(text, "\"%s\": {", key);
    print_figures(text, figures, from);
    text_add(text, "}");
}

static void print_ranks(struct text *text, const struct machine_ranks *ranks)
{
    if (ranks->ranks > 0)
        text_printf(text, "\"ranks\": %d, ", ranks->ranks);
    if (ranks->threads > 0)
        text_printf(text, "\"threads\": %d, ", ranks->threads);
}

/* Only the kinds that are slower in f32. */
static void print_f32_times(const struct ops_prices *ops, struct text *text)
{
    const char *before = "\"f32_times\": {";
    for (int k = 0; k < OPS_KIND_COUNT; k++)
        if (ops->f32_times[k] > 0) {
            text_printf(text, "%s\"%s\": ", before, ops_kind_word((enum ops_kind)k));
            text_json_real(text, ops->f32_times[k]);
            before = ", ";
        }
    if (before[0] == ',')
        text_add(text, "},\n    ");
}

static void print_ops(const struct machine_profile *profile, struct text *text)
{
    const struct ops_prices *ops = &profile->ops;
    text_add(text, ",\n  \"ops\": {\n    ");
    print_ranks(text, &profile->ops_ranks);
    text_add(text, "\"rates\": {");
    for (int k = 0; k < OPS_KIND_COUNT; k++) {
        text_add(text, k ? ",\n      " : "\n      ");
        print_object(text, ops_kind_word((enum ops_kind)k), rate_figures, &ops->rates[k]);
    }
    text_add(text, "},\n    ");
    print_f32_times(ops, text);
    if (ops->swiglu_alone)
        text_add(text, "\"swiglu_alone\": true, ");
    text_add(text, "\"copy_bytes_per_second\": ");
    text_json_real(text, profile->copy_bytes_per_second);
    text_add(text, ",\n    \"measured\": [");
    for (int i = 0; i < ops->measured_count; i++) {
        text_add(text, i ? ",\n      " : "\n      ");
        machine_call_print(&ops->measured[i], text);
    }
    text_add(text, "]},\n  ");
    print_object(text, "offload", offload_figures, &profile->offload);
}

static void print_comm(const struct machine_profile *profile, struct text *text)
{
    const struct comm_prices *comm = &profile->comm;
    text_add(text, ",\n  \"comm\": {\n    ");
    print_ranks(text, &profile->comm_ranks);
    print_object(text, "inside", wire_figures, &comm->inside);
    text_add(text, ",\n    ");
    print_object(text, "between", wire_figures, &comm->between);
    text_printf(text, ",\n    \"node\": %d, ", comm->node);
    print_figures(text, comm_figures, comm);
    text_add(text, "}");
}

void machine_file_print(const struct machine_profile *profile, struct text *text)
{
    text_printf(text, "{\n  \"format\": \"%s\", \"version\": %d,\n  \"name\": ", FORMAT_WORD,
                VERSION);
    text_json_string(text, profile->name, strlen(profile->name));
    text_printf(text, ", \"gpu\": %s, \"memory_bytes\": %zu", profile->gpu ? "true" : "false",
                profile->memory_bytes);
    if (profile->capability > 0)
        text_printf(text, ", \"capability\": %d", profile->capability);
    if (profile->has_ops)
        print_ops(profile, text);
    if (profile->has_comm)
        print_comm(profile, text);
    text_add(text, "\n}\n");
}

/* --- reading -------------------------------------------------------------------------------- */

/* Check that `object`, called `name`, has no other keys than these (NULL-terminated). */
static enum status check_keys(const struct machine_reader *r, const char *name, json_t *object,
                              const char *const *known)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return FAIL(r->env, FORMAT, "'%s': \"%s\" is missing, or not an object", r->origin, name);
    json_object_foreach(object, key, value)
    {
        int i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i])
            return FAIL(r->env, FORMAT, "'%s': unknown key \"%s\" in %s; check the spelling",
                        r->origin, key, name);
    }
    return STATUS_OK;
}

bool machine_is_figure(const json_t *value, bool positive)
{
    double figure = json_number_value(value);
    return json_is_number(value) && figure <= MACHINE_FILE_MOST &&
           (figure >= MACHINE_FILE_LEAST || (!positive && figure >= 0));
}

static enum status read_figure(const struct machine_reader *r, const char *name,
                               const json_t *object, const char *key, bool positive, double *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_number_value(value);
    if (machine_is_figure(value, positive))
        return STATUS_OK;
    return FAIL(r->env, FORMAT, "'%s': \"%s\" in %s is not a %s number, in SI units, up to %g",
                r->origin, key, name, positive ? "positive" : "non-negative", MACHINE_FILE_MOST);
}

static enum status read_count(const struct machine_reader *r, const json_t *object, const char *key,
                              int64_t most, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= 0 && *out <= most)
        return STATUS_OK;
    return FAIL(r->env, FORMAT, "'%s': \"%s\" is not a whole number from 0 to %" PRId64, r->origin,
                key, most);
}

/* The first files lack these counts: 0 then. */
static enum status read_ranks(const struct machine_reader *r, const json_t *object,
                              struct machine_ranks *ranks)
{
    int64_t count = 0, threads = 0;
    if (json_object_get(object, "ranks"))
        TRY(read_count(r, object, "ranks", 1 << 20, &count));
    if (json_object_get(object, "threads"))
        TRY(read_count(r, object, "threads", 1 << 20, &threads));
    *ranks = (struct machine_ranks){(int)count, (int)threads};
    return STATUS_OK;
}

static enum status read_figures(const struct machine_reader *r, const char *name,
                                const json_t *object, const struct figure *figures, void *out)
{
    for (int i = 0; figures[i].key; i++)
        TRY(read_figure(r, name, object, figures[i].key, figures[i].positive,
                        (double *)((char *)out + figures[i].offset)));
    return STATUS_OK;
}

static enum status read_object(const struct machine_reader *r, const char *name, json_t *object,
                               const struct figure *figures, void *out)
{
    const char *known[MOST_FIGURES + 1] = {NULL};
    for (int i = 0; figures[i].key; i++)
        known[i] = figures[i].key;
    TRY(check_keys(r, name, object, known));
    return read_figures(r, name, object, figures, out);
}

static enum status read_measured(const struct machine_reader *r, const json_t *list,
                                 struct ops_prices *ops)
{
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count > MACHINE_FILE_CALLS)
        return FAIL(r->env, FORMAT, "'%s': \"measured\" in ops is not a list of at most %d calls",
                    r->origin, (int)MACHINE_FILE_CALLS);
    if (count == 0)
        return STATUS_OK;
    TRY(mem_alloc_array(r->env, MEM_OTHER, "measured calls", count, sizeof *ops->measured,
                        &ops->measured));
    for (size_t i = 0; i < count; i++)
        TRY(machine_call_read(r, json_array_get(list, i), i, &ops->measured[i]));
    ops->measured_count = (int)count;
    ops_prices_sort(ops);
    return STATUS_OK;
}

/* Optional, as is each of its keys. */
static enum status read_f32_times(const struct machine_reader *r, json_t *object,
                                  const char *const *kinds, struct ops_prices *ops)
{
    if (!object)
        return STATUS_OK;
    TRY(check_keys(r, "ops.f32_times", object, kinds));
    for (int k = 0; k < OPS_KIND_COUNT; k++)
        if (json_object_get(object, kinds[k]))
            TRY(read_figure(r, "ops.f32_times", object, kinds[k], true, &ops->f32_times[k]));
    return STATUS_OK;
}

/* Optional. */
static enum status read_swiglu_alone(const struct machine_reader *r, const json_t *value,
                                     struct ops_prices *ops)
{
    if (value && !json_is_boolean(value))
        return FAIL(r->env, FORMAT, "'%s': \"swiglu_alone\" in ops is not true or false",
                    r->origin);
    ops->swiglu_alone = json_is_true(value);
    return STATUS_OK;
}

static enum status read_ops(const struct machine_reader *r, json_t *object,
                            struct machine_profile *profile)
{
    static const char *const known[] = {
        "ranks",    "threads", "rates", "f32_times", "swiglu_alone", "copy_bytes_per_second",
        "measured", NULL};
    const char *kinds[OPS_KIND_COUNT + 1] = {NULL};
    TRY(check_keys(r, "ops", object, known));
    TRY(read_ranks(r, object, &profile->ops_ranks));
    json_t *rates = json_object_get(object, "rates");
    for (int k = 0; k < OPS_KIND_COUNT; k++)
        kinds[k] = ops_kind_word((enum ops_kind)k);
    TRY(check_keys(r, "ops.rates", rates, kinds));
    for (int k = 0; k < OPS_KIND_COUNT; k++)
        TRY(read_object(r, kinds[k], json_object_get(rates, kinds[k]), rate_figures,
                        &profile->ops.rates[k]));
    TRY(read_f32_times(r, json_object_get(object, "f32_times"), kinds, &profile->ops));
    TRY(read_swiglu_alone(r, json_object_get(object, "swiglu_alone"), &profile->ops));
    TRY(read_figure(r, "ops", object, "copy_bytes_per_second", true,
                    &profile->copy_bytes_per_second));
    profile->has_ops = true;
    return read_measured(r, json_object_get(object, "measured"), &profile->ops);
}

static enum status read_comm(const struct machine_reader *r, json_t *object,
                             struct machine_profile *profile)
{
    static const char *const known[] = {"ranks", "threads",  "inside", "between",
                                        "node",  "exchange", "theft",  "sum_bytes_per_second",
                                        NULL};
    struct comm_prices *comm = &profile->comm;
    int64_t node;
    TRY(check_keys(r, "comm", object, known));
    TRY(read_ranks(r, object, &profile->comm_ranks));
    TRY(read_object(r, "inside", json_object_get(object, "inside"), wire_figures, &comm->inside));
    TRY(read_object(r, "between", json_object_get(object, "between"), wire_figures,
                    &comm->between));
    TRY(read_count(r, object, "node", 1 << 20, &node));
    comm->node = (int)node;
    profile->has_comm = true;
    return read_figures(r, "comm", object, comm_figures, comm);
}

static enum status read_name(const struct machine_reader *r, const json_t *root,
                             struct machine_profile *profile)
{
    const char *name = json_string_value(json_object_get(root, "name"));
    if (!name || strlen(name) >= sizeof profile->name)
        return FAIL(r->env, FORMAT, "'%s': \"name\" is not a string of less than %zu bytes",
                    r->origin, sizeof profile->name);
    if (printable_span(name, strlen(name)) < strlen(name)) /* tables show it */
        return FAIL(r->env, FORMAT, "'%s': \"name\" has control characters; use another name",
                    r->origin);
    snprintf(profile->name, sizeof profile->name, "%s", name);
    return STATUS_OK;
}

static enum status read_all(const struct machine_reader *r, json_t *root,
                            struct machine_profile *profile)
{
    static const char *const known[] = {"format",     "version",      "name", "gpu",     "card",
                                        "capability", "memory_bytes", "ops",  "offload", "comm",
                                        NULL};
    const char *format = json_string_value(json_object_get(root, "format"));
    int64_t version, memory, capability = 0;
    if (!format || strcmp(format, FORMAT_WORD) != 0)
        return FAIL(r->env, FORMAT,
                    "'%s' is not a machine profile; sifr bench ops --save and sifr bench comm -n 2 "
                    "--save write one",
                    r->origin);
    TRY(read_count(r, root, "version", INT64_MAX, &version));
    if (version != VERSION)
        return FAIL(r->env, FORMAT, "'%s' has version %" PRId64 "; this sifr reads version %d",
                    r->origin, version, VERSION);
    TRY(check_keys(r, "the profile", root, known));
    TRY(read_name(r, root, profile));
    const json_t *gpu = json_object_get(root, "gpu");
    if (!gpu)
        gpu = json_object_get(root, "card"); /* its name in older files */
    if (!json_is_boolean(gpu))
        return FAIL(r->env, FORMAT, "'%s': \"gpu\" is not true or false", r->origin);
    profile->gpu = json_is_true(gpu);
    if (json_object_get(root, "capability")) /* not in older files */
        TRY(read_count(r, root, "capability", 1000, &capability));
    profile->capability = (int)capability;
    TRY(read_count(r, root, "memory_bytes", INT64_MAX, &memory));
    profile->memory_bytes = (size_t)memory;
    if (json_object_get(root, "ops"))
        TRY(read_ops(r, json_object_get(root, "ops"), profile));
    if (json_object_get(root, "offload"))
        TRY(read_object(r, "offload", json_object_get(root, "offload"), offload_figures,
                        &profile->offload));
    if (json_object_get(root, "comm"))
        TRY(read_comm(r, json_object_get(root, "comm"), profile));
    if (!profile->has_ops && !profile->has_comm)
        return FAIL(r->env, FORMAT, "'%s' has neither \"ops\" nor \"comm\"", r->origin);
    return STATUS_OK;
}

enum status machine_file_parse(struct env *env, const char *data, size_t bytes, const char *origin,
                               struct machine_profile *profile)
{
    struct machine_reader r = {env, origin};
    static const struct json_rules rules = {
        .values = 1000000, .lists = 100000, .flags = JSON_REJECT_DUPLICATES};
    struct json_doc doc;
    *profile = (struct machine_profile){0};
    enum status st = json_doc_open(env, data, bytes, &rules, &doc);
    if (st == STATUS_FORMAT)
        return FAIL(env, FORMAT, "'%s' line %d: %s", origin, doc.error.line, doc.error.text);
    TRY(st);
    st = read_all(&r, doc.root, profile);
    json_doc_close(&doc);
    if (st != STATUS_OK)
        machine_profile_free(env, profile);
    return st;
}
