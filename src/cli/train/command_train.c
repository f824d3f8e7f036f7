/* command_train -- from a configuration to a trained model in a run folder, on one rank or several.
 *
 * A process has one of five modes (enum train_mode): it prints the plan, supervises ranks that are
 * other processes, or is one or all of the ranks itself. train_view.c prints the progress, launch.c
 * and ranks.c start the ranks, restarts.c restarts them. */
#include <string.h>
#include "cli/command.h"
#include "cli/launch/launch.h"
#include "base/host.h"
#include "cli/rank_report.h"
#include "cli/launch/ranks.h"
#include "cli/page/page.h"
#include "train/config/schedule.h"
#include "cli/train/train_view.h"
#include "base/named.h"
#include "train/run_plan.h"
#include "train/trainer.h"

struct train_settings {
    struct run_config config;
    const char *out, *trace, *page;
    int64_t n, restarts;
    bool fresh, dry_run, json;
};

enum train_mode {
    TRAIN_DRY_RUN,   /* print the plan */
    TRAIN_SUPERVISE, /* start the ranks as other processes and watch them */
    TRAIN_ALONE,     /* be the only rank */
    TRAIN_THREADS,   /* be all ranks, as threads */
    TRAIN_JOIN,      /* be one rank of a job that a launcher started */
};

struct train_job {
    struct cli *cli;
    struct options *options;
    struct train_settings *settings;
    struct train_view *view;
    const char *folder;
    struct ranks_plan plan;
    enum train_mode mode;
    bool met; /* the ranks have met, or are about to: a failure now reaches the other ranks */
};

