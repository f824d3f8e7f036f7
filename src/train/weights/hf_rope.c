/* hf_rope.c -- reads and writes the rope keys of a config.json. */
#include "train/weights/hf_rope.h"
#include <math.h>
#include <string.h>

struct reader {
    struct env *env;
    const char *origin;
    const json_t *root, *rope; /* rope: NULL, or the object that describes the usual table */
    enum status status;        /* the first error */
};

static const char *const types[ROPE_SCALINGS] = {"default", "linear",  "llama3",
                                                 "yarn",    "dynamic", "longrope"};

/* --- reading -------------------------------------------------------------------------------- */

static const json_t *find(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static double real(struct reader *r, const json_t *object, const char *key, double fallback)
{
    const json_t *value = find(object, key);
    double number = json_number_value(value);
    if (!value)
        return fallback;
    if ((!json_is_number(value) || !isfinite(number) || number <= 0) && r->status == STATUS_OK)
        r->status = FAIL(r->env, FORMAT, "'%s': %s is not a positive number", r->origin, key);
    return number;
}

/* A number that must be there. */
static double needed(struct reader *r, const char *key)
{
    if (!find(r->rope, key) && r->status == STATUS_OK)
        r->status = FAIL(r->env, FORMAT, "'%s': the rope object has no %s", r->origin, key);
    return real(r, r->rope, key, 1);
}

static const char *type_of(const json_t *rope)
{
    const json_t *type = find(rope, "rope_type");
    type = type ? type : find(rope, "type");
    return !type ? "default" : json_is_string(type) ? json_string_value(type) : "";
}

/* Phi-3 had two other words for longrope. */
static const char *scaling_of(const json_t *rope, enum model_arch arch)
{
    const char *type = type_of(rope);
    bool old = strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0;
    return old && arch == MODEL_PHI3 && find(rope, "short_factor") ? types[ROPE_LONGROPE] : type;
}

/* The object of `key`, or NULL. */
static const json_t *object(struct reader *r, const json_t *parent, const char *key)
{
    const json_t *value = find(parent, key);
    if (value && !json_is_object(value) && r->status == STATUS_OK)
        r->status = FAIL(r->env, FORMAT,
                         "'%s': %s is not an object; write it as {\"rope_type\": \"linear\", "
                         "\"factor\": 2.0}, or leave it out",
                         r->origin, key);
    return json_is_object(value) ? value : NULL;
}

static bool is_same(const json_t *a, const json_t *b)
{
    bool numbers = json_is_number(a) && json_is_number(b);
    return numbers ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

/* A file for both generations of transformers has both objects. Of two that differ transformers 5
 * reads rope_scaling, with the usual base; 4 reads nothing else. Who added one to the other meant
 * something else. */
static void check_scaling(struct reader *r, const json_t *scaling)
{
    const char *key, *other = NULL;
    json_t *value;
    if (strcmp(type_of(scaling), type_of(r->rope)) != 0)
        other = "type";
    json_object_foreach((json_t *)scaling, key,
                        value) if (!strstr(key, "type") && !json_is_null(value) &&
                                   !is_same(value, find(r->rope, key))) other = key;
    if (other && r->status == STATUS_OK)
        r->status = FAIL(r->env, CONFIG,
                         "'%s': rope_scaling and rope_parameters differ in their %s; write all of "
                         "it into rope_parameters, and remove rope_scaling",
                         r->origin, other);
}

/* transformers gives precedence to the one outside the rope object. */
static int64_t original_of(struct reader *r, int64_t context)
{
    const char *key = "original_max_position_embeddings";
    double size = real(r, find(r->root, key) ? r->root : r->rope, key, (double)context);
    if (!(size >= 1 && size < 2147483648.0) && r->status == STATUS_OK)
        r->status = FAIL(r->env, FORMAT, "'%s': %s is not a size", r->origin, key);
    return r->status == STATUS_OK ? (int64_t)size : 0;
}

static void read_list(struct reader *r, const char *key, struct rope_list *list)
{
    const json_t *values = find(r->rope, key);
    size_t count = json_array_size(values);
    bool right = json_is_array(values) && count > 0 && count <= ROPE_PAIRS;
    for (size_t i = 0; right && i < count; i++) {
        const json_t *value = json_array_get(values, i);
        list->values[i] = json_number_value(value);
        right = json_is_number(value) && isfinite(list->values[i]) && list->values[i] > 0;
    }
    list->count = right ? (int)count : 0;
    if (!right && r->status == STATUS_OK)
        r->status = FAIL(r->env, FORMAT, "'%s': %s is not a list of up to %d positive numbers",
                         r->origin, key, ROPE_PAIRS);
}

static void read_llama3(struct reader *r, struct hf_config *config)
{
    config->rope_factor = needed(r, "factor");
    config->rope_low = needed(r, "low_freq_factor");
    config->rope_high = needed(r, "high_freq_factor");
    needed(r, "original_max_position_embeddings");
    if (r->status == STATUS_OK && config->rope_high <= config->rope_low)
        r->status = FAIL(r->env, FORMAT,
                         "'%s': rope type llama3: high_freq_factor must be above low_freq_factor",
                         r->origin);
}

static void read_yarn(struct reader *r, struct hf_config *config)
{
    struct rope_extras *x = &config->rope_extras;
    x->fast = real(r, r->rope, "beta_fast", 0);
    x->slow = real(r, r->rope, "beta_slow", 0);
    x->attention = real(r, r->rope, "attention_factor", 0);
    x->mscale = real(r, r->rope, "mscale", 0);
    x->mscale_all = real(r, r->rope, "mscale_all_dim", 0);
    x->exact = json_is_false(find(r->rope, "truncate"));
}

static void read_scaling(struct reader *r, struct hf_config *config)
{
    const char *type = scaling_of(r->rope, config->arch);
    int scaling = 0;
    while (scaling < ROPE_SCALINGS && strcmp(types[scaling], type) != 0)
        scaling++;
    if (scaling == ROPE_SCALINGS || find(r->rope, "mrope_section")) {
        if (r->status == STATUS_OK)
            r->status = scaling == ROPE_SCALINGS
                            ? FAIL(r->env, CONFIG,
                                   "'%s': rope type '%s' is not supported, only default, linear, "
                                   "llama3, yarn, dynamic and longrope",
                                   r->origin, type)
                            : FAIL(r->env, CONFIG,
                                   "'%s': mrope_section is not supported: its model sees pictures",
                                   r->origin);
        return;
    }
    config->rope = (enum hf_rope)scaling;
    if (scaling >= ROPE_LLAMA3)
        config->rope_original =
            scaling == ROPE_DYNAMIC ? config->context : original_of(r, config->context);
    if (scaling == ROPE_LINEAR || scaling == ROPE_DYNAMIC)
        config->rope_factor = needed(r, "factor");
    if (scaling == ROPE_LLAMA3)
        read_llama3(r, config);
    if (r->status == STATUS_OK && (scaling == ROPE_YARN || scaling == ROPE_LONGROPE))
        config->rope_factor =
            real(r, r->rope, "factor", (double)config->context / (double)config->rope_original);
    if (scaling == ROPE_YARN)
        read_yarn(r, config);
    if (scaling == ROPE_LONGROPE) {
        config->rope_extras.attention = real(r, r->rope, "attention_factor", 0);
        read_list(r, "short_factor", &config->rope_extras.shorter);
        read_list(r, "long_factor", &config->rope_extras.longer);
    }
}

/* The share of a head's columns that a rope object rotates; 1: all. */
static double part_of(struct reader *r, const json_t *rope)
{
    double part = real(r, r->root, "partial_rotary_factor", 1);
    part = real(r, rope, "partial_rotary_factor", part);
    if (part > 1 && r->status == STATUS_OK)
        r->status =
            FAIL(r->env, FORMAT, "'%s': partial_rotary_factor %g is above 1", r->origin, part);
    return part;
}

/* Layers with a window have a table of their own if the file says so. */
static double local_of(struct reader *r, const json_t *sliding, double theta)
{
    double local = real(r, r->root, "rope_local_base_freq", 0);
    if (!sliding || json_equal(sliding, r->rope))
        return local;
    if (r->status == STATUS_OK &&
        (strcmp(type_of(sliding), types[ROPE_PLAIN]) != 0 ||
         part_of(r, sliding) < part_of(r, r->rope) || part_of(r, sliding) > part_of(r, r->rope)))
        r->status = FAIL(r->env, CONFIG,
                         "'%s': rope_parameters of sliding_attention: supported are rope type "
                         "default and the partial_rotary_factor of the other layers",
                         r->origin);
    return real(r, sliding, "rope_theta", theta);
}

enum status hf_rope_read(struct env *env, const char *origin, const json_t *root, double theta,
                         struct hf_config *config)
{
    struct reader r = {.env = env, .origin = origin, .root = root};
    const json_t *parameters = object(&r, root, "rope_parameters");
    const json_t *scaling = object(&r, root, "rope_scaling");
    const json_t *rope = parameters ? parameters : scaling;
    const json_t *full = object(&r, rope, "full_attention");
    const json_t *sliding = object(&r, rope, "sliding_attention");
    r.rope = full ? full : sliding ? sliding : rope;
    if (parameters && json_object_size(scaling) > 0)
        check_scaling(&r, scaling);
    config->rope_extras = (struct rope_extras){0};
    theta = real(&r, root, "rope_theta", theta);
    config->rope_theta = real(&r, r.rope, "rope_theta", theta);
    read_scaling(&r, config);
    double part = part_of(&r, r.rope);
    config->rope_extras.part = part < 1 ? part : 0;
    config->rope_extras.local = local_of(&r, sliding, theta);
    return r.status;
}

/* --- writing -------------------------------------------------------------------------------- */

void hf_real_print(struct text *text, double value)
{
    size_t before = text->bytes;
    text_json_real(text, value);
    if (text->status == STATUS_OK && !strpbrk(text->data + before, ".en"))
        text_add(text, ".0");
}

static void add_real(struct text *text, const char *key, double value)
{
    text_printf(text, ", \"%s\": ", key);
    hf_real_print(text, value);
}

/* Of what is not usual. */
static void add_some(struct text *text, const char *key, double value)
{
    if (value > 0)
        add_real(text, key, value);
}

static void add_list(struct text *text, const char *key, const struct rope_list *list)
{
    text_printf(text, ", \"%s\": ", key);
    for (int i = 0; i < list->count; i++) {
        text_add(text, i ? ", " : "[");
        hf_real_print(text, list->values[i]);
    }
    text_add(text, "]");
}

/* The parameters of a rope object, which follow its type. */
static void print_numbers(const struct hf_config *config, struct text *text)
{
    const struct rope_extras *x = &config->rope_extras;
    int scaling = (int)config->rope;
    if (scaling != ROPE_PLAIN)
        add_real(text, "factor", config->rope_factor);
    if (scaling == ROPE_LLAMA3) {
        add_real(text, "low_freq_factor", config->rope_low);
        add_real(text, "high_freq_factor", config->rope_high);
    }
    if (scaling == ROPE_LLAMA3 || scaling == ROPE_YARN || scaling == ROPE_LONGROPE)
        text_printf(text, ", \"original_max_position_embeddings\": %lld",
                    (long long)config->rope_original);
    add_some(text, "beta_fast", x->fast);
    add_some(text, "beta_slow", x->slow);
    add_some(text, "attention_factor", x->attention);
    add_some(text, "mscale", x->mscale);
    add_some(text, "mscale_all_dim", x->mscale_all);
    if (x->exact)
        text_add(text, ", \"truncate\": false");
    if (scaling == ROPE_LONGROPE) {
        add_list(text, "short_factor", &x->shorter);
        add_list(text, "long_factor", &x->longer);
    }
    add_some(text, "partial_rotary_factor", x->part);
}

static void print_object(const struct hf_config *config, struct text *text)
{
    text_printf(text, "{\"rope_type\": \"%s\"", types[config->rope]);
    add_real(text, "rope_theta", config->rope_theta);
    print_numbers(config, text);
    text_add(text, "}");
}

/* One key of the file. */
static void add_key(struct text *text, const char *key, double value)
{
    text_printf(text, ",\n  \"%s\": ", key);
    hf_real_print(text, value);
}

void hf_rope_print(const struct hf_config *config, struct text *text)
{
    const struct rope_extras *x = &config->rope_extras;
    add_key(text, "rope_theta", config->rope_theta);
    if (x->local > 0)
        add_key(text, "rope_local_base_freq", x->local);
    if (x->part > 0)
        add_key(text, "partial_rotary_factor", x->part);
    if (config->rope == HF_ROPE_LONGROPE)
        text_printf(text, ",\n  \"original_max_position_embeddings\": %lld",
                    (long long)config->rope_original);
    text_add(text, ",\n  \"rope_scaling\": ");
    if (config->rope == HF_ROPE_PLAIN) {
        text_add(text, "null");
    } else {
        text_printf(text, "{\"rope_type\": \"%s\"", types[config->rope]);
        print_numbers(config, text);
        text_add(text, "}");
    }
    text_add(text, ",\n  \"rope_parameters\": ");
    if (x->local > 0) {
        text_add(text, "{\"full_attention\": ");
        print_object(config, text);
        text_add(text, ", \"sliding_attention\": {\"rope_type\": \"default\"");
        add_real(text, "rope_theta", x->local);
        add_some(text, "partial_rotary_factor", x->part);
        text_add(text, "}}");
    } else if (model_traits(config->arch)->local) { /* where a single object is not enough */
        text_add(text, "{\"full_attention\": ");
        print_object(config, text);
        text_add(text, ", \"sliding_attention\": ");
        print_object(config, text);
        text_add(text, "}");
    } else {
        print_object(config, text);
    }
}
