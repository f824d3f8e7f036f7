/* model_config -- how a preset and a few sizes become a complete configuration, and what is refused
 * on the way: keys without effect, and keys that contradict the files of a model.
 *
 * Precedence, lowest first: derived, usual for the architecture, preset, set by the user.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/model_impl.h"

/* What models of an architecture have where nothing is set; 0: as in Llama. */
static const struct usual {
    double theta, local, eps, score_cap, logit_cap;
    int64_t window, full_every, nope_every;
} usual[MODEL_ARCHS] = {
    [MODEL_QWEN2] = {.theta = 1e6, .eps = 1e-6},
    [MODEL_QWEN3] = {.theta = 1e6, .eps = 1e-6},
    [MODEL_SMOLLM3] = {.theta = 5e6, .eps = 1e-6, .nope_every = 4},
    [MODEL_OLMO2] = {.theta = 5e5, .eps = 1e-6},
    [MODEL_GEMMA2] =
        {.eps = 1e-6, .score_cap = 50, .logit_cap = 30, .window = 4096, .full_every = 2},
    [MODEL_GEMMA3] = {.theta = 1e6, .local = 1e4, .eps = 1e-6, .window = 1024, .full_every = 6},
};

static void fill_size(int64_t *value, int64_t other)
{
    if (*value == 0)
        *value = other;
}

static void fill_real(double *value, double other)
{
    if (*value == 0)
        *value = other;
}

/* Sizes that belong to an architecture apply only if the user did not choose another one. */
static void apply_preset(const struct options *options, struct model_config *c)
{
    const struct model_preset *p = &model_presets[c->preset];
    if (c->preset == 0)
        return;
    if (!options || !options_is_set(options, "model.arch"))
        c->arch = p->arch;
    fill_size(&c->layers, p->layers);
    fill_size(&c->width, p->width);
    fill_size(&c->heads, p->heads);
    fill_size(&c->context, p->context);
    fill_size(&c->vocab, p->vocab);
    if (c->arch != p->arch)
        return;
    fill_size(&c->kv_heads, p->kv_heads);
    fill_size(&c->ff, p->ff);
    fill_real(&c->rope_theta, p->rope_theta);
    if (c->tied == MODEL_TIED_AUTO)
        c->tied = p->tied;
}

static enum status demand(struct env *env, const char *key, int64_t value)
{
    if (value == 0)
        return FAIL(env, CONFIG,
                    "model.%s: not set; set it, or choose a model.preset such as tiny or gpt2-124m",
                    key);
    return model_check_size(env, key, value, MODEL_MAX_WIDTH);
}

/* Whether pairs of a head's elements are rotated by their position. */
static bool is_rotary(const struct model_config *c)
{
    return model_traits(c->arch)->llama || (c->arch == MODEL_SARS && c->sars.rope);
}

/* Llama and relatives: 8/3 of the width, up to a multiple of 256. */
static int64_t derived_ff(const struct model_config *c)
{
    if (model_traits(c->arch)->llama)
        return (8 * c->width + 767) / 768 * 256;
    return c->arch == MODEL_GPT2 ? 4 * c->width : 0;
}

/* Keys where 0 turns something off: only one that nobody set gets the usual value. */
static bool is_open(const struct options *options, const char *key)
{
    return !options || !options_is_set(options, key);
}

static void apply_usual(const struct options *options, struct model_config *c)
{
    const struct usual *u = &usual[c->arch];
    if (is_open(options, "model.window"))
        fill_size(&c->window, u->window);
    if (c->window > 0 && c->window_from == 0 && u->full_every <= c->layers &&
        is_open(options, "model.full_every"))
        fill_size(&c->full_every, u->full_every);
    if (c->window > 0 && is_open(options, "model.rope_local"))
        fill_real(&c->rope.local, u->local);
    if (u->nope_every <= c->layers && is_open(options, "model.nope_every"))
        fill_size(&c->nope_every, u->nope_every);
    if (is_open(options, "model.score_cap"))
        fill_real(&c->score_cap, u->score_cap);
    if (is_open(options, "model.logit_cap"))
        fill_real(&c->logit_cap, u->logit_cap);
}

/* What derive() fills in, whether it has an effect or not: the config.yaml of a run has it. */
enum { FACTOR = 8, ORIGINAL = 8192, LOW = 1, HIGH = 4 };
static double usual_theta(const struct model_config *c)
{
    return usual[c->arch].theta > 0 ? usual[c->arch].theta : 10000;
}

