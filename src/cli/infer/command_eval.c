/* command_eval -- loss, perplexity and bits per byte of a model on held-out data.
 *
 * The config.yaml of a run folder supplies the data; keys on the command line override it. So `sifr
 * eval runs/tiny` repeats the evaluation of the run, over all held-out data.
 */
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/infer/infer.h"
#include "train/config/config.h"
#include "train/evaluate.h"
#include "train/models/model_weights.h"
#include "train/run_plan.h"

struct eval_settings {
    struct data_config data;
    struct machine_config machine;
    struct layout_config layout;
    const char *model;
    int64_t batch, batches, context, n;
    bool json;
};

struct eval_job {
    struct cli *cli;
    const struct options *given; /* of this call */
    const struct eval_settings *settings;
    const char *model;
    struct ranks_job ranks;
    struct options *all; /* with the configuration of the run */
    struct run_config config;
    struct text yaml; /* the resolved configuration */
};

/* --- configuration: the run's own, then the command line ------------------------------------ */

/* The config.yaml of the run folder `path`, or of the run of the checkpoint `path`. *yaml is NULL
 * when there is none; the caller frees it. */
static enum status find_run_yaml(struct env *env, const char *path, char **yaml)
{
    static const char *const names[] = {"config.yaml", "../../config.yaml"};
    for (int i = 0; i < 2; i++) {
        TRY(path_join(env, path, names[i], yaml));
        if (file_exists(*yaml))
            return STATUS_OK;
        mem_free(env, *yaml);
        *yaml = NULL;
    }
    return STATUS_OK;
}

static size_t field_bytes(const struct option *option)
{
    switch (option->type) {
    case OPTION_BOOL: return sizeof(bool);
    case OPTION_CHOICE: return sizeof(int);
    case OPTION_LIST: return sizeof(struct option_list);
    case OPTION_INT: return sizeof(int64_t);
    case OPTION_REAL: return sizeof(double);
    case OPTION_STRING: break;
    }
    return sizeof(const char *);
}

/* Copy the fields of a table that the command line or the environment sets. */
static void take_given(const struct options *given, const struct option_table *table,
                       const void *from, void *to)
{
    for (int i = 0; i < table->count; i++) {
        const struct option *option = &table->options[i];
        if (options_is_set(given, option->key))
            memcpy((char *)to + option->offset, (const char *)from + option->offset,
                   field_bytes(option));
    }
}

/* The layout is not that of the run: it has other ranks, and its state may be elsewhere. */
static enum status load_config(void *user)
{
    struct eval_job *job = user;
    const struct eval_settings *settings = job->settings;
    struct options *all = job->all;
    struct run_config *config = &job->config;
    struct env *env = job->cli->env;
    char *yaml = NULL, threads[16];
    TRY(run_config_bind_reading(all, config));
    TRY(find_run_yaml(env, job->model, &yaml));
    enum status st = yaml ? options_load_yaml(all, yaml) : STATUS_OK;
    mem_free(env, yaml);
    TRY(st);
    options_warn_removed(all);
    TRY(options_set(all, "model.path", job->model, "the model"));
    if (job->ranks.plan.size > 1) {
        snprintf(threads, sizeof threads, "%d", job->ranks.threads);
        TRY(options_set(all, "run.threads", threads, "the number of ranks"));
    }
    take_given(job->given, &data_options, &settings->data, &config->data);
    take_given(job->given, &place_options, &settings->machine, &config->machine);
    config->machine.device = settings->machine.device; /* those of the run do not matter */
    config->machine.kernels = settings->machine.kernels;
    config->parallel = settings->layout.parallel;
    config->ranks = settings->layout.ranks;
    config->offload = settings->layout.offload;
    if (settings->batch)
        config->train.micro_batch = settings->batch;
    if (settings->context)
        config->train.context = settings->context;
    TRY(run_config_resolve(env, all, NULL, NULL, config));
    config->train.eval_batches = settings->batches;
    options_print_yaml(all, &job->yaml);
    return job->yaml.status;
}

/* --- running -------------------------------------------------------------------------------- */

/* Names the data, which may come from the configuration of the run. */
static void describe_data(const struct data_config *data, char *out, size_t bytes)
{
    if (data->mix.count > 0)
        snprintf(out, bytes, "the held-out part of %d sources", data->mix.count);
    else if (*data->path)
        snprintf(out, bytes, "the held-out part of %s", data->path);
    else
        snprintf(out, bytes, "%s", data->val);
}

static enum status print_json(const struct eval_job *job, const char *data,
                              const struct evaluation *e, const struct footprint_worst *held)
{
    struct cli *cli = job->cli;
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_string(&json, "model", job->model);
    json_out_string(&json, "data", data);
    json_out_real(&json, "loss", e->loss);
    json_out_real(&json, "perplexity", e->perplexity);
    json_out_real(&json, "bits_per_byte", e->bits_per_byte);
    json_out_int(&json, "tokens", e->tokens);
    json_out_int(&json, "batches", e->batches);
    json_out_real(&json, "seconds", e->seconds);
    json_out_real(&json, "tokens_per_second",
                  e->seconds > 0 ? (double)e->tokens / e->seconds : NAN);
    infer_json_memory(&json, held, job->ranks.plan.size);
    return json_out_print(&json, cli->console);
}

