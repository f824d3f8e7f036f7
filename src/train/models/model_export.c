/* model_export.c -- the steps of an export:
 *
 *     open the source; the files of a checkpoint that will be read are verified
 *     read config.json, create the model on a dry device for its graph, lay out the files
 *     lock OUT.sifr-lock; remove what killed exports to OUT have left
 *     write tensors, index and config.json to OUT.sifr-partial, and copy the tokenizer's files
 *     rename OUT.sifr-partial to OUT
 */
#include "train/models/model_export.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/input.h"
#include "base/lock_file.h"
#include "base/part_folder.h"
#include "base/progress.h"
#include "device/device.h"
#include "train/checkpoint/checkpoint.h"
#include "train/weights/hf_config.h"
#include "train/weights/model_file.h"
#include "train/models/model_weights.h"

#define COPY_BYTES_MAX ((size_t)1 << 30)

/* Files that are copied unchanged, if they exist. */
static const char *const copied[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
};
enum { COPIED = sizeof copied / sizeof copied[0] };

struct export
{
    struct env *env; /* borrowed */
    const struct export_request *request;
    struct export_result *result;
    char *to, *stem;
    struct lock_file *lock;
    struct part_folder *folder;
    struct model_source *source;
    struct hf_config config;
    struct device *device; /* dry */
    struct model *model;
    struct weight_files weights;
    struct checkpoint_layout layout;
    struct progress_task task; /* bytes of the files of tensors */
};

/* --- source and target ---------------------------------------------------------------------- */

static enum status check_target(struct export *e)
{
    if (path_is_link(e->to))
        return FAIL(e->env, CONFIG,
                    "'%s' is a symbolic link: nothing is overwritten; name the folder itself",
                    e->to);
    if (dir_is_empty(e->env, e->to))
        return STATUS_OK;
    if (errno == 0 || errno == ENOTDIR)
        return FAIL(e->env, CONFIG,
                    "'%s' exists and is not an empty folder: nothing is overwritten", e->to);
    char reason[128];
    return FAIL(e->env, IO, "cannot read folder '%s': %s", e->to,
                input_reason(errno, reason, sizeof reason));
}

/* *path = the target's path with a suffix. */
static enum status name_near(struct export *e, const char *suffix, char **path)
{
    size_t room = strlen(e->to) + strlen(suffix) + 1;
    TRY(mem_alloc(e->env, MEM_OTHER, "path", room, path));
    snprintf(*path, room, "%s%s", e->to, suffix);
    return STATUS_OK;
}

static enum status name_target(struct export *e)
{
    size_t bytes = strlen(e->request->to);
    TRY(mem_strdup(e->env, e->request->to, &e->to));
    while (bytes > 1 && e->to[bytes - 1] == '/')
        e->to[--bytes] = '\0';
    TRY(check_target(e));
    return name_near(e, ".sifr-partial", &e->stem);
}

/* Make sure that no other export writes to this target. */
static enum status lock_target(struct export *e)
{
    const struct lock_words words = {
        .writer = "export", .output = e->to, .advice = "choose another OUT"};
    char *path;
    TRY(path_parent(e->env, e->to, &path));
    enum status st = dir_create(e->env, path);
    mem_free(e->env, path);
    TRY(st);
    TRY(name_near(e, ".sifr-lock", &path));
    st = lock_file_take(e->env, path, &words, &e->lock);
    mem_free(e->env, path);
    TRY(st);
    return check_target(e); /* another export may just have finished */
}

static enum status inside(struct export *e, const char *name, char **path)
{
    return path_join(e->env, part_folder_path(e->folder), name, path);
}

static enum status read_config(struct export *e)
{
    struct model_config sizes = {.path = ""};
    char *path;
    TRY(model_source_path(e->source, "config.json", &path));
    enum status st = hf_config_read(e->env, path, &e->config);
    mem_free(e->env, path);
    TRY(st);
    TRY(model_file_config(e->env, e->source->folder, &sizes));
    TRY(model_check(e->env, &sizes));
    TRY(device_create(e->env, "dry", 0, &e->device));
    return model_create(e->device, &sizes, &e->model);
}

/* --- the weights ---------------------------------------------------------------------------- */

static enum status open_weights(struct export *e)
{
    const struct model_source *source = e->source;
    struct export_result *result = e->result;
    TRY(weight_files_open(&e->weights, source));
    TRY(weight_files_match(&e->weights, model_graph(e->model), e->config.tied, source->folder));
    result->verified = source->checkpoint != NULL;
    result->master = source->role == CHECKPOINT_MASTER;
    result->type = e->request->type;
    if (e->request->keep_type) { /* config.json is not always right: use the first tensor's type */
        const char *name = model_graph(e->model)->tensors[0].name;
        result->type = weight_files_find(&e->weights, name).tensor->type;
    }
    return STATUS_OK;
}

struct filling {
    struct export *export;
    const struct checkpoint_file *file;
};

