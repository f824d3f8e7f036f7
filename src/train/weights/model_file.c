/* model_file.c -- writes a model directory. model_source.c finds one, and model_weights.c reads its
 * weights.
 *
 *     DIR/config.json              sizes, with both generations of keys
 *     DIR/model.safetensors        fp32, with the names and orientation of Hugging Face
 *     DIR/tokenizer.json           byte for byte as loaded, or as trained
 *     DIR/tokenizer_config.json    the class that transformers must use
 *     DIR/generation_config.json   the end-of-text token
 *
 * All files are written to DIR.sifr-partial, which is renamed at the end.
 */
#include "train/weights/model_file.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/part_folder.h"
#include "train/weights/hf_config.h"
#include "train/weights/safetensors_write.h"

/* --- config.json ---------------------------------------------------------------------------- */

static struct model_config from_hf(const struct hf_config *hf)
{
    return (struct model_config){
        .arch = hf->arch == HF_GPT2 ? MODEL_GPT2 : MODEL_LLAMA,
        .layers = hf->layers,
        .heads = hf->heads,
        .kv_heads = hf->kv_heads,
        .width = hf->width,
        .ff = hf->ff,
        .context = hf->context,
        .vocab = hf->vocab,
        .head_width = hf->head_dim,
        .tied = hf->tied,
        .norm_eps = hf->eps,
        .init_std = hf->init_std,
        .rope_theta = hf->rope_theta,
        .rope_scaling = hf->rope == HF_ROPE_PLAIN    ? ROPE_PLAIN
                        : hf->rope == HF_ROPE_LINEAR ? ROPE_LINEAR
                                                     : ROPE_LLAMA3,
        .rope_factor = hf->rope_factor,
        .rope_low = hf->rope_low,
        .rope_high = hf->rope_high,
        .rope_original = hf->rope_original,
    };
}

static struct hf_config to_hf(const struct model_config *model, enum dtype type,
                              const struct tokenizer *tokenizer)
{
    int64_t eot = tokenizer != NULL ? tokenizer_eot(tokenizer) : -1;
    return (struct hf_config){
        .arch = model->arch == MODEL_GPT2 ? HF_GPT2 : HF_LLAMA,
        .layers = model->layers,
        .heads = model->heads,
        .kv_heads = model->kv_heads,
        .width = model->width,
        .ff = model->ff,
        .context = model->context,
        .vocab = model->vocab,
        .head_dim = model->head_width,
        .tied = model->tied == 1,
        .eps = model->norm_eps,
        .init_std = model->init_std,
        .rope_theta = model->rope_theta,
        .rope = model->rope_scaling == ROPE_PLAIN    ? HF_ROPE_PLAIN
                : model->rope_scaling == ROPE_LINEAR ? HF_ROPE_LINEAR
                                                     : HF_ROPE_LLAMA3,
        .rope_factor = model->rope_factor,
        .rope_low = model->rope_low,
        .rope_high = model->rope_high,
        .rope_original = model->rope_original,
        .bos = eot,
        .eos = eot,
        .type = type,
    };
}

enum status model_file_config(struct env *env, const char *folder, struct model_config *config)
{
    char *file;
    struct hf_config hf;
    TRY(path_join(env, folder, "config.json", &file));
    enum status st = file_exists(file)
                         ? hf_config_read(env, file, &hf)
                         : FAIL(env, CONFIG,
                                "'%s' is missing, which describes the model in that folder; name a "
                                "model directory, a run or a checkpoint",
                                file);
    mem_free(env, file);
    if (st != STATUS_OK)
        return st;
    const char *kept_path = config->path;
    int kept_preset = config->preset;
    *config = from_hf(&hf);
    config->path = kept_path;
    config->preset = kept_preset;
    return STATUS_OK;
}

/* --- writing -------------------------------------------------------------------------------- */

static enum status write_text(struct env *env, const char *folder, const char *name,
                              const struct text *text)
{
    char *path;
    TRY(path_join(env, folder, name, &path));
    enum status st = file_write_text(env, path, text);
    mem_free(env, path);
    return st;
}

static enum status fill_from_store(void *user, int i, int64_t first, int64_t count, void *out)
{
    return zero_read(user, i, first, count, out);
}

