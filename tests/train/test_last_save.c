/* A disk that is too small is detected at the start. At the end of a run, everything that can be
 * saved is saved: in another folder, in space freed by removing old checkpoints, or later. */
#include <dirent.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "save_rig.h"

static const uint64_t PLENTY = (uint64_t)1 << 40;

/* What the simulated disk reports; one test at a time. */
struct disk {
    uint64_t at_start, at_end; /* free space for the run before and after its last step */
    int asks;                  /* number of queries after the last step */
    int room_after;            /* from this query on there is space; 0 = never */
    uint64_t moved;            /* progress at the previous query */
    bool stood_still;          /* no progress was made between two queries */
    const char *in_the_way;    /* there is space once this path is gone; NULL = ignored */
    int quota;                 /* until this query, writes fail although the disk reports space */
    int stop_rank;             /* this rank asks to stop after the last step; -1 = none */
    _Atomic bool over;         /* the last step is done */
    int64_t steps, last;       /* steps of the run; the step after which `over` is set */
    struct save_rig *rig;
};
static struct disk disk;

static bool say_free(void *user, const char *path, uint64_t *bytes)
{
    (void)user;
    if (strstr(path, "/fallback")) {
        *bytes = PLENTY;
        return true;
    }
    uint64_t now = progress_count(&disk.rig->progress);
    if (disk.over && disk.asks > 0 && disk.asks < disk.room_after)
        disk.stood_still |= now == disk.moved;
    disk.moved = now;
    *bytes = disk.over ? disk.at_end : disk.at_start;
    if (disk.over && disk.room_after > 0 && ++disk.asks >= disk.room_after)
        *bytes = PLENTY;
    if (disk.over && disk.quota > 0 && ++disk.asks < disk.quota) {
        disk.rig->faults[0].error = EDQUOT;
        atomic_store(&disk.rig->faults[0].left, 10);
    }
    if (disk.over && disk.in_the_way && !save_there(disk.rig, disk.in_the_way))
        *bytes = PLENTY;
    return true;
}

static void on_step(void *user, const struct trainer_step *step)
{
    (void)user;
    disk.over = step->step == disk.last;
}

static bool on_ask(void *user)
{
    const struct save_seat *seat = user;
    return disk.over && seat->rank == disk.stop_rank;
}

static const struct trainer_callbacks callbacks = {.step = on_step, .should_stop = on_ask};

static void open_rig(struct save_rig *rig, uint64_t at_start, uint64_t at_end)
{
    *rig = (struct save_rig){.callbacks = &callbacks};
    disk = (struct disk){
        .at_start = at_start, .at_end = at_end, .stop_rank = -1, .steps = 4, .last = 4, .rig = rig};
    for (int r = 0; r < SAVE_MOST_RANKS; r++)
        rig->faults[r].free_bytes = say_free;
    save_open(rig);
}

static enum status train(struct save_rig *rig, int ranks, const char *more)
{
    char all[640];
    disk.over = false;
    snprintf(all, sizeof all,
             "train.steps=%d data.split=0 model.layers=1 model.width=16 model.heads=2 "
             "model.kv_heads=1 checkpoint.wait_for_space=0 checkpoint.async=false %s",
             (int)disk.steps, more);
    return save_train(rig, "run", ranks, all);
}

/* Path of `name` in the only folder inside `fallback`, relative to the test's folder; "" = none. */
static const char *in_fallback(struct save_rig *rig, const char *name)
{
    static char path[64];
    DIR *dir = opendir(scratch_path(&rig->run.scratch, "fallback"));
    *path = '\0';
    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (strncmp(e->d_name, "run-", 4) == 0) {
            assert_int_equal(*path, '\0');
            snprintf(path, sizeof path, "fallback/%.24s/%s", e->d_name, name);
        }
    if (dir)
        closedir(dir);
    return path;
}

