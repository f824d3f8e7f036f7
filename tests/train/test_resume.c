/* A run that is stopped and resumed in another layout has the bits of an uninterrupted one: for
 * ranks, ZeRO stages, servers and groups, in every precision, saved in the background or not, in
 * one file or in several. Also which checkpoints are kept, and what is refused and reported. */
#include "save_rig.h"
#include <dirent.h>
#include <math.h>

static const char *const STATE_FILES[] = {"model.safetensors", "optimizer/momentum.safetensors",
                                          "optimizer/variance.safetensors"};

#define SARS "model.arch=sars model.width=22 model.heads=1 model.kv_heads=0 model.ff=0"

/* The losses in metrics.jsonl, checking that steps are in order. */
static int read_losses(struct save_rig *rig, const char *name, double *losses)
{
    size_t bytes;
    int count = 0;
    char *text = save_read(rig, name, &bytes);
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL; count++) {
        long long step;
        assert_int_equal(sscanf(line, "{\"step\":%lld", &step), 1);
        assert_int_equal(step, count + 1);
        losses[count] = strtod(strstr(line, "\"loss\":") + 7, NULL);
    }
    mem_free(&rig->run.scratch.env, text);
    return count;
}

static void expect_same_runs(struct save_rig *rig, const char *a, const char *b, int steps)
{
    double losses[2][64];
    const char *names[2] = {a, b};
    char path[2][60];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/metrics.jsonl", names[i]);
        assert_int_equal(read_losses(rig, path[i], losses[i]), steps);
    }
    assert_memory_equal(losses[0], losses[1], (size_t)steps * sizeof(double));
    for (size_t f = 0; f < sizeof STATE_FILES / sizeof *STATE_FILES; f++) {
        for (int i = 0; i < 2; i++)
            snprintf(path[i], sizeof path[i], "%s/checkpoints/step-%d/%s", names[i], steps,
                     STATE_FILES[f]);
        save_expect_same(rig, path[0], path[1]);
    }
}

/* The state has the settings of precision and model. */
static void test_a_resumed_run_has_the_same_bits(void **state)
{
    static const struct {
        int ranks, stop;
        const char *settings;
    } lives[] = {
        {3, 4, "zero.stage=3"},
        {2, 7, "zero.stage=1 checkpoint.every=2"},
        {4, 11, "zero.stage=2 checkpoint.every=3 checkpoint.async=false"},
        {1, 13, ""},
        {3, 16, "zero.stage=2 zero.servers=1 checkpoint.every=1"},
        {4, 18, "zero.stage=3 zero.shard_group=2 checkpoint.every=1"},
        {2, 20, "zero.stage=0"},
    };
    struct save_rig rig = {0};
    char common[256], settings[384];
    save_open(&rig);
    snprintf(common, sizeof common, "train.steps=20 train.global_batch=12 train.eval_batches=2 %s",
             (const char *)*state);
    assert_int_equal(save_train(&rig, "plain", 1, common), STATUS_OK);
    for (size_t i = 0; i < sizeof lives / sizeof *lives; i++) {
        snprintf(settings, sizeof settings, "%s train.stop_at=%d %s", common, lives[i].stop,
                 lives[i].settings);
        enum status st = save_train(&rig, "cut", lives[i].ranks, settings);
        assert_int_equal(st, lives[i].stop < 20 ? STATUS_SAVED : STATUS_OK);
        assert_int_equal(rig.summary.steps, lives[i].stop);
        if (i > 0)
            save_expect_line(&rig, "resuming after step");
        if (strstr(rig.lines, "differ"))
            fail_msg("unexpected report of a difference: %s", rig.lines);
    }
    expect_same_runs(&rig, "plain", "cut", 20);
    assert_int_equal(save_verify(&rig, "cut/checkpoints/step-20"), STATUS_OK);
    rig_close(&rig.run);
}

static void test_stochastic_rounding_is_resumed_with_tp(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    static const char all[] = "precision.mode=bf16 optimizer.rounding=stochastic train.steps=9 "
                              "train.eval_batches=2 parallel.tp=2";
    char settings[256];
    save_open(&rig);
    assert_int_equal(save_train(&rig, "plain", 2, all), STATUS_OK);
    for (int stop = 3; stop <= 9; stop += 3) {
        snprintf(settings, sizeof settings, "%s zero.stage=%d train.stop_at=%d", all, stop / 3,
                 stop);
        save_train(&rig, "cut", stop == 6 ? 2 : 4, settings);
    }
    expect_same_runs(&rig, "plain", "cut", 9);
    assert_int_equal(save_train(&rig, "near", 2,
                                "precision.mode=bf16 train.steps=9 "
                                "train.stop_at=3"),
                     STATUS_SAVED);
    save_train(&rig, "near", 2, "precision.mode=bf16 train.steps=9 optimizer.rounding=stochastic");
    save_expect_line(&rig, "optimizer.rounding: nearest -> stochastic");
    rig_close(&rig.run);
}

