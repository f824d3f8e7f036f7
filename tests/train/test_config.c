/* The configuration of a run: derived values, errors and their messages, and that the printed form
 * parses to the same configuration. */
#include "run_rig.h"

static void expect_refusal(const char *settings, enum status expected, const char *words)
{
    struct run_rig rig;
    char all[2048];
    rig_open(&rig);
    rig_bind(&rig);
    snprintf(all, sizeof all, "%s data.path=%s %s", rig_small, rig_text(&rig.scratch, "t.txt", 50),
             settings);
    assert_int_equal(rig_resolve(&rig, all), expected);
    scratch_expect(&rig.scratch, words);
    assert_null(rig.config.tokenizer);
    rig_close(&rig);
}

static void test_missing_values_are_derived(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "train.steps=400 train.schedule=wsd");
    assert_int_equal(rig.config.model.vocab, 257); /* all bytes and end of text */
    assert_int_equal(rig.config.train.context, 24);
    assert_true(rig.config.train.min_lr == rig.config.train.lr / 10);
    assert_int_equal(rig.config.train.warmup, 20);
    assert_int_equal(rig.config.train.decay, 80);
    assert_int_equal(rig.config.engine.tokens, 24);
    assert_int_equal(rig.config.engine.micro_batch, 4);
    assert_int_equal(run_micro_batches(&rig.config), 2);
    assert_int_equal(rig.scratch.env.threads, 1);
    struct text text;
    text_init(&text, &rig.scratch.env);
    run_config_describe(&rig.config, &text);
    assert_non_null(
        strstr(text_string(&text), "8 sequences of 24 tokens, in 2 micro-batches of 4"));
    text_free(&text);
    rig_close(&rig);
}

static void test_zero_threads_means_the_cpu_mask(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "run.threads=0 train.global_batch=0");
    assert_true(rig.config.machine.threads >= 1);
    assert_int_equal(rig.scratch.env.threads, rig.config.machine.threads);
    assert_int_equal(rig.config.train.global_batch, 4);
    rig_close(&rig);
}

static void test_printed_configuration_parses_to_the_same(void **state)
{
    (void)state;
    struct run_rig rig, again;
    rig_open(&rig);
    rig_config(&rig, "train.steps=77 train.min_lr=1.25e-5 data.tokenizer=train:300 "
                     "optimizer.groups=[{\"match\":\"*norm*\",\"lr_mul\":2},{\"match\":\"*."
                     "weight\",\"wd_mul\":0.5}]");
    rig_open(&again);
    rig_bind(&again);
    assert_int_equal(
        options_load_yaml_text(again.options, text_string(&rig.yaml), rig.yaml.bytes, "printed"),
        STATUS_OK);
    assert_int_equal(rig_resolve(&again, ""), STATUS_OK);
    options_print_yaml(again.options, &again.yaml);
    assert_string_equal(text_string(&rig.yaml), text_string(&again.yaml));
    const struct zero_group *groups = again.config.groups;
    assert_int_equal(again.config.optimizer.groups.count, 2);
    assert_true(groups[0].lr_mul == 2 && groups[0].decay == 0.1 && groups[1].decay == 0.1 * 0.5);
    rig_close(&again);
    rig_close(&rig);
}

static void test_the_vocabulary_comes_from_the_tokenizer(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "data.tokenizer=train:300");
    assert_int_equal(rig.config.model.vocab, tokenizer_vocab(rig.config.tokenizer));
    rig_config(&rig, "model.vocab=512");
    assert_int_equal(rig.config.model.vocab, 512);
    rig_close(&rig);
    expect_refusal("model.vocab=100", STATUS_CONFIG,
                   "model.vocab: 100 is smaller than the tokenizer's 257");
}

#define SARS "model.arch=sars model.kv_heads=0 model.ff=0"

/* The norm of a SARS gradient is not clipped unless the user says so; what it cannot do is refused.
 */
