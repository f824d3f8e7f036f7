/* Saves that fail at every write they make, on one rank or another, and checkpoints that are damaged
 * at many places: the run goes on, the message names the file, and what was complete before is whole
 * and is gone on from.
 */
#include <sys/stat.h>
#include <unistd.h>
#include "base/rng.h"
#include "save_rig.h"
#include "train/checkpoint_keep.h"

/* --- writes that fail ----------------------------------------------------------------------- */

struct plan {     /* shared with the callbacks; one test at a time */
    int rank;     /* whose writes fail */
    int error;    /* with what */
    int from;     /* the save after step `from` is the first that fails */
    int until;    /* from this step on none does; 0 = they go on */
    int saved;    /* told by the callback */
    int verified; /* that the last complete one is */
};
static struct plan plan;

/* Before step k + 1 the k-th save has been made: its call number k - from fails. */
static bool on_ask(void *user)
{
    struct save_seat *seat = user;
    struct save_rig *rig = seat->rig;
    int step = ++seat->asked; /* the step that follows */
    long long call = plan.until > 0 && step >= plan.until ? 0 : step - plan.from + 1;
    if (seat->rank == plan.rank) {
        rig->faults[seat->rank].error = plan.error < 0 ? (step % 2 ? ENOSPC : EIO) : plan.error;
        atomic_store(&rig->faults[seat->rank].left, call > 0 ? call : 0);
    }
    return false;
}

static void on_saved(void *user, const struct checkpoint_result *result)
{
    (void)user;
    plan.saved++;
    assert_true(result->bytes > 0 && result->seconds >= result->stood);
}

/* The newest one is whole, whatever has failed since. */
static void on_step(void *user, const struct trainer_step *step)
{
    struct save_seat *seat = user;
    struct env env;
    struct checkpoint *checkpoint;
    int64_t newest;
    char *path, folder[128];
    if (step->step < 3)
        return;
    snprintf(folder, sizeof folder, "%s/checkpoints", seat->folder);
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_int_equal(checkpoint_keep_newest(&env, folder, INT64_MAX, &newest), STATUS_OK);
    assert_true(newest >= 1);
    assert_int_equal(checkpoint_keep_path(&env, folder, "", newest, "", &path), STATUS_OK);
    assert_int_equal(checkpoint_open(&env, path, &checkpoint), STATUS_OK);
    assert_int_equal(checkpoint_state(checkpoint)->progress.step, newest);
    assert_int_equal(checkpoint_verify(checkpoint, NULL, NULL), STATUS_OK);
    checkpoint_close(checkpoint);
    mem_free(&env, path);
    env_destroy(&env);
    plan.verified++;
}

static int count_lines(const char *lines, const char *part)
{
    int count = 0;
    for (; (lines = strstr(lines, part)); lines++)
        count++;
    return count;
}

/* One save a step, each failing one call later than the one before, until none does. */
static void fail_every_write(int ranks, int rank, int error, const char *settings, int most)
{
    static const struct trainer_callbacks callbacks = {
        .should_stop = on_ask, .step = on_step, .saved = on_saved};
    struct save_rig rig = {.callbacks = &callbacks};
    char all[256];
    plan = (struct plan){.rank = rank, .error = error, .from = 3};
    save_open(&rig);
    snprintf(all, sizeof all,
             "train.steps=%d train.eval_batches=1 model.layers=1 model.width=16 model.heads=2 "
             "model.kv_heads=1 checkpoint.every=1 checkpoint.async=false checkpoint.keep=1 %s",
             most, settings);
    assert_int_equal(save_train(&rig, "run", ranks, all), STATUS_OK);
    int lost = count_lines(rig.lines, "WAS NOT SAVED");
    assert_int_equal(plan.saved + lost, most - 1);
    assert_int_equal(plan.verified, most - 2);
    if (error == 0)
        assert_int_equal(lost, 0);
    else if (!strstr(rig.lines,
                     "...")) { /* the buffer holds some of the lines; each names a file */
        assert_true(lost > 10);
        assert_true(count_lines(rig.lines, "checkpoints") >= lost);
    }
    assert_true(plan.saved > 3); /* the last had no call left to fail */
    /* And what is there goes on. */
    rig.callbacks = NULL;
    memset(rig.faults, 0, sizeof rig.faults);
    snprintf(all + strlen(all), sizeof all - strlen(all), " train.steps=%d", most + 2);
    assert_int_equal(save_train(&rig, "run", 1, all), STATUS_OK);
    assert_false(strstr(rig.lines, "passed over"));
    rig_close(&rig.run);
}