static const char *with_fallback(struct save_rig *rig, const char *more)
{
    static char keys[320];
    snprintf(keys, sizeof keys, "checkpoint.fallback=%s %s",
             scratch_path(&rig->run.scratch, "fallback"), more);
    return keys;
}

/* --- at the start --------------------------------------------------------------------------- */

static void test_a_disk_without_space_is_refused_at_the_start(void **state)
{
    (void)state;
    struct save_rig rig;
    open_rig(&rig, 1000000, 0);
    assert_int_equal(train(&rig, 2, ""), STATUS_IO);
    save_expect_line(&rig, "/run/checkpoints': a checkpoint needs 1.1 MiB (");
    save_expect_line(&rig, "has room for 976.6 KiB (1000000 bytes), so the run could not be saved");
    assert_false(save_there(&rig, "run"));
    rig_close(&rig.run);
}

static void test_a_small_disk_is_reported_at_the_start(void **state)
{
    (void)state;
    struct save_rig rig;
    open_rig(&rig, 2500000, PLENTY);
    assert_int_equal(train(&rig, 1, "checkpoint.every=1 checkpoint.keep=2"), STATUS_OK);
    save_expect_line(&rig, "up to 3 more checkpoints at once");
    assert_int_equal(train(&rig, 1, "train.steps=5 checkpoint.every=1 checkpoint.keep=2"),
                     STATUS_OK); /* two exist: one more */
    assert_false(strstr(rig.lines, "more checkpoints at once"));
    rig_close(&rig.run);
    open_rig(&rig, 2500000, PLENTY);
    assert_int_equal(train(&rig, 1, ""), STATUS_OK); /* only the last checkpoint */
    assert_false(strstr(rig.lines, "more checkpoints at once"));
    rig_close(&rig.run);
    open_rig(&rig, 2500000, PLENTY);
    assert_int_equal(train(&rig, 1, "checkpoint.every=1 checkpoint.major=1"), STATUS_OK);
    save_expect_line(&rig, "up to 4 more checkpoints at once");
    rig_close(&rig.run);
}

/* --- the fallback folder -------------------------------------------------------------------- */

static void save_to_fallback(int ranks, const char *keys)
{
    struct save_rig rig;
    char apart[64], from[128], to[128], stopping[128];
    open_rig(&rig, PLENTY, 0);
    disk.steps = 6; /* the run stops after 4 */
    snprintf(stopping, sizeof stopping, "train.stop_at=4 %s", keys);
    assert_int_equal(train(&rig, ranks, with_fallback(&rig, stopping)), STATUS_SAVED);
    save_expect_line(&rig, "could not be saved");
    save_expect_line(&rig, "the same command resumes from it");
    assert_false(save_there(&rig, "run/checkpoints/step-4"));
    snprintf(apart, sizeof apart, "%s", in_fallback(&rig, "step-4"));
    assert_true(save_there(&rig, apart));
    assert_non_null(strstr(rig.summary.checkpoint, apart));

    /* The run resumes from there on another number of ranks, with the same bits. */
    disk.at_end = PLENTY;
    assert_int_equal(train(&rig, 3 - ranks, with_fallback(&rig, keys)), STATUS_OK);
    save_expect_line(&rig, "resuming after step 4 from");
    save_expect_line(&rig, apart);
    assert_int_equal(rig.summary.first_step, 4);
    assert_true(save_there(&rig, "run/checkpoints/step-6"));
    assert_true(save_there(&rig, apart)); /* the copy in the fallback is never removed */

    /* A new run in a folder of the same name does not use it. */
    snprintf(from, sizeof from, "%s", scratch_path(&rig.run.scratch, "run"));
    snprintf(to, sizeof to, "%s", scratch_path(&rig.run.scratch, "before"));
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(train(&rig, 1, with_fallback(&rig, keys)), STATUS_OK);
    assert_int_equal(rig.summary.first_step, 0);
    save_expect_same(&rig, "run/checkpoints/step-6/model.safetensors",
                     "before/checkpoints/step-6/model.safetensors");
    rig_close(&rig.run);
}

