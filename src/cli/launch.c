/* launch -- see the header.
 *
 *     supervisor -- mpirun (a process group of its own) -- ranks
 *          ^------- stdout and stderr, two pipes ----------'
 *          ^------- start and end of each rank: rank_report.h
 *
 * stdout is handed on as it comes, up to a banner. Of stderr, lines that begin with "sifr: " are
 * ours and are handed on; the others are the launcher's and are kept back: they are shown when
 * nothing else explains how the job ended. Signals are taken from a descriptor, so nothing
 * happens inside a handler.
 */
#include "cli/launch.h"
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
#include "cli/mpi_launcher.h"
#include "cli/rank_report.h"

static const double TICK = 0.05;        /* seconds between looks */
static const double QUIT_SECONDS = 5;   /* between two SIGINTs that end all at once */
static const double START_SECONDS = 10; /* after which a signal is not kept for late ranks */
static const double END_SECONDS = 8;    /* for the others to end after the first failure */
static const double FALL_SECONDS =
    1; /* the same, where they can't know: they fail alike, or wait */
static const double TERM_SECONDS = 3; /* from SIGTERM to SIGKILL for the launcher */
enum { KEPT_BYTES = 1 << 16 };

struct job {
    struct cli *cli;
    const struct launch_order *order;
    struct mpi_launcher launcher;
    struct rank_book *book;
    pid_t pid;                   /* of mpirun */
    int out, err, signals;       /* descriptors; -1 = at its end */
    bool last_words;             /* of the launcher, on stdout: the ranks are dead */
    struct text line;            /* of stderr, not complete */
    struct text said, kept;      /* ours, shown; the launcher's, kept back */
    double started;              /* when */
    double interrupted;          /* the last SIGINT; 0 = none */
    double failed;               /* when a failure was first seen; 0 = none */
    double ending;               /* when mpirun was told to end; 0 = it was not */
    bool stop_wanted, stop_sent; /* SIGUSR1 */
    bool quit;                   /* by a second SIGINT */
    bool done;                   /* mpirun has ended, as `wait_status` says */
    int wait_status;
};

int launch_local_ranks(int ranks)
{
    const char *text = getenv("SLURM_JOB_ID") ? getenv("SLURM_NNODES") : NULL;
    int nodes = text ? atoi(text) : 1;
    return nodes > 1 ? (ranks + nodes - 1) / nodes : ranks;
}

/* --- start ---------------------------------------------------------------------------------- */

static void say_choice(const struct job *job)
{
    const struct launch_order *order = job->order;
    int cpus = env_available_threads();
    bool crowded = launch_local_ranks(order->ranks) * order->threads > cpus;
    bool is_root = geteuid() == 0 && job->launcher.kind == MPI_KIND_OPEN;
    char notes[96] = "";
    if (crowded)
        snprintf(notes, sizeof notes, " (oversubscribed on %d CPU%s%s)", cpus, cpus == 1 ? "" : "s",
                 is_root ? ", as root" : "");
    else if (is_root)
        snprintf(notes, sizeof notes, " (as root)");
    log_info(job->cli->env, "launch: %d ranks x %d thread%s with %s%s", order->ranks,
             order->threads, order->threads == 1 ? "" : "s", job->launcher.mpi, notes);
}

/* What rank 0 prints ends on our terminal, if there is one. */
static void describe_console(const struct console *console)
{
    char text[64];
    snprintf(text, sizeof text, "%d %d %d %d", console->out_terminal, console->out_colour,
             console->err_colour, console->width);
    setenv(CONSOLE_VARIABLE, text, 1);
}

static _Noreturn void become_launcher(struct job *job, int out, int err, const sigset_t *mask)
{
    int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    setenv(RANK_REPORT_VARIABLE, rank_book_address(job->book), 1);
    describe_console(job->cli->console);
    mpi_launcher_exec(&job->launcher, job->order->ranks, job->order->argv);
    dprintf(STDERR_FILENO, "cannot start %s: %s\n", job->launcher.path, strerror(errno));
    _exit(127);
}

static enum status start(struct job *job, const sigset_t *mask)
{
    struct env *env = job->cli->env;
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0)
        return FAIL(env, IO, "cannot make a pipe: %s", strerror(errno));
    if (pipe2(err, O_CLOEXEC) != 0) {
        close(out[0]);
        close(out[1]);
        return FAIL(env, IO, "cannot make a pipe: %s", strerror(errno));
    }
    fflush(NULL);
    job->started = clock_seconds();
    job->pid = fork();
    if (job->pid == 0)
        become_launcher(job, out[1], err[1], mask);
    job->out = out[0];
    job->err = err[0];
    close(out[1]);
    close(err[1]);
    return job->pid > 0 ? STATUS_OK : FAIL(env, IO, "cannot fork: %s", strerror(errno));
}

