/* A run's folder inside checkpoint.fallback, identified by the run's name and the first line of its
 * metrics. */
#include <errno.h>
#include "base/input.h"
#include "train/checkpoint/fallback.h"
#include "train/scratch.h"

static void test_a_transient_error_is_retried(void **state)
{
    (void)state;
    struct scratch s;
    struct input_faults faults = {.times = 1, .error = EIO};
    scratch_open(&s);
    assert_int_equal(fallback_id(&s.env, s.folder), 0);
    scratch_text(&s, "metrics.jsonl", "{\"run\": 1}\n{\"step\": 1}\n");
    uint64_t id = fallback_id(&s.env, s.folder);
    assert_true(id != 0);
    s.env.input_faults = &faults;
    for (int call = 1; call <= 2; call++) { /* the open, then the read */
        atomic_store(&faults.left, call);
        assert_true(fallback_id(&s.env, s.folder) == id);
        assert_true(atomic_load(&faults.left) < 1);
    }
    s.env.input_faults = NULL;
    scratch_close(&s);
}

/* An evaluation that is added to the record later leaves the ID as it was. */
static void test_the_evaluation_is_not_part_of_the_id(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    scratch_text(&s, "metrics.jsonl", "{\"step\":1,\"seconds\":2}\n");
    uint64_t whole = fallback_id(&s.env, s.folder);
    scratch_text(&s, "metrics.jsonl", "{\"step\":1,\"seconds\":2");
    assert_int_equal(fallback_id(&s.env, s.folder), 0); /* no line yet */
    scratch_text(&s, "metrics.jsonl", "{\"step\":1,\"seconds\":2,\"val\":{\"loss\":3}}\n");
    uint64_t evaluated = fallback_id(&s.env, s.folder);
    scratch_text(&s, "metrics.jsonl", "{\"step\":1,\"seconds\":3,\"val\":{\"loss\":3}}\n");
    assert_true(whole == evaluated && whole != fallback_id(&s.env, s.folder));
    for (int length = 4080; length < 4110; length++) { /* around the prefix that is hashed */
        char line[4200];
        snprintf(line, sizeof line, "{\"step\":%0*d}\n", length - 9, 1);
        scratch_text(&s, "metrics.jsonl", line);
        whole = fallback_id(&s.env, s.folder);
        snprintf(line, sizeof line, "{\"step\":%0*d,\"val\":{\"loss\":3}}\n", length - 9, 1);
        scratch_text(&s, "metrics.jsonl", line);
        assert_true(whole == fallback_id(&s.env, s.folder));
    }
    scratch_close(&s);
}

static void test_folders_have_the_runs_name_and_id(void **state)
{
    static const char *const runs[][2] = {{"/a/run", "f/run-00000000000000ff"},
                                          {"run//", "f/run-00000000000000ff"},
                                          {"..", "f/run-00000000000000ff"},
                                          {"caf\xe9", "f/caf\xe9-00000000000000ff"}};
    (void)state;
    struct scratch s;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char *folder;
        assert_int_equal(fallback_folder(&s.env, "f", runs[i][0], 255, &folder), STATUS_OK);
        assert_string_equal(folder, runs[i][1]);
        mem_free(&s.env, folder);
    }
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_transient_error_is_retried),
        cmocka_unit_test(test_the_evaluation_is_not_part_of_the_id),
        cmocka_unit_test(test_folders_have_the_runs_name_and_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
