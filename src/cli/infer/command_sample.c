/* command_sample -- generates text: streams it to stdout and reports speed on stderr.
 *
 * A token may end in the middle of a UTF-8 character. Such bytes are held back until the character
 * is complete, so a terminal never receives half of one. Bytes that never complete a character are
 * written at the end, unchanged.
 *
 * All ranks compute every text together, and only rank 0 prints. A signal may reach the ranks at
 * different times, so before each token they agree whether to continue.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/infer/infer.h"
#include "cli/infer/prompts.h"
#include "cli/rank_report.h"
#include "base/named.h"
#include "train/run_plan.h"
#include "train/weights/model_file.h"

struct sample_settings {
    struct generate_config generate;
    struct layout_config layout;
    const char *model, *tokenizer, *prompts, *kernels;
    int64_t threads, device_memory, count, batch, n;
    int bind;
    int device;  /* enum run_device */
    int compute; /* index into compute_words */
    bool json, raw;
};

struct sample_job {
    struct cli *cli;
    const struct sample_settings *settings;
    const char *model;
    struct generate_config generate; /* of a text, unless its line in --prompts says otherwise */
    struct text prompts;             /* the text of --prompts, in the process of rank 0 */
    struct ranks_job ranks;
    struct model_source *source; /* from here on set by prepare */
    struct compute_config compute;
};

/* Type of parameters and arithmetic on a GPU. */
static const char *const compute_words[] = {"bf16", "fp16", "fp32", NULL};
static const enum dtype compute_types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

/* --- streaming ------------------------------------------------------------------------------ */

/* The texts of one rank. */
struct writer {
    const struct sample_job *job;
    struct generator *generator;
    bool first;                    /* this is rank 0, which prints */
    int64_t count;                 /* of texts */
    int64_t index;                 /* of the current one, from 0 */
    int64_t tokens;                /* of all texts so far */
    struct progress_task progress; /* with --json */
};

struct stream_out {
    struct writer *writer;
    const char *prompt; /* printed before the first token; NULL = not printed, or printed already */
    struct text whole;  /* all generated text; may contain any byte, NUL included */
    bool print;         /* tokens as they come; otherwise the text is printed when it is complete */
    size_t shown;       /* bytes of `whole` that are printed; the rest begins a character */
};

