/* model_config -- the keys model.*, how a preset and a few sizes become a complete configuration,
 * and its checks.
 *
 * Precedence, lowest first: derived, preset, set by the user. A size of 0 means "not set", except
 * for the vocabulary after model_resolve, where it means "the tokenizer's". The trainer fills it in
 * later, and model_check requires it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/model_impl.h"

/* --- presets -------------------------------------------------------------------------------- */

/* A size of 0 is set by the user or derived by model_resolve: ff from the width, kv_heads from the
 * heads, the vocabulary from the tokenizer. */
/* clang-format off */
#define PRESET(name_, arch_, layers_, width_, heads_, kv_, ff_, context_, vocab_, tied_, theta_) \
    {name_, MODEL_##arch_, layers_, width_, heads_, kv_, ff_, context_, vocab_, tied_, theta_},
#define NAME(name_, ...) name_,
/*    name         arch   layers  width  heads  kv     ff  context   vocab  tied  theta */
#define PRESETS(X)                                                                        \
    X("none",      GPT2,       0,     0,     0,  0,     0,       0,      0,    2,      0) \
    X("tiny",      GPT2,       4,   128,     4,  0,     0,     128,      0,    1,      0) \
    X("gpt2-124m", GPT2,      12,   768,    12,  0,     0,    1024,  50257,    1,      0) \
    X("gpt2-350m", GPT2,      24,  1024,    16,  0,     0,    1024,  50257,    1,      0) \
    X("gpt2-774m", GPT2,      36,  1280,    20,  0,     0,    1024,  50257,    1,      0) \
    X("gpt2-1.5b", GPT2,      48,  1600,    25,  0,     0,    1024,  50257,    1,      0) \
    X("llama-1b",  LLAMA,     16,  2048,    32,  8,  5632,    2048,      0,    1,  10000) \
    X("llama-3b",  LLAMA,     28,  3072,    24,  8,  8192,    8192,      0,    1, 500000) \
    X("llama-8b",  LLAMA,     32,  4096,    32,  8, 14336,    8192, 128256,    0, 500000)
/* clang-format on */
const struct model_preset model_presets[] = {PRESETS(PRESET)};
const int model_preset_count = sizeof model_presets / sizeof model_presets[0];
const char *const model_preset_names[] = {PRESETS(NAME) NULL};

/* --- keys ----------------------------------------------------------------------------------- */
static const char *const arch_names[] = {"gpt2",    "llama", "sars",  "qwen2",  "qwen3",  "mistral",
                                         "smollm3", "phi3",  "olmo2", "gemma2", "gemma3", NULL};
_Static_assert(sizeof arch_names / sizeof *arch_names == MODEL_ARCHS + 1, "one name each");
static const struct model_traits traits[MODEL_ARCHS] = {
    [MODEL_LLAMA] = {.llama = true, .attention_bias = true, .mlp_bias = true},
    [MODEL_QWEN2] = {.llama = true, .qkv_bias = true, .window = true, .window_some = true},
    [MODEL_QWEN3] = {.llama = true,
                     .head_norm = true,
                     .attention_bias = true,
                     .window = true,
                     .window_some = true},
    [MODEL_MISTRAL] = {.llama = true, .window = true},
    [MODEL_SMOLLM3] = {.llama = true,
                       .attention_bias = true,
                       .mlp_bias = true,
                       .window = true,
                       .window_some = true,
                       .nope = true},
    [MODEL_PHI3] = {.llama = true, .fused = true, .window = true, .part = true},
    [MODEL_OLMO2] = {.llama = true,
                     .whole_norm = true,
                     .no_pre_norms = true,
                     .post_norms = true,
                     .attention_bias = true},
    [MODEL_GEMMA2] = {.llama = true,
                      .post_norms = true,
                      .plus_one = true,
                      .geglu = true,
                      .scaled = true,
                      .attention_bias = true,
                      .window = true,
                      .window_some = true,
                      .caps = true},
    [MODEL_GEMMA3] = {.llama = true,
                      .head_norm = true,
                      .post_norms = true,
                      .plus_one = true,
                      .geglu = true,
                      .scaled = true,
                      .attention_bias = true,
                      .window = true,
                      .window_some = true,
                      .caps = true,
                      .local = true},
};
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
static const char *const gelu_names[] = {"tanh", "exact", NULL};
static const char *const tied_names[] = {"no", "yes", "auto", NULL};
static const char *const scaling_names[] = {"none",    "linear",   "llama3", "yarn",
                                            "dynamic", "longrope", NULL};
enum { TIED_NO, TIED_YES, TIED_AUTO };
enum { SARS_MATRICES = 3 * SARS_KINDS }; /* of a block, each as wide as the stream */

/* Larger sizes are typing errors. check_count limits their products. */
#define MAX_LAYERS  65536
#define MAX_WIDTH   (1 << 20)
#define MAX_CONTEXT (1 << 24)
#define MAX_VOCAB   (1 << 24)

#define SIZE(field_, most_, help_)                                                                \
    {                                                                                             \
        .key = "model." #field_, .type = OPTION_INT,                                              \
        .offset = offsetof(struct model_config, field_), .help = help_, .ranged = true, .min = 0, \
        .max = most_                                                                              \
    }
#define REAL(field_, fallback_, most_, help_)                                                  \
    {                                                                                          \
        .key = "model." #field_, .type = OPTION_REAL,                                          \
        .offset = offsetof(struct model_config, field_), .fallback = fallback_, .help = help_, \
        .ranged = true, .min = 0, .max = most_                                                 \
    }
#define CHOICE(field_, names_, fallback_, help_)                                               \
    {                                                                                          \
        .key = "model." #field_, .type = OPTION_CHOICE,                                        \
        .offset = offsetof(struct model_config, field_), .fallback = fallback_, .help = help_, \
        .choices = names_                                                                      \
    }

#define BOOL(field_, help_)                                                                 \
    {                                                                                       \
        .key = "model." #field_, .type = OPTION_BOOL,                                       \
        .offset = offsetof(struct model_config, field_), .fallback = "false", .help = help_ \
    }
#define ROPE_REAL(field_, max_, help_)                                                        \
    {                                                                                         \
        .key = "model.rope_" #field_, .type = OPTION_REAL,                                    \
        .offset = offsetof(struct model_config, rope.field_), .fallback = "0", .help = help_, \
        .ranged = true, .min = 0, .max = max_                                                 \
    }

static const struct option options_model[] = {
    CHOICE(preset, model_preset_names, "none", "named set of sizes; other model keys override it"),
    CHOICE(arch, arch_names, "gpt2", "architecture"),
    SIZE(layers, MAX_LAYERS,
         "number of transformer blocks; required without model.preset or model.path"),
    SIZE(width, MAX_WIDTH,
         "width of the residual stream; required without model.preset or model.path"),
    SIZE(heads, MAX_WIDTH,
         "query heads, a divisor of the width; required without model.preset or model.path"),
    SIZE(kv_heads, MAX_WIDTH, "key and value heads, a divisor of model.heads; 0 = model.heads"),
    SIZE(head_width, MAX_WIDTH, "width of a head; 0 = width / heads"),
    SIZE(ff, MAX_WIDTH,
         "width of the feed-forward layer; 0 = 4 x width (llama: 8/3 x width; sars has none)"),
    SIZE(context, MAX_CONTEXT, "maximum number of tokens in a sequence; 0 = 1024"),
    SIZE(vocab, MAX_VOCAB, "size of the vocabulary; 0 = that of the tokenizer"),
    BOOL(attention_bias,
         "biases in the matrices of attention; not in mistral, and in part always in qwen2"),
    BOOL(mlp_bias, "biases in the matrices of the feed-forward layer; llama and smollm3"),
    SIZE(window, MAX_CONTEXT,
         "a token sees itself and the window - 1 tokens before it; 0 = all before it; not in llama "
         "and olmo2; gemma2: 4096, gemma3: 1024 unless it is set"),
    SIZE(window_from, MAX_LAYERS, "the first layer, from 0, that has the window"),
    SIZE(full_every, MAX_LAYERS,
         "N: every Nth layer has no window; 0: all have one; default of gemma2: 2, of gemma3: 6"),
    SIZE(nope_every, MAX_LAYERS,
         "N: every Nth layer has no rotary positions; 0: all have them; default of smollm3: 4"),
    SIZE(query_scalar, MAX_WIDTH,
         "scores of attention are divided by its square root; 0 = head_width; gemma2 and gemma3"),
    REAL(score_cap, "0", 1e6,
         "scores of attention become cap tanh(score / cap); 0 = they do not; gemma2: 50 unless it "
         "is set, and gemma3"),
    REAL(logit_cap, "0", 1e6,
         "logits become cap tanh(logit / cap); 0 = they do not; gemma2: 30 unless it is set, and "
         "gemma3"),
    CHOICE(gelu, gelu_names, "tanh", "form of the activation function GELU; exact: gpt2 only"),
    CHOICE(tied, tied_names, "auto",
           "head shares its matrix with the embedding; auto = as in the preset, or yes if there is "
           "no preset (sars: no)"),
    REAL(norm_eps, "0", 1,
         "epsilon of the norms; 0 = 1e-5, in the Qwen, SmolLM3, OLMo and Gemma models 1e-6"),
    REAL(init_std, "0.02", 10, "standard deviation of the initial weights; 0 = 0.02"),
    REAL(rope_theta, "0", 1e12,
         "base of the rotary frequencies; 0 = as in the preset, else 10000; olmo2: 500000, qwen2, "
         "qwen3 and gemma3: 1000000, smollm3: 5000000"),
    CHOICE(rope_scaling, scaling_names, "none", "scaling of the rotary frequencies"),
    REAL(rope_factor, "0", 1e6,
         "factor of the rotary scaling; 0 = 8, for yarn and longrope context / original context"),
    REAL(rope_low, "0", 1e6, "llama3 rotary scaling: low frequency factor; 0 = 1"),
    REAL(rope_high, "0", 1e6, "llama3 rotary scaling: high frequency factor; 0 = 4"),
    SIZE(rope_original, MAX_CONTEXT,
         "rotary scaling: context of the original model; 0 = 8192, for dynamic model.context"),
    ROPE_REAL(part, 1, "share of a head's columns that are rotated, the first ones; 0 = all; phi3"),
    ROPE_REAL(local, 1e12,
              "base of the rotary frequencies in layers with a window, which are not scaled; 0 = "
              "as in the other layers; gemma3: 10000 unless it is set"),
    ROPE_REAL(fast, 1e6, "yarn: turns from which a frequency is kept; 0 = 32"),
    ROPE_REAL(slow, 1e6, "yarn: turns up to which a frequency is divided; 0 = 1"),
    ROPE_REAL(attention, 1e6,
              "yarn and longrope: factor of cos and sin; 0 = derived from model.rope_factor"),
    ROPE_REAL(mscale, 1e6, "yarn: weight of the factor in model.rope_attention; 0 = none"),
    ROPE_REAL(mscale_all, 1e6, "yarn: weight in its denominator; 0 = none"),
    {.key = "model.rope_exact",
     .type = OPTION_BOOL,
     .offset = offsetof(struct model_config, rope.exact),
     .fallback = "false",
     .help = "yarn: do not round the range of blended frequencies to whole pairs"},
    {.key = "model.rope_short",
     .type = OPTION_STRING,
     .offset = offsetof(struct model_config, rope.short_text),
     .help = "longrope: a divisor for each pair, in texts up to the original context",
     .value_name = "X,X,..."},
    {.key = "model.rope_long",
     .type = OPTION_STRING,
     .offset = offsetof(struct model_config, rope.long_text),
     .help = "longrope: a divisor for each pair, in longer texts",
     .value_name = "X,X,..."},
    {.key = "model.path",
     .type = OPTION_STRING,
     .offset = offsetof(struct model_config, path),
     .help = "Hugging Face directory to take the weights and the sizes from",
     .value_name = "DIR"},
};

const struct option_table model_options = {.title = "model",
                                           .options = options_model,
                                           .count = sizeof options_model / sizeof options_model[0]};

static const char *const gate_names[] = {"global", "local", "off", NULL};
static const char *const sign_names[] = {"plus", "minus", NULL};

#define SARS_REAL(field_, fallback_, help_)                                          \
    {                                                                                \
        .key = "sars." #field_, .type = OPTION_REAL,                                 \
        .offset = offsetof(struct model_config, sars.field_), .fallback = fallback_, \
        .help = help_, .ranged = true, .min = 0, .max = 1e30                         \
    }
#define SARS_CHOICE(field_, names_, fallback_, help_)                                \
    {                                                                                \
        .key = "sars." #field_, .type = OPTION_CHOICE,                               \
        .offset = offsetof(struct model_config, sars.field_), .fallback = fallback_, \
        .help = help_, .choices = names_                                             \
    }
#define SARS_BOOL(field_, fallback_, help_)                                                        \
    {                                                                                              \
        .key = "sars." #field_, .type = OPTION_BOOL,                                               \
        .offset = offsetof(struct model_config, sars.field_), .fallback = fallback_, .help = help_ \
    }

static const struct option options_sars[] = {
    SARS_CHOICE(gate, gate_names, "global",
                "neurons whose goodness is not above 0 get no gradient: by the sums of the whole "
                "step, of each micro-batch, or never"),
    SARS_CHOICE(sign, sign_names, "plus", "sign of the goodness in the second loss"),
    SARS_BOOL(standardise, "false", "standardise the goodness of each token in the second loss"),
    SARS_REAL(meta_weight, "1", "weight of the second loss"),
    SARS_REAL(meta_clip, "0", "limit of the norm of the second loss's gradient; 0 = none"),
    SARS_REAL(clamp, "1", "limit of each element of the first loss's gradient; 0 = none"),
    SARS_BOOL(rope, "false", "rotate queries and keys by their positions"),
};

const struct option_table sars_options = {
    .title = "SARS", .options = options_sars, .count = sizeof options_sars / sizeof *options_sars};

const char *model_arch_word(int arch)
{
    CHECK(arch >= 0 && arch < MODEL_ARCHS);
    return arch_names[arch];
}

const struct model_traits *model_traits(int arch)
{
    CHECK(arch >= 0 && arch < MODEL_ARCHS);
    return &traits[arch];
}

/* --- checks --------------------------------------------------------------------------------- */
static enum status check_size(struct env *env, const char *key, int64_t value, int64_t most)
{
    if (value < 1)
        return FAIL(env, CONFIG, "model.%s: %" PRId64 " is not a size; set it to at least 1", key,
                    value);
    if (value > most)
        return FAIL(env, CONFIG, "model.%s: %" PRId64 " is too large; the limit is %" PRId64, key,
                    value, most);
    return STATUS_OK;
}

/* `part` must divide `whole` into parts that are a multiple of `unit`. The error suggests the
 * nearest values that do. */
static enum status check_divides(struct env *env, const char *part_key, int64_t part,
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
    TRY(check_size(env, "rope_original", c->rope_original, MAX_CONTEXT));
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
    return check_size(env, "ff", c->ff, MAX_WIDTH);
}

static enum status check_llama(struct env *env, const struct model_config *c)
{
    TRY(check_divides(env, "kv_heads", c->kv_heads, "heads", c->heads, 1));
    TRY(check_size(env, "ff", c->ff, MAX_WIDTH));
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

/* Refuse a key of layers that the architecture does not have. */
static enum status check_traits(struct env *env, const struct model_config *c)
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
    TRY(check_traits(env, c));
    return c->arch == MODEL_SARS          ? check_sars(env, c)
           : model_traits(c->arch)->llama ? check_llama(env, c)
                                          : check_gpt2(env, c);
}

enum status model_check_keys(struct env *env, struct options *options,
                             const struct model_config *config)
{
    for (int i = 0; config->arch != MODEL_SARS && i < sars_options.count; i++)
        if (!options_is_default(options, options_sars[i].key)) /* config.yaml lists all keys */
            return FAIL(env, CONFIG,
                        "%s: only model.arch sars has it, and the model is %s; leave the key out",
                        options_sars[i].key, model_arch_word(config->arch));
    return STATUS_OK;
}

/* All checks except that the vocabulary is known. */
static enum status check(struct env *env, const struct model_config *c)
{
    if (c->arch < 0 || c->arch >= MODEL_ARCHS)
        return FAIL(env, CONFIG, "model.arch: there is no architecture %d", c->arch);
    TRY(check_size(env, "layers", c->layers, MAX_LAYERS));
    TRY(check_size(env, "width", c->width, MAX_WIDTH));
    TRY(check_size(env, "heads", c->heads, MAX_WIDTH));
    TRY(check_size(env, "kv_heads", c->kv_heads, MAX_WIDTH));
    TRY(check_size(env, "head_width", c->head_width, MAX_WIDTH));
    TRY(check_size(env, "context", c->context, MAX_CONTEXT));
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
    TRY(check(env, c));
    if (c->tied != TIED_NO && c->tied != TIED_YES)
        return FAIL(env, CONFIG, "model.tied: not set; set it to yes or no");
    if (c->vocab == 0)
        return FAIL(env, CONFIG, "model.vocab: not set; give its size or a tokenizer");
    return check_size(env, "vocab", c->vocab, MAX_VOCAB);
}

/* --- resolving ------------------------------------------------------------------------------ */
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
    if (c->tied == TIED_AUTO)
        c->tied = p->tied;
}

static enum status demand(struct env *env, const char *key, int64_t value)
{
    if (value == 0)
        return FAIL(env, CONFIG,
                    "model.%s: not set; set it, or choose a model.preset such as tiny or gpt2-124m",
                    key);
    return check_size(env, key, value, MAX_WIDTH);
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
    TRY(check_traits(env, c));
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
    if (c->tied == TIED_AUTO)
        c->tied = c->arch == MODEL_SARS ? TIED_NO : TIED_YES;
    fill_size(&c->ff, derived_ff(c));
    if (c->head_width == 0) {
        TRY(check_divides(env, "heads", c->heads, "width", c->width, is_rotary(c) ? 2 : 1));
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
    TRY(check(env, c));
    return c->vocab == 0 ? STATUS_OK : check_size(env, "vocab", c->vocab, MAX_VOCAB);
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
           (strcmp(option->key, "model.tied") == 0 && (int)value == TIED_AUTO);
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
        const struct option *option = &options_model[i];
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
