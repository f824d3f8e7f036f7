/* When the loss scale grows, shrinks and stays. */
#include "testing.h"
#include "engine/engine.h"

static void good_steps(struct loss_scale *s, int count)
{
    for (int i = 0; i < count; i++)
        assert_false(loss_scale_update(s, false));
}

static void test_starts_and_grows_after_a_window(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_start();
    assert_true(s.scale == 65536.0);
    good_steps(&s, 999);
    assert_true(s.scale == 65536.0);
    good_steps(&s, 1);
    assert_true(s.scale == 131072.0);
    good_steps(&s, 1000);
    assert_true(s.scale == 262144.0);
}

static void test_first_overflow_is_forgiven(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_start();
    assert_true(loss_scale_update(&s, true));
    assert_true(s.scale == 65536.0);
    good_steps(&s, 10); /* a second overflow before the scale has grown is not forgiven */
    assert_true(loss_scale_update(&s, true));
    assert_true(s.scale == 32768.0);
    assert_true(loss_scale_update(&s, true));
    assert_true(s.scale == 16384.0);
}

static void test_overflow_restarts_the_window(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_start();
    good_steps(&s, 999);
    loss_scale_update(&s, true);
    good_steps(&s, 999);
    assert_true(s.scale == 65536.0);
    good_steps(&s, 1);
    assert_true(s.scale == 131072.0);
    loss_scale_update(&s, true); /* the first overflow after the growth is forgiven */
    assert_true(s.scale == 131072.0);
}

static void test_floor(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_start();
    for (int i = 0; i < 1 + 16; i++)
        assert_true(loss_scale_update(&s, true));
    assert_true(s.scale == 1.0);
    assert_false(loss_scale_update(&s, true)); /* the floor does not explain an overflow */
    assert_true(s.scale == 1.0);
}

static void test_ceiling(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_start();
    good_steps(&s, 100 * LOSS_SCALE_WINDOW);
    assert_true(s.scale == LOSS_SCALE_CEILING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_starts_and_grows_after_a_window),
        cmocka_unit_test(test_first_overflow_is_forgiven),
        cmocka_unit_test(test_overflow_restarts_the_window),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_ceiling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