static void test_the_fallback_is_used(void **state)
{
    (void)state;
    save_to_fallback(1, "");
    save_to_fallback(2, "zero.stage=3 checkpoint.async=true checkpoint.every=3");
}

/* Once there is space, rerunning the command copies the checkpoint into the run folder. */
static void test_the_fallback_is_copied_back(void **state)
{
    (void)state;
    struct save_rig rig;
    open_rig(&rig, PLENTY, 0);
    assert_int_equal(train(&rig, 2, with_fallback(&rig, "")), STATUS_OK);
    disk.at_start = 0; /* complete, and still no space */
    assert_int_equal(train(&rig, 1, with_fallback(&rig, "")), STATUS_OK);
    save_expect_line(&rig, "still only in");
    assert_false(save_there(&rig, "run/checkpoints/step-4"));
    disk.at_start = PLENTY;
    assert_int_equal(train(&rig, 1, with_fallback(&rig, "")), STATUS_OK);
    assert_true(save_there(&rig, "run/checkpoints/step-4/COMPLETE"));
    save_expect_same(&rig, "run/checkpoints/step-4/model.safetensors",
                     in_fallback(&rig, "step-4/model.safetensors"));
    /* and if that copy is damaged, the one in the fallback is used */
    scratch_text(&rig.run.scratch, "run/checkpoints/step-4/config.json", "{}");
    assert_int_equal(train(&rig, 2, with_fallback(&rig, "train.steps=5")), STATUS_OK);
    save_expect_line(&rig, "skipped the damaged checkpoint");
    assert_true(save_there(&rig, "run/checkpoints/step-4.damaged"));
    assert_int_equal(rig.summary.first_step, 4);
    rig_close(&rig.run);
}

/* The fallback is used after any failure, not only a full disk: here a file has the name of the
 * checkpoints folder. */
static void on_step_block(void *user, const struct trainer_step *step)
{
    on_step(user, step);
    if (disk.over)
        scratch_text(&disk.rig->run.scratch, "run/checkpoints", "");
}

static void test_the_fallback_is_used_after_any_failure(void **state)
{
    (void)state;
    static const struct trainer_callbacks blocking = {.step = on_step_block};
    struct save_rig rig;
    open_rig(&rig, PLENTY, PLENTY);
    rig.callbacks = &blocking;
    /* without waiting */
    assert_int_equal(train(&rig, 1, "checkpoint.wait_for_space=10m"), STATUS_IO);
    save_expect_line(&rig, "set checkpoint.fallback to a folder on another disk");
    rig_close(&rig.run);
    open_rig(&rig, PLENTY, PLENTY);
    rig.callbacks = &blocking;
    assert_int_equal(train(&rig, 2, with_fallback(&rig, "")), STATUS_OK);
    assert_true(save_there(&rig, in_fallback(&rig, "step-4")));
    rig_close(&rig.run);
}

/* A run whose model is saved succeeds even if summary.json cannot be written. */
static void on_step_no_summary(void *user, const struct trainer_step *step)
{
    on_step(user, step);
    if (disk.over)
        assert_int_equal(mkdir(scratch_path(&disk.rig->run.scratch, "run/summary.json"), 0777), 0);
}

static void test_a_missing_summary_is_not_a_failure(void **state)
{
    (void)state;
    static const struct trainer_callbacks blocking = {.step = on_step_no_summary};
    struct save_rig rig;
    open_rig(&rig, PLENTY, PLENTY);
    rig.callbacks = &blocking;
    assert_int_equal(train(&rig, 1, ""), STATUS_OK);
    save_expect_line(&rig, "no summary.json: ");
    rig_close(&rig.run);
}

/* --- making room ---------------------------------------------------------------------------- */