/* --- what the ranks and the launcher say ---------------------------------------------------- */

/* Keep the beginning: that is where causes stand. */
static void keep(struct text *text, const char *line)
{
    if (text->bytes + strlen(line) < KEPT_BYTES)
        text_printf(text, "%s\n", line);
}

static void take_line(struct job *job, const char *line)
{
    bool ours = strncmp(line, "sifr: ", 6) == 0;
    keep(ours ? &job->said : &job->kept, line);
    if (!ours && !job->order->verbose)
        return;
    fflush(stdout);
    fprintf(stderr, "%s\n", line);
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

/* What of `data` is the ranks': Hydra's last words on a job that broke come on stdout as well. */
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

/* Read once from a pipe; at its end the descriptor becomes -1. */
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
        console_write(job->cli->console, block, ranks_part(job, block, (size_t)bytes));
    } else {
        take_lines(job, block, (size_t)bytes);
    }
}

/* --- signals -------------------------------------------------------------------------------- */

static void end_at_once(struct job *job)
{
    if (job->ending == 0)
        kill(job->pid, SIGTERM);
    job->ending = job->ending ? job->ending : clock_seconds();
}

static void take_signal(struct job *job)
{
    struct signalfd_siginfo info;
    double now = clock_seconds();
    if (read(job->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    if (info.ssi_signo == SIGINT) {
        if (job->interrupted > 0 && now - job->interrupted <= QUIT_SECONDS) {
            job->quit = true;
            end_at_once(job);
        }
        job->interrupted = now;
    }
    job->stop_wanted = true;
}

/* A rank that has not started does not yet know what SIGUSR1 means, and would end by it. */
static void send_stop(struct job *job)
{
    bool ready = rank_book_started(job->book) == job->order->ranks ||
                 clock_seconds() - job->started > START_SECONDS;
    if (!job->stop_wanted || job->stop_sent || !ready)
        return;
    kill(job->pid, SIGUSR1);
    job->stop_sent = true;
}

/* --- the watch ------------------------------------------------------------------------------ */

static void look(struct job *job)
{
    double now = clock_seconds();
    rank_book_update(job->book);
    send_stop(job);
    const struct rank_entry *verdict = rank_book_verdict(job->book);
    bool stopped =
        verdict && (verdict->status == STATUS_STOPPED || verdict->status == STATUS_SAVED);
    if (verdict && (verdict->gone || !stopped) && job->failed == 0)
        job->failed = now;
    bool unmet = verdict && verdict->ended && !verdict->met;
    if (job->failed > 0 && now - job->failed > (unmet ? FALL_SECONDS : END_SECONDS))
        end_at_once(job);
    if (job->ending > 0 && now - job->ending > TERM_SECONDS) {
        kill(-job->pid, SIGKILL);
        rank_book_kill(job->book);
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

/* Until mpirun has ended and its pipes are empty; somebody who inherited them may hold them open,
 * and is not waited for. */
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
    rank_book_update(job->book);
    rank_book_kill(job->book);
}

/* --- how it ended --------------------------------------------------------------------------- */

/* The signal that ended a rank, as the launcher says; 0 = it speaks of another rank, or of none. */
static int named_signal(const struct job *job, const struct rank_entry *rank)
{
    bool is_open = job->launcher.kind == MPI_KIND_OPEN;
    const char *said = text_string(&job->kept);
    const char *words = is_open ? "exited on signal " : "(signal ";
    char who[64];
    if (is_open)
        snprintf(who, sizeof who, "process rank %d with PID", rank->rank);
    else
        snprintf(who, sizeof who, "=   PID %d RUNNING", (int)rank->pid);
    said = strstr(said, who);
    said = said ? strstr(said, words) : NULL;
    return said ? atoi(said + strlen(words)) : 0;
}

static void show_kept(const struct job *job)
{
    if (!job->order->verbose && job->kept.bytes)
        fprintf(stderr, "%s", text_string(&job->kept));
}

static enum status killed(const struct job *job, const struct rank_entry *rank)
{
    int number = named_signal(job, rank);
    if (number != SIGKILL && number != SIGTERM) /* it may have said why, in its own way */
        show_kept(job);
    if (number == 0)
        return FAIL(job->cli->env, COMM,
                    "rank %d (pid %d) was killed, or ended without a word; the others were ended",
                    rank->rank, (int)rank->pid);
    return FAIL(job->cli->env, COMM,
                "rank %d (pid %d) was killed by signal %d%s; the others were ended", rank->rank,
                (int)rank->pid, number,
                number == SIGKILL ? " (by hand, or for want of memory: see dmesg)" : "");
}

/* Open MPI's word on a rank of another machine, which is not in the book: what others say is of what
 * came of it. */
static bool killed_elsewhere(const struct job *job, char *words, size_t bytes)
{
    int rank, pid, number;
    char host[64];
    const char *said = strstr(text_string(&job->kept), "process rank ");
    if (!said || sscanf(said, "process rank %d with PID %d on node %63s exited on signal %d", &rank,
                        &pid, host, &number) != 4)
        return false;
    if (rank < 0 || rank >= job->order->ranks || rank_book_entry(job->book, rank)->pid != 0)
        return false;
    snprintf(words, bytes, "rank %d (pid %d on %s) was killed by signal %d", rank, pid, host,
             number);
    return true;
}

/* By somebody else: ranks end when it does. */
static bool launcher_was_killed(const struct job *job)
{
    return WIFSIGNALED(job->wait_status) && job->ending == 0;
}

/* Ranks that give up because of another may each have found it out, and say it of themselves. */
static enum status failed(const struct job *job, const struct rank_entry *rank)
{
    if (rank->status == STATUS_COMM && strstr(text_string(&job->said), "error: "))
        return rank->status;
    if (*rank->error && !strstr(text_string(&job->said), rank->error))
        return log_fail(job->cli->env->log, rank->status, __FILE__, __LINE__, "rank %d: %s",
                        rank->rank, rank->error);
    return rank->status;
}

/* No rank has told of a failure, but the launcher has. */
static enum status launcher_failed(const struct job *job)
{
    int code = WIFEXITED(job->wait_status) ? WEXITSTATUS(job->wait_status) : 1;
    bool explained = strstr(text_string(&job->said), "error: ") != NULL;
    for (int st = STATUS_USAGE; explained && st <= STATUS_FIT; st++) {
        if (status_exit_code((enum status)st) == code)
            return (enum status)st;
    }
    if (explained)
        return STATUS_COMM;
    show_kept(job);
    return FAIL(job->cli->env, COMM, "%s failed (%s %d)", job->launcher.path,
                WIFEXITED(job->wait_status) ? "exit" : "signal",
                WIFEXITED(job->wait_status) ? code : WTERMSIG(job->wait_status));
}

static enum status outcome(const struct job *job)
{
    const struct rank_entry *verdict = rank_book_verdict(job->book);
    bool unexplained = !verdict || verdict->gone;
    char words[160];
    if (job->quit)
        return FAIL(job->cli->env, STOPPED, "ended at once");
    if (unexplained && killed_elsewhere(job, words, sizeof words))
        return FAIL(job->cli->env, COMM, "%s; the others were ended", words);
    if (unexplained && launcher_was_killed(job))
        return FAIL(job->cli->env, COMM,
                    "%s (pid %d) was killed by signal %d; the ranks ended with it",
                    job->launcher.path, (int)job->pid, WTERMSIG(job->wait_status));
    if (verdict)
        return verdict->gone ? killed(job, verdict) : failed(job, verdict);
    return job->wait_status == 0 ? STATUS_OK : launcher_failed(job);
}

/* --- all of it ------------------------------------------------------------------------------ */

/* Under nohup: a signal that is blocked comes through a signalfd though it is ignored. */
static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static enum status supervise(struct job *job)
{
    sigset_t taken, before;
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&taken, numbers[i]);
    if (!is_ignored(SIGHUP))
        sigaddset(&taken, SIGHUP);
    sigprocmask(SIG_BLOCK, &taken, &before);
    job->stop_wanted = *job->cli->stop != 0; /* by a signal that came before this */
    job->interrupted = *job->cli->stop == SIGINT ? clock_seconds() : 0;
    job->signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    enum status st = start(job, &before);
    if (st == STATUS_OK) {
        watch(job);
        st = outcome(job);
    }
    if (job->out >= 0)
        close(job->out);
    if (job->err >= 0)
        close(job->err);
    close(job->signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return st;
}

enum status launch_run(struct cli *cli, const struct launch_order *order)
{
    struct job job = {.cli = cli, .order = order, .out = -1, .err = -1};
    TRY(mpi_launcher_find(cli->env, &job.launcher));
    TRY(rank_book_create(cli->env, order->ranks, &job.book));
    text_init(&job.line, cli->env);
    text_init(&job.said, cli->env);
    text_init(&job.kept, cli->env);
    if (!order->quiet)
        say_choice(&job);
    enum status st = supervise(&job);
    text_free(&job.kept);
    text_free(&job.said);
    text_free(&job.line);
    rank_book_destroy(job.book);
    return st;
}
