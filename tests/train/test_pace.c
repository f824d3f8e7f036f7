/* Median and prediction of step times, for short runs and for runs with more steps than are
 * kept. */
#include "scratch.h"
#include <math.h>
#include "train/run/pace.h"

static void test_the_pace_is_unknown_at_first(void **state)
{
    (void)state;
    struct scratch s;
    struct pace *pace;
    scratch_open(&s);
    assert_int_equal(pace_create(&s.env, &pace), STATUS_OK);
    assert_true(isnan(pace_median(pace)) && isnan(pace_left(pace, 10, 5)));
    for (int i = 0; i < PACE_WARMUP; i++)
        pace_add(pace, 100, 100 * (i + 1));
    assert_true(isnan(pace_median(pace)) && isnan(pace_left(pace, 10, 300)));
    pace_destroy(pace);
    scratch_close(&s);
}

static void test_warm_up_does_not_count(void **state)
{
    (void)state;
    struct scratch s;
    struct pace *pace;
    double now = 0;
    scratch_open(&s);
    assert_int_equal(pace_create(&s.env, &pace), STATUS_OK);
    for (int i = 0; i < PACE_WARMUP; i++)
        pace_add(pace, 50, now += 50);
    for (int i = 0; i < 5; i++)
        pace_add(pace, i == 2 ? 9 : 2, now += i == 2 ? 9 : 2);
    assert_true(pace_median(pace) == 2);
    assert_float_equal(pace_left(pace, 10, now), 10 * 17.0 / 5, 1e-12);
    pace_add(pace, 4, now += 4);
    pace_add(pace, 4, now += 4);
    pace_add(pace, 4, now += 4);
    assert_true(pace_median(pace) == 3); /* 2 2 2 2 4 4 4 9 */
    pace_destroy(pace);
    scratch_close(&s);
}

static void test_long_runs_are_sampled_evenly(void **state)
{
    (void)state;
    struct scratch s;
    struct pace *pace;
    scratch_open(&s);
    assert_int_equal(pace_create(&s.env, &pace), STATUS_OK);
    int64_t allocations = mem_allocation_count(s.env.mem);
    const int steps = 100000;
    for (int i = 0; i < steps; i++)
        pace_add(pace, i, i);
    assert_float_equal(pace_median(pace), steps / 2.0, steps / 500.0);
    assert_int_equal(mem_allocation_count(s.env.mem), allocations);
    pace_destroy(pace);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_pace_is_unknown_at_first),
        cmocka_unit_test(test_warm_up_does_not_count),
        cmocka_unit_test(test_long_runs_are_sampled_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
