#include "train/scratch.h"
#include "train/weights/hf_config.h"

static enum status parse(struct scratch *s, const char *json, struct hf_config *config)
{
    return hf_config_parse(&s->env, json, strlen(json), "x/config.json", config);
}

static void test_gpt2_defaults_and_aliases_are_read(void **state)
{
    struct scratch s;
    struct hf_config c;
    (void)state;
    scratch_open(&s);
    assert_int_equal(parse(&s, "{\"model_type\":\"gpt2\"}", &c), STATUS_OK);
    assert_int_equal(c.arch, MODEL_GPT2);
    assert_int_equal(c.layers, 12);
    assert_int_equal(c.width, 768);
    assert_int_equal(c.ff, 3072);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.vocab, 50257);
    assert_int_equal(c.context, 1024);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos[0], 50256);
    assert_true(c.tied && c.eps == 1e-5 && c.init_std == 0.02 && c.type == DTYPE_F32);
    assert_int_equal(parse(&s,
                           "{\"model_type\":\"gpt2\",\"hidden_size\":32,\"num_hidden_layers\":3,"
                           "\"num_attention_heads\":4,\"max_position_embeddings\":64,"
                           "\"n_inner\":null,\"tie_word_embeddings\":false,"
                           "\"torch_dtype\":\"bfloat16\"}",
                           &c),
                     STATUS_OK);
    assert_int_equal(c.width, 32);
    assert_int_equal(c.ff, 128);
    assert_int_equal(c.context, 64);
    assert_int_equal(c.kv_heads, 4);
    assert_true(!c.tied && c.type == DTYPE_BF16);
    scratch_close(&s);
}

#define LLAMA "\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4"
#define LLAMA3                                                                                  \
    "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0," \
    "\"original_max_position_embeddings\":8192"

static void test_both_generations_of_rope_are_read(void **state)
{
    struct scratch s;
    struct hf_config c;
    (void)state;
    scratch_open(&s);
    assert_int_equal(parse(&s, "{" LLAMA "}", &c), STATUS_OK);
    assert_true(c.rope == HF_ROPE_PLAIN && c.rope_theta == 10000);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(parse(&s,
                           "{" LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{" LLAMA3
                           "},\"eos_token_id\":[128001,128008],\"num_key_value_heads\":2,"
                           "\"head_dim\":24}",
                           &c),
                     STATUS_OK);
    assert_true(c.rope == HF_ROPE_LLAMA3 && c.rope_theta == 500000 && c.rope_factor == 8);
    assert_true(c.rope_low == 1 && c.rope_high == 4 && c.rope_original == 8192);
    assert_int_equal(c.eos[0], 128001);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 24);
    assert_int_equal(
        parse(&s, "{" LLAMA ",\"rope_parameters\":{\"rope_theta\":5e5," LLAMA3 "}}", &c),
        STATUS_OK);
    assert_true(c.rope == HF_ROPE_LLAMA3 && c.rope_theta == 500000);
    assert_int_equal(
        parse(&s, "{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", &c),
        STATUS_OK);
    assert_true(c.rope == HF_ROPE_LINEAR && c.rope_factor == 2);
    scratch_close(&s);
}

#define SARS_SIZES                                                               \
    "\"model_type\":\"sars\",\"vocab_size\":300,\"max_position_embeddings\":24," \
    "\"hidden_size\":12,\"num_hidden_layers\":2"
#define SARS SARS_SIZES ",\"num_attention_heads\":1"

static void refuse(struct scratch *s, const char *json, const char *message)
{
    struct hf_config c;
    assert_int_not_equal(parse(s, json, &c), STATUS_OK);
    scratch_expect(s, message);
}

