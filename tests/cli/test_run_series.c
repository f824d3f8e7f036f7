/* run_series -- rows are kept as they are until they are full, then merged without losing the mean,
 * the least or the largest value; what is printed decodes to the rows. */
#include <math.h>
#include "testing.h"
#include "base/json_doc.h"
#include "cli/page/run_series.h"

static struct env env;
static const char *const names[] = {"step", "value", "never"};

static void fill(struct series *series, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double values[] = {(double)(i + 1), sin((double)i), NAN};
        series_add(series, values);
    }
}

/* The values of a column from what series_print wrote. */
static int64_t decode(const json_t *column, int64_t rows, double *values)
{
    const json_t *f = json_object_get(column, "f"), *g = json_object_get(column, "g");
    struct text bytes;
    if (!f && !g) {
        bool even = json_object_get(column, "k") != NULL;
        double k = json_number_value(json_object_get(column, even ? "k" : "c"));
        for (int64_t i = 0; i < rows; i++)
            values[i] = k + (double)i * json_number_value(json_object_get(column, "d"));
        return rows;
    }
    text_init(&bytes, &env);
    assert_true(text_base64_decode(&bytes, json_string_value(f ? f : g)));
    int64_t count = (int64_t)(bytes.bytes / (f ? sizeof(float) : sizeof(double)));
    for (int64_t i = 0; i < count; i++) {
        float narrow;
        if (f)
            memcpy(&narrow, bytes.data + i * (int64_t)sizeof narrow, sizeof narrow);
        else
            memcpy(&values[i], bytes.data + i * (int64_t)sizeof *values, sizeof *values);
        if (f)
            values[i] = narrow;
    }
    text_free(&bytes);
    return count;
}

static json_t *column_of(const struct json_doc *doc, const char *name)
{
    return json_object_get(json_object_get(doc->root, "columns"), name);
}

static void open_print(const struct series *series, int64_t first, int64_t most,
                       struct json_doc *doc)
{
    static const struct json_rules rules = {.values = 1000, .lists = 100};
    struct text text;
    text_init(&text, &env);
    if (most > 0)
        assert_int_equal(series_print_most(series, most, &text), STATUS_OK);
    else
        series_print(series, first, &text);
    assert_int_equal(json_doc_open(&env, text_string(&text), text.bytes, &rules, doc), STATUS_OK);
    text_free(&text);
}

static void rows_are_exact_until_they_are_full(void **state)
{
    (void)state;
    struct series series;
    static double values[SERIES_ROWS];
    struct json_doc doc;
    assert_int_equal(series_create(&env, names, 3, &series), STATUS_OK);
    fill(&series, 10000);
    assert_int_equal(series.rows, 10000);
    assert_int_equal(series.stride, 1);
    open_print(&series, 0, 0, &doc);
    assert_int_equal(decode(column_of(&doc, "value"), 10000, values), 10000);
    for (int i = 0; i < 10000; i++)
        assert_true(values[i] == (double)(float)sin((double)i));
    assert_int_equal(decode(column_of(&doc, "step"), 10000, values), 10000);
    assert_true(values[9999] == 10000);
    assert_null(column_of(&doc, "never")); /* a column without values is left out */
    assert_null(json_object_get(column_of(&doc, "value"), "l"));
    json_doc_close(&doc);
    series_free(&series);
}

static void any_number_of_records_fits(void **state)
{
    (void)state;
    struct series series;
    int64_t count = 1000003;
    double sum = 0, least = INFINITY, largest = -INFINITY;
    assert_int_equal(series_create(&env, names, 3, &series), STATUS_OK);
    fill(&series, count);
    assert_true(series.rows <= SERIES_ROWS && series.rows > SERIES_ROWS / 2);
    assert_int_equal((series.rows - 1) * series.stride + series.in_last, count);
    for (int64_t i = 0; i < series.rows; i++) {
        size_t at = (size_t)SERIES_ROWS + (size_t)i;
        double n = (double)(i + 1 < series.rows ? series.stride : series.in_last);
        sum += n * series.mean[at];
        least = fmin(least, series.least[at]);
        largest = fmax(largest, series.largest[at]);
        assert_true(series.least[at] <= series.mean[at] + 1e-6);
        assert_true(series.largest[at] >= series.mean[at] - 1e-6);
    }
    double expected = 0;
    for (int64_t i = 0; i < count; i++)
        expected += sin((double)i);
    assert_true(fabs(sum - expected) < 1e-6);
    assert_true(least < -0.99999 && largest > 0.99999);
    assert_true(series.least[0] == 1 && series.largest[0] == (float)series.stride);
    series_free(&series);
}

