/* status -- the texts of the status codes, and the abort after a failed CHECK. */
#include "base/status.h"
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name, *text;
    int exit_code;
} codes[] = {
#define X(name, exit_code, text) [STATUS_##name] = {#name, text, exit_code},
    STATUS_CODES(X)
#undef X
};

enum { CODE_COUNT = sizeof codes / sizeof codes[0] };

const char *status_name(enum status st)
{
    CHECK_LT((unsigned)st, CODE_COUNT);
    return codes[st].name;
}

const char *status_text(enum status st)
{
    CHECK_LT((unsigned)st, CODE_COUNT);
    return codes[st].text;
}

int status_exit_code(enum status st)
{
    CHECK_LT((unsigned)st, CODE_COUNT);
    return codes[st].exit_code;
}

void check_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
    abort();
}

void check_op_failed(const char *what, long long a, long long b, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken invariant: %s (%lld and %lld)\n", file, line, what, a, b);
    abort();
}
