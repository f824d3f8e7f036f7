/* Presets and keys, derived sizes, and error messages. */
#include "base/fixture.h"
#include "model/model.h"
#include "model/model_impl.h"

struct case_ {
    struct fixture f;
    struct options *options;
    struct model_config config;
};

/* `settings`: "key=value key=value", without the "model."; "sars.key=value" as it is */
static void given(struct case_ *c, const char *settings)
{
    memset(c, 0, sizeof *c);
    struct env *env = fixture_open(&c->f);
    assert_int_equal(options_create(env, &c->options), STATUS_OK);
    assert_int_equal(options_bind(c->options, &model_options, &c->config), STATUS_OK);
    assert_int_equal(options_bind(c->options, &sars_options, &c->config), STATUS_OK);
    char copy[512], key[64], *rest = copy;
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        assert_non_null(value);
        *value++ = 0;
        snprintf(key, sizeof key, "%s%s", strchr(word, '.') ? "" : "model.", word);
        assert_int_equal(options_set(c->options, key, value, "test"), STATUS_OK);
    }
}

static void done(struct case_ *c)
{
    options_destroy(c->options);
    fixture_close(&c->f);
}

static void resolved(struct case_ *c, const char *settings)
{
    given(c, settings);
    enum status st = model_resolve(&c->f.env, c->options, &c->config);
    if (st != STATUS_OK)
        fail_msg("'%s': %s", settings, c->f.heard.line);
}

static void refused(const char *settings, const char *words)
{
    struct case_ c;
    given(&c, settings);
    assert_int_equal(model_resolve(&c.f.env, c.options, &c.config), STATUS_CONFIG);
    assert_contains(c.f.heard.line, words);
    assert_int_equal(c.f.heard.count, 1);
    done(&c);
}

static void test_presets(void **state)
{
    (void)state;
    struct case_ c;
    for (int i = 1; i < model_preset_count; i++) {
        char settings[64];
        assert_string_equal(model_preset_names[i], model_presets[i].name);
        snprintf(settings, sizeof settings, "preset=%s", model_presets[i].name);
        resolved(&c, settings);
        assert_int_equal(c.config.arch, model_presets[i].arch);
        assert_int_equal(c.config.tied, model_presets[i].tied);
        if (c.config.vocab == 0) {
            assert_int_equal(model_check(&c.f.env, &c.config), STATUS_CONFIG);
            assert_contains(c.f.heard.line, "model.vocab: not set");
            c.config.vocab = 1000;
        }
        assert_int_equal(model_check(&c.f.env, &c.config), STATUS_OK);
        done(&c);
    }
    assert_null(model_preset_names[model_preset_count]);

    resolved(&c, "preset=tiny");
    assert_int_equal(c.config.layers, 4);
    assert_int_equal(c.config.width, 128);
    assert_int_equal(c.config.heads, 4);
    assert_int_equal(c.config.context, 128);
    assert_int_equal(c.config.ff, 512);
    assert_int_equal(c.config.head_width, 32);
    done(&c);
    resolved(&c, "preset=llama-8b");
    assert_int_equal(c.config.kv_heads, 8);
    assert_int_equal(c.config.ff, 14336);
    assert_int_equal(c.config.vocab, 128256);
    assert_int_equal(c.config.tied, 0);
    assert_true(c.config.rope_theta == 500000);
    done(&c);
}

static void test_keys_over_preset(void **state)
{
    (void)state;
    struct case_ c;
    resolved(&c, "preset=llama-1b layers=2 ff=100 tied=no vocab=50k rope_theta=7");
    assert_int_equal(c.config.layers, 2);
    assert_int_equal(c.config.ff, 100);
    assert_int_equal(c.config.tied, 0);
    assert_int_equal(c.config.vocab, 50000);
    assert_true(c.config.rope_theta == 7);
    assert_int_equal(c.config.kv_heads, 8);
    done(&c);

    /* Another architecture keeps the common sizes of the preset and derives its own. */
    resolved(&c, "preset=tiny arch=llama");
    assert_int_equal(c.config.arch, MODEL_LLAMA);
    assert_int_equal(c.config.ff, 512); /* 8/3 of 128 is 341.3, up to a multiple of 256 */
    done(&c);
    resolved(&c, "preset=llama-1b arch=gpt2");
    assert_int_equal(c.config.kv_heads, 32);
    assert_int_equal(c.config.ff, 4 * 2048);
    done(&c);
}

