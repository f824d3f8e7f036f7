/* command_plan -- predicts memory and traffic of a run for every ZeRO stage; with --gpus it
 * searches the fastest layout (plan_search.c), with a noise scale for every number of ranks.
 * plan_view.c, plan_search_view.c and plan_batch.c print the results. */
#include <stdio.h>
#include "cli/launch/launch.h"
#include "base/host.h"
#include "base/threads.h"
#include "cli/html_file.h"
#include "cli/json_out.h"
#include "cli/plan/plan_html.h"
#include "cli/plan/plan_view.h"
#include "train/run/run_noise.h"

struct plan_settings {
    struct run_config config;
    int64_t n, gpus, node, memory, host_memory, disk, top;
    double noise_scale;
    const char *machine, *run, *html;
    bool table1, lines, json;
};

/* --- Table 1 of the ZeRO paper ---------------------------------------------------------------- */

/* Rajbhandari et al. 2020: bytes of model state per device in 16-bit mixed precision, for three
 * models, by the formula that plans are compared with. The paper rounds some figures and truncates
 * others; these are exact. */
static const struct {
    const char *name;
    double parameters;
} models[] = {{"7.5B", 7.5e9}, {"128B", 128e9}, {"1T", 1e12}};
static const int devices[] = {1, 4, 16, 64, 256, 1024};
static const char *const cuts[] = {"P_os", "P_os+g", "P_os+g+p"}; /* stages 1, 2, 3 */
enum {
    MODELS = sizeof models / sizeof *models,
    DEVICES = sizeof devices / sizeof *devices,
    CUTS = sizeof cuts / sizeof *cuts
};

static double table1_figure(int model, int device, int cut)
{
    struct roster roster = roster_of(0, devices[device], 0);
    return formula_state(&roster, sharding_of(cut + 1), models[model].parameters, state_mixed);
}

static enum status table1_json(struct cli *cli)
{
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_open(&json, "table1", '[');
    for (int m = 0; m < MODELS; m++)
        for (int d = 0; d < DEVICES; d++) {
            json_out_open(&json, NULL, '{');
            json_out_string(&json, "model", models[m].name);
            json_out_int(&json, "ranks", devices[d]);
            for (int c = 0; c < CUTS; c++)
                json_out_real(&json, cuts[c], table1_figure(m, d, c));
            json_out_close(&json, '}');
        }
    json_out_close(&json, ']');
    return json_out_print(&json, cli->console);
}

static void table1_lines(struct text *text)
{
    char word[32];
    text_add(text, "model state per device, 16-bit mixed precision with Adam (2 + 2 + 12 bytes per "
                   "parameter), in 10^9 bytes;\n"
                   "P_os is ZeRO stage 1, P_os+g stage 2, P_os+g+p stage 3\n");
    for (int m = 0; m < MODELS; m++) {
        snprintf(word, sizeof word, "%s on", models[m].name);
        text_printf(text, "\n%-8s", word);
        for (int c = 0; c < CUTS; c++)
            text_printf(text, " %15s", cuts[c]);
        text_add(text, "\n");
        for (int d = 0; d < DEVICES; d++) {
            text_printf(text, "%6d  ", devices[d]);
            for (int c = 0; c < CUTS; c++)
                text_printf(text, " %15.12g", table1_figure(m, d, c) / 1e9);
            text_add(text, "\n");
        }
    }
}

static enum status show_table1(struct cli *cli, bool json)
{
    struct text text;
    if (json)
        return table1_json(cli);
    text_init(&text, cli->env);
    table1_lines(&text);
    return console_print(cli->console, &text);
}

/* --- a given layout --------------------------------------------------------------------------- */

/* The run may fit on a GPU that is here but was not chosen. */
static enum status advise_gpu(struct cli *cli, const struct plan_view *view, struct text *advice)
{
    char name[64];
    TRY(run_gpu_that_fits(cli->env, view->config, view->request->ranks,
                          launch_local_ranks(view->request->ranks), name, sizeof name));
    if (name[0] != '\0')
        text_printf(
            advice,
            "the GPU of this machine, %s, has enough memory: set run.device=cuda; on the CPU ",
            name);
    return STATUS_OK;
}

/* The table is printed in any case; a layout that does not fit is an error after it. */
static enum status show(struct cli *cli, const struct plan_view *view, bool json)
{
    const struct plan_zero_stage *stage = &view->plan->stages[view->request->zero.stage];
    struct plan_room needs = plan_needs(stage);
    struct text advice;
    char a[32], b[PLAN_VIEW_MEMORY], c[PLAN_VIEW_MEMORY], d[PLAN_VIEW_MEMORY];
    TRY(json ? plan_view_json(cli, view) : plan_view_table(cli, view));
    if (plan_fits(stage, &view->room))
        return STATUS_OK;
    text_init(&advice, cli->env);
    TRY(advise_gpu(cli, view, &advice));
    plan_view_advice(view, &advice);
    enum status st =
        FAIL(cli->env, FIT, "ZeRO stage %d needs %s per rank%s, and only %s%s is available; %s",
             view->request->zero.stage, text_human_bytes(a, (double)needs.memory),
             plan_view_elsewhere(&needs, &view->room, c), plan_view_memory(view, b),
             plan_view_elsewhere(&view->room, &view->room, d), text_string(&advice));
    text_free(&advice);
    return st;
}

