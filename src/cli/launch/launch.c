/* launch --
 *
 *     supervisor -- mpirun (a process group of its own) -- ranks
 *          ^------- stdout and stderr, two pipes ----------'
 *          ^------- start and end of each rank: rank_report.h
 *
 * If all ranks are one process, that process takes the place of mpirun.
 *
 * stdout is forwarded as it comes, except for a final banner. On stderr, lines that begin with
 * "sifr: " come from ranks and are forwarded; the others come from the launcher and are held back:
 * they are printed if nothing else explains how the job ended. Signals are read from a descriptor,
 * so nothing happens inside a handler.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/host.h"
#include "cli/launch/launch_impl.h"
#include "comm/launcher.h"

static const double TICK = 0.05;        /* seconds between two checks */
static const double START_SECONDS = 10; /* after the first report: then a signal no longer waits for
                                           ranks without one, which are on other machines */
static const double SILENT_SECONDS = 60; /* the same from the start, if no rank reports */
static const double END_SECONDS = 8;     /* for the other ranks to end after the first failure */
static const double HUNG_SECONDS = 1;    /* the same, if one rank does not respond */
static const double FALL_SECONDS = 1;    /* the same, if the failed rank had not joined: the others
                                            cannot learn of its failure */
static const double TERM_SECONDS = 3;    /* from SIGTERM to SIGKILL of the launcher */
static const double GONE_SECONDS = 10;   /* from SIGKILL to the end of the last rank */
enum { KEPT_BYTES = 1 << 16 };

int launch_local_ranks(int ranks)
{
    int nodes = launcher_slurm_nodes();
    return (ranks + nodes - 1) / nodes;
}

/* --- start ---------------------------------------------------------------------------------- */

static void say_choice(const struct job *job)
{
    const struct launch_order *order = job->order;
    int cpus = machine_cpus();
    bool crowded = launch_local_ranks(order->ranks) * order->threads > cpus;
    bool is_root = geteuid() == 0 && job->launcher.kind == MPI_KIND_OPEN;
    char notes[96] = "";
    if (order->alone) {
        log_info(job->cli->env, "launch: one supervised process");
        return;
    }
    if (crowded)
        snprintf(notes, sizeof notes, " (oversubscribed on %d CPU%s%s)", cpus, cpus == 1 ? "" : "s",
                 is_root ? ", as root" : "");
    else if (is_root)
        snprintf(notes, sizeof notes, " (as root)");
    log_info(job->cli->env, "launch: %d ranks x %d thread%s with %s%s", order->ranks,
             order->threads, order->threads == 1 ? "" : "s", job->launcher.mpi, notes);
}

/* A blocked signal is delivered to a signalfd even if it is ignored, as SIGHUP is under nohup. */
static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static _Noreturn void become_launcher(struct job *job, int out, int err, const sigset_t *taken)
{
    int input = job->order->input ? job->order->input : open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(input, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, taken, NULL); /* even if our parent blocked them: ranks need them */
    setenv(RANK_REPORT_VARIABLE, rank_book_address(job->book), 1);
    if (is_ignored(SIGHUP)) /* a launcher may reset that for its ranks */
        setenv(RANK_NOHUP_VARIABLE, "1", 1);
    else
        unsetenv(RANK_NOHUP_VARIABLE);
    /* The output of rank 0 goes to our terminal, if there is one. */
    const struct console *console = job->cli->console;
    char terminal[64];
    snprintf(terminal, sizeof terminal, "%d %d %d %d", console->out_terminal, console->out_colour,
             console->err_colour, console->width);
    setenv(CONSOLE_VARIABLE, terminal, 1);
    if (job->order->alone)
        execv(job->order->argv[0], job->order->argv);
    else
        mpi_launcher_exec(&job->launcher, job->order->ranks, job->order->argv);
    dprintf(STDERR_FILENO, "cannot start %s: %s\n", job->launcher.path, strerror(errno));
    _exit(127);
}

static enum status start(struct job *job, const sigset_t *taken)
{
    struct env *env = job->cli->env;
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0)
        return FAIL(env, IO, "cannot create a pipe: %s", strerror(errno));
    if (pipe2(err, O_CLOEXEC) != 0) {
        close(out[0]);
        close(out[1]);
        return FAIL(env, IO, "cannot create a pipe: %s", strerror(errno));
    }
    fflush(NULL);
    job->started = clock_seconds();
    job->pid = fork();
    if (job->pid == 0)
        become_launcher(job, out[1], err[1], taken);
    job->out = out[0];
    job->err = err[0];
    close(out[1]);
    close(err[1]);
    return job->pid > 0 ? STATUS_OK : FAIL(env, IO, "cannot fork: %s", strerror(errno));
}

