/* ranks_job -- a rank that is a process runs this program with the same arguments. */
#include "cli/launch/ranks_job.h"
#include "cli/launch/launch.h"
#include "cli/rank_report.h"

static enum status launch(struct cli *cli, const struct ranks_job *job)
{
    const struct launch_order order = {.ranks = job->plan.size,
                                       .threads = job->threads,
                                       .stops = job->stops,
                                       .quiet = job->quiet,
                                       .input = job->input,
                                       .verbose = cli->console->verbose};
    struct launch_end end;
    enum status st = launch_self(cli, &order, NULL, &end);
    if (*end.words && !end.said)
        return log_fail(cli->env->log, st, __FILE__, __LINE__, "%s", end.words);
    return st;
}

static enum status run_here(struct cli *cli, const struct ranks_job *job, bool *met)
{
    struct ranks_plan bound = job->plan;
    const struct ranks_plan *plan = &bound;
    struct session_ranks member = {.comm = {.backend = job->backend, .timeout = job->timeout},
                                   .rank = plan->rank,
                                   .delay = job->delay};
    ranks_bind(&bound, job->threads, job->bind, job->device);
    member.near_gpu = bound.near_gpu;
    TRY(job->prepare(job->user));
    *met = true;
    if (!job->quiet)
        ranks_say_choice(cli->env, plan);
    if (plan->way == RANKS_THREADS)
        return ranks_run_threads(cli, plan, &member, job->main, job->user);
    member.failing = ranks_report_failure;
    return job->main(job->user, cli->env, plan->way == RANKS_JOIN ? &member : NULL);
}

enum status ranks_job_run(struct cli *cli, const struct ranks_job *job)
{
    bool met = false;
    if (job->plan.way == RANKS_LAUNCH)
        return launch(cli, job);
    if (job->plan.way != RANKS_JOIN)
        return run_here(cli, job, &met);
    rank_report_start(job->plan.rank);
    enum status st = run_here(cli, job, &met);
    return ranks_leave(cli, &job->plan, st, met);
}
