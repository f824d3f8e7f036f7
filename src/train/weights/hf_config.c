/* hf_config.c -- reads and writes config.json.
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
        c->status = FAIL(c->env, FORMAT, "'%s': %s is %s", c->origin, key,
                         value || fallback ? "not a size" : "missing");
    return size;
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

/* The tokens of config.json; bos and eos are the defaults of the model type, -1: none. */
static void read_tokens(struct cursor *c, int64_t bos, int64_t eos, struct hf_config *config)
{
    const json_t *first = json_object_get(c->root, "bos_token_id");
    const json_t *ends = json_object_get(c->root, "eos_token_id");
    size_t count = json_is_array(ends) ? json_array_size(ends) : 1;
    config->bos = first ? token_id(first) : bos;
    config->pad = token_id(json_object_get(c->root, "pad_token_id"));
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
        c->status = FAIL(c->env, CONFIG, "'%s': dtype '%s' is not supported", c->origin, word);
    return DTYPE_F32;
}

static void read_gpt2(struct cursor *c, struct hf_config *config)
{
    config->arch = HF_GPT2;
    config->vocab = get_size(c, "vocab_size", NULL, 50257);
    config->context = get_size(c, "n_positions", "max_position_embeddings", 1024);
    config->width = get_size(c, "n_embd", "hidden_size", 768);
    config->layers = get_size(c, "n_layer", "num_hidden_layers", 12);
    config->heads = get_size(c, "n_head", "num_attention_heads", 12);
    config->kv_heads = config->heads;
    config->ff = get_size(c, "n_inner", NULL, 4 * config->width);
    config->eps = get_real(c, c->root, "layer_norm_epsilon", 1e-5);
    config->tied = get_bool(c, "tie_word_embeddings", true);
    read_tokens(c, 50256, 50256, config);
    const char *activation = get_string(c, c->root, "activation_function", "gelu_new");
    if (strcmp(activation, "gelu_new") != 0 && strcmp(activation, "gelu_pytorch_tanh") != 0 &&
        c->status == STATUS_OK)
        c->status = FAIL(c->env, CONFIG,
                         "'%s': activation_function '%s' is not supported, only "
                         "gelu_new",
                         c->origin, activation);
    require_bool(c, "scale_attn_weights", true);
    require_bool(c, "scale_attn_by_inverse_layer_idx", false);
    require_bool(c, "add_cross_attention", false);
}

static void read_llama(struct cursor *c, struct hf_config *config)
{
    config->arch = HF_LLAMA;
    config->vocab = get_size(c, "vocab_size", NULL, 32000);
    config->context = get_size(c, "max_position_embeddings", NULL, 2048);
    config->width = get_size(c, "hidden_size", NULL, 4096);
    config->layers = get_size(c, "num_hidden_layers", NULL, 32);
    config->heads = get_size(c, "num_attention_heads", NULL, 32);
    config->kv_heads = get_size(c, "num_key_value_heads", NULL, config->heads);
    config->ff = get_size(c, "intermediate_size", NULL, 11008);
    config->eps = get_real(c, c->root, "rms_norm_eps", 1e-6);
    config->tied = get_bool(c, "tie_word_embeddings", false);
    read_tokens(c, 1, 2, config);
    const char *activation = get_string(c, c->root, "hidden_act", "silu");
    if (strcmp(activation, "silu") != 0 && c->status == STATUS_OK)
        c->status = FAIL(c->env, CONFIG, "'%s': hidden_act '%s' is not supported, only silu",
                         c->origin, activation);
    require_bool(c, "attention_bias", false);
    require_bool(c, "mlp_bias", false);
    if (c->status == STATUS_OK)
        c->status = hf_rope_read(c->env, c->origin, c->root, 10000, config);
}

/* Our own type: transformers has no such model. So no size has a default. */
static void read_sars(struct cursor *c, struct hf_config *config)
{
    config->arch = HF_SARS;
    config->vocab = get_size(c, "vocab_size", NULL, 0);
    config->context = get_size(c, "max_position_embeddings", NULL, 0);
    config->width = get_size(c, "hidden_size", NULL, 0);
    config->layers = get_size(c, "num_hidden_layers", NULL, 0);
    config->heads = get_size(c, "num_attention_heads", NULL, 0);
    config->kv_heads = config->heads;
    config->eps = get_real(c, c->root, "layer_norm_eps", 1e-5);
    config->tied = get_bool(c, "tie_word_embeddings", false);
    read_tokens(c, -1, -1, config);
    config->rotary = get_bool(c, "rope", false);
    config->rope_theta = get_real(c, c->root, "rope_theta", 10000);
}