static void a_print_may_begin_anywhere_and_be_smaller(void **state)
{
    (void)state;
    struct series series;
    static double values[SERIES_ROWS];
    struct json_doc doc;
    assert_int_equal(series_create(&env, names, 3, &series), STATUS_OK);
    fill(&series, 100);
    open_print(&series, 97, 0, &doc);
    assert_int_equal(json_integer_value(json_object_get(doc.root, "at")), 97);
    assert_int_equal(json_integer_value(json_object_get(doc.root, "rows")), 100);
    assert_int_equal(decode(column_of(&doc, "value"), 3, values), 3);
    assert_true(values[0] == (double)(float)sin(97));
    json_doc_close(&doc);
    open_print(&series, 1000, 0, &doc); /* beyond the end: nothing */
    assert_int_equal(json_object_size(json_object_get(doc.root, "columns")), 0);
    json_doc_close(&doc);
    open_print(&series, 0, 60, &doc); /* 100 rows are too many; so are 50 and 25 with ranges */
    assert_int_equal(json_integer_value(json_object_get(doc.root, "rows")), 13);
    assert_int_equal(json_integer_value(json_object_get(doc.root, "stride")), 8);
    assert_int_equal(json_integer_value(json_object_get(doc.root, "in_last")), 4);
    assert_int_equal(decode(column_of(&doc, "value"), 13, values), 13);
    double mean = 0;
    for (int i = 0; i < 8; i++)
        mean += sin(i) / 8;
    assert_true(fabs(values[0] - mean) < 1e-6);
    assert_non_null(json_object_get(column_of(&doc, "value"), "l"));
    json_doc_close(&doc);
    assert_int_equal(series.rows, 100); /* unchanged */
    series_free(&series);
}

static void missing_and_huge_values_are_kept_apart(void **state)
{
    (void)state;
    struct series series;
    static double values[SERIES_ROWS];
    struct json_doc doc;
    assert_int_equal(series_create(&env, names, 3, &series), STATUS_OK);
    series_add(&series, (const double[]){1, NAN, INFINITY});
    series_add(&series, (const double[]){20000001, 1.5, NAN});
    series_add(&series, (const double[]){30000007, 2.5, NAN});
    open_print(&series, 0, 0, &doc);
    assert_int_equal(decode(column_of(&doc, "step"), 3, values), 3);
    assert_true(values[2] == 30000007); /* a float would lose it */
    assert_int_equal(decode(column_of(&doc, "value"), 3, values), 3);
    assert_true(isnan(values[0]) && values[1] == 1.5);
    assert_null(column_of(&doc, "never"));
    json_doc_close(&doc);
    series_merge(&series);
    assert_true(series.mean[SERIES_ROWS] == 1.5); /* of those that have a value */
    series_clear(&series);
    assert_int_equal(series.rows, 0);
    assert_true(isnan(series_last(&series, 1)));
    series_add(&series, (const double[]){1, -1.7e308, 1e308}); /* differences would overflow */
    series_add(&series, (const double[]){2, 3e38, 1e39});
    series_merge(&series);
    assert_true(series.mean[SERIES_ROWS] == 3e38 && isfinite(series.largest[SERIES_ROWS]));
    assert_true(isnan(series_last(&series, 2)));
    series_free(&series);
}

static enum status build(struct env *with, const char *unused)
{
    struct series series;
    (void)unused;
    TRY(series_create(with, names, 3, &series));
    series_free(&series);
    return STATUS_OK;
}

static void every_failed_allocation_is_undone(void **state)
{
    (void)state;
    assert_true(testing_fail_each(build, NULL) > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_exact_until_they_are_full),
        cmocka_unit_test(any_number_of_records_fits),
        cmocka_unit_test(a_print_may_begin_anywhere_and_be_smaller),
        cmocka_unit_test(missing_and_huge_values_are_kept_apart),
        cmocka_unit_test(every_failed_allocation_is_undone),
    };
    env = testing_env(1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    env_destroy(&env);
    return failed;
}
