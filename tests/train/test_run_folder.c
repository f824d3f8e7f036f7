/* A run's folder: made, gone on with, moved aside; what was there is never lost. */
#include <unistd.h>
#include "scratch.h"
#include "train/run_folder.h"

/* A run that ends at once. */
static enum status prepare(struct scratch *s, const char *path, bool fresh)
{
    struct run_lock *lock = NULL;
    enum status st = run_folder_prepare(&s->env, path, fresh, &lock);
    run_lock_release(lock);
    return st;
}

static void test_made_with_parents(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    assert_true(dir_is_empty(scratch_path(&s, "a/b/c"))); /* the probe is gone */
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    scratch_text(&s, "a/b/c/notes.txt", "mine");
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "a/b/c/notes.txt")));
    scratch_close(&s);
}

static void test_each_sign_of_a_run_is_seen(void **state)
{
    (void)state;
    static const char *const signs[] = {"config.yaml", "metrics.jsonl", "summary.json"};
    for (int i = 0; i < 3; i++) {
        struct scratch s;
        char path[64];
        bool holds = true;
        scratch_open(&s);
        assert_int_equal(dir_create(&s.env, scratch_path(&s, "run")), STATUS_OK);
        scratch_text(&s, "run/notes.txt", "x");
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), &holds), STATUS_OK);
        assert_false(holds);
        snprintf(path, sizeof path, "run/%s", signs[i]);
        scratch_text(&s, path, "x");
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), &holds), STATUS_OK);
        assert_true(holds);
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_OK);
        assert_true(file_exists(scratch_path(&s, path))); /* it is gone on with */
        scratch_close(&s);
    }
}

static void test_fresh_moves_aside(void **state)
{
    (void)state;
    struct scratch s;
    char name[64], content[64];
    scratch_open(&s);
    for (int i = 1; i <= 3; i++) {
        /* A slash at the end must not put the old run inside the new one. */
        assert_int_equal(prepare(&s, scratch_path(&s, i == 2 ? "run/" : "run"), true), STATUS_OK);
        assert_true(dir_is_empty(scratch_path(&s, "run")));
        snprintf(content, sizeof content, "%d", i);
        scratch_text(&s, "run/metrics.jsonl", content);
    }
    for (int i = 1; i <= 2; i++) {
        char *text;
        size_t bytes;
        snprintf(name, sizeof name, "run.%d/metrics.jsonl", i);
        assert_int_equal(file_read(&s.env, scratch_path(&s, name), 100, &text, &bytes), STATUS_OK);
        assert_int_equal(text[0], '0' + i);
        mem_free(&s.env, text);
    }
    scratch_close(&s);
}

static void test_a_file_in_the_way(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    scratch_text(&s, "file", "x");
    assert_int_equal(prepare(&s, scratch_path(&s, "file"), true), STATUS_IO);
    scratch_expect(&s, "file");
    assert_int_equal(prepare(&s, "/proc/sifr-run", true), STATUS_IO);
    scratch_expect(&s, "/proc/sifr-run");
    scratch_close(&s);
}

static void test_one_run_at_a_time(void **state)
{
    (void)state;
    struct scratch s;
    struct run_lock *lock = NULL;
    char who[64];
    scratch_open(&s);
    assert_int_equal(run_folder_prepare(&s.env, scratch_path(&s, "run"), false, &lock), STATUS_OK);
    scratch_text(&s, "run/metrics.jsonl", "x");
    snprintf(who, sizeof who, "process %d", (int)getpid());
    for (int fresh = 0; fresh < 2; fresh++) {
        bool holds;
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), &holds), STATUS_CONFIG);
        scratch_expect(&s, who);
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), fresh), STATUS_CONFIG);
        scratch_expect(&s, who);
    }
    assert_false(file_exists(scratch_path(&s, "run.1")));
    run_lock_release(lock);
    assert_false(file_exists(scratch_path(&s, "run/lock")));

    /* The next one has the folder, and the lock did not stay with the old one. */
    assert_int_equal(run_folder_prepare(&s.env, scratch_path(&s, "run"), true, &lock), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "run.1/metrics.jsonl")));
    assert_false(file_exists(scratch_path(&s, "run.1/lock")));
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), true), STATUS_CONFIG);
    log_error_clear(s.env.log);
    run_lock_release(lock);
    scratch_close(&s);
}

/* What a killed run leaves behind locks nothing. */
static void test_a_left_lock_file(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "run")), STATUS_OK);
    scratch_text(&s, "run/lock", "1\n");
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_OK);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_with_parents), cmocka_unit_test(test_each_sign_of_a_run_is_seen),
        cmocka_unit_test(test_fresh_moves_aside), cmocka_unit_test(test_a_file_in_the_way),
        cmocka_unit_test(test_one_run_at_a_time), cmocka_unit_test(test_a_left_lock_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