static enum status read_root(struct cursor *c, struct hf_config *config)
{
    if (!json_is_object(c->root))
        return FAIL(c->env, FORMAT, "'%s' is not a JSON object", c->origin);
    const char *type = get_string(c, c->root, "model_type", "");
    TRY(c->status);
    if (strcmp(type, "gpt2") == 0)
        read_gpt2(c, config);
    else if (strcmp(type, "llama") == 0)
        read_llama(c, config);
    else if (strcmp(type, "sars") == 0)
        read_sars(c, config);
    else
        return FAIL(c->env, CONFIG,
                    "'%s': model_type '%s' is not supported, only gpt2, llama and sars", c->origin,
                    type);
    bool given = config->arch == HF_LLAMA && get(c, c->root, "head_dim");
    if (c->status == STATUS_OK && !given && config->width % config->heads != 0)
        c->status = FAIL(c->env, FORMAT, "'%s': %lld heads do not divide the width %lld", c->origin,
                         (long long)config->heads, (long long)config->width);
    if (c->status == STATUS_OK)
        config->head_dim = given ? get_size(c, "head_dim", NULL, 0) : config->width / config->heads;
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

/* --- writing -------------------------------------------------------------------------------- */

static void add_integer(struct text *text, const char *key, int64_t value)
{
    text_printf(text, ",\n  \"%s\": %lld", key, (long long)value);
}

static void add_real(struct text *text, const char *key, double value)
{
    text_printf(text, ",\n  \"%s\": ", key);
    hf_real_print(text, value);
}

static void add_word(struct text *text, const char *key, const char *word) /* true, null, "x" */
{
    text_printf(text, ",\n  \"%s\": %s", key, word);
}

static void add_token(struct text *text, const char *key, int64_t id)
{
    if (id >= 0)
        add_integer(text, key, id);
    else
        add_word(text, key, "null");
}

static void add_ends(const struct hf_config *config, struct text *text)
{
    if (config->eos_count <= 1) {
        add_token(text, "eos_token_id", config->eos_count == 1 ? config->eos[0] : -1);
        return;
    }
    for (int i = 0; i < config->eos_count; i++)
        text_printf(text, "%s%lld", i == 0 ? ",\n  \"eos_token_id\": [" : ", ",
                    (long long)config->eos[i]);
    text_add(text, "]");
}

static void print_gpt2(const struct hf_config *config, struct text *text)
{
    text_add(text, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\"");
    add_integer(text, "vocab_size", config->vocab);
    add_integer(text, "n_positions", config->context);
    add_integer(text, "n_embd", config->width);
    add_integer(text, "n_layer", config->layers);
    add_integer(text, "n_head", config->heads);
    add_integer(text, "n_inner", config->ff);
    add_word(text, "activation_function", "\"gelu_new\"");
    add_real(text, "layer_norm_epsilon", config->eps);
    add_word(text, "resid_pdrop", "0.0");
    add_word(text, "embd_pdrop", "0.0");
    add_word(text, "attn_pdrop", "0.0");
    add_word(text, "scale_attn_weights", "true");
}

static void print_llama(const struct hf_config *config, struct text *text)
{
    text_add(text, "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\"");
    add_integer(text, "vocab_size", config->vocab);
    add_integer(text, "max_position_embeddings", config->context);
    add_integer(text, "hidden_size", config->width);
    add_integer(text, "num_hidden_layers", config->layers);
    add_integer(text, "num_attention_heads", config->heads);
    add_integer(text, "num_key_value_heads", config->kv_heads);
    add_integer(text, "head_dim", config->head_dim);
    add_integer(text, "intermediate_size", config->ff);
    add_word(text, "hidden_act", "\"silu\"");
    add_real(text, "rms_norm_eps", config->eps);
    add_word(text, "attention_bias", "false");
    add_word(text, "mlp_bias", "false");
    add_word(text, "attention_dropout", "0.0");
    hf_rope_print(config, text);
}

static void print_sars(const struct hf_config *config, struct text *text)
{
    text_add(text, "{\n  \"architectures\": [\"SarsForCausalLM\"],\n  \"model_type\": \"sars\"");
    add_integer(text, "vocab_size", config->vocab);
    add_integer(text, "max_position_embeddings", config->context);
    add_integer(text, "hidden_size", config->width);
    add_integer(text, "num_hidden_layers", config->layers);
    add_integer(text, "num_attention_heads", config->heads);
    add_real(text, "layer_norm_eps", config->eps);
    add_word(text, "rope", config->rotary ? "true" : "false");
    add_real(text, "rope_theta", config->rope_theta);
}

void hf_config_print(const struct hf_config *config, struct text *text)
{
    static void (*const prints[])(const struct hf_config *, struct text *) = {
        [HF_GPT2] = print_gpt2, [HF_LLAMA] = print_llama, [HF_SARS] = print_sars};
    const char *type = config->type == DTYPE_BF16  ? "\"bfloat16\""
                       : config->type == DTYPE_F16 ? "\"float16\""
                                                   : "\"float32\"";
    prints[config->arch](config, text);
    add_real(text, "initializer_range", config->init_std);
    add_token(text, "bos_token_id", config->bos);
    add_ends(config, text);
    if (config->pad >= 0)
        add_token(text, "pad_token_id", config->pad);
    add_word(text, "tie_word_embeddings", config->tied ? "true" : "false");
    add_word(text, "torch_dtype", type);
    add_word(text, "dtype", type);
    text_add(text, "\n}\n");
}