static enum status plan_and_show(struct cli *cli, const struct plan_settings *settings)
{
    const struct plan_request request = run_plan_request(&settings->config, (int)settings->n);
    struct plan plan;
    struct plan_advice advice;
    struct plan_view view = {.config = &settings->config,
                             .request = &request,
                             .plan = &plan,
                             .advice = &advice,
                             .room = {.memory = (size_t)settings->memory,
                                      .host = (size_t)settings->host_memory,
                                      .disk = (size_t)settings->disk},
                             .runtime_bytes = formula_runtime(launch_local_ranks(request.ranks)),
                             .lines = settings->lines};
    spread_warn_unused(cli->env, &settings->config.parallel);
    if (settings->memory == 0) {
        int local = launch_local_ranks(request.ranks);
        bool gpu = settings->config.machine.device == RUN_DEVICE_CUDA;
        view.shared_bytes = gpu ? settings->config.device.free_bytes : machine_memory();
        view.room.memory = run_memory(&settings->config, view.shared_bytes, local);
    }
    const struct run_config *config = &settings->config;
    TRY(data_size_find(cli->env, &config->data, config->tokenizer, config->model.vocab, NULL,
                       &view.data));
    TRY(plan_make(cli->env, &request, &plan));
    enum status st = plan_advise(cli->env, &request, &plan, &view.room, &advice);
    if (st == STATUS_OK && *settings->html)
        st = plan_html_layout(cli, &view, settings->html);
    if (st == STATUS_OK)
        st = show(cli, &view, settings->json);
    plan_free(cli->env, &plan);
    return st;
}

/* --- the batch ------------------------------------------------------------------------------ */

/* noise->scale is 0 if neither flag was given. */
static enum status find_noise(struct cli *cli, const struct options *options,
                              const struct plan_settings *settings, struct plan_noise *noise)
{
    struct run_noise measured;
    *noise = (struct plan_noise){.scale = settings->noise_scale, .run = settings->run};
    if (options_is_set(options, "noise-scale") && settings->noise_scale == 0)
        return FAIL(cli->env, USAGE, "--noise-scale=0 is too small; give a number above 0");
    if (!options_is_set(options, "run"))
        return STATUS_OK;
    if (noise->scale > 0)
        return FAIL(cli->env, USAGE,
                    "--noise-scale and --run cannot be combined: --run takes the noise scale of a "
                    "run");
    TRY(run_noise_find(cli->env, settings->run, &measured));
    if (measured.scale == 0)
        return FAIL(cli->env, CONFIG,
                    "the run in '%s' has no noise scale; train with --train.noise_scale=yes and at "
                    "least two micro-batches per step (train.global_batch above train.micro_batch)",
                    settings->run);
    noise->scale = measured.scale;
    noise->step = measured.step;
    return STATUS_OK;
}

/* Without a machine: steps only. */
static enum status show_steps(struct cli *cli, const struct plan_settings *settings,
                              const struct plan_noise *noise)
{
    const struct run_config *config = &settings->config;
    const struct plan_request request = run_plan_request(config, (int)settings->n);
    const struct batch_law law =
        batch_law_of(noise->scale, config->train.global_batch, (double)config->train.steps);
    struct scaling scaling;
    scaling_grow(&request, &scaling);
    const struct plan_batch_view view = {
        .config = config, .noise = noise, .law = &law, .scaling = &scaling, .ranks = request.ranks};
    return plan_batch_show(cli, &view, settings->json);
}

/* --- the mode ------------------------------------------------------------------------------- */

/* Divide the cores of this machine among the ranks, as the launch of the run would. */
static enum status share_threads(struct options *options, int local_ranks)
{
    char text[16];
    if (local_ranks == 1 || options_is_set(options, "run.threads"))
        return STATUS_OK;
    snprintf(text, sizeof text, "%d", threads_default(local_ranks, false).count);
    return options_set(options, "run.threads", text, "the number of ranks");
}