/* --out, else runs/NAME for NAME.yaml, else runs/train. */
static enum status choose_folder(struct env *env, const struct train_settings *settings,
                                 const char *yaml, char **folder)
{
    if (*settings->out)
        return mem_strdup(env, settings->out, folder);
    /* A configuration from an open descriptor, such as <(...), has no name of its own. */
    if (!yaml || strncmp(yaml, "/dev/", 5) == 0 || strncmp(yaml, "/proc/", 6) == 0)
        yaml = "train";
    const char *slash = strrchr(yaml, '/');
    const char *name = slash ? slash + 1 : yaml;
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

/* --- one rank ------------------------------------------------------------------------------- */

static bool asked_to_stop(void *user)
{
    const struct cli *cli = user;
    return *cli->stop != 0;
}

/* Only rank 0 has a view. */
static enum status train_rank(void *user, struct env *env, const struct session_ranks *ranks)
{
    struct train_job *job = user;
    struct train_view *view = ranks && ranks->rank > 0 ? NULL : job->view;
    struct trainer_callbacks callbacks = {.user = job->cli, .should_stop = asked_to_stop};
    struct trainer_summary summary;
    struct text yaml;
    text_init(&yaml, env);
    options_print_yaml(job->options, &yaml);
    struct trainer_target place = {.folder = job->folder,
                                   .fresh = job->settings->fresh,
                                   .config_yaml = text_string(&yaml),
                                   .trace = job->settings->trace};
    if (view)
        callbacks = train_view_callbacks(view);
    enum status st = yaml.status;
    if (st == STATUS_OK) {
        st = trainer_run(env, &job->settings->config, ranks, &place, &callbacks, &summary);
        if (view)
            train_end_show(view, &summary, job->folder);
    }
    text_free(&yaml);
    return st;
}

/* --- the ranks of this process -------------------------------------------------------------- */

static enum status train_here(struct train_job *job)
{
    const struct ranks_config *ranks = &job->settings->config.ranks;
    struct run_ranks local = {job->plan.size, job->plan.rank, job->plan.local};
    struct machine machine;
    machine_look(&machine);
    /* Other ranks that are processes may have allocated already: then all ranks of this machine are
     * compared with all of its memory. */
    TRY(run_fit_check(job->cli->env, &job->settings->config, &local,
                      job->mode == TRAIN_JOIN ? machine.memory_bytes : machine_memory()));
    job->met = true;
    if (job->mode != TRAIN_JOIN && asked_to_stop(job->cli)) { /* joined ranks stop together */
        log_warn(job->cli->env, "stopped before the first step: there is nothing to save yet; run "
                                "the same command again");
        return STATUS_SAVED;
    }
    struct session_ranks member = {
        .comm = {.backend = comm_backend_words[ranks->backend], .timeout = ranks->timeout},
        .rank = job->plan.rank,
        .near_gpu = job->plan.near_gpu,
        .delay = ranks->delay,
        .failing = job->mode == TRAIN_THREADS ? NULL : ranks_report_failure,
    };
    job->cli->watch(job->cli, job->plan.rank, job->settings->config.machine.stop_timeout);
    if (!job->cli->console->quiet && !job->settings->json)
        ranks_say_choice(job->cli->env, &job->plan);
    if (job->mode == TRAIN_THREADS)
        return ranks_run_threads(job->cli, &job->plan, &member, train_rank, job);
    return train_rank(job, job->cli->env, job->mode == TRAIN_JOIN ? &member : NULL);
}

/* What is left to try after an allocation has failed. */
static void advise_memory(struct env *env, const struct run_config *config)
{
    const struct zero_offload offload = run_offload(&config->offload);
    char left[PLAN_OFFLOAD_KEYS];
    plan_offload_left(&offload, left);
    log_warn(env, "to need less memory, use %s%smore ranks with zero.stage=3, or%s%s",
             config->engine.micro_batch > 1 ? "a smaller train.micro_batch, " : "",
             config->engine.recompute < RECOMPUTE_FULL ? "engine.recompute=full, " : "",
             left[0] != '\0' ? left : " a smaller offload.window",
             left[0] != '\0' ? " (on a GPU also host)" : "");
}

/* Resolve the configuration, then print the plan or train. */
static enum status run_job(struct train_job *job)
{
    enum status st;
    struct train_settings *settings = job->settings;
    struct env *env = job->cli->env;
    const struct machine_config *machine = &settings->config.machine;
    bool chosen = machine->threads > 0;
    if (job->mode == TRAIN_JOIN || job->mode == TRAIN_THREADS)
        ranks_bind(&job->plan, chosen ? (int)machine->threads : job->plan.share.count,
                   machine->bind, machine->device);
    if (job->plan.size > 1 && !chosen) {
        char threads[16];
        snprintf(threads, sizeof threads, "%d", job->plan.share.count);
        TRY(options_set(job->options, "run.threads", threads, "the number of ranks"));
    }
    TRY(mem_alloc(env, MEM_OTHER, "view", sizeof *job->view, &job->view));
    train_view_open(job->view, job->cli, settings->json, settings->fresh,
                    settings->config.train.log_every);
    job->view->threads_why = chosen ? "" : job->plan.share.why;
    settings->config.resumes = settings->fresh ? NULL : job->folder;
    st = run_config_resolve(env, job->options, job->plan.rank == 0 ? train_view_learning : NULL,
                            job->view, &settings->config);
    if (st == STATUS_STOPPED) /* while a vocabulary was learned: there is nothing to save */
        st = STATUS_SAVED;
    TRY_OR(undo_view, st);
    console_live_clear(job->cli->console);
    if (job->mode == TRAIN_DRY_RUN)
        st = dry_run(job->cli, &settings->config, job->plan.size, job->folder, settings->json);
    else
        st = train_here(job);
    if (st == STATUS_MEMORY)
        advise_memory(env, &settings->config);
    run_config_release(&settings->config);
undo_view:
    train_view_close(job->view);
    mem_free(env, job->view);
    return st;
}

/* --- ranks that are other processes --------------------------------------------------------- */

/* One attempt. */
static enum status start_ranks(void *user, const struct restarts_attempt *attempt,
                               struct launch_end *end)
{
    struct train_job *job = user;
    int64_t threads = job->settings->config.machine.threads;
    bool chosen = options_is_set(job->options, "run.threads") && threads > 0;
    const struct launch_order order = {.ranks = job->plan.size,
                                       .alone = job->plan.way != RANKS_LAUNCH,
                                       .threads = chosen ? (int)threads : job->plan.share.count,
                                       .own_threads = !chosen,
                                       .stops = true,
                                       .saves = job->settings->config.checkpoint.final,
                                       .quiet = job->cli->console->quiet || job->settings->json,
                                       .verbose = job->cli->console->verbose};
    char time_flag[64];
    const char *added[LAUNCH_ADDED + 1] = {NULL};
    int count = 0;
    if (attempt->again && !attempt->fresh)
        added[count++] = "--no-fresh";
    if (attempt->again && attempt->max_seconds > 0) {
        snprintf(time_flag, sizeof time_flag, "--train.max_time=%.0fs", attempt->max_seconds);
        added[count++] = time_flag;
    }
    return launch_self(job->cli, &order, added, end);
}

/* Start the ranks and stay as their supervisor. */
static enum status supervise(struct train_job *job)
{
    const struct train_settings *settings = job->settings;
    struct restarts_order order = {
        .folder = job->folder, .most = settings->restarts, .fresh = settings->fresh};
    if (!deadline_parse(settings->config.train.max_time, &order.max_seconds))
        order.max_seconds = 0; /* invalid: the ranks report the error */
    TRY(command_line_hand_on(job->cli));
    return restarts_run(job->cli, &order, start_ranks, job);
}

/* --- what this process is ------------------------------------------------------------------- */

/* `supervised`: a supervisor has started this process. */
static enum status find_mode(struct train_job *job, bool supervised)
{
    static const enum train_mode modes[] = {[RANKS_ONE] = TRAIN_ALONE,
                                            [RANKS_JOIN] = TRAIN_JOIN,
                                            [RANKS_THREADS] = TRAIN_THREADS,
                                            [RANKS_LAUNCH] = TRAIN_SUPERVISE};
    bool restarts = job->settings->restarts > 0 && !supervised;
    if (restarts && job->plan.way == RANKS_JOIN)
        return FAIL(
            job->cli->env, USAGE,
            "--restarts needs ranks that sifr starts (-n): it cannot restart those of mpirun "
            "or srun");
    job->mode = job->settings->dry_run ? TRAIN_DRY_RUN
                : restarts             ? TRAIN_SUPERVISE
                                       : modes[job->plan.way];
    return STATUS_OK;
}

static enum status run_train(struct cli *cli, struct options *options, void *user_settings,
                             const char *const *words, int word_count)
{
    struct train_settings *settings = user_settings;
    struct train_job job = {.cli = cli, .options = options, .settings = settings};
    bool supervised = rank_report_wanted();
    enum status st;
    char *folder;
    if (options_is_set(options, "out") && !*settings->out)
        return FAIL(cli->env, USAGE, "--out is empty; name a folder, or omit --out");
    TRY(ranks_find(cli->env, settings->n, comm_backend_words[settings->config.ranks.backend],
                   &job.plan));
    TRY(choose_folder(cli->env, settings, word_count ? words[0] : NULL, &folder));
    job.folder = folder;
    TRY_OR(done, named_out(cli->env, "--out", folder));
    TRY_OR(done, find_mode(&job, supervised));
    if (options_is_set(options, "page") && !supervised && job.plan.rank == 0 && !settings->dry_run)
        TRY_OR(done, page_start(cli, folder, settings->page));
    if (job.mode == TRAIN_SUPERVISE) {
        st = supervise(&job);
    } else if (supervised || job.plan.way == RANKS_JOIN) {
        rank_report_start(job.plan.rank);
        st = ranks_leave(cli, &job.plan, run_job(&job), job.met);
    } else {
        st = run_job(&job);
    }
done:
    mem_free(cli->env, folder);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

#define FIELD(name, kind) COMMAND_FLAG(#name, train_settings, name, kind)
static const struct option train_list[] = {
    {FIELD(out, STRING), .letter = 'o', .value_name = "DIR",
     .help = "run folder (default: runs/NAME for NAME.yaml, else runs/train)"},
    {FIELD(n, INT), .letter = 'n', COMMAND_RANGE(1, COMMAND_MOST_RANKS),
     .help = "number of ranks to start; omit it under mpirun or srun"},
    {FIELD(restarts, INT), .ranged = true, .max = 1000000, .value_name = "K",
     .help = "number of restarts after a rank dies, each from the last complete checkpoint; stops "
             "after three in a row without progress"},
    {.key = "fewer",
     .type = OPTION_BOOL,
     .flag_only = true,
     .removed = "restarts keep the number of ranks; to resume on fewer, rerun with a smaller -n"},
    {FIELD(fresh, BOOL), .help = "start from step 0; an earlier run in the folder is renamed"},
    {COMMAND_FLAG("dry-run", train_settings, dry_run, BOOL),
     .help = "print the resolved plan and its memory, then exit"},
    {FIELD(trace, STRING), .value_name = "A:B",
     .help = "timeline of steps A to B for Perfetto: trace-rank-R.json in the run folder"},
    {FIELD(page, STRING), .value_name = "[HOST:]PORT", .bare = "0",
     .help = "show the run in a browser while it lasts: prints the address of a page, as `sifr "
             "page` does"},
    {FIELD(json, BOOL),
     .help = "print one JSON object per line: start, steps, evaluations, samples, end"},
};
#undef FIELD

static enum status bind_train(struct options *options, void *user_settings)
{
    struct train_settings *settings = user_settings;
    return run_config_bind(options, &settings->config);
}

const struct command command_train = {
    .name = "train",
    .usage = "[FILE.yaml] [--section.key=value ...] [--out=DIR] [-n RANKS]",
    .summary = "train a model from a configuration file, from keys, or both",
    .description =
        "A key is read from the command line, else from the environment (SIFR_TRAIN_STEPS for "
        "train.steps), else\n"
        "from the file. Whole numbers accept 2k, 4M, 1G and 1e9.\n"
        "The run folder holds the resolved configuration, metrics, samples and "
        "checkpoints; each checkpoint is a\n"
        "Hugging Face directory.\n"
        "Ctrl-C, SIGTERM or SIGHUP stops the run after the current step and saves it, "
        "with exit code 75; rerun\n"
        "the same command to resume, on any number of ranks. A second Ctrl-C ends the "
        "run at once, without saving;\n"
        "a repeated SIGTERM does nothing more. If a stopping run makes no progress for "
        "run.stop_timeout (10 minutes),\n"
        "it ends with exit code 4. Under nohup, SIGHUP is ignored.\n",
    .examples = "  sifr train configs/tiny.yaml --data.path=notes.txt\n"
                "  sifr train --model.preset=tiny --data.path=notes.txt "
                "--data.tokenizer=train:2048 --out=runs/notes\n"
                "  sifr train configs/tiny.yaml --data.path=notes.txt --train.global_batch=64 -n 4 "
                "--zero.stage=3\n"
                "  sifr train configs/tiny.yaml --data.path=notes.txt --train.global_batch=64 -n 4 "
                "--restarts=5\n"
                "  sifr train configs/tiny.yaml --data.path=notes.txt --page\n"
                "  sifr train configs/gpt2-124m.yaml --data.path=notes.txt --dry-run\n",
    .settings_bytes = sizeof(struct train_settings),
    .most_words = 1,
    .config_file = true,
    .stop_words = command_stop_train,
    .flags = COMMAND_FLAGS("run", train_list),
    .bind = bind_train,
    .run = run_train,
};
