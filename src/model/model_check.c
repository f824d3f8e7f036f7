/* model_check -- whether a complete configuration describes a model that can be built. Errors name
 * the key, the problem and a fix. */
#include <inttypes.h>
#include "model/model_impl.h"

enum { SARS_MATRICES = 3 * SARS_KINDS }; /* of a block, each as wide as the stream */

enum status model_check_size(struct env *env, const char *key, int64_t value, int64_t most)
{
    if (value < 1)
        return FAIL(env, CONFIG, "model.%s: %" PRId64 " is not a size; set it to at least 1", key,
                    value);
    if (value > most)
        return FAIL(env, CONFIG, "model.%s: %" PRId64 " is too large; the limit is %" PRId64, key,
                    value, most);
    return STATUS_OK;
}

enum status model_check_divides(struct env *env, const char *part_key, int64_t part,
                                const char *whole_key, int64_t whole, int64_t unit)
{
    if (whole % part == 0 && whole / part % unit == 0)
        return STATUS_OK;
    int64_t below = part, above = part;
    while (below > 0 && (whole % below || whole / below % unit))
        below--;
    while (above <= whole && (whole % above || whole / above % unit))
        above++;
    const char *why = whole % part ? "does not divide" : "leaves an odd part of";
    if (below > 0 && above <= whole)
        return FAIL(env, CONFIG,
                    "model.%s: %" PRId64 " %s model.%s %" PRId64 "; try %" PRId64 " or %" PRId64,
                    part_key, part, why, whole_key, whole, below, above);
    if (below > 0 || above <= whole)
        return FAIL(env, CONFIG, "model.%s: %" PRId64 " %s model.%s %" PRId64 "; try %" PRId64,
                    part_key, part, why, whole_key, whole, below > 0 ? below : above);
    return FAIL(env, CONFIG, "model.%s: %" PRId64 " %s model.%s %" PRId64 "; change model.%s",
                part_key, part, why, whole_key, whole, whole_key);
}

/* Heads that divide the width, each with keys and values of its own. */
static enum status check_plain_heads(struct env *env, const struct model_config *c)
{
    if (c->heads * c->head_width != c->width)
        return FAIL(env, CONFIG,
                    "model.head_width: %s needs heads x head_width = width; %" PRId64 " x %" PRId64
                    " is not model.width %" PRId64,
                    model_arch_word(c->arch), c->heads, c->head_width, c->width);
    if (c->kv_heads != c->heads)
        return FAIL(env, CONFIG,
                    "model.kv_heads: %s needs model.heads (%" PRId64 ") of them, not %" PRId64
                    "; omit it or set model.arch to llama",
                    model_arch_word(c->arch), c->heads, c->kv_heads);
    return STATUS_OK;
}

static enum status check_rotary(struct env *env, const struct model_config *c)
{
    int64_t width = rope_width(c);
    if (c->rope.part > 0 && (width < 2 || width % 2))
        return FAIL(env, CONFIG,
                    "model.rope_part: %g of model.head_width %" PRId64 " are %" PRId64
                    " columns, but rotary positions need pairs; try 0.5",
                    c->rope.part, c->head_width, width);
    if (width % 2)
        return FAIL(env, CONFIG,
                    "model.head_width: %" PRId64 " is odd, but rotary positions need pairs; change "
                    "model.heads or model.width",
                    c->head_width);
    if (!(c->rope_theta > 0))
        return FAIL(env, CONFIG, "model.rope_theta: %g must be above 0; 10000 is usual",
                    c->rope_theta);
    return STATUS_OK;
}

static enum status check_divisors(struct env *env, const char *key, const struct rope_list *list,
                                  int64_t pairs)
{
    if (list->count != pairs)
        return FAIL(env, CONFIG,
                    "model.%s: %d numbers, but longrope needs one for each of the %" PRId64
                    " pairs of a head",
                    key, list->count, pairs);
    for (int i = 0; i < list->count; i++)
        if (!(list->values[i] > 0))
            return FAIL(env, CONFIG, "model.%s: %g must be above 0", key, list->values[i]);
    return STATUS_OK;
}

