/* command_bench -- times single operations and whole training steps. Communication and machine
 * profiles are in bench_machine.c.
 *
 * Every rate is also printed as a share of a large matrix product (2048 cubed) measured in the same
 * run, which is about the best that the machine can do. For a step on a GPU it is a share of the
 * vendor's peak for dense products instead (MFU).
 */
#include <math.h>
#include <string.h>
#include "cli/bench/bench.h"
#include "cli/command.h"
#include "cli/json_out.h"
#include "base/threads.h"
#include "ops/ops_trial.h"
#include "train/config/config.h"
#include "train/config/optimizer_config.h"
#include "train/run/pace.h"

struct bench_settings {
    struct run_config run; /* model, engine and precision; all of it for a machine profile */
    int device;            /* enum run_device */
    int64_t batch, micro_batches, context, steps;
    int64_t n, largest, node;
    double peak_tflops;
    double seconds;
    const char *backend, *save;
    bool json;
};

struct bench {
    struct cli *cli;
    const struct bench_settings *settings;
    struct run_config place;       /* only device, precision and peak */
    struct bench_step_config step; /* with `step` and `all` */
    double sgemm_gflops;           /* 0 = not measured */
    struct json_out json;
};

static bool ops_on_gpu(const struct bench *bench)
{
    return strcmp(bench->settings->backend, "cuda") == 0;
}

/* Rows, inputs and outputs of the reference matrix product. */
static int product_side(const struct bench *bench)
{
    return ops_on_gpu(bench) ? 8192 : 2048;
}

/* --- operations ----------------------------------------------------------------------------- */

static enum status with_ops(struct bench *bench, enum status (*work)(struct bench *, struct ops *))
{
    struct device *device;
    struct ops *ops;
    enum status st;
    bool gpu = ops_on_gpu(bench);
    enum dtype type = gpu ? run_type(&bench->place) : DTYPE_F32;
    TRY(device_create(bench->cli->env, gpu ? "cuda" : "cpu", 0, &device));
    TRY_OR(undo_device, ops_create(device, bench->settings->backend, type, &ops));
    if (gpu && !bench->place.machine.deterministic)
        ops_be_fast(ops);
    st = work(bench, ops);
    ops_destroy(ops);
undo_device:
    device_destroy(device);
    return st;
}

static enum status measure_sgemm(struct bench *bench, struct ops *ops)
{
    int64_t side = product_side(bench);
    const struct ops_case product = {
        .op = "linear", .rows = side, .linear = {.in = side, .out = side}};
    struct ops_bench_result result;
    TRY(ops_bench_run(ops, &product, 1, bench->settings->seconds > 1 ? bench->settings->seconds : 1,
                      &result));
    bench->sgemm_gflops = result.gflops;
    return STATUS_OK;
}

static void report_op(struct bench *bench, const char *name, const struct ops_bench_result *r)
{
    if (bench->settings->json) {
        json_out_open(&bench->json, NULL, '{');
        json_out_string(&bench->json, "name", name);
        json_out_real(&bench->json, "seconds", r->seconds);
        json_out_real(&bench->json, "gflops", r->gflops);
        json_out_real(&bench->json, "gbytes_per_second", r->gbytes_per_second);
        json_out_int(&bench->json, "calls", r->calls);
        json_out_close(&bench->json, '}');
    } else {
        console_line(bench->cli->console, "%-28s %10.3f %10.1f %8.1f %8.1f%%", name,
                     1e3 * r->seconds, r->gflops, r->gbytes_per_second,
                     100 * r->gflops / bench->sgemm_gflops);
    }
}

static enum status measure_ops(struct bench *bench, struct ops *ops)
{
    struct progress_task task;
    if (bench->settings->json)
        json_out_open(&bench->json, "ops", '[');
    else
        console_line(bench->cli->console, "\n%-28s %10s %10s %8s %9s", "operation", "ms", "GFLOP/s",
                     "GB/s", "of sgemm");
    progress_begin(&task, "timing", "operations", (uint64_t)ops_bench_case_count);
    for (int i = 0; i < ops_bench_case_count; i++) {
        struct ops_bench_result result;
        snprintf(task.figure, sizeof task.figure, "%s", ops_bench_cases[i].name);
        progress_reach(bench->cli->env, &task, (uint64_t)i);
        TRY(ops_bench_run(ops, &ops_bench_cases[i].shape, 1, bench->settings->seconds, &result));
        report_op(bench, ops_bench_cases[i].name, &result);
    }
    if (bench->settings->json)
        json_out_close(&bench->json, ']');
    return STATUS_OK;
}

