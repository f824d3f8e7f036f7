/* command_tokenize -- encodes text as token shards, optionally with a new vocabulary, and decodes
 * them.
 *
 * train/data/encode.c and the tokenizer do the work. This file has the options, the report, and the
 * rule that all output files appear or none.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/lock_file.h"
#include "base/part_folder.h"
#include "cli/command.h"
#include "train/data/encode.h"
#include "cli/json_out.h"
#include "cli/token_file.h"
#include "train/data/dataset.h"
#include "base/named.h"
#include "train/data/shard.h"
#include "train/data/source.h"

enum { DECODE_TOKENS = 1024, WORDS_MAX = 1 << 20 };

struct tokenize_settings {
    const char *out, *tokenizer;
    int64_t vocab, max_text;
    double split;
    int format;
    bool special, decode, json;
};

/* --- text to tokens ------------------------------------------------------------------------- */

static enum status check_flags(struct env *env, const struct tokenize_settings *settings)
{
    if (settings->vocab > 0 && *settings->tokenizer)
        return FAIL(env, USAGE,
                    "--vocab and --tokenizer cannot be combined: --vocab trains a new tokenizer");
    if (settings->vocab > 0 && settings->vocab < DATA_LEARNT_MIN)
        return FAIL(env, USAGE,
                    "--vocab=%lld is too small: the bytes and the end-of-text token need %d",
                    (long long)settings->vocab, DATA_LEARNT_MIN);
    return *settings->tokenizer ? named_tokenizer(env, "--tokenizer", settings->tokenizer)
                                : STATUS_OK;
}

static bool never_stop(void *user, int done, int total)
{
    (void)user, (void)done, (void)total;
    return true; /* a signal terminates this command, so it never has to be cancelled */
}

/* With --vocab, train on the files to encode, without the part held out for val.bin. */
static enum status make_tokenizer(struct cli *cli, const struct tokenize_settings *settings,
                                  const char *const *words, int word_count,
                                  struct tokenizer **tokenizer)
{
    char learnt[32];
    if (settings->vocab == 0)
        return tokenizer_load(cli->env, *settings->tokenizer ? settings->tokenizer : "bytes",
                              tokenizer);
    snprintf(learnt, sizeof learnt, "train:%lld", (long long)settings->vocab);

    struct data_mix_item *items;
    TRY(mem_alloc_array(cli->env, MEM_LOADER, "sources", (size_t)word_count, sizeof *items,
                        &items));
    for (int i = 0; i < word_count; i++)
        items[i] =
            (struct data_mix_item){.path = words[i], .weight = 1, .format = settings->format};
    struct data_config data = {.path = "",
                               .val = "",
                               .tokenizer = learnt,
                               .max_text = settings->max_text,
                               .split = settings->split,
                               .mix = {.items = items, .count = word_count}};
    enum status st = data_tokenizer_create(cli->env, &data, never_stop, NULL, tokenizer);
    mem_free(cli->env, items);
    return st;
}

#define PARTIAL_NAME ".sifr-partial" /* inside --out, until all files are written */

