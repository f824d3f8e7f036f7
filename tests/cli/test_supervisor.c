/* launch -- this program launches itself as ranks that succeed, fail, are killed, abort, or do not
 * report, without any training. */
#include "testing.h"
#include <signal.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/launch/launch.h"
#include "cli/rank_report.h"
#include "comm/launcher.h"

enum { RANKS = 3, SOON = 25 /* seconds: a rank without a signal waits for 30 */ };

/* --- a rank --------------------------------------------------------------------------------- */

static volatile sig_atomic_t told;

static void on_signal(int number)
{
    told = number;
}

/* Rank `who` acts as `part` says; the others wait for a signal, or to be killed. */
static int play(int rank, const char *part, int who)
{
    signal(SIGUSR1, on_signal);
    signal(SIGTERM, SIG_IGN);
    if (strcmp(part, "mute") == 0)
        return rank == who ? 7 : 0;
    rank_report_start(rank);
    if (rank == who) /* after all ranks have started and have been seen */
        usleep(500000);
    if (rank == who && strcmp(part, "fail") == 0) {
        rank_report_end(rank, STATUS_FIT, "it does not fit", true);
        return 4;
    }
    if (rank == who && strcmp(part, "fall") == 0) { /* exit code 0: mpirun does not end the rest */
        rank_report_end(rank, STATUS_IO, "no file", false);
        return 0;
    }
    if (rank == who && strcmp(part, "leave") == 0) {
        rank_report_end(rank, STATUS_SAVED, "", false);
        return 0;
    }
    if (rank == who && strcmp(part, "hang") == 0)
        raise(SIGSTOP);
    if (rank != who && strcmp(part, "hang") == 0) {
        sleep(2);
        rank_report_end(rank, STATUS_COMM, "rank 1 does not answer", true);
        return 0;
    }
    if (rank == who && strcmp(part, "kill") == 0)
        raise(SIGKILL);
    if (rank == who && strcmp(part, "abort") == 0)
        abort();
    bool waits = strcmp(part, "end") != 0;
    for (int i = 0; waits && !told && i < 300; i++)
        usleep(100000);
    if (strcmp(part, "twice") == 0) { /* as timeout(1) does: two signals in quick succession */
        kill(getppid(), SIGINT);
        usleep(20000);
        kill(getppid(), SIGINT);
        sleep(2);
    }
    bool tidies = strcmp(part, "tidy") == 0;
    if (strcmp(part, "linger") == 0 ||
        tidies) { /* all is saved, and two Ctrl-C arrive before the end */
        if (tidies)
            rank_report_saved(rank);
        else
            rank_report_end(rank, STATUS_SAVED, "", true);
        for (int i = 0; i < 2; i++) {
            kill(getppid(), SIGINT);
            usleep(200000);
        }
        for (int i = 0; i < 300; i++) /* a signal interrupts one sleep, not all */
            usleep(100000);
    }
    rank_report_end(rank, told ? STATUS_STOPPED : STATUS_OK, "", true);
    return 0;
}

/* --- the supervisor ------------------------------------------------------------------------- */

static char program[4096];

struct outcome {
    enum status status;
    struct launch_end end;
    char error[512]; /* logged, or for the caller to log */
    double seconds;
};

/* `signal`: received before the launch; 0 = none. */
static struct outcome run_told(const char *part, int who, int signal, bool alone)
{
    struct outcome outcome;
    struct env env = testing_env(1);
    struct console console;
    volatile sig_atomic_t stop = signal;
    struct cli cli = {
        .env = &env, .console = &console, .stop = &stop, .stop_words = command_stop_train};
    char number[16];
    snprintf(number, sizeof number, "%d", who);
    char *const argv[] = {program, (char *)part, number, NULL};
    struct launch_order order = {
        .ranks = RANKS, .threads = 1, .argv = argv, .alone = alone, .stops = true};
    console_open(&console, 0, false, false);
    double start = clock_seconds();
    outcome.status = launch_run(&cli, &order, &outcome.end);
    outcome.seconds = clock_seconds() - start;
    snprintf(outcome.error, sizeof outcome.error, "%s",
             *outcome.end.words ? outcome.end.words : log_first_error(env.log));
    env_destroy(&env);
    return outcome;
}