static void test_refusals_name_the_key(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    refuse(&s, "{", "not valid JSON");
    refuse(&s, "[]", "not a JSON object");
    refuse(&s, "{}", "model_type is missing");
    refuse(&s, "{\"model_type\":\"qwen3_moe\",\"num_experts\":8}",
           "num_experts is not supported: a mixture of experts");
    refuse(&s, "{\"model_type\":\"llava\",\"vision_config\":{}}",
           "vision_config is not supported: a model that sees images");
    refuse(&s, "{\"model_type\":\"gpt2\",\"quantization_config\":{}}",
           "quantization_config is not supported: the weights are quantized");
    refuse(&s, "{\"model_type\":\"mixtral\"}", "model_type 'mixtral' is not supported");
    refuse(&s, "{\"model_type\":\"gpt2\",\"activation_function\":\"relu\"}", "'relu'");
    refuse(&s, "{\"model_type\":\"gpt2\",\"scale_attn_weights\":false}",
           "scale_attn_weights false");
    refuse(&s, "{\"model_type\":\"gpt2\",\"n_head\":5}", "5 heads do not divide the width 768");
    refuse(&s, "{\"model_type\":\"gpt2\",\"n_layer\":-2}", "n_layer is not a size");
    refuse(&s, "{\"model_type\":\"gpt2\",\"n_embd\":1182186612}",
           "n_inner is not a size"); /* n_inner = 4 n_embd overflows */
    refuse(&s, "{\"model_type\":\"gpt2\",\"n_layer\":2.5}", "n_layer is not a size");
    refuse(&s, "{\"model_type\":\"sars\"}", "vocab_size is missing"); /* no defaults */
    refuse(&s, "{" SARS_SIZES "}", "num_attention_heads is missing");
    refuse(&s, "{" SARS_SIZES ",\"num_attention_heads\":\"2\"}",
           "num_attention_heads is not a size");
    refuse(&s, "{" SARS_SIZES ",\"num_attention_heads\":5}", "5 heads do not divide the width 12");
    refuse(&s, "{" SARS ",\"rope\":1}", "rope is not true or false");
    refuse(&s, "{" SARS ",\"rope_theta\":0}", "rope_theta is not a positive number");
    refuse(&s, "{" SARS ",\"layer_norm_eps\":-1}", "layer_norm_eps");
    refuse(&s, "{" LLAMA ",\"hidden_act\":\"gelu\"}", "'gelu'");
    refuse(&s, "{" LLAMA ",\"attention_bias\":1}", "attention_bias is not true or false");
    refuse(&s, "{" LLAMA ",\"num_local_experts\":8}", "num_local_experts is not supported");
    refuse(&s, "{" LLAMA ",\"vision_config\":{}}", "vision_config is not supported");
    refuse(&s, "{" LLAMA ",\"final_logit_softcapping\":30.0}", "final_logit_softcapping is not");
    refuse(&s, "{\"model_type\":\"gemma3\"}", "model_type 'gemma3' is not supported");
    refuse(&s,
           "{\"model_type\":\"qwen2\",\"num_hidden_layers\":3,\"use_sliding_window\":true,"
           "\"sliding_window\":8,\"layer_types\":[\"full_attention\",\"sliding_attention\","
           "\"full_attention\"]}",
           "layer_types is supported only if");
    refuse(&s, "{\"model_type\":\"smollm3\",\"num_hidden_layers\":3,\"no_rope_layers\":[0,1,1]}",
           "no_rope_layers is supported only if");
    refuse(&s, "{\"model_type\":\"smollm3\",\"num_hidden_layers\":3,\"no_rope_layers\":[1]}",
           "no_rope_layers is not a list of num_hidden_layers entries");
    refuse(&s, "{" LLAMA ",\"logits_scaling\":8.0}", "logits_scaling is not supported");
    refuse(&s, "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"proportional\"}}", "'proportional'");
    refuse(&s, "{" LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}",
           "no low_freq_factor");
    refuse(&s, "{" LLAMA ",\"partial_rotary_factor\":0.5}",
           "partial_rotary_factor 0.5 is not supported in model_type llama");
    refuse(&s, "{" LLAMA ",\"rope_local_base_freq\":100.0}",
           "(rope_local_base_freq) are not supported in model_type llama");
    refuse(&s, "{" LLAMA ",\"dtype\":\"int8\"}", "'int8'");
    refuse(&s, "{" LLAMA ",\"rms_norm_eps\":\"x\"}", "rms_norm_eps");
    refuse(&s, "{\"model_type\":\"mistral\",\"sliding_window\":7.5}",
           "sliding_window is not a whole number");
    refuse(&s, "{\"model_type\":\"mistral\",\"sliding_window\":0}", "sliding_window is not");
    refuse(&s, "{\"model_type\":\"mistral\",\"num_key_value_heads\":3}",
           "num_key_value_heads 3 does not divide num_attention_heads 32");
    refuse(&s, "{\"model_type\":\"qwen3\",\"head_dim\":23}", "head_dim 23 is odd");
    refuse(&s, "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"max_window_layers\":-1}",
           "max_window_layers is not a size");
    scratch_close(&s);
}

