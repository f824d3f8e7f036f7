/* fixture -- an env with a recorded log, for the tests of base. */
#ifndef TESTS_BASE_FIXTURE_H
#define TESTS_BASE_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/env.h"

struct heard {
    int count;
    enum log_level level; /* of the last line */
    char line[5000];
};

static inline void hear(void *user, enum log_level level, const char *line)
{
    struct heard *heard = user;
    heard->count++;
    heard->level = level;
    snprintf(heard->line, sizeof heard->line, "%s", line);
}

struct fixture {
    struct env env;
    struct heard heard;
};

static inline struct env *fixture_open(struct fixture *fixture)
{
    memset(fixture, 0, sizeof *fixture);
    assert_int_equal(env_create(&fixture->env, hear, &fixture->heard, LOG_INFO, 1), STATUS_OK);
    return &fixture->env;
}

/* Fails the test if anything is still allocated. */
static inline void fixture_close(struct fixture *fixture)
{
    assert_int_equal(mem_total(fixture->env.mem), 0);
    env_destroy(&fixture->env);
}

#define assert_contains(text, part)                         \
    do {                                                    \
        if (!strstr(text, part))                            \
            fail_msg("'%s' not found in:\n%s", part, text); \
    } while (0)

#endif