/* The loss scale after an overflow, and the number of good steps since, survive the stop. */
static void check_loss_scale(const char *rounding)
{
    struct save_rig rig = {0};
    char all[200], settings[256];
    snprintf(all, sizeof all,
             "precision.mode=fp16 train.steps=12 train.lr=20 train.clip=0 train.warmup=0 "
             "train.eval_batches=1 train.max_skips=1000 optimizer.rounding=%s",
             rounding);
    save_open(&rig);
    assert_int_equal(save_train(&rig, "plain", 1, all), STATUS_OK);
    assert_true(rig.summary.skipped > 1); /* otherwise this tests nothing */
    int64_t skipped = rig.summary.skipped;
    for (int stop = 3; stop <= 12; stop += 3) {
        snprintf(settings, sizeof settings, "%s train.stop_at=%d", all, stop);
        save_train(&rig, "cut", 1 + stop % 2, settings);
    }
    assert_int_equal(rig.summary.skipped, skipped);
    expect_same_runs(&rig, "plain", "cut", 12);
    rig_close(&rig.run);
}

static void test_the_loss_scale_is_resumed(void **state)
{
    (void)state;
    check_loss_scale("nearest");
    check_loss_scale("stochastic");
}

/* Saved in one precision and resumed in another: the masters are what is restored. */
static void test_another_precision_resumes_from_the_masters(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 2,
                                "train.steps=9 train.stop_at=3 "
                                "precision.mode=bf16 zero.stage=2"),
                     STATUS_SAVED);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=9 train.stop_at=6"), STATUS_SAVED);
    save_expect_line(&rig, "precision.mode: bf16 -> fp32");
    assert_int_equal(save_train(&rig, "run", 3, "train.steps=9 precision.mode=fp16 zero.stage=3"),
                     STATUS_OK);
    save_expect_line(&rig, "precision.mode: fp32 -> fp16");
    assert_true(save_there(&rig, "run/checkpoints/step-9/optimizer/master.safetensors"));
    assert_false(save_there(&rig, "run/checkpoints/step-6/optimizer/master.safetensors"));
    rig_close(&rig.run);
}

/* A model in several files, with an index for its readers. */
static void test_a_model_may_have_several_files(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 3,
                                "train.steps=6 train.stop_at=3 zero.stage=3 "
                                "checkpoint.file_size=20000"),
                     STATUS_SAVED);
    assert_true(save_there(&rig, "run/checkpoints/step-3/model-00001-of-00004.safetensors"));
    assert_true(save_there(&rig, "run/checkpoints/step-3/model.safetensors.index.json"));
    assert_true(
        save_there(&rig, "run/checkpoints/step-3/optimizer/variance-00004-of-00004.safetensors"));
    assert_int_equal(save_verify(&rig, "run/checkpoints/step-3"), STATUS_OK);
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=6"), STATUS_OK);
    assert_true(save_there(&rig, "run/checkpoints/step-6/model.safetensors"));
    assert_int_equal(save_train(&rig, "plain", 1, "train.steps=6"), STATUS_OK);
    expect_same_runs(&rig, "plain", "run", 6);

    /* another run starts from the model in several files */
    assert_int_equal(save_train(&rig, "cut", 1, "train.steps=6 checkpoint.file_size=20000"),
                     STATUS_OK);
    char settings[160];
    snprintf(settings, sizeof settings, "data.path=%s/text.txt model.path=%s/cut train.steps=1",
             rig.run.scratch.folder, rig.run.scratch.folder);
    rig_bind(&rig.run);
    assert_int_equal(rig_resolve(&rig.run, settings), STATUS_OK);
    options_print_yaml(rig.run.options, &rig.run.yaml);
    struct trainer_summary summary;
    double loss = rig.summary.loss;
    assert_int_equal(rig_train(&rig.run, "next", false, NULL, &summary), STATUS_OK);
    assert_true(summary.loss < loss + 0.5);
    rig_close(&rig.run);
}

static int count_folders(struct save_rig *rig, const char *name)
{
    int count = 0;
    DIR *dir = opendir(scratch_path(&rig->run.scratch, name));
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
    closedir(dir);
    return count;
}

