/* command_batch -- from a run to its critical batch size.
 *
 *     RUN/batch/STEP/base.yaml    the configuration that all rungs share: that of the checkpoint,
 *                                 with what this command sets and the keys of the command line
 *     RUN/batch/STEP/cache/       encoded text, shared by the rungs
 *     RUN/batch/STEP/B64/         the run folder of a rung
 *     RUN/batch/STEP/data.txt     the digests of the data that all rungs share
 *     RUN/batch/STEP/batch.json   the result
 *
 * Nothing else of the run is written. A rung without a result is trained by the next call: one that
 * was stopped is resumed from its checkpoint.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/named.h"
#include "cli/batch/batch.h"
#include "comm/launcher.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/checkpoint/config_lines.h"
#include "train/data/data_config.h"
#include "train/data/dataset.h"

#define MADE_BY       "# written by sifr batch: the configuration that all rungs share\n"
#define BRANCHED_FROM "# checkpoint: "

enum { YAML_BYTES = 1 << 20 };

struct batch_settings {
    struct run_config config;
    int64_t checkpoint, tokens, n;
    const char *batches, *out;
    double tolerance;
    int rule;
    bool json;
};

struct batch_job {
    struct cli *cli;
    struct options *options;
    struct batch_settings *settings;
    struct batch batch;
};

/* --- the checkpoint ------------------------------------------------------------------------- */

/* batch.checkpoint and batch.step: of --checkpoint, else of the newest. */
static enum status find_checkpoint(struct batch_job *job, const char *folder)
{
    struct env *env = job->cli->env;
    struct batch *batch = &job->batch;
    int64_t newest = -1, wanted = job->settings->checkpoint;
    char *path;
    if (dir_exists(folder))
        TRY(checkpoint_keep_newest(env, folder, INT64_MAX, &newest));
    if (newest < 0)
        return FAIL(env, CONFIG,
                    "'%s' is not a run folder with a checkpoint: there is no '%s/step-N'; name the "
                    "--out of a sifr train that has saved one",
                    batch->run, folder);
    batch->step = wanted >= 0 ? wanted : newest;
    TRY(checkpoint_keep_path(env, folder, "", batch->step, "", &path));
    enum status st = file_exists(path) ? options_keep(job->options, path, &batch->checkpoint)
                                       : FAIL(env, CONFIG,
                                              "--checkpoint: there is no '%s'; the newest is step "
                                              "%" PRId64,
                                              path, newest);
    mem_free(env, path);
    return st;
}

/* Keys that this command sets: the ladder is made of them. */
static const struct {
    const char *key, *value, *instead;
} set_keys[] = {{"train.global_batch", NULL, "use --batches"},
                {"train.batch_ramp", "", "use --batches"},
                {"train.lr", NULL, "use --lr-rule"},
                {"train.steps", NULL, "use --tokens"},
                {"train.branch", NULL, "use --checkpoint"},
                {"train.schedule", "constant", "the rate is constant"},
                {"train.warmup", "0", "the rate is constant"},
                {"train.decay", "-1", "the rate is constant"},
                {"train.min_lr", "0", "the rate is constant"},
                {"train.stop_at", "0", "use --tokens"},
                {"train.eval_every", "0", "a rung is evaluated at its end"},
                {"checkpoint.last", "false", "only a rung that is stopped is saved"}};
enum { SET_KEYS = sizeof set_keys / sizeof *set_keys };

/* Before the configuration of the checkpoint is loaded: what the user has set. */
static enum status refuse_keys(struct batch_job *job)
{
    for (int i = 0; i < SET_KEYS; i++)
        if (options_is_set(job->options, set_keys[i].key))
            return FAIL(job->cli->env, USAGE, "%s (%s): sifr batch sets this key itself; %s",
                        set_keys[i].key, options_origin(job->options, set_keys[i].key),
                        set_keys[i].instead);
    return STATUS_OK;
}

/* Settings of the run that do not suit a rung. Those that the user gives here hold. */
static const struct {
    const char *key, *value;
} default_keys[] = {{"train.max_time", ""},      {"train.sample_every", "0"},
                    {"checkpoint.every", "0"},   {"checkpoint.major", "0"},
                    {"checkpoint.fallback", ""}, {"train.noise_scale", "false"}};
