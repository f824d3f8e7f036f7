/* data_config.c -- the data.* keys, and the sources and held-out data that they describe. */
#include <stddef.h>
#include <stdlib.h>
#include "base/file.h"
#include "train/data/dataset_impl.h"

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

static enum status check_mix(struct env *env, const struct data_config *config)
{
    for (int i = 0; i < config->mix.count; i++) {
        const struct data_mix_item *item = (const struct data_mix_item *)config->mix.items + i;
        if (!*item->path)
            return FAIL(env, CONFIG, "data.mix: item %d has no path", i + 1);
        if (!(item->weight > 0))
            return FAIL(env, CONFIG, "data.mix: the weight of '%s' must be above 0", item->path);
    }
    return STATUS_OK;
}

enum status data_plan_make(struct env *env, const struct data_config *config,
                           struct data_plan *plan)
{
    *plan = (struct data_plan){.split = config->split};
    if (*config->path && config->mix.count > 0)
        return FAIL(env, CONFIG, "give data.path or data.mix, not both");
    TRY(check_mix(env, config));
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