/* Either a given layout is planned (-n), or the best one is searched (--gpus). */
static enum status check_mode(struct cli *cli, const struct options *options,
                              const struct plan_settings *settings, bool noise)
{
    static const char *const own[] = {"machine", "node", "top"};
    if (settings->gpus == 0 && options_is_set(options, "gpus"))
        return FAIL(cli->env, USAGE, "--gpus=0 is too few; give at least 1");
    if (settings->gpus > 0 && options_is_set(options, "n"))
        return FAIL(
            cli->env, USAGE,
            "-n and --gpus cannot be combined: -n plans the given layout, --gpus searches one");
    if (settings->gpus > 0 && settings->lines)
        return FAIL(cli->env, USAGE, "--lines needs a single layout: use -n instead of --gpus");
    if (noise && settings->lines)
        return FAIL(cli->env, USAGE, "--lines needs a single layout: omit the noise scale");
    if (noise && options_is_set(options, "html"))
        return FAIL(cli->env, USAGE, "--html draws a layout or a search: omit the noise scale");
    if (options_is_set(options, "html"))
        TRY(html_file_check(cli->env, "html", settings->html, "plan"));
    if (noise && options_is_set(options, "top"))
        return FAIL(
            cli->env, USAGE,
            "--top has no effect with a noise scale: a row has the best layout of its ranks");
    for (size_t i = 0; settings->gpus == 0 && i < sizeof own / sizeof *own; i++)
        if (options_is_set(options, own[i]))
            return FAIL(cli->env, USAGE, "--%s works only with --gpus", own[i]);
    return STATUS_OK;
}