enum { DEFAULT_KEYS = sizeof default_keys / sizeof *default_keys };

/* The configuration of a run has the threads of a rank, also where run.threads was 0. They suit a
 * rung with as many ranks; with others, train divides the processors again. */
static enum status set_threads(struct batch_job *job, int64_t workers)
{
    const struct parallel_config *parallel = &job->settings->config.parallel;
    int64_t ranks = job->settings->n > 0 ? job->settings->n : 1;
    if (workers * parallel->tp * parallel->pp == ranks)
        return STATUS_OK;
    return options_set(job->options, "run.threads", "0", "the number of ranks");
}

/* The configuration of the checkpoint, below what the user has set. */
static enum status load_config(struct batch_job *job)
{
    struct options *options = job->options;
    bool given[DEFAULT_KEYS], threads = options_is_set(options, "run.threads");
    struct checkpoint *checkpoint;
    TRY(refuse_keys(job));
    for (int i = 0; i < DEFAULT_KEYS; i++)
        given[i] = options_is_set(options, default_keys[i].key);
    TRY(checkpoint_open(job->cli->env, job->batch.checkpoint, &checkpoint));
    const char *yaml = checkpoint_state(checkpoint)->config;
    const struct checkpoint_progress *progress = &checkpoint_state(checkpoint)->progress;
    job->batch.noise_scale = noise_scale_value(&progress->noise);
    job->batch.seen = progress->tokens;
    int64_t workers = checkpoint_state(checkpoint)->workers;
    enum status st =
        *yaml ? options_load_yaml_text(options, yaml, strlen(yaml), job->batch.checkpoint)
              : FAIL(job->cli->env, CONFIG,
                     "'%s' has no configuration: it was not written by sifr train",
                     job->batch.checkpoint);
    checkpoint_close(checkpoint);
    for (int i = 0; st == STATUS_OK && i < DEFAULT_KEYS; i++)
        if (!given[i])
            st = options_set(options, default_keys[i].key, default_keys[i].value, "sifr batch");
    if (st == STATUS_OK && !threads)
        st = set_threads(job, workers);
    return st;
}

/* --- the plan ------------------------------------------------------------------------------- */

static enum status plan(struct batch_job *job)
{
    const struct batch_settings *settings = job->settings;
    const struct run_config *config = &settings->config;
    const struct schedule schedule = run_schedule(config);
    struct batch *batch = &job->batch;
    batch->ranks = settings->n;
    struct batch_ramp ramp = {.batch = config->train.global_batch,
                              .context = config->train.context};
    TRY(batch_ramp_parse(job->options, job->cli->env, config->train.batch_ramp,
                         config->train.micro_batch, &ramp));
    batch->run_batch = batch_ramp_at(&ramp, batch->seen);
    batch->ramped = ramp.count > 0;
    batch->micro_batch = config->train.micro_batch;
    batch->context = config->train.context;
    batch->peak = config->train.lr;
    batch->rate = schedule_lr(&schedule, batch->step);
    batch->tolerance = settings->tolerance;
    batch->rule = settings->rule != BATCH_RULE_AUTO
                      ? (enum batch_rule)settings->rule
                      : batch_rule_of((enum optimizer_kind)config->optimizer.kind);
    TRY(batch_ladder_make(job->cli->env, settings->batches, batch));
    return batch_plan(job->cli->env, settings->tokens, batch);
}

/* --- base.yaml ------------------------------------------------------------------------------ */

/* A group with its own lr follows train.lr as a multiple of it. Written as that multiple, it
 * follows the rate of each rung, too. */
static void scale_groups(struct run_config *config)
{
    struct optimizer_group *groups = config->optimizer.groups.items;
    for (int i = 0; i < config->optimizer.groups.count; i++) {
        if (isnan(groups[i].lr))
            continue;
        groups[i].lr_mul *= groups[i].lr / config->train.lr;
        groups[i].lr = NAN;
    }
}

/* The rungs use the vocabulary of the checkpoint; they do not learn it again. */
static enum status set_tokenizer(struct batch_job *job)
{
    struct env *env = job->cli->env;
    char *path;
    if (!data_tokenizer_is_learnt(&job->settings->config.data))
        return STATUS_OK;
    TRY(path_join(env, job->batch.checkpoint, "tokenizer.json", &path));
    enum status st = file_exists(path)
                         ? options_set(job->options, "data.tokenizer", path, "the checkpoint")
                         : STATUS_OK;
    mem_free(env, path);
    return st;
}