/* --- a step --------------------------------------------------------------------------------- */

enum { GPU_WARMUP = 5 }; /* steps in which libraries choose and build their kernels */

static bool on_gpu(const struct bench *bench)
{
    return bench->place.machine.device == RUN_DEVICE_CUDA;
}

/* Memory in use on the GPU, accounted memory, clock and power. */
static void gpu_json(struct bench *bench, const struct bench_step_result *r)
{
    json_out_int(&bench->json, "gpu_bytes", (int64_t)r->gpu.held_bytes);
    json_out_int(&bench->json, "gpu_accounted_bytes", (int64_t)r->gpu.accounted_bytes);
    json_out_int(&bench->json, "gpu_runtime_estimate_bytes", (int64_t)r->gpu.runtime_bytes);
    json_out_real(&bench->json, "gpu_excess", footprint_excess(&r->gpu));
    json_out_gauges(&bench->json, &r->gauges);
}

static void gpu_lines(struct console *console, const struct bench_step_result *r)
{
    double excess = 100 * footprint_excess(&r->gpu);
    char a[32], b[32], gauges[96];
    console_line(console, "  GPU        %s in use: %.1f %% %s than this total plus %s of runtime",
                 text_human_bytes(a, (double)r->gpu.held_bytes), fabs(excess),
                 excess < 0 ? "less" : "more", text_human_bytes(b, (double)r->gpu.runtime_bytes));
    if (*gauges_words(&r->gauges, gauges, sizeof gauges))
        console_line(console, "             %s at the end", gauges);
}

static void report_step(struct bench *bench, const struct bench_step_config *config,
                        const struct bench_step_result *r)
{
    double peak = run_peak(&bench->place, 1);
    double mfu = peak > 0 ? 1e9 * r->gflops / peak : NAN;
    bool comparable = bench->sgemm_gflops > 0 && on_gpu(bench) == ops_on_gpu(bench);
    double share = comparable ? r->gflops / bench->sgemm_gflops : NAN;
    char a[32], b[32];
    if (bench->settings->json) {
        json_out_open(&bench->json, "step", '{');
        json_out_string(&bench->json, "device", config->place.backend);
        json_out_string(&bench->json, "gpu", bench->place.device.name);
        json_out_string(&bench->json, "compute", dtype_name(config->place.type));
        json_out_string(&bench->json, "params", dtype_name(config->store.type));
        json_out_string(&bench->json, "sums", dtype_name(config->store.sum_type));
        json_out_string(&bench->json, "optimizer", optimizer_word(config->store.optimizer.kind));
        json_out_bool(&bench->json, "deterministic", !config->place.fast);
        json_out_int(&bench->json, "steps", config->steps);
        json_out_int(&bench->json, "parameters", r->parameters);
        json_out_int(&bench->json, "batch", config->engine.micro_batch);
        json_out_int(&bench->json, "micro_batches", config->engine.micro_batches);
        json_out_int(&bench->json, "context", config->engine.tokens);
        json_out_int(&bench->json, "vocab", config->model.vocab);
        json_out_real(&bench->json, "seconds", r->seconds);
        json_out_real(&bench->json, "fastest", r->fastest);
        json_out_real(&bench->json, "slowest", r->slowest);
        json_out_real(&bench->json, "tokens_per_second", r->tokens_per_second);
        json_out_real(&bench->json, "mfu", mfu);
        json_out_real(&bench->json, "flops_per_token", r->flops_per_token);
        json_out_real(&bench->json, "gflops", r->gflops);
        json_out_real(&bench->json, "sgemm_share", share);
        json_out_int(&bench->json, "peak_bytes", (int64_t)r->held.total_bytes);
        json_out_mem(&bench->json, "peak", r->held.bytes);
        if (r->gpu.held_bytes > 0)
            gpu_json(bench, r);
        json_out_real(&bench->json, "loss", r->loss);
        json_out_close(&bench->json, '}');
        return;
    }
    struct console *console = bench->cli->console;
    console_line(console, "\nstep of %s parameters with %s, %lld x %lld sequences of %lld tokens",
                 text_human_count(a, (double)r->parameters),
                 optimizer_word(config->store.optimizer.kind),
                 (long long)config->engine.micro_batches, (long long)config->engine.micro_batch,
                 (long long)config->engine.tokens);
    console_line(console, "  time       %.1f ms (median of %lld; %.1f to %.1f)", 1e3 * r->seconds,
                 (long long)config->steps, 1e3 * r->fastest, 1e3 * r->slowest);
    console_line(console, "  speed      %.1f tok/s%s", r->tokens_per_second,
                 config->place.fast ? ", without equal bits (run.deterministic: false)" : "");
    if (isfinite(share))
        console_line(console, "  rate       %.1f GFLOP/s, %.1f%% of sgemm", r->gflops, 100 * share);
    if (isfinite(mfu))
        console_line(console, "  mfu        %.1f%% of %.0f TFLOP/s", 100 * mfu, peak / 1e12);
    console_line(console, "  memory     %s:", text_human_bytes(b, (double)r->held.total_bytes));
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        if (r->held.bytes[c] * 200 >= r->held.total_bytes)
            console_line(console, "    %-12s %s", mem_category_word((enum mem_category)c),
                         text_human_bytes(b, (double)r->held.bytes[c]));
    if (r->gpu.held_bytes > 0)
        gpu_lines(console, r);
}

