/* Every write of a save fails once, on one rank or another: the run continues, the message names
 * the file, and the newest complete checkpoint stays intact and can be resumed from. */
#include <inttypes.h>
#include "save_rig.h"
#include "train/checkpoint/checkpoint_keep.h"

/* --- writes that fail ----------------------------------------------------------------------- */

struct plan {     /* shared with the callbacks; one test at a time */
    int rank;     /* the rank whose writes fail */
    int error;    /* errno of the failure; -1: several in turn */
    int from;     /* the save after step `from` is the first that fails */
    int until;    /* saves succeed again from this step on; 0 = never */
    int calls;    /* number of writing calls of a save without failures */
    int saved;    /* number of successful saves, counted by the callback */
    int verified; /* number of times the newest complete checkpoint was verified */
};
static struct plan plan;

/* Called before step s: call number s - from + 1 of the save after step s fails. */
static bool on_ask(void *user)
{
    static const int reasons[] = {ENOSPC, EIO, EROFS};
    struct save_seat *seat = user;
    struct save_rig *rig = seat->rig;
    int step = ++seat->asked; /* the step that follows */
    long long call = plan.until > 0 && step >= plan.until ? 0 : step - plan.from + 1;
    if (seat->rank == plan.rank) {
        /* calls since failures were disabled */
        long long made = -atomic_load(&rig->faults[seat->rank].left);
        plan.calls = step == plan.from ? (int)made : plan.calls;
        rig->faults[seat->rank].error = plan.error < 0 ? reasons[step % 3] : plan.error;
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

/* The newest checkpoint is intact, whatever has failed since it was saved. */
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

/* The message when an old checkpoint cannot be removed. */
static const char NOTED[] = "checkpoints: cannot ";

/* Number of the first rank's calls whose failure does not lose the save: the last ones, which open
 * and sync the folder with the new name, rename the old checkpoint and remove each of its files and
 * folders. */
static int count_harmless(struct save_rig *rig)
{
    int removed = 0;
    char command[256];
    snprintf(command, sizeof command, "find %s/run/checkpoints/step-%" PRId64 " | wc -l",
             rig->run.scratch.folder, rig->summary.steps);
    FILE *found = popen(command, "r");
    assert_non_null(found);
    assert_int_equal(fscanf(found, "%d", &removed), 1);
    pclose(found);
    return 3 + removed;
}

/* One save per step, each failing one call later than the previous one, until none fails. */
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
    int lost = count_lines(rig.lines, "WAS NOT SAVED"), noted = count_lines(rig.lines, NOTED);
    assert_int_equal(plan.saved + lost, most - 1);
    assert_int_equal(plan.verified, most - 2);
    int harmless = rank > 0 ? 0 : count_harmless(&rig);
    printf("rank %d of %d: a save makes %d calls that write: %d lose it, %d do no harm\n", rank,
           ranks, plan.calls, lost, harmless);
    assert_true(plan.calls > 10 && plan.calls < most - plan.from);
    assert_int_equal(lost, error == 0 ? 0 : plan.calls - harmless);
    assert_true(noted > 10 || rank > 0 || error == 0); /* the old checkpoint is still there */
    assert_true(count_lines(rig.lines, "/checkpoints") >= lost + noted); /* each names a file */
    /* The run resumes from what is left. */
    rig.callbacks = NULL;
    memset(rig.faults, 0, sizeof rig.faults);
    snprintf(all + strlen(all), sizeof all - strlen(all), " train.steps=%d", most + 2);
    assert_int_equal(save_train(&rig, "run", 1, all), STATUS_OK);
    assert_false(strstr(rig.lines, "skipped the damaged"));
    rig_close(&rig.run);
}

static void test_every_write_of_a_single_rank_may_fail(void **state)
{
    (void)state;
    fail_every_write(1, 0, -1, "", 190);
}

static void test_every_write_of_the_first_rank_may_fail(void **state)
{
    (void)state;
    fail_every_write(2, 0, -1, "zero.stage=3 precision.mode=bf16 checkpoint.file_size=8000", 400);
}

static void test_every_write_of_the_second_rank_may_fail(void **state)
{
    (void)state;
    fail_every_write(2, 1, -1, "zero.stage=3 precision.mode=bf16", 110);
}

static void test_short_writes_are_completed(void **state)
{
    (void)state;
    fail_every_write(2, 0, 0, "zero.stage=1", 170);
}

/* In the background the warning comes a step later, and the run is the same. */
static void test_a_background_failure_is_reported(void **state)
{
    (void)state;
    static const struct trainer_callbacks callbacks = {.should_stop = on_ask};
    struct save_rig rig = {.callbacks = &callbacks};
    plan = (struct plan){.rank = 1, .error = ENOSPC, .from = 3, .until = 10};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=12 checkpoint.every=1 zero.stage=2"),
                     STATUS_OK);
    save_expect_line(&rig, "rank 1: ");
    save_expect_line(&rig, "the run continues, and the previous checkpoint is intact");
    assert_int_equal(save_verify(&rig, "run/checkpoints/step-12"), STATUS_OK);
    rig_close(&rig.run);
}

/* A failure of the last save ends the run with an error. */
static void test_a_failed_last_save_is_an_error(void **state)
{
    (void)state;
    static const struct trainer_callbacks callbacks = {.should_stop = on_ask};
    struct save_rig rig = {.callbacks = &callbacks};
    plan = (struct plan){.rank = 0, .error = ENOSPC, .from = -15}; /* its 20th call fails */
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=4 checkpoint.wait_for_space=0"),
                     STATUS_IO);
    save_expect_line(&rig, "the checkpoint of step 4 was not saved");
    assert_string_equal(rig.summary.end, "failed");
    /* the run starts again, and its earlier records are kept */
    rig.callbacks = NULL;
    memset(rig.faults, 0, sizeof rig.faults);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=4"), STATUS_OK);
    save_expect_line(&rig, "no checkpoint in");
    size_t bytes;
    char *lines = save_read(&rig, "run/metrics.jsonl.1", &bytes);
    assert_int_equal(count_lines(lines, "\n"), 4);
    mem_free(&rig.run.scratch.env, lines);
    rig_close(&rig.run);
}

/* A user's file has the name of the temporary folder: it stays, and the save uses another name. */
static void test_a_file_with_the_folders_name_is_kept(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=9 train.stop_at=2"), STATUS_SAVED);
    char path[128];
    snprintf(path, sizeof path, "%s/run/checkpoints/.step-4.tmp", rig.run.scratch.folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=9 train.stop_at=4"), STATUS_SAVED);
    save_expect_line(&rig, ".step-4.tmp' is left as it is");
    assert_int_equal(save_verify(&rig, "run/checkpoints/step-4"), STATUS_OK);
    assert_true(save_there(&rig, "run/checkpoints/.step-4.tmp"));
    assert_false(save_there(&rig, "run/checkpoints/.step-4.tmp-2"));
    rig_close(&rig.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_write_of_a_single_rank_may_fail),
        cmocka_unit_test(test_every_write_of_the_first_rank_may_fail),
        cmocka_unit_test(test_every_write_of_the_second_rank_may_fail),
        cmocka_unit_test(test_short_writes_are_completed),
        cmocka_unit_test(test_a_background_failure_is_reported),
        cmocka_unit_test(test_a_failed_last_save_is_an_error),
        cmocka_unit_test(test_a_file_with_the_folders_name_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