/* Refuse keys of rotary positions that nothing reads, unless they have the value of derive(). */
static enum status check_rope_keys(struct env *env, const struct model_config *c)
{
    const struct model_traits *t = model_traits(c->arch);
    const struct rope_extras *x = &c->rope;
    int scaling = c->rope_scaling;
    bool rotary = is_rotary(c), yarn = scaling == ROPE_YARN, longrope = scaling == ROPE_LONGROPE;
    bool llama3 = scaling == ROPE_LLAMA3, scaled = scaling != ROPE_PLAIN;
    const char *const none = "this model has no rotary positions";
    const char *const no_scaling = "model.rope_scaling is none";
    const struct {
        const char *key;
        double value, filled;
        bool read;
        const char *why;
    } keys[] = {
        {"rope_theta", c->rope_theta, usual_theta(c), rotary, none},
        {"rope_scaling", scaling, 0, rotary, none},
        {"rope_part", x->part, 0, t->part, "only model.arch phi3 has it"},
        {"rope_local", x->local, 0, t->local, "only model.arch gemma3 has it"},
        {"rope_local", x->local, 0, c->window > 0, "it needs model.window, which is 0"},
        {"rope_factor", c->rope_factor, FACTOR, scaled, no_scaling},
        {"rope_original", (double)c->rope_original, ORIGINAL, scaled && scaling != ROPE_LINEAR,
         scaled ? "linear scaling does not read it" : no_scaling},
        {"rope_low", c->rope_low, LOW, llama3, "only model.rope_scaling llama3 reads it"},
        {"rope_high", c->rope_high, HIGH, llama3, "only model.rope_scaling llama3 reads it"},
        {"rope_fast", x->fast, 0, yarn, "only model.rope_scaling yarn reads it"},
        {"rope_slow", x->slow, 0, yarn, "only model.rope_scaling yarn reads it"},
        {"rope_mscale", x->mscale, 0, yarn, "only model.rope_scaling yarn reads it"},
        {"rope_mscale_all", x->mscale_all, 0, yarn, "only model.rope_scaling yarn reads it"},
        {"rope_exact", x->exact, 0, yarn, "only model.rope_scaling yarn reads it"},
        {"rope_attention", x->attention, 0, yarn || longrope,
         "only model.rope_scaling yarn and longrope read it"},
        {"rope_short", x->short_text && x->short_text[0], 0, longrope,
         "only model.rope_scaling longrope reads it"},
        {"rope_long", x->long_text && x->long_text[0], 0, longrope,
         "only model.rope_scaling longrope reads it"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        bool differs =
            keys[i].value > 0 && (keys[i].value < keys[i].filled || keys[i].value > keys[i].filled);
        if (differs && !keys[i].read)
            return FAIL(env, CONFIG, "model.%s: it has no effect: %s; leave the key out",
                        keys[i].key, keys[i].why);
    }
    return STATUS_OK;
}

static enum status check_every(struct env *env, const char *key, int64_t every, int64_t layers)
{
    if (every > layers)
        return FAIL(env, CONFIG,
                    "model.%s: %" PRId64 " has no effect: model.layers is %" PRId64
                    "; set it to at most that, or to 0",
                    key, every, layers);
    return STATUS_OK;
}

/* Keys without effect. A file may have them; who sets one is mistaken about the model. */
static enum status check_effect(struct env *env, const struct model_config *c)
{
    TRY(model_check_traits(env, c));
    TRY(check_rope_keys(env, c));
    TRY(check_every(env, "full_every", c->full_every, c->layers));
    return check_every(env, "nope_every", c->nope_every, c->layers);
}

/* "1,1.05,1.2" */
static enum status read_divisors(struct env *env, const char *key, const char *text,
                                 struct rope_list *list)
{
    if (!text || !text[0])
        return STATUS_OK;
    list->count = 0;
    for (const char *at = text;; at++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || list->count == ROPE_PAIRS)
            return FAIL(env, CONFIG,
                        "model.%s: '%s' is not a list of up to %d numbers; write them as "
                        "1,1.05,1.2",
                        key, text, ROPE_PAIRS);
        list->values[list->count++] = value;
        at = end;
        if (!*at)
            return STATUS_OK;
    }
}

static void derive_rope(struct model_config *c)
{
    fill_real(&c->rope_theta, usual_theta(c));
    fill_size(&c->rope_original, c->rope_scaling == ROPE_DYNAMIC ? c->context : ORIGINAL);
    if (c->rope_scaling == ROPE_YARN || c->rope_scaling == ROPE_LONGROPE)
        fill_real(&c->rope_factor, fmax(1, (double)c->context / (double)c->rope_original));
    fill_real(&c->rope_factor, FACTOR);
    fill_real(&c->rope_low, LOW);
    fill_real(&c->rope_high, HIGH);
}