/* The store that a run with these settings would have on one rank. */
static struct zero_config step_store(const struct run_config *run, int64_t micro_batches)
{
    return (struct zero_config){.optimizer = run_optimizer(run),
                                .weight_decay = run->train.weight_decay,
                                .clip = run->train.clip,
                                .meta_clip = run->model.sars.meta_clip,
                                .groups = run->groups,
                                .group_count = run->optimizer.groups.count,
                                .micro_batches = micro_batches,
                                .type = run_type(run),
                                .sum_type = run_sum_type(run),
                                .stochastic = run->optimizer.rounding == RUN_ROUNDING_STOCHASTIC,
                                .seed = (uint64_t)run->train.seed};
}

static enum status resolve_step(struct bench *bench, struct options *options)
{
    const struct bench_settings *settings = bench->settings;
    struct bench_step_config config = {.model = settings->run.model,
                                       .engine = settings->run.engine,
                                       .place = run_compute(&bench->place),
                                       .warmup = on_gpu(bench) ? GPU_WARMUP : 1,
                                       .steps = settings->steps};
    if (!bench->place.machine.deterministic && !config.place.fast)
        return FAIL(bench->cli->env, CONFIG,
                    "run.deterministic=false has no effect on the CPU; omit it");
    if (config.model.preset == 0 && config.model.layers == 0)
        return FAIL(bench->cli->env, CONFIG,
                    "no model: set --model.preset, such as gpt2-124m, or the sizes of the model");
    TRY(model_resolve(bench->cli->env, options, &config.model));
    if (config.model.vocab == 0)
        config.model.vocab = 50304;
    TRY(model_check(bench->cli->env, &config.model));
    bench->place.model = config.model;
    TRY(run_config_suit_model(bench->cli->env, options, &bench->place));
    config.engine.micro_batch = settings->batch;
    config.engine.micro_batches = settings->micro_batches;
    config.engine.tokens = settings->context ? settings->context : config.model.context;
    if (config.engine.tokens > config.model.context)
        return FAIL(bench->cli->env, CONFIG, "--context=%lld is larger than model.context=%lld",
                    (long long)config.engine.tokens, (long long)config.model.context);
    TRY(optimizer_resolve(bench->cli->env, options, &bench->place));
    config.store = step_store(&bench->place, config.engine.micro_batches);
    bench->step = config;
    return STATUS_OK;
}

static enum status measure_step(struct bench *bench)
{
    struct bench_step_result result;
    TRY(bench_step_run(bench->cli->env, &bench->step, &result));
    report_step(bench, &bench->step, &result);
    return STATUS_OK;
}

/* --- the command's work --------------------------------------------------------------------- */