static enum status fill(void *user, int tensor, int64_t first, int64_t count, void *out)
{
    const struct filling *filling = user;
    const struct checkpoint_item *item = &filling->file->items[tensor];
    struct export *e = filling->export;
    const char *name = item->name;
    struct weight_found found = weight_files_find(&e->weights, name);
    TRY(safetensors_read(found.file, found.tensor, first, count, item->type, out));
    for (int64_t i = 0; item->type == DTYPE_F16 && i < count; i++)
        if ((((const uint16_t *)out)[i] & 0x7fff) == 0x7c00)
            return FAIL(e->env, FORMAT,
                        "tensor '%s' has values that f16 cannot hold; export to bf16 or f32", name);
    progress_advance(e->env, &e->task, (uint64_t)count * dtype_bytes(item->type));
    return STATUS_OK;
}

static enum status write_tensors(struct export *e)
{
    const struct unit_graph *graph = model_graph(e->model);
    struct export_result *result = e->result;
    TRY(checkpoint_layout_create(e->env, graph, result->type, e->request->file_bytes, NULL,
                                 &e->layout));
    result->files = checkpoint_layout_model_files(&e->layout);
    result->tensors = graph->tensor_count;
    result->parameters = unit_graph_count(graph);
    progress_begin(&e->task, "writing the weights", NULL,
                   (uint64_t)result->parameters * dtype_bytes(result->type));
    for (int f = 0; f < result->files; f++) {
        struct filling filling = {e, &e->layout.files[f]};
        char *path;
        TRY(inside(e, filling.file->name, &path));
        enum status st = safetensors_write(e->env, path, filling.file->tensors, fill, &filling);
        mem_free(e->env, path);
        TRY(st);
        result->bytes += safetensors_layout_file_bytes(filling.file->tensors);
    }
    return STATUS_OK;
}

/* --- the small files ------------------------------------------------------------------------ */

static enum status write_bytes(struct export *e, const char *name, const void *data, size_t bytes)
{
    char *path;
    TRY(inside(e, name, &path));
    enum status st = file_write_atomic(e->env, path, data, bytes);
    mem_free(e->env, path);
    return st;
}

static enum status copy_file(struct export *e, const char *name)
{
    char *path, *data;
    size_t bytes;
    TRY(model_source_path(e->source, name, &path));
    bool there = file_exists(path);
    enum status st = there ? file_read(e->env, path, COPY_BYTES_MAX, &data, &bytes) : STATUS_OK;
    mem_free(e->env, path);
    if (st != STATUS_OK || !there)
        return st;
    st = write_bytes(e, name, data, bytes);
    mem_free(e->env, data);
    return st;
}

static enum status write_text(struct export *e, const char *name, const struct text *text)
{
    TRY(text->status);
    return text->bytes > 0 ? write_bytes(e, name, text->data, text->bytes) : STATUS_OK;
}

static enum status write_texts(struct export *e)
{
    struct text text;
    text_init(&text, e->env);
    checkpoint_layout_index(&e->layout, &text);
    enum status st = write_text(e, "model.safetensors.index.json", &text);
    if (st == STATUS_OK) {
        e->config.type = e->result->type;
        text_clear(&text);
        hf_config_print(&e->config, &text);
        st = write_text(e, "config.json", &text);
    }
    if (st == STATUS_OK && e->config.bos >= 0 && e->config.eos_count > 0) {
        /* copy_file overwrites this one if the source has its own. */
        text_clear(&text);
        text_printf(&text, "{\n  \"bos_token_id\": %lld,\n  \"eos_token_id\": %lld\n}\n",
                    (long long)e->config.bos, (long long)e->config.eos[0]);
        st = write_text(e, "generation_config.json", &text);
    }
    text_free(&text);
    return st;
}

/* --- the export ----------------------------------------------------------------------------- */

static enum status run_export(struct export *e)
{
    const struct export_request *request = e->request;
    const struct model_want want = {.depth = MODEL_DEPTH_ALL,
                                    .type = request->keep_type ? NULL : &request->type};
    TRY(name_target(e));
    TRY(model_source_open(e->env, request->from, &want, &e->source));
    TRY(read_config(e));
    TRY(open_weights(e));
    TRY(lock_target(e));
    TRY(part_folder_clear_all(e->env, e->stem));
    TRY(part_folder_create(e->env, e->stem, &e->folder));
    TRY(write_tensors(e));
    TRY(write_texts(e));
    for (int i = 0; i < COPIED; i++)
        TRY(copy_file(e, copied[i]));
    return part_folder_commit(e->folder, e->to); /* OUT may be an empty folder */
}

enum status model_export(struct env *env, const struct export_request *request,
                         struct export_result *result)
{
    struct export e = {.env = env, .request = request, .result = result, .weights = {.env = env}};
    *result = (struct export_result){0};
    enum status st = run_export(&e);
    progress_end(env, &e.task);
    checkpoint_layout_free(&e.layout);
    weight_files_close(&e.weights);
    model_destroy(e.model);
    device_destroy(e.device);
    model_source_close(e.source);
    part_folder_destroy(e.folder);
    lock_file_release(e.lock);
    mem_free(env, e.stem);
    mem_free(env, e.to);
    return st;
}
