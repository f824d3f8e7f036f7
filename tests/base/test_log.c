/* Levels, the recorded first error, truncation of long lines, concurrent writers. */
#include <pthread.h>
#include "base/fixture.h"

static void test_levels(void **state)
{
    (void)state;
    struct heard heard = {0};
    struct log *log = log_create(hear, &heard, LOG_WARN);
    log_write(log, LOG_INFO, "not heard");
    assert_int_equal(heard.count, 0);
    log_write(log, LOG_WARN, "%d of %s", 3, "four");
    assert_int_equal(heard.count, 1);
    assert_int_equal(heard.level, LOG_WARN);
    assert_string_equal(heard.line, "3 of four");
    log_destroy(log);
    log_destroy(NULL);
}

static void test_first_error(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    assert_string_equal(log_first_error(env->log), "");
    assert_int_equal(FAIL(env, IO, "cannot open '%s'", "a"), STATUS_IO);
    assert_int_equal(FAIL(env, FORMAT, "then this"), STATUS_FORMAT);
    assert_string_equal(log_first_error(env->log), "cannot open 'a'");
    assert_string_equal(f.heard.line, "then this");
    assert_int_equal(f.heard.level, LOG_ERROR);
    assert_int_equal(f.heard.count, 2);
    log_error_clear(env->log);
    assert_string_equal(log_first_error(env->log), "");
    FAIL(env, IO, "again");
    assert_string_equal(log_first_error(env->log), "again");
    fixture_close(&f);
}

static void test_source_location_when_debugging(void **state)
{
    (void)state;
    struct heard heard = {0};
    struct log *log = log_create(hear, &heard, LOG_DEBUG);
    log_fail(log, STATUS_IO, "here.c", 12, "broken");
    assert_string_equal(heard.line, "broken [here.c:12]");
    assert_string_equal(log_first_error(log), "broken");
    log_destroy(log);
}

static void test_long_line(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    char *line = malloc(10001);
    memset(line, 'x', 10000);
    line[10000] = 0;
    FAIL(env, IO, "%s", line);
    size_t bytes = strlen(f.heard.line);
    assert_true(bytes > 1000 && bytes < 10000);
    assert_string_equal(f.heard.line + bytes - 4, "x...");
    assert_string_equal(log_first_error(env->log), f.heard.line);
    log_info(env, "%s", line);
    assert_string_equal(f.heard.line + strlen(f.heard.line) - 4, "x...");
    free(line);
    fixture_close(&f);
}

static void test_no_listener(void **state)
{
    (void)state;
    struct log *log = log_create(NULL, NULL, LOG_DEBUG);
    log_write(log, LOG_INFO, "to nobody");
    log_fail(log, STATUS_IO, "here.c", 1, "kept all the same");
    assert_string_equal(log_first_error(log), "kept all the same");
    log_destroy(log);
}

enum { THREADS = 4, LINES = 500 };

static void *write_lines(void *user)
{
    for (int i = 0; i < LINES; i++)
        log_fail(user, STATUS_IO, "t.c", i, "line %d", i);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct heard heard = {0}; /* counts without a lock: the log's lock must suffice */
    struct log *log = log_create(hear, &heard, LOG_ERROR);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, log), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(heard.count, THREADS * LINES);
    assert_string_equal(log_first_error(log), "line 0");
    log_destroy(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),    cmocka_unit_test(test_first_error),
        cmocka_unit_test(test_long_line), cmocka_unit_test(test_source_location_when_debugging),
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_no_listener),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