static enum status check_scaling(struct env *env, const struct model_config *c)
{
    int scaling = c->rope_scaling;
    if (scaling == ROPE_PLAIN)
        return STATUS_OK;
    if (!(c->rope_factor > 0))
        return FAIL(env, CONFIG, "model.rope_factor: %g must be above 0", c->rope_factor);
    if (scaling == ROPE_LINEAR)
        return STATUS_OK;
    if (scaling == ROPE_LLAMA3 && !(c->rope_low > 0 && c->rope_low < c->rope_high))
        return FAIL(env, CONFIG, "model.rope_low: %g must be above 0 and below model.rope_high %g",
                    c->rope_low, c->rope_high);
    TRY(model_check_size(env, "rope_original", c->rope_original, MODEL_MAX_CONTEXT));
    if (scaling == ROPE_DYNAMIC && c->context > c->rope_original)
        return FAIL(env, CONFIG,
                    "model.context: %" PRId64 " is longer than model.rope_original %" PRId64
                    ", where dynamic frequencies change with the length of each text; set it to at "
                    "most that",
                    c->context, c->rope_original);
    if (scaling != ROPE_LONGROPE)
        return STATUS_OK;
    TRY(check_divisors(env, "rope_short", &c->rope.shorter, rope_width(c) / 2));
    return check_divisors(env, "rope_long", &c->rope.longer, rope_width(c) / 2);
}

static enum status check_gpt2(struct env *env, const struct model_config *c)
{
    TRY(check_plain_heads(env, c));
    return model_check_size(env, "ff", c->ff, MODEL_MAX_WIDTH);
}

static enum status check_llama(struct env *env, const struct model_config *c)
{
    TRY(model_check_divides(env, "kv_heads", c->kv_heads, "heads", c->heads, 1));
    TRY(model_check_size(env, "ff", c->ff, MODEL_MAX_WIDTH));
    TRY(check_rotary(env, c));
    return check_scaling(env, c);
}

static enum status check_sars(struct env *env, const struct model_config *c)
{
    TRY(check_plain_heads(env, c));
    if (c->width > OPS_ROUTE_WIDTH)
        return FAIL(env, CONFIG,
                    "model.width: %" PRId64 " is too large for sars, which routes the neurons of a "
                    "layer together; set it to at most %d",
                    c->width, OPS_ROUTE_WIDTH);
    if (c->ff != 0)
        return FAIL(env, CONFIG,
                    "model.ff: %" PRId64 ", but sars has no feed-forward layer; leave the key out",
                    c->ff);
    if (c->rope_scaling != ROPE_PLAIN)
        return FAIL(env, CONFIG,
                    "model.rope_scaling: only model.arch llama has it; set it to none");
    return c->sars.rope ? check_rotary(env, c) : STATUS_OK;
}

/* Each size may be in range while the number of parameters overflows. */
static enum status check_count(struct env *env, const struct model_config *c)
{
    double query = (double)c->heads * (double)c->head_width;
    double wide =
        c->arch == MODEL_SARS
            ? SARS_MATRICES * (double)c->width
            : 2 * (query + (double)c->kv_heads * (double)c->head_width) + 3 * (double)c->ff;
    double count = (double)c->width * ((double)c->layers * wide + 2 * (double)c->vocab);
    if (count > 1e14)
        return FAIL(env, CONFIG,
                    "model.width: with model.width %" PRId64 " and model.layers %" PRId64
                    " the model has %.1g parameters; use smaller sizes",
                    c->width, c->layers, count);
    return STATUS_OK;
}

