/* batch_rung -- one rung is a call of `sifr train` with a branch (train.branch): in this process,
 * or with ranks that it starts. So a rung is stopped, saved and resumed as any run. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/batch/batch.h"
#include "train/run/records.h"

enum { MOST_WORDS = 9 };

/* --- an earlier call ------------------------------------------------------------------------- */

static enum status compare_config(struct cli *cli, const struct batch *batch,
                                  struct batch_rung *rung, const char *folder)
{
    struct env *env = cli->env;
    struct options *options;
    struct run_config there;
    enum status st;
    char *path;
    TRY(path_join(env, folder, "config.yaml", &path));
    if (!file_exists(path)) {
        mem_free(env, path);
        return STATUS_OK;
    }
    TRY_OR(undo_path, options_create(env, &options));
    TRY_OR(undo_options, run_config_bind(options, &there));
    TRY_OR(undo_options, options_load_yaml(options, path));
    const struct train_config *train = &there.train;
    if (!*train->branch || train->steps <= batch->step)
        st = FAIL(env, CONFIG,
                  "'%s' is a run of its own, not a rung from step %" PRId64
                  ", and nothing is overwritten; choose another --out",
                  folder, batch->step);
    else if (train->global_batch != rung->batch || train->steps != batch->step + rung->steps ||
             train->lr != rung->lr)
        st =
            FAIL(env, CONFIG,
                 "'%s' was trained for %" PRId64 " tokens at lr %g, and this call asks for %" PRId64
                 " at lr %g; give --tokens and --lr-rule as before, or another --out",
                 folder, (train->steps - batch->step) * train->global_batch * batch->context,
                 train->lr, rung->steps * rung->batch * batch->context, rung->lr);
undo_options:
    options_destroy(options);
undo_path:
    mem_free(env, path);
    return st;
}

/* --- training ------------------------------------------------------------------------------- */

/* Run the train command as if the user had typed it. */
static enum status call_train(struct cli *cli, int argc, char *const *argv)
{
    struct cli inner = *cli; /* the arguments are those of its ranks, too */
    struct command_call call;
    const char *words[MOST_WORDS];
    int word_count = 0;
    bool quiet = cli->console->quiet;
    inner.argc = argc;
    inner.argv = argv;
    *cli->stepping = CLI_NOT_STEPPING;
    *cli->saved = 0;
    TRY(command_open(cli->env, &command_train, &call));
    enum status st = command_load(cli->env, &call, argc - 1, argv + 1, words, &word_count);
    cli->console->quiet = call.general.quiet;
    if (st == STATUS_OK)
        st = command_train.run(&inner, call.options, call.settings, words, word_count);
    command_close(cli->env, &call);
    cli->console->quiet = quiet;
    return st;
}

static enum status train(struct cli *cli, const struct batch *batch, const struct batch_rung *rung,
                         const char *folder)
{
    struct text base, out;
    char size[48], steps[48], lr[64], ranks[32];
    char *argv[MOST_WORDS + 1] = {"train", NULL, NULL, size, steps, lr, "--quiet"};
    int argc = 7;
    text_init(&base, cli->env);
    text_init(&out, cli->env);
    text_printf(&base, "%s/base.yaml", batch->out);
    text_printf(&out, "--out=%s", folder);
    argv[1] = base.data;
    argv[2] = out.data;
    snprintf(size, sizeof size, "--train.global_batch=%" PRId64, rung->batch);
    snprintf(steps, sizeof steps, "--train.steps=%" PRId64, batch->step + rung->steps);
    snprintf(lr, sizeof lr, "--train.lr=%.17g", rung->lr);
    if (batch->ranks > 0) {
        snprintf(ranks, sizeof ranks, "%" PRId64, batch->ranks);
        argv[argc++] = "-n";
        argv[argc++] = ranks;
    }
    enum status st = base.status != STATUS_OK ? base.status : out.status;
    if (st == STATUS_OK)
        st = call_train(cli, argc, argv);
    text_free(&out);
    text_free(&base);
    return st;
}

