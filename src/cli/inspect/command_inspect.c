/* command_inspect -- what is in a file or folder. What it is is told by its content, never by
 * its name alone:
 *
 *     folder with config.yaml, metrics.jsonl or summary.json     a run
 *     folder with config.json                                    a model
 *     folder with train.bin or val.bin                           token shards
 *     the magic number of an llm.c shard                         tokens
 *     a length and then '{'                                      safetensors
 *     '{'                                                        tokenizer.json
 *
 * Bare token numbers look like anything and are read only when --format says so.
 */
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/inspect/inspect.h"
#include "base/named.h"
#include "base/mistaken.h"

enum inspect_format { FORMAT_AUTO, FORMAT_U16, FORMAT_U32 };

struct inspect_settings {
    int format;
    bool verify, diff, json;
};

/* --- lines or JSON -------------------------------------------------------------------------- */

static void line(struct inspection *in, const char *name, const char *value)
{
    struct console *console = in->cli->console;
    if (!in->headed)
        console_line(console, "%s%s%s", console_style(console, STYLE_BOLD), in->path,
                     console_style(console, STYLE_PLAIN));
    in->headed = true;
    console_line(console, "  %s%-20s%s %s", console_style(console, STYLE_DIM), name,
                 console_style(console, STYLE_PLAIN), value);
}

void inspect_string(struct inspection *in, const char *name, const char *value)
{
    if (in->json)
        json_out_string(in->json, name, value);
    else
        line(in, name, value);
}

void inspect_int(struct inspection *in, const char *name, int64_t value)
{
    char number[64], human[32];
    if (in->json) {
        json_out_int(in->json, name, value);
        return;
    }
    snprintf(number, sizeof number, value < 10000 ? "%lld" : "%lld (%s)", (long long)value,
             text_human_count(human, (double)value));
    line(in, name, number);
}

void inspect_bytes(struct inspection *in, const char *name, size_t bytes)
{
    char human[32];
    if (in->json)
        json_out_int(in->json, name, (int64_t)bytes);
    else
        line(in, name, text_human_bytes(human, (double)bytes));
}

void inspect_real(struct inspection *in, const char *name, double value)
{
    char number[32];
    if (in->json) {
        json_out_real(in->json, name, value);
        return;
    }
    snprintf(number, sizeof number, "%.5g", value);
    line(in, name, number);
}

/* --- what is it? ---------------------------------------------------------------------------- */

static bool folder_holds(struct env *env, const char *folder, const char *name)
{
    char *path;
    if (path_join(env, folder, name, &path) != STATUS_OK)
        return false;
    bool found = file_exists(path);
    mem_free(env, path);
    return found;
}

static enum status inspect_folder(struct inspection *in)
{
    struct env *env = in->cli->env;
    if (folder_holds(env, in->path, "config.json"))
        return inspect_model(in);
    if (folder_holds(env, in->path, "config.yaml") ||
        folder_holds(env, in->path, "metrics.jsonl") || folder_holds(env, in->path, "summary.json"))
        return inspect_run(in);
    if (folder_holds(env, in->path, "train.bin") || folder_holds(env, in->path, "val.bin"))
        return inspect_shards(in);
    return FAIL(env, CONFIG,
                "the folder '%s' is neither a run (config.yaml) nor a model (config.json), and has "
                "no token shards (train.bin)",
                in->path);
}

static enum status inspect_file(struct inspection *in, enum inspect_format format)
{
    unsigned char head[512] = {0}; /* the last stays 0 */
    struct env *env = in->cli->env;
    struct file_map map;
    if (format != FORMAT_AUTO)
        return inspect_shard(in, format == FORMAT_U16 ? SHARD_U16 : SHARD_U32);
    TRY(file_map_open(env, in->path, &map));
    size_t bytes = map.bytes < sizeof head ? map.bytes : sizeof head - 1;
    if (bytes)
        memcpy(head, map.data, bytes);
    file_map_close(&map);
    size_t white = strspn((const char *)head, " \t\r\n");
    if (bytes >= 4 && shard_is_llmc(head, bytes))
        return inspect_shard(in, SHARD_LLMC);
    if (bytes > 8 && head[8] == '{' && head[7] == 0) /* a length; no JSON has a zero byte */
        return inspect_safetensors(in);
    if (white < sizeof head && head[white] == '{')
        return inspect_tokenizer(in);
    const char *mistaken = mistaken_for(head, bytes);
    if (mistaken)
        return FAIL(env, FORMAT, "'%s' is %s", in->path, mistaken);
    return FAIL(env, FORMAT,
                "cannot tell what '%s' is: not safetensors, not a token shard with a header, not a "
                "tokenizer.json; "
                "for bare token numbers give --format=u16 or u32",
                in->path);
}

