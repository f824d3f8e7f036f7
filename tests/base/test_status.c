/* Every status has a name, a text and an exit code; TRY and CHECK work as documented. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/fixture.h"
#include "base/status.h"

static void test_table(void **state)
{
    (void)state;
    assert_string_equal(status_name(STATUS_IO), "IO");
    assert_string_equal(status_name(STATUS_FIT), "FIT");
    assert_string_equal(status_text(STATUS_OK), "done");
    assert_string_equal(status_text(STATUS_MEMORY), "out of memory");
    assert_int_equal(status_exit_code(STATUS_OK), 0);
    assert_int_equal(status_exit_code(STATUS_IO), 1);
    assert_int_equal(status_exit_code(STATUS_USAGE), 2);
    assert_int_equal(status_exit_code(STATUS_CONFIG), 2);
    assert_int_equal(status_exit_code(STATUS_DIVERGED), 3);
    assert_int_equal(status_exit_code(STATUS_FIT), 4);
    assert_int_equal(status_exit_code(STATUS_MEMORY), 4);
}

static enum status pass_on(enum status st, int *reached)
{
    TRY(st);
    ++*reached;
    return STATUS_OK;
}

static enum status undo(enum status first, enum status second, int *undone)
{
    enum status st;
    TRY_OR(undo_nothing, first);
    TRY_OR(undo_first, second);
    return STATUS_OK;
undo_first:
    ++*undone;
undo_nothing:
    return st;
}

static void test_try(void **state)
{
    (void)state;
    int count = 0;
    assert_int_equal(pass_on(STATUS_OK, &count), STATUS_OK);
    assert_int_equal(count, 1);
    assert_int_equal(pass_on(STATUS_FORMAT, &count), STATUS_FORMAT);
    assert_int_equal(count, 1);
    count = 0;
    assert_int_equal(undo(STATUS_OK, STATUS_OK, &count), STATUS_OK);
    assert_int_equal(undo(STATUS_IO, STATUS_OK, &count), STATUS_IO);
    assert_int_equal(count, 0);
    assert_int_equal(undo(STATUS_OK, STATUS_CONFIG, &count), STATUS_CONFIG);
    assert_int_equal(count, 1);
}

static void break_equality(void)
{
    CHECK_EQ(3 + 4, 8);
}

static void break_condition(void)
{
    int zero = 0;
    CHECK(zero > 1);
}

/* Run `broken` in a child process: it must abort with a reason on stderr. */
static void expect_abort(void (*broken)(void), const char *part)
{
    int ends[2];
    char said[512] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        signal(SIGABRT, SIG_DFL);
        broken();
        _exit(0);
    }
    close(ends[1]);
    assert_true(read(ends[0], said, sizeof said - 1) > 0);
    close(ends[0]);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result));
    assert_int_equal(WTERMSIG(result), SIGABRT);
    assert_contains(said, part);
}

static void test_check(void **state)
{
    (void)state;
    CHECK_EQ(1, 1);
    CHECK_LE(1, 1);
    CHECK_LT(-1, 1);
    expect_abort(break_equality, "3 + 4 == 8 (7 and 8)");
    expect_abort(break_condition, "zero > 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_try),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
