/* hf_config.c -- reads config.json; hf_config_print.c writes it.
 *
 * The getters share a cursor that keeps the first error, so that the code for each architecture is
 * a plain list of its keys.
 */
#include "train/weights/hf_config.h"
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/json_doc.h"
#include "base/named.h"
#include "train/weights/hf_family.h"
#include "train/weights/hf_rope.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20)
#define SIZE_MAX_VALUE   ((int64_t)1 << 31)

struct cursor {
    struct env *env;
    const char *origin;
    const json_t *root;
    enum status status;
};

/* --- getters -------------------------------------------------------------------------------- */

static const json_t *get(const struct cursor *c, const json_t *object, const char *key)
{
    const json_t *value = c->status == STATUS_OK ? json_object_get(object, key) : NULL;
    return json_is_null(value) ? NULL : value;
}

/* The positive size of `key` or, if missing, of `alias` (may be NULL), or else the default; 0 =
 * none. The default is checked as well, because it may be computed from another size. */
static int64_t get_size(struct cursor *c, const char *key, const char *alias, int64_t fallback)
{
    const json_t *value = get(c, c->root, key);
    if (!value && alias)
        value = get(c, c->root, alias);
    int64_t size = !value ? fallback : json_is_integer(value) ? json_integer_value(value) : 0;
    if ((size < 1 || size >= SIZE_MAX_VALUE) && c->status == STATUS_OK)
        c->status =
            FAIL(c->env, FORMAT, "'%s': %s is %s", c->origin, key,
                 value || fallback ? "not a size: it must be a whole number above 0" : "missing");
    return size;
}

/* A size that may be 0. */
static int64_t get_count(struct cursor *c, const char *key, int64_t fallback)
{
    const json_t *value = get(c, c->root, key);
    bool zero = json_is_integer(value) && json_integer_value(value) == 0;
    return zero ? 0 : get_size(c, key, NULL, fallback);
}

static double get_real(struct cursor *c, const json_t *object, const char *key, double fallback)
{
    const json_t *value = get(c, object, key);
    if (!value)
        return fallback;
    double real = json_number_value(value);
    if (!json_is_number(value) || !isfinite(real) || real <= 0)
        c->status = FAIL(c->env, FORMAT, "'%s': %s is not a positive number", c->origin, key);
    return real;
}

static bool get_bool(struct cursor *c, const char *key, bool fallback)
{
    const json_t *value = get(c, c->root, key);
    if (!value)
        return fallback;
    if (!json_is_boolean(value))
        c->status = FAIL(c->env, FORMAT, "'%s': %s is not true or false", c->origin, key);
    return json_is_true(value);
}

static const char *get_string(struct cursor *c, const json_t *object, const char *key,
                              const char *fallback)
{
    const json_t *value = get(c, object, key);
    if (!value)
        return fallback;
    if (!json_is_string(value)) {
        c->status = FAIL(c->env, FORMAT, "'%s': %s is not a string", c->origin, key);
        return fallback;
    }
    return json_string_value(value);
}

/* A token id, or the first of a list of ids; -1 = none. */
static int64_t token_id(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value)
                                                                    : -1;
}

/* The tokens of config.json; bos, eos and pad are the defaults of the model type, -1: none. */
static void read_tokens(struct cursor *c, int64_t bos, int64_t eos, int64_t pad,
                        struct hf_config *config)
{
    const json_t *first = json_object_get(c->root, "bos_token_id");
    const json_t *ends = json_object_get(c->root, "eos_token_id");
    size_t count = json_is_array(ends) ? json_array_size(ends) : 1;
    config->bos = first ? token_id(first) : bos;
    const json_t *padding = json_object_get(c->root, "pad_token_id");
    config->pad = padding ? token_id(padding) : pad;
    for (size_t i = 0; i < count && config->eos_count < HF_EOS; i++) {
        const json_t *item = json_is_array(ends) ? json_array_get(ends, i) : ends;
        int64_t id = ends ? token_id(item) : eos;
        if (id >= 0)
            config->eos[config->eos_count++] = id;
    }
}

static void require_bool(struct cursor *c, const char *key, bool needed)
{
    if (get_bool(c, key, needed) != needed && c->status == STATUS_OK)
        c->status = FAIL(c->env, CONFIG, "'%s': %s %s is not supported", c->origin, key,
                         needed ? "false" : "true");
}

/* --- reading -------------------------------------------------------------------------------- */

