/* The last noise scale of a run: from metrics.jsonl, from summary.json, and where there is none. */
#include "train/scratch.h"
#include "train/run/run_noise.h"

static void check(const char *metrics, const char *summary, double scale, int64_t step)
{
    struct scratch s;
    struct run_noise noise;
    scratch_open(&s);
    if (metrics)
        scratch_text(&s, "metrics.jsonl", metrics);
    if (summary)
        scratch_text(&s, "summary.json", summary);
    assert_int_equal(run_noise_find(&s.env, s.folder, &noise), STATUS_OK);
    assert_true(noise.scale == scale);
    assert_int_equal(noise.step, step);
    scratch_close(&s);
}

static void test_the_last_record_counts(void **state)
{
    (void)state;
    check("{\"step\":1,\"noise_scale\":5}\n{\"step\":2,\"noise_scale\":7.5}\n", NULL, 7.5, 2);
    check("{\"step\":1,\"noise_scale\":5}\n{\"step\":2}\n", NULL, 5, 1);
    /* null, a number that is none, damaged lines, and a line that is still being written */
    check("{\"step\":1,\"noise_scale\":5}\n{\"step\":2,\"noise_scale\":null}\n", NULL, 5, 1);
    check("{\"step\":1,\"noise_scale\":5}\n{\"step\":2,\"noise_scale\":-1}\n", NULL, 5, 1);
    check("{\"step\":1,\"noise_scale\":5}\n{\"noise_scale\": 8\n\n[\"noise_scale\"]\n", NULL, 5, 1);
    check("{\"step\":1,\"noise_scale\":5}\n{\"step\":2,\"noise_scale\":7}", NULL, 5, 1);
}

static void test_the_summary_comes_second(void **state)
{
    (void)state;
    const char *summary = "{\n  \"steps\": 9,\n  \"noise_scale\": 3\n}\n";
    check("{\"step\":1,\"noise_scale\":5}\n", summary, 5, 1);
    check("{\"step\":1}\n", summary, 3, 9);
    check(NULL, summary, 3, 9);
}

static void test_none(void **state)
{
    struct scratch s;
    struct run_noise noise;
    (void)state;
    check("", NULL, 0, 0);
    check("\n\n", "", 0, 0);
    check("{\"step\":1,\"loss\":2}\n", "{\"steps\": 1}", 0, 0);
    scratch_open(&s);
    assert_int_equal(run_noise_find(&s.env, s.folder, &noise), STATUS_CONFIG);
    scratch_expect(&s, "is not the folder of a run");
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_record_counts),
        cmocka_unit_test(test_the_summary_comes_second),
        cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