/* The tokenizer may come with the files after the first three, which name its special tokens. */
static const char *const output_names[] = {"train.bin",
                                           "val.bin",
                                           "tokenizer.json",
                                           "generation_config.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "chat_template.jinja"};
enum { OUTPUTS = sizeof output_names / sizeof *output_names };

struct tokenized {
    char *paths[OUTPUTS]; /* in the order of output_names */
    int vocab;
    double learn_seconds;
    struct encode_result result;
};

static enum status print_tokenized_json(struct cli *cli, const struct tokenized *done)
{
    static const char *const names[] = {"train", "val"};
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_string(&json, "tokenizer", done->paths[2]);
    json_out_int(&json, "vocab", done->vocab);
    for (int part = 0; part < 2; part++) {
        if (done->result.tokens[part] == 0)
            continue;
        json_out_open(&json, names[part], '{');
        json_out_string(&json, "path", done->paths[part]);
        json_out_int(&json, "tokens", done->result.tokens[part]);
        json_out_int(&json, "bytes", (int64_t)done->result.bytes[part]);
        json_out_close(&json, '}');
    }
    json_out_real(&json, "learn_seconds", done->learn_seconds);
    json_out_real(&json, "encode_seconds", done->result.seconds);
    return json_out_print(&json, cli->console);
}

static void add_flag(struct text *command, const char *flag, const char *value)
{
    struct text word;
    text_init(&word, command->env);
    text_printf(&word, "%s=%s", flag, value);
    command_line_add_word(command, text_string(&word));
    text_free(&word);
}

static void print_next(struct cli *cli, const struct tokenized *done)
{
    struct text command;
    text_init(&command, cli->env);
    text_add(&command, "sifr train --model.preset=tiny");
    add_flag(&command, "--data.path", done->paths[0]);
    if (done->result.tokens[1])
        add_flag(&command, "--data.val", done->paths[1]);
    add_flag(&command, "--data.tokenizer", done->paths[2]);
    console_line(cli->console, "next       %s", text_string(&command));
    text_free(&command);
}

static void print_tokenized(struct cli *cli, const struct tokenized *done)
{
    static const char *const names[] = {"train", "val"};
    const struct encode_result *r = &done->result;
    char a[32], b[32];
    console_line(cli->console, "tokenizer  %s: %d tokens", done->paths[2], done->vocab);
    for (int part = 0; part < 2; part++) {
        if (r->tokens[part])
            console_line(cli->console, "%-10s %s: %s tokens, %.2f bytes of text each", names[part],
                         done->paths[part], text_human_count(a, (double)r->tokens[part]),
                         (double)r->bytes[part] / (double)r->tokens[part]);
    }
    console_line(cli->console, "speed      %s/s, %s in all",
                 text_human_bytes(a, (double)(r->bytes[0] + r->bytes[1]) / (r->seconds + 1e-9)),
                 text_human_seconds(b, r->seconds + done->learn_seconds));
    print_next(cli, done);
}

/* Never overwrite, and never mix files of two calls in one folder. */
static enum status check_output_free(struct env *env, const struct tokenize_settings *settings,
                                     const struct tokenized *done)
{
    TRY(named_out(env, "--out", settings->out));
    for (int i = 0; i < OUTPUTS; i++)
        if (!path_is_free(done->paths[i]))
            return FAIL(env, CONFIG,
                        "'%s' already exists and is not overwritten; choose another --out",
                        done->paths[i]);
    return STATUS_OK;
}

static enum status write_tokens(struct cli *cli, const struct tokenize_settings *settings,
                                const char *const *words, int word_count,
                                const struct tokenizer *tokenizer, char *const paths[OUTPUTS],
                                struct tokenized *done)
{
    struct encode_job job = {
        .env = cli->env,
        .tokenizer = tokenizer,
        .patterns = words,
        .pattern_count = word_count,
        .format = (enum data_format)settings->format,
        .split = settings->split,
        .special = settings->special,
        .path = {paths[0], paths[1]},
    };
    TRY(encode_files(&job, &done->result));
    done->vocab = tokenizer_vocab(tokenizer);
    return tokenizer_save(tokenizer, paths[2]);
}

/* Write to a partial folder, then move: all files appear in --out, or none. */
static enum status write_files(struct cli *cli, const struct tokenize_settings *settings,
                               const char *const *words, int word_count,
                               const struct tokenizer *tokenizer, struct tokenized *done)
{
    struct env *env = cli->env;
    struct part_folder *folder = NULL;
    char *stem, *paths[OUTPUTS] = {0};
    enum status st;
    TRY(path_join(env, settings->out, PARTIAL_NAME, &stem));
    TRY_OR(undo, part_folder_clear_all(env, stem));
    TRY_OR(undo, part_folder_create(env, stem, &folder));
    for (int i = 0; i < OUTPUTS; i++)
        TRY_OR(undo, path_join(env, part_folder_path(folder), output_names[i], &paths[i]));
    TRY_OR(undo, write_tokens(cli, settings, words, word_count, tokenizer, paths, done));
    TRY_OR(undo, tokenizer_save_files(tokenizer, part_folder_path(folder)));
    st = part_folder_hand_over(folder, settings->out, output_names, OUTPUTS);
undo:
    for (int i = 0; i < OUTPUTS; i++)
        mem_free(env, paths[i]);
    part_folder_destroy(folder);
    mem_free(env, stem);
    return st;
}

/* Create the folder and fill it. Only one process may write to a folder at a time. */
static enum status make_folder(struct cli *cli, const struct tokenize_settings *settings,
                               const char *const *words, int word_count, struct tokenized *done)
{
    const struct lock_words lock_words = {
        .writer = "tokenize", .output = settings->out, .advice = "choose another --out"};
    struct env *env = cli->env;
    struct lock_file *lock = NULL;
    struct tokenizer *tokenizer = NULL;
    struct dir_made made;
    char *marker = NULL;
    enum status st;
    TRY_OR(undo, dir_make(env, settings->out, &made));
    TRY_OR(undo, path_join(env, settings->out, PART_FOLDER_MARKER, &marker));
    TRY_OR(undo, lock_file_take(env, marker, &lock_words, &lock));
    double begin = clock_seconds();
    TRY_OR(undo,
           check_output_free(env, settings, done)); /* again: another process may have written */
    TRY_OR(undo, make_tokenizer(cli, settings, words, word_count, &tokenizer));
    done->learn_seconds = clock_seconds() - begin;
    st = write_files(cli, settings, words, word_count, tokenizer, done);
undo:
    tokenizer_destroy(tokenizer);
    lock_file_release(lock);
    mem_free(env, marker);
    if (st != STATUS_OK)
        dir_unmake(env, settings->out, &made);
    return st;
}

static enum status tokenize(struct cli *cli, const struct tokenize_settings *settings,
                            const char *const *words, int word_count)
{
    struct env *env = cli->env;
    struct tokenized done = {0};
    enum status st;
    TRY(check_flags(env, settings));
    for (int i = 0; i < word_count; i++)
        TRY(named_files(env, "", words[i]));
    for (int i = 0; i < OUTPUTS; i++)
        TRY_OR(undo, path_join(env, settings->out, output_names[i], &done.paths[i]));
    TRY_OR(undo, check_output_free(env, settings, &done));
    TRY_OR(undo, make_folder(cli, settings, words, word_count, &done));
    if (settings->json)
        st = print_tokenized_json(cli, &done);
    else
        print_tokenized(cli, &done);
undo:
    for (int i = 0; i < OUTPUTS; i++)
        mem_free(env, done.paths[i]);
    return st;
}

/* --- tokens to text ------------------------------------------------------------------------- */

/* --tokenizer, or the tokenizer.json in the shard's folder. */
static enum status find_tokenizer(struct env *env, const char *named, const char *shard_path,
                                  struct tokenizer **tokenizer)
{
    if (*named) {
        TRY(named_tokenizer(env, "--tokenizer", named));
        return tokenizer_load(env, named, tokenizer);
    }
    const char *slash = strrchr(shard_path, '/');
    char folder[4096];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - shard_path) : 1,
             slash ? shard_path : ".");
    char *path;
    TRY(path_join(env, folder, "tokenizer.json", &path));
    enum status st =
        file_exists(path)
            ? tokenizer_load(env, path, tokenizer)
            : FAIL(env, USAGE, "no tokenizer.json in the folder of '%s'; name one with --tokenizer",
                   shard_path);
    mem_free(env, path);
    return st;
}

