/* The batch of each step follows from the ramp, and a run takes its samples one after the other: it
 * has the bits of runs with fixed batches, each of which continues where the one before stopped. */
#include "save_rig.h"
#include "train/config/batch_ramp.h"

enum { CONTEXT = 10 };

/* --- the list ------------------------------------------------------------------------------- */

static enum status parse(struct scratch *s, struct options *options, const char *text,
                         struct batch_ramp *ramp)
{
    *ramp = (struct batch_ramp){.batch = 64, .context = CONTEXT};
    return batch_ramp_parse(options, &s->env, text, 4, ramp);
}

static void test_batches_follow_the_tokens(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens, batch;
    } cases[] = {{0, 16}, {1999, 16}, {2000, 40}, {7999, 40}, {8000, 64}, {INT64_MAX, 64}};
    struct scratch s;
    struct options *options;
    struct batch_ramp ramp;
    scratch_open(&s);
    assert_int_equal(options_create(&s.env, &options), STATUS_OK);
    assert_int_equal(parse(&s, options, "16@2k, 40@8_000", &ramp), STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(batch_ramp_at(&ramp, cases[i].tokens), cases[i].batch);
    assert_int_equal(batch_ramp_divisor(&ramp), 8);
    assert_int_equal(parse(&s, options, "", &ramp), STATUS_OK);
    assert_int_equal(batch_ramp_at(&ramp, 0), 64);
    assert_int_equal(batch_ramp_divisor(&ramp), 0);
    options_destroy(options);
    scratch_close(&s);
}

/* One step at a time, from any number of tokens. */
static void test_tokens_of_several_steps(void **state)
{
    (void)state;
    static const char *const lists[] = {"", "4@1", "4@100,8@1k,60@2k", "8@1k,12@1001"};
    struct scratch s;
    struct options *options;
    struct batch_ramp ramp;
    scratch_open(&s);
    assert_int_equal(options_create(&s.env, &options), STATUS_OK);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_int_equal(parse(&s, options, lists[i], &ramp), STATUS_OK);
        for (int64_t first = 0; first < 2500; first += 37) {
            int64_t tokens = first;
            for (int steps = 0; steps < 60; steps++) {
                assert_int_equal(batch_ramp_after(&ramp, first, steps), tokens);
                tokens += batch_ramp_at(&ramp, tokens) * CONTEXT;
            }
        }
    }
    assert_int_equal(batch_ramp_after(&ramp, 70, -3), 70); /* more steps done than asked for */
    assert_int_equal(batch_ramp_after(&ramp, 0, INT64_MAX), INT64_MAX);
    options_destroy(options);
    scratch_close(&s);
}

static void test_wrong_lists_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"16", "'16' has no '@'; write SIZE@TOKENS"},
        {"16@2k,", "an item is empty"},
        {",16@2k", "an item is empty"},
        {"@2k", "the size '' in '@2k' is not a whole number above 0"},
        {"x@2k", "the size 'x' in 'x@2k' is not a whole number above 0"},
        {"0@2k", "the size '0' in '0@2k' is not a whole number above 0"},
        {"-4@2k", "the size '-4' in '-4@2k' is not a whole number above 0"},
        {"16@", "the tokens '' in '16@' are not a whole number above 0"},
        {"16@2k@3k", "the tokens '2k@3k' in '16@2k@3k' are not a whole number above 0"},
        {"16@0", "the tokens '0' in '16@0' are not a whole number above 0"},
        {"16@1.5", "the tokens '1.5' in '16@1.5' are not a whole number above 0"},
        {"16@99999999999G", "are not a whole number above 0"},
        {"16@ 2k", "the tokens ' 2k' in '16@ 2k' are not a whole number above 0"},
        {"16@2k, ", "an item is empty"},
        {"18@2k", "18 is not a multiple of train.micro_batch 4; try 20"},
        {"62@2k", "62 is not a multiple of train.micro_batch 4; try 60"},
        {"60@2k,62@3k", "62 is not a multiple of train.micro_batch 4; leave it out"},
        {"66@2k", "66 is not a multiple of train.micro_batch 4; leave it out"},
        {"64@2k", "64 is not below train.global_batch 64"},
        {"16@2k,16@3k", "16 follows 16; sizes must grow from item to item"},
        {"16@2k,8@3k", "8 follows 16; sizes must grow from item to item"},
        {"16@2k,32@2k", "2000 tokens follow 2000; tokens count from the start of the run"},
    };
    struct scratch s;
    struct options *options;
    struct batch_ramp ramp;
    scratch_open(&s);
    assert_int_equal(options_create(&s.env, &options), STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(&s, options, cases[i].text, &ramp), STATUS_CONFIG);
        if (!strstr(log_first_error(s.env.log), "train.batch_ramp: ") ||
            !strstr(log_first_error(s.env.log), cases[i].why))
            fail_msg("'%s': %s", cases[i].text, log_first_error(s.env.log));
        log_error_clear(s.env.log);
    }
    options_destroy(options);
    scratch_close(&s);
}

static void test_the_summary_has_the_ramp(void **state)
{
    (void)state;
    struct run_rig rig;
    struct text text;
    rig_open(&rig);
    rig_config(&rig, "train.global_batch=64 train.batch_ramp=4@2M,32@8M");
    text_init(&text, &rig.scratch.env);
    run_config_describe(&rig.config, &text);
    assert_non_null(
        strstr(text_string(&text),
               "ramp     4 sequences per step until 2.0M tokens, 32 until 8.0M, then 64\n"));
    assert_non_null(strstr(text_string(&rig.yaml), "batch_ramp: \"4@2M,32@8M\"\n"));
    text_free(&text);
    rig_close(&rig);
}