static struct outcome run(const char *part, int who)
{
    return run_told(part, who, 0, false);
}

static void all_ranks_succeed(void **state)
{
    (void)state;
    struct outcome outcome = run("end", 0);
    assert_string_equal(outcome.error, "");
    assert_int_equal(outcome.status, STATUS_OK);
}

static void a_failure_is_named(void **state)
{
    (void)state;
    for (int who = 0; who < RANKS; who++) {
        char expected[64];
        struct outcome outcome = run("fail", who);
        snprintf(expected, sizeof expected, "rank %d: it does not fit", who);
        assert_int_equal(outcome.status, STATUS_FIT);
        assert_string_equal(outcome.error, expected);
        assert_false(outcome.end.died); /* a restart would fail again */
        assert_true(outcome.seconds < SOON);
    }
}

/* The others wait for it (half a minute in this test) and cannot learn of its failure. */
static void a_failure_before_the_ranks_met_ends_all_soon(void **state)
{
    (void)state;
    struct outcome outcome = run("fall", 1);
    assert_int_equal(outcome.status, STATUS_IO);
    assert_string_equal(outcome.error, "rank 1: no file");
    assert_true(outcome.seconds < 20);
}

static void a_killed_rank_is_named(void **state)
{
    (void)state;
    for (int who = 0; who < RANKS; who++) {
        char expected[64];
        struct outcome outcome = run("kill", who);
        snprintf(expected, sizeof expected, "rank %d (pid ", who);
        assert_int_equal(outcome.status, STATUS_COMM);
        assert_ptr_equal(strstr(outcome.error, expected), outcome.error);
        assert_non_null(strstr(outcome.error, "was killed"));
        assert_true(outcome.end.died);
        assert_true(outcome.seconds < SOON);
    }
}

static void a_broken_invariant_is_named(void **state)
{
    (void)state;
    struct outcome outcome = run("abort", 1);
    assert_int_equal(outcome.status, STATUS_COMM);
    assert_ptr_equal(strstr(outcome.error, "rank 1 (pid "), outcome.error);
}

/* Ranks that report nothing: the exit code of the launcher counts. */
static void missing_reports_are_not_success(void **state)
{
    (void)state;
    struct outcome outcome = run("mute", 1);
    assert_int_equal(outcome.status, STATUS_COMM);
    assert_non_null(strstr(outcome.error, "failed (exit 7)"));
}

/* Wait until that process blocks the signal: it then reads it from a descriptor, as a
 * supervisor. */
static void wait_until_blocked(pid_t pid, int number)
{
    char path[32], line[128];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    for (int i = 0; i < 3000 && !(mask >> (number - 1) & 1); i++) {
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            sscanf(line, "SigBlk: %llx", &mask);
        if (file)
            fclose(file);
        usleep(10000);
    }
}

/* A signal to the supervisor before the ranks have started: they get it when they have, and
 * stop. */
static void a_signal_stops_all(void **state)
{
    (void)state;
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        pid_t self = getpid(), child = fork();
        if (child == 0) {
            wait_until_blocked(self, numbers[i]);
            kill(self, numbers[i]);
            _exit(0);
        }
        signal(numbers[i], on_signal);
        struct outcome outcome = run("wait", 0);
        signal(numbers[i], SIG_DFL);
        assert_int_equal(outcome.status, STATUS_STOPPED);
        assert_string_equal(outcome.error, "");
        assert_true(outcome.seconds < SOON);
    }
}

/* Signals that our parent blocked stay blocked in children by default; ranks receive them all the
 * same. */
static void a_blocked_signal_stops_all(void **state)
{
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    struct outcome outcome = run_told("wait", 0, SIGTERM, false);
    sigprocmask(SIG_SETMASK, &before, NULL);
    (void)state;
    assert_int_equal(outcome.status, STATUS_STOPPED);
    assert_true(outcome.seconds < SOON);
}

/* The signal came before the launch, and an earlier handler noted it. */
static void a_signal_before_the_launch_stops_all(void **state)
{
    (void)state;
    struct outcome outcome = run_told("wait", 0, SIGTERM, false);
    assert_int_equal(outcome.status, STATUS_STOPPED);
    assert_string_equal(outcome.error, "");
}