/* Keep an incomplete character in `text` for the next call, unless this is the last one. */
static void print_whole(struct console *console, struct text *text, bool last)
{
    char rest[4];
    size_t bytes = last ? 0 : text_unfinished(text_string(text), text->bytes);
    console_data(console, text_string(text), text->bytes - bytes);
    memcpy(rest, text_string(text) + text->bytes - bytes, bytes);
    text_clear(text);
    text_add_bytes(text, rest, bytes);
}

static enum status print_shard(struct cli *cli, const struct shard *shard,
                               const struct tokenizer *tokenizer)
{
    struct text text;
    int32_t ids[DECODE_TOKENS];
    enum status st = STATUS_OK;
    int64_t count = shard_count(shard);
    const uint16_t *narrow = shard_tokens(shard);
    const uint32_t *wide = shard_tokens(shard);
    text_init(&text, cli->env);
    for (int64_t first = 0; first < count && st == STATUS_OK; first += DECODE_TOKENS) {
        int n = count - first < DECODE_TOKENS ? (int)(count - first) : DECODE_TOKENS;
        for (int i = 0; i < n; i++)
            ids[i] = (int32_t)(shard_token_bytes(shard) == 2 ? narrow[first + i] : wide[first + i]);
        st = file_map_check(cli->env, shard_path(shard), shard_tokens(shard));
        if (st == STATUS_OK)
            st = tokenizer_decode_part(tokenizer, ids, n, &text);
        if (st == STATUS_OK)
            print_whole(cli->console, &text, first + n == count);
    }
    text_free(&text);
    return st;
}

static enum status decode_shard(struct cli *cli, const struct tokenize_settings *settings,
                                const char *path)
{
    enum shard_format format = settings->format == DATA_U16   ? SHARD_U16
                               : settings->format == DATA_U32 ? SHARD_U32
                                                              : SHARD_LLMC;
    struct shard *shard = NULL;
    struct tokenizer *tokenizer = NULL;
    enum status st;
    TRY_OR(undo, token_file_open(cli->env, path, format, &shard));
    TRY_OR(undo, find_tokenizer(cli->env, settings->tokenizer, path, &tokenizer));
    if (shard_fingerprint(shard) &&
        shard_fingerprint(shard) != source_tokenizer_fingerprint(tokenizer))
        log_warn(cli->env,
                 "'%s' was encoded with another tokenizer: the decoded text will be wrong", path);
    st = print_shard(cli, shard, tokenizer);
undo:
    tokenizer_destroy(tokenizer);
    shard_close(shard);
    return st;
}