static enum status set_cache(struct batch_job *job)
{
    char *path;
    if (*job->settings->config.data.cache)
        return STATUS_OK;
    TRY(path_join(job->cli->env, job->batch.out, "cache", &path));
    enum status st = options_set(job->options, "data.cache", path, "sifr batch");
    mem_free(job->cli->env, path);
    return st;
}

/* The checkpoint's COMPLETE has the hash of its state.json, which has those of the configuration,
 * the data and all tensors: its second line names the checkpoint, wherever it lies. */
static enum status print_checkpoint(struct batch_job *job, struct text *yaml)
{
    struct env *env = job->cli->env;
    char *path, *marker;
    size_t bytes;
    TRY(path_join(env, job->batch.checkpoint, "COMPLETE", &path));
    enum status st = file_read(env, path, YAML_BYTES, &marker, &bytes);
    mem_free(env, path);
    TRY(st);
    const char *line = marker + strcspn(marker, "\n");
    line += *line == '\n';
    text_printf(yaml, BRANCHED_FROM "%.*s\n", (int)strcspn(line, "\n"), line);
    mem_free(env, marker);
    return yaml->status;
}

static enum status print_base(struct batch_job *job, struct text *yaml)
{
    for (int i = 0; i < SET_KEYS; i++)
        if (set_keys[i].value)
            TRY(options_set(job->options, set_keys[i].key, set_keys[i].value, "sifr batch"));
    TRY(options_set(job->options, "train.branch", job->batch.checkpoint, "sifr batch"));
    TRY(set_tokenizer(job));
    TRY(set_cache(job));
    scale_groups(&job->settings->config);
    text_add(yaml, MADE_BY);
    TRY(print_checkpoint(job, yaml));
    options_print_yaml(job->options, yaml);
    return yaml->status;
}

/* Bytes of the two lines above the configuration. */
static size_t header_bytes(const char *yaml)
{
    size_t first = strcspn(yaml, "\n") + 1;
    return first + strcspn(yaml + first, "\n") + 1;
}

/* Rungs of an earlier call can be used only if they had the same configuration and checkpoint. */
static enum status compare_base(struct batch_job *job, const char *path, const char *here)
{
    static const enum config_weight weights[] = {CONFIG_BITS, CONFIG_DATA, CONFIG_SHAPES,
                                                 CONFIG_EVAL};
    struct env *env = job->cli->env;
    struct text changes;
    char *there;
    size_t bytes;
    TRY(file_read(env, path, YAML_BYTES, &there, &bytes));
    enum status st = STATUS_OK;
    text_init(&changes, env);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        config_changes(there, here, weights[i], &changes);
    if (strncmp(there, MADE_BY, strlen(MADE_BY)) != 0)
        st = FAIL(env, CONFIG, "'%s' was not written by sifr batch; choose another --out", path);
    else if (changes.bytes > 0)
        st = FAIL(env, CONFIG,
                  "the rungs in '%s' have another configuration (%s); give the same keys, or "
                  "another --out",
                  job->batch.out, text_string(&changes));
    else if (strncmp(there, here, header_bytes(here)) != 0)
        st = FAIL(env, CONFIG,
                  "the rungs in '%s' branch from another checkpoint than '%s': of another run, or "
                  "of the same step trained again; choose another --out",
                  job->batch.out, job->batch.checkpoint);
    text_free(&changes);
    mem_free(env, there);
    return st;
}

static enum status write_base(struct batch_job *job)
{
    struct env *env = job->cli->env;
    struct text yaml;
    char *path, *result;
    enum status st;
    text_init(&yaml, env);
    TRY_OR(undo_yaml, print_base(job, &yaml));
    TRY_OR(undo_yaml, path_join(env, job->batch.out, "base.yaml", &path));
    TRY_OR(undo_path, path_join(env, job->batch.out, "batch.json", &result));
    if (file_exists(path))
        TRY_OR(undo_result, compare_base(job, path, text_string(&yaml)));
    else if (file_exists(result))
        TRY_OR(undo_result,
               FAIL(env, CONFIG,
                    "there is a '%s' without a base.yaml of sifr batch, and nothing is "
                    "overwritten; choose another --out",
                    result));
    TRY_OR(undo_result, dir_create(env, job->batch.out));
    st = file_write_text(env, path, &yaml);
undo_result:
    mem_free(env, result);
undo_path:
    mem_free(env, path);
undo_yaml:
    text_free(&yaml);
    return st;
}

