/* cmocka -- as much of it as the tests need that tests/x86-64/run builds for another kind of CPU,
 * for which the library is not installed. The first assertion that fails ends the process. */
#ifndef TESTS_X86_64_CMOCKA_H
#define TESTS_X86_64_CMOCKA_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
    void *state;
};
#define cmocka_unit_test(function) \
    {                              \
#function, function, NULL  \
    }
#define cmocka_unit_test_prestate(function, value) \
    {                                              \
#function, function, value                 \
    }

static jmp_buf cmocka_skipped;

static inline int cmocka_run_each(const struct CMUnitTest *tests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *state = tests[i].state;
        if (setjmp(cmocka_skipped) == 0)
            tests[i].run(&state);
    }
    return 0;
}
#define cmocka_run_group_tests(tests, setup, teardown) \
    cmocka_run_each(tests, sizeof(tests) / sizeof *(tests))
#define cmocka_run_group_tests_name(name, tests, setup, teardown) \
    cmocka_run_group_tests(tests, setup, teardown)
#define skip()             longjmp(cmocka_skipped, 1)

#define print_error(...)   fprintf(stderr, __VA_ARGS__)
#define print_message(...) printf(__VA_ARGS__)
#define fail_msg(...)                                   \
    do {                                                \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                   \
        fputc('\n', stderr);                            \
        exit(1);                                        \
    } while (0)
#define assert_true(value)                   \
    do {                                     \
        if (!(value))                        \
            fail_msg("%s is false", #value); \
    } while (0)
#define assert_false(value)          assert_true(!(value))
#define assert_non_null(value)       assert_true((value) != NULL)
#define assert_int_equal(a, b)       assert_true((a) == (b))
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)
#define assert_string_equal(a, b)    assert_true(strcmp(a, b) == 0)

#endif