/* Check the settings before anything is measured. */
static enum status measure(struct bench *bench, struct options *options, const char *what)
{
    struct env *env = bench->cli->env;
    bool all = strcmp(what, "all") == 0;
    bool step_alone = strcmp(what, "step") == 0;
    if (all || step_alone)
        TRY(resolve_step(bench, options));
    if (step_alone && on_gpu(bench) && !ops_on_gpu(bench)) /* the rate of the CPU is irrelevant */
        return measure_step(bench);
    TRY(with_ops(bench, measure_sgemm));
    if (bench->settings->json) {
        json_out_int(&bench->json, "threads", env->threads);
        json_out_real(&bench->json, "sgemm_gflops", bench->sgemm_gflops);
    } else {
        int side = product_side(bench);
        console_line(bench->cli->console, "%s %d^3: %.1f GFLOP/s on %d thread%s",
                     ops_on_gpu(bench) ? "product" : "sgemm", side, bench->sgemm_gflops,
                     env->threads, env->threads == 1 ? "" : "s");
    }
    if (all || strcmp(what, "ops") == 0)
        TRY(with_ops(bench, measure_ops));
    if (all || step_alone)
        TRY(measure_step(bench));
    return STATUS_OK;
}

#define MACHINE_SECONDS 0.07 /* default of --seconds for a profile, which has many calls */

/* Measure for a machine profile, or on several ranks. */
static enum status measure_machine(struct cli *cli, struct options *options,
                                   struct bench_settings *settings, bool comm, bool configured)
{
    double seconds = options_is_set(options, "seconds") ? settings->seconds : MACHINE_SECONDS;
    const struct bench_machine order = {
        .config = &settings->run,
        .comm = comm,
        .configured = configured,
        .device = options_is_set(options, "backend") && strcmp(settings->backend, "cuda") != 0
                      ? RUN_DEVICE_CPU
                      : settings->device,
        .n = settings->n,
        .threads = settings->run.machine.threads,
        .seconds = seconds,
        .calls = {.largest = settings->largest, .seconds = seconds, .node = settings->node},
        .save = settings->save,
        .json = settings->json,
    };
    if (strcmp(settings->backend, "ref") == 0)
        return FAIL(cli->env, USAGE, "--backend=ref cannot measure a machine; use cpu or cuda");
    return bench_machine_run(cli, options, &order);
}

