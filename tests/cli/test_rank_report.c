/* rank_report -- child processes act as ranks: their reports, which died, which one is the
 * cause. */
#include "testing.h"
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cli/rank_report.h"

enum { RANKS = 4 };

/* Replaces libc's kill to count signals sent by pid: a pid may belong to another process by the
 * time the signal arrives. */
static int by_pid;
int kill(pid_t pid, int number)
{
    by_pid++;
    return (int)syscall(SYS_kill, pid, number);
}

struct scene {
    struct env env;
    struct rank_book *book;
};

static void open_scene(struct scene *scene)
{
    scene->env = testing_env(1);
    assert_ok(rank_book_create(&scene->env, RANKS, &scene->book));
    setenv(RANK_REPORT_VARIABLE, rank_book_address(scene->book), 1);
}

static void close_scene(struct scene *scene)
{
    unsetenv(RANK_REPORT_VARIABLE);
    rank_book_destroy(scene->book);
    env_destroy(&scene->env);
}

/* Start a rank that ends with `st` or, if `silent`, lives until it is killed. */
static pid_t play(int rank, enum status st, const char *error, bool silent)
{
    pid_t child = fork();
    if (child == 0) {
        rank_report_start(rank);
        while (silent)
            pause();
        rank_report_end(rank, st, error, st != STATUS_USAGE);
        _exit(0);
    }
    assert_true(child > 0);
    return child;
}

static void play_out(int rank, enum status st, const char *error)
{
    pid_t child = play(rank, st, error, false);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void wait_for_starts(struct rank_book *book, int count)
{
    for (int i = 0; i < 500 && rank_book_started(book) < count; i++) {
        usleep(10000);
        rank_book_update(book);
    }
    assert_int_equal(rank_book_started(book), count);
}

static void no_rank_fails(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene);
    assert_int_equal(rank_book_started(scene.book), 0);
    for (int r = 0; r < RANKS; r++)
        play_out(r, STATUS_OK, "");
    rank_book_update(scene.book);
    assert_int_equal(rank_book_started(scene.book), RANKS);
    assert_null(rank_book_verdict(scene.book));
    for (int r = 0; r < RANKS; r++) {
        assert_true(rank_book_entry(scene.book, r)->ended);
        assert_false(rank_book_entry(scene.book, r)->gone);
    }
    close_scene(&scene);
}

/* The rank that failed because of another ends first here, but is not the cause. */
static void the_cause_is_found(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene);
    play_out(0, STATUS_COMM, "rank 2: no file\nof this name");
    play_out(2, STATUS_IO, "no file\nof this name");
    play_out(1, STATUS_MEMORY, "later");
    rank_book_update(scene.book);
    const struct rank_entry *verdict = rank_book_verdict(scene.book);
    assert_non_null(verdict);
    assert_int_equal(verdict->rank, 2);
    assert_int_equal(verdict->status, STATUS_IO);
    assert_string_equal(verdict->error, "no file of this name");
    close_scene(&scene);
}

/* Other ranks cannot learn of a failure before the ranks have met. In this test, a usage error
 * means that the rank had not met the others. */
static void a_failure_before_the_ranks_met_is_the_cause(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene);
    play_out(1, STATUS_USAGE, "no such file here");
    play_out(0, STATUS_IO, "a full disk");
    rank_book_update(scene.book);
    const struct rank_entry *verdict = rank_book_verdict(scene.book);
    assert_int_equal(verdict->rank, 1);
    assert_string_equal(verdict->error, "no such file here");
    assert_false(verdict->met);
    assert_true(rank_book_entry(scene.book, 0)->met);
    close_scene(&scene);
}

static void any_failure_outranks_a_stop(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene);
    play_out(3, STATUS_STOPPED, "");
    rank_book_update(scene.book);
    assert_int_equal(rank_book_verdict(scene.book)->status, STATUS_STOPPED);
    play_out(1, STATUS_COMM, "rank 0 does not answer");
    rank_book_update(scene.book);
    assert_int_equal(rank_book_verdict(scene.book)->rank, 1);
    close_scene(&scene);
}