static void test_the_configured_checkpoints_are_kept(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 2,
                                "train.steps=23 checkpoint.every=2 "
                                "checkpoint.keep=3 checkpoint.major=5"),
                     STATUS_OK);
    static const int there[] = {5, 10, 15, 20, 22, 23};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        char name[64];
        snprintf(name, sizeof name, "run/checkpoints/step-%d", there[i]);
        assert_int_equal(save_verify(&rig, name), STATUS_OK);
    }
    assert_int_equal(count_folders(&rig, "run/checkpoints"), 6);
    assert_int_equal(save_train(&rig, "few", 1, "train.steps=6 checkpoint.every=0"), STATUS_OK);
    assert_int_equal(count_folders(&rig, "few/checkpoints"), 1);
    rig_close(&rig.run);
}

/* Leftovers of a killed run are removed; a run without a checkpoint starts again; records of
 * repeated steps are dropped. */
static void test_leftovers_are_removed(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    double losses[64];
    save_open(&rig);
    struct env *env = &rig.run.scratch.env;
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=8 train.stop_at=4"), STATUS_SAVED);
    dir_create(env, scratch_path(&rig.run.scratch, "run/checkpoints/.step-6.tmp/optimizer"));
    scratch_text(&rig.run.scratch, "run/checkpoints/.step-6.tmp/.sifr-lock", "1 host\n");
    scratch_text(&rig.run.scratch, "run/checkpoints/.step-6.tmp/state.json", "half");
    dir_create(env, scratch_path(&rig.run.scratch, "run/checkpoints/.old-step-2"));
    FILE *file = fopen(scratch_path(&rig.run.scratch, "run/metrics.jsonl"), "a");
    fprintf(file, "{\"step\":5,\"loss\":1}\n{\"step\":6,\"lo");
    fclose(file);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=8"), STATUS_OK);
    assert_int_equal(read_losses(&rig, "run/metrics.jsonl", losses), 8);
    assert_int_equal(count_folders(&rig, "run/checkpoints"), 2);

    dir_create(env, scratch_path(&rig.run.scratch, "early"));
    scratch_text(&rig.run.scratch, "early/metrics.jsonl",
                 "{\"step\":1,\"tokens\":8,\"loss\":1,\"grad_norm\":1,\"lr\":1,\"seconds\":1,"
                 "\"tokens_per_second\":8,\"mfu\":null}\n");
    assert_int_equal(save_train(&rig, "early", 2, "train.steps=3"), STATUS_OK);
    save_expect_line(&rig, "no checkpoint in");
    assert_int_equal(read_losses(&rig, "early/metrics.jsonl", losses), 3);
    assert_int_equal(read_losses(&rig, "early/metrics.jsonl.1", losses), 1); /* nothing is lost */
    save_expect_line(&rig, "early/metrics.jsonl.1'");
    rig_close(&rig.run);
}

static void test_a_changed_configuration_is_reported(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    size_t bytes;
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=9 train.stop_at=2"), STATUS_SAVED);
    for (int ranks = 1; ranks <= 2; ranks++) {
        enum status st = save_train(&rig, "run", ranks, "train.steps=9 model.layers=3 train.lr=1");
        assert_int_equal(st, STATUS_CONFIG);
        save_expect_line(&rig, "model.layers: 2 -> 3");
    }
    char *yaml = save_read(&rig, "run/config.yaml", &bytes); /* unchanged */
    assert_non_null(strstr(yaml, "layers: 2"));
    mem_free(&rig.run.scratch.env, yaml);
    assert_int_equal(save_train(&rig, "run", 1,
                                "train.steps=9 train.stop_at=4 train.lr=1e-3 train.min_lr=1e-3 "
                                "train.seed=2 train.log_every=3 checkpoint.every=1"),
                     STATUS_SAVED);
    save_expect_line(&rig, "train.lr: 0.01 -> 0.001");
    save_expect_line(&rig, "train.seed: 1 -> 2");
    assert_null(strstr(rig.lines, "the data does not match")); /* the data is the same */
    assert_null(strstr(rig.lines, "log_every"));
    assert_null(strstr(rig.lines, "checkpoint.every"));

    /* a larger batch continues with the first unused sample */
    assert_int_equal(save_train(&rig, "run", 1,
                                "train.steps=9 train.stop_at=5 train.lr=1e-3 "
                                "train.min_lr=1e-3 train.seed=2 "
                                "train.global_batch=16"),
                     STATUS_SAVED);
    save_expect_line(&rig, "train.global_batch: 8 -> 16");
    char *json = save_read(&rig, "run/checkpoints/step-5/state.json", &bytes);
    assert_non_null(strstr(json, "\"samples\": 48"));
    mem_free(&rig.run.scratch.env, json);
    rig_close(&rig.run);
}

/* Where each worker sums its own micro-batches, another number of workers is reported as a change;
 * elsewhere it is not. */