/* --- output of the ranks and the launcher --------------------------------------------------- */

static void take_line(struct job *job, const char *line)
{
    bool ours = strncmp(line, "sifr: ", 6) == 0;
    struct text *text = ours ? &job->said : &job->kept;
    if (text->bytes + strlen(line) < KEPT_BYTES) /* keep the beginning, where the cause is */
        text_printf(text, "%s\n", line);
    if (!ours && !job->order->verbose)
        return;
    fflush(stdout);
    console_pass_errors(job->cli->console, line);
    fputc('\n', stderr);
}

static void take_lines(struct job *job, const char *data, size_t bytes)
{
    struct text *line = &job->line;
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != '\n') {
            text_add_bytes(line, data + i, 1);
            continue;
        }
        take_line(job, text_string(line));
        text_clear(line);
    }
}

/* The bytes of `data` that come from ranks: Hydra prints its banner about a failed job on
 * stdout. */
static size_t ranks_part(struct job *job, const char *data, size_t bytes)
{
    static const char words[] = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION";
    const char *found = memmem(data, bytes, words, sizeof words - 1);
    const char *cut = job->last_words ? data : data + bytes;
    if (found && !job->last_words) {
        job->last_words = true;
        cut = found; /* ... and the line of "=" above it */
        while (cut > data && (cut[-1] == '=' || cut[-1] == '\n'))
            cut--;
    }
    if (cut < data + bytes)
        text_printf(&job->kept, "%.*s", (int)(data + bytes - cut), cut);
    return (size_t)(cut - data);
}

/* Read once from a pipe; at its end close it and set the descriptor to -1. */
static void drain(struct job *job, int *pipe_end)
{
    char block[1 << 14];
    ssize_t bytes = read(*pipe_end, block, sizeof block);
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (bytes <= 0) {
        close(*pipe_end);
        *pipe_end = -1;
    } else if (pipe_end == &job->out) {
        console_pass(job->cli->console, block, ranks_part(job, block, (size_t)bytes));
    } else {
        take_lines(job, block, (size_t)bytes);
    }
}

/* --- signals -------------------------------------------------------------------------------- */

static void kill_job(struct job *job)
{
    if (job->ending == 0)
        kill(job->pid, job->order->alone ? SIGKILL : SIGTERM);
    job->ending = job->ending ? job->ending : clock_seconds();
}

/* Has rank 0 begun its first step? On another machine it cannot report, and is assumed to have
 * begun after START_SECONDS. */
static bool is_stepping(struct job *job, double now)
{
    rank_book_update(job->book);
    const struct rank_entry *first = rank_book_entry(job->book, 0);
    return first->stepping || (first->pid == 0 && now - job->started > START_SECONDS);
}

