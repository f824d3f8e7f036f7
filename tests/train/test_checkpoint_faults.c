/* Saves that fail at every write they make, on one rank or another: the run goes on, the message names
 * the file, and what was complete before is whole and is gone on from.
 */
#include <inttypes.h>
#include "save_rig.h"
#include "train/checkpoint/checkpoint_keep.h"

/* --- writes that fail ----------------------------------------------------------------------- */

struct plan {     /* shared with the callbacks; one test at a time */
    int rank;     /* whose writes fail */
    int error;    /* with what; -1: one after the other */
    int from;     /* the save after step `from` is the first that fails */
    int until;    /* from this step on none does; 0 = they go on */
    int calls;    /* that a save makes when none fails */
    int saved;    /* told by the callback */
    int verified; /* that the last complete one is */
};
static struct plan plan;

/* Before step k + 1 the k-th save has been made: its call number k - from fails. */
static bool on_ask(void *user)
{
    static const int reasons[] = {ENOSPC, EIO, EROFS};
    struct save_seat *seat = user;
    struct save_rig *rig = seat->rig;
    int step = ++seat->asked; /* the step that follows */
    long long call = plan.until > 0 && step >= plan.until ? 0 : step - plan.from + 1;
    if (seat->rank == plan.rank) {
        long long made = -atomic_load(&rig->faults[seat->rank].left); /* since none was to fail */
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

/* What is said when an old checkpoint cannot be removed. */
static const char NOTED[] = "checkpoints: cannot ";

/* Calls of the first rank whose failure does not lose the save: the last ones, which open and sync the
 * folder that has the new name, rename the old checkpoint and remove each of its files and folders. */
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
    int lost = count_lines(rig.lines, "WAS NOT SAVED"), noted = count_lines(rig.lines, NOTED);
    assert_int_equal(plan.saved + lost, most - 1);
    assert_int_equal(plan.verified, most - 2);
    int harmless = rank > 0 ? 0 : count_harmless(&rig);
    printf("rank %d of %d: a save makes %d calls that write: %d lose it, %d do no harm\n", rank,
           ranks, plan.calls, lost, harmless);
    assert_true(plan.calls > 10 && plan.calls < most - plan.from);
    assert_int_equal(lost, error == 0 ? 0 : plan.calls - harmless);
    assert_true(noted > 10 || rank > 0 || error == 0); /* the old one is still there */
    assert_true(count_lines(rig.lines, "/checkpoints") >= lost + noted); /* each names a file */
    /* And what is there goes on. */
    rig.callbacks = NULL;
    memset(rig.faults, 0, sizeof rig.faults);
    snprintf(all + strlen(all), sizeof all - strlen(all), " train.steps=%d", most + 2);
    assert_int_equal(save_train(&rig, "run", 1, all), STATUS_OK);
    assert_false(strstr(rig.lines, "skipped the damaged"));
    rig_close(&rig.run);
}

static void test_every_write_of_one_rank(void **state)
{
    (void)state;
    fail_every_write(1, 0, -1, "", 190);
}

static void test_every_write_of_the_first_rank(void **state)
{
    (void)state;
    fail_every_write(2, 0, -1, "zero.stage=3 precision.mode=bf16 checkpoint.file_size=8000", 400);
}

static void test_every_write_of_the_second_rank(void **state)
{
    (void)state;
    fail_every_write(2, 1, -1, "zero.stage=3 precision.mode=bf16", 110);
}

static void test_short_writes(void **state)
{
    (void)state;
    fail_every_write(2, 0, 0, "zero.stage=1", 170);
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
    assert_int_equal(save_train(&rig, "run", 1, "train.steps=4 checkpoint.wait_for_space=0"),
                     STATUS_IO);
    save_expect_line(&rig, "the checkpoint of step 4 was not saved");
    assert_string_equal(rig.summary.end, "failed");
    /* it begins again, and what it had to tell is kept */
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

/* A file of the user's where the folder would be: it stays, and the save takes another name. */
static void test_a_file_in_the_way(void **state)
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
        cmocka_unit_test(test_every_write_of_one_rank),
        cmocka_unit_test(test_every_write_of_the_first_rank),
        cmocka_unit_test(test_every_write_of_the_second_rank),
        cmocka_unit_test(test_short_writes),
        cmocka_unit_test(test_failure_in_the_background),
        cmocka_unit_test(test_the_last_save_fails),
        cmocka_unit_test(test_a_file_in_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