#define WINDOWS "{\"model_type\":\"qwen2\",\"num_hidden_layers\":3,\"use_sliding_window\":true"
static void test_windows_without_a_list_of_layers(void **state)
{
    struct scratch s;
    struct hf_config c;
    (void)state;
    scratch_open(&s);
    assert_int_equal(parse(&s, WINDOWS ",\"sliding_window\":8,\"max_window_layers\":0}", &c),
                     STATUS_OK);
    assert_true(c.window == 8 && c.window_from == 0); /* all layers */
    assert_int_equal(parse(&s, WINDOWS ",\"max_window_layers\":1}", &c), STATUS_OK);
    assert_true(c.window == 4096 && c.window_from == 1); /* the default of transformers */
    assert_int_equal(parse(&s, WINDOWS ",\"sliding_window\":8}", &c), STATUS_OK);
    assert_int_equal(c.window, 0); /* from layer 28 on */
    assert_int_equal(parse(&s, WINDOWS ",\"sliding_window\":null,\"max_window_layers\":1}", &c),
                     STATUS_OK);
    assert_int_equal(c.window, 0);
    scratch_close(&s);
}

static void expect_round_trip(struct scratch *s, const struct hf_config *c)
{
    struct hf_config back;
    struct text text;
    text_init(&text, &s->env);
    hf_config_print(c, &text);
    assert_int_equal(hf_config_parse(&s->env, text.data, text.bytes, "x", &back), STATUS_OK);
    text_free(&text);
    assert_int_equal(back.arch, c->arch);
    assert_int_equal(back.layers, c->layers);
    assert_int_equal(back.heads, c->heads);
    assert_int_equal(back.kv_heads, c->kv_heads);
    assert_int_equal(back.head_dim, c->head_dim);
    assert_int_equal(back.width, c->width);
    assert_int_equal(back.ff, c->ff);
    assert_int_equal(back.context, c->context);
    assert_int_equal(back.vocab, c->vocab);
    assert_int_equal(back.bos, c->bos);
    assert_int_equal(back.pad, c->pad);
    assert_int_equal(back.eos_count, c->eos_count);
    assert_memory_equal(back.eos, c->eos, sizeof back.eos);
    assert_int_equal(back.tied, c->tied);
    assert_int_equal(back.type, c->type);
    assert_int_equal(back.rope, c->rope);
    assert_int_equal(back.rope_original, c->rope_original);
    assert_int_equal(back.rotary, c->rotary);
    assert_true(back.exact_gelu == c->exact_gelu);
    assert_true(back.attention_bias == c->attention_bias && back.mlp_bias == c->mlp_bias);
    assert_true(back.window == c->window && back.window_from == c->window_from);
    assert_true(back.full_every == c->full_every && back.nope_every == c->nope_every);
    assert_true(back.query_scalar == c->query_scalar && back.score_cap == c->score_cap);
    assert_true(back.logit_cap == c->logit_cap);
    assert_true(back.eps == c->eps && back.init_std == c->init_std);
    assert_true(back.rope_theta == c->rope_theta && back.rope_factor == c->rope_factor);
    assert_true(back.rope_low == c->rope_low && back.rope_high == c->rope_high);
    assert_true(back.rope_extras.local == c->rope_extras.local);
}