/* Ranks killed one after the other and found dead by a single update: the first is named. */
static void deaths_have_an_order(void **state)
{
    (void)state;
    static const int order[RANKS] = {2, 0, 3, 1};
    struct scene scene;
    open_scene(&scene);
    pid_t pids[RANKS];
    for (int r = 0; r < RANKS; r++)
        pids[r] = play(r, STATUS_OK, "", true);
    wait_for_starts(scene.book, RANKS);
    assert_null(rank_book_verdict(scene.book));
    for (int i = 0; i < RANKS; i++) {
        kill(pids[order[i]], SIGKILL);
        assert_int_equal(waitpid(pids[order[i]], NULL, 0), pids[order[i]]);
    }
    rank_book_update(scene.book);
    for (int i = 0; i < RANKS; i++) {
        assert_true(rank_book_entry(scene.book, order[i])->gone);
        assert_int_equal(rank_book_entry(scene.book, order[i])->exit_order, i + 1);
    }
    assert_int_equal(rank_book_verdict(scene.book)->rank, 2);
    assert_int_equal(rank_book_verdict(scene.book)->pid, pids[2]);
    close_scene(&scene);
}

/* A rank that hung is killed by the launcher after the others gave up: their error, which they
 * announce before they end, is the cause. A rank that was killed before the others gave up is the
 * cause itself, even if a single update finds both. */
static void a_late_death_is_not_the_cause(void **state)
{
    (void)state;
    for (int hung = 0; hung < 3; hung++) {
        struct scene scene;
        open_scene(&scene);
        pid_t pid = play(2, STATUS_OK, "", true);
        wait_for_starts(scene.book, 1);
        if (hung == 2) {
            rank_report_error(1);
            rank_book_update(scene.book);
        }
        play_out(1, STATUS_COMM, "rank 2 does not answer");
        if (hung == 1)
            rank_book_update(scene.book);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        rank_book_update(scene.book);
        assert_int_equal(rank_book_verdict(scene.book)->rank, hung ? 1 : 2);
        close_scene(&scene);
    }
}

static void remaining_ranks_are_killed(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene);
    int status;
    pid_t pid = play(1, STATUS_OK, "", true);
    wait_for_starts(scene.book, 1);
    by_pid = 0;
    rank_book_signal(scene.book, SIGKILL);
    assert_int_equal(by_pid, 0); /* the book uses a pidfd of each */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close_scene(&scene);
}

/* On another machine the same path may be an unrelated file. */
static void ranks_on_other_machines_do_not_report(void **state)
{
    (void)state;
    struct scene scene;
    open_scene(&scene);
    char address[256];
    snprintf(address, sizeof address, "not-%s", rank_book_address(scene.book));
    setenv(RANK_REPORT_VARIABLE, address, 1);
    play_out(0, STATUS_IO, "unheard");
    rank_book_update(scene.book);
    assert_int_equal(rank_book_started(scene.book), 0);
    assert_null(rank_book_verdict(scene.book));
    close_scene(&scene);
}

static void without_a_supervisor_reports_do_nothing(void **state)
{
    (void)state;
    unsetenv(RANK_REPORT_VARIABLE);
    assert_false(rank_report_wanted());
    rank_report_start(0);
    rank_report_error(0);
    rank_report_end(0, STATUS_OK, "", true);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rank_book *book = NULL;
    for (int n = 1; n <= 2; n++) {
        mem_fail_at(env.mem, n);
        assert_int_equal(rank_book_create(&env, RANKS, &book), STATUS_MEMORY);
        assert_null(book);
    }
    mem_fail_at(env.mem, 0);
    rank_book_destroy(NULL);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_rank_fails),
        cmocka_unit_test(the_cause_is_found),
        cmocka_unit_test(a_failure_before_the_ranks_met_is_the_cause),
        cmocka_unit_test(any_failure_outranks_a_stop),
        cmocka_unit_test(deaths_have_an_order),
        cmocka_unit_test(a_late_death_is_not_the_cause),
        cmocka_unit_test(remaining_ranks_are_killed),
        cmocka_unit_test(ranks_on_other_machines_do_not_report),
        cmocka_unit_test(without_a_supervisor_reports_do_nothing),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