/* --- the result ----------------------------------------------------------------------------- */

/* Read how the rung ended; *over: it is finished or has diverged. */
static enum status read_summary(struct env *env, const char *folder, struct batch_rung *rung,
                                bool *over)
{
    struct json_doc doc;
    char *path;
    *over = false;
    TRY(path_join(env, folder, "summary.json", &path));
    enum status st = STATUS_OK;
    if (file_exists(path) && (st = record_open(env, path, &doc)) == STATUS_OK) {
        const char *end = json_string_value(json_object_get(doc.root, "end"));
        const json_t *val = json_object_get(json_object_get(doc.root, "val"), "loss");
        rung->diverged = end && strcmp(end, "diverged") == 0;
        rung->val_loss = json_is_number(val) ? json_number_value(val) : NAN;
        rung->seconds = json_number_value(json_object_get(doc.root, "seconds"));
        *over = rung->diverged || (end && strcmp(end, "done") == 0);
        json_doc_close(&doc);
    }
    mem_free(env, path);
    return st;
}

struct tail {
    double after; /* steps after this one count */
    double sum;
    int64_t count;
};

static bool add_loss(void *user, const json_t *record)
{
    struct tail *tail = user;
    const json_t *loss = json_object_get(record, "loss");
    if (json_number_value(json_object_get(record, "step")) > tail->after && json_is_number(loss)) {
        tail->sum += json_number_value(loss);
        tail->count++;
    }
    return true;
}

static enum status read_mean(struct env *env, const struct batch *batch, const char *folder,
                             struct batch_rung *rung)
{
    int64_t last = (batch_window(batch) + rung->batch - 1) / rung->batch;
    struct tail tail = {.after = (double)(batch->step + rung->steps - last)};
    char *path;
    TRY(path_join(env, folder, "metrics.jsonl", &path));
    enum status st = records_read(env, path, NULL, add_loss, &tail);
    mem_free(env, path);
    rung->mean_loss = tail.count > 0 ? tail.sum / (double)tail.count : NAN;
    return st;
}

static enum status run_in(struct cli *cli, const struct batch *batch, struct batch_rung *rung,
                          const char *folder)
{
    bool over;
    TRY(read_summary(cli->env, folder, rung, &over));
    rung->reused = over;
    if (!over) {
        enum status st = train(cli, batch, rung, folder);
        if (st == STATUS_DIVERGED) /* a result, not a failure of this command */
            log_error_clear(cli->env->log);
        else
            TRY(st);
        TRY(read_summary(cli->env, folder, rung, &over));
    }
    if (!over)
        return FAIL(cli->env, FORMAT,
                    "'%s' has no result: summary.json says neither done nor diverged; move the "
                    "folder away and rerun the same command",
                    folder);
    return read_mean(cli->env, batch, folder, rung);
}

/* Call `act` with the folder of the rung. */
typedef enum status rung_fn(struct cli *cli, const struct batch *batch, struct batch_rung *rung,
                            const char *folder);
static enum status with_folder(struct cli *cli, const struct batch *batch, struct batch_rung *rung,
                               rung_fn *act)
{
    struct text folder;
    text_init(&folder, cli->env);
    text_printf(&folder, "%s/B%" PRId64, batch->out, rung->batch);
    enum status st = folder.status;
    if (st == STATUS_OK)
        st = act(cli, batch, rung, text_string(&folder));
    text_free(&folder);
    return st;
}

enum status batch_rung_check(struct cli *cli, const struct batch *batch, struct batch_rung *rung)
{
    return with_folder(cli, batch, rung, compare_config);
}

enum status batch_rung_run(struct cli *cli, const struct batch *batch, struct batch_rung *rung)
{
    return with_folder(cli, batch, rung, run_in);
}