/* `folder` NULL = another rank writes; this rank only takes part in gathering. */
static enum status write_weights(struct env *env, const char *folder,
                                 const struct unit_graph *graph, struct zero *zero, int64_t step)
{
    enum status st;
    struct safetensors_entry *entries;
    struct safetensors_layout *layout;
    char *path, digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)step);
    const struct safetensors_pair notes[] = {{"sifr.step", digits}, {"sifr.version", SIFR_VERSION}};

    TRY(mem_alloc_array(env, MEM_OTHER, "tensor list", (size_t)graph->tensor_count, sizeof *entries,
                        &entries));
    for (int i = 0; i < graph->tensor_count; i++) {
        const struct unit_tensor *tensor = &graph->tensors[i];
        entries[i] = (struct safetensors_entry){
            .name = tensor->name, .type = DTYPE_F32, .rank = tensor->dims};
        memcpy(entries[i].shape, tensor->shape, sizeof tensor->shape);
    }
    TRY_OR(undo_entries,
           safetensors_layout_create(env, entries, graph->tensor_count, notes, 2, &layout));
    if (!folder) {
        st = safetensors_follow(env, layout, fill_from_store, zero);
        goto undo_layout;
    }
    TRY_OR(undo_layout, path_join(env, folder, "model.safetensors", &path));
    st = safetensors_write(env, path, layout, fill_from_store, zero);
    mem_free(env, path);
undo_layout:
    safetensors_layout_destroy(layout);
undo_entries:
    mem_free(env, entries);
    return st;
}

static enum status write_config(struct env *env, const char *folder,
                                const struct model_config *model, enum dtype type,
                                const struct tokenizer *tokenizer)
{
    struct hf_config hf = to_hf(model, type, tokenizer);
    struct text text;
    text_init(&text, env);
    hf_config_print(&hf, &text);
    enum status st = write_text(env, folder, "config.json", &text);
    text_free(&text);
    return st;
}

static void print_end_tokens(const struct tokenizer *tokenizer, struct text *text)
{
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token"};
    size_t bytes;
    const char *name = tokenizer_token(tokenizer, tokenizer_eot(tokenizer), &bytes);
    for (int i = 0; name != NULL && i < 3; i++) {
        text_printf(text, ",\n  \"%s\": ", roles[i]);
        text_json_string(text, name, bytes);
    }
}

static enum status write_tokenizer(struct env *env, const char *folder, int64_t context,
                                   const struct tokenizer *tokenizer)
{
    char *path;
    struct text text;
    TRY(path_join(env, folder, "tokenizer.json", &path));
    enum status st = tokenizer_save(tokenizer, path);
    mem_free(env, path);
    if (st != STATUS_OK)
        return st;

    text_init(&text, env);
    text_printf(&text,
                "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                "  \"model_max_length\": %lld,\n  \"clean_up_tokenization_spaces\": false",
                (long long)context);
    if (tokenizer_eot(tokenizer) >= 0)
        print_end_tokens(tokenizer, &text);
    text_add(&text, "\n}\n");
    st = write_text(env, folder, "tokenizer_config.json", &text);
    if (st == STATUS_OK && tokenizer_eot(tokenizer) >= 0) {
        text_clear(&text);
        text_printf(&text, "{\n  \"bos_token_id\": %d,\n  \"eos_token_id\": %d\n}\n",
                    tokenizer_eot(tokenizer), tokenizer_eot(tokenizer));
        st = write_text(env, folder, "generation_config.json", &text);
    }
    text_free(&text);
    return st;
}

enum status model_file_describe(struct env *env, const char *folder, const struct model *model,
                                enum dtype type, const struct tokenizer *tokenizer)
{
    TRY(write_config(env, folder, model_config(model), type, tokenizer));
    if (tokenizer == NULL)
        return STATUS_OK;
    return write_tokenizer(env, folder, model_config(model)->context, tokenizer);
}

static enum status write_all(struct env *env, const char *folder, const struct model *model,
                             struct zero *zero, const struct tokenizer *tokenizer, int64_t step)
{
    TRY(write_weights(env, folder, model_graph(model), zero, step));
    return model_file_describe(env, folder, model, DTYPE_F32, tokenizer);
}

enum status model_file_save(struct env *env, const char *path, const struct model *model,
                            struct zero *zero, const struct tokenizer *tokenizer, int64_t step)
{
    enum status st;
    struct part_folder *folder = NULL;
    struct text stem;
    if (zero_roster(zero)->rank != 0)
        return write_weights(env, NULL, model_graph(model), zero, step);
    if (!path_is_free(path))
        return FAIL(env, IO, "cannot save the model as '%s': it exists", path);
    text_init(&stem, env);
    text_printf(&stem, "%s.sifr-partial", path);
    TRY_OR(done, stem.status);
    TRY_OR(done, part_folder_create(env, text_string(&stem), &folder));
    TRY_OR(done, write_all(env, part_folder_path(folder), model, zero, tokenizer, step));
    st = part_folder_commit(folder, path);
done:
    part_folder_destroy(folder);
    text_free(&stem);
    return st;
}
