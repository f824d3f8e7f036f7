/* hf_config_print.c -- writes config.json, with the keys of both generations of transformers. */
#include "train/weights/hf_config.h"
#include "train/weights/hf_family.h"
#include "train/weights/hf_rope.h"

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
    add_word(text, "activation_function", config->exact_gelu ? "\"gelu\"" : "\"gelu_new\"");
    add_real(text, "layer_norm_epsilon", config->eps);
    add_word(text, "resid_pdrop", "0.0");
    add_word(text, "embd_pdrop", "0.0");
    add_word(text, "attn_pdrop", "0.0");
    add_word(text, "scale_attn_weights", "true");
}

static void add_flag(struct text *text, const char *key, bool value)
{
    add_word(text, key, value ? "true" : "false");
}

static void add_cap(struct text *text, const char *key, double cap)
{
    if (cap > 0)
        add_real(text, key, cap);
    else
        add_word(text, key, "null");
}

/* The keys of layers that differ, and of attention, as the family has them. */
static void print_layers(const struct hf_config *config, struct text *text)
{
    const struct model_traits *traits = model_traits(config->arch);
    const struct hf_family *f = hf_family_of(config->arch);
    bool types = f->window_switch || f->full_every;
    if (f->window_switch)
        add_flag(text, "use_sliding_window", config->window > 0);
    if (f->window_switch)
        add_integer(text, "max_window_layers",
                    config->window > 0 ? config->window_from : config->layers);
    if (traits->window && config->window > 0)
        add_integer(text, "sliding_window", config->window);
    else if (traits->window)
        add_word(text, "sliding_window", "null");
    for (int64_t i = 0; types && i < config->layers; i++) {
        bool window =
            config->window > 0 && i >= config->window_from && !hf_is_every(i, config->full_every);
        text_printf(text, "%s\"%s_attention\"%s", i ? ", " : ",\n  \"layer_types\": [",
                    window ? "sliding" : "full", i + 1 < config->layers ? "" : "]");
    }
    if (traits->caps) {
        add_integer(text, "query_pre_attn_scalar",
                    config->query_scalar ? config->query_scalar : config->head_dim);
        add_cap(text, "attn_logit_softcapping", config->score_cap);
        add_cap(text, "final_logit_softcapping", config->logit_cap);
    }
    for (int64_t i = 0; traits->nope && i < config->layers; i++)
        text_printf(text, "%s%d%s", i ? ", " : ",\n  \"no_rope_layers\": [",
                    !hf_is_every(i, config->nope_every), i + 1 < config->layers ? "" : "]");
}

static void print_llama(const struct hf_config *config, struct text *text)
{
    const struct hf_family *f = hf_family_of(config->arch);
    const struct model_traits *traits = model_traits(config->arch);
    text_printf(text, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"", f->class_name,
                f->type);
    add_integer(text, "vocab_size", config->vocab);
    add_integer(text, "max_position_embeddings", config->context);
    add_integer(text, "hidden_size", config->width);
    add_integer(text, "num_hidden_layers", config->layers);
    add_integer(text, "num_attention_heads", config->heads);
    add_integer(text, "num_key_value_heads", config->kv_heads);
    add_integer(text, "head_dim", config->head_dim);
    add_integer(text, "intermediate_size", config->ff);
    if (traits->geglu)
        add_word(text, "hidden_activation", "\"gelu_pytorch_tanh\"");
    else
        add_word(text, "hidden_act", "\"silu\"");
    add_real(text, "rms_norm_eps", config->eps);
    if (traits->attention_bias)
        add_flag(text, "attention_bias", config->attention_bias);
    if (traits->mlp_bias)
        add_flag(text, "mlp_bias", config->mlp_bias);
    add_word(text, "attention_dropout", "0.0");
    print_layers(config, text);
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
    void (*print)(const struct hf_config *, struct text *) = config->arch == MODEL_SARS ? print_sars
                                                             : config->arch == MODEL_GPT2
                                                                 ? print_gpt2
                                                                 : print_llama;
    const char *type = config->type == DTYPE_BF16  ? "\"bfloat16\""
                       : config->type == DTYPE_F16 ? "\"float16\""
                                                   : "\"float32\"";
    print(config, text);
    add_real(text, "initializer_range", config->init_std);
    add_token(text, "bos_token_id", config->bos);
    add_ends(config, text);
    bool llama = model_traits(config->arch)->llama;
    if (config->pad >= 0 || (llama && hf_family_of(config->arch)->pad >= 0))
        add_token(text, "pad_token_id", config->pad);
    add_word(text, "tie_word_embeddings", config->tied ? "true" : "false");
    add_word(text, "torch_dtype", type);
    add_word(text, "dtype", type);
    text_add(text, "\n}\n");
}