static enum status run_plan(struct cli *cli, struct options *options, void *user_settings,
                            const char *const *words, int word_count)
{
    struct plan_settings *settings = user_settings;
    (void)words, (void)word_count;
    if (settings->table1)
        return show_table1(cli, settings->json);
    struct plan_noise noise;
    enum status st;
    TRY(find_noise(cli, options, settings, &noise));
    TRY(check_mode(cli, options, settings, noise.scale > 0));
    if (settings->gpus > 0) {
        const struct plan_search_asked asked = {.gpus = settings->gpus,
                                                .node = settings->node,
                                                .memory = settings->memory,
                                                .host_memory = settings->host_memory,
                                                .disk = settings->disk,
                                                .top = settings->top,
                                                .machine = settings->machine,
                                                .noise = noise.scale > 0 ? &noise : NULL,
                                                .json = settings->json,
                                                .html = settings->html};
        st = plan_search(cli, options, &asked, &settings->config);
        run_config_release(&settings->config);
        return st;
    }
    TRY(share_threads(options, launch_local_ranks((int)settings->n)));
    TRY(run_config_resolve(cli->env, options, NULL, NULL, &settings->config));
    st = noise.scale > 0 ? show_steps(cli, settings, &noise) : plan_and_show(cli, settings);
    run_config_release(&settings->config);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

#define FLAG(name, kind) COMMAND_FLAG(#name, plan_settings, name, kind)
static const struct option plan_list[] = {
    {FLAG(n, INT), .letter = 'n', .fallback = "1", COMMAND_RANGE(1, 65536), .value_name = "RANKS",
     .help = "number of ranks"},
    {FLAG(memory, INT), .fallback = "0", COMMAND_RANGE(0, 9e18), .value_name = "BYTES",
     .help =
         "memory of a rank, such as 80G; 0 = free memory of this machine divided by its ranks, or "
         "with --gpus the memory of the machine's GPUs"},
    {COMMAND_FLAG("host-memory", plan_settings, host_memory, INT), .fallback = "0",
     COMMAND_RANGE(0, 9e18), .value_name = "BYTES",
     .help = "host memory of a rank with a GPU: where a layout does not fit, state may go there "
             "(offload.*); 0 = do not propose it"},
    {FLAG(disk, INT), .fallback = "0", COMMAND_RANGE(0, 9e18), .value_name = "BYTES",
     .help = "the same for disk space of a rank"},
    {FLAG(gpus, INT), .fallback = "0", COMMAND_RANGE(0, 1e6), .value_name = "RANKS",
     .help = "search for the fastest layout for this many ranks; given keys stay fixed"},
    {FLAG(machine, STRING), .fallback = "h100", .value_name = "NAME|FILE",
     .help =
         "with --gpus: machine profile: h100, h200, a100-80g, a100-40g, or a file written by `sifr "
         "bench --save`"},
    {FLAG(node, INT), .fallback = "0", COMMAND_RANGE(0, 4096), .value_name = "RANKS",
     .help = "with --gpus: ranks per node, which a TP group never leaves; 0 = from the profile"},
    {FLAG(top, INT), .fallback = "5", COMMAND_RANGE(1, 1000), .value_name = "K",
     .help = "with --gpus: number of layouts to print, the best of each combination of tp and pp"},
    {COMMAND_FLAG("noise-scale", plan_settings, noise_scale, REAL), .fallback = "0",
     COMMAND_RANGE(0, 1e12), .value_name = "SEQUENCES",
     .help = "gradient noise scale: show steps and, with --gpus, time to the same loss against the "
             "number of ranks"},
    {FLAG(run, STRING), .value_name = "DIR",
     .help = "the same, with the last noise scale that the run in this folder has measured "
             "(train.noise_scale)"},
    {FLAG(lines, BOOL), .help = "also list every buffer of rank 0 in the chosen ZeRO stage"},
    {FLAG(table1, BOOL), .help = "print Table 1 of the ZeRO paper with exact figures, and exit"},
    {FLAG(html, STRING), .value_name = "FILE",
     .help = "also draw the plan as a page that needs no network: memory by ZeRO stage, the "
             "timetable of a pipeline, and with --gpus the layouts by time and memory; replaces "
             "only such pages"},
    {FLAG(json, BOOL), .help = "print one JSON object"},
};
#undef FLAG

static enum status bind_plan(struct options *options, void *user_settings)
{
    struct plan_settings *settings = user_settings;
    return run_config_bind_planning(options, &settings->config);
}

const struct command command_plan = {
    .name = "plan",
    .usage = "[FILE.yaml] [-n RANKS | --gpus RANKS] [--section.key=value ...]",
    .summary =
        "predict memory and traffic of a run, or search for the fastest layout for a cluster",
    .description =
        "Builds the run on a device that only counts, and simulates one step: nothing is "
        "allocated, "
        "and no data is needed when model.vocab is set. The table has a column for each ZeRO "
        "stage; "
        "the chosen one is in brackets. The exit code is 4 when it does not fit in memory.\n\n"
        "The rows params, grads and optimizer are the model state. slots holds gathered parameters "
        "and gradients that are being sent, comm what arrives from other ranks, loader the "
        "batches. "
        "The data has its own line: its tokens are mapped from files, once for all ranks of a "
        "host, "
        "and are not part of the total. Neither is runtime, the memory of MPI and BLAS, or of CUDA "
        "and its libraries: a plan estimates it, a run measures it. Traffic is split into "
        "parameters "
        "(gather), gradients (reduce), matrices that Muon orthogonalizes (muon), and losses, norms "
        "and votes (control). Formulas are those of the ZeRO paper.\n\n"
        "--gpus searches the layout (tp, pp, ZeRO stage, micro-batch, recomputation, schedule) "
        "with "
        "the shortest time for a step of train.global_batch sequences that fits in memory. Keys "
        "that "
        "you set stay fixed; the search covers all values of the others. Each layout is timed by "
        "simulating a step on the chosen machine: a preset, or a profile measured with `sifr "
        "bench`.\n\n"
        "--host-memory and --disk let state leave the device where a layout does not fit without: "
        "optimizer state, summed gradients and parameters each go where their bytes take the least "
        "time, and of the optimizer state as little as is enough. "
        "With --gpus, the time per step with and without it and the bytes over the link are shown. "
        "Keys of offload that you set stay as they are.\n\n"
        "--noise-scale or --run shows what more ranks are worth. A batch of b sequences needs "
        "S (1 + B / b) steps for the same loss, where B is the gradient noise scale and S follows "
        "from train.steps and train.global_batch. With --gpus there is a row for 1, 2, 4, ... "
        "ranks "
        "up to that number: time with train.global_batch, the batch with the shortest time, its "
        "steps, layout and tokens relative to the least. Without --gpus nothing is timed, and each "
        "rank keeps its part of the batch. A global batch above the noise scale gets a warning.\n",
    .examples = "  sifr plan configs/gpt2-124m.yaml -n 4 --zero.stage=2\n"
                "  sifr plan configs/llama-1b.yaml --model.vocab=32000 -n 8 --memory=16G\n"
                "  sifr plan --table1\n"
                "  sifr plan --model.preset=llama-1b --model.vocab=32000 --precision.mode=bf16 "
                "--gpus=64 --train.global_batch=512\n"
                "  sifr plan configs/llama-1b.yaml --model.vocab=32000 --precision.mode=bf16 "
                "--gpus=16 --machine=a100-40g --zero.stage=1\n"
                "  sifr plan configs/llama-1b.yaml --model.vocab=32000 --precision.mode=bf16 "
                "--gpus=1 \\\n"
                "      --memory=12G --host-memory=64G --disk=200G\n"
                "  sifr plan configs/llama-1b.yaml --model.vocab=32000 --precision.mode=bf16 "
                "--gpus=64 --noise-scale=300\n"
                "  sifr plan configs/tiny.yaml --model.vocab=8192 --run=runs/tiny\n"
                "  sifr plan configs/llama-1b.yaml --model.vocab=32000 --precision.mode=bf16 "
                "--gpus=64 --html=plan.html\n",
    .settings_bytes = sizeof(struct plan_settings),
    .most_words = 1,
    .config_file = true,
    .flags = COMMAND_FLAGS("plan", plan_list),
    .bind = bind_plan,
    .run = run_plan,
};