/* All ranks in one process, without a launcher in between. */
static void a_single_process_is_supervised(void **state)
{
    (void)state;
    struct outcome outcome = run_told("end", 0, 0, true);
    assert_int_equal(outcome.status, STATUS_OK);
    assert_string_equal(outcome.error, "");
    outcome = run_told("kill", 0, 0, true);
    assert_int_equal(outcome.status, STATUS_COMM);
    assert_ptr_equal(strstr(outcome.error, "the run's process (pid "), outcome.error);
    assert_non_null(strstr(outcome.error, "was killed by signal 9"));
    assert_true(outcome.end.died);
    outcome = run_told("fail", 0, 0, true);
    assert_int_equal(outcome.status, STATUS_FIT);
    assert_false(outcome.end.died);
    outcome = run_told("wait", 0, SIGTERM, true);
    assert_int_equal(outcome.status, STATUS_STOPPED);
}

/* A second Ctrl-C after the save ends the run immediately; the outcome is still "saved". */
static void a_second_ctrl_c_after_the_save_keeps_the_outcome(void **state)
{
    (void)state;
    static const char *const parts[] = {"linger", "tidy"};
    for (int i = 0; i < 2; i++) {
        struct outcome outcome = run_told(parts[i], 0, SIGTERM, true);
        assert_int_equal(outcome.status, STATUS_SAVED);
        assert_string_equal(outcome.error, "");
        assert_true(outcome.seconds < SOON);
    }
}

/* On a busy machine the two signals may arrive far apart, so there are three tries. */
static void a_duplicated_ctrl_c_counts_once(void **state)
{
    (void)state;
    struct outcome outcome = {.error = "none"};
    for (int i = 0; i < 3 && *outcome.error; i++) {
        outcome = run_told("twice", 0, SIGTERM, true);
        assert_int_equal(outcome.status, STATUS_STOPPED);
    }
    assert_string_equal(outcome.error, ""); /* it was not terminated */
}

/* The other ranks give up because of one that no longer reacts to anything. */
static void a_hung_rank_is_ended_soon(void **state)
{
    (void)state;
    struct outcome outcome = run("hang", 1);
    assert_int_equal(outcome.status, STATUS_COMM);
    assert_non_null(strstr(outcome.error, "rank 1 does not answer"));
    assert_true(outcome.end.died);
    assert_true(outcome.seconds < SOON);
}

/* One rank is asked to stop while the others wait for it: the job stopped, and no rank died. */
static void a_stop_before_the_ranks_met_ends_all(void **state)
{
    (void)state;
    struct outcome outcome = run("leave", 1);
    assert_int_equal(outcome.status, STATUS_SAVED);
    assert_string_equal(outcome.error, "");
    assert_false(outcome.end.died);
    assert_true(outcome.seconds < SOON);
}

static void a_wrong_launcher_is_refused(void **state)
{
    (void)state;
    setenv("SIFR_MPIRUN", "/bin/true", 1);
    struct outcome outcome = run("end", 0);
    unsetenv("SIFR_MPIRUN");
    assert_int_equal(outcome.status, STATUS_CONFIG);
    assert_non_null(strstr(outcome.error, "no launcher of"));
}

int main(int argc, char **argv)
{
    struct launcher launcher;
    if (argc > 2)
        return play(launcher_find(&launcher) ? launcher.rank : 0, argv[1], atoi(argv[2]));
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    program[bytes > 0 ? bytes : 0] = 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_succeed),
        cmocka_unit_test(a_failure_is_named),
        cmocka_unit_test(a_failure_before_the_ranks_met_ends_all_soon),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_broken_invariant_is_named),
        cmocka_unit_test(missing_reports_are_not_success),
        cmocka_unit_test(a_signal_stops_all),
        cmocka_unit_test(a_blocked_signal_stops_all),
        cmocka_unit_test(a_signal_before_the_launch_stops_all),
        cmocka_unit_test(a_single_process_is_supervised),
        cmocka_unit_test(a_second_ctrl_c_after_the_save_keeps_the_outcome),
        cmocka_unit_test(a_duplicated_ctrl_c_counts_once),
        cmocka_unit_test(a_hung_rank_is_ended_soon),
        cmocka_unit_test(a_stop_before_the_ranks_met_ends_all),
        cmocka_unit_test(a_wrong_launcher_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
