/* The differences between two configurations, and what they affect. */
#include "scratch.h"
#include "train/checkpoint/config_lines.h"

static const char THERE[] =
    "model:\n  layers: 2\n  preset: tiny\ntrain:\n  lr: 0.1\n  log_every: 3\n"
    "  gone: 1\noptimizer:\n  groups:\n    - match: \"*a*\"\n"
    "      lr_mul: 2\n    - match: \"*b*\"\n      lr_mul: 3\nrun:\n"
    "  threads: 1\n";

static void test_one_line_per_key(void **state)
{
    (void)state;
    struct scratch s;
    struct text text;
    scratch_open(&s);
    text_init(&text, &s.env);
    config_lines(THERE, NULL, &text);
    assert_string_equal(text_string(&text),
                        "model.layers: 2\nmodel.preset: tiny\ntrain.lr: 0.1\ntrain.log_every: 3\n"
                        "train.gone: 1\noptimizer.groups: [{match: \"*a*\", lr_mul: 2}, "
                        "{match: \"*b*\", lr_mul: 3}]\nrun.threads: 1\n");
    text_free(&text);
    scratch_close(&s);
}

static void expect_changes(struct scratch *s, const char *here, enum config_weight weight,
                           const char *changes)
{
    struct text text;
    text_init(&text, &s->env);
    config_changes(THERE, here, weight, &text);
    assert_string_equal(text_string(&text), changes);
    text_free(&text);
}

static void test_changes_are_grouped_by_effect(void **state)
{
    (void)state;
    static const char here[] =
        "model:\n  layers: 3\n  preset: none\ntrain:\n  lr: 0.2\n  log_every: 4\n  new: 1\n"
        "optimizer:\n  groups:\n    - match: \"*a*\"\n      lr_mul: 2\n    - match: \"*b*\"\n"
        "      lr_mul: 4\nrun:\n  threads: 9\n";
    struct scratch s;
    scratch_open(&s);
    for (int weight = 0; weight < CONFIG_WEIGHTS; weight++)
        expect_changes(&s, THERE, (enum config_weight)weight, "");
    expect_changes(&s, here, CONFIG_SHAPES, "model.layers: 2 -> 3");
    expect_changes(&s, here, CONFIG_BITS,
                   "train.lr: 0.1 -> 0.2; optimizer.groups: "
                   "[{match: \"*a*\", lr_mul: 2}, {match: \"*b*\", lr_mul: 3}] -> "
                   "[{match: \"*a*\", lr_mul: 2}, {match: \"*b*\", lr_mul: 4}]");
    expect_changes(&s, here, CONFIG_FREE,
                   "model.preset: tiny -> none; train.log_every: 3 -> 4; "
                   "run.threads: 1 -> 9");
    scratch_close(&s);
}

/* An added or removed list item is a change, and so is a difference near the end of a long
 * value. */
static void test_lists_and_long_values_are_compared(void **state)
{
    (void)state;
    struct scratch s;
    char long_path[2][800];
    struct text text;
    scratch_open(&s);
    expect_changes(&s, "optimizer:\n  groups: []\n", CONFIG_BITS,
                   "optimizer.groups: [{match: \"*a*\", lr_mul: 2}, {match: \"*b*\", lr_mul: 3}] "
                   "-> []");
    expect_changes(&s, "optimizer:\n  groups:\n    - match: \"*a*\"\n      lr_mul: 2\n",
                   CONFIG_BITS,
                   "optimizer.groups: [{match: \"*a*\", lr_mul: 2}, {match: \"*b*\", lr_mul: 3}] "
                   "-> [{match: \"*a*\", lr_mul: 2}]");
    for (int i = 0; i < 2; i++)
        snprintf(long_path[i], sizeof long_path[i], "data:\n  path: %0700d\n", i);
    text_init(&text, &s.env);
    config_changes(long_path[0], long_path[1], CONFIG_DATA, &text);
    assert_non_null(strstr(text_string(&text), "00 -> 0"));
    text_free(&text);
    scratch_close(&s);
}

/* A checkpoint of a version that had no optimizers differs in nothing from the same run today; a
 * setting that is no longer left to the optimizer is a change. */
static void test_optimizers_of_older_checkpoints(void **state)
{
    (void)state;
    static const char older[] = "optimizer:\n  rounding: nearest\n  groups:\n"
                                "    - match: \"*a*\"\n      lr_mul: 2\n      wd_mul: 1\n";
    static const char now[] = "optimizer:\n  kind: adamw\n  momentum: auto\n  rounding: nearest\n"
                              "  groups:\n"
                              "    - match: \"*a*\"\n      lr_mul: 2\n      wd_mul: 1\n";
    static const char changed[] = "optimizer:\n  kind: sgd\n  momentum: 0.8\n  rounding: nearest\n"
                                  "  groups:\n    - match: \"*a*\"\n      lr_mul: 2\n"
                                  "      wd_mul: 1\n      kind: muon\n";
    struct scratch s;
    struct text text;
    scratch_open(&s);
    text_init(&text, &s.env);
    config_changes(older, now, CONFIG_BITS, &text);
    assert_string_equal(text_string(&text), "");
    config_changes(now, changed, CONFIG_BITS, &text);
    assert_string_equal(text_string(&text),
                        "optimizer.kind: adamw -> sgd; optimizer.momentum: auto -> 0.8; "
                        "optimizer.groups: [{match: \"*a*\", lr_mul: 2, wd_mul: 1}] -> "
                        "[{match: \"*a*\", lr_mul: 2, wd_mul: 1, kind: muon}]");
    text_free(&text);
    scratch_close(&s);
}

static void test_every_key_has_its_effect(void **state)
{
    (void)state;
    static const char *const names[][8] = {
        [CONFIG_FREE] = {"zero.stage: 1", "comm.backend: mpi", "checkpoint.every: 2",
                         "train.stop_at: 3", "train.eval_every: 4", "engine.recompute: full",
                         "run.threads: 2", "offload.optimizer: disk"},
        [CONFIG_BITS] = {"train.seed: 1", "train.context: 8", "zero.accumulate: local",
                         "precision.mode: bf16", "model.rope_theta: 1", "sars.meta_clip: 2",
                         "run.deterministic: false"},
        [CONFIG_DATA] = {"data.path: x", "data.val: 0.1", "data.split: 0.1", "data.format: text",
                         "data.tokenizer: bytes", "data.special: true", "data.mix: []"},
        [CONFIG_SHAPES] = {"model.vocab: 1", "model.width: 2", "model.arch: gpt2", "model.tied: no",
                           "sars.rope: true", "model.ff: 3", "model.heads: 3"},
        [CONFIG_EVAL] = {"train.eval_batches: 4"},
    };
    for (int weight = 0; weight < CONFIG_WEIGHTS; weight++)
        for (int i = 0; i < 8 && names[weight][i]; i++)
            assert_int_equal(config_weight_of(names[weight][i]), weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_line_per_key),
        cmocka_unit_test(test_changes_are_grouped_by_effect),
        cmocka_unit_test(test_lists_and_long_values_are_compared),
        cmocka_unit_test(test_optimizers_of_older_checkpoints),
        cmocka_unit_test(test_every_key_has_its_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
