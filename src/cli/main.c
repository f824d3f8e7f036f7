/* main -- the program `sifr`: finds the command, loads its options, runs it, and turns its status
 * into an exit code.
 *
 * This is the only file that exits the process, and the only one with process-wide mutable state:
 * the flags that signal handlers set. --help is handled before other arguments are parsed, so it
 * works whatever they are.
 *
 * Signals: SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP (unless it was ignored at the start, as
 * under nohup) ask a graceful command to stop, however often they arrive. Only a second SIGINT
 * terminates the process immediately (exit code 1, or 75 when everything is saved); the answer to
 * the first one says so. launch.c does the same for ranks that have a supervisor. Such a rank also
 * stops on these signals, and the whole job with it, except on SIGINT, SIGTERM or SIGHUP from its
 * parent, the launcher: those mean that another rank has died, which this rank will notice by
 * itself.
 *
 * The first signal also starts a watchdog: a run that makes no progress for run.stop_timeout after
 * it is terminated (exit code 4). The watchdog is a timer signal, so it does not depend on threads
 * that hang.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include "base/placement.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/rank_report.h"
#include "comm/launcher.h"

static const int stop_signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};
static volatile sig_atomic_t stop_signal;
static volatile sig_atomic_t stepping; /* enum cli_stepping */
static volatile sig_atomic_t saved;    /* the run is completely saved and about to exit */
static atomic_int interrupted_ms;      /* time of the first SIGINT; 0 = none yet */
static const struct cli *answers;      /* what signal handlers print, and where */
static bool is_joined;                 /* started by a launcher, which sends signals of its own */
static struct progress progress;       /* of this process */
static struct {
    atomic_int limit_ms; /* longest time without progress; 0 = no limit */
    atomic_bool runs;
    int rank;         /* for the report */
    uint64_t seen;    /* progress at the last check; used only by the handler, like the next */
    int silent_looks; /* checks without progress, in a row */
} watched;

/* --- signals -------------------------------------------------------------------------------- */

static _Noreturn void end_at_once(void)
{
    bool kept = saved;
    console_signal_line(answers->console, kept ? LOG_INFO : LOG_ERROR,
                        !kept                              ? CLI_ENDED
                        : stepping == CLI_STEPPING_UNSAVED ? CLI_ENDED_UNSAVED
                                                           : CLI_ENDED_SAVED);
    _exit(status_exit_code(kept ? STATUS_SAVED : STATUS_STOPPED));
}

/* --- the watchdog --------------------------------------------------------------------------- */

enum { WATCH_LOOKS = 4 }; /* checks within the time limit */

static int watch_limit_ms(void)
{
    int limit = atomic_load(&watched.limit_ms);
    long long expected = atomic_load(&progress.expected_ms);
    return expected > limit ? (int)(expected < INT_MAX ? expected : INT_MAX) : limit;
}

static void look_later(void)
{
    int ms = watch_limit_ms() / WATCH_LOOKS + 1;
    struct itimerval span = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    setitimer(ITIMER_REAL, &span, NULL);
}

/* Called after a signal to stop, any number of times, also from its handler. */
static void start_watch(void)
{
    if (atomic_load(&watched.limit_ms) == 0 || atomic_exchange(&watched.runs, true))
        return;
    watched.seen = progress_count(&progress);
    look_later();
}

/* Runs in a signal handler while other threads may hold any lock: must not take one. */
static _Noreturn void end_stalled(void)
{
    char line[RANK_ERROR_BYTES], doing[PROGRESS_BYTES];
    if (saved)
        end_at_once();
    progress_words(&progress, doing);
    snprintf(line, sizeof line,
             "no progress for %d s after the signal to stop%s%s: terminated without saving, so the "
             "steps since the last checkpoint are lost; rerun the same command to resume from it",
             watch_limit_ms() / 1000, *doing ? ", in " : "", doing);
    console_signal_line(answers->console, LOG_ERROR, line);
    if (rank_report_wanted())
        rank_report_end(watched.rank, STATUS_STALLED, line, true);
    _exit(status_exit_code(STATUS_STALLED));
}

static void on_look(int number)
{
    int before = errno;
    uint64_t now = progress_count(&progress);
    (void)number;
    watched.silent_looks = now == watched.seen ? watched.silent_looks + 1 : 0;
    watched.seen = now;
    if (watched.silent_looks >= WATCH_LOOKS)
        end_stalled();
    look_later();
    errno = before;
}

static void watch(struct cli *cli, int rank, double seconds)
{
    struct sigaction action = {.sa_handler = on_look, .sa_flags = SA_RESTART};
    sigset_t looks;
    (void)cli;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&looks);
    sigaddset(&looks, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &looks, NULL);
    watched.rank = rank;
    atomic_store(&watched.limit_ms, (int)(1e3 * seconds));
    if (stop_signal)
        start_watch();
}