static void test_printed_config_parses_to_the_same(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    struct hf_config gpt2 = {.arch = MODEL_GPT2,
                             .layers = 3,
                             .heads = 5,
                             .kv_heads = 5,
                             .head_dim = 7,
                             .width = 35,
                             .ff = 140,
                             .context = 33,
                             .vocab = 301,
                             .eps = 1e-5,
                             .init_std = 0.02,
                             .tied = true,
                             .bos = -1,
                             .pad = -1,
                             .eos = {300},
                             .eos_count = 1};
    struct hf_config llama = {.arch = MODEL_LLAMA,
                              .layers = 3,
                              .heads = 6,
                              .kv_heads = 2,
                              .head_dim = 20,
                              .width = 96,
                              .ff = 260,
                              .context = 99,
                              .vocab = 512,
                              .eps = 1e-6,
                              .init_std = 0.013,
                              .rope_theta = 123456.7,
                              .bos = 1,
                              .pad = 4,
                              .type = DTYPE_F16};
    struct hf_config sars = {.arch = MODEL_SARS,
                             .layers = 3,
                             .heads = 2,
                             .kv_heads = 2,
                             .head_dim = 6,
                             .width = 12,
                             .context = 24,
                             .vocab = 300,
                             .eps = 2e-5,
                             .init_std = 0.03,
                             .tied = true,
                             .rotary = true,
                             .rope_theta = 5000,
                             .bos = 2,
                             .pad = -1,
                             .eos = {3, 7, 5},
                             .eos_count = 3,
                             .type = DTYPE_BF16};
    expect_round_trip(&s, &sars);
    sars.rotary = sars.tied = false;
    expect_round_trip(&s, &sars);
    expect_round_trip(&s, &gpt2);
    gpt2.exact_gelu = true;
    expect_round_trip(&s, &gpt2);
    expect_round_trip(&s, &llama);
    llama.rope = HF_ROPE_LINEAR;
    llama.rope_factor = 2.5;
    llama.type = DTYPE_BF16;
    expect_round_trip(&s, &llama);
    llama.rope = HF_ROPE_LLAMA3;
    llama.rope_low = 1;
    llama.rope_high = 4;
    llama.rope_original = 64;
    expect_round_trip(&s, &llama);
    llama.layers = 7;
    for (llama.arch = 0; llama.arch < MODEL_ARCHS; llama.arch++) {
        const struct model_traits *traits = model_traits(llama.arch);
        if (!traits->llama)
            continue;
        llama.attention_bias = traits->attention_bias;
        llama.mlp_bias = traits->mlp_bias;
        llama.window = traits->window ? 24 : 0;
        llama.nope_every = traits->nope ? 3 : 0;
        llama.query_scalar = traits->caps ? 30 : 0;
        llama.score_cap = traits->caps ? 7.5 : 0;
        llama.rope_extras.local = traits->local ? 77 : 0;
        expect_round_trip(&s, &llama);
        llama.rope_extras.local =
            0; /* as in the other layers, where a file that is silent has 10000 */
        expect_round_trip(&s, &llama);
        if (!traits->window || llama.arch == MODEL_MISTRAL || llama.arch == MODEL_PHI3)
            continue;
        llama.window_from = 2;
        expect_round_trip(&s, &llama);
        llama.window_from = 0;
        llama.full_every = 3;
        expect_round_trip(&s, &llama);
        llama.full_every = 0;
    }
    scratch_close(&s);
}

/* Readers of old and of new transformers versions must each find their keys. */
static void test_both_generations_are_written(void **state)
{
    static const char *const keys[] = {"\"rope_theta\": 10000.0", "\"rope_scaling\": null",
                                       "\"rope_parameters\": {", "\"torch_dtype\": \"float32\"",
                                       "\n  \"dtype\": \"float32\""};
    struct scratch s;
    struct text text;
    struct hf_config c = {.arch = MODEL_LLAMA, .rope_theta = 10000};
    (void)state;
    scratch_open(&s);
    text_init(&text, &s.env);
    hf_config_print(&c, &text);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strstr(text_string(&text), keys[i]))
            fail_msg("%s is not in\n%s", keys[i], text_string(&text));
    text_free(&text);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_defaults_and_aliases_are_read),
        cmocka_unit_test(test_both_generations_of_rope_are_read),
        cmocka_unit_test(test_refusals_name_the_key),
        cmocka_unit_test(test_windows_without_a_list_of_layers),
        cmocka_unit_test(test_printed_config_parses_to_the_same),
        cmocka_unit_test(test_both_generations_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
