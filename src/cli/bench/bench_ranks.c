/* bench_ranks -- a measurement is a job whose ranks have joined before the work begins. */
#include "cli/bench/bench.h"
#include "cli/launch/ranks_job.h"

enum status bench_ranks_find(struct cli *cli, int64_t n, int64_t threads, struct bench_ranks *ranks)
{
    TRY(ranks_find(cli->env, n, ranks->backend, &ranks->plan));
    cli->env->threads = threads > 0 ? (int)threads : ranks->plan.share.count;
    return STATUS_OK;
}

struct job {
    struct compute_config place;
    bench_prepare_fn *prepare;
    bench_work_fn *work;
    void *user;
};

static enum status prepare_job(void *user)
{
    struct job *job = user;
    return job->prepare(job->user, &job->place);
}

static enum status be_rank(void *user, struct env *env, const struct session_ranks *ranks)
{
    const struct job *job = user;
    struct session session;
    TRY(session_join(env, job->place, ranks, &session));
    enum status st = job->work(job->user, &session);
    session_fail(env, ranks, st, &session);
    session_destroy(&session);
    return st;
}

enum status bench_ranks_run(struct cli *cli, const struct bench_ranks *ranks,
                            bench_prepare_fn *prepare, bench_work_fn *work, void *user)
{
    struct job job = {.prepare = prepare, .work = work, .user = user};
    return ranks_job_run(cli, &(struct ranks_job){.plan = ranks->plan,
                                                  .threads = cli->env->threads,
                                                  .bind = ranks->bind,
                                                  .device = ranks->device,
                                                  .backend = ranks->backend,
                                                  .timeout = ranks->timeout,
                                                  .quiet = ranks->quiet,
                                                  .prepare = prepare_job,
                                                  .main = be_rank,
                                                  .user = &job});
}
