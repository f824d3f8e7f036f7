/* curve -- however many values are added, the points keep their order and their mean. */
#include <math.h>
#include "testing.h"
#include "cli/curve.h"

static void few_values_are_kept_as_they_are(void **state)
{
    (void)state;
    static struct curve curve;
    struct plot_point points[CURVE_POINTS];
    for (int i = 0; i < 5; i++)
        curve_add(&curve, i, i == 2 ? NAN : 10 - i);
    assert_int_equal(curve_points(&curve, points), 4);
    assert_true(points[0].x == 0 && points[0].y == 10);
    assert_true(points[3].x == 4 && points[3].y == 6);
}

static void many_values_become_means_in_order(void **state)
{
    (void)state;
    static struct curve curve;
    struct plot_point points[CURVE_POINTS];
    const int count = 100003;
    for (int i = 0; i < count; i++)
        curve_add(&curve, i, 2.0 * i);
    int n = curve_points(&curve, points);
    assert_in_range(n, CURVE_POINTS / 2, CURVE_POINTS);
    for (int i = 0; i < n; i++) {
        assert_true(fabs(points[i].y - 2 * points[i].x) < 1e-6);
        assert_true(i == 0 || points[i].x > points[i - 1].x);
    }
    assert_true(points[n - 1].x > count - 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_values_are_kept_as_they_are),
        cmocka_unit_test(many_values_become_means_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
