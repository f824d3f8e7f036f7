/* data_config.c -- the data.* keys, the sources and held-out data that they describe, and the files
 * that they name.
 *
 * Paths are made absolute because a run's config.yaml may be read again from another folder, where
 * a relative path would lead to no file or, worse, to a different one.
 */
#include "train/data/data_config.h"
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/named.h"

static const char *const FORMATS[] = {"auto", "text", "tokens", "jsonl", "u16", "u32", NULL};

static const struct option MIX_FIELDS[] = {
    {.key = "path",
     .type = OPTION_STRING,
     .offset = offsetof(struct data_mix_item, path),
     .help = "file or glob",
     .value_name = "GLOB"},
    {.key = "weight",
     .type = OPTION_REAL,
     .offset = offsetof(struct data_mix_item, weight),
     .fallback = "1",
     .help = "fraction of the samples, relative to the others",
     .ranged = true,
     .min = 0,
     .max = 1e9},
    {.key = "format",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct data_mix_item, format),
     .fallback = "auto",
     .help = "format of the files",
     .choices = FORMATS},
};

static const struct option OPTIONS[] = {
    {.key = "data.path",
     .type = OPTION_STRING,
     .offset = offsetof(struct data_config, path),
     .help = "training data: a file, or a quoted glob for several",
     .value_name = "GLOB"},
    {.key = "data.val",
     .type = OPTION_STRING,
     .offset = offsetof(struct data_config, val),
     .help = "held-out data: a file or glob, or a fraction, such as 0.1, to hold out from the "
             "end of every source",
     .value_name = "GLOB"},
    {.key = "data.split",
     .type = OPTION_REAL,
     .offset = offsetof(struct data_config, split),
     .fallback = "0.05",
     .help = "fraction of every source to hold out if data.val is not given; 0 = nothing",
     .ranged = true,
     .min = 0,
     .max = 0.9},
    {.key = "data.tokenizer",
     .type = OPTION_STRING,
     .offset = offsetof(struct data_config, tokenizer),
     .help = "a tokenizer.json or its folder, 'bytes', or 'train:4096' to train one of that "
             "size; default: the one of model.path, else bytes",
     .value_name = "FILE"},
    {.key = "data.max_text",
     .type = OPTION_INT,
     .offset = offsetof(struct data_config, max_text),
     .fallback = "512M",
     .help = "maximum bytes of text that 'train:N' reads, as evenly spaced parts; 0 = all",
     .value_name = "BYTES",
     .ranged = true,
     .min = 0,
     .max = 9e18},
    {.key = "data.format",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct data_config, format),
     .fallback = "auto",
     .help = "format of the files; u16 and u32 are raw token ids",
     .choices = FORMATS},
    {.key = "data.special",
     .type = OPTION_BOOL,
     .offset = offsetof(struct data_config, special),
     .fallback = "false",
     .help = "encode strings such as <|endoftext|> in the text as special tokens"},
    {.key = "data.cache",
     .type = OPTION_STRING,
     .offset = offsetof(struct data_config, cache),
     .help = "folder for the encoded text, which several runs may share (default: cache in the run "
             "folder)",
     .value_name = "DIR"},
    {.key = "data.mix",
     .type = OPTION_LIST,
     .offset = offsetof(struct data_config, mix),
     .help = "weighted sources, instead of data.path",
     .fields = MIX_FIELDS,
     .field_count = sizeof MIX_FIELDS / sizeof *MIX_FIELDS,
     .element_bytes = sizeof(struct data_mix_item)},
};

const struct option_table data_options = {
    .title = "data", .options = OPTIONS, .count = sizeof OPTIONS / sizeof *OPTIONS};

/* --- the sources ---------------------------------------------------------------------------- */