/* --- the ladder ----------------------------------------------------------------------------- */

static void say_plan(struct batch_job *job)
{
    const struct batch *batch = &job->batch;
    struct console *console = job->cli->console;
    char line[256], tokens[32];
    console_line(console, "%ssifr batch%s of %s into %s", console_style(console, STYLE_BOLD),
                 console_style(console, STYLE_PLAIN), batch->checkpoint, batch->out);
    snprintf(line, sizeof line, "%d batches, each over the next %s tokens of the run's data",
             batch->count, text_human_count(tokens, (double)(batch->sequences * batch->context)));
    console_fact(console, "ladder", line);
    snprintf(line, sizeof line,
             "constant, without warm-up: %.4g at batch %" PRId64 ", rule %s (%s)", batch->rate,
             batch->run_batch, batch_rule_words[batch->rule],
             optimizer_word((enum optimizer_kind)job->settings->config.optimizer.kind));
    console_fact(console, "rate", line);
}

static void say_rung(struct batch_job *job, const struct batch_rung *rung)
{
    char name[32], line[160], human[32], seconds[32];
    double loss = isfinite(rung->val_loss) ? rung->val_loss : rung->mean_loss;
    snprintf(name, sizeof name, "B%" PRId64, rung->batch);
    if (rung->diverged)
        snprintf(line, sizeof line, "diverged");
    else
        snprintf(line, sizeof line, "%" PRId64 " step%s, %s tokens: loss %.4f, %s%s", rung->steps,
                 rung->steps == 1 ? "" : "s",
                 text_human_count(human, (double)(rung->steps * rung->batch * job->batch.context)),
                 loss, text_human_seconds(seconds, rung->seconds),
                 rung->reused ? " (of an earlier call)" : "");
    console_fact(job->cli->console, name, line);
}

static enum status climb(struct batch_job *job)
{
    const struct batch_settings *settings = job->settings;
    const struct data_config *data = &settings->config.data;
    bool talks = !settings->json && !job->cli->console->quiet;
    struct batch *batch = &job->batch;
    for (int i = 0; i < batch->count; i++)
        TRY(batch_rung_check(job->cli, batch, &batch->rungs[i]));
    if (talks)
        say_plan(job);
    for (int i = 0; i < batch->count; i++) {
        if (*job->cli->stop) {
            log_warn(job->cli->env,
                     "stopped before batch %" PRId64 "; rerun the same command to continue",
                     batch->rungs[i].batch);
            return STATUS_SAVED;
        }
        TRY(batch_data_check(job->cli, batch, data, NULL));
        TRY(batch_rung_run(job->cli, batch, &batch->rungs[i]));
        if (!batch->rungs[i].reused)
            TRY(batch_data_check(job->cli, batch, data, &batch->rungs[i]));
        if (talks)
            say_rung(job, &batch->rungs[i]);
    }
    batch_judge(batch);
    TRY(batch_write(job->cli, batch, settings->json));
    if (!settings->json)
        batch_show(job->cli, batch);
    return STATUS_OK;
}

/* --out, else RUN/batch/STEP. */
static enum status choose_out(struct batch_job *job)
{
    struct batch *batch = &job->batch;
    struct text text;
    batch->out = job->settings->out;
    if (*batch->out)
        return named_out(job->cli->env, "--out", batch->out);
    text_init(&text, job->cli->env);
    text_printf(&text, "%s/batch/%" PRId64, batch->run, batch->step);
    enum status st = text.status;
    if (st == STATUS_OK)
        st = options_keep(job->options, text_string(&text), &batch->out);
    text_free(&text);
    return st;
}