enum status model_check_traits(struct env *env, const struct model_config *c)
{
    const struct model_traits *t = model_traits(c->arch);
    const struct {
        const char *key;
        bool set, has;
    } keys[] = {
        {"attention_bias", c->attention_bias, t->attention_bias},
        {"mlp_bias", c->mlp_bias, t->mlp_bias},
        {"window", c->window != 0, t->window},
        {"window_from", c->window_from != 0, t->window_some},
        {"full_every", c->full_every != 0, t->window_some},
        {"nope_every", c->nope_every != 0, t->nope},
        {"gelu", c->gelu != 0, c->arch == MODEL_GPT2},
        {"query_scalar", c->query_scalar != 0, t->caps},
        {"score_cap", c->score_cap != 0, t->caps},
        {"logit_cap", c->logit_cap != 0, t->caps},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].set && !keys[i].has)
            return FAIL(env, CONFIG, "model.%s: model.arch %s does not have it; leave the key out",
                        keys[i].key, model_arch_word(c->arch));
    if (c->window == 0 && (c->window_from != 0 || c->full_every != 0))
        return FAIL(env, CONFIG, "model.%s: it needs model.window, which is 0",
                    c->window_from != 0 ? "window_from" : "full_every");
    if (c->window_from != 0 && c->full_every != 0)
        return FAIL(env, CONFIG, "model.window_from and model.full_every: set only one of them");
    if (c->window_from != 0 && c->window_from >= c->layers)
        return FAIL(env, CONFIG,
                    "model.window_from: it is %lld, and the last of model.layers %lld is %lld; "
                    "leave model.window out if no layer has it",
                    (long long)c->window_from, (long long)c->layers, (long long)c->layers - 1);
    return STATUS_OK;
}

static enum status check_layers(struct env *env, const struct model_config *c)
{
    TRY(model_check_traits(env, c));
    return c->arch == MODEL_SARS          ? check_sars(env, c)
           : model_traits(c->arch)->llama ? check_llama(env, c)
                                          : check_gpt2(env, c);
}

enum status model_check_keys(struct env *env, struct options *options,
                             const struct model_config *config)
{
    for (int i = 0; config->arch != MODEL_SARS && i < sars_options.count; i++)
        if (!options_is_default(options,
                                sars_options.options[i].key)) /* config.yaml lists all keys */
            return FAIL(env, CONFIG,
                        "%s: only model.arch sars has it, and the model is %s; leave the key out",
                        sars_options.options[i].key, model_arch_word(config->arch));
    return STATUS_OK;
}

enum status model_check_open(struct env *env, const struct model_config *c)
{
    if (c->arch < 0 || c->arch >= MODEL_ARCHS)
        return FAIL(env, CONFIG, "model.arch: there is no architecture %d", c->arch);
    TRY(model_check_size(env, "layers", c->layers, MODEL_MAX_LAYERS));
    TRY(model_check_size(env, "width", c->width, MODEL_MAX_WIDTH));
    TRY(model_check_size(env, "heads", c->heads, MODEL_MAX_WIDTH));
    TRY(model_check_size(env, "kv_heads", c->kv_heads, MODEL_MAX_WIDTH));
    TRY(model_check_size(env, "head_width", c->head_width, MODEL_MAX_WIDTH));
    TRY(model_check_size(env, "context", c->context, MODEL_MAX_CONTEXT));
    TRY(check_layers(env, c));
    TRY(check_count(env, c));
    if (!(c->norm_eps > 0))
        return FAIL(env, CONFIG, "model.norm_eps: %g must be above 0", c->norm_eps);
    if (!(c->init_std >= 0))
        return FAIL(env, CONFIG, "model.init_std: %g must not be negative", c->init_std);
    return STATUS_OK;
}

enum status model_check(struct env *env, const struct model_config *c)
{
    TRY(model_check_open(env, c));
    if (c->tied != MODEL_TIED_NO && c->tied != MODEL_TIED_YES)
        return FAIL(env, CONFIG, "model.tied: not set; set it to yes or no");
    if (c->vocab == 0)
        return FAIL(env, CONFIG, "model.vocab: not set; give its size or a tokenizer");
    return model_check_size(env, "vocab", c->vocab, MODEL_MAX_VOCAB);
}
