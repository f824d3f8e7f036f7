/* model_keys -- the keys model.* and sars.*, the presets, and what the layers of each architecture
 * consist of: tables only.
 *
 * A size of 0 means "not set", except for the vocabulary after model_resolve, where it means "the
 * tokenizer's". The trainer fills it in later, and model_check requires it.
 */
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
static const char *const gelu_names[] = {"tanh", "exact", NULL};
static const char *const tied_names[] = {"no", "yes", "auto", NULL};
static const char *const scaling_names[] = {"none",    "linear",   "llama3", "yarn",
                                            "dynamic", "longrope", NULL};

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
    SIZE(layers, MODEL_MAX_LAYERS,
         "number of transformer blocks; required without model.preset or model.path"),
    SIZE(width, MODEL_MAX_WIDTH,
         "width of the residual stream; required without model.preset or model.path"),
    SIZE(heads, MODEL_MAX_WIDTH,
         "query heads, a divisor of the width; required without model.preset or model.path"),
    SIZE(kv_heads, MODEL_MAX_WIDTH,
         "key and value heads, a divisor of model.heads; 0 = model.heads"),
    SIZE(head_width, MODEL_MAX_WIDTH, "width of a head; 0 = width / heads"),
    SIZE(ff, MODEL_MAX_WIDTH,
         "width of the feed-forward layer; 0 = 4 x width (llama: 8/3 x width; sars has none)"),
    SIZE(context, MODEL_MAX_CONTEXT, "maximum number of tokens in a sequence; 0 = 1024"),
    SIZE(vocab, MODEL_MAX_VOCAB, "size of the vocabulary; 0 = that of the tokenizer"),
    BOOL(attention_bias,
         "biases in the matrices of attention; not in mistral, and in part always in qwen2"),
    BOOL(mlp_bias, "biases in the matrices of the feed-forward layer; llama and smollm3"),
    SIZE(window, MODEL_MAX_CONTEXT,
         "a token sees itself and the window - 1 tokens before it; 0 = all before it; not in llama "
         "and olmo2; gemma2: 4096, gemma3: 1024 unless it is set"),
    SIZE(window_from, MODEL_MAX_LAYERS, "the first layer, from 0, that has the window"),
    SIZE(full_every, MODEL_MAX_LAYERS,
         "N: every Nth layer has no window; 0: all have one; default of gemma2: 2, of gemma3: 6"),
    SIZE(nope_every, MODEL_MAX_LAYERS,
         "N: every Nth layer has no rotary positions; 0: all have them; default of smollm3: 4"),
    SIZE(query_scalar, MODEL_MAX_WIDTH,
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
    SIZE(rope_original, MODEL_MAX_CONTEXT,
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
