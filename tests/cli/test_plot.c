/* plot -- a known curve dot by dot, curves that are not drawn, and extreme values and sizes;
 * a curve keeps the order and the mean of its points, however many values are added. */
#include <math.h>
#include "testing.h"
#include "cli/plot.h"

static struct env env;

static char *draw(struct plot plot)
{
    static char picture[65536];
    struct text text;
    plot.line_on = plot.mark_on = plot.off = "";
    text_init(&text, &env);
    plot_draw(&plot, &text);
    assert_int_equal(text.status, STATUS_OK);
    snprintf(picture, sizeof picture, "%s", text_string(&text));
    text_free(&text);
    return picture;
}

static void a_straight_line_falls_from_corner_to_corner(void **state)
{
    (void)state;
    struct plot_point points[20];
    for (int i = 0; i < 20; i++)
        points[i] = (struct plot_point){i, 11 - i * 11.0 / 19};
    /* 10 cells of 2 dots, 3 rows of 4: every column has one or two dots */
    const char *picture =
        draw((struct plot){.width = 19, .height = 5, .line = points, .line_count = 20});
    assert_string_equal(picture, " 11.000 ┤⠑⠢⢄⡀\n"
                                 "  5.500 ┤   ⠈⠒⠤⡀\n"
                                 "  0.000 ┤      ⠈⠑⠢⢄\n"
                                 "        └──────────\n"
                                 "         0       19\n");
}

static void marks_are_drawn_over_the_line(void **state)
{
    (void)state;
    struct plot_point points[] = {{1, 2}, {2, 1}}, mark = {2, 1};
    const char *picture = draw((struct plot){.width = 19,
                                             .height = 5,
                                             .line = points,
                                             .line_count = 2,
                                             .marks = &mark,
                                             .mark_count = 1});
    assert_non_null(strstr(picture, "●"));
    assert_non_null(strstr(picture, "1        2\n"));
}

/* Without colours, a letter says which line it is; the first is on top. */
static void several_lines_are_told_apart(void **state)
{
    (void)state;
    struct plot_point falls[] = {{0, 2}, {19, 0}}, rises[] = {{0, 0}, {19, 2}};
    const struct plot_line other = {.points = rises, .count = 2, .on = "<b>", .letter = 'b'};
    struct plot plot = {.width = 19,
                        .height = 5,
                        .line = falls,
                        .line_count = 2,
                        .letter = 'a',
                        .others = &other,
                        .other_count = 1};
    assert_string_equal(draw(plot), "  2.000 ┤aaaa   bbb\n"
                                    "  1.000 ┤   aaaa\n"
                                    "  0.000 ┤bbbb   aaa\n"
                                    "        └──────────\n"
                                    "         0       19\n");
    struct text text;
    text_init(&text, &env);
    plot.line_on = "<a>";
    plot.mark_on = "";
    plot.off = "</>";
    plot_draw(&plot, &text);
    assert_non_null(strstr(text_string(&text), "┤<a>"));
    assert_non_null(strstr(text_string(&text), "┤<b>"));
    text_free(&text);
    plot.line_count = 0; /* the others are enough */
    assert_non_null(strstr(draw(plot), "b"));
}

static void without_utf8_it_is_ascii(void **state)
{
    (void)state;
    struct plot_point points[] = {{1, 2}, {2, 1}}, mark = {2, 1};
    const char *picture = draw((struct plot){.width = 19,
                                             .height = 5,
                                             .line = points,
                                             .line_count = 2,
                                             .marks = &mark,
                                             .mark_count = 1,
                                             .ascii = true});
    assert_string_equal(picture, "  2.000 |****\n"
                                 "  1.500 |   ****\n"
                                 "  1.000 |       **o\n"
                                 "        +----------\n"
                                 "         1        2\n");
}

/* On logarithmic axes 1/x is a straight line; values that have no logarithm are skipped. */
static void logarithmic_axes_straighten_a_power(void **state)
{
    (void)state;
    struct plot_point points[] = {{0, 5}, {1, 64}, {4, 16}, {8, 0}, {16, 4}, {64, 1}};
    struct plot plot = {.width = 19, .height = 5, .line = points, .line_count = 6, .ascii = true};
    plot.log_x = plot.log_y = true;
    assert_string_equal(draw(plot), " 64.000 |***\n"
                                    "  8.000 |   *****\n"
                                    "  1.000 |       ***\n"
                                    "        +----------\n"
                                    "         1       64\n");
}

static void every_label_ends_before_the_axis(void **state)
{
    (void)state;
    static const double tops[] = {999.9, 1e3, 99999, 1e6, 3e38};
    for (size_t i = 0; i < sizeof tops / sizeof tops[0]; i++) {
        struct plot_point points[] = {{1, tops[i]}, {2, 0}};
        const char *picture = draw((struct plot){
            .width = 19, .height = 5, .line = points, .line_count = 2, .ascii = true});
        for (const char *line = picture; *line; line = strchr(line, '\n') + 1)
            if (line[8] != '+' && line[8] != ' ')
                assert_int_equal(line[8], '|');
    }
}

static void points_that_are_not_finite_are_left_out(void **state)
{
    (void)state;
    struct plot_point points[] = {{1, 3}, {2, NAN}, {3, INFINITY}, {4, 1e308}, {5, -1e308}, {6, 2}};
    const char *picture =
        draw((struct plot){.width = 30, .height = 6, .line = points, .line_count = 6});
    assert_non_null(strstr(picture, "3.000"));
    assert_non_null(strstr(picture, "2.000"));
}

static void fewer_than_two_points_draw_nothing(void **state)
{
    (void)state;
    struct plot_point points[] = {{1, 3}, {2, NAN}};
    assert_string_equal(
        draw((struct plot){.width = 30, .height = 6, .line = points, .line_count = 2}), "");
    assert_string_equal(draw((struct plot){.width = 30, .height = 6}), "");
}

static void any_size_is_drawn(void **state)
{
    (void)state;
    struct plot_point points[] = {{1, 5}, {2, 5}, {1e6, 5}};
    for (int width = 0; width < 400; width += 37)
        for (int height = 0; height < 100; height += 13)
            assert_true(strlen(draw(
                (struct plot){.width = width, .height = height, .line = points, .line_count = 3})));
}

static int open_env(void **state)
{
    (void)state;
    env = testing_env(1);
    return 0;
}

static int close_env(void **state)
{
    (void)state;
    env_destroy(&env);
    return 0;
}

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
        cmocka_unit_test(a_straight_line_falls_from_corner_to_corner),
        cmocka_unit_test(marks_are_drawn_over_the_line),
        cmocka_unit_test(several_lines_are_told_apart),
        cmocka_unit_test(without_utf8_it_is_ascii),
        cmocka_unit_test(logarithmic_axes_straighten_a_power),
        cmocka_unit_test(every_label_ends_before_the_axis),
        cmocka_unit_test(points_that_are_not_finite_are_left_out),
        cmocka_unit_test(fewer_than_two_points_draw_nothing),
        cmocka_unit_test(any_size_is_drawn),
    };
    return cmocka_run_group_tests(tests, open_env, close_env);
}