static void test_derived(void **state)
{
    (void)state;
    struct case_ c;
    resolved(&c, "arch=llama layers=1 width=96 heads=3");
    assert_int_equal(c.config.ff, 256);
    assert_int_equal(c.config.kv_heads, 3);
    assert_int_equal(c.config.head_width, 32);
    assert_int_equal(c.config.context, 1024);
    assert_int_equal(c.config.tied, 1);
    assert_true(c.config.norm_eps == 1e-5 && c.config.init_std == 0.02);
    done(&c);
    resolved(&c, "arch=llama layers=1 width=2048 heads=32");
    assert_int_equal(c.config.ff, 5632);
    done(&c);
    resolved(&c, "arch=llama layers=1 width=12 heads=5 head_width=6 kv_heads=1");
    assert_int_equal(c.config.head_width, 6);
    done(&c);
}

static void test_refused(void **state)
{
    (void)state;
    refused("width=64 heads=4", "model.layers: not set; set it, or choose a model.preset");
    refused("preset=tiny heads=6", "model.heads: 6 does not divide model.width 128; try 4 or 8");
    refused("preset=tiny arch=llama heads=128",
            "model.heads: 128 leaves an odd part of model.width 128; try 64");
    refused("preset=tiny heads=200", "model.heads: 200 does not divide model.width 128; try 128");
    refused("arch=llama layers=1 width=7 heads=2", "model.heads: 2 does not divide model.width 7; "
                                                   "change model.width");
    refused("preset=llama-1b kv_heads=3",
            "model.kv_heads: 3 does not divide model.heads 32; try 2 or 4");
    refused("preset=llama-1b kv_heads=64",
            "model.kv_heads: 64 does not divide model.heads 32; try 32");
    refused("preset=tiny kv_heads=2", "model.kv_heads: gpt2 needs model.heads (4) of them, not 2");
    refused("preset=tiny head_width=16", "model.head_width: gpt2 needs heads x head_width = width");
    refused("arch=llama layers=1 width=8 heads=2 head_width=3", "model.head_width: 3 is odd");
    refused("layers=60000 width=1000000 heads=1 ff=9", "parameters; use smaller sizes");
    refused("preset=llama-1b rope_scaling=llama3 rope_low=5",
            "model.rope_low: 5 must be above 0 and below model.rope_high 4");
#define SMALL "arch=llama layers=1 width=8 heads=2 "
    refused("arch=phi3 layers=1 width=8 heads=2 rope_part=0.3",
            "model.rope_part: 0.3 of model.head_width 4 are 1 columns");
    refused(SMALL "rope_scaling=dynamic rope_original=512", "model.context: 1024 is longer than");
    refused(SMALL "rope_scaling=longrope rope_short=1,2", "model.rope_long: 0 numbers");
    refused(SMALL "rope_scaling=longrope rope_short=1,2 rope_long=1,2,3",
            "model.rope_long: 3 numbers, but longrope needs one for each of the 2 pairs");
    refused(SMALL "rope_scaling=longrope rope_short=1,0 rope_long=1,2",
            "model.rope_short: 0 must be above 0");
    refused(SMALL "rope_scaling=longrope rope_short=1,x rope_long=1,2",
            "model.rope_short: '1,x' is not a list of up to 256 numbers");
    refused("arch=sars layers=1 width=12 heads=1 rope_part=0.5",
            "model.rope_part: it has no effect");
}

