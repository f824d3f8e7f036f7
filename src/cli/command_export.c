/* command_export -- writes a model as a Hugging Face directory, in a chosen type and file size. */
#include <stdio.h>
#include "cli/command.h"
#include "cli/json_out.h"
#include "train/models/model_export.h"

struct export_settings {
    int type;
    int64_t file_bytes;
    bool json;
};

enum { TYPE_KEEP };
static const char *const type_words[] = {"keep", "f32", "bf16", "f16", NULL};
static const enum dtype types[] = {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static enum status report(struct cli *cli, const struct export_settings *settings,
                          const struct export_request *request, const struct export_result *result)
{
    if (settings->json) {
        struct json_out json;
        json_out_begin(&json, cli->env);
        json_out_string(&json, "from", request->from);
        json_out_string(&json, "to", request->to);
        json_out_string(&json, "dtype", dtype_name(result->type));
        json_out_int(&json, "files", result->files);
        json_out_int(&json, "tensors", result->tensors);
        json_out_int(&json, "parameters", result->parameters);
        json_out_int(&json, "bytes", (int64_t)result->bytes);
        json_out_bool(&json, "verified", result->verified);
        json_out_bool(&json, "master", result->master);
        return json_out_print(&json, cli->console);
    }
    char bytes[32], count[32];
    console_line(cli->console, "%s: %s parameters in %s, %d file%s, %s%s%s", request->to,
                 text_human_count(count, (double)result->parameters), dtype_name(result->type),
                 result->files, result->files == 1 ? "" : "s",
                 text_human_bytes(bytes, (double)result->bytes),
                 result->master ? "; from the fp32 masters" : "",
                 result->verified ? "; the hashes of the checkpoint match" : "");
    return STATUS_OK;
}

static enum status run_export(struct cli *cli, struct options *options, void *user_settings,
                              const char *const *words, int word_count)
{
    (void)options, (void)word_count;
    const struct export_settings *settings = user_settings;
    struct export_request request = {.from = words[0],
                                     .to = words[1],
                                     .keep_type = settings->type == TYPE_KEEP,
                                     .type = types[settings->type],
                                     .file_bytes = settings->file_bytes};
    struct export_result result;
    if (!*request.to)
        return FAIL(cli->env, USAGE, "OUT is empty; name the folder to write");
    TRY(model_export(cli->env, &request, &result));
    return report(cli, settings, &request, &result);
}

static const struct option export_list[] = {
    {COMMAND_FLAG("dtype", export_settings, type, CHOICE), .fallback = "keep",
     .choices = type_words,
     .help = "type of the exported weights; f32 exports the fp32 masters of a run in bf16 or fp16"},
    {COMMAND_FLAG("shard-size", export_settings, file_bytes, INT), .fallback = "5G",
     COMMAND_RANGE(1, 1e18), .value_name = "BYTES",
     .help =
         "largest size of a weight file; more weights are split into several files with an index"},
    {COMMAND_FLAG("json", export_settings, json, BOOL), .help = "print one JSON object"},
};

const struct command command_export = {
    .name = "export",
    .usage = "MODEL OUT [--dtype=f32|bf16|f16] [--shard-size=BYTES]",
    .summary = "write a model as a Hugging Face directory, in f32, bf16 or f16",
    .description =
        "MODEL is a run folder (its newest complete checkpoint is used), a checkpoint or a Hugging "
        "Face directory. OUT must not exist, or be an empty folder. The command writes "
        "config.json, "
        "the weights and the tokenizer to it, all or nothing. The hashes of a checkpoint are "
        "verified first.\n",
    .examples = "  sifr export runs/tiny tiny-hf\n"
                "  sifr export runs/tiny tiny-bf16 --dtype=bf16\n"
                "  sifr export runs/tiny/checkpoints/step-200 parts --dtype=f32 --shard-size=1G\n",
    .settings_bytes = sizeof(struct export_settings),
    .least_words = 2,
    .most_words = 2,
    .flags = COMMAND_FLAGS("export", export_list),
    .run = run_export,
};
