/* command_sample -- lets a model write: text to stdout as it comes, figures to stderr.
 *
 * A token may end in the middle of a UTF-8 character; such bytes are held back until the
 * character is whole, so that a terminal never sees half of one. What never becomes a character
 * is written at the end as it is.
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

/* In which parameters are held and computed with on a GPU. */
static const char *const compute_words[] = {"bf16", "fp16", "fp32", NULL};
static const enum dtype compute_types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

/* --- streaming ------------------------------------------------------------------------------ */

struct stream_out {
    struct cli *cli;
    const char *prompt; /* goes before the first token; NULL: it does not, or no more */
    struct text whole;  /* all that the model wrote: any bytes, also NUL */
    bool print;
    size_t shown; /* bytes of `whole` that are printed: the rest is the beginning of a character */
};

/* Only when there is a text: a prompt may be refused. */
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
    /* the first token is chosen from the prompt's logits; the others are decoded */
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
                 result->ended                     ? "; ended by itself"
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
        return FAIL(env, USAGE, "which model? usage: sifr sample %s", command_sample.usage);
    if (word_count > first + 1)
        return FAIL(env, USAGE, "'%s' is one argument too many: --model.path names the model",
                    words[first + 1]);
    *model = *given ? given : words[0];
    if (word_count > first)
        *prompt = words[first];
    return STATUS_OK;
}

/* Where to compute, which must have room for the model. */
static enum status find_place(struct env *env, const struct sample_settings *settings,
                              const struct model_source *source, struct compute_config *place)
{
    int device = settings->device;
    struct device_info info;
    TRY(run_device_find(env, false, &device, &info));
    *place = run_device_compute(device, compute_types[settings->compute]);
    return run_fit_model(env, source->folder, place->type,
                         info.total_bytes > 0 ? info.free_bytes : machine_memory());
}

/* --tokenizer, or the one beside the model. */
static enum status check_tokenizer(struct env *env, const char *named,
                                   const struct model_source *source)
{
    char *beside;
    if (*named)
        return named_tokenizer(env, "--tokenizer", named);
    TRY(model_source_path(source, "tokenizer.json", &beside));
    bool there = file_exists(beside);
    mem_free(env, beside);
    return there ? STATUS_OK
                 : FAIL(env, CONFIG,
                        "there is no tokenizer.json beside the model in '%s'; name one with "
                        "--tokenizer",
                        source->folder);
}

static enum status write_all(struct cli *cli, const struct sample_settings *settings,
                             const struct model_source *source, struct generate_config config)
{
    struct compute_config place;
    struct generator *generator;
    TRY(find_place(cli->env, settings, source, &place));
    TRY(check_tokenizer(cli->env, settings->tokenizer, source));
    TRY(generator_create(cli->env, place, source, settings->tokenizer, &generator));
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

#define FLAG(word, field, kind)                            \
    .key = word, .type = OPTION_##kind, .flag_only = true, \
    .offset = offsetof(struct sample_settings, field)
#define RANGE(low, high) .ranged = true, .min = (low), .max = (high)
static const struct option sample_list[] = {
    {FLAG("model.path", model, STRING), .value_name = "DIR",
     .help = "the model, when it is not the first argument"},
    {FLAG("prompt", generate.prompt, STRING), .letter = 'p',
     .help = "what the text begins with; also the second argument"},
    {FLAG("tokens", generate.tokens, INT), .letter = 'n', .fallback = "200", RANGE(0, 1e9),
     .help = "how many to write at most; 0 = until the context is full"},
    {FLAG("temperature", generate.temperature, REAL), .letter = 't', .fallback = "0.8",
     RANGE(0, 100), .help = "higher is wilder; 0 = always the likeliest token"},
    {FLAG("top-k", generate.top_k, INT), .fallback = "0", RANGE(0, 1e9),
     .help = "choose among so many tokens; 0 = all"},
    {FLAG("top-p", generate.top_p, REAL), .fallback = "0.95", RANGE(1e-6, 1),
     .help = "choose among the likeliest tokens with this share; 1 = all"},
    {FLAG("seed", generate.seed, INT), .letter = 's', .fallback = "1", RANGE(0, 9e18),
     .help = "the same seed gives the same text"},
    {FLAG("ignore-eot", generate.ignore_eot, BOOL), .help = "go on after the end-of-text token"},
    {FLAG("count", count, INT), .letter = 'c', .fallback = "1", RANGE(1, 1e9),
     .help = "texts to write, each with the next seed"},
    {FLAG("tokenizer", tokenizer, STRING), .value_name = "FILE",
     .help = "a tokenizer.json; default: the one beside the model"},
    {FLAG("run.device", device, CHOICE), .fallback = "auto", .choices = run_device_words,
     .help = "where to compute; auto = cuda where there is a GPU"},
    {FLAG("precision.mode", compute, CHOICE), .fallback = "bf16", .choices = compute_words,
     .help = "in which a GPU computes; a CPU computes in fp32"},
    {FLAG("run.threads", threads, INT), .also = "threads", .fallback = "0", RANGE(0, 4096),
     .help = "0 = as many as the process may run on"},
    {FLAG("raw", raw, BOOL),
     .help = "only the new text: without the prompt and the last line's end"},
    {FLAG("quiet", quiet, BOOL), .letter = 'q', .help = "no figures on stderr"},
    {FLAG("json", json, BOOL), .help = "one JSON object a text"},
};
#undef FLAG
#undef RANGE
static const struct option_table sample_options = {"sample", sample_list,
                                                   sizeof sample_list / sizeof sample_list[0]};

static enum status bind_sample(struct options *options, void *settings)
{
    return options_bind(options, &sample_options, settings);
}

const struct command command_sample = {
    .name = "sample",
    .usage = "MODEL [PROMPT] [--tokens=N] [--temperature=X]",
    .summary = "let a model write text",
    .description =
        "MODEL is a run folder (its newest checkpoint that is whole is used), a checkpoint or a "
        "Hugging Face\n"
        "directory. The text goes to stdout as it comes, tokens per second to stderr.\n",
    .examples = "  sifr sample runs/tiny \"Once upon a time\"\n"
                "  sifr sample runs/tiny --temperature=0 --tokens=50 --prompt=\"The\"\n"
                "  sifr sample runs/tiny --count=3 --json\n",
    .settings_bytes = sizeof(struct sample_settings),
    .most_words = 2,
    .bind = bind_sample,
    .run = run_sample,
};
