/* Evaluation of a saved model gives the trainer's loss, with any micro-batch; it can use part of
 * the data and be stopped. */
#include "run_rig.h"
#include <math.h>
#include "train/evaluate.h"

static int train_small(struct run_rig *rig, struct trainer_summary *summary)
{
    rig_open(rig);
    rig_config(rig, "train.steps=10 train.eval_batches=0 data.split=0.2 data.tokenizer=train:300");
    return rig_train(rig, "run", false, NULL, summary);
}

/* A configuration for reading the run of `trained`, based on that run's config.yaml. */
static enum status open_reading(struct run_rig *eval, struct run_rig *trained, const char *settings)
{
    char all[1024], run[128];
    rig_open(eval);
    text_init(&eval->yaml, &eval->scratch.env);
    assert_int_equal(options_create(&eval->scratch.env, &eval->options), STATUS_OK);
    assert_int_equal(run_config_bind_reading(eval->options, &eval->config), STATUS_OK);
    assert_int_equal(options_load_yaml_text(eval->options, text_string(&trained->yaml),
                                            trained->yaml.bytes, "config.yaml"),
                     STATUS_OK);
    snprintf(run, sizeof run, "%s", scratch_path(&trained->scratch, "run"));
    snprintf(all, sizeof all, "model.path=%s %s", run, settings);
    return rig_resolve(eval, all);
}

static enum status measure(struct run_rig *eval, size_t memory, evaluate_progress_fn *progress,
                           void *user, struct evaluation *evaluation)
{
    const struct evaluate_task task = {.config = &eval->config,
                                       .config_yaml = "",
                                       .memory = memory,
                                       .local = 1,
                                       .progress = progress,
                                       .user = user};
    return evaluate_model(&eval->scratch.env, &task, evaluation, NULL);
}

static void test_saved_model_gives_the_trainers_loss(void **state)
{
    (void)state;
    struct run_rig rig, eval;
    struct trainer_summary summary;
    struct evaluation evaluation;
    assert_int_equal(train_small(&rig, &summary), STATUS_OK);
    assert_int_equal(open_reading(&eval, &rig, "train.eval_batches=0"), STATUS_OK);
    assert_int_equal(measure(&eval, SIZE_MAX, NULL, NULL, &evaluation), STATUS_OK);
    assert_true(evaluation.loss == summary.val.loss);
    assert_int_equal(evaluation.tokens, summary.val.tokens);
    assert_int_equal(evaluation.bytes, summary.val.bytes);
    assert_float_equal(
        evaluation.bits_per_byte,
        evaluation.loss / log(2) * (double)evaluation.tokens / (double)evaluation.bytes, 1e-12);
    rig_close(&eval);

    /* The last micro-batch is padded with rows that do not count. */
    assert_int_equal(open_reading(&eval, &rig, "train.eval_batches=0 train.micro_batch=7"),
                     STATUS_OK);
    assert_int_equal(measure(&eval, SIZE_MAX, NULL, NULL, &evaluation), STATUS_OK);
    assert_float_equal(evaluation.loss, summary.val.loss, 1e-6);
    assert_int_equal(evaluation.tokens, summary.val.tokens);
    rig_close(&eval);
    rig_close(&rig);
}

static bool stop_at_two(void *user, int64_t done, int64_t total, enum status read)
{
    assert_int_equal(read, STATUS_OK);
    assert_true(done <= total && total >= 3);
    *(int64_t *)user = done;
    return done < 2;
}

static void test_evaluation_can_be_partial_and_stopped(void **state)
{
    (void)state;
    struct run_rig rig, eval;
    struct trainer_summary summary;
    struct evaluation evaluation;
    int64_t done = 0;
    assert_int_equal(train_small(&rig, &summary), STATUS_OK);
    assert_int_equal(open_reading(&eval, &rig, "train.eval_batches=3 train.micro_batch=1"),
                     STATUS_OK);
    assert_int_equal(measure(&eval, SIZE_MAX, NULL, NULL, &evaluation), STATUS_OK);
    assert_int_equal(evaluation.batches, 3);
    assert_int_equal(evaluation.tokens, 3 * 24);
    assert_int_equal(measure(&eval, SIZE_MAX, stop_at_two, &done, &evaluation), STATUS_STOPPED);
    assert_int_equal(done, 2);
    rig_close(&eval);
    rig_close(&rig);
}

static void test_evaluation_needs_held_out_data(void **state)
{
    (void)state;
    struct run_rig rig, eval;
    struct trainer_summary summary;
    struct evaluation evaluation;
    assert_int_equal(train_small(&rig, &summary), STATUS_OK);
    assert_int_equal(open_reading(&eval, &rig, "data.split=0"), STATUS_OK);
    assert_int_equal(measure(&eval, SIZE_MAX, NULL, NULL, &evaluation), STATUS_CONFIG);
    scratch_expect(&eval.scratch, "data.val");
    rig_close(&eval);
    rig_close(&rig);
}

static void test_json_has_null_for_unknown_values(void **state)
{
    (void)state;
    struct scratch s;
    struct text text;
    struct evaluation evaluation = {
        .loss = 0.5, .perplexity = 1.25, .bits_per_byte = NAN, .tokens = 7, .seconds = 2};
    scratch_open(&s);
    text_init(&text, &s.env);
    evaluation_print(&evaluation, &text);
    assert_string_equal(text_string(&text),
                        "{\"loss\":0.5,\"perplexity\":1.25,\"bits_per_byte\":null,"
                        "\"tokens\":7,\"seconds\":2}");
    text_free(&text);
    scratch_close(&s);
}

/* A model with a large context and little data: memory and work follow the data, and the loss is
 * the same. */
static void test_memory_follows_the_data(void **state)
{
    (void)state;
    struct run_rig rig, eval;
    struct trainer_summary summary;
    struct evaluation small, large;
    char settings[512];
    rig_open(&rig);
    rig_config(&rig, "train.steps=2 train.context=16 model.context=65536 train.eval_batches=0 "
                     "data.split=0.05 data.tokenizer=train:300");
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_OK);
    snprintf(settings, sizeof settings,
             "train.context=65536 train.micro_batch=64 data.path= data.val=%s",
             scratch_path(&rig.scratch, "text.txt"));
    assert_int_equal(open_reading(&eval, &rig, settings), STATUS_OK);
    assert_int_equal(measure(&eval, (size_t)256 << 20, NULL, NULL, &large), STATUS_OK);
    assert_int_equal(eval.config.engine.tokens, 65536); /* the caller's configuration is
                                                           unchanged */
    rig_close(&eval);
    snprintf(settings, sizeof settings,
             "train.context=16384 train.micro_batch=1 data.path= data.val=%s",
             scratch_path(&rig.scratch, "text.txt"));
    assert_int_equal(open_reading(&eval, &rig, settings), STATUS_OK);
    assert_int_equal(measure(&eval, SIZE_MAX, NULL, NULL, &small), STATUS_OK);
    assert_int_equal(small.batches, 1); /* one window: both see the same text */
    assert_int_equal(small.tokens, large.tokens);
    assert_true(small.loss == large.loss);
    rig_close(&eval);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saved_model_gives_the_trainers_loss),
        cmocka_unit_test(test_evaluation_can_be_partial_and_stopped),
        cmocka_unit_test(test_evaluation_needs_held_out_data),
        cmocka_unit_test(test_memory_follows_the_data),
        cmocka_unit_test(test_json_has_null_for_unknown_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
