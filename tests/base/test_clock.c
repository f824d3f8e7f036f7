/* The clocks run, never go backward, and count seconds. */
#include <time.h>
#include "base/clock.h"
#include "base/fixture.h"

static void test_forward(void **state)
{
    (void)state;
    double last = clock_seconds();
    for (int i = 0; i < 10000; i++) {
        double now = clock_seconds();
        assert_true(now >= last);
        last = now;
    }
}

static void test_seconds(void **state)
{
    (void)state;
    double before = clock_seconds(), wall = clock_wall();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    double passed = clock_seconds() - before;
    assert_true(passed >= 0.0199 && passed < 20);
    assert_true(wall > 1.5e9 && wall - (double)time(NULL) < 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
