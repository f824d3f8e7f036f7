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
        pace_add(pace, 8, 100, 100 * (i + 1));
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
        pace_add(pace, 8, 50, now += 50);
    for (int i = 0; i < 5; i++)
        pace_add(pace, 8, i == 2 ? 16 : 2, now += i == 2 ? 16 : 2);
    assert_true(pace_median(pace) == 4);
    assert_float_equal(pace_left(pace, 80, now), 80 * 24.0 / 40, 1e-12);
    for (int i = 0; i < 3; i++)
        pace_add(pace, 8, 4, now += 4);
    assert_true(pace_median(pace) == 3); /* 4 4 4 4 2 2 2 0.5 */
    pace_destroy(pace);
    scratch_close(&s);
}

/* Larger steps take longer: the rate stays, and what is left is counted in tokens. */
static void test_steps_of_several_sizes(void **state)
{
    (void)state;
    struct scratch s;
    struct pace *pace;
    double now = 0;
    scratch_open(&s);
    assert_int_equal(pace_create(&s.env, &pace), STATUS_OK);
    for (int i = 0; i < PACE_WARMUP; i++)
        pace_add(pace, 10, 1, now += 1);
    for (int i = 1; i <= 4; i++)
        pace_add(pace, 10 * i, i, now += i);
    assert_true(pace_median(pace) == 10);
    assert_float_equal(pace_left(pace, 640, now), 64, 1e-12);
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
        pace_add(pace, i, 1, i);
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
        cmocka_unit_test(test_steps_of_several_sizes),
        cmocka_unit_test(test_long_runs_are_sampled_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
