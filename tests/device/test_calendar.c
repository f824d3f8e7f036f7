/* The calendar of a simulated link: what is booked fills what is free, and nothing carries twice. */
#include <math.h>

#include "device/dry/calendar.h"
#include "testing.h"

#define assert_time(a, b) assert_true(fabs((a) - (b)) < 1e-9)

static void test_work_follows_work(void **state)
{
    (void)state;
    struct calendar c = {0};
    assert_time(calendar_book(&c, 1, 2), 3);
    assert_time(calendar_book(&c, 3, 1), 4);
    assert_time(calendar_book(&c, 0, 0), 0);
    assert_int_equal(c.count, 1);
    assert_time(calendar_book(&c, 2, 1), 5); /* another stream, later in the calls */
}

static void test_earlier_work_fills_gaps(void **state)
{
    (void)state;
    struct calendar c = {0};
    assert_time(calendar_book(&c, 10, 2), 12);
    assert_time(calendar_book(&c, 20, 2), 22);
    assert_time(calendar_book(&c, 0, 5), 5);
    assert_int_equal(c.count, 3);
    assert_time(calendar_book(&c, 8, 5), 15); /* 8 to 10, and 12 to 15 */
    assert_time(calendar_book(&c, 4, 9), 23); /* 5 to 8, 15 to 20, 22 to 23 */
}

/* Whatever the order of the calls, the busy time is the sum of the work, and work is done after its
 * time has passed. */
static void test_nothing_carries_twice(void **state)
{
    (void)state;
    struct calendar c = {0};
    uint32_t random = 1;
    double work = 0, busy = 0;
    for (int i = 0; i < 200; i++) {
        random = random * 1664525u + 1013904223u;
        double at = random >> 22, seconds = 1 + (random >> 8) % 7;
        work += seconds;
        assert_true(calendar_book(&c, at, seconds) >= at + seconds - 1e-9);
    }
    for (int i = 0; i < c.count; i++) {
        busy += c.busy[i].until - c.busy[i].from;
        assert_true(i == 0 || c.busy[i - 1].until < c.busy[i].from);
    }
    assert_time(work, busy);
}

static void test_a_full_calendar_forgets_old_gaps(void **state)
{
    (void)state;
    struct calendar c = {0};
    for (int i = 0; i < 3 * CALENDAR_SPANS; i++)
        assert_time(calendar_book(&c, 10 * i, 1), 10 * i + 1);
    assert_int_equal(c.count, CALENDAR_SPANS);
    assert_time(calendar_book(&c, 10 * (3 * CALENDAR_SPANS - 1) - 5, 1),
                10 * (3 * CALENDAR_SPANS - 1) - 4);
    assert_true(calendar_book(&c, 5, 1) > 1000); /* the gaps there are gone */
    for (int i = 0; i < 400; i++)
        calendar_book(&c, 1e6 - 10 * i, 1); /* backwards, into a full calendar */
    for (int i = 1; i < c.count; i++)
        assert_true(c.busy[i - 1].until < c.busy[i].from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_follows_work),
        cmocka_unit_test(test_earlier_work_fills_gaps),
        cmocka_unit_test(test_nothing_carries_twice),
        cmocka_unit_test(test_a_full_calendar_forgets_old_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
