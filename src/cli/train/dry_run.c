#include "cli/train/train_view.h"
#include "cli/json_out.h"
#include "base/host.h"
#include "train/data/data_size.h"
#include "train/run_plan.h"

struct figures {
    int ranks;
    int64_t parameters, step_tokens, tokens; /* of the largest step, and of the run */
    double flops_per_token;
    struct plan_rank rank;
    size_t available_bytes;
    struct data_size data;
};

static enum status make_plan(struct cli *cli, const struct run_config *config, int ranks,
                             const char *folder, struct figures *plan)
{
    const struct plan_request request = run_plan_request(config, ranks);
    struct plan_zero_stage stage;
    spread_warn_unused(cli->env, &config->parallel);
    TRY(plan_model(cli->env, &request, &plan->parameters, &plan->flops_per_token));
    TRY(plan_worst_memory(cli->env, &request, &stage));
    plan->rank = stage.worker;
    plan->ranks = ranks;
    plan->step_tokens = config->train.global_batch * config->train.context;
    plan->tokens = batch_ramp_after(&config->ramp, 0, config->train.steps);
    plan->available_bytes = run_memory(config, machine_memory(), ranks);
    return data_size_find(cli->env, &config->data, config->tokenizer, config->model.vocab, folder,
                          &plan->data);
}

/* --- printing ------------------------------------------------------------------------------- */

static bool fits(const struct figures *plan)
{
    return plan->available_bytes == 0 || plan_needed_bytes(&plan->rank) <= plan->available_bytes;
}

static enum status print_json(struct cli *cli, const struct run_config *config,
                              const struct figures *plan, const char *folder)
{
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_string(&json, "folder", folder);
    json_out_int(&json, "ranks", plan->ranks);
    json_out_int(&json, "parameters", plan->parameters);
    json_out_string(&json, "optimizer", optimizer_word(run_optimizer(config).kind));
    json_out_int(&json, "steps", config->train.steps);
    json_out_int(&json, "step_tokens", plan->step_tokens);
    json_out_int(&json, "tokens", plan->tokens);
    json_out_int(&json, "micro_batches", run_micro_batches(config));
    json_out_real(&json, "flops_per_token", plan->flops_per_token);
    json_out_mem(&json, "mem", plan->rank.bytes);
    json_out_int(&json, "mem_bytes", (int64_t)plan->rank.total_bytes);
    json_out_int(&json, "host_bytes", (int64_t)plan->rank.host_bytes);
    json_out_int(&json, "disk_bytes", (int64_t)plan->rank.disk_bytes);
    if (plan->data.known) {
        json_out_int(&json, "data_tokens", plan->data.tokens);
        json_out_int(&json, "data_bytes", (int64_t)plan->data.bytes);
        json_out_bool(&json, "data_exact", plan->data.exact);
    }
    json_out_int(&json, "available_bytes", (int64_t)plan->available_bytes);
    json_out_bool(&json, "fits", fits(plan));
    return json_out_print(&json, cli->console);
}

static enum status print_lines(struct cli *cli, const struct run_config *config,
                               const struct figures *plan, const char *folder)
{
    struct console *console = cli->console;
    struct text text;
    char a[32], b[32];
    text_init(&text, cli->env);
    run_config_describe(config, &text);
    if (plan->data.known) {
        text_add(&text, "data     ");
        data_size_describe(&plan->data, &text);
        text_add(&text, "\n");
    }
    TRY(console_print(console, &text));
    console_line(console, "params   %s, %s floating-point operations per token",
                 text_human_count(a, (double)plan->parameters),
                 text_human_count(b, plan->flops_per_token));
    console_line(
        console, "tokens   %s%s per step, %s in total", config->ramp.count > 0 ? "at most " : "",
        text_human_count(a, (double)plan->step_tokens), text_human_count(b, (double)plan->tokens));
    console_line(console, "folder   %s", folder);
    if (plan->ranks > 1)
        console_line(console, "ranks    %d; memory is per rank", plan->ranks);
    console_line(console, "memory   %s of %s free, without mapped files:",
                 text_human_bytes(a, (double)plan->rank.total_bytes),
                 text_human_bytes(b, (double)plan->available_bytes));
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++) {
        if (plan->rank.bytes[c])
            console_line(console, "  %-12s %10s", mem_category_word((enum mem_category)c),
                         text_human_bytes(a, (double)plan->rank.bytes[c]));
    }
    if (plan->rank.runtime_bytes > 0) /* a GPU */
        console_line(console, "         and about %s for CUDA and its libraries; %s on the host",
                     text_human_bytes(a, (double)plan->rank.runtime_bytes),
                     text_human_bytes(b, (double)plan->rank.host_bytes));
    if (plan->rank.disk_bytes > 0)
        console_line(console, "         and %s on disk, in '%s'",
                     text_human_bytes(a, (double)plan->rank.disk_bytes),
                     run_offload_folder(config->offload.folder));
    return STATUS_OK;
}

enum status dry_run(struct cli *cli, const struct run_config *config, int ranks, const char *folder,
                    bool json)
{
    struct figures plan = {0};
    char a[32], b[32];
    TRY(make_plan(cli, config, ranks, folder, &plan));
    TRY(json ? print_json(cli, config, &plan, folder) : print_lines(cli, config, &plan, folder));
    if (fits(&plan))
        return STATUS_OK;
    return FAIL(cli->env, FIT,
                "the run needs %s and %s is %s; try a smaller train.micro_batch, "
                "engine.recompute=full or a "
                "smaller model",
                text_human_bytes(a, (double)plan_needed_bytes(&plan.rank)),
                text_human_bytes(b, (double)plan.available_bytes),
                config->machine.device_memory > 0 ? "free or allowed by run.device_memory"
                                                  : "free");
}