static void print_lines(const struct eval_job *job, const char *data, const struct evaluation *e,
                        const struct footprint_worst *held)
{
    struct console *console = job->cli->console;
    char tokens[32], rate[32], memory[160];
    console_line(console, "data           %s", data);
    console_line(console, "loss           %.4f", e->loss);
    console_line(console, "perplexity     %.2f", e->perplexity);
    if (isfinite(e->bits_per_byte))
        console_line(console, "bits per byte  %.4f", e->bits_per_byte);
    console_line(console, "tokens         %s, %s tok/s",
                 text_human_count(tokens, (double)e->tokens),
                 text_human_count(rate, e->seconds > 0 ? (double)e->tokens / e->seconds : 0));
    infer_describe_memory(held, job->ranks.plan.size, memory, sizeof memory);
    console_line(console, "memory         %s", memory);
}

static enum status eval_rank(void *user, struct env *env, const struct session_ranks *ranks)
{
    const struct eval_job *job = user;
    bool first = infer_is_first(ranks);
    const struct evaluate_task task = {.config = &job->config,
                                       .ranks = ranks,
                                       .config_yaml = text_string(&job->yaml),
                                       .memory = infer_memory(&job->ranks.plan),
                                       .local = job->ranks.plan.local};
    struct evaluation evaluation;
    struct footprint_worst held;
    char data[4200];
    enum status st = evaluate_model(env, &task, &evaluation, &held);
    if (first) {
        describe_data(&job->config.data, data, sizeof data);
        if (st == STATUS_OK && job->settings->json)
            st = print_json(job, data, &evaluation, &held);
        else if (st == STATUS_OK)
            print_lines(job, data, &evaluation, &held);
    }
    if (st == STATUS_OK && !isfinite(evaluation.loss))
        st = FAIL(env, DIVERGED,
                  "the loss of '%s' is not finite; check its weights: " MODEL_BAD_WEIGHTS,
                  job->model);
    return st;
}

static enum status run_eval(struct cli *cli, struct options *options, void *user_settings,
                            const char *const *words, int word_count)
{
    const struct eval_settings *settings = user_settings;
    struct eval_job job = {
        .cli = cli,
        .given = options,
        .settings = settings,
        .model = *settings->model ? settings->model
                 : word_count     ? words[0]
                                  : NULL,
        .ranks = {
            .quiet = settings->json, .prepare = load_config, .main = eval_rank, .user = &job}};
    if (!job.model)
        return FAIL(cli->env, USAGE, "missing argument MODEL; usage: sifr eval %s",
                    command_eval.usage);
    TRY(infer_find_ranks(cli, settings->n, &settings->layout, settings->machine.threads,
                         &job.ranks));
    job.ranks.bind = settings->machine.bind;
    job.ranks.device = settings->machine.device;
    TRY(options_create(cli->env, &job.all));
    text_init(&job.yaml, cli->env);
    enum status st = ranks_job_run(cli, &job.ranks);
    run_config_release(&job.config);
    text_free(&job.yaml);
    options_destroy(job.all);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

#define FIELD(name, kind) COMMAND_FLAG(#name, eval_settings, name, kind)
static const struct option eval_list[] = {
    {COMMAND_FLAG("model.path", eval_settings, model, STRING), .value_name = "DIR",
     .help = "the model, instead of the argument MODEL"},
    {FIELD(batch, INT), .letter = 'b', .fallback = "0", COMMAND_RANGE(0, 1e6),
     .help = "sequences per batch; 0 = as in training"},
    {FIELD(batches, INT), .fallback = "0", COMMAND_RANGE(0, 1e12),
     .help = "number of batches; 0 = all held-out data"},
    {FIELD(context, INT), .fallback = "0", COMMAND_RANGE(0, 1e7),
     .help = "tokens per sequence; 0 = as in training"},
    INFER_N(eval_settings, ""),
    {FIELD(json, BOOL), .help = "print one JSON object"},
};
#undef FIELD

static enum status bind_eval(struct options *options, void *settings)
{
    struct eval_settings *eval = settings;
    TRY(options_bind(options, &data_options, &eval->data));
    TRY(options_bind(options, &layout_options, &eval->layout));
    return options_bind(options, &place_options, &eval->machine);
}

const struct command command_eval = {
    .name = "eval",
    .usage = "MODEL [--data.val=FILE] [--data.tokenizer=FILE] [-n RANKS]",
    .summary = "measure loss, perplexity and bits per byte of a model on held-out text",
    .description =
        "MODEL is a run folder, a checkpoint or a Hugging Face directory. A run folder stands for "
        "its newest complete checkpoint, evaluated on the held-out data of the run unless "
        "--data.val or another key says otherwise.\n"
        "With -n, ranks share the batches; zero.stage=3, parallel.tp and parallel.pp spread a "
        "model that is too large for one of them; offload.params keeps it in host memory or on "
        "disk. The loss is the same on any number of ranks; only "
        "parallel.tp may change its last bits.\n",
    .examples = "  sifr eval runs/tiny\n"
                "  sifr eval runs/tiny --data.val=other.txt\n"
                "  sifr eval gpt2/ --data.val=news.txt --batch=4 --json\n"
                "  sifr eval runs/large -n 4 --zero.stage=3\n"
                "  sifr eval runs/large --offload.params=disk\n",
    .settings_bytes = sizeof(struct eval_settings),
    .most_words = 1,
    .says_end = true,
    .flags = COMMAND_FLAGS("eval", eval_list),
    .bind = bind_eval,
    .run = run_eval,
};