static enum status derive(struct env *env, struct model_config *c)
{
    fill_size(&c->context, 1024);
    fill_size(&c->kv_heads, c->heads);
    fill_real(&c->norm_eps, usual[c->arch].eps);
    fill_real(&c->norm_eps, 1e-5);
    fill_real(&c->init_std, 0.02);
    derive_rope(c);
    TRY(read_divisors(env, "rope_short", c->rope.short_text, &c->rope.shorter));
    TRY(read_divisors(env, "rope_long", c->rope.long_text, &c->rope.longer));
    if (c->tied == MODEL_TIED_AUTO)
        c->tied = c->arch == MODEL_SARS ? MODEL_TIED_NO : MODEL_TIED_YES;
    fill_size(&c->ff, derived_ff(c));
    if (c->head_width == 0) {
        TRY(model_check_divides(env, "heads", c->heads, "width", c->width, is_rotary(c) ? 2 : 1));
        c->head_width = c->width / c->heads;
    }
    return STATUS_OK;
}

enum status model_resolve(struct env *env, const struct options *options, struct model_config *c)
{
    if (c->preset < 0 || c->preset >= model_preset_count)
        return FAIL(env, CONFIG, "model.preset: no preset has index %d", c->preset);
    apply_preset(options, c);
    TRY(demand(env, "layers", c->layers));
    TRY(demand(env, "width", c->width));
    TRY(demand(env, "heads", c->heads));
    apply_usual(options, c);
    TRY(check_effect(env, c));
    TRY(derive(env, c));
    TRY(model_check_open(env, c));
    return c->vocab == 0 ? STATUS_OK : model_check_size(env, "vocab", c->vocab, MODEL_MAX_VOCAB);
}

/* --- keys beside a model's files ------------------------------------------------------------ */

/* The value of an option in `c` as a number; NaN: it has none, as a path. */
static double number_of(const struct option *option, const struct model_config *c)
{
    const void *at = (const char *)c + option->offset;
    switch (option->type) {
    case OPTION_INT: return (double)*(const int64_t *)at;
    case OPTION_REAL: return *(const double *)at;
    case OPTION_BOOL: return *(const bool *)at;
    case OPTION_CHOICE: return *(const int *)at;
    default: return NAN;
    }
}

static void print_value(const struct option *option, double value, char text[32])
{
    if (option->type == OPTION_CHOICE)
        snprintf(text, 32, "%s", option->choices[(int)value]);
    else if (option->type == OPTION_BOOL)
        snprintf(text, 32, "%s", value > 0 ? "true" : "false");
    else
        snprintf(text, 32, "%.15g", value);
}

/* Values that mean "as in the files", and keys that do not describe the model. */
static bool is_open_value(const struct option *option, double value)
{
    bool number = option->type == OPTION_INT || option->type == OPTION_REAL;
    return isnan(value) || (number && value == 0) || strcmp(option->key, "model.preset") == 0 ||
           (strcmp(option->key, "model.tied") == 0 && (int)value == MODEL_TIED_AUTO);
}

static enum status check_given_divisors(struct env *env, const char *key, const char *path,
                                        const char *text, const struct rope_list *file)
{
    struct rope_list given = {0};
    TRY(read_divisors(env, key, text, &given));
    size_t bytes = (size_t)given.count * sizeof *given.values;
    if (given.count > 0 &&
        (given.count != file->count || memcmp(given.values, file->values, bytes) != 0))
        return FAIL(env, CONFIG,
                    "model.%s: the model at '%s' has other numbers, or none; leave the key out",
                    key, path);
    return STATUS_OK;
}

enum status model_check_given(struct env *env, const struct options *options,
                              const struct model_config *asked, const struct model_config *file)
{
    struct model_config filled = *file; /* with what the config.yaml of a run has without effect */
    derive_rope(&filled);
    for (int i = 0; i < model_options.count; i++) {
        const struct option *option = &model_options.options[i];
        double value = number_of(option, asked), there = number_of(option, file);
        char ours[32], theirs[32];
        if (!options_is_set(options, option->key) || is_open_value(option, value) ||
            value == there || value == number_of(option, &filled))
            continue;
        print_value(option, value, ours);
        print_value(option, there, theirs);
        return FAIL(env, CONFIG, "%s: %s (%s), but the model at '%s' has %s; leave the key out",
                    option->key, ours, options_origin(options, option->key), asked->path, theirs);
    }
    TRY(check_given_divisors(env, "rope_short", asked->path, asked->rope.short_text,
                             &file->rope.shorter));
    return check_given_divisors(env, "rope_long", asked->path, asked->rope.long_text,
                                &file->rope.longer);
}