/* --- handlers ------------------------------------------------------------------------------- */

/* Two threads may be in here at once. The clock wraps around, so only differences count. */
static void on_interrupt(void)
{
    struct timespec clock = {0};
    clock_gettime(CLOCK_MONOTONIC, &clock);
    int first = 0, now = (int)(clock.tv_sec % 1000000 * 1000 + clock.tv_nsec / 1000000) + 1;
    if (atomic_compare_exchange_strong(&interrupted_ms, &first, now)) {
        char line[256];
        snprintf(line, sizeof line, "%s%s", answers->stop_words[stepping], CLI_AGAIN);
        console_signal_line(answers->console, LOG_INFO, line);
    } else if (abs(now - first) >= CLI_SAME_CTRL_C_MS) {
        end_at_once();
    }
}

/* The handler answers immediately, because a step may take minutes. It does not answer SIGTERM
 * under a launcher: mpirun sends SIGTERM to the ranks of a failed job, and train_view.c explains
 * it. */
static void on_signal(int number)
{
    int before = errno;
    if (number == SIGINT) {
        on_interrupt();
    } else if (!stop_signal && !is_joined) {
        console_signal_line(answers->console, LOG_INFO, answers->stop_words[stepping]);
    }
    if (stop_signal != SIGINT) /* a supervisor that starts later counts it as the first Ctrl-C */
        stop_signal = number;
    start_watch();
    errno = before;
}

/* For a rank with a supervisor. The supervisor answers, and terminates the job on a second
 * SIGINT. */
static void on_rank_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    int before = errno;
    bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP;
    if (!ends || info->si_pid != getppid()) {
        stop_signal = number;
        start_watch();
    }
    errno = before;
}

/* For commands that have nothing to save. */
static void on_end_signal(int number)
{
    (void)number;
    end_at_once();
}

/* nohup ignores SIGHUP for its child, and that must hold for the child's ranks too. */
static bool is_left_ignored(int number)
{
    struct sigaction action;
    if (number != SIGHUP)
        return false;
    if (rank_report_wanted() && getenv(RANK_NOHUP_VARIABLE) != NULL)
        signal(SIGHUP, SIG_IGN);
    return sigaction(SIGHUP, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void catch_signals(const struct cli *cli)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct launcher launcher;
    answers = cli;
    is_joined = launcher_find(&launcher);
    sigemptyset(&action.sa_mask);
    if (rank_report_wanted()) {
        action.sa_sigaction = on_rank_signal;
        action.sa_flags |= SA_SIGINFO;
    }
    sigset_t listened;
    sigemptyset(&listened);
    for (size_t i = 0; i < sizeof stop_signals / sizeof *stop_signals; i++) {
        if (is_left_ignored(stop_signals[i]))
            continue;
        sigaction(stop_signals[i], &action, NULL);
        sigaddset(&listened, stop_signals[i]);
    }
    sigprocmask(SIG_UNBLOCK, &listened, NULL); /* the parent may have blocked some */
    signal(SIGPIPE, SIG_IGN);                  /* a run must survive the reader of its output */
}

/* Print a line when a signal terminates the command. Ranks under a launcher stay silent. */
static void say_when_ended(const struct cli *cli)
{
    struct launcher launcher;
    struct sigaction action = {.sa_handler = on_end_signal};
    if (launcher_find(&launcher))
        return;
    answers = cli;
    sigfillset(&action.sa_mask); /* print the line once */
    for (size_t i = 0; i < sizeof stop_signals / sizeof *stop_signals; i++) {
        if (!is_left_ignored(stop_signals[i]))
            sigaction(stop_signals[i], &action, NULL);
    }
}

/* --- one command ---------------------------------------------------------------------------- */

static bool asks_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* --help wins over mistakes in other arguments, but not where it is the value of another flag. */
static bool help_is_asked(struct options *options, int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (asks_help(argv[i]))
            return true;
        i += options_takes_next(options, argv[i]) && i + 1 < argc &&
             strncmp(argv[i + 1], "--", 2) != 0;
    }
    return false;
}