/* data.val is a fraction, or a file or glob. */
static enum status read_val(struct env *env, const char *text, struct data_plan *plan)
{
    char *end;
    double value = strtod(text, &end);
    bool number = end != text && !*end;
    if (number && value >= 0 && value < 1) {
        plan->split = value;
        return STATUS_OK;
    }
    if (number && !file_exists(text)) /* a file name may be a number, such as 2024 */
        return FAIL(env, CONFIG,
                    "data.val: %s is neither a file nor a share; a share is at least 0 and below 1 "
                    "(0.1 = the last tenth)",
                    text);
    plan->val = text;
    plan->split = 0;
    return STATUS_OK;
}

enum status data_plan_make(struct env *env, const struct data_config *config,
                           struct data_plan *plan)
{
    *plan = (struct data_plan){.split = config->split};
    if (*config->path && config->mix.count > 0)
        return FAIL(env, CONFIG, "give data.path or data.mix, not both");
    for (int i = 0; i < config->mix.count; i++) {
        const struct data_mix_item *item = (const struct data_mix_item *)config->mix.items + i;
        if (!*item->path)
            return FAIL(env, CONFIG, "data.mix: item %d has no path", i + 1);
        if (!(item->weight > 0))
            return FAIL(env, CONFIG, "data.mix: the weight of '%s' must be above 0", item->path);
    }
    plan->count = *config->path ? 1 : config->mix.count;
    if (*config->val)
        TRY(read_val(env, config->val, plan));
    if (plan->count == 0 && !plan->val)
        return FAIL(env, CONFIG, "data.path is not set: there is nothing to train on");
    return STATUS_OK;
}

struct data_mix_item data_plan_item(const struct data_config *config, int i)
{
    if (*config->path)
        return (struct data_mix_item){config->path, 1, config->format};
    return ((const struct data_mix_item *)config->mix.items)[i];
}

/* --- existence ------------------------------------------------------------------------------ */

/* data.tokenizer does not always name a file. */
static bool is_tokenizer_file(const char *name)
{
    return *name && strcmp(name, "bytes") != 0 && strncmp(name, "train:", 6) != 0;
}

enum status data_paths_check_tokenizer(struct env *env, const struct data_config *config)
{
    return is_tokenizer_file(config->tokenizer)
               ? named_tokenizer(env, "data.tokenizer", config->tokenizer)
               : STATUS_OK;
}

enum status data_paths_check(struct env *env, const struct data_config *config)
{
    struct data_plan plan;
    TRY(data_plan_make(env, config, &plan));
    for (int i = 0; i < plan.count; i++)
        TRY(named_files(env, *config->path ? "data.path" : "data.mix",
                        data_plan_item(config, i).path));
    if (plan.val)
        TRY(named_files(env, "data.val", plan.val));
    return data_paths_check_tokenizer(env, config);
}

enum status data_paths_held_out(struct env *env, struct data_config *config)
{
    struct data_plan plan;
    TRY(data_plan_make(env, config, &plan));
    if (plan.val) {
        config->path = "";
        config->mix = (struct option_list){0};
    }
    return STATUS_OK;
}

/* --- absolute paths ------------------------------------------------------------------------- */

enum status path_make_absolute(struct env *env, struct options *options, const char **path)
{
    char folder[PATH_MAX], *joined;
    if (**path == '\0' || **path == '/')
        return STATUS_OK;
    if (!getcwd(folder, sizeof folder))
        return FAIL(env, IO, "cannot tell the current folder: %s", strerror(errno));
    TRY(path_join(env, folder, *path, &joined));
    enum status st = options_keep(options, joined, path);
    mem_free(env, joined);
    return st;
}

enum status data_paths_make_absolute(struct env *env, struct options *options,
                                     struct data_config *config)
{
    struct data_plan plan;
    struct data_mix_item *mix = config->mix.items;
    TRY(data_plan_make(env, config, &plan));
    TRY(path_make_absolute(env, options, &config->path));
    TRY(path_make_absolute(env, options, &config->cache));
    for (int i = 0; i < config->mix.count; i++)
        TRY(path_make_absolute(env, options, &mix[i].path));
    if (plan.val)
        TRY(path_make_absolute(env, options, &config->val));
    return is_tokenizer_file(config->tokenizer)
               ? path_make_absolute(env, options, &config->tokenizer)
               : STATUS_OK;
}
