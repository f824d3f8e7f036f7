/* command_train -- from a configuration to a trained model in a run folder, on one rank or several.
 * What it shows is in train_view.c, how ranks are started in launch.c and ranks.c, and started again
 * in restarts.c. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/train/dry_run.h"
#include "cli/launch/launch.h"
#include "base/host.h"
#include "cli/rank_report.h"
#include "cli/launch/ranks.h"
#include "cli/launch/restarts.h"
#include "cli/train/train_view.h"
#include "train/config/deadline.h"
#include "base/named.h"
#include "train/run_plan.h"
#include "train/trainer.h"

enum { MOST_RANKS = 65536, ADDED = 8 /* arguments of a rank that are not its supervisor's */ };

struct train_settings {
    struct run_config config;
    const char *out, *trace;
    int64_t n, restarts;
    bool fewer, fresh, dry_run, json, quiet;
};

struct train_job {
    struct cli *cli;
    struct options *options;
    struct train_settings *settings;
    struct train_view *view;
    const char *folder;
    struct ranks_plan plan;
    bool met; /* the other ranks, or is about to: from here on they hear of a failure */
};

/* A configuration from an open descriptor, as of <(...), has no name of its own. */
static bool has_name(const char *yaml)
{
    return yaml && strncmp(yaml, "/dev/", 5) != 0 && strncmp(yaml, "/proc/", 6) != 0;
}

/* --out, or runs/NAME for NAME.yaml, or runs/train. */
static enum status choose_folder(struct env *env, const struct train_settings *settings,
                                 const char *yaml, char **folder)
{
    if (*settings->out)
        return mem_strdup(env, settings->out, folder);
    if (!has_name(yaml))
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

/* Only rank 0 has something to show. */
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
            train_view_summary(view, &summary, job->folder);
    }
    text_free(&yaml);
    return st;
}

/* --- all ranks of this process -------------------------------------------------------------- */

/* Ranks that are processes may have taken theirs already: together they must fit in all there
 * is. */
static enum status check_fit(struct train_job *job)
{
    const struct ranks_plan *plan = &job->plan;
    struct run_ranks ranks = {plan->size, plan->rank, plan->local};
    struct machine machine;
    machine_look(&machine);
    return run_fit_check(job->cli->env, &job->settings->config, &ranks,
                         plan->way == RANKS_JOIN ? machine.memory_bytes : machine_memory());
}

static void report_failure(int rank, enum status st, const char *error)
{
    rank_report_end(rank, st, error, true);
}

static enum status train_here(struct train_job *job)
{
    const struct ranks_config *ranks = &job->settings->config.ranks;
    TRY(check_fit(job));
    job->met = true;
    if (job->plan.way != RANKS_JOIN && asked_to_stop(job->cli)) { /* others may be on their way */
        log_warn(job->cli->env, "stopped before the first step: there is nothing to save yet; run "
                                "the same command again");
        return STATUS_SAVED;
    }
    struct session_ranks member = {
        .comm = {.backend = comm_backend_words[ranks->backend], .timeout = ranks->timeout},
        .rank = job->plan.rank,
        .delay = ranks->delay,
    };
    job->cli->watch(job->cli, job->plan.rank, job->settings->config.machine.stop_timeout);
    if (!job->settings->quiet && !job->settings->json)
        ranks_say_choice(job->cli->env, &job->plan);
    if (job->plan.way == RANKS_THREADS)
        return ranks_run_threads(job->cli, job->plan.size, &member, train_rank, job);
    member.failing = report_failure;
    return train_rank(job, job->cli->env, job->plan.way == RANKS_JOIN ? &member : NULL);
}

static enum status share_threads(struct train_job *job)
{
    char text[16];
    if (job->plan.size == 1 || options_is_set(job->options, "run.threads"))
        return STATUS_OK;
    snprintf(text, sizeof text, "%d", job->plan.threads);
    return options_set(job->options, "run.threads", text, "the number of ranks");
}

/* Resolve the configuration and do what it says. */
static enum status run_job(struct train_job *job)
{
    enum status st;
    struct train_settings *settings = job->settings;
    struct env *env = job->cli->env;
    bool shows = job->plan.rank == 0;
    TRY(share_threads(job));
    TRY(mem_alloc(env, MEM_OTHER, "view", sizeof *job->view, &job->view));
    train_view_open(job->view, job->cli, settings->json, settings->quiet, settings->fresh,
                    settings->config.train.log_every);
    st = run_config_resolve(env, job->options, shows ? train_view_learning : NULL, job->view,
                            &settings->config);
    if (st == STATUS_STOPPED) /* nothing was there to save */
        st = STATUS_SAVED;
    TRY_OR(undo_view, st);
    console_live_clear(job->cli->console);
    st = settings->dry_run
             ? dry_run(job->cli, &settings->config, job->plan.size, job->folder, settings->json)
             : train_here(job);
    if (st == STATUS_MEMORY)
        log_warn(env, "less memory is taken with a smaller train.micro_batch, "
                      "--engine.recompute=full, or more ranks with --zero.stage=3");
    run_config_release(&settings->config);
undo_view:
    train_view_close(job->view);
    mem_free(env, job->view);
    return st;
}

