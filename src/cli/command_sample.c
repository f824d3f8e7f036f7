/* command_sample -- generates text: streams it to stdout and reports speed on stderr.
 *
 * A token may end in the middle of a UTF-8 character. Such bytes are held back until the character
 * is complete, so a terminal never receives half of one. Bytes that never complete a character are
 * written at the end, unchanged.
 */
#include <string.h>
#include "base/file.h"
#include "cli/command.h"
#include "cli/json_out.h"
#include "base/host.h"
#include "train/generate.h"
#include "base/named.h"
#include "train/run_plan.h"

struct sample_settings {
    struct generate_config generate;
    const char *model, *tokenizer;
    int64_t threads, count;
    int device;  /* enum run_device */
    int compute; /* index into compute_words */
    bool json, quiet, raw;
};

/* Type of parameters and arithmetic on a GPU. */
static const char *const compute_words[] = {"bf16", "fp16", "fp32", NULL};
static const enum dtype compute_types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

/* --- streaming ------------------------------------------------------------------------------ */

struct stream_out {
    struct cli *cli;
    const char *prompt; /* printed before the first token; NULL = not printed, or printed already */
    struct text whole;  /* all generated text; may contain any byte, NUL included */
    bool print;
    size_t shown; /* bytes of `whole` that are printed; the rest begins a character */
};

/* Called with the first token, not before: generation may reject the prompt. */
static void write_prompt(struct stream_out *out)
{
    if (out->prompt)
        console_data(out->cli->console, out->prompt, strlen(out->prompt));
    out->prompt = NULL;
}

static bool on_token(void *user, int32_t token, const void *bytes, size_t byte_count)
{
    (void)token;
    struct stream_out *out = user;
    text_add_bytes(&out->whole, bytes, byte_count);
    if (!out->print)
        return out->whole.status == STATUS_OK;
    write_prompt(out);
    const char *fresh = text_string(&out->whole) + out->shown;
    size_t count = out->whole.bytes - out->shown;
    count -= text_unfinished(fresh, count);
    console_data(out->cli->console, fresh, count);
    out->shown += count;
    return out->whole.status == STATUS_OK;
}

/* --- one text ------------------------------------------------------------------------------- */

static double rate(int64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

static enum status report(struct cli *cli, const struct sample_settings *settings,
                          const struct stream_out *out, const struct generate_config *config,
                          const struct generate_result *result)
{
    /* The first token comes from the prompt's logits; only the others are decoded. */
    double decode_rate = rate(result->tokens > 1 ? result->tokens - 1 : 0, result->decode_seconds);
    if (settings->json) {
        struct json_out json;
        json_out_begin(&json, cli->env);
        json_out_string(&json, "prompt", config->prompt);
        json_out_bytes(&json, "text", text_string(&out->whole), out->whole.bytes);
        json_out_int(&json, "seed", config->seed);
        json_out_int(&json, "prompt_tokens", result->prompt_tokens);
        json_out_int(&json, "tokens", result->tokens);
        json_out_bool(&json, "ended", result->ended);
        json_out_real(&json, "prefill_seconds", result->prefill_seconds);
        json_out_real(&json, "decode_seconds", result->decode_seconds);
        json_out_real(&json, "tokens_per_second", decode_rate);
        return json_out_print(&json, cli->console);
    }
    if (!settings->quiet)
        log_info(cli->env,
                 "%lld token%s, %.1f tok/s; prompt of %lld token%s, %.1f tok/s; seed %lld%s",
                 (long long)result->tokens, result->tokens == 1 ? "" : "s", decode_rate,
                 (long long)result->prompt_tokens, result->prompt_tokens == 1 ? "" : "s",
                 rate(result->prompt_tokens, result->prefill_seconds), (long long)config->seed,
                 result->ended                     ? "; reached the end-of-text token"
                 : result->tokens < config->tokens ? "; the context is full"
                                                   : "");
    return STATUS_OK;
}

static enum status write_one(struct cli *cli, struct generator *generator,
                             const struct sample_settings *settings,
                             const struct generate_config *config)
{
    struct stream_out out = {.cli = cli,
                             .prompt = settings->json || settings->raw ? NULL : config->prompt,
                             .print = !settings->json};
    struct generate_result result = {0};
    text_init(&out.whole, cli->env);
    enum status st = generator_run(generator, config, on_token, &out, &result);
    if (out.print && (st == STATUS_OK || result.tokens > 0)) {
        write_prompt(&out);
        console_data(cli->console, text_string(&out.whole) + out.shown,
                     out.whole.bytes - out.shown);
        if (!settings->raw)
            console_line(cli->console, "%s", "");
    }
    if (st == STATUS_OK)
        st = out.whole.status;
    if (st == STATUS_OK)
        st = report(cli, settings, &out, config, &result);
    text_free(&out.whole);
    return st;
}

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

/* Choose the device and check that the model fits in its memory. */
static enum status choose_compute(struct env *env, const struct sample_settings *settings,
                                  const struct model_source *source, struct compute_config *compute)
{
    int device = settings->device;
    struct device_info info;
    TRY(run_device_find(env, false, &device, &info));
    *compute = run_device_compute(device, compute_types[settings->compute]);
    return run_fit_model(env, source->folder, compute->type,
                         info.total_bytes > 0 ? info.free_bytes : machine_memory());
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
                        "no tokenizer.json in the model folder '%s'; name one with "
                        "--tokenizer",
                        source->folder);
}