/* --- runs ----------------------------------------------------------------------------------- */

/* Steps of 4, 8 and 12 sequences of 24 tokens: 3, 3, and the rest. */
#define FIXED "train.steps=9 train.schedule=constant train.warmup=2 train.eval_batches=2 "
#define RAMP  FIXED "train.global_batch=12 train.batch_ramp=4@200,8@800 "
static const int64_t TOKENS[] = {96, 192, 288, 480, 672, 864, 1152, 1440, 1728};
static const int64_t BATCH[] = {4, 4, 4, 8, 8, 8, 12, 12, 12};

/* The run in `name` took these steps. */
static void expect_steps(struct save_rig *rig, const char *name)
{
    char path[64];
    size_t bytes;
    int64_t count = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    char *text = save_read(rig, path, &bytes);
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL; count++) {
        char tokens[32], batch[32];
        snprintf(tokens, sizeof tokens, "\"tokens\":%lld,", (long long)TOKENS[count]);
        snprintf(batch, sizeof batch, ",\"batch\":%lld,", (long long)BATCH[count]);
        assert_non_null(strstr(line, tokens));
        assert_non_null(strstr(line, batch));
    }
    assert_int_equal(count, 9);
    mem_free(&rig->run.scratch.env, text);
}

static void expect_same_state(struct save_rig *rig, const char *a, const char *b)
{
    static const char *const files[] = {"model.safetensors", "optimizer/momentum.safetensors",
                                        "optimizer/variance.safetensors"};
    char paths[2][60];
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        snprintf(paths[0], sizeof paths[0], "%s/checkpoints/step-9/%s", a, files[f]);
        snprintf(paths[1], sizeof paths[1], "%s/checkpoints/step-9/%s", b, files[f]);
        save_expect_same(rig, paths[0], paths[1]);
    }
}

/* The first steps are those of the small batch; every later part continues with the first sample
 * that is not used yet, and with the larger batch. */
static void test_a_ramp_is_a_row_of_fixed_batches(void **state)
{
    (void)state;
    static const char *const modes[] = {"precision.mode=fp32", "precision.mode=bf16"};
    static const char *const parts[] = {
        FIXED "train.global_batch=4 train.stop_at=3 ",
        FIXED "train.global_batch=8 train.stop_at=6 ",
        FIXED "train.global_batch=12 ",
    };
    for (int i = 0; i < 2; i++) {
        struct save_rig rig = {0};
        char settings[256];
        save_open(&rig);
        snprintf(settings, sizeof settings, "%s %s", RAMP, modes[i]);
        assert_int_equal(save_train(&rig, "ramp", 1, settings), STATUS_OK);
        assert_int_equal(rig.summary.tokens, TOKENS[8]);
        expect_steps(&rig, "ramp");
        for (int part = 0; part < 3; part++) {
            snprintf(settings, sizeof settings, "%s %s", parts[part], modes[i]);
            assert_int_equal(save_train(&rig, "parts", 1, settings),
                             part < 2 ? STATUS_SAVED : STATUS_OK);
        }
        assert_int_equal(rig.summary.tokens, TOKENS[8]);
        expect_same_state(&rig, "ramp", "parts");
        rig_close(&rig.run);
    }
}

static void test_layouts_have_equal_bits(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        const char *settings;
    } layouts[] = {
        {2, "zero.stage=0"},
        {3, "zero.stage=3 zero.servers=1"},
        {4, "zero.stage=2 engine.recompute=full"},
        {2, "parallel.pp=2 parallel.schedule=zero-bubble"},
        {4, "parallel.pp=2 zero.stage=1"},
        {3, "zero.stage=1"},
    };
    struct save_rig rig = {0};
    char settings[256], folder[16];
    save_open(&rig);
    assert_int_equal(save_train(&rig, "plain", 1, RAMP), STATUS_OK);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        snprintf(settings, sizeof settings, "%s %s", RAMP, layouts[i].settings);
        snprintf(folder, sizeof folder, "run-%zu", i);
        assert_int_equal(save_train(&rig, folder, layouts[i].ranks, settings), STATUS_OK);
        expect_steps(&rig, folder);
        expect_same_state(&rig, "plain", folder);
    }
    rig_close(&rig.run);
}

static void test_another_ramp_is_reported(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, RAMP "train.stop_at=2"), STATUS_SAVED);
    assert_int_equal(save_train(&rig, "run", 2, RAMP "train.stop_at=4"), STATUS_SAVED);
    assert_null(strstr(rig.lines, "differ"));
    assert_int_equal(save_train(&rig, "run", 1, RAMP "train.batch_ramp=8@800 train.stop_at=5"),
                     STATUS_SAVED);
    save_expect_line(&rig, "so the run will differ from an uninterrupted one: train.batch_ramp: "
                           "\"4@200,8@800\" -> \"8@800\"");
    rig_close(&rig.run);
}

/* Ranks that only the first steps leave idle are a warning, too. */
static void test_idle_ranks_are_reported(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 3, RAMP), STATUS_OK);
    save_expect_line(&rig, "2 of 3 ranks have nothing to compute at first: a step has 1 "
                           "micro-batch; raise the sizes of train.batch_ramp");
    rig_close(&rig.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_follow_the_tokens),
        cmocka_unit_test(test_tokens_of_several_steps),
        cmocka_unit_test(test_wrong_lists_are_refused),
        cmocka_unit_test(test_the_summary_has_the_ramp),
        cmocka_unit_test(test_a_ramp_is_a_row_of_fixed_batches),
        cmocka_unit_test(test_layouts_have_equal_bits),
        cmocka_unit_test(test_another_ramp_is_reported),
        cmocka_unit_test(test_idle_ranks_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