static enum status check_use(struct env *env, const struct inspect_settings *settings,
                             const char *const *words, int word_count)
{
    if (settings->diff && settings->verify)
        return FAIL(env, USAGE, "--diff and --verify are two questions: ask them one by one");
    if (settings->diff && word_count != 2)
        return FAIL(env, USAGE, "--diff takes two models or checkpoints; usage: sifr inspect %s",
                    command_inspect.usage);
    if (!settings->diff && word_count == 2)
        return FAIL(env, USAGE, "'%s' is one argument too many; usage: sifr inspect %s", words[1],
                    command_inspect.usage);
    return STATUS_OK;
}

static enum status inspect(struct inspection *in, const struct inspect_settings *settings,
                           const char *other)
{
    if (settings->diff)
        return inspect_diff(in, other);
    if (settings->verify)
        return inspect_verify(in);
    if (dir_exists(in->path))
        return inspect_folder(in);
    return inspect_file(in, (enum inspect_format)settings->format);
}

static enum status run_inspect(struct cli *cli, struct options *options, void *user_settings,
                               const char *const *words, int word_count)
{
    (void)options;
    const struct inspect_settings *settings = user_settings;
    struct json_out json;
    struct inspection in = {.cli = cli, .path = words[0], .json = settings->json ? &json : NULL};
    TRY(check_use(cli->env, settings, words, word_count));
    for (int i = 0; i < word_count; i++)
        TRY(path_exists(cli->env, "", words[i]));
    json_out_begin(&json, cli->env);
    json_out_string(&json, "path", words[0]);
    enum status st = inspect(&in, settings, word_count > 1 ? words[1] : NULL);
    bool told = st == STATUS_OK || settings->verify || in.differs; /* also what is damaged */
    if (told && settings->json) {
        enum status printed = json_out_print(&json, cli->console);
        return st != STATUS_OK ? st : printed;
    }
    text_free(&json.text);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

static const char *const formats[] = {"auto", "u16", "u32", NULL};
static const struct option inspect_list[] = {
    {.key = "format",
     .type = OPTION_CHOICE,
     .flag_only = true,
     .offset = offsetof(struct inspect_settings, format),
     .fallback = "auto",
     .choices = formats,
     .help = "u16 and u32 are bare token numbers; everything else is told by its content"},
    {.key = "verify",
     .type = OPTION_BOOL,
     .flag_only = true,
     .offset = offsetof(struct inspect_settings, verify),
     .help = "read every byte of a checkpoint, or of all of a run's, and compare the hashes"},
    {.key = "diff",
     .type = OPTION_BOOL,
     .flag_only = true,
     .offset = offsetof(struct inspect_settings, diff),
     .help = "compare two models or checkpoints tensor by tensor; exit 1 when they differ"},
    {.key = "json",
     .type = OPTION_BOOL,
     .flag_only = true,
     .offset = offsetof(struct inspect_settings, json),
     .help = "one JSON object"},
};
static const struct option_table inspect_options = {"inspect", inspect_list,
                                                    sizeof inspect_list / sizeof inspect_list[0]};

static enum status bind_inspect(struct options *options, void *settings)
{
    return options_bind(options, &inspect_options, settings);
}

const struct command command_inspect = {
    .name = "inspect",
    .usage = "PATH [--verify] [--diff OTHER] [--json]",
    .summary = "what is in a file or folder: tensors, tokens, a tokenizer, a run",
    .description = "PATH is a safetensors file, a Hugging Face directory, a token shard or a "
                   "folder of them, a tokenizer.json\n"
                   "or a run folder; which one is told by its content. Names, shapes, types and "
                   "sizes are printed, and a "
                   "run's loss curve.\n"
                   "--diff compares two runs, checkpoints, Hugging Face directories or safetensors "
                   "files; of two\n"
                   "checkpoints also masters, momentum and variance.\n",
    .examples = "  sifr inspect runs/tiny\n"
                "  sifr inspect runs/tiny/checkpoints/step-200/model.safetensors\n"
                "  sifr inspect runs/tiny --verify\n"
                "  sifr inspect --diff runs/tiny runs/tiny-again\n"
                "  sifr inspect train.bin --format=u16 --json\n",
    .settings_bytes = sizeof(struct inspect_settings),
    .least_words = 1,
    .most_words = 2,
    .bind = bind_inspect,
    .run = run_inspect,
};