static enum dtype get_type(struct cursor *c)
{
    static const struct {
        const char *word;
        enum dtype type;
    } words[] = {{"float32", DTYPE_F32}, {"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}};
    const char *word = get_string(c, c->root, "torch_dtype", "float32");
    word = get_string(c, c->root, "dtype", word);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0)
            return words[i].type;
    if (c->status == STATUS_OK)
        c->status = FAIL(c->env, CONFIG,
                         "'%s': dtype '%s' is not supported, only float32, bfloat16 and float16; "
                         "set it to the type of the tensors",
                         c->origin, word);
    return DTYPE_F32;
}

static void read_gpt2(struct cursor *c, struct hf_config *config)
{
    config->arch = MODEL_GPT2;
    config->vocab = get_size(c, "vocab_size", NULL, 50257);
    config->context = get_size(c, "n_positions", "max_position_embeddings", 1024);
    config->width = get_size(c, "n_embd", "hidden_size", 768);
    config->layers = get_size(c, "n_layer", "num_hidden_layers", 12);
    config->heads = get_size(c, "n_head", "num_attention_heads", 12);
    config->kv_heads = config->heads;
    config->ff = get_size(c, "n_inner", NULL, 4 * config->width);
    config->eps = get_real(c, c->root, "layer_norm_epsilon", 1e-5);
    config->tied = get_bool(c, "tie_word_embeddings", true);
    read_tokens(c, 50256, 50256, -1, config);
    const char *activation = get_string(c, c->root, "activation_function", "gelu_new");
    config->exact_gelu = strcmp(activation, "gelu") == 0;
    if (!config->exact_gelu && strcmp(activation, "gelu_new") != 0 &&
        strcmp(activation, "gelu_pytorch_tanh") != 0 && c->status == STATUS_OK)
        c->status = FAIL(c->env, CONFIG,
                         "'%s': activation_function '%s' is not supported, only "
                         "gelu_new and gelu",
                         c->origin, activation);
    require_bool(c, "scale_attn_weights", true);
    require_bool(c, "scale_attn_by_inverse_layer_idx", false);
    require_bool(c, "add_cross_attention", false);
}

/* --- Llama and its relatives ---------------------------------------------------------------- */

/* A list with an entry for each layer, or NULL. */
static const json_t *get_layers(struct cursor *c, const char *key, int64_t layers)
{
    const json_t *list = get(c, c->root, key);
    if (list && (!json_is_array(list) || (int64_t)json_array_size(list) != layers))
        c->status = FAIL(c->env, FORMAT, "'%s': %s is not a list of num_hidden_layers entries",
                         c->origin, key);
    return c->status == STATUS_OK ? list : NULL;
}

/* Layers without rotary positions. */
static void read_nope(struct cursor *c, struct hf_config *config)
{
    const json_t *list = get_layers(c, "no_rope_layers", config->layers);
    int64_t every = get_size(c, "no_rope_layer_interval", NULL, 4), i = 0;
    if (list) { /* 1: rotated */
        for (i = 0; i < config->layers && json_integer_value(json_array_get(list, (size_t)i)); i++)
            ;
        every = i < config->layers ? i + 1 : 0;
        for (i = 0; i < config->layers; i++)
            if ((json_integer_value(json_array_get(list, (size_t)i)) == 0) != hf_is_every(i, every))
                break;
    }
    if (list && i < config->layers && c->status == STATUS_OK)
        c->status =
            FAIL(c->env, CONFIG, "'%s': no_rope_layers is supported only if every n-th layer is 0",
                 c->origin);
    config->nope_every = every > config->layers ? 0 : every;
}

/* Which layers have the window, by the list of their types: all from one layer on, or all but every
 * n-th. Returns whether some have it. */
static bool read_types(struct cursor *c, const json_t *list, struct hf_config *config)
{
    int64_t layers = config->layers, first_full = layers, first = layers, i;
    for (i = layers - 1; i >= 0; i--) {
        const char *type = json_string_value(json_array_get(list, (size_t)i));
        bool window = type && strcmp(type, "sliding_attention") == 0;
        if (!window && (!type || strcmp(type, "full_attention") != 0) && c->status == STATUS_OK)
            c->status = FAIL(c->env, CONFIG, "'%s': layer_types: '%s' is not supported", c->origin,
                             type ? type : "(not a string)");
        *(window ? &first : &first_full) = i;
    }
    config->window_from = first_full == 0 && first < layers ? first : 0;
    config->full_every = first_full > 0 && first_full < layers ? first_full + 1 : 0;
    for (i = 0; i < layers && c->status == STATUS_OK; i++) {
        const char *type = json_string_value(json_array_get(list, (size_t)i));
        bool expected = i >= config->window_from && !hf_is_every(i, config->full_every);
        if (first < layers && expected != (strcmp(type, "sliding_attention") == 0))
            c->status = FAIL(c->env, CONFIG,
                             "'%s': layer_types is supported only if all layers from one on have "
                             "sliding_attention, or all but every n-th",
                             c->origin);
    }
    return first < layers;
}

/* A value that null turns off. */
static double get_cap(struct cursor *c, const char *key, double fallback)
{
    bool off = json_is_null(json_object_get(c->root, key));
    return off ? 0 : get_real(c, c->root, key, fallback);
}

static void read_window(struct cursor *c, const struct hf_family *f, struct hf_config *config)
{
    const json_t *types = get_layers(c, "layer_types", config->layers);
    const json_t *given = get(c, c->root, "sliding_window");
    double window = get_cap(c, "sliding_window", (double)f->window);
    if (given && !json_is_integer(given) && c->status == STATUS_OK)
        c->status =
            FAIL(c->env, FORMAT, "'%s': sliding_window is not a whole number of tokens", c->origin);
    if (f->window_switch && !get_bool(c, "use_sliding_window", false))
        window = 0;
    if (window > 0 && types)
        window = read_types(c, types, config) ? window : 0;
    else if (window > 0 && config->arch == MODEL_SMOLLM3 && c->status == STATUS_OK)
        c->status = FAIL(c->env, CONFIG, "'%s': use_sliding_window needs layer_types", c->origin);
    else if (window > 0 && f->window_switch)
        config->window_from = get_count(c, "max_window_layers", 28);
    else if (window > 0 && f->full_every)
        config->full_every =
            get_size(c, "sliding_window_pattern", "_sliding_window_pattern", f->full_every);
    config->window = config->window_from < config->layers && window < (double)SIZE_MAX_VALUE
                         ? (int64_t)window
                         : 0;
    if (config->window == 0)
        config->window_from = config->full_every = 0;
}

/* Keys by which relatives of these models compute something else, unless they have a value that
 * changes nothing: null, false, 0, or the given number. `kinds`: only keys of other kinds of model. */
#define EXPERTS ": a mixture of experts; use a dense model"
#define IMAGES  ": a model that sees images; use one of text only"
#define SOUND   ": a model that hears sound; use one of text only"
static void refuse_others(struct cursor *c, bool kinds, bool caps)
{
    static const struct {
        const char *key;
        double neutral;
        const char *kind; /* of model, in every model_type */
    } keys[] = {
        {"num_local_experts", 0, EXPERTS},
        {"num_experts", 0, EXPERTS},
        {"n_routed_experts", 0, EXPERTS},
        {"moe_num_experts", 0, EXPERTS},
        {"vision_config", 0, IMAGES},
        {"visual", 0, IMAGES},
        {"audio_config", 0, SOUND},
        {"quantization_config", 0,
         ": the weights are quantized; use the model in bf16, fp16 or fp32"},
        {"embedding_multiplier", 1, NULL},
        {"residual_multiplier", 1, NULL},
        {"attention_multiplier", 1, NULL},
        {"logits_scaling", 1, NULL},
        {"logit_scale", 1, NULL},
        {"scale_emb", 1, NULL},
        {"scale_depth", 1, NULL},
        {"clip_qkv", 0, NULL},
        {"use_parallel_residual", 0, NULL},
        {"alibi", 0, NULL},
        {"kv_lora_rank", 0, NULL},
        {"num_nextn_predict_layers", 0, NULL},
        {"use_qk_norm", 0, NULL},
        {"is_encoder_decoder", 0, NULL},
        {"attention_chunk_size", 0, NULL},
        {"attn_temperature_tuning", 0, NULL},
        {"use_bidirectional_attention", 0, NULL},
        {"attn_logit_softcapping", 0, NULL},
        {"final_logit_softcapping", 0, NULL},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys && c->status == STATUS_OK; i++) {
        const json_t *value = get(c, c->root, keys[i].key);
        bool changes = value && !json_is_false(value) && !(caps && strstr(keys[i].key, "softcap"));
        changes = changes && (keys[i].kind || !kinds);
        if (changes && json_is_number(value))
            changes = json_number_value(value) != 0 && json_number_value(value) != keys[i].neutral;
        if (changes)
            c->status = FAIL(c->env, CONFIG, "'%s': %s is not supported%s", c->origin, keys[i].key,
                             keys[i].kind ? keys[i].kind : "");
    }
}

static void read_activation(struct cursor *c, const struct model_traits *traits)
{
    const char *wanted = traits->geglu ? "gelu_pytorch_tanh" : "silu";
    const char *key =
        traits->geglu && get(c, c->root, "hidden_activation") ? "hidden_activation" : "hidden_act";
    const char *activation = get_string(c, c->root, key, wanted);
    if (strcmp(activation, wanted) != 0 && c->status == STATUS_OK)
        c->status = FAIL(c->env, CONFIG, "'%s': %s '%s' is not supported, only %s", c->origin, key,
                         activation, wanted);
}

/* Positions that transformers has in one family only. */
static void read_rope_extras(struct cursor *c, const struct hf_family *f, struct hf_config *config)
{
    const struct model_traits *traits = model_traits(f->arch);
    struct rope_extras *x = &config->rope_extras;
    const json_t *ropes = get(c, c->root, "rope_parameters");
    bool silent =
        !ropes || (get(c, ropes, "full_attention") && !get(c, ropes, "sliding_attention"));
    if (traits->local && silent && !get(c, c->root, "rope_local_base_freq"))
        x->local = 10000;
    if (c->status == STATUS_OK && x->local > 0 && !traits->local)
        c->status = FAIL(c->env, CONFIG,
                         "'%s': other positions in layers with a window (%s) are not supported in "
                         "model_type %s",
                         c->origin, ropes ? "rope_parameters" : "rope_local_base_freq", f->type);
    if (c->status == STATUS_OK && x->part > 0 && !traits->part)
        c->status =
            FAIL(c->env, CONFIG, "'%s': partial_rotary_factor %g is not supported in model_type %s",
                 c->origin, x->part, f->type);
}

static void read_llama(struct cursor *c, const struct hf_family *f, struct hf_config *config)
{
    const struct model_traits *traits = model_traits(f->arch);
    config->arch = f->arch;
    config->vocab = get_size(c, "vocab_size", NULL, f->vocab);
    config->context = get_size(c, "max_position_embeddings", NULL, f->context);
    config->width = get_size(c, "hidden_size", NULL, f->width);
    config->layers = get_size(c, "num_hidden_layers", NULL, f->layers);
    config->heads = get_size(c, "num_attention_heads", NULL, f->heads);
    config->kv_heads =
        get_size(c, "num_key_value_heads", NULL, f->kv_heads ? f->kv_heads : config->heads);
    config->ff = get_size(c, "intermediate_size", NULL, f->ff);
    config->head_dim = get(c, c->root, "head_dim") ? get_size(c, "head_dim", NULL, 0) : f->head_dim;
    config->eps = get_real(c, c->root, "rms_norm_eps", f->eps);
    config->tied = get_bool(c, "tie_word_embeddings", f->tied);
    read_tokens(c, f->bos, f->eos, f->pad, config);
    read_activation(c, traits);
    /* qwen2 and mistral do not read these keys */
    config->attention_bias = traits->attention_bias && get_bool(c, "attention_bias", false);
    config->mlp_bias = traits->mlp_bias && get_bool(c, "mlp_bias", false);
    if (traits->window)
        read_window(c, f, config);
    if (traits->caps) {
        config->query_scalar = get_size(c, "query_pre_attn_scalar", NULL, f->query_scalar);
        config->score_cap = get_cap(c, "attn_logit_softcapping", f->score_cap);
        config->logit_cap = get_cap(c, "final_logit_softcapping", f->logit_cap);
    }
    if (traits->nope)
        read_nope(c, config);
    refuse_others(c, false, traits->caps);
    if (c->status == STATUS_OK)
        c->status = hf_rope_read(c->env, c->origin, c->root, f->theta, config);
    read_rope_extras(c, f, config);
}

/* Our own type: transformers has no such model. So no size has a default. */
static void read_sars(struct cursor *c, struct hf_config *config)
{
    config->arch = MODEL_SARS;
    config->vocab = get_size(c, "vocab_size", NULL, 0);
    config->context = get_size(c, "max_position_embeddings", NULL, 0);
    config->width = get_size(c, "hidden_size", NULL, 0);
    config->layers = get_size(c, "num_hidden_layers", NULL, 0);
    config->heads = get_size(c, "num_attention_heads", NULL, 0);
    config->kv_heads = config->heads;
    config->eps = get_real(c, c->root, "layer_norm_eps", 1e-5);
    config->tied = get_bool(c, "tie_word_embeddings", false);
    read_tokens(c, -1, -1, -1, config);
    config->rotary = get_bool(c, "rope", false);
    config->rope_theta = get_real(c, c->root, "rope_theta", 10000);
}

static enum status fail_type(const struct cursor *c, const char *type)
{
    struct text known;
    text_init(&known, c->env);
    for (int i = 0; i < hf_family_count; i++)
        text_printf(&known, ", %s", hf_families[i].type);
    enum status st =
        FAIL(c->env, CONFIG, "'%s': model_type '%s' is not supported, only gpt2, sars%s", c->origin,
             type, known.status == STATUS_OK ? text_string(&known) : "");
    text_free(&known);
    return st;
}

/* The model checks this, too, but by its own keys, which nobody who named a folder has set. */
static void check_heads(struct cursor *c, const struct hf_config *config)
{
    bool pairs = model_traits(config->arch)->llama;
    if (c->status == STATUS_OK && config->heads % config->kv_heads != 0)
        c->status = FAIL(c->env, CONFIG,
                         "'%s': num_key_value_heads %lld does not divide num_attention_heads %lld; "
                         "take config.json from the model's origin",
                         c->origin, (long long)config->kv_heads, (long long)config->heads);
    if (c->status == STATUS_OK && pairs && config->head_dim % 2 != 0)
        c->status = FAIL(c->env, CONFIG,
                         "'%s': head_dim %lld is odd, but rotary positions need pairs; take "
                         "config.json from the model's origin",
                         c->origin, (long long)config->head_dim);
}

static enum status read_root(struct cursor *c, struct hf_config *config)
{
    if (!json_is_object(c->root))
        return FAIL(c->env, FORMAT, "'%s' is not a JSON object", c->origin);
    const char *type = get_string(c, c->root, "model_type", "");
    refuse_others(c, true, false);
    TRY(c->status);
    if (!*type)
        return FAIL(
            c->env, CONFIG,
            "'%s': model_type is missing, so it is not known what the model computes; add "
            "it, as in \"model_type\": \"llama\", or take config.json from the model's origin",
            c->origin);
    const struct hf_family *family = hf_family_of_type(type);
    if (strcmp(type, "gpt2") == 0)
        read_gpt2(c, config);
    else if (strcmp(type, "sars") == 0)
        read_sars(c, config);
    else if (family)
        read_llama(c, family, config);
    else
        return fail_type(c, type);
    if (c->status == STATUS_OK && config->head_dim == 0 && config->width % config->heads != 0)
        c->status = FAIL(c->env, FORMAT, "'%s': %lld heads do not divide the width %lld", c->origin,
                         (long long)config->heads, (long long)config->width);
    if (c->status == STATUS_OK && config->head_dim == 0)
        config->head_dim = config->width / config->heads;
    check_heads(c, config);
    config->init_std = get_real(c, c->root, "initializer_range", 0.02);
    config->type = get_type(c);
    return c->status;
}

enum status hf_config_parse(struct env *env, const char *json, size_t bytes, const char *origin,
                            struct hf_config *config)
{
    static const struct json_rules rules = {
        .values = 200000, .lists = 20000, .flags = JSON_REJECT_DUPLICATES};
    struct json_doc doc;
    struct hf_config read = {0};
    enum status st = json_doc_open(env, json, bytes, &rules, &doc);
    const char *mistaken = st == STATUS_FORMAT && !doc.too_large ? mistaken_for(json, bytes) : NULL;
    if (mistaken)
        return FAIL(env, FORMAT, "'%s' is %s", origin, mistaken);
    if (st == STATUS_FORMAT)
        return FAIL(env, FORMAT, "'%s' line %d is %s: %s", origin, doc.error.line,
                    json_doc_fault(&doc), doc.error.text);
    TRY(st);
    struct cursor cursor = {.env = env, .origin = origin, .root = doc.root};
    st = read_root(&cursor, &read);
    json_doc_close(&doc);
    if (st == STATUS_OK)
        *config = read;
    return st;
}

enum status hf_config_read(struct env *env, const char *path, struct hf_config *config)
{
    char *json;
    size_t bytes;
    TRY(file_read(env, path, CONFIG_BYTES_MAX, &json, &bytes));
    enum status st = hf_config_parse(env, json, bytes, path, config);
    mem_free(env, json);
    return st;
}
