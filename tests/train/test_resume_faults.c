/* A run that resumes while its reads fail in turn, on one rank or another: it stops or resumes from
 * the newest checkpoint, and no checkpoint is skipped or renamed.
 *
 * One read in SIFR_TEST_READS fails; default one in 5, under a sanitizer one in 25.
 */
#include <dirent.h>
#include "save_rig.h"

static const char SETTINGS[] =
    "train.steps=6 train.stop_at=4 train.eval_batches=1 model.layers=1 model.width=16 "
    "model.heads=2 model.kv_heads=1 checkpoint.every=2 checkpoint.async=false checkpoint.keep=3 "
    "zero.stage=3 precision.mode=bf16";

/* step-2 and step-4 exist under their names, and nothing else does. */
static void expect_untouched(struct save_rig *rig)
{
    int entries = 0;
    DIR *dir = opendir(scratch_path(&rig->run.scratch, "run/checkpoints"));
    assert_non_null(dir);
    while (readdir(dir))
        entries++;
    closedir(dir);
    assert_int_equal(entries, 4);
    assert_true(save_there(rig, "run/checkpoints/step-2"));
    assert_true(save_there(rig, "run/checkpoints/step-4"));
    assert_null(strstr(rig->lines, "skipped the damaged"));
}

/* Resume with `times` reads of one rank failing, beginning with its read number `call`; false = it
 * makes fewer. */
static bool resume_failing(struct save_rig *rig, int ranks, int rank, int call, int times,
                           enum status *st)
{
    struct input_faults *faults = &rig->input_faults[rank];
    faults->error = call % 2 ? EIO : ETIMEDOUT;
    faults->times = times;
    atomic_store(&faults->left, call);
    *st = save_train(rig, "run", ranks, SETTINGS);
    faults->times = 0;
    expect_untouched(rig);
    return atomic_load(&faults->left) <= 0;
}

/* Odd, so that both errors occur. */
static int read_stride(void)
{
    const char *told = getenv("SIFR_TEST_READS");
    return told ? atoi(told) : TESTING_SANITIZED ? 25 : 5;
}

static void fail_every_read(int ranks, int rank)
{
    struct save_rig rig = {0};
    enum status st;
    int calls = 0, stopped = 0, stride = read_stride();
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", ranks, SETTINGS), STATUS_SAVED);
    while (resume_failing(&rig, ranks, rank, calls + 1, INPUT_TRIES, &st)) {
        calls += stride;
        if (st == STATUS_SAVED)
            continue;
        stopped++;
        assert_true(st == STATUS_IO || st == STATUS_CONFIG || st == STATUS_COMM);
        if (strstr(rig.lines, "nothing was changed")) {
            save_expect_line(&rig, "run/checkpoints/step-4");
            save_expect_line(&rig, "(tried 5 times)");
            save_expect_line(&rig, "resume from step 2 by renaming this checkpoint first: mv '");
        }
    }
    assert_int_equal(st, STATUS_SAVED);
    printf("rank %d of %d: %d reads, one in %d fails; %d stop the run\n", rank, ranks, calls,
           stride, stopped);
    assert_true(stopped * stride > 20);
    rig_close(&rig.run);
}

static void test_every_read_of_a_single_rank_may_fail(void **state)
{
    (void)state;
    fail_every_read(1, 0);
}

static void test_every_read_of_the_first_rank_may_fail(void **state)
{
    (void)state;
    fail_every_read(2, 0);
}

static void test_every_read_of_the_second_rank_may_fail(void **state)
{
    (void)state;
    fail_every_read(2, 1);
}

/* A transient error has no effect. */
static void test_transient_errors_have_no_effect(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    enum status st;
    int stride = read_stride();
    save_open(&rig);
    assert_int_equal(save_train(&rig, "run", 1, SETTINGS), STATUS_SAVED);
    for (int call = 1; resume_failing(&rig, 1, 0, call, INPUT_TRIES - 1, &st); call += stride) {
        assert_int_equal(st, STATUS_SAVED);
        save_expect_line(&rig, "resuming after step 4");
    }
    rig_close(&rig.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_read_of_a_single_rank_may_fail),
        cmocka_unit_test(test_every_read_of_the_first_rank_may_fail),
        cmocka_unit_test(test_every_read_of_the_second_rank_may_fail),
        cmocka_unit_test(test_transient_errors_have_no_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