static enum status run_command(struct cli *cli, const struct command *command, int argc,
                               char *const *argv)
{
    enum status st;
    struct command_call call;
    const char **words;
    int word_count = 0;
    TRY(command_open(cli->env, command, &call));
    if (help_is_asked(call.options, argc, argv)) {
        st = help_command(cli, &call);
        goto undo_call;
    }
    TRY_OR(undo_call, mem_alloc_array(cli->env, MEM_OTHER, "arguments", (size_t)argc + 1,
                                      sizeof *words, &words));
    bool warns = !rank_report_wanted(); /* else the supervisor has warned */
    if (warns)
        options_warn_environment(call.options);
    TRY_OR(undo_words, command_load(cli->env, &call, argc, argv, words, &word_count));
    if (warns)
        options_warn_removed(call.options);
    if (call.general.help) {
        st = help_command(cli, &call);
    } else {
        cli->console->quiet = call.general.quiet;
        cli->stop_words = command->stop_words;
        if (command->stop_words)
            catch_signals(cli);
        else if (command->says_end)
            say_when_ended(cli);
        st = command->run(cli, call.options, call.settings, words, word_count);
    }
undo_words:
    mem_free(cli->env, words);
undo_call:
    command_close(cli->env, &call);
    return st;
}

/* --- commands that print a page ------------------------------------------------------------- */

static enum status run_help(struct cli *cli, const char *name)
{
    struct command_call call;
    if (!name)
        return help_overview(cli);
    const struct command *command = command_find(name);
    const struct page_command *page = page_command_find(name);
    if (!command)
        return page ? help_page(cli, page) : command_unknown(cli->env, name);
    TRY(command_open(cli->env, command, &call));
    enum status st = help_command(cli, &call);
    command_close(cli->env, &call);
    return st;
}

/* An early guess, before the command and its flags are known. */
static bool verbose_is_asked(int argc, char *const *argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--verbose") == 0 || strcmp(argv[i], "-v") == 0)
            return true;
    }
    return false;
}

static enum status dispatch(struct cli *cli, int argc, char *const *argv)
{
    const char *word = argc > 1 ? argv[1] : "help", *next = argc > 2 ? argv[2] : NULL;
    const struct command *command = command_find(word);
    if (command)
        return run_command(cli, command, argc - 2, argv + 2);
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
        return help_version(cli);
    if (asks_help(word) || strcmp(word, "help") == 0)
        return run_help(cli, next && asks_help(next) ? NULL : next);
    const struct page_command *page = page_command_find(word);
    if (!page)
        return command_unknown(cli->env, word);
    if (next && asks_help(next))
        return help_page(cli, page);
    if (argc > 2 + page->most_words)
        return FAIL(cli->env, USAGE, "unexpected argument '%s'; usage: sifr %s",
                    argv[2 + page->most_words], page->usage);
    if (strcmp(word, "completion") == 0)
        return next && strcmp(next, "bash") == 0
                   ? help_completion_bash(cli)
                   : FAIL(cli->env, USAGE,
                          "completion supports only bash: source <(sifr completion bash)");
    if (!next)
        return help_man(cli);
    if (strcmp(next, "--markdown") == 0)
        return help_reference(cli);
    return FAIL(cli->env, USAGE, "unexpected argument '%s'; usage: sifr %s", next, page->usage);
}

/* A file opened later must not become descriptor 0, 1 or 2: output would be written to it. */
static void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(status_exit_code(STATUS_IO));
    }
}

static void quit(struct cli *cli, enum status st)
{
    if (rank_report_wanted())
        rank_report_end(0, st, log_first_error(cli->env->log), true);
    console_finish(cli->console);
    _exit(status_exit_code(st));
}

int main(int argc, char **argv)
{
    open_standard_files();
    signal(SIGXFSZ,
           SIG_IGN); /* a file above the size limit fails the write instead of the process */
    placement_prepare();
    struct console console;
    struct env env;
    struct cli cli = {.env = &env,
                      .console = &console,
                      .stop = &stop_signal,
                      .stepping = &stepping,
                      .saved = &saved,
                      .argc = argc - 1,
                      .argv = argv + 1,
                      .watch = watch,
                      .quit = quit};
    struct launcher launcher;
    bool launched = launcher_find(&launcher);
    bool verbose = verbose_is_asked(argc, argv);
    console_open(&console, launched ? launcher.rank : 0,
                 launched && strcmp(launcher.name, "srun") != 0, verbose);
    if (env_create(&env, console_log, &console, verbose ? LOG_DEBUG : LOG_INFO, 1) != STATUS_OK) {
        console_log(&console, LOG_ERROR, "out of memory");
        return status_exit_code(STATUS_MEMORY);
    }
    const struct progress_view view = {console_show_task, console_clear_task, &console};
    env.progress = &progress;
    env.view = &view;
    enum status st = dispatch(&cli, argc, argv);
    int write_error = console_finish(&console);
    if (write_error && st == STATUS_OK)
        st = FAIL(&env, IO, "cannot write to the standard output: %s", strerror(write_error));
    env_destroy(&env);
    return status_exit_code(st);
}