/* --- ranks that are other processes --------------------------------------------------------- */

/* What stands against the user's own words when ranks are started again: the last of several flags
 * counts. */
static size_t add_changes(char (*room)[32], const struct restarts_attempt *attempt, char **argv)
{
    size_t used = 0;
    if (!attempt->again)
        return 0;
    snprintf(room[1], sizeof room[1], "-n%d", attempt->ranks);
    argv[used++] = room[1];
    if (!attempt->fresh)
        argv[used++] = "--no-fresh";
    if (attempt->max_seconds > 0) {
        snprintf(room[2], sizeof room[2], "--train.max_time=%.0fs", attempt->max_seconds);
        argv[used++] = room[2];
    }
    return used;
}

/* This program again, with the same arguments and what was decided here, before a "--" that ends
 * flags. */
static enum status launch(struct train_job *job, const struct ranks_plan *plan, char *program,
                          const struct restarts_attempt *attempt, struct launch_end *end)
{
    struct cli *cli = job->cli;
    int64_t threads = job->settings->config.machine.threads;
    bool chosen = options_is_set(job->options, "run.threads") && threads > 0;
    struct launch_order order = {.ranks = plan->size,
                                 .alone = plan->way != RANKS_LAUNCH,
                                 .threads = chosen ? (int)threads : plan->threads,
                                 .stops = true,
                                 .quiet = job->settings->quiet || job->settings->json,
                                 .verbose = cli->console->verbose};
    char room[3][32], **argv;
    size_t used = 0;
    int flags = 1; /* up to here */
    while (flags < cli->argc && strcmp(cli->argv[flags], "--") != 0)
        flags++;
    TRY(mem_alloc_array(cli->env, MEM_OTHER, "arguments", (size_t)cli->argc + ADDED, sizeof *argv,
                        &argv));
    argv[used++] = program;
    for (int i = 0; i < flags; i++)
        argv[used++] = cli->argv[i];
    if (!order.alone) {
        snprintf(room[0], sizeof room[0], "--run.threads=%d", order.threads);
        argv[used++] = room[0];
    }
    used += add_changes(room, attempt, argv + used);
    for (int i = flags; i < cli->argc; i++)
        argv[used++] = cli->argv[i];
    order.argv = argv;
    enum status st = launch_run(cli, &order, end);
    mem_free(cli->env, argv);
    return st;
}

static enum status start_ranks(void *user, const struct restarts_attempt *attempt,
                               struct launch_end *end)
{
    struct train_job *job = user;
    struct env *env = job->cli->env;
    struct ranks_plan plan;
    char program[4096];
    *end = (struct launch_end){0};
    TRY(ranks_find(env, attempt->ranks, comm_backend_words[job->settings->config.ranks.backend],
                   &plan));
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes < 0)
        return FAIL(env, IO, "cannot find this program's file: %s", strerror(errno));
    program[bytes] = 0;
    return launch(job, &plan, program, attempt, end);
}

/* Ranks that go together: the stages of a pipeline. */
static int ranks_of_a_copy(const struct train_job *job)
{
    int64_t pp = job->settings->config.parallel.pp;
    return pp > 1 ? (int)pp : 1;
}

/* Start the ranks and stay as their supervisor. */
static enum status supervise(struct train_job *job)
{
    const struct train_settings *settings = job->settings;
    struct restarts_order order = {.folder = job->folder,
                                   .most = settings->restarts,
                                   .ranks = job->plan.size,
                                   .fewer = settings->fewer ? ranks_of_a_copy(job) : 0,
                                   .fresh = settings->fresh};
    if (!deadline_parse(settings->config.train.max_time, &order.max_seconds))
        order.max_seconds = 0; /* the ranks will refuse it */
    TRY(command_line_hand_on(job->cli));
    return restarts_run(job->cli, &order, start_ranks, job);
}