/* Does what the handler in main.c does without a supervisor, with the same messages. */
static void take_signal(struct job *job)
{
    struct signalfd_siginfo info;
    double now = clock_seconds();
    if (read(job->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    if (!job->order->stops) {
        job->quit = true;
        kill_job(job);
        return;
    }
    int stepping = !is_stepping(job, now) ? CLI_NOT_STEPPING
                   : job->order->saves    ? CLI_STEPPING
                                          : CLI_STEPPING_UNSAVED;
    const char *words = job->cli->stop_words[stepping];
    if (info.ssi_signo == SIGINT) {
        if (job->interrupted == 0) {
            log_info(job->cli->env, "%s%s", words, CLI_AGAIN);
            job->interrupted = now;
        } else if (1e3 * (now - job->interrupted) >= CLI_SAME_CTRL_C_MS) {
            job->quit = true;
            kill_job(job);
        }
    } else if (!job->stop_wanted) {
        log_info(job->cli->env, "%s", words);
    }
    job->stop_wanted = true;
}

/* Send SIGUSR1 when all ranks have started: it would kill a rank without a handler. mpirun forwards
 * it to all machines; ranks of this machine also get it directly, and receiving it twice is
 * harmless. */
static void send_stop(struct job *job)
{
    int there = rank_book_started(job->book);
    double now = clock_seconds();
    if (there > 0 && job->first_word == 0)
        job->first_word = now;
    bool ready =
        there == launch_reporters(job->order) ||
        (there > 0 ? now - job->first_word > START_SECONDS : now - job->started > SILENT_SECONDS);
    if (!job->stop_wanted || job->stop_sent || !ready || !job->order->stops)
        return;
    kill(job->pid, SIGUSR1);
    if (!job->order->alone)
        rank_book_signal(job->book, SIGUSR1);
    job->stop_sent = true;
}

/* --- watching the job ----------------------------------------------------------------------- */

/* A rank reports its end as soon as it gives up, before it cleans up. So if ranks give up because
 * of another, that other is the one without a report. */
static bool one_hangs(const struct job *job, const struct rank_entry *verdict)
{
    return verdict->ended && verdict->status == STATUS_COMM && rank_book_silent(job->book) > 0;
}

/* Seconds that the other ranks have to end. */
static double patience(const struct job *job, const struct rank_entry *verdict)
{
    if (verdict->ended && !verdict->met)
        return FALL_SECONDS;
    return one_hangs(job, verdict) ? HUNG_SECONDS : END_SECONDS;
}

static void look(struct job *job)
{
    double now = clock_seconds();
    rank_book_update(job->book);
    send_stop(job);
    const struct rank_entry *verdict = rank_book_verdict(job->book);
    bool in_order = verdict && rank_entry_stopped(verdict) && verdict->met;
    if (verdict && !in_order && job->failed == 0)
        job->failed = now;
    if (job->failed > 0 && now - job->failed > patience(job, verdict)) {
        if (one_hangs(job, verdict)) /* only SIGKILL ends it for certain */
            rank_book_signal(job->book, SIGKILL);
        kill_job(job);
    }
    if (job->ending > 0 && now - job->ending > TERM_SECONDS) {
        kill(-job->pid, SIGKILL);
        rank_book_signal(job->book, SIGKILL);
    }
    job->done = waitpid(job->pid, &job->wait_status, WNOHANG) == job->pid;
}

static void wait_for_news(struct job *job)
{
    struct pollfd watched[] = {{.fd = job->signals, .events = POLLIN},
                               {.fd = job->out, .events = POLLIN},
                               {.fd = job->err, .events = POLLIN}};
    if (poll(watched, 3, (int)(1000 * TICK)) <= 0)
        return;
    if (watched[0].revents)
        take_signal(job);
    if (watched[1].revents)
        drain(job, &job->out);
    if (watched[2].revents)
        drain(job, &job->err);
}

/* A rank that is still exiting holds the lock of the run folder. */
static void wait_for_ends(struct job *job)
{
    double limit = clock_seconds() + GONE_SECONDS;
    rank_book_update(job->book);
    rank_book_signal(job->book, SIGKILL);
    while (rank_book_alive(job->book) > 0 && clock_seconds() < limit) {
        poll(NULL, 0, (int)(1000 * TICK / 5));
        rank_book_update(job->book);
    }
}

/* Watch until mpirun has ended and its pipes are empty. A process that inherited the pipes may hold
 * them open, so wait at most half a second for their end. */
static void watch(struct job *job)
{
    while (!job->done) {
        wait_for_news(job);
        look(job);
    }
    double limit = clock_seconds() + 0.5;
    while ((job->out >= 0 || job->err >= 0) && clock_seconds() < limit)
        wait_for_news(job);
    if (job->line.bytes)
        take_line(job, text_string(&job->line));
    wait_for_ends(job);
}

/* --- the whole job -------------------------------------------------------------------------- */

static enum status supervise(struct job *job, struct launch_end *end)
{
    sigset_t taken, before;
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&taken, numbers[i]);
    if (!is_ignored(SIGHUP))
        sigaddset(&taken, SIGHUP);
    sigprocmask(SIG_BLOCK, &taken, &before);
    job->stop_wanted = *job->cli->stop != 0; /* by an earlier signal */
    job->interrupted = *job->cli->stop == SIGINT ? clock_seconds() : 0;
    job->signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    enum status st = start(job, &taken);
    if (st == STATUS_OK) {
        watch(job);
        st = launch_outcome(job, end);
    }
    if (job->out >= 0)
        close(job->out);
    if (job->err >= 0)
        close(job->err);
    close(job->signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return st;
}

enum status launch_run(struct cli *cli, const struct launch_order *order, struct launch_end *end)
{
    struct job job = {.cli = cli, .order = order, .out = -1, .err = -1};
    *end = (struct launch_end){0};
    if (order->alone) /* needs no mpirun: the program itself is started */
        snprintf(job.launcher.path, sizeof job.launcher.path, "%s", order->argv[0]);
    else
        TRY(mpi_launcher_find(cli->env, &job.launcher));
    TRY(rank_book_create(cli->env, launch_reporters(order), &job.book));
    text_init(&job.line, cli->env);
    text_init(&job.said, cli->env);
    text_init(&job.kept, cli->env);
    if (!order->quiet)
        say_choice(&job);
    enum status st = supervise(&job, end);
    text_free(&job.kept);
    text_free(&job.said);
    text_free(&job.line);
    rank_book_destroy(job.book);
    return st;
}
