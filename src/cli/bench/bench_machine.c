#include <string.h>
#include "cli/bench/bench.h"
#include "base/host.h"
#include "train/run_plan.h"

struct job {
    struct cli *cli;
    struct options *options;
    const struct bench_machine *order;
    struct bench_ranks ranks;
    struct plan_request request; /* if order->configured */
};

/* --- the profile ---------------------------------------------------------------------------- */

static void describe(const struct job *job, struct machine_profile *profile)
{
    const struct run_config *config = job->order->config;
    struct machine host;
    machine_look(&host);
    size_t memory = host.memory_limit_bytes ? host.memory_limit_bytes : host.memory_bytes;
    profile->gpu = config->machine.device == RUN_DEVICE_CUDA;
    profile->capability = config->device.capability;
    profile->memory_bytes =
        profile->gpu ? config->device.total_bytes : memory / (size_t)job->ranks.plan.local;
    profile->ops_ranks = profile->comm_ranks =
        (struct machine_ranks){job->ranks.plan.size, job->cli->env->threads};
    snprintf(profile->name, sizeof profile->name, "%.63s",
             profile->gpu     ? config->device.name
             : *host.cpu != 0 ? host.cpu
                              : "this machine");
}

static enum status save(const struct job *job, const struct machine_profile *profile)
{
    if (!*job->order->save)
        return STATUS_OK;
    TRY(machine_profile_save(job->cli->env, profile, job->order->save));
    if (!job->order->json)
        console_line(job->cli->console, "\nsaved to %s", job->order->save);
    return STATUS_OK;
}

static bool shows(const struct session *session)
{
    return !session->comm || comm_rank(session->comm) == 0;
}

/* --- a rank --------------------------------------------------------------------------------- */

static enum status show_comm(const struct job *job, const struct bench_comm_result *result)
{
    struct machine_profile profile = {.comm = result->prices, .has_comm = true};
    struct json_out json;
    console_live_clear(job->cli->console);
    describe(job, &profile);
    if (!job->order->json) {
        bench_comm_table(job->cli->console, result);
        return save(job, &profile);
    }
    json_out_begin(&json, job->cli->env);
    bench_comm_json(&json, result);
    TRY(json_out_print(&json, job->cli->console));
    return save(job, &profile);
}

static enum status be_comm(void *user, struct session *session)
{
    const struct job *job = user;
    struct bench_comm_result result;
    TRY(bench_comm_run(session, &job->order->calls, &result));
    return shows(session) ? show_comm(job, &result) : STATUS_OK;
}

static enum status show_calls(const struct job *job, const struct bench_calls_result *result)
{
    struct env *env = job->cli->env;
    struct machine_profile profile = {0};
    struct json_out json;
    console_live_clear(job->cli->console);
    describe(job, &profile);
    TRY(bench_calls_profile(env, result, &profile));
    enum status st = STATUS_OK;
    if (job->order->json) {
        json_out_begin(&json, env);
        json_out_int(&json, "ranks", job->ranks.plan.size);
        json_out_int(&json, "threads", env->threads);
        bench_calls_json(&json, result);
        st = json_out_print(&json, job->cli->console);
    } else {
        console_line(job->cli->console, "%d rank%s, %d thread%s each\n", job->ranks.plan.size,
                     job->ranks.plan.size == 1 ? "" : "s", env->threads,
                     env->threads == 1 ? "" : "s");
        bench_calls_table(job->cli->console, result);
    }
    if (st == STATUS_OK)
        st = save(job, &profile);
    machine_profile_free(env, &profile);
    return st;
}

static enum status be_ops(void *user, struct session *session)
{
    const struct job *job = user;
    struct bench_calls config = {.request = job->order->configured ? &job->request : NULL,
                                 .seconds = job->order->seconds,
                                 .folder = run_offload_folder(job->order->config->offload.folder)};
    struct bench_calls_result result;
    TRY(bench_calls_run(session, &config, &result));
    enum status st = shows(session) ? show_calls(job, &result) : STATUS_OK;
    bench_calls_free(device_env(session->device), &result);
    return st;
}

/* --- all ranks ------------------------------------------------------------------------------ */

/* Resolve the configuration of the run, with the threads that a rank has here. */
static enum status resolve(struct job *job)
{
    struct run_config *config = job->order->config;
    char threads[16];
    if (!options_is_set(job->options, "run.device"))
        TRY(options_set(job->options, "run.device", run_device_words[job->order->device],
                        "--device"));
    snprintf(threads, sizeof threads, "%d", job->cli->env->threads);
    TRY(options_set(job->options, "run.threads", threads, "the number of ranks"));
    TRY(run_config_resolve(job->cli->env, job->options, NULL, NULL, config));
    job->request = run_plan_request(config, job->ranks.plan.size);
    return STATUS_OK;
}

/* Fail before anything is measured when the profile could not be saved. */
static enum status check_file(const struct job *job, const bool *gpu)
{
    if (!*job->order->save || job->ranks.plan.rank != 0)
        return STATUS_OK;
    return machine_profile_check(job->cli->env, job->order->save, gpu);
}

static enum status prepare(void *user, struct compute_config *place)
{
    struct job *job = user;
    struct run_config *config = job->order->config;
    if (job->order->configured) {
        TRY(resolve(job));
    } else {
        config->machine.device = job->order->device;
        TRY(run_device_find(job->cli->env, false, &config->machine.device, &config->device));
    }
    *place = run_compute(config);
    bool gpu = config->machine.device == RUN_DEVICE_CUDA;
    return check_file(job, &gpu);
}

enum status bench_machine_run(struct cli *cli, struct options *options,
                              const struct bench_machine *order)
{
    const struct ranks_config *ranks = &order->config->ranks;
    struct job job = {.cli = cli,
                      .options = options,
                      .order = order,
                      .ranks = {.backend = comm_backend_words[ranks->backend],
                                .timeout = ranks->timeout,
                                .bind = order->config->machine.bind,
                                .device = order->device,
                                .quiet = order->json}};
    TRY(bench_ranks_find(cli, order->n, order->threads, &job.ranks));
    if (order->comm && job.ranks.plan.size < 2)
        return FAIL(cli->env, USAGE, "bench comm needs at least 2 ranks; add -n 2");
    TRY(check_file(&job, NULL));
    enum status st =
        bench_ranks_run(cli, &job.ranks, prepare, order->comm ? be_comm : be_ops, &job);
    console_live_clear(cli->console);
    run_config_release(order->config);
    return st;
}
