/* What a path may stand for: a directory, a file, a checkpoint, a run; and paths without a model.
 * test_checkpoint_damage.c covers damage. */
#include <unistd.h>
#include "save_rig.h"
#include "train/models/model_source.h"
#include "train/models/model_weights.h"

static const struct model_want all = {.depth = MODEL_DEPTH_ALL};
static const struct model_want state_only = {.depth = MODEL_DEPTH_STATE};

static enum status look(struct scratch *s, const char *name, const struct model_want *want,
                        struct model_source **source)
{
    return model_source_open(&s->env, scratch_path(s, name), want, source);
}

static void expect_found(struct scratch *s, const char *name, const struct model_want *want,
                         const char *folder, bool checkpoint)
{
    struct model_source *source;
    assert_int_equal(look(s, name, want, &source), STATUS_OK);
    assert_string_equal(source->folder, scratch_path(s, folder));
    assert_int_equal(source->checkpoint != NULL, checkpoint);
    model_source_close(source);
}

static void expect_refused(struct scratch *s, const char *name, const struct model_want *want,
                           enum status st, const char *words)
{
    struct model_source *source;
    assert_int_equal(look(s, name, want, &source), st);
    scratch_expect(s, words);
}

static void command(struct scratch *s, const char *format)
{
    char text[512];
    snprintf(text, sizeof text, "cd %s && %s", s->folder, format);
    assert_int_equal(system(text), 0);
}

static void test_directories_and_files_are_found(void **state)
{
    (void)state;
    struct scratch s;
    struct model_source *source;
    scratch_open(&s);
    expect_refused(&s, "nowhere", &all, STATUS_CONFIG, "there is no '");
    command(&s, "mkdir -p empty plain && echo '{\"model_type\":\"gpt2\"}' >plain/config.json && : "
                ">plain/x.safetensors");
    expect_refused(&s, "empty", &all, STATUS_CONFIG, "not a model directory");
    expect_refused(&s, "plain/config.json", &all, STATUS_CONFIG, "not a model directory");
    expect_found(&s, "plain", &all, "plain", false);
    assert_int_equal(look(&s, "plain/x.safetensors", &all, &source), STATUS_OK);
    assert_string_equal(source->file, s.path);
    assert_string_equal(source->folder, scratch_path(&s, "plain"));
    model_source_close(source);
    scratch_close(&s);
}

/* What people have instead of a model that sifr can read: the message names it. */
static void test_other_formats_are_named(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    command(&s, "mkdir adapter merged bin bins empty && : >adapter/adapter_config.json && "
                "for i in merged bin bins; do echo {} >$i/config.json; done && "
                "echo '{\"hidden_size\":8}' >empty/config.json && "
                ": >merged/adapter_config.json && : >bin/pytorch_model.bin && "
                ": >bins/pytorch_model.bin.index.json");
    expect_refused(&s, "adapter", &all, STATUS_CONFIG, "is a PEFT adapter");
    expect_refused(&s, "merged", &all, STATUS_CONFIG, "is a PEFT adapter");
    expect_refused(&s, "bin", &all, STATUS_CONFIG, "pytorch_model.bin");
    expect_refused(&s, "bins", &all, STATUS_CONFIG, "pytorch_model-*.bin");
    expect_refused(&s, "empty", &all, STATUS_CONFIG, "model_type is missing");
    scratch_close(&s);
}

/* Folders of a run that look like checkpoints but are not. */
static void test_the_newest_checkpoint_of_a_run_is_found(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    struct scratch *s = &rig.run.scratch;
    save_open(&rig);
    assert_int_equal(
        save_train(&rig, "run", 1, "train.steps=20 train.stop_at=9 checkpoint.every=8"),
        STATUS_SAVED);
    expect_found(s, "run", &all, "run/checkpoints/step-9", true);
    expect_found(s, "run/checkpoints/step-8", &all, "run/checkpoints/step-8", true);
    command(s,
            "cd run/checkpoints && cp -r step-9 step-100 && rm step-100/COMPLETE && "
            "mkdir step-200 && cp step-9/config.json step-200 && mkdir step-300 && "
            "cp -r step-9 step-400.damaged && cp -r step-9 step-x && cp -r step-9 .step-500.tmp && "
            "rm .step-500.tmp/COMPLETE .step-500.tmp/state.json");
    expect_found(s, "run", &all, "run/checkpoints/step-9", true);
    expect_refused(s, "run/checkpoints/step-100", &all, STATUS_FORMAT, "step-100/COMPLETE");
    expect_refused(s, "run/checkpoints/.step-500.tmp", &all, STATUS_FORMAT, ".tmp/state.json");
    expect_found(s, "run/checkpoints/step-200", &all, "run/checkpoints/step-200", false);

    /* a reader that only wants state.json gets the newest checkpoint even if it is damaged */
    command(s, "cd run/checkpoints && rm -r step-100 step-200 step-300 && : >step-9/config.json");
    expect_found(s, "run", &all, "run/checkpoints/step-8", true);
    expect_found(s, "run", &state_only, "run/checkpoints/step-9", true);
    expect_refused(s, "run/checkpoints/step-9", &all, STATUS_FORMAT, "step-9/config.json");
    expect_refused(s, "run/checkpoints/step-9/model.safetensors", &all, STATUS_FORMAT,
                   "step-9/config.json");
    command(s, "rm run/checkpoints/step-8/tokenizer.json");
    expect_refused(s, "run", &all, STATUS_FORMAT, "no checkpoint of");
    expect_refused(s, "run", &all, STATUS_FORMAT, "step-8/tokenizer.json");
    rig_close(&rig.run);
}

/* An open source holds no read buffers: it may stay open as long as a run. */
static void test_an_open_source_holds_little_memory(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    struct scratch *s = &rig.run.scratch;
    struct model_source *source;
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=2"), STATUS_OK);
    size_t before = mem_total(s->env.mem);
    assert_int_equal(look(s, "run", &all, &source), STATUS_OK);
    assert_true(mem_total(s->env.mem) - before < 64 << 10);
    model_source_close(source);
    rig_close(&rig.run);
}

/* A weight file that is in the folder but not in state.json is not part of the checkpoint. */
static void test_a_stray_file_is_ignored(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    struct scratch *s = &rig.run.scratch;
    struct weight_files weights = {.env = &s->env};
    struct model_source *source;
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=2 checkpoint.file_size=20000"),
                     STATUS_OK);
    command(s,
            "cd run/checkpoints/step-2 && cp model-00001-of-00004.safetensors model.safetensors");
    assert_int_equal(look(s, "run", &all, &source), STATUS_OK);
    assert_int_equal(weight_files_open(&weights, source), STATUS_OK);
    assert_int_equal(weights.count, 4);
    weight_files_close(&weights);
    model_source_close(source);
    rig_close(&rig.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directories_and_files_are_found),
        cmocka_unit_test(test_other_formats_are_named),
        cmocka_unit_test(test_the_newest_checkpoint_of_a_run_is_found),
        cmocka_unit_test(test_an_open_source_holds_little_memory),
        cmocka_unit_test(test_a_stray_file_is_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