/* The table for long texts exists only if there can be such texts; factors come from contexts. */
/* Windows in a part of the layers, where a model's files can say which. */
static void test_windows_in_some_layers(void **state)
{
    (void)state;
    const char *missing = "does not have it";
    refused("arch=mistral layers=4 width=8 heads=2 window=4 window_from=2", missing);
    refused("arch=phi3 layers=4 width=8 heads=2 window=4 full_every=2", missing);
    refused("arch=qwen2 layers=4 width=8 heads=2 window=4 full_every=2 window_from=1", "only one");
    refused("arch=qwen2 layers=4 width=8 heads=2 window=4 window_from=4", "model.layers 4");
    struct case_ c;
    resolved(&c, "arch=qwen2 layers=4 width=8 heads=2 window=4 window_from=3");
    assert_int_equal(c.config.window_from, 3);
    done(&c);
}

/* What models of an architecture have where a key is not set; 0 turns it off. */
static void test_usual_values(void **state)
{
    (void)state;
    struct case_ c;
    const struct model_config *m = &c.config;
    resolved(&c, "arch=gemma2 layers=4 width=8 heads=2");
    assert_true(m->window == 4096 && m->full_every == 2 && m->rope.local == 0);
    assert_true(m->score_cap == 50 && m->logit_cap == 30 && m->norm_eps == 1e-6);
    done(&c);
    resolved(&c, "arch=gemma2 layers=4 width=8 heads=2 window=0 score_cap=0");
    assert_true(m->window == 0 && m->full_every == 0 && m->score_cap == 0 && m->logit_cap == 30);
    done(&c);
    resolved(&c, "arch=gemma2 layers=4 width=8 heads=2 window=9 full_every=0");
    assert_true(m->window == 9 && m->full_every == 0);
    done(&c);
    resolved(&c, "arch=gemma2 layers=4 width=8 heads=2 window_from=2");
    assert_true(m->window == 4096 && m->full_every == 0 && m->window_from == 2);
    done(&c);
    resolved(&c, "arch=gemma3 layers=12 width=8 heads=2");
    assert_true(m->window == 1024 && m->full_every == 6 && m->rope.local == 10000);
    assert_true(m->rope_theta == 1e6 && m->score_cap == 0);
    done(&c);
    resolved(&c, "arch=gemma3 layers=5 width=8 heads=2"); /* too few for a layer without a window */
    assert_true(m->window == 1024 && m->full_every == 0);
    done(&c);
    resolved(&c, "arch=smollm3 layers=8 width=8 heads=2");
    assert_true(m->nope_every == 4 && m->window == 0 && m->rope_theta == 5e6);
    done(&c);
    resolved(&c, "arch=mistral layers=8 width=8 heads=2");
    assert_true(m->window == 0 && m->rope_theta == 10000 && m->norm_eps == 1e-5);
    done(&c);
}

/* Keys that nothing would read, unless a run's config.yaml has them. */
static void test_keys_without_effect(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"preset=tiny rope_theta=500", "model.rope_theta: it has no effect: this model has no"},
        {"preset=tiny rope_scaling=linear", "model.rope_scaling: it has no effect"},
        {SMALL "rope_factor=4", "model.rope_factor: it has no effect: model.rope_scaling is none"},
        {SMALL "rope_original=77", "model.rope_original: it has no effect: model.rope_scaling is"},
        {SMALL "rope_scaling=linear rope_original=77", "linear scaling does not read it"},
        {SMALL "rope_scaling=yarn rope_low=2", "model.rope_low: it has no effect: only"},
        {SMALL "rope_scaling=llama3 rope_fast=9", "only model.rope_scaling yarn reads it"},
        {SMALL "rope_exact=yes", "only model.rope_scaling yarn reads it"},
        {SMALL "rope_scaling=llama3 rope_attention=2", "yarn and longrope read it"},
        {SMALL "rope_short=1,2", "only model.rope_scaling longrope reads it"},
        {SMALL "rope_part=0.5", "only model.arch phi3 has it"},
        {SMALL "rope_local=500", "only model.arch gemma3 has it"},
        {"arch=gemma3 layers=8 width=8 heads=2 window=0 rope_local=5", "it needs model.window"},
        {"arch=smollm3 layers=3 width=8 heads=2 nope_every=4",
         "model.nope_every: 4 has no effect: model.layers is 3"},
        {"arch=qwen3 layers=3 width=8 heads=2 window=5 full_every=4",
         "model.full_every: 4 has no effect: model.layers is 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(cases[i][0], cases[i][1]);
    struct case_ c;
    resolved(&c, "preset=tiny rope_theta=10000 rope_factor=8 rope_low=1 rope_high=4 "
                 "rope_original=8192");
    done(&c);
}

