/* launch -- this program launches itself: ranks that end well, fail, are killed, abort, or say
 * nothing, without any training in them. */
#include "testing.h"
#include <signal.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/launch/launch.h"
#include "cli/rank_report.h"
#include "comm/launcher.h"

enum { RANKS = 3, SOON = 25 /* seconds: ranks that are not told wait for 30 */ };

/* --- a rank --------------------------------------------------------------------------------- */

static volatile sig_atomic_t told;

static void on_signal(int number)
{
    told = number;
}

/* What the rank whose number is `who` does; the others wait to be ended, or to be told. */
static int play(int rank, const char *part, int who)
{
    signal(SIGUSR1, on_signal);
    signal(SIGTERM, SIG_IGN);
    if (strcmp(part, "mute") == 0)
        return rank == who ? 7 : 0;
    rank_report_start(rank);
    if (rank == who) /* not before all are there and have been seen */
        usleep(500000);
    if (rank == who && strcmp(part, "fail") == 0) {
        rank_report_end(rank, STATUS_FIT, "it does not fit", true);
        return 4;
    }
    if (rank == who && strcmp(part, "fall") == 0) { /* in good order, so that no launcher helps */
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
    if (strcmp(part, "twice") == 0) { /* as timeout(1) does: soon, but not as one */
        kill(getppid(), SIGINT);
        usleep(20000);
        kill(getppid(), SIGINT);
        sleep(2);
    }
    bool tidies = strcmp(part, "tidy") == 0;
    if (strcmp(part, "linger") == 0 ||
        tidies) { /* all is saved, and two Ctrl-C come before it ends */
        if (tidies)
            rank_report_saved(rank);
        else
            rank_report_end(rank, STATUS_SAVED, "", true);
        for (int i = 0; i < 2; i++) {
            kill(getppid(), SIGINT);
            usleep(200000);
        }
        for (int i = 0; i < 300; i++) /* a signal cuts one short, not all */
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
    char error[512]; /* that was said, or is to be */
    double seconds;
};

/* `signal`: came before the launch, 0 = none. */
static struct outcome run_told(const char *part, int who, int signal, bool alone)
{
    struct outcome outcome;
    struct env env = testing_env(1);
    struct console console;
    volatile sig_atomic_t stop = signal;
    struct cli cli = {.env = &env, .console = &console, .stop = &stop};
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

static void all_end_well(void **state)
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
        assert_false(outcome.end.died); /* it would be the same again */
        assert_true(outcome.seconds < SOON);
    }
}

/* The others wait for it (half a minute, in this play) and can't know. */
static void who_falls_alone_ends_all_at_once(void **state)
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

/* Ranks that report nothing: there is the launcher's word. */
static void silence_is_not_success(void **state)
{
    (void)state;
    struct outcome outcome = run("mute", 1);
    assert_int_equal(outcome.status, STATUS_COMM);
    assert_non_null(strstr(outcome.error, "failed (exit 7)"));
}

/* Until that process keeps the signal for itself to read: it supervises. */
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

/* A signal for us, before the ranks are there: they are told when they are, and end in good order.
 */
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

/* Whoever started us had them blocked, and that is inherited: ranks hear them all the same. */
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

/* The handler that is in place before us has taken it. */
static void a_signal_before_all_stops_them(void **state)
{
    (void)state;
    struct outcome outcome = run_told("wait", 0, SIGTERM, false);
    assert_int_equal(outcome.status, STATUS_STOPPED);
    assert_string_equal(outcome.error, "");
}

/* All ranks in one process, without a launcher in between. */
static void one_process_is_watched_too(void **state)
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

/* The second Ctrl-C ends at once what is saved already. */
static void a_saved_run_is_saved_when_it_is_ended_at_once(void **state)
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

/* On a machine that is busy the two may be far apart after all: not three times. */
static void one_ctrl_c_that_comes_twice_is_one(void **state)
{
    (void)state;
    struct outcome outcome = {.error = "none"};
    for (int i = 0; i < 3 && *outcome.error; i++) {
        outcome = run_told("twice", 0, SIGTERM, true);
        assert_int_equal(outcome.status, STATUS_STOPPED);
    }
    assert_string_equal(outcome.error, ""); /* it was not terminated */
}

/* It gives up because of another, who hears nothing any more. */
static void a_hung_rank_is_ended_soon(void **state)
{
    (void)state;
    struct outcome outcome = run("hang", 1);
    assert_int_equal(outcome.status, STATUS_COMM);
    assert_non_null(strstr(outcome.error, "rank 1 does not answer"));
    assert_true(outcome.end.died);
    assert_true(outcome.seconds < SOON);
}

/* One is asked to stop while the others wait for it: that is a stop, and nobody died. */
static void a_stop_before_they_met_ends_all(void **state)
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
        cmocka_unit_test(all_end_well),
        cmocka_unit_test(a_failure_is_named),
        cmocka_unit_test(who_falls_alone_ends_all_at_once),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_broken_invariant_is_named),
        cmocka_unit_test(silence_is_not_success),
        cmocka_unit_test(a_signal_stops_all),
        cmocka_unit_test(a_blocked_signal_stops_all),
        cmocka_unit_test(a_signal_before_all_stops_them),
        cmocka_unit_test(one_process_is_watched_too),
        cmocka_unit_test(a_saved_run_is_saved_when_it_is_ended_at_once),
        cmocka_unit_test(one_ctrl_c_that_comes_twice_is_one),
        cmocka_unit_test(a_hung_rank_is_ended_soon),
        cmocka_unit_test(a_stop_before_they_met_ends_all),
        cmocka_unit_test(a_wrong_launcher_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
