/* model_file.c -- the small files of a model directory. model_source.c finds a directory, and
 * model_weights.c reads its weights.
 *
 *     DIR/config.json              sizes, with both generations of keys
 *     DIR/tokenizer.json           byte for byte as loaded, or as trained
 *     DIR/tokenizer_config.json    the class that transformers must use
 *     DIR/generation_config.json   the end-of-text token
 *
 * The last two, and the other files that were next to the tokenizer when it was loaded (chat
 * template, map of special tokens), are written byte for byte as they were.
 */
#include "train/weights/model_file.h"
#include "base/file.h"
#include "train/weights/hf_config.h"

/* --- config.json ---------------------------------------------------------------------------- */

static struct model_config from_hf(const struct hf_config *hf)
{
    return (struct model_config){
        .arch = hf->arch,
        .layers = hf->layers,
        .heads = hf->heads,
        .kv_heads = hf->kv_heads,
        .width = hf->width,
        .ff = hf->ff,
        .context = hf->context,
        .vocab = hf->vocab,
        .head_width = hf->head_dim,
        .tied = hf->tied,
        .gelu = hf->exact_gelu,
        .attention_bias = hf->attention_bias,
        .mlp_bias = hf->mlp_bias,
        .window = hf->window,
        .window_from = hf->window_from,
        .full_every = hf->full_every,
        .nope_every = hf->nope_every,
        .query_scalar = hf->query_scalar,
        .score_cap = hf->score_cap,
        .logit_cap = hf->logit_cap,
        .norm_eps = hf->eps,
        .init_std = hf->init_std,
        .rope_theta = hf->rope_theta,
        .rope_scaling = (int)hf->rope,
        .rope_factor = hf->rope_factor,
        .rope_low = hf->rope_low,
        .rope_high = hf->rope_high,
        .rope_original = hf->rope_original,
        .rope = hf->rope_extras,
    };
}

/* As the config.json next to the tokenizer says; without one, end-of-text is also bos. */
static void set_tokens(const struct tokenizer *tokenizer, struct hf_config *hf)
{
    const struct tokenizer_special none = {.bos = -1, .pad = -1};
    const struct tokenizer_special *s = tokenizer ? tokenizer_special(tokenizer) : &none;
    hf->bos = s->told || !tokenizer ? s->bos : tokenizer_eot(tokenizer);
    hf->pad = s->pad;
    hf->eos_count = s->eos.count;
    for (int i = 0; i < s->eos.count; i++)
        hf->eos[i] = s->eos.ids[i];
}

static struct hf_config to_hf(const struct model_config *model, enum dtype type,
                              const struct tokenizer *tokenizer)
{
    struct hf_config hf = {
        .arch = model->arch,
        .layers = model->layers,
        .heads = model->heads,
        .kv_heads = model->kv_heads,
        .width = model->width,
        .ff = model->ff,
        .context = model->context,
        .vocab = model->vocab,
        .head_dim = model->head_width,
        .tied = model->tied == 1,
        .exact_gelu = model->gelu == 1,
        .attention_bias = model->attention_bias,
        .mlp_bias = model->mlp_bias,
        .window = model->window,
        .window_from = model->window_from,
        .full_every = model->full_every,
        .nope_every = model->nope_every,
        .query_scalar = model->query_scalar,
        .score_cap = model->score_cap,
        .logit_cap = model->logit_cap,
        .eps = model->norm_eps,
        .init_std = model->init_std,
        .rotary = model->sars.rope,
        .rope_theta = model->rope_theta,
        .rope = (enum hf_rope)model->rope_scaling,
        .rope_factor = model->rope_factor,
        .rope_low = model->rope_low,
        .rope_high = model->rope_high,
        .rope_original = model->rope_original,
        .rope_extras = model->rope,
        .type = type,
    };
    set_tokens(tokenizer, &hf);
    return hf;
}

/* Files that people have instead of a model's safetensors files, and the way out. */
enum status model_file_check_folder(struct env *env, const char *folder)
{
#define CONVERT                                                                                  \
    "(in Python: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)) and name that " \
    "folder"
#define AUTHORS                                                                                  \
    "a format of its authors: use the version of the model for Hugging Face transformers, with " \
    "config.json and model.safetensors"
    static const struct {
        const char *name, *way; /* NULL: such a folder is a model */
    } files[] = {
        {"model.safetensors", NULL},
        {"model.safetensors.index.json", NULL},
        {"adapter_config.json",
         "is a PEFT adapter, not a model: merge it into its base model (in Python: "
         "model.merge_and_unload().save_pretrained(DIR)) and name that folder"},
        {"pytorch_model.bin",
         "has its weights in pytorch_model.bin, a format that can run code: convert it " CONVERT},
        {"pytorch_model.bin.index.json", "has its weights in pytorch_model-*.bin, a format that "
                                         "can run code: convert them " CONVERT},
        {"consolidated.safetensors", "has its weights in consolidated.safetensors, " AUTHORS},
        {"consolidated.00.pth", "has its weights in consolidated.00.pth, " AUTHORS},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path;
        TRY(path_join(env, folder, files[i].name, &path));
        bool there = file_exists(path);
        mem_free(env, path);
        if (there)
            return files[i].way ? FAIL(env, CONFIG, "'%s' %s", folder, files[i].way) : STATUS_OK;
    }
    return STATUS_OK;
}

