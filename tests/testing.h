/* testing -- what every test needs: the headers for cmocka in the right order, and an env with a
 * quiet log. */
#ifndef TESTS_TESTING_H
#define TESTS_TESTING_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/env.h"

/* Under a sanitizer, measured memory and time are not those of the program. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TESTING_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TESTING_SANITIZED 1
#endif
#endif
#ifndef TESTING_SANITIZED
#define TESTING_SANITIZED 0
#endif

/* Skip this test function; scripts/test collects the reasons. */
#define testing_skip(reason)               \
    do {                                   \
        printf("SKIPPED: %s\n", (reason)); \
        skip();                            \
    } while (0)

/* Tests expect errors: the log records them (log_first_error) but does not print them. */
static inline void testing_quiet(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static inline struct env testing_env(int threads)
{
    struct env env;
    assert_int_equal(env_create(&env, testing_quiet, NULL, LOG_INFO, threads), STATUS_OK);
    return env;
}

/* Run `build` again and again, with allocation 1, 2, ... failing, until it succeeds. It must free
 * everything each time. Returns its number of allocations plus one. */
static inline int64_t testing_fail_each(enum status (*build)(struct env *env, const char *with),
                                        const char *with)
{
    struct env env = testing_env(1);
    enum status st = STATUS_MEMORY;
    int64_t n = 0;
    while (st == STATUS_MEMORY) {
        mem_fail_at(env.mem, ++n);
        st = build(&env, with);
        assert_int_equal(mem_total(env.mem), 0);
    }
    assert_int_equal(st, STATUS_OK);
    env_destroy(&env);
    return n;
}

/* Tests that repeat one check over many settings ask this before each. SIFR_TEST_SAMPLE=N in the
 * environment: true for about one call of N, always for the first, the same in every run; else
 * always true. scripts/test sets it under sanitizers, which make a check five times slower. */
static inline bool testing_sampled(void)
{
    static _Atomic uint32_t calls;
    const char *every = getenv("SIFR_TEST_SAMPLE");
    uint32_t n = every ? (uint32_t)atoi(every) : 1;
    uint32_t call = calls++; /* scrambled, so that no loop inside the test is in step with N */
    return n <= 1 || (call * UINT32_C(2654435761) >> 16) % n == 0;
}

#define assert_ok(call) assert_int_equal((call), STATUS_OK)

#endif