static enum status check_restarts(const struct train_job *job, bool watched)
{
    const struct train_settings *settings = job->settings;
    if (settings->fewer && settings->restarts == 0)
        return FAIL(job->cli->env, USAGE, "--fewer is about restarts: --restarts=K --fewer");
    if (settings->restarts > 0 && job->plan.way == RANKS_JOIN && !watched)
        return FAIL(
            job->cli->env, USAGE,
            "--restarts is for ranks that sifr has started itself (-n); what mpirun or srun "
            "has started it can't start again");
    return STATUS_OK;
}

/* A supervisor, or what the run is: a rank of several, or all of them. */
static enum status take_part(struct train_job *job)
{
    const struct train_settings *settings = job->settings;
    bool watched = rank_report_wanted();
    bool launches = job->plan.way == RANKS_LAUNCH || (settings->restarts > 0 && !watched);
    TRY(check_restarts(job, watched));
    if (launches && !settings->dry_run)
        return supervise(job);
    if (!watched && job->plan.way != RANKS_JOIN)
        return run_job(job);
    rank_report_start(job->plan.rank);
    return ranks_leave(job->cli, &job->plan, run_job(job), job->met);
}

static enum status run_train(struct cli *cli, struct options *options, void *user_settings,
                             const char *const *words, int word_count)
{
    struct train_settings *settings = user_settings;
    struct train_job job = {.cli = cli, .options = options, .settings = settings};
    char *folder;
    cli->console->quiet = settings->quiet;
    if (options_is_set(options, "out") && !*settings->out)
        return FAIL(cli->env, USAGE, "--out is empty: name a folder, or leave it away");
    TRY(ranks_find(cli->env, settings->n, comm_backend_words[settings->config.ranks.backend],
                   &job.plan));
    TRY(choose_folder(cli->env, settings, word_count ? words[0] : NULL, &folder));
    job.folder = folder;
    enum status st = named_out(cli->env, "--out", folder);
    if (st == STATUS_OK)
        st = take_part(&job);
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
    {FIELD(n, INT), .letter = 'n', .ranged = true, .min = 1, .max = MOST_RANKS,
     .help = "ranks to start; under mpirun or srun: leave it away"},
    {FIELD(restarts, INT), .ranged = true, .max = 1000000, .value_name = "K",
     .help =
         "when a rank dies, start all again from the last complete checkpoint, at most K times; "
         "given up after three in a row that come no further"},
    {FIELD(fewer, BOOL),
     .help = "with --restarts: each time with one rank fewer, or with one pipeline"},
    {FIELD(fresh, BOOL), .help = "move a run that is already in the folder aside, and begin again"},
    {.key = "dry-run",
     .type = OPTION_BOOL,
     .flag_only = true,
     .offset = offsetof(struct train_settings, dry_run),
     .help = "print the resolved plan and the memory it takes, and stop there"},
    {FIELD(trace, STRING), .value_name = "A:B",
     .help = "write a timeline of steps A to B for Perfetto, trace-rank-R.json in the run folder"},
    {FIELD(quiet, BOOL), .letter = 'q',
     .help = "only warnings, errors, and that a run is complete"},
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
    .usage = "[FILE.yaml] [--section.key=value ...] [--out=DIR] [-n RANKS]",
    .summary = "train a model from a configuration file, from keys, or both",
    .description =
        "A key may stand in the file, in the environment (SIFR_TRAIN_STEPS for train.steps) or on "
        "the command line;\n"
        "the last is the strongest. Whole numbers may be written 2k, 4M, 1G or 1e9. The run folder "
        "gets the\n"
        "resolved configuration, metrics, samples and checkpoints, each a Hugging Face directory.\n"
        "Ctrl-C, SIGTERM or SIGHUP stops the run after the current step and saves it, with exit "
        "code 75; "
        "rerun\n"
        "the same command to resume, on any number of ranks. A second Ctrl-C ends the run at once, "
        "without "
        "saving;\n"
        "a repeated SIGTERM does nothing more. If a stopping run makes no progress for "
        "run.stop_timeout "
        "(10 minutes),\n"
        "it ends with exit code 4. SIGHUP stays ignored under nohup.\n",
    .examples = "  sifr train configs/tiny.yaml --data.path=notes.txt\n"
                "  sifr train --model.preset=tiny --data.path=notes.txt "
                "--data.tokenizer=train:2048 --out=runs/notes\n"
                "  sifr train configs/tiny.yaml --data.path=notes.txt -n 4 --zero.stage=3\n"
                "  sifr train configs/tiny.yaml --data.path=notes.txt -n 4 --restarts=5 --fewer\n"
                "  sifr train configs/gpt2-124m.yaml --data.path=notes.txt --dry-run\n",
    .settings_bytes = sizeof(struct train_settings),
    .most_words = 1,
    .config_file = true,
    .graceful = true,
    .bind = bind_train,
    .run = run_train,
};
