/* command_inspect -- shows what is in a file or folder. The content decides what it is, never the
 * name alone:
 *
 *     folder with config.yaml, metrics.jsonl or summary.json     a run
 *     folder with config.json                                    a model
 *     folder with train.bin or val.bin                           token shards
 *     the magic number of an llm.c shard                         tokens
 *     a length and then '{'                                      safetensors
 *     '{'                                                        tokenizer.json
 *
 * Bare token ids have no header to recognize; --format=u16 or u32 says that a file holds them.
 */
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/named.h"
#include "cli/inspect/inspect.h"
#include "train/weights/model_file.h"

enum inspect_format { FORMAT_AUTO, FORMAT_U16, FORMAT_U32 };

struct inspect_settings {
    int format;
    bool verify, diff, json;
};

/* --- recognize the content ------------------------------------------------------------------ */

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
    TRY(model_file_check_folder(env, in->path)); /* an adapter, or weights alone */
    return FAIL(
        env, CONFIG,
        "cannot recognize the folder '%s': no config.yaml (a run), no config.json (a model) "
        "and no train.bin (token shards) in it",
        in->path);
}

static enum status inspect_file(struct inspection *in, enum inspect_format format)
{
    unsigned char head[512] = {0}; /* the last byte stays 0, as the end of a string */
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
    if (bytes > 8 && head[8] == '{' &&
        head[7] == 0) /* a little-endian length; no JSON has a zero byte */
        return inspect_safetensors(in);
    if (white < sizeof head && head[white] == '{')
        return inspect_tokenizer(in);
    const char *mistaken = mistaken_for(head, bytes);
    if (mistaken)
        return FAIL(env, FORMAT, "'%s' is %s", in->path, mistaken);
    return FAIL(env, FORMAT,
                "cannot recognize '%s': not safetensors, not a token shard with a header, not a "
                "tokenizer.json; for bare token ids add --format=u16 or --format=u32",
                in->path);
}

static enum status check_use(struct env *env, const struct inspect_settings *settings,
                             const char *const *words, int word_count)
{
    if (settings->diff && settings->verify)
        return FAIL(env, USAGE,
                    "--diff and --verify cannot be combined; run them one after the other");
    if (settings->diff && word_count != 2)
        return FAIL(env, USAGE, "--diff takes two models or checkpoints; usage: sifr inspect %s",
                    command_inspect.usage);
    if (!settings->diff && word_count == 2)
        return FAIL(env, USAGE, "unexpected argument '%s'; usage: sifr inspect %s", words[1],
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
        TRY(named_model(cli->env, "", words[i]));
    json_out_begin(&json, cli->env);
    json_out_string(&json, "path", words[0]);
    enum status st = inspect(&in, settings, word_count > 1 ? words[1] : NULL);
    /* A failed --verify or --diff has a report too. */
    bool reported = st == STATUS_OK || settings->verify || in.differs;
    if (reported && settings->json) {
        enum status printed = json_out_print(&json, cli->console);
        return st != STATUS_OK ? st : printed;
    }
    text_free(&json.text);
    return st;
}

/* --- the command ---------------------------------------------------------------------------- */

static const char *const formats[] = {"auto", "u16", "u32", NULL};
static const struct option inspect_list[] = {
    {COMMAND_FLAG("format", inspect_settings, format, CHOICE), .fallback = "auto",
     .choices = formats,
     .help = "format of a file without a header: u16 and u32 are bare token ids; auto recognizes "
             "the rest"},
    {COMMAND_FLAG("verify", inspect_settings, verify, BOOL),
     .help = "compare every byte of a checkpoint, or of all checkpoints of a run, with its hashes"},
    {COMMAND_FLAG("diff", inspect_settings, diff, BOOL),
     .help = "compare two models or checkpoints tensor by tensor; exit code 1 when they differ"},
    {COMMAND_FLAG("json", inspect_settings, json, BOOL), .help = "print one JSON object"},
};

const struct command command_inspect = {
    .name = "inspect",
    .usage = "PATH [--verify] [--diff OTHER] [--json]",
    .summary = "show what is in a file or folder: tensors, tokens, a tokenizer, a run",
    .description =
        "PATH is a run folder, a checkpoint, a Hugging Face directory, a safetensors file, a "
        "tokenizer.json, a token shard or a folder of token shards; the content decides which. For "
        "models the command prints names, types, shapes and sizes of all tensors, for runs the "
        "summary and the loss curve.\n\n"
        "--diff compares two runs, checkpoints, Hugging Face directories or safetensors files. For "
        "two checkpoints it also compares fp32 masters and optimizer state.\n",
    .examples = "  sifr inspect runs/tiny\n"
                "  sifr inspect runs/tiny/checkpoints/step-200/model.safetensors\n"
                "  sifr inspect runs/tiny --verify\n"
                "  sifr inspect --diff runs/tiny runs/tiny-again\n"
                "  sifr inspect train.bin --format=u16 --json\n",
    .settings_bytes = sizeof(struct inspect_settings),
    .least_words = 1,
    .most_words = 2,
    .flags = COMMAND_FLAGS("inspect", inspect_list),
    .run = run_inspect,
};