static enum status run_batch(struct cli *cli, struct options *options, void *user_settings,
                             const char *const *words, int word_count)
{
    struct batch_job job = {
        .cli = cli, .options = options, .settings = user_settings, .batch = {.run = words[0]}};
    struct launcher launcher;
    char *folder;
    (void)word_count;
    if (launcher_find(&launcher) && launcher.size > 1)
        return FAIL(cli->env, USAGE,
                    "sifr batch starts the ranks of each rung itself: run it without %s, with -n",
                    launcher.name);
    TRY(path_exists(cli->env, "", words[0]));
    TRY(path_join(cli->env, words[0], "checkpoints", &folder));
    enum status st = find_checkpoint(&job, folder);
    mem_free(cli->env, folder);
    TRY(st);
    TRY(choose_out(&job));
    TRY(load_config(&job));
    TRY(plan(&job));
    TRY(write_base(&job));
    return climb(&job);
}

/* --- the command ---------------------------------------------------------------------------- */

#define FIELD(name, kind) COMMAND_FLAG(#name, batch_settings, name, kind)
static const struct option batch_list[] = {
    {FIELD(checkpoint, INT), .fallback = "-1", .value_name = "STEP", COMMAND_RANGE(-1, 1e12),
     .help = "step of the checkpoint to branch from; -1 = the newest"},
    {FIELD(batches, STRING), .value_name = "LIST",
     .help = "sequences per step to try, such as 8,16,32; the run's own is added (default: 1/2, 1, "
             "2, 4, 8 and 16 times it)"},
    {FIELD(tokens, INT), .fallback = "0", COMMAND_RANGE(0, 1e15),
     .help = "tokens per rung, rounded up to whole steps of the largest batch; 0 = 20 steps of the "
             "largest batch, and at least 50 of the smallest"},
    {FIELD(tolerance, REAL), .fallback = "0.01", .value_name = "X", COMMAND_RANGE(0, 100),
     .help = "nats by which the loss may exceed the lowest loss of smaller batches"},
    {COMMAND_FLAG("lr-rule", batch_settings, rule, CHOICE), .fallback = "auto",
     .choices = batch_rule_words,
     .help = "learning rate for k times the run's batch: sqrt = times the square root of k, linear "
             "= times k, none = the same; auto = linear for sgd, sqrt for the other optimizers"},
    {FIELD(out, STRING), .letter = 'o', .value_name = "DIR",
     .help = "folder of the rungs (default: RUN/batch/STEP)"},
    {FIELD(n, INT), .letter = 'n', COMMAND_RANGE(1, COMMAND_MOST_RANKS),
     .help = "number of ranks to start for each rung"},
    {FIELD(json, BOOL), .help = "print the result as one JSON object"},
};
#undef FIELD

static enum status bind_batch(struct options *options, void *user_settings)
{
    struct batch_settings *settings = user_settings;
    return run_config_bind(options, &settings->config);
}

const struct command command_batch = {
    .name = "batch",
    .usage = "RUN [--batches=LIST] [--tokens=N] [--section.key=value ...] [-n RANKS]",
    .summary = "measure the critical batch size of a run by branching from a checkpoint",
    .description =
        "From one checkpoint, with its optimizer state, training continues with several batch\n"
        "sizes over the same tokens. The critical batch is the largest whose loss at the end is\n"
        "at most the lowest loss of the smaller ones plus --tolerance: up to it, a larger batch\n"
        "saves steps at the same loss. The loss is that of the run's held-out data; without such\n"
        "data, the mean training loss over the last fifth.\n"
        "The learning rate of a rung is constant: the run's rate at the checkpoint, scaled by\n"
        "--lr-rule. There is no warm-up, because the optimizer state is kept.\n"
        "Each rung is a run of `sifr train` with train.branch, in RUN/batch/STEP/B<batch>. The\n"
        "result is in batch.json next to them. The files of the run itself are only read.\n"
        "Ctrl-C saves the current rung and ends with exit code 75; rerun the same command to\n"
        "continue. Finished rungs are not trained again. Keys given here replace those of the\n"
        "run: --train.eval_batches=200.\n",
    .examples = "  sifr batch runs/tiny\n"
                "  sifr batch runs/tiny --checkpoint=1000 --batches=32,64,128,256 --tokens=2M\n"
                "  sifr batch runs/tiny -n 4 --zero.stage=1 --json\n",
    .settings_bytes = sizeof(struct batch_settings),
    .least_words = 1,
    .most_words = 1,
    .stop_words = command_stop_train,
    .flags = COMMAND_FLAGS("ladder", batch_list),
    .bind = bind_batch,
    .run = run_batch,
};