static enum status write_all(struct cli *cli, const struct sample_settings *settings,
                             const struct model_source *source, struct generate_config config)
{
    struct compute_config compute;
    struct generator *generator;
    TRY(choose_compute(cli->env, settings, source, &compute));
    TRY(check_tokenizer(cli->env, settings->tokenizer, source));
    TRY(generator_create(cli->env, compute, source, settings->tokenizer, &generator));
    enum status st = STATUS_OK;
    for (int64_t i = 0; i < settings->count && st == STATUS_OK; i++, config.seed++)
        st = write_one(cli, generator, settings, &config);
    generator_destroy(generator);
    return st;
}

static enum status run_sample(struct cli *cli, struct options *options, void *user_settings,
                              const char *const *words, int word_count)
{
    const struct sample_settings *settings = user_settings;
    struct generate_config config = settings->generate;
    const struct model_want want = {.depth = MODEL_DEPTH_ALL};
    struct model_source *source;
    const char *model = NULL;
    TRY(choose_model(cli->env, settings->model, words, word_count, &model, &config.prompt));
    if (config.prompt != settings->generate.prompt && options_is_set(options, "prompt"))
        return FAIL(cli->env, USAGE, "the prompt is given twice: '%s' and --prompt", config.prompt);
    cli->env->threads = machine_threads(settings->threads);
    TRY(model_source_open(cli->env, model, &want, &source));
    enum status st = write_all(cli, settings, source, config);
    model_source_close(source);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

#define FLAG(word, field, kind) COMMAND_FLAG(word, sample_settings, field, kind)
static const struct option sample_list[] = {
    {FLAG("model.path", model, STRING), .value_name = "DIR",
     .help = "the model, instead of the argument MODEL"},
    {FLAG("prompt", generate.prompt, STRING), .letter = 'p',
     .help = "the prompt, instead of the argument PROMPT"},
    {FLAG("tokens", generate.tokens, INT), .letter = 'n', .fallback = "200", COMMAND_RANGE(0, 1e9),
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
    {FLAG("tokenizer", tokenizer, STRING), .value_name = "FILE",
     .help = "a tokenizer.json; default: the one in the folder of the model"},
    {FLAG("run.device", device, CHOICE), .fallback = "auto", .choices = run_device_words,
     .help = "device to compute on; auto = cuda if there is a GPU"},
    {FLAG("precision.mode", compute, CHOICE), .fallback = "bf16", .choices = compute_words,
     .help = "arithmetic of a GPU; a CPU always computes in fp32"},
    {FLAG("run.threads", threads, INT), .also = "threads", .fallback = "0", COMMAND_RANGE(0, 4096),
     .help = "CPU threads; 0 = all that this process may use"},
    {FLAG("raw", raw, BOOL), .help = "print only the generated text: no prompt, no final newline"},
    {FLAG("quiet", quiet, BOOL), .letter = 'q', .help = "do not report speed on stderr"},
    {FLAG("json", json, BOOL), .help = "print one JSON object per text"},
};
#undef FLAG

const struct command command_sample = {
    .name = "sample",
    .usage = "MODEL [PROMPT] [--tokens=N] [--temperature=X]",
    .summary = "generate text with a model",
    .description =
        "MODEL is a run folder (its newest complete checkpoint is used), a checkpoint or a Hugging "
        "Face directory. The text is streamed to stdout; the speed is reported on stderr.\n",
    .examples = "  sifr sample runs/tiny \"Once upon a time\"\n"
                "  sifr sample runs/tiny --temperature=0 --tokens=50 --prompt=\"The\"\n"
                "  sifr sample runs/tiny --count=3 --json\n",
    .settings_bytes = sizeof(struct sample_settings),
    .most_words = 2,
    .flags = COMMAND_FLAGS("sample", sample_list),
    .run = run_sample,
};
