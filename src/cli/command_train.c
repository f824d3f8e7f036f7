/* command_train -- from a configuration to a trained model in a run folder. What it shows is in
 * train_view.c. */
#include <string.h>
#include "cli/command.h"
#include "cli/dry_run.h"
#include "cli/train_view.h"
#include "train/trainer.h"

struct train_settings {
    struct run_config config;
    const char *out, *trace;
    bool fresh, dry_run, json, quiet;
};

/* --out, or runs/NAME for NAME.yaml. */
static enum status choose_folder(struct env *env, const struct train_settings *settings,
                                 const char *yaml, char **folder)
{
    if (*settings->out)
        return mem_strdup(env, settings->out, folder);
    const char *slash = yaml ? strrchr(yaml, '/') : NULL;
    const char *name = slash ? slash + 1 : yaml ? yaml : "train";
    const char *dot = strrchr(name, '.');
    struct text text;
    text_init(&text, env);
    text_printf(&text, "runs/%.*s", dot && dot > name ? (int)(dot - name) : (int)strlen(name),
                name);
    enum status st = text.status;
    if (st == STATUS_OK)
        st = mem_strdup(env, text_string(&text), folder);
    text_free(&text);
    return st;
}

static enum status train(struct cli *cli, const struct options *options,
                         const struct train_settings *settings, struct train_view *view,
                         const char *folder)
{
    struct trainer_callbacks callbacks = train_view_callbacks(view);
    struct trainer_summary summary;
    struct text yaml;
    text_init(&yaml, cli->env);
    options_print_yaml(options, &yaml);
    struct trainer_place place = {.folder = folder,
                                  .fresh = settings->fresh,
                                  .config_yaml = text_string(&yaml),
                                  .trace = settings->trace};
    enum status st = yaml.status;
    if (st == STATUS_OK) {
        st = trainer_run(cli->env, &settings->config, NULL, &place, &callbacks, &summary);
        train_view_summary(view, &summary, folder);
    }
    text_free(&yaml);
    return st;
}

static enum status run_train(struct cli *cli, struct options *options, void *user_settings,
                             const char *const *words, int word_count)
{
    struct train_settings *settings = user_settings;
    struct train_view *view;
    char *folder;
    enum status st;
    TRY(choose_folder(cli->env, settings, word_count ? words[0] : NULL, &folder));
    TRY_OR(undo_folder, mem_alloc(cli->env, MEM_OTHER, "view", sizeof *view, &view));
    train_view_open(view, cli, settings->json, settings->quiet, settings->config.train.log_every);
    TRY_OR(undo_view,
           run_config_resolve(cli->env, options, train_view_learning, view, &settings->config));
    console_live_clear(cli->console);
    st = settings->dry_run ? dry_run(cli, &settings->config, folder, settings->json)
                           : train(cli, options, settings, view, folder);
    run_config_release(&settings->config);
undo_view:
    train_view_close(view);
    mem_free(cli->env, view);
undo_folder:
    mem_free(cli->env, folder);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

#define FIELD(name, kind)                                   \
    .key = #name, .type = OPTION_##kind, .flag_only = true, \
    .offset = offsetof(struct train_settings, name)
static const struct option train_list[] = {
    {FIELD(out, STRING), .letter = 'o', .value_name = "DIR",
     .help = "run folder; default runs/NAME for NAME.yaml, else runs/train"},
    {FIELD(fresh, BOOL), .help = "move a run that is already in the folder aside"},
    {.key = "dry-run",
     .type = OPTION_BOOL,
     .flag_only = true,
     .offset = offsetof(struct train_settings, dry_run),
     .help = "print the resolved plan and the memory it takes, and stop there"},
    {FIELD(trace, STRING), .value_name = "A:B",
     .help = "write a timeline of steps A to B for Perfetto, trace-rank-R.json in the run folder"},
    {FIELD(quiet, BOOL), .letter = 'q', .help = "only warnings and errors"},
    {FIELD(json, BOOL), .help = "one JSON object a line: start, steps, evaluations, samples, end"},
};
#undef FIELD
static const struct option_table train_flags = {"run", train_list,
                                                sizeof train_list / sizeof train_list[0]};

static enum status bind_train(struct options *options, void *user_settings)
{
    struct train_settings *settings = user_settings;
    TRY(options_bind(options, &train_flags, settings));
    return run_config_bind(options, &settings->config);
}

const struct command command_train = {
    .name = "train",
    .usage = "[FILE.yaml] [--section.key=value ...] [--out=DIR]",
    .summary = "train a model from a configuration file, from keys, or both",
    .description =
        "A key may stand in the file, in the environment (SIFR_TRAIN_STEPS for train.steps) or on "
        "the command line;\n"
        "the last is the strongest. The run folder gets the resolved configuration, metrics, "
        "samples and the model\n"
        "as a Hugging Face directory. Ctrl-C stops after the current step and saves the model.\n",
    .examples = "  sifr train configs/tiny.yaml --data.path=notes.txt\n"
                "  sifr train --model.preset=tiny --data.path=notes.txt "
                "--data.tokenizer=train:2048 --out=runs/notes\n"
                "  sifr train configs/gpt2-124m.yaml --dry-run\n",
    .settings_bytes = sizeof(struct train_settings),
    .most_words = 1,
    .config_file = true,
    .graceful = true,
    .bind = bind_train,
    .run = run_train,
};