static const char four[] = "checkpoint.every=1 checkpoint.keep=3 checkpoint.major=2 ";

static void expect_there(struct save_rig *rig, const char *steps)
{
    char name[64];
    for (int step = 1; step <= 6; step++) {
        snprintf(name, sizeof name, "run/checkpoints/step-%d", step);
        bool wanted = strchr(steps, '0' + step) != NULL;
        if (save_there(rig, name) != wanted)
            fail_msg("step-%d is %s", step, wanted ? "gone" : "there");
    }
}

static void make_room(int ranks, const char *in_the_way, enum status expected, const char *left,
                      const char *more)
{
    struct save_rig rig;
    char keys[256];
    open_rig(&rig, PLENTY, 0);
    disk.steps = disk.last = 6;
    disk.in_the_way = in_the_way;
    snprintf(keys, sizeof keys, "%s%s", four, more);
    assert_int_equal(train(&rig, ranks, keys), expected);
    expect_there(&rig, left);
    if (expected != STATUS_OK) {
        save_expect_line(&rig, "the checkpoint of step 6 was not saved");
        save_expect_line(&rig, "what was learnt after step 5 is lost");
        save_expect_line(&rig, "checkpoint.fallback");
    }
    rig_close(&rig.run);
}

static void test_old_checkpoints_make_room(void **state)
{
    (void)state;
    make_room(1, "run/checkpoints/step-3", STATUS_IO, "2345", "");
    make_room(1, "run/checkpoints/step-3", STATUS_OK, "2456", "checkpoint.make_room=true");
    make_room(2, "run/checkpoints/step-3", STATUS_OK, "2456",
              "checkpoint.make_room=true zero.stage=2");
    /* The newest checkpoint and those of checkpoint.major are never removed. */
    make_room(1, "run/checkpoints/step-5", STATUS_IO, "245", "checkpoint.make_room=true");
    make_room(1, "run/checkpoints/step-4", STATUS_IO, "245", "checkpoint.make_room=true");
}

/* Nothing is removed if the newest checkpoint is damaged. */
static void on_step_damage(void *user, const struct trainer_step *step)
{
    on_step(user, step);
    if (disk.over)
        scratch_text(&disk.rig->run.scratch, "run/checkpoints/step-5/config.json", "{}");
}

static void test_a_damaged_newest_checkpoint_keeps_the_others(void **state)
{
    (void)state;
    static const struct trainer_callbacks damaging = {.step = on_step_damage};
    struct save_rig rig;
    char keys[256];
    open_rig(&rig, PLENTY, 0);
    rig.callbacks = &damaging;
    disk.steps = disk.last = 6;
    snprintf(keys, sizeof keys, "%scheckpoint.make_room=true", four);
    assert_int_equal(train(&rig, 2, keys), STATUS_IO);
    expect_there(&rig, "2345");
    rig_close(&rig.run);
}

/* --- waiting -------------------------------------------------------------------------------- */

static void test_a_save_waits_for_space(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        struct save_rig rig;
        open_rig(&rig, PLENTY, 0);
        disk.room_after = 3; /* the save itself queries, too */
        assert_int_equal(train(&rig, ranks, "checkpoint.wait_for_space=10m"), STATUS_OK);
        save_expect_line(&rig, "waiting 10m00s");
        assert_true(save_there(&rig, "run/checkpoints/step-4"));
        /* Otherwise the watchdog that a signal starts would end the process. */
        assert_false(disk.stood_still);
        rig_close(&rig.run);
    }
}

/* A write of any rank fails for lack of space although the disk reported space: the save is tried
 * again after a wait. After any other error it is tried once more, without a wait. */
static int failing_rank, failing_error;
static void on_step_fail(void *user, const struct trainer_step *step)
{
    on_step(user, step);
    if (!disk.over)
        return;
    disk.rig->faults[failing_rank].error = failing_error;
    atomic_store(&disk.rig->faults[failing_rank].left, failing_rank == 0 ? 20 : 5);
}