static enum status run_bench(struct cli *cli, struct options *options, void *user_settings,
                             const char *const *words, int word_count)
{
    struct bench_settings *settings = user_settings;
    struct bench bench = {.cli = cli, .settings = settings};
    const char *what = word_count ? words[0] : "ops";
    bool comm = strcmp(what, "comm") == 0, ops = strcmp(what, "ops") == 0;
    if (!comm && !ops && strcmp(what, "step") != 0 && strcmp(what, "all") != 0)
        return FAIL(cli->env, USAGE, "unknown benchmark '%s'; choose ops, step, all or comm", what);
    if (word_count > 1 && !ops)
        return FAIL(cli->env, USAGE,
                    "unexpected argument '%s': only bench ops takes a configuration file",
                    words[1]);
    if (word_count > 1) {
        TRY(options_load_yaml(options, words[1]));
        options_warn_removed(options);
    }
    if (options_is_set(options, "save") && !*settings->save)
        return FAIL(cli->env, USAGE, "--save is empty: name a file, or omit --save");
    bool configured =
        ops && (word_count > 1 || options_is_set(options, "model.preset") ||
                options_is_set(options, "model.layers") || options_is_set(options, "model.path"));
    if (comm || (ops && (settings->n > 0 || *settings->save || configured)))
        return measure_machine(cli, options, settings, comm, configured);
    if (settings->n > 0 || *settings->save)
        return FAIL(cli->env, USAGE, "%s works only with bench ops and bench comm",
                    settings->n > 0 ? "-n" : "--save");
    int64_t threads = bench.settings->run.machine.threads;
    cli->env->threads = threads > 0 ? (int)threads : threads_default(1, true).count;
    TRY(ops_cpu_use(cli->env, settings->run.machine.kernels));
    bench.place = bench.settings->run;
    bench.place.machine.device = bench.settings->device;
    bench.place.machine.peak_tflops = bench.settings->peak_tflops;
    TRY(run_device_find(cli->env, false, &bench.place.machine.device, &bench.place.device));
    json_out_begin(&bench.json, cli->env);
    enum status st = measure(&bench, options, what);
    console_live_clear(cli->console);
    if (st == STATUS_OK && bench.settings->json)
        return json_out_print(&bench.json, cli->console);
    text_free(&bench.json.text);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

#define FIELD(name, kind) COMMAND_FLAG(#name, bench_settings, name, kind)
static const struct option bench_list[] = {
    {FIELD(batch, INT), .letter = 'b', .fallback = "4", COMMAND_RANGE(1, 1e6),
     .help = "step: sequences per micro-batch"},
    {COMMAND_FLAG("micro-batches", bench_settings, micro_batches, INT), .fallback = "1",
     COMMAND_RANGE(1, 1e6), .help = "step: micro-batches per step"},
    {FIELD(context, INT), .letter = 'T', .fallback = "0", COMMAND_RANGE(0, 1e7),
     .help = "step: tokens per sequence; 0 = model.context"},
    {FIELD(steps, INT), .fallback = "5", COMMAND_RANGE(1, 1e6),
     .help = "step: number of timed steps"},
    {FIELD(seconds, REAL), .fallback = "0.2", COMMAND_RANGE(0.001, 3600),
     .help = "ops, comm: seconds for each measurement; default with --save, -n or a model: 0.07"},
    {FIELD(backend, STRING), .fallback = "cpu", .value_name = "NAME",
     .help =
         "ops: implementation to time: cpu, cuda (in precision.mode), or ref, the plain reference"},
    {FIELD(device, CHOICE), .fallback = "auto", .choices = run_device_words,
     .help = "step, comm, and ops with --save or -n: device to compute on; auto = cuda if there is "
             "a GPU"},
    {COMMAND_FLAG("peak-tflops", bench_settings, peak_tflops, REAL), .fallback = "0",
     COMMAND_RANGE(0, 1e9),
     .help = "step: peak rate for the MFU; 0 = known from the name of the GPU"},
    {FIELD(n, INT), .letter = 'n', COMMAND_RANGE(1, 65536), .value_name = "RANKS",
     .help = "ops, comm: ranks that measure at the same time; omit it under mpirun or srun"},
    {FIELD(save, STRING), .value_name = "FILE",
     .help =
         "ops, comm: save the result in a machine profile for `sifr plan --machine`; ops and comm "
         "each replace their half of the file"},
    {FIELD(largest, INT), .fallback = "67108864", COMMAND_RANGE(1024, 1e11), .value_name = "BYTES",
     .help = "comm: largest number of bytes that a rank sends in a call"},
    {FIELD(node, INT), .fallback = "0", COMMAND_RANGE(0, 65536), .value_name = "RANKS",
     .help = "comm: ranks per node; 0 = the ranks of a host"},
    {FIELD(json, BOOL), .help = "print one JSON object"},
};
#undef FIELD

static enum status bind_bench(struct options *options, void *settings)
{
    struct bench_settings *bench = settings;
    return run_config_bind_planning(options, &bench->run);
}

const struct command command_bench = {
    .name = "bench",
    .usage =
        "[ops | step | all | comm] [FILE.yaml] [--section.key=value ...] [-n RANKS] [--save=FILE]",
    .summary = "time operations, training steps and communication; measure a machine for plan",
    .description =
        "`ops` times every operation at the sizes of a training step. `step` times whole steps of "
        "a "
        "model on random tokens. `all` does both. `comm` times every kind of call between -n "
        "ranks, "
        "and a plain copy of as many bytes for comparison.\n\n"
        "Rates are also printed as a share of a matrix product of 2048 x 2048 x 2048 measured in "
        "the "
        "same run. For a step on a GPU the share is the MFU: of the vendor's peak for dense "
        "products, with 6 N + 12 L C T operations per token.\n\n"
        "--save writes a machine profile for `sifr plan --machine`: `comm` adds how fast ranks "
        "communicate, `ops` how fast they compute. With a configuration file or model keys, `ops` "
        "times exactly the calls of a step of that run, on all -n ranks at the same time.\n",
    .examples = "  sifr bench\n"
                "  sifr bench step --model.preset=gpt2-124m --batch=4 --context=256 --json\n"
                "  sifr bench step --device=cuda --precision.mode=bf16 --model.preset=gpt2-124m "
                "--batch=64 --steps=20\n"
                "  sifr bench step --model.preset=gpt2-124m --optimizer.kind=muon\n"
                "  sifr bench step --model.layers=6 --model.width=384 --model.heads=6 "
                "--model.context=256 \\\n"
                "      --model.vocab=8192 --batch=16\n"
                "  sifr bench comm -n 2 --save=here.json\n"
                "  sifr bench ops configs/tiny.yaml --model.vocab=8192 -n 2 --save=here.json\n",
    .settings_bytes = sizeof(struct bench_settings),
    .most_words = 2,
    .says_end = true,
    .flags = COMMAND_FLAGS("bench", bench_list),
    .bind = bind_bench,
    .run = run_bench,
};
