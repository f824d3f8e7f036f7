/* dry_run -- see the header. The dry device has an account of its own, so that what it counts is
 * the run's alone; the text and tokens of the data are not in it, because nothing is read. */
#include "cli/dry_run.h"
#include "cli/json_out.h"
#include "cli/machine.h"
#include "engine/decoder.h"
#include "train/generate.h"

struct plan {
    int64_t parameters, step_tokens;
    double flops_per_token;
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes, available_bytes;
};

/* --- building it on nothing ----------------------------------------------------------------- */

struct parts {
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    struct zero *zero;
    struct engine *engine;
    struct decoder *decoder;
};

static enum status build(struct env *env, const struct run_config *config, struct parts *p)
{
    const struct zero_config store = {.beta1 = config->train.beta1,
                                      .beta2 = config->train.beta2,
                                      .eps = config->train.eps,
                                      .micro_batches = run_micro_batches(config)};
    TRY(device_create(env, "dry", 0, &p->device));
    TRY(ops_create(p->device, run_backend(config), DTYPE_F32, &p->ops));
    TRY(stream_create(p->device, "compute", &p->stream));
    TRY(model_create(p->device, &config->model, &p->model));
    TRY(zero_create(p->ops, p->stream, NULL, model_graph(p->model), &store, &p->zero));
    TRY(engine_create(p->ops, p->stream, model_graph(p->model), p->zero, &config->engine,
                      &p->engine));
    if (config->train.sample_every == 0)
        return STATUS_OK;
    int64_t room = config->model.context;
    return decoder_create(p->ops, p->stream, model_graph(p->model), p->zero, room,
                          room < GENERATE_CHUNK ? room : GENERATE_CHUNK, &p->decoder);
}

static void tear_down(struct parts *p)
{
    decoder_destroy(p->decoder);
    engine_destroy(p->engine);
    zero_destroy(p->zero);
    model_destroy(p->model);
    stream_destroy(p->stream);
    ops_destroy(p->ops);
    device_destroy(p->device);
}

static enum status make_plan(struct cli *cli, const struct run_config *config, struct plan *plan)
{
    struct env dry;
    struct parts parts = {0};
    struct machine machine;
    TRY(env_create(&dry, console_log, cli->console, LOG_INFO, cli->env->threads));
    enum status st = build(&dry, config, &parts);
    if (st == STATUS_OK) {
        plan->parameters = unit_graph_count(model_graph(parts.model));
        plan->flops_per_token = model_flops_per_token(parts.model, config->train.context);
        plan->step_tokens = config->train.global_batch * config->train.context;
        for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
            plan->bytes[c] = mem_bytes(dry.mem, (enum mem_category)c);
        plan->total_bytes = mem_total(dry.mem);
    }
    tear_down(&parts);
    env_destroy(&dry);
    machine_look(&machine);
    plan->available_bytes = machine.memory_free_bytes;
    if (machine.memory_limit_bytes && machine.memory_limit_bytes < plan->available_bytes)
        plan->available_bytes = machine.memory_limit_bytes;
    return st;
}

/* --- showing it ----------------------------------------------------------------------------- */

static bool fits(const struct plan *plan)
{
    return plan->available_bytes == 0 || plan->total_bytes <= plan->available_bytes;
}

static enum status print_json(struct cli *cli, const struct run_config *config,
                              const struct plan *plan, const char *folder)
{
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_string(&json, "folder", folder);
    json_out_int(&json, "parameters", plan->parameters);
    json_out_int(&json, "steps", config->train.steps);
    json_out_int(&json, "step_tokens", plan->step_tokens);
    json_out_int(&json, "tokens", plan->step_tokens * config->train.steps);
    json_out_int(&json, "micro_batches", run_micro_batches(config));
    json_out_real(&json, "flops_per_token", plan->flops_per_token);
    json_out_open(&json, "mem", '{');
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        json_out_int(&json, mem_category_word((enum mem_category)c), (int64_t)plan->bytes[c]);
    json_out_close(&json, '}');
    json_out_int(&json, "mem_bytes", (int64_t)plan->total_bytes);
    json_out_int(&json, "available_bytes", (int64_t)plan->available_bytes);
    json_out_bool(&json, "fits", fits(plan));
    return json_out_print(&json, cli->console);
}

static enum status print_lines(struct cli *cli, const struct run_config *config,
                               const struct plan *plan, const char *folder)
{
    struct console *console = cli->console;
    struct text text;
    char a[32], b[32];
    text_init(&text, cli->env);
    run_config_describe(config, &text);
    enum status st = text.status;
    console_write(console, text_string(&text), text.bytes);
    text_free(&text);
    console_line(console, "params   %s, %s floating-point operations a token",
                 text_human_count(a, (double)plan->parameters),
                 text_human_count(b, plan->flops_per_token));
    console_line(console, "tokens   %s a step, %s in all",
                 text_human_count(a, (double)plan->step_tokens),
                 text_human_count(b, (double)plan->step_tokens * (double)config->train.steps));
    console_line(console, "folder   %s", folder);
    console_line(console, "memory   %s of %s free, without the data:",
                 text_human_bytes(a, (double)plan->total_bytes),
                 text_human_bytes(b, (double)plan->available_bytes));
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++) {
        if (plan->bytes[c])
            console_line(console, "  %-12s %10s", mem_category_word((enum mem_category)c),
                         text_human_bytes(a, (double)plan->bytes[c]));
    }
    return st;
}

enum status dry_run(struct cli *cli, const struct run_config *config, const char *folder, bool json)
{
    struct plan plan = {0};
    char a[32], b[32];
    TRY(make_plan(cli, config, &plan));
    TRY(json ? print_json(cli, config, &plan, folder) : print_lines(cli, config, &plan, folder));
    if (fits(&plan))
        return STATUS_OK;
    return FAIL(cli->env, FIT,
                "the run needs %s and %s is free; try a smaller train.micro_batch, "
                "engine.recompute=full or a "
                "smaller model",
                text_human_bytes(a, (double)plan.total_bytes),
                text_human_bytes(b, (double)plan.available_bytes));
}