static void test_sars_has_its_own_defaults(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, SARS);
    assert_true(rig.config.train.clip == 0);
    assert_int_equal(rig.config.model.tied, 0);
    assert_non_null(strstr(text_string(&rig.yaml), "  clip: 0\n"));
    struct text text;
    text_init(&text, &rig.scratch.env);
    run_config_describe(&rig.config, &text);
    assert_non_null(strstr(text_string(&text), "model    sars: "));
    text_free(&text);
    rig_config(&rig, SARS " train.clip=1");
    assert_true(rig.config.train.clip == 1);
    rig_config(&rig, "");
    assert_true(rig.config.train.clip == 1);
    rig_close(&rig);
    expect_refusal("sars.sign=minus", STATUS_CONFIG, "sars.sign: only model.arch sars has it");
    expect_refusal(SARS " precision.mode=fp16", STATUS_CONFIG,
                   "cannot use fp16: the gradients of routing");
    expect_refusal(SARS " parallel.tp=2", STATUS_CONFIG, "parallel.tp=2: model.arch sars");
    expect_refusal(SARS " parallel.pp=2", STATUS_CONFIG, "parallel.pp=2: model.arch sars");
}

static void test_wrong_settings_are_refused(void **state)
{
    (void)state;
    expect_refusal("train.global_batch=6", STATUS_CONFIG,
                   "train.global_batch: 6 is not a multiple of train.micro_batch 4; try 8");
    expect_refusal("train.steps=-5", STATUS_USAGE, "train.steps");
    expect_refusal("train.micro_batch=0", STATUS_USAGE, "train.micro_batch");
    expect_refusal("train.stpes=5", STATUS_USAGE, "train.steps"); /* "did you mean" */
    expect_refusal("model.heads=5", STATUS_CONFIG, "model.heads: 5 does not divide model.width 32");
    expect_refusal("train.context=25", STATUS_CONFIG,
                   "train.context: 25 is more than model.context 24");
    expect_refusal("train.warmup=50 train.steps=10", STATUS_CONFIG,
                   "train.warmup: 50 is more than train.steps 10");
    expect_refusal("train.schedule=wsd train.steps=10 train.warmup=5 train.decay=6", STATUS_CONFIG,
                   "train.decay 6");
    expect_refusal("train.min_lr=1", STATUS_CONFIG, "train.min_lr: 1 is more than train.lr 0.01");
    expect_refusal("run.deterministic=false run.device=cpu", STATUS_CONFIG,
                   "run.deterministic: false changes nothing here");
    expect_refusal("precision.accumulate=bf16", STATUS_CONFIG, "precision.mode");
    expect_refusal("precision.mode=fp8", STATUS_USAGE, "precision.mode");
    expect_refusal("optimizer.rounding=up", STATUS_USAGE, "one of nearest, stochastic");
    expect_refusal("data.path=", STATUS_CONFIG, "data.path: no data");
    expect_refusal("data.path=/nowhere/x.txt", STATUS_CONFIG,
                   "data.path: no file matches '/nowhere/x.txt'");
    expect_refusal("data.val=nowhere.txt", STATUS_CONFIG,
                   "data.val: no file matches 'nowhere.txt', seen from '/");
    expect_refusal("data.tokenizer=nowhere.json", STATUS_CONFIG, "data.tokenizer: no file");
    expect_refusal("model.path=/nowhere", STATUS_CONFIG, "there is no '/nowhere'");
    expect_refusal("optimizer.groups=[{\"lr_mul\":2}]", STATUS_CONFIG,
                   "optimizer.groups: entry 1 has no `match`");
}

static void listen(void *user, enum log_level level, const char *line)
{
    char *said = user;
    (void)level;
    snprintf(said + strlen(said), 2048 - strlen(said), "%s\n", line);
}

/* Which configurations may give up equal bits, and the warning for each. Planning for a GPU needs
 * no GPU. */