static enum status decode(struct cli *cli, const struct tokenize_settings *settings,
                          const char *const *words, int word_count)
{
    for (int i = 0; i < word_count; i++) {
        struct path_list list;
        enum status st = STATUS_OK;
        TRY(named_files(cli->env, "", words[i]));
        TRY(path_glob(cli->env, words[i], &list));
        for (int k = 0; k < list.count && st == STATUS_OK; k++)
            st = decode_shard(cli, settings, list.paths[k]);
        path_list_free(cli->env, &list);
        TRY(st);
    }
    return STATUS_OK;
}

static enum status run_tokenize(struct cli *cli, struct options *options, void *settings,
                                const char *const *words, int word_count)
{
    (void)options;
    const struct tokenize_settings *tokens = settings;
    if (!*tokens->out)
        return FAIL(cli->env, USAGE, "--out is empty: name a folder, or omit --out");
    return tokens->decode ? decode(cli, tokens, words, word_count)
                          : tokenize(cli, tokens, words, word_count);
}

/* --- the command ---------------------------------------------------------------------------- */

static const char *const formats[] = {
    [DATA_AUTO] = "auto", [DATA_TEXT] = "text", [DATA_TOKENS] = "tokens", [DATA_JSONL] = "jsonl",
    [DATA_U16] = "u16",   [DATA_U32] = "u32",   [DATA_U32 + 1] = NULL};

#define FIELD(name, kind) COMMAND_FLAG(#name, tokenize_settings, name, kind)
static const struct option tokenize_list[] = {
    {FIELD(out, STRING), .letter = 'o', .fallback = "tokens", .value_name = "DIR",
     .help = "folder for train.bin, val.bin and tokenizer.json"},
    {FIELD(vocab, INT), .fallback = "0", COMMAND_RANGE(0, 1e6),
     .help = "train a tokenizer with this many tokens on the text; 0 = use --tokenizer"},
    {COMMAND_FLAG("max-text", tokenize_settings, max_text, INT), .fallback = "512M",
     COMMAND_RANGE(0, 9e18), .value_name = "BYTES",
     .help = "with --vocab: bytes of text to train on, sampled evenly from a larger text; 0 = all"},
    {FIELD(tokenizer, STRING), .value_name = "FILE",
     .help = "a tokenizer.json, a folder that contains one, or 'bytes'; default: bytes"},
    {FIELD(split, REAL), .fallback = "0.05", COMMAND_RANGE(0, 0.9),
     .help = "fraction of the text, taken from its end, for val.bin"},
    {FIELD(format, CHOICE), .choices = formats, .fallback = "auto",
     .help = "format of the files; u16 and u32 (bare token ids) only with --decode"},
    {FIELD(special, BOOL),
     .help = "encode special tokens that occur literally in the text, such as <|endoftext|>"},
    {FIELD(decode, BOOL), .letter = 'd', .help = "decode token shards to text on stdout"},
    {FIELD(json, BOOL), .help = "print the report as one JSON object"},
};
#undef FIELD

const struct command command_tokenize = {
    .name = "tokenize",
    .usage = "FILE ... [--out=DIR] [--vocab=N | --tokenizer=FILE]",
    .summary = "encode text or JSONL as token shards, optionally with a new vocabulary",
    .description =
        "FILE is a text file, a JSONL file whose objects have a \"text\" field, or a quoted glob. "
        "The "
        "command writes train.bin and val.bin in the format of llm.c, and the tokenizer.json that "
        "encoded them, to the folder --out. It never overwrites files. --decode turns token shards "
        "back into text.\n",
    .examples = "  sifr tokenize book.txt --vocab=4096 --out=data/book\n"
                "  sifr tokenize 'corpus/*.jsonl' --tokenizer=gpt2/tokenizer.json --split=0.01\n"
                "  sifr tokenize --decode data/book/val.bin | head\n",
    .settings_bytes = sizeof(struct tokenize_settings),
    .least_words = 1,
    .most_words = WORDS_MAX,
    .flags = COMMAND_FLAGS("tokenize", tokenize_list),
    .run = run_tokenize,
};