static double rate(int64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

/* Called with the first token, not before: generation may reject the prompt. */
static void write_prompt(struct stream_out *out)
{
    if (out->prompt)
        console_data(out->writer->job->cli->console, out->prompt, strlen(out->prompt));
    out->prompt = NULL;
}

static void write_token(struct stream_out *out)
{
    const char *fresh = text_string(&out->whole) + out->shown;
    size_t count = out->whole.bytes - out->shown;
    write_prompt(out);
    count -= text_unfinished(fresh, count);
    console_data(out->writer->job->cli->console, fresh, count);
    out->shown += count;
}

static void show_progress(struct writer *writer)
{
    struct progress_task *task = &writer->progress;
    snprintf(task->figure, sizeof task->figure, "%.1f tok/s",
             rate(writer->tokens, clock_seconds() - task->begin));
    progress_reach(writer->job->cli->env, task, (uint64_t)writer->index);
}

/* Does this rank want another token? Not after a signal, and not if nobody reads the output. */
static bool goes_on(const struct writer *writer)
{
    const struct cli *cli = writer->job->cli;
    return !*cli->stop && !(writer->first && cli->console->write_error);
}

static bool on_token(void *user, int32_t token, const void *bytes, size_t byte_count)
{
    (void)token;
    struct stream_out *out = user;
    struct writer *writer = out->writer;
    writer->tokens++;
    if (writer->first)
        text_add_bytes(&out->whole, bytes, byte_count);
    if (out->print)
        write_token(out);
    else if (writer->first)
        show_progress(writer);
    return out->whole.status == STATUS_OK && goes_on(writer);
}

/* --- one text ------------------------------------------------------------------------------- */

static enum status print_json(const struct writer *writer, const struct stream_out *out,
                              const struct generate_config *config,
                              const struct generate_result *result, double decode_rate)
{
    struct cli *cli = writer->job->cli;
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_int(&json, "index", writer->index);
    json_out_string(&json, "prompt", config->prompt);
    json_out_bytes(&json, "text", text_string(&out->whole), out->whole.bytes);
    json_out_int(&json, "seed", config->seed);
    json_out_int(&json, "prompt_tokens", result->prompt_tokens);
    json_out_int(&json, "tokens", result->tokens);
    json_out_bool(&json, "ended", result->ended);
    json_out_real(&json, "seconds", result->prefill_seconds + result->decode_seconds);
    json_out_real(&json, "prefill_seconds", result->prefill_seconds);
    json_out_real(&json, "decode_seconds", result->decode_seconds);
    json_out_real(&json, "tokens_per_second", decode_rate);
    return json_out_print(&json, cli->console);
}

static enum status report(const struct writer *writer, const struct stream_out *out,
                          const struct generate_config *config,
                          const struct generate_result *result)
{
    const struct sample_settings *settings = writer->job->settings;
    /* The first token comes from the prompt's logits; only the others are decoded. */
    double decode_rate = rate(result->tokens > 1 ? result->tokens - 1 : 0, result->decode_seconds);
    if (settings->json)
        return print_json(writer, out, config, result, decode_rate);
    if (!writer->job->cli->console->quiet)
        log_info(writer->job->cli->env,
                 "%lld token%s, %.1f tok/s; prompt of %lld token%s, %.1f tok/s; seed %lld%s",
                 (long long)result->tokens, result->tokens == 1 ? "" : "s", decode_rate,
                 (long long)result->prompt_tokens, result->prompt_tokens == 1 ? "" : "s",
                 rate(result->prompt_tokens, result->prefill_seconds), (long long)config->seed,
                 result->ended                     ? "; reached the end-of-text token"
                 : result->tokens < config->tokens ? "; the context is full"
                                                   : "");
    return STATUS_OK;
}

/* What of a text is not printed yet. */
static void write_rest(struct stream_out *out)
{
    const struct sample_settings *settings = out->writer->job->settings;
    struct console *console = out->writer->job->cli->console;
    if (!out->writer->first || settings->json)
        return;
    write_prompt(out);
    console_data(console, text_string(&out->whole) + out->shown, out->whole.bytes - out->shown);
    if (!settings->raw)
        console_line(console, "%s", "");
}

/* A text that is complete, or that was stopped: then STATUS_STOPPED. */
static enum status end_text(const struct writer *writer, struct stream_out *out,
                            const struct generate_text *text)
{
    const struct generate_result *result = &text->result;
    if (!result->stopped || result->tokens > 0)
        write_rest(out);
    TRY(out->whole.status);
    if (result->stopped)
        return STATUS_STOPPED;
    return writer->first ? report(writer, out, &text->config, result) : STATUS_OK;
}

/* --- all texts ------------------------------------------------------------------------------ */

/* Texts that are generated together. */
struct batch {
    struct generate_text *texts; /* (room) */
    struct stream_out *outs;     /* (room) */
    int room, count;
};

static enum status batch_create(struct env *env, int room, struct batch *batch)
{
    *batch = (struct batch){.room = room};
    TRY(mem_alloc_array(env, MEM_OTHER, "batch", (size_t)room, sizeof *batch->texts,
                        &batch->texts));
    return mem_alloc_array(env, MEM_OTHER, "batch", (size_t)room, sizeof *batch->outs,
                           &batch->outs);
}

static void batch_free(struct env *env, struct batch *batch)
{
    mem_free(env, batch->texts);
    mem_free(env, batch->outs);
}

/* The next texts. Only the first is printed token by token. */
static void batch_fill(struct batch *batch, struct writer *writer, const struct prompts *prompts)
{
    const struct sample_job *job = writer->job;
    int64_t left = writer->count - writer->index;
    batch->count = left < batch->room ? (int)left : batch->room;
    for (int i = 0; i < batch->count; i++) {
        struct generate_text *text = &batch->texts[i];
        struct stream_out *out = &batch->outs[i];
        int64_t index = writer->index + i;
        *text = (struct generate_text){
            .config = prompts->count > 0 ? prompts->items[index] : job->generate, .user = out};
        if (prompts->count == 0)
            text->config.seed += index;
        *out = (struct stream_out){.writer = writer,
                                   .prompt = job->settings->raw ? NULL : text->config.prompt,
                                   .print = i == 0 && writer->first && !job->settings->json};
        text_init(&out->whole, job->cli->env);
    }
}

/* Generate the batch, and print its texts in order: those before one that failed, too. */
static enum status write_batch(struct writer *writer, struct batch *batch)
{
    int count = batch->count;
    enum status st = generator_run_all(writer->generator, batch->texts, &count, on_token);
    if (st != STATUS_OK && batch->texts[0].result.tokens > 0)
        write_rest(&batch->outs[0]);
    for (int i = 0; st == STATUS_OK && i < count; i++) {
        st = end_text(writer, &batch->outs[i], &batch->texts[i]);
        writer->index += st == STATUS_OK;
    }
    for (int i = 0; i < batch->count; i++)
        text_free(&batch->outs[i].whole);
    return st;
}

static enum status write_all(struct writer *writer, struct env *env, const struct prompts *prompts)
{
    const struct sample_job *job = writer->job;
    struct batch batch;
    writer->count = prompts->count > 0 ? prompts->count : job->settings->count;
    writer->progress.total = (uint64_t)writer->count;
    enum status st = batch_create(env, (int)job->settings->batch, &batch);
    while (st == STATUS_OK && writer->index < writer->count) {
        bool wanted = goes_on(writer);
        st = generator_agree(writer->generator, &wanted);
        if (st == STATUS_OK && !wanted)
            st = STATUS_STOPPED;
        if (st != STATUS_OK)
            break;
        batch_fill(&batch, writer, prompts);
        st = write_batch(writer, &batch);
    }
    batch_free(env, &batch);
    return st;
}

/* What happened to the prompts, in one line. */
static void report_all(const struct writer *writer, enum status st)
{
    const struct sample_job *job = writer->job;
    struct env *env = job->cli->env;
    const char *path = job->settings->prompts;
    double seconds = clock_seconds() - writer->progress.begin;
    long long done = writer->index, count = writer->count;
    progress_end(env, &writer->progress);
    if (st == STATUS_STOPPED && *job->cli->stop)
        log_warn(env, "stopped after %lld of %lld text%s", done, count, count == 1 ? "" : "s");
    else if (st == STATUS_CONFIG && *path)
        log_info(env, "that was line %lld of %s; the texts of the lines before it are printed",
                 done + 1, prompts_name(path));
    else if (st == STATUS_OK && *path && !job->cli->console->quiet)
        log_info(env, "%lld prompt%s, %lld tokens, %.1f tok/s", done, count == 1 ? "" : "s",
                 (long long)writer->tokens, rate(writer->tokens, seconds));
}

static enum status say_memory(const struct writer *writer)
{
    const struct sample_job *job = writer->job;
    struct footprint_worst held;
    char words[160];
    if (job->ranks.plan.size == 1 && job->settings->layout.offload.params == FAR_NONE)
        return STATUS_OK;
    TRY(generator_held(writer->generator, &held));
    infer_describe_memory(&held, job->ranks.plan.size, words, sizeof words);
    if (writer->first && !job->cli->console->quiet)
        log_info(job->cli->env, "memory: %s", words);
    return STATUS_OK;
}

/* Every rank gets the prompts of rank 0. */
static enum status write_prompts(struct writer *writer, struct env *env)
{
    const struct sample_job *job = writer->job;
    struct prompts prompts = {0};
    struct text text;
    text_init(&text, env);
    if (writer->first)
        text_add_bytes(&text, text_string(&job->prompts), job->prompts.bytes);
    enum status st = text.status;
    if (st == STATUS_OK)
        st = generator_share(writer->generator, &text);
    if (st == STATUS_OK && *job->settings->prompts)
        st = prompts_parse(env, job->settings->prompts, &text, &job->generate, &prompts);
    text_free(&text);
    if (st == STATUS_OK)
        st = write_all(writer, env, &prompts);
    if (writer->first)
        report_all(writer, st);
    prompts_free(&prompts);
    return st;
}

static enum status sample_rank(void *user, struct env *env, const struct session_ranks *ranks)
{
    const struct sample_job *job = user;
    const struct generator_config config = {.compute = job->compute,
                                            .source = job->source,
                                            .tokenizer = job->settings->tokenizer,
                                            .layout = &job->settings->layout,
                                            .ranks = ranks,
                                            .rows = (int)job->settings->batch};
    struct writer writer = {.job = job, .first = infer_is_first(ranks)};
    TRY(generator_create(env, &config, &writer.generator));
    enum status st = say_memory(&writer);
    if (writer.first) {
        *job->cli->stepping = CLI_STEPPING_UNSAVED;
        rank_report_stepping(0);
    }
    progress_begin(&writer.progress, "generating", "texts", 0);
    if (st == STATUS_OK)
        st = write_prompts(&writer, env);
    generator_destroy(writer.generator);
    /* Nobody reads the rest: that is not a failure. */
    return st == STATUS_STOPPED && !*job->cli->stop ? STATUS_OK : st;
}

/* --- before the ranks join ------------------------------------------------------------------ */

/* MODEL [PROMPT], or with --model.path just [PROMPT]. */
static enum status choose_model(struct env *env, const char *given, const char *const *words,
                                int word_count, const char **model, const char **prompt)
{
    int first = *given ? 0 : 1;
    if (!*given && word_count == 0)
        return FAIL(env, USAGE, "missing argument MODEL; usage: sifr sample %s",
                    command_sample.usage);
    if (word_count > first + 1)
        return FAIL(env, USAGE, "unexpected argument '%s': --model.path already names the model",
                    words[first + 1]);
    *model = *given ? given : words[0];
    if (word_count > first)
        *prompt = words[first];
    return STATUS_OK;
}

/* Choose the device and check that the ranks of this machine fit in its memory. */
static enum status choose_compute(struct sample_job *job)
{
    const struct sample_settings *settings = job->settings;
    const struct ranks_plan *plan = &job->ranks.plan;
    struct env *env = job->cli->env;
    int device = settings->device;
    struct run_text text = {
        .folder = job->source->folder, .layout = &settings->layout, .rows = (int)settings->batch};
    TRY(ops_cpu_use(env, settings->kernels));
    TRY(run_device_find(env, false, &device, &text.device));
    TRY(run_offload_check(env, &settings->layout.offload, device, false));
    job->compute = run_device_compute(device, compute_types[settings->compute]);
    job->compute.memory_limit = (size_t)settings->device_memory;
    text.compute = job->compute;
    return run_fit_text(env, &text, &(struct run_ranks){plan->size, plan->rank, plan->local},
                        infer_memory(plan));
}

/* --tokenizer, or tokenizer.json in the folder of the model. */
static enum status check_tokenizer(struct env *env, const char *named,
                                   const struct model_source *source)
{
    char *path;
    if (*named)
        return named_tokenizer(env, "--tokenizer", named);
    TRY(model_source_path(source, "tokenizer.json", &path));
    bool found = file_exists(path);
    mem_free(env, path);
    return found ? STATUS_OK
                 : FAIL(env, CONFIG,
                        "no tokenizer.json in the model folder '%s'; %sname one with --tokenizer",
                        source->folder, model_file_convert(env, source->folder));
}

static enum status prepare(void *user)
{
    struct sample_job *job = user;
    struct env *env = job->cli->env;
    const struct model_want want = {.depth = MODEL_DEPTH_ALL};
    TRY(model_source_open(env, job->model, &want, &job->source));
    TRY(choose_compute(job));
    return check_tokenizer(env, job->settings->tokenizer, job->source);
}

/* Copies of the model would all do the same. */
static enum status check_copies(struct env *env, const struct layout_config *layout, int ranks)
{
    int64_t spread = layout->parallel.tp * layout->parallel.pp;
    if (ranks <= spread || layout->ranks.stage == 3)
        return STATUS_OK;
    return FAIL(env, CONFIG,
                "%d ranks have %lld complete cop%s of the model, which would generate the same "
                "text; share one with --zero.stage=3, --parallel.tp or --parallel.pp (-n is the "
                "number of ranks; that of tokens is --tokens)",
                ranks, (long long)(ranks / spread), ranks / spread == 1 ? "y" : "ies");
}

/* Read --prompts and check every line, before anything else takes time. Rank 0 of processes that
 * are started here reads them again: the standard input from a copy. */
static enum status read_prompts(struct sample_job *job)
{
    const char *path = job->settings->prompts;
    struct env *env = job->cli->env;
    struct prompts prompts;
    if (!*path || job->ranks.plan.rank > 0)
        return STATUS_OK;
    TRY(prompts_read(env, path, &job->prompts));
    TRY(prompts_parse(env, path, &job->prompts, &job->generate, &prompts));
    prompts_free(&prompts);
    if (job->ranks.plan.way != RANKS_LAUNCH || strcmp(path, "-") != 0)
        return STATUS_OK;
    job->ranks.input = memfd_create("sifr prompts", MFD_CLOEXEC);
    size_t done = 0;
    while (job->ranks.input >= 0 && done < job->prompts.bytes) {
        ssize_t bytes =
            write(job->ranks.input, job->prompts.data + done, job->prompts.bytes - done);
        if (bytes <= 0)
            break;
        done += (size_t)bytes;
    }
    if (done < job->prompts.bytes)
        return FAIL(env, IO, "cannot keep the prompts in memory: %s", strerror(errno));
    lseek(job->ranks.input, 0, SEEK_SET);
    return STATUS_OK;
}

static enum status check_flags(const struct sample_job *job, const struct options *options,
                               bool word)
{
    struct env *env = job->cli->env;
    if (word && options_is_set(options, "prompt"))
        return FAIL(env, USAGE, "the prompt is given twice: '%s' and --prompt",
                    job->generate.prompt);
    if (options_is_set(options, "prompts") && !*job->settings->prompts)
        return FAIL(env, USAGE, "--prompts is empty; name a file, or - for the standard input");
    if (!*job->settings->prompts)
        return STATUS_OK;
    if (word || options_is_set(options, "prompt"))
        return FAIL(env, USAGE, "the prompt '%s' and --prompts exclude each other",
                    job->generate.prompt);
    if (options_is_set(options, "count"))
        return FAIL(env, USAGE,
                    "--count has no meaning with --prompts; repeat a line, with another \"seed\"");
    return STATUS_OK;
}

static enum status run_sample(struct cli *cli, struct options *options, void *user_settings,
                              const char *const *words, int word_count)
{
    const struct sample_settings *settings = user_settings;
    struct sample_job job = {.cli = cli,
                             .settings = settings,
                             .generate = settings->generate,
                             .ranks = {.quiet = settings->json || cli->console->quiet,
                                       .stops = true,
                                       .prepare = prepare,
                                       .main = sample_rank,
                                       .user = &job}};
    TRY(choose_model(cli->env, settings->model, words, word_count, &job.model,
                     &job.generate.prompt));
    TRY(check_flags(&job, options, job.generate.prompt != settings->generate.prompt));
    TRY(infer_find_ranks(cli, settings->n, &settings->layout, settings->threads, &job.ranks));
    job.ranks.bind = settings->bind;
    job.ranks.device = settings->device;
    TRY(check_copies(cli->env, &settings->layout, job.ranks.plan.size));
    cli->env->threads = job.ranks.threads;
    text_init(&job.prompts, cli->env);
    enum status st = read_prompts(&job);
    if (st == STATUS_OK)
        st = ranks_job_run(cli, &job.ranks);
    if (job.ranks.input > 0)
        close(job.ranks.input);
    model_source_close(job.source);
    text_free(&job.prompts);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

#define FLAG(word, field, kind) COMMAND_FLAG(word, sample_settings, field, kind)
static const struct option sample_list[] = {
    {FLAG("model.path", model, STRING), .value_name = "DIR",
     .help = "the model, instead of the argument MODEL"},
    {FLAG("prompt", generate.prompt, STRING), .letter = 'p',
     .help = "the prompt, instead of the argument PROMPT"},
    {FLAG("prompts", prompts, STRING), .value_name = "FILE",
     .help = "a text for each line of FILE (- = standard input): plain prompts, or JSON objects "
             "with \"prompt\" and, if they differ, \"tokens\", \"temperature\" and \"seed\""},
    {FLAG("tokens", generate.tokens, INT), .fallback = "200", COMMAND_RANGE(0, 1e9),
     .help = "largest number of tokens to generate; 0 = until the context is full"},
    {FLAG("temperature", generate.temperature, REAL), .letter = 't', .fallback = "0.8",
     COMMAND_RANGE(0, 100),
     .help = "sampling temperature; higher is more random, 0 = always the most likely token"},
    {FLAG("top-k", generate.top_k, INT), .value_name = "K", .fallback = "0", COMMAND_RANGE(0, 1e9),
     .help = "sample from the K most likely tokens; 0 = all"},
    {FLAG("top-p", generate.top_p, REAL), .fallback = "0.95", COMMAND_RANGE(1e-6, 1),
     .help = "sample from the most likely tokens that together have this probability; 1 = all"},
    {FLAG("seed", generate.seed, INT), .letter = 's', .fallback = "1", COMMAND_RANGE(0, 9e18),
     .help = "random seed; the same seed generates the same text"},
    {FLAG("ignore-eot", generate.ignore_eot, BOOL), .help = "continue after the end-of-text token"},
    {FLAG("count", count, INT), .letter = 'c', .fallback = "1", COMMAND_RANGE(1, 1e9),
     .help = "number of texts; each uses the next seed"},
    {FLAG("batch", batch, INT), .letter = 'b', .fallback = "1", COMMAND_RANGE(1, 4096),
     .help = "texts to generate together, each the same as alone: parameters that are gathered or "
             "offloaded are read once for all of them; each needs its own cache of keys and "
             "values"},
    INFER_N(sample_settings, "; the number of tokens is --tokens"),
    {FLAG("tokenizer", tokenizer, STRING), .value_name = "FILE",
     .help = "a tokenizer.json; default: the one in the folder of the model"},
    {FLAG("run.device", device, CHOICE), .fallback = "auto", .choices = run_device_words,
     .help = "device to compute on; auto = cuda if there is a GPU"},
    {FLAG("precision.mode", compute, CHOICE), .fallback = "bf16", .choices = compute_words,
     .help = "arithmetic of a GPU; a CPU always computes in fp32"},
    {FLAG("run.threads", threads, INT), .also = "threads", .fallback = "0", COMMAND_RANGE(0, 4096),
     .help = "CPU threads per rank; 0 = OMP_NUM_THREADS, or the cores of the machine, divided "
             "among its ranks"},
    {FLAG("run.bind", bind, CHOICE), .fallback = "auto", .choices = run_bind_words,
     .help = "auto = CPU ranks of one machine keep to cores of their own, ranks with GPUs to the "
             "NUMA node of their GPU; none = the system moves "
             "them"},
    {FLAG("run.device_memory", device_memory, INT), .fallback = "0", COMMAND_RANGE(0, 9e18),
     .value_name = "BYTES",
     .help = "limit on the memory of a rank on its device: a model that needs more is refused; 0 = "
             "none"},
    {FLAG("run.kernels", kernels, STRING), .fallback = "auto", .value_name = "NAME",
     .help = "set of CPU kernels, as in sifr train; auto = the fastest here; all ranks need the "
             "same"},
    {FLAG("raw", raw, BOOL), .help = "print only the generated text: no prompt, no final newline"},
    {FLAG("json", json, BOOL), .help = "print one JSON object per text"},
};
#undef FLAG

static enum status bind_sample(struct options *options, void *settings)
{
    struct sample_settings *sample = settings;
    return options_bind(options, &layout_options, &sample->layout);
}

static const char *const stop_words[CLI_STEPPINGS] = {
    [CLI_NOT_STEPPING] = "stopping before the first text",
    [CLI_STEPPING_UNSAVED] = "stopping after this token; texts that are done are printed"};

const struct command command_sample = {
    .name = "sample",
    .usage = "MODEL [PROMPT | --prompts=FILE] [--tokens=N] [--temperature=X] [-n RANKS]",
    .summary = "generate text with a model",
    .description =
        "MODEL is a run folder (its newest complete checkpoint is used), a checkpoint or a Hugging "
        "Face directory. The text is streamed to stdout; the speed is reported on stderr.\n"
        "With -n, several ranks share the model, each with a part of the parameters: zero.stage=3, "
        "parallel.tp or parallel.pp say how. The text is the same on any number of ranks; only "
        "parallel.tp may change the last bits of its probabilities.\n"
        "A model that does not fit is read layer by layer for every token, from host memory or "
        "disk: "
        "offload.params. Then --batch reads it once for several texts.\n"
        "With --prompts and --json, one JSON object per prompt is printed, in the order of the "
        "lines. Ctrl-C ends the command after the current token, with exit code 1; what is printed "
        "by then is complete.\n",
    .examples = "  sifr sample runs/tiny \"Once upon a time\"\n"
                "  sifr sample runs/tiny --temperature=0 --tokens=50 --prompt=\"The\"\n"
                "  sifr sample runs/tiny --count=3 --json\n"
                "  sifr sample runs/tiny --prompts=prompts.txt --json > texts.jsonl\n"
                "  sifr sample runs/large \"The\" -n 4 --zero.stage=3\n"
                "  sifr sample runs/large --prompts=prompts.txt --offload.params=disk --batch=8\n",
    .settings_bytes = sizeof(struct sample_settings),
    .most_words = 2,
    .stop_words = stop_words,
    .flags = COMMAND_FLAGS("sample", sample_list),
    .bind = bind_sample,
    .run = run_sample,
};