static void expect_bits(bool planning, const char *settings, enum status expected, bool fast,
                        const char *words)
{
    struct run_rig rig;
    char all[2048], said[2048] = "";
    rig_open(&rig);
    env_destroy(&rig.scratch.env);
    assert_int_equal(env_create(&rig.scratch.env, listen, said, LOG_WARN, 1), STATUS_OK);
    assert_int_equal(options_create(&rig.scratch.env, &rig.options), STATUS_OK);
    assert_int_equal(
        (planning ? run_config_bind_planning : run_config_bind)(rig.options, &rig.config),
        STATUS_OK);
    snprintf(all, sizeof all, "%s data.path=%s %s", rig_small, rig_text(&rig.scratch, "t.txt", 50),
             settings);
    assert_int_equal(rig_resolve(&rig, all), expected);
    assert_int_equal(run_compute(&rig.config).fast, fast);
    if (words ? !strstr(said, words) : *said)
        fail_msg("'%s' said: %s", settings, said);
    text_init(&rig.yaml, &rig.scratch.env);
    rig_close(&rig);
}

static void test_giving_up_equal_bits_is_explicit(void **state)
{
    (void)state;
    expect_bits(false, "run.device=cpu", STATUS_OK, false, NULL);
    expect_bits(false, "run.device=cpu zero.accumulate=local", STATUS_OK, false, NULL);
    expect_bits(false, "run.device=cpu run.deterministic=false zero.accumulate=local", STATUS_OK,
                false, NULL); /* as older configurations have it */
    expect_bits(true, "run.device=cuda", STATUS_OK, false, NULL);
    expect_bits(true, "run.device=cuda run.deterministic=false", STATUS_OK, true,
                "run.deterministic: false: the same run may give other bits: products take");
    expect_bits(true, "run.device=cuda run.deterministic=false", STATUS_OK, true,
                "NCCL, where ranks have it, adds fp32 gradients in an order of its own");
    expect_bits(true, "run.device=cuda run.deterministic=false precision.mode=bf16", STATUS_OK,
                true, "attention's backward pass adds as it comes");
    expect_bits(true, "run.device=cuda run.deterministic=false zero.accumulate=local", STATUS_OK,
                true, "products take");
    expect_bits(true, "run.device=cuda zero.accumulate=local", STATUS_OK, false, NULL);
    expect_bits(true, "run.device=cpu run.deterministic=false", STATUS_CONFIG, false,
                "run.deterministic: false changes nothing here");
}

static void test_reading_needs_a_model(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    assert_int_equal(options_create(&rig.scratch.env, &rig.options), STATUS_OK);
    assert_int_equal(run_config_bind_reading(rig.options, &rig.config), STATUS_OK);
    assert_int_equal(rig_resolve(&rig, "data.path=x"), STATUS_CONFIG);
    scratch_expect(&rig.scratch, "model.path");
    text_init(&rig.yaml, &rig.scratch.env);
    rig_close(&rig);
}

static void test_help_lists_the_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"model.preset",     "data.mix",         "train.max_skips",
                                       "optimizer.groups", "engine.recompute", "precision.mode",
                                       "run.threads"};
    struct run_rig rig;
    struct text help;
    rig_open(&rig);
    rig_bind(&rig);
    text_init(&help, &rig.scratch.env);
    options_print_help(rig.options, &help, 100);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(strstr(text_string(&help), keys[i]));
    text_free(&help);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_values_are_derived),
        cmocka_unit_test(test_zero_threads_means_the_cpu_mask),
        cmocka_unit_test(test_the_vocabulary_comes_from_the_tokenizer),
        cmocka_unit_test(test_printed_configuration_parses_to_the_same),
        cmocka_unit_test(test_sars_has_its_own_defaults),
        cmocka_unit_test(test_wrong_settings_are_refused),
        cmocka_unit_test(test_giving_up_equal_bits_is_explicit),
        cmocka_unit_test(test_reading_needs_a_model),
        cmocka_unit_test(test_help_lists_the_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