enum status model_file_check_weights(struct env *env, const char *folder)
{
    if (file_is_missing(env, folder, "model.safetensors") &&
        file_is_missing(env, folder, "model.safetensors.index.json"))
        return FAIL(env, CONFIG,
                    "'%s' has no model.safetensors and no model.safetensors.index.json; copy the "
                    "whole model directory",
                    folder);
    return STATUS_OK;
}

const char *model_file_convert(struct env *env, const char *folder)
{
    bool bare = !file_is_missing(env, folder, "tokenizer.model") ||
                !file_is_missing(env, folder, "merges.txt");
    return bare ? "write one from the files that are there (in Python: "
                  "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)), or "
                : "";
}

enum status model_file_config(struct env *env, const char *folder, struct model_config *config)
{
    char *file;
    struct hf_config hf;
    TRY(path_join(env, folder, "config.json", &file));
    enum status st =
        file_exists(file)
            ? hf_config_read(env, file, &hf)
            : FAIL(env, CONFIG,
                   "'%s' is missing: it describes the model in the same folder; name a "
                   "model directory, a run or a checkpoint",
                   file);
    mem_free(env, file);
    if (st != STATUS_OK)
        return st;
    const struct model_config kept = *config;
    *config = from_hf(&hf);
    config->path = kept.path;
    config->preset = kept.preset;
    config->rope.short_text = kept.rope.short_text; /* of keys, which no file has */
    config->rope.long_text = kept.rope.long_text;
    config->sars = kept.sars;
    config->sars.rope = hf.rotary;
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

/* Only where the tokenizer came without one. */
static enum status write_generation(struct env *env, const char *folder,
                                    const struct tokenizer *tokenizer)
{
    int eot = tokenizer_eot(tokenizer);
    struct text text;
    if (eot < 0 || tokenizer_has_file(tokenizer, "generation_config.json"))
        return STATUS_OK;
    text_init(&text, env);
    text_printf(&text, "{\n  \"bos_token_id\": %d,\n  \"eos_token_id\": %d\n}\n", eot, eot);
    enum status st = write_text(env, folder, "generation_config.json", &text);
    text_free(&text);
    return st;
}

static enum status write_tokenizer(struct env *env, const char *folder, int64_t context,
                                   const struct tokenizer *tokenizer)
{
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token"};
    int eot = tokenizer_eot(tokenizer);
    size_t bytes;
    const char *name = eot >= 0 ? tokenizer_token(tokenizer, eot, &bytes) : NULL;
    char *path;
    struct text text;
    TRY(path_join(env, folder, "tokenizer.json", &path));
    enum status st = tokenizer_save(tokenizer, path);
    mem_free(env, path);
    if (st != STATUS_OK)
        return st;
    TRY(tokenizer_save_files(tokenizer, folder));
    if (tokenizer_has_file(tokenizer, "tokenizer_config.json"))
        return write_generation(env, folder, tokenizer);

    text_init(&text, env);
    text_printf(&text,
                "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                "  \"model_max_length\": %lld,\n  \"clean_up_tokenization_spaces\": false",
                (long long)context);
    for (int i = 0; name != NULL && i < 3; i++) {
        text_printf(&text, ",\n  \"%s\": ", roles[i]);
        text_json_string(&text, name, bytes);
    }
    text_add(&text, "\n}\n");
    st = write_text(env, folder, "tokenizer_config.json", &text);
    text_free(&text);
    return st == STATUS_OK ? write_generation(env, folder, tokenizer) : st;
}

enum status model_file_describe(struct env *env, const char *folder, const struct model *model,
                                enum dtype type, const struct tokenizer *tokenizer)
{
    struct hf_config hf = to_hf(model_config(model), type, tokenizer);
    struct text text;
    text_init(&text, env);
    hf_config_print(&hf, &text);
    enum status st = write_text(env, folder, "config.json", &text);
    text_free(&text);
    if (st != STATUS_OK || tokenizer == NULL)
        return st;
    return write_tokenizer(env, folder, model_config(model)->context, tokenizer);
}