static void test_every_write_of_one_rank(void **state)
{
    (void)state;
    fail_every_write(1, 0, -1, "", 170);
}

static void test_every_write_of_the_second_rank(void **state)
{
    (void)state;
    fail_every_write(2, 1, -1, "zero.stage=3 precision.mode=bf16", 110);
}

static void test_short_writes(void **state)
{
    (void)state;
    fail_every_write(2, 0, 0, "zero.stage=1", 120);
}

/* In the background the line comes a step later, and the run is the same. */
static void test_failure_in_the_background(void **state)
{
    (void)state;
    static const struct trainer_callbacks callbacks = {.should_stop = on_ask};
    struct save_rig rig = {.callbacks = &callbacks};
    plan = (struct plan){.rank = 1, .error = ENOSPC, .from = 3, .until = 10};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=12 checkpoint.every=1 zero.stage=2"),
                     STATUS_OK);
    save_expect_line(&rig, "rank 1: ");
    save_expect_line(&rig, "the run goes on, and the one before is there");
    assert_int_equal(save_verify(&rig, "run/checkpoints/step-12"), STATUS_OK);
    rig_close(&rig.run);
}

/* The last one counts. */
static void test_the_last_save_fails(void **state)
{
    (void)state;
    static const struct trainer_callbacks callbacks = {.should_stop = on_ask};
    struct save_rig rig = {.callbacks = &callbacks};
    plan = (struct plan){.rank = 0, .error = ENOSPC, .from = -15}; /* its 20th call */
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=4"), STATUS_IO);
    save_expect_line(&rig, "the checkpoint of step 4 was not saved");
    assert_string_equal(rig.summary.end, "failed");
    rig_close(&rig.run);
}

static void test_a_folder_that_cannot_be_written(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=9 train.stop_at=2"), STATUS_SAVED);
    char path[128];
    snprintf(path, sizeof path, "%s/run/checkpoints/.step-4.tmp", rig.run.scratch.folder);
    FILE *file = fopen(path, "w"); /* a file where the folder should be: root may write anywhere */
    assert_non_null(file);
    fclose(file);
    /* it is a left-over like any other, and goes */
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=9 train.stop_at=4"), STATUS_SAVED);
    assert_int_equal(save_verify(&rig, "run/checkpoints/step-4"), STATUS_OK);
    rig_close(&rig.run);
}

/* --- damage --------------------------------------------------------------------------------- */

static const char SETTINGS[] =
    "train.steps=9 train.eval_batches=1 model.layers=1 model.width=16 model.heads=2 "
    "model.kv_heads=1 checkpoint.every=2 precision.mode=bf16 ";

static void flip(const char *path, uint64_t draw)
{
    struct stat info;
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &info), 0);
    long at = (long)(draw % (uint64_t)info.st_size);
    fseek(file, at, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ (1 << draw % 7), file);
    fclose(file);
}

static void shorten(const char *path, uint64_t draw)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, (off_t)(draw % (uint64_t)info.st_size)), 0);
}

static void copy_run(struct save_rig *rig)
{
    char command[256];
    const char *folder = rig->run.scratch.folder;
    snprintf(command, sizeof command, "rm -rf %s/run && cp -r %s/kept %s/run", folder, folder,
             folder);
    assert_int_equal(system(command), 0);
}

/* Everything that is checked when it is verified, is also found when it is loaded. */
static void test_damage_is_found(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors",
                                        "optimizer/master.safetensors",
                                        "optimizer/momentum.safetensors",
                                        "optimizer/variance.safetensors",
                                        "config.json",
                                        "tokenizer.json",
                                        "state.json",
                                        "COMPLETE"};
    struct save_rig rig = {0};
    struct rng rng = rng_stream(3, "damage");
    char settings[256], path[160];
    save_open(&rig);
    struct scratch *s = &rig.run.scratch;
    snprintf(settings, sizeof settings, "%s train.stop_at=4 zero.stage=3", SETTINGS);
    assert_int_equal(save_train(&rig, "kept", 2, settings), STATUS_SAVED);
    for (int i = 0; i < 400; i++) {
        const char *name = names[i % 8];
        uint64_t draw = rng_bits(rng, (uint64_t)i) >> 3;
        if (i % 40 == 0)
            copy_run(&rig);
        char kept[160], command[400];
        snprintf(path, sizeof path, "%s/run/checkpoints/step-4/%s", s->folder, name);
        snprintf(kept, sizeof kept, "%s/kept/checkpoints/step-4/%s", s->folder, name);
        (i % 3 == 0 ? shorten : flip)(path, draw);
        enum status st = save_verify(&rig, "run/checkpoints/step-4");
        if (st == STATUS_OK)
            fail_msg("'%s' is damaged (%d) and nobody sees it", name, i);
        const char *error = log_first_error(s->env.log);
        if (!strstr(error, strcmp(name, "COMPLETE") == 0 ? "COMPLETE" : name))
            fail_msg("'%s' is not named in '%s'", name, error);
        log_error_clear(s->env.log);
        snprintf(command, sizeof command, "cp %s %s", kept, path);
        assert_int_equal(system(command), 0);
    }
    rig_close(&rig.run);
}

