/* compare -- losses bit by bit over runs of other lengths and numbers, medians, keys that differ. */
#include <math.h>
#include "testing.h"
#include "cli/inspect/compare.h"

static struct env env;

static void test_ulps(void **state)
{
    (void)state;
    assert_int_equal(compare_ulps(1, 1), 0);
    assert_int_equal(compare_ulps(1, nextafter(1, 2)), 1);
    assert_int_equal(compare_ulps(nextafter(1, 0), nextafter(1, 2)), 2);
    assert_int_equal(compare_ulps(0.0, -0.0), 0);
    assert_int_equal(compare_ulps(nextafter(0, 1), nextafter(0, -1)), 2);
    assert_int_equal(compare_ulps(-1, nextafter(-1, -2)), 1);
    assert_int_equal(compare_ulps(-1e308, 1e308) > (uint64_t)1 << 62, 1);
}

static struct compare_run run_of(struct compare_step *steps, int64_t count)
{
    return (struct compare_run){.env = &env, .steps = steps, .count = count};
}

static void test_losses_are_matched_by_step(void **state)
{
    (void)state;
    struct compare_step a[] = {{.step = 1, .loss = 5}, {.step = 2, .loss = 4},
                               {.step = 3, .loss = 3}, {.step = 4, .loss = NAN},
                               {.step = 6, .loss = 2}, {.step = 7, .loss = 1}};
    struct compare_step b[] = {{.step = 2, .loss = 4},   {.step = 4, .loss = NAN},
                               {.step = 5, .loss = 9},   {.step = 6, .loss = nextafter(2, 3)},
                               {.step = 7, .loss = 1.5}, {.step = 8, .loss = 0}};
    struct compare_run x = run_of(a, 6), y = run_of(b, 6), none = run_of(NULL, 0);
    struct compare_losses l;
    compare_losses(&x, &y, &l);
    assert_int_equal(l.common, 4);
    assert_int_equal(l.first_common, 2);
    assert_int_equal(l.last_common, 7);
    assert_int_equal(l.differing, 2);
    assert_int_equal(l.first, 6);
    assert_int_equal(l.ulps, 1);
    assert_int_equal(l.largest_step, 7);
    assert_true(l.largest == 0.5);
    compare_losses(&x, &none, &l);
    assert_int_equal(l.common, 0);
    b[1].loss = 3; /* against a loss that is not finite */
    compare_losses(&x, &y, &l);
    assert_int_equal(l.first, 4);
    assert_int_equal(l.ulps, 0);
    assert_true(isnan(l.a) && l.b == 3);
}

static void test_times_are_medians_of_common_steps(void **state)
{
    (void)state;
    struct compare_step a[7], b[4];
    struct compare_run runs[2] = {run_of(a, 7), run_of(b, 4)};
    struct compare_time t;
    bool common;
    for (int i = 0; i < 7; i++) /* steps 1 to 7; the first is slow */
        a[i] = (struct compare_step){.step = i + 1,
                                     .seconds = i == 0 ? 100 : i + 1,
                                     .mfu = NAN,
                                     .in_flight = 2,
                                     .waited = 0.5,
                                     .tensor_waited = 0.125,
                                     .stalled = NAN};
    for (int i = 0; i < 4; i++) /* steps 3 to 6 */
        b[i] = (struct compare_step){.step = i + 3, .seconds = 10, .waited = NAN};
    assert_int_equal(compare_time(runs, 2, 0, &common, &t), STATUS_OK);
    assert_true(common);
    assert_int_equal(t.count, 3); /* 4, 5, 6: step 3 is the first of the second run */
    assert_true(t.seconds == 5 && t.waited == 0.5 && t.hidden == 0.75);
    assert_true(t.tensor == 0.125 && t.other == 0.375 && t.stalled == 0 && t.rest == 4.5);
    assert_true(isnan(t.mfu));
    assert_int_equal(compare_time(runs, 2, 1, &common, &t), STATUS_OK);
    assert_true(t.seconds == 10 && t.waited == 0 && isnan(t.hidden) && t.rest == 10);
    runs[1].count = 1; /* nothing in common: its own steps */
    assert_int_equal(compare_time(runs, 2, 0, &common, &t), STATUS_OK);
    assert_false(common);
    assert_true(t.count == 6 && t.seconds == 4.5);
    assert_int_equal(compare_time(runs, 2, 1, &common, &t), STATUS_OK);
    assert_true(t.count == 1 && t.seconds == 10);
    runs[1].count = 0;
    assert_int_equal(compare_time(runs, 2, 1, &common, &t), STATUS_OK);
    assert_true(t.count == 0 && isnan(t.seconds));
}

static void test_keys_that_differ(void **state)
{
    (void)state;
    static const char *const configs[] = {"a.x: 1\na.y: 2\na.yy: 3\nb.list: [{k: 1}]\n",
                                          "a.x: 1\na.y: 20\nb.list: [{k: 1}]\nc.new: \td\t\te\n",
                                          "a.x: 1\na.y: 2\na.yy: 3\nb.list: [{k: 2}]\n"};
    struct compare_run runs[3] = {0};
    struct text out;
    text_init(&out, &env);
    for (int r = 0; r < 3; r++) {
        text_init(&runs[r].config, &env);
        text_add(&runs[r].config, configs[r]);
    }
    assert_int_equal(compare_config(runs, 3, &out), STATUS_OK);
    assert_string_equal(text_string(&out), "a.y\t2\t20\t2\n"
                                           "a.yy\t3\t-\t3\n"
                                           "b.list\t[{k: 1}]\t[{k: 1}]\t[{k: 2}]\n"
                                           "c.new\t-\t d  e\t-\n");
    text_clear(&out);
    assert_int_equal(compare_config(runs, 1, &out), STATUS_OK);
    assert_string_equal(text_string(&out), "");
    for (int r = 0; r < 3; r++)
        text_free(&runs[r].config);
    text_free(&out);
}

int main(void)
{
    env = testing_env(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ulps),
        cmocka_unit_test(test_losses_are_matched_by_step),
        cmocka_unit_test(test_times_are_medians_of_common_steps),
        cmocka_unit_test(test_keys_that_differ),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    env_destroy(&env);
    return failed;
}