/* Beside the files of a model, a key may repeat what they say. */
static void test_keys_beside_files(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"layers=3", "model.layers: 3 (test), but the model at '' has 2; leave the key out"},
        {"window=7", "model.window: 7 (test), but the model at '' has 0"},
        {"rope_theta=500000", "model.rope_theta: 500000 (test), but the model at '' has 10000"},
        {"rope_factor=4", "model.rope_factor: 4"},
        {"rope_scaling=yarn", "model.rope_scaling: yarn (test), but the model at '' has none"},
        {"attention_bias=yes", "model.attention_bias: true (test), but the model at '' has false"},
        {"arch=qwen2", "model.arch: qwen2 (test), but the model at '' has llama"},
        {"tied=no", "model.tied: no (test), but the model at '' has yes"},
        {"rope_short=1,2", "model.rope_short: the model at '' has other numbers, or none"},
    };
    struct case_ file, c;
    resolved(&file, "arch=llama layers=2 width=8 heads=2 vocab=9");
    struct model_config model = file.config;
    model.rope_factor = model.rope_low = model.rope_high = 0; /* as files have them */
    model.rope_original = 0;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        given(&c, wrong[i][0]);
        assert_int_equal(model_check_given(&c.f.env, c.options, &c.config, &model), STATUS_CONFIG);
        assert_contains(c.f.heard.line, wrong[i][1]);
        done(&c);
    }
    given(&c, "arch=llama layers=2 tied=auto window=0 rope_factor=8 rope_theta=10000 ff=0");
    assert_int_equal(model_check_given(&c.f.env, c.options, &c.config, &model), STATUS_OK);
    done(&c);
    done(&file);
}

static void test_scaled_positions(void **state)
{
    (void)state;
    struct case_ c;
    const struct model_config *m = &c.config;
    resolved(&c, SMALL "rope_scaling=longrope rope_short=1,2 rope_long=4,5 rope_original=256");
    assert_int_equal(m->rope.shorter.count, 2);
    assert_true(m->rope.longer.values[1] == 5 && m->rope_factor == 4);
    assert_true(rope_has(m, ROPE_USUAL) && rope_has(m, ROPE_LONGER) && !rope_has(m, ROPE_LOCAL));
    done(&c);
    resolved(&c, SMALL "rope_scaling=longrope rope_short=1,2 rope_long=4,5 rope_original=1024");
    assert_true(!rope_has(m, ROPE_LONGER));
    done(&c);
    resolved(&c, "arch=phi3 layers=1 width=8 heads=2 rope_scaling=dynamic rope_part=0.5");
    assert_true(m->rope_original == 1024 && !rope_has(m, ROPE_LOCAL) && rope_width(m) == 2);
    done(&c);
    resolved(&c, "arch=gemma3 layers=1 width=8 heads=2 window=9 rope_local=500");
    assert_true(rope_has(m, ROPE_LOCAL));
    done(&c);
    resolved(&c, SMALL "rope_scaling=yarn rope_original=128");
    assert_true(m->rope_factor == 8);
    done(&c);
}

/* Values out of range: the option table rejects them and names the key. */
static void test_negative_sizes(void **state)
{
    (void)state;
    struct case_ c;
    static const char *const keys[] = {"model.layers", "model.width",   "model.heads",
                                       "model.ff",     "model.context", "model.vocab"};
    given(&c, "preset=tiny");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        enum status st = options_set(c.options, keys[i], "-4", "--flag");
        assert_int_equal(status_exit_code(st), 2);
        assert_contains(c.f.heard.line, "-4");
    }
    done(&c);
}