static void test_the_one_before_is_used(void **state)
{
    (void)state;
    static const char *const names[] = {"optimizer/master.safetensors",
                                        "optimizer/momentum.safetensors",
                                        "optimizer/variance.safetensors", "state.json", "COMPLETE"};
    struct save_rig rig = {0};
    char settings[256], path[160];
    save_open(&rig);
    snprintf(settings, sizeof settings, "%s train.stop_at=4 zero.stage=3", SETTINGS);
    assert_int_equal(save_train(&rig, "kept", 2, settings), STATUS_SAVED);
    assert_int_equal(save_train(&rig, "plain", 1, SETTINGS), STATUS_OK);
    for (int i = 0; i < 5; i++) {
        copy_run(&rig);
        snprintf(path, sizeof path, "%s/run/checkpoints/step-4/%s", rig.run.scratch.folder,
                 names[i]);
        if (i % 2 == 0)
            flip(path, 4321);
        else
            assert_int_equal(unlink(path), 0);
        snprintf(settings, sizeof settings, "%s zero.stage=1", SETTINGS);
        assert_int_equal(save_train(&rig, "run", 1 + i % 3, settings), STATUS_OK);
        save_expect_line(&rig, "step-4' is passed over: ");
        save_expect_line(&rig, i == 3 ? "state.json" : names[i]);
        save_expect_line(&rig, "going on after step 2 from");
        assert_true(save_there(&rig, "run/checkpoints/step-4.damaged"));
        save_expect_same(&rig, "plain/checkpoints/step-9/optimizer/variance.safetensors",
                         "run/checkpoints/step-9/optimizer/variance.safetensors");
    }
    rig_close(&rig.run);
}

/* None is good: an error, and everything is as it was. */
static void test_none_is_good(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    char settings[256], path[160];
    size_t bytes;
    save_open(&rig);
    snprintf(settings, sizeof settings, "%s train.stop_at=4", SETTINGS);
    assert_int_equal(save_train(&rig, "kept", 1, settings), STATUS_SAVED);
    copy_run(&rig);
    for (int step = 2; step <= 4; step += 2) {
        snprintf(path, sizeof path, "%s/run/checkpoints/step-%d/optimizer/momentum.safetensors",
                 rig.run.scratch.folder, step);
        flip(path, 1000);
    }
    for (int ranks = 1; ranks <= 2; ranks++) {
        assert_int_equal(save_train(&rig, "run", ranks, SETTINGS), STATUS_FORMAT);
        save_expect_line(&rig, "no checkpoint in");
        save_expect_line(&rig, "step-2/optimizer/momentum.safetensors");
        assert_true(save_there(&rig, "run/checkpoints/step-4/COMPLETE"));
        save_expect_same(&rig, "kept/metrics.jsonl", "run/metrics.jsonl");
        save_expect_same(&rig, "kept/config.yaml", "run/config.yaml");
    }
    char *text = save_read(&rig, "run/summary.json", &bytes);
    assert_non_null(strstr(text, "stopped"));
    mem_free(&rig.run.scratch.env, text);
    rig_close(&rig.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_write_of_one_rank),
        cmocka_unit_test(test_every_write_of_the_second_rank),
        cmocka_unit_test(test_short_writes),
        cmocka_unit_test(test_failure_in_the_background),
        cmocka_unit_test(test_the_last_save_fails),
        cmocka_unit_test(test_a_folder_that_cannot_be_written),
        cmocka_unit_test(test_damage_is_found),
        cmocka_unit_test(test_the_one_before_is_used),
        cmocka_unit_test(test_none_is_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