static void test_another_number_of_workers_is_reported(void **state)
{
    (void)state;
    static const char *const sums[] = {
        "zero.accumulate=local zero.stage=2",
        "precision.mode=bf16 precision.accumulate=bf16 zero.stage=2",
        "zero.accumulate=local precision.mode=bf16 precision.accumulate=bf16",
        "precision.mode=bf16"};
    struct save_rig rig = {0};
    char settings[256], folder[16];
    save_open(&rig);
    for (int i = 0; i < 4; i++) {
        snprintf(folder, sizeof folder, "run-%d", i);
        for (int life = 0; life < 4; life++) {
            static const int ranks[] = {2, 2, 1, 2};
            static const char *const servers[] = {"", "", "", "zero.servers=1 zero.stage=1"};
            snprintf(settings, sizeof settings, "train.steps=9 train.stop_at=%d %s %s", 1 + life,
                     sums[i], servers[life]);
            assert_int_equal(save_train(&rig, folder, ranks[life], settings), STATUS_SAVED);
            bool told = strstr(rig.lines, "2 -> 1 workers") != NULL;
            assert_int_equal(told, i < 3 && life == 2); /* a server is not a worker */
            assert_int_equal(strstr(rig.lines, "differ") != NULL, told);
        }
    }
    rig_close(&rig.run);
}

/* Equal bits were given up and are requested again. */
static void test_a_return_to_equal_bits_is_reported(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 2,
                                "train.steps=9 train.stop_at=2 zero.accumulate=local "
                                "run.deterministic=false"), /* as older runs have it */
                     STATUS_SAVED);
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=9 train.stop_at=3"), STATUS_SAVED);
    save_expect_line(&rig, "so the run will differ from an uninterrupted one");
    save_expect_line(&rig, "run.deterministic: false -> true");
    save_expect_line(&rig, "zero.accumulate: local -> each");
    rig_close(&rig.run);
}

static void test_a_complete_run_is_left_alone(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    size_t bytes[2];
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=5"), STATUS_OK);
    double loss = rig.summary.loss;
    char *before = save_read(&rig, "run/summary.json", &bytes[0]);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=5"), STATUS_OK);
    save_expect_line(&rig, "is complete: step 5 of 5");
    assert_true(rig.summary.loss == loss);
    char *after = save_read(&rig, "run/summary.json", &bytes[1]);
    assert_string_equal(before, after);
    mem_free(&rig.run.scratch.env, before);
    mem_free(&rig.run.scratch.env, after);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=7"), STATUS_OK); /* longer */
    assert_int_equal(rig.summary.steps, 7);
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=4"), STATUS_OK); /* shorter */
    save_expect_line(&rig, "has done 7 steps and train.steps is 4: there is nothing left to do");
    assert_null(strstr(rig.lines, "differ"));
    assert_null(strstr(rig.lines, "going on"));
    assert_true(save_there(&rig, "run/checkpoints/step-7/COMPLETE"));
    rig_close(&rig.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {.name = "fp32",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=fp32"},
        {.name = "bf16",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=bf16"},
        {.name = "fp16",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=fp16"},
        /* Resuming restores the random rounding of the last update, which after skipped steps is
         * not the last step. */
        {.name = "bf16, rounded at random",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=bf16 optimizer.rounding=stochastic"},
        {.name = "fp16, rounded at random",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=fp16 optimizer.rounding=stochastic"},
        /* It stops where the batch changes (after steps 4 and 8), before and after. */
        {.name = "a batch ramp",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=fp32 train.batch_ramp=4@300,8@1k"},
        {.name = "a batch ramp, bf16",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=bf16 train.batch_ramp=4@300,8@1k"},
        {.name = "SARS",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=fp32 " SARS},
        {.name = "SARS, bf16",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=bf16 " SARS},
        {.name = "SARS, rounded at random",
         .test_func = test_a_resumed_run_has_the_same_bits,
         .initial_state = "precision.mode=bf16 optimizer.rounding=stochastic " SARS},
        cmocka_unit_test(test_stochastic_rounding_is_resumed_with_tp),
        cmocka_unit_test(test_the_loss_scale_is_resumed),
        cmocka_unit_test(test_another_precision_resumes_from_the_masters),
        cmocka_unit_test(test_a_model_may_have_several_files),
        cmocka_unit_test(test_the_configured_checkpoints_are_kept),
        cmocka_unit_test(test_leftovers_are_removed),
        cmocka_unit_test(test_a_changed_configuration_is_reported),
        cmocka_unit_test(test_another_number_of_workers_is_reported),
        cmocka_unit_test(test_a_return_to_equal_bits_is_reported),
        cmocka_unit_test(test_a_complete_run_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