/* Values from a file: model_check rejects them without the option table. */
static void test_check(void **state)
{
    (void)state;
    struct case_ c;
    resolved(&c, "preset=llama-8b");
    const struct model_config good = c.config;
    struct model_config bad[8];
    static const char *const words[8] = {
        "model.layers: -1 is not a size",
        "model.width: 1099511627776 is too large",
        "model.vocab: -3 is not a size",
        "model.kv_heads: 5 does not divide",
        "model.norm_eps: 0 must be above 0",
        "model.rope_theta: 0 must be above 0",
        "model.tied: not set",
        "model.arch: there is no architecture 99",
    };
    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].layers = -1;
    bad[1].width = (int64_t)1 << 40;
    bad[2].vocab = -3;
    bad[3].kv_heads = 5;
    bad[4].norm_eps = 0;
    bad[5].rope_theta = 0;
    bad[6].tied = 2;
    bad[7].arch = 99;
    assert_int_equal(model_check(&c.f.env, &good), STATUS_OK);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(model_check(&c.f.env, &bad[i]), STATUS_CONFIG);
        assert_contains(c.f.heard.line, words[i]);
    }
    done(&c);
}

static void test_sars(void **state)
{
    (void)state;
    struct case_ c;
    resolved(&c, "arch=sars preset=tiny vocab=300"); /* common sizes of a preset of another kind */
    assert_int_equal(c.config.width, 128);
    assert_int_equal(c.config.heads, 4);
    assert_int_equal(c.config.kv_heads, 4);
    assert_int_equal(c.config.head_width, 32);
    assert_int_equal(c.config.ff, 0);
    assert_int_equal(c.config.tied, 0);
    assert_true(c.config.norm_eps == 1e-5 && c.config.init_std == 0.02);
    assert_true(c.config.sars.gate == SARS_GATE_GLOBAL && !c.config.sars.rope);
    assert_true(c.config.sars.meta_weight == 1 && c.config.sars.clamp == 1);
    assert_int_equal(model_check(&c.f.env, &c.config), STATUS_OK);
    done(&c);
    resolved(&c, "arch=sars layers=1 width=13 heads=1 tied=yes sars.gate=off");
    assert_int_equal(c.config.head_width, 13);
    assert_int_equal(c.config.tied, 1);
    assert_int_equal(c.config.sars.gate, SARS_GATE_OFF);
    done(&c);

    refused("arch=sars layers=1 width=13 heads=1 sars.rope=on",
            "model.heads: 1 leaves an odd part of model.width 13");
    refused("arch=sars layers=1 width=12 heads=2 kv_heads=1",
            "model.kv_heads: sars needs model.heads (2) of them, not 1");
    refused("arch=sars layers=1 width=12 heads=2 head_width=5",
            "model.head_width: sars needs heads x head_width = width");
    refused("arch=sars layers=1 width=12 heads=1 ff=48", "model.ff: 48, but sars has no");
    refused("arch=sars layers=1 width=16385 heads=1", "set it to at most 16384");
    refused("arch=sars layers=60000 width=16384 heads=1", "parameters; use smaller sizes");
    refused("arch=sars layers=1 width=12 heads=1 sars.rope=on rope_scaling=linear",
            "model.rope_scaling: only model.arch llama has it");
    refused("arch=sars layers=1 width=12 heads=1 logit_cap=30",
            "model.logit_cap: model.arch sars does not have it");
}

static void test_keys_of_sars_need_sars(void **state)
{
    (void)state;
    struct case_ c;
    resolved(&c, "preset=tiny sars.gate=local");
    assert_int_equal(model_check_keys(&c.f.env, c.options, &c.config), STATUS_CONFIG);
    assert_contains(c.f.heard.line,
                    "sars.gate: only model.arch sars has it, and the model is gpt2");
    done(&c);
    resolved(&c, "preset=tiny arch=sars sars.gate=local");
    assert_int_equal(model_check_keys(&c.f.env, c.options, &c.config), STATUS_OK);
    done(&c);
    /* The config.yaml of a run lists all keys: a default value is no mistake. */
    resolved(&c, "preset=tiny sars.gate=global sars.meta_weight=1 sars.rope=off");
    assert_int_equal(model_check_keys(&c.f.env, c.options, &c.config), STATUS_OK);
    done(&c);
}