static void fail_once(int rank, int error, enum status expected)
{
    static const struct trainer_callbacks failing = {.step = on_step_fail};
    struct save_rig rig;
    open_rig(&rig, PLENTY, PLENTY);
    rig.callbacks = &failing;
    failing_rank = rank;
    failing_error = error;
    assert_int_equal(train(&rig, 2, "checkpoint.wait_for_space=10m zero.stage=1"), expected);
    assert_true(save_there(&rig, "run/checkpoints/step-4") == (expected == STATUS_OK));
    assert_true((strstr(rig.lines, "waiting 10m00s") != NULL) ==
                (error == ENOSPC || error == EDQUOT));
    assert_true((strstr(rig.lines, "trying once more") != NULL) == (error == EIO));
    rig_close(&rig.run);
}

static void test_a_failed_write_is_tried_again(void **state)
{
    (void)state;
    fail_once(0, ENOSPC, STATUS_OK);
    fail_once(1, EDQUOT, STATUS_OK);
    fail_once(0, EIO, STATUS_OK);
    fail_once(1, EIO, STATUS_OK);
}

static void test_the_wait_has_a_limit(void **state)
{
    (void)state;
    struct save_rig rig;
    open_rig(&rig, PLENTY, 0);
    assert_int_equal(train(&rig, 1, "checkpoint.wait_for_space=1s"), STATUS_IO);
    save_expect_line(&rig, "there is no checkpoint before it, so all steps are lost");
    rig_close(&rig.run);
}

/* A quota: the disk reports space, but every save fails. */
static void test_the_wait_has_a_limit_under_a_quota(void **state)
{
    (void)state;
    struct save_rig rig;
    open_rig(&rig, PLENTY, PLENTY);
    disk.quota = 20; /* two queries per second */
    assert_int_equal(train(&rig, 1, "checkpoint.wait_for_space=2s"), STATUS_IO);
    save_expect_line(&rig, "waiting 2");
    assert_false(save_there(&rig, "run/checkpoints/step-4"));
    rig_close(&rig.run);
}

/* Rank 1 is asked to stop while all ranks wait: from its second call of should_stop after the last
 * step on, when the wait has begun. */
static bool on_late_ask(void *user)
{
    struct save_seat *seat = user;
    if (disk.over)
        seat->asked++;
    return disk.over && seat->rank == disk.stop_rank && seat->asked > 1;
}

static void test_a_stop_ends_the_wait(void **state)
{
    (void)state;
    static const struct trainer_callbacks stopping = {.step = on_step, .should_stop = on_late_ask};
    struct save_rig rig;
    open_rig(&rig, PLENTY, 0);
    rig.callbacks = &stopping;
    disk.stop_rank = 1;
    double start = clock_seconds();
    assert_int_equal(train(&rig, 2, "checkpoint.wait_for_space=10m"), STATUS_IO);
    assert_true(clock_seconds() - start < 300);
    rig_close(&rig.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_disk_without_space_is_refused_at_the_start),
        cmocka_unit_test(test_a_small_disk_is_reported_at_the_start),
        cmocka_unit_test(test_the_fallback_is_used),
        cmocka_unit_test(test_the_fallback_is_copied_back),
        cmocka_unit_test(test_the_fallback_is_used_after_any_failure),
        cmocka_unit_test(test_old_checkpoints_make_room),
        cmocka_unit_test(test_a_save_waits_for_space),
        cmocka_unit_test(test_the_wait_has_a_limit),
        cmocka_unit_test(test_the_wait_has_a_limit_under_a_quota),
        cmocka_unit_test(test_a_stop_ends_the_wait),
        cmocka_unit_test(test_a_failed_write_is_tried_again),
        cmocka_unit_test(test_a_damaged_newest_checkpoint_keeps_the_others),
        cmocka_unit_test(test_a_missing_summary_is_not_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
