/* bench_ranks -- starts or joins ranks. A rank that is a process runs this program with the same
 * arguments and --threads. */
#include "cli/bench/bench.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/host.h"
#include "cli/launch/launch.h"
#include "cli/rank_report.h"

enum { PATH_BYTES = 4096 };

enum status bench_ranks_find(struct cli *cli, int64_t n, int64_t threads, struct bench_ranks *ranks)
{
    TRY(ranks_find(cli->env, n, ranks->backend, &ranks->plan));
    cli->env->threads = threads > 0            ? (int)threads
                        : ranks->plan.size > 1 ? ranks->plan.threads
                                               : machine_threads(0);
    return STATUS_OK;
}

static enum status start_ranks(struct cli *cli, const struct bench_ranks *ranks, char **argv)
{
    char program[PATH_BYTES], threads[32];
    struct launch_end end = {0};
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes < 0)
        return FAIL(cli->env, IO, "cannot find the executable of sifr: %s", strerror(errno));
    program[bytes] = 0;
    snprintf(threads, sizeof threads, "--threads=%d", cli->env->threads);
    argv[0] = program;
    argv[1] = cli->argv[0];
    argv[2] = threads; /* a --threads of the user has the same value and follows */
    for (int i = 1; i < cli->argc; i++)
        argv[i + 2] = cli->argv[i];
    struct launch_order order = {.ranks = ranks->plan.size,
                                 .threads = cli->env->threads,
                                 .argv = argv,
                                 .quiet = ranks->quiet,
                                 .verbose = cli->console->verbose};
    enum status st = launch_run(cli, &order, &end);
    if (*end.words && !end.said)
        return log_fail(cli->env->log, st, __FILE__, __LINE__, "%s", end.words);
    return st;
}

static enum status launch(struct cli *cli, const struct bench_ranks *ranks)
{
    char **argv;
    TRY(mem_alloc_array(cli->env, MEM_OTHER, "arguments", (size_t)cli->argc + 3, sizeof *argv,
                        &argv));
    enum status st = start_ranks(cli, ranks, argv);
    mem_free(cli->env, argv);
    return st;
}

struct job {
    struct compute_config place;
    bench_work_fn *work;
    void *user;
};

static enum status be_rank(void *user, struct env *env, const struct session_ranks *ranks)
{
    const struct job *job = user;
    struct session session;
    TRY(session_join(env, job->place, ranks, &session));
    enum status st = job->work(job->user, &session);
    if (st != STATUS_OK && session.comm) { /* the others must not wait for this rank */
        if (ranks->failing)
            ranks->failing(ranks->rank, st, log_first_error(env->log));
        comm_abort(session.comm, log_first_error(env->log));
    }
    session_destroy(&session);
    return st;
}

static enum status run_here(struct cli *cli, const struct bench_ranks *ranks,
                            bench_prepare_fn *prepare, struct job *job, bool *met)
{
    const struct ranks_plan *plan = &ranks->plan;
    struct session_ranks member = {.comm = {.backend = ranks->backend, .timeout = ranks->timeout},
                                   .rank = plan->rank};
    TRY(prepare(job->user, &job->place));
    *met = true;
    if (!ranks->quiet)
        ranks_say_choice(cli->env, plan);
    if (plan->way == RANKS_THREADS)
        return ranks_run_threads(cli, plan->size, &member, be_rank, job);
    member.failing = ranks_report_failure;
    return be_rank(job, cli->env, plan->way == RANKS_JOIN ? &member : NULL);
}

enum status bench_ranks_run(struct cli *cli, const struct bench_ranks *ranks,
                            bench_prepare_fn *prepare, bench_work_fn *work, void *user)
{
    struct job job = {.work = work, .user = user};
    bool met = false;
    if (ranks->plan.way == RANKS_LAUNCH)
        return launch(cli, ranks);
    if (ranks->plan.way != RANKS_JOIN)
        return run_here(cli, ranks, prepare, &job, &met);
    rank_report_start(ranks->plan.rank);
    enum status st = run_here(cli, ranks, prepare, &job, &met);
    return ranks_leave(cli, &ranks->plan, st, met);
}