static void test_limits_have_a_reason(void **state)
{
    (void)state;
    struct case_ c;
    const struct {
        bool fp16;
        int64_t tp, pp;
        const char *words;
    } cases[] = {{true, 1, 1, "precision.mode: model.arch sars cannot use fp16: the gradients of"},
                 {false, 2, 1, "parallel.tp=2: model.arch sars cannot be split: the routing"},
                 {false, 1, 3, "parallel.pp=3: model.arch sars cannot be a pipeline: every block"}};
    resolved(&c, "preset=tiny arch=sars vocab=300");
    assert_int_equal(model_check_limits(&c.f.env, &c.config, false, 1, 1), STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(
            model_check_limits(&c.f.env, &c.config, cases[i].fp16, cases[i].tp, cases[i].pp),
            STATUS_CONFIG);
        assert_contains(c.f.heard.line, cases[i].words);
    }
    assert_true(model_can_split(&c.config, 1) && !model_can_split(&c.config, 2));
    done(&c);
    resolved(&c, "preset=tiny vocab=300");
    assert_int_equal(model_check_limits(&c.f.env, &c.config, true, 2, 2), STATUS_OK);
    assert_true(model_can_split(&c.config, 2));
    done(&c);
}

/* The resolved configuration, printed and read back, resolves to itself. */
static void expect_stands(const char *settings)
{
    struct case_ c, again;
    struct text yaml;
    resolved(&c, settings);
    text_init(&yaml, &c.f.env);
    options_print_yaml(c.options, &yaml);
    memset(&again, 0, sizeof again);
    fixture_open(&again.f);
    assert_int_equal(options_create(&again.f.env, &again.options), STATUS_OK);
    assert_int_equal(options_bind(again.options, &model_options, &again.config), STATUS_OK);
    assert_int_equal(options_bind(again.options, &sars_options, &again.config), STATUS_OK);
    assert_int_equal(
        options_load_yaml_text(again.options, text_string(&yaml), yaml.bytes, "printed"),
        STATUS_OK);
    assert_int_equal(model_resolve(&again.f.env, again.options, &again.config), STATUS_OK);
    c.config.path = again.config.path = "";
    assert_string_equal(again.config.rope.short_text, c.config.rope.short_text);
    assert_string_equal(again.config.rope.long_text, c.config.rope.long_text);
    again.config.rope.short_text = c.config.rope.short_text;
    again.config.rope.long_text = c.config.rope.long_text;
    assert_memory_equal(&c.config, &again.config, sizeof c.config);
    done(&again);
    text_free(&yaml);
    done(&c);
}

static void test_printed_config_stands(void **state)
{
    (void)state;
    expect_stands("preset=llama-3b layers=5 arch=llama");
    expect_stands(SMALL "rope_scaling=longrope rope_short=1,2.5 rope_long=4,5 rope_original=256");
    expect_stands("arch=gemma3 layers=2 width=8 heads=2 logit_cap=30 window=7 full_every=2 "
                  "query_scalar=9 rope_local=100");
    expect_stands("arch=gemma3 layers=12 width=8 heads=2");
    expect_stands("arch=gemma2 layers=2 width=8 heads=2 window=0 logit_cap=0");
    expect_stands("arch=smollm3 layers=8 width=8 heads=2 nope_every=0");
    expect_stands("preset=tiny arch=sars sars.clamp=0.5 sars.standardise=on sars.rope=on");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_keys_over_preset),
        cmocka_unit_test(test_derived),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_windows_in_some_layers),
        cmocka_unit_test(test_usual_values),
        cmocka_unit_test(test_keys_without_effect),
        cmocka_unit_test(test_keys_beside_files),
        cmocka_unit_test(test_scaled_positions),
        cmocka_unit_test(test_negative_sizes),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_sars),
        cmocka_unit_test(test_keys_of_sars_need_sars),
        cmocka_unit_test(test_limits_have_a_reason),
        cmocka_unit_test(test_printed_config_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
