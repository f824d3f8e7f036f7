/* data_tokenizer.c -- the tokenizer that data.tokenizer names, learnt from the training text when
 * it says so.
 *
 * Learning reads the same cut of the same files as the sources will (text_files.h), so held-out
 * text has no part in it.
 */
#include <stdlib.h>
#include <string.h>
#include "train/dataset_impl.h"
#include "train/jsonl.h"
#include "train/text_files.h"

#define TRAIN_BYTES_MAX ((size_t)512 << 20) /* text beyond it adds nothing to a vocabulary */

struct gathering {
    struct text text;
    size_t cut; /* of the file that is being read */
};

static void gather(struct gathering *gathering, const void *data, size_t bytes)
{
    struct text *text = &gathering->text;
    size_t room = TRAIN_BYTES_MAX - text->bytes;
    text_add_bytes(text, data, bytes < room ? bytes : room);
    if (text->bytes < TRAIN_BYTES_MAX)
        text_add(text, "\n"); /* documents do not run together */
}

static enum status gather_document(void *user, const struct jsonl_document *document)
{
    struct gathering *gathering = user;
    if (document->offset >= gathering->cut)
        return STATUS_OK;
    if (document->prompt)
        gather(gathering, document->prompt, document->prompt_bytes);
    gather(gathering, document->text, document->text_bytes);
    return gathering->text.status;
}

static enum status gather_files(struct env *env, const struct text_files *files, bool jsonl,
                                struct gathering *gathering)
{
    for (int i = 0; i < files->count; i++) {
        const struct text_file *file = &files->files[i];
        gathering->cut = file->cut;
        if (jsonl)
            TRY(jsonl_parse(env, (const char *)file->map.data, file->map.bytes, file->path,
                            gather_document, gathering));
        else if (file->cut > 0)
            gather(gathering, file->map.data, file->cut);
        TRY(file_map_check(env, file->path, file->map.data));
    }
    return gathering->text.status;
}

static enum status gather_sources(struct env *env, const struct data_config *config,
                                  struct gathering *gathering)
{
    struct data_plan plan;
    TRY(data_plan_make(env, config, &plan));
    for (int i = 0; i < plan.count; i++) {
        struct data_mix_item item = data_plan_item(config, i);
        struct text_files files;
        enum data_format format;
        TRY(source_detect(env, item.path, (enum data_format)item.format, &format));
        if (format != DATA_TEXT && format != DATA_JSONL)
            return FAIL(env, CONFIG, "a vocabulary is learnt from text, but '%s' holds tokens",
                        item.path);
        TRY(text_files_open(env, item.path, plan.split, format == DATA_JSONL, &files));
        enum status st = gather_files(env, &files, format == DATA_JSONL, gathering);
        text_files_close(env, &files);
        TRY(st);
    }
    if (gathering->text.bytes == 0)
        return FAIL(env, CONFIG,
                    "there is no training text that a vocabulary could be learnt from");
    return STATUS_OK;
}

bool data_tokenizer_is_learnt(const struct data_config *config)
{
    return strncmp(config->tokenizer, "train:", strlen("train:")) == 0;
}

enum status data_tokenizer_size(struct env *env, const struct data_config *config, int64_t *vocab)
{
    const char *size = config->tokenizer + strlen("train:");
    char *end;
    *vocab = strtol(size, &end, 10);
    if (end == size || *end || *vocab < DATA_LEARNT_MIN || *vocab > DATA_LEARNT_MAX)
        return FAIL(env, CONFIG,
                    "data.tokenizer 'train:%s': the size must be a number from %d to %d", size,
                    DATA_LEARNT_MIN, DATA_LEARNT_MAX);
    return STATUS_OK;
}

static enum status train(struct env *env, const struct data_config *config,
                         tokenizer_progress_fn *progress, void *user, struct tokenizer **tokenizer)
{
    int64_t vocab;
    TRY(data_tokenizer_size(env, config, &vocab));
    struct gathering gathering = {0};
    text_init(&gathering.text, env);
    enum status st = gather_sources(env, config, &gathering);
    if (st == STATUS_OK)
        st = tokenizer_train(env, gathering.text.data, gathering.text.bytes, (int)vocab, progress,
                             user, tokenizer);
    text_free(&gathering.text);
    return st;
}

enum status data_tokenizer_create(struct env *env, const struct data_config *config,
                                  tokenizer_progress_fn *progress, void *user,
                                  struct tokenizer **tokenizer)
{
    if (!*config->tokenizer) {
        *tokenizer = NULL;
        return STATUS_OK;
    }
    if (data_tokenizer_is_learnt(config))
        return train(env, config, progress, user, tokenizer);
    return tokenizer_load(env, config->tokenizer, tokenizer);
}

static enum status path_has_text(struct env *env, const char *path, int format, bool *has_text)
{
    enum data_format found;
    TRY(source_detect(env, path, (enum data_format)format, &found));
    *has_text |= found == DATA_TEXT || found == DATA_JSONL;
    return STATUS_OK;
}

enum status data_has_text(struct env *env, const struct data_config *config, bool *has_text)
{
    struct data_plan plan;
    *has_text = false;
    TRY(data_plan_make(env, config, &plan));
    for (int i = 0; i < plan.count; i++) {
        struct data_mix_item item = data_plan_item(config, i);
        TRY(path_has_text(env, item.path, item.format, has_text));
    }
    return plan.val ? path_has_text(env, plan.val, config->format, has_text) : STATUS_OK;
}
