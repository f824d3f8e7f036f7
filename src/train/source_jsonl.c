/* source_jsonl.c -- JSONL documents packed into one stream, with the prompts masked.
 *
 * While a list grows, a masked token is kept as its complement (a negative number), so that one
 * array carries both; at the end the signs become a bit mask, or nothing when no line had a prompt.
 */
#include "train/jsonl.h"
#include "train/source_impl.h"
#include "train/text_files.h"

struct packing {
    struct source *source;
    const struct source_spec *spec;
    struct encoder *encoder;
    const struct text_file *file;
};

static enum status pack_prompt(struct packing *packing, const struct jsonl_document *document,
                               struct token_list *tokens)
{
    int64_t first = tokens->count;
    TRY(tokenizer_encode(packing->encoder, document->prompt, document->prompt_bytes,
                         packing->spec->special, tokens));
    for (int64_t i = first; i < tokens->count; i++)
        tokens->ids[i] = ~tokens->ids[i];
    return STATUS_OK;
}

static enum status pack_document(void *user, const struct jsonl_document *document)
{
    struct packing *packing = user;
    struct env *env = packing->source->env;
    const struct tokenizer *tokenizer = packing->spec->tokenizer;
    struct source_list *list = &packing->source->lists[document->offset >= packing->file->cut];
    if (document->prompt_bytes + document->text_bytes == 0)
        return STATUS_OK; /* as an empty file: `sifr tokenize` passes over it too */
    if (list->tokens.count == 0)
        TRY(source_list_add_end(env, tokenizer, list));
    if (document->prompt)
        TRY(pack_prompt(packing, document, &list->tokens));
    TRY(tokenizer_encode(packing->encoder, document->text, document->text_bytes,
                         packing->spec->special, &list->tokens));
    return source_list_add_end(env, tokenizer, list);
}

static enum status extract_mask(struct env *env, struct source_list *list)
{
    int32_t *ids = list->tokens.ids;
    for (int64_t i = 0; i < list->tokens.count; i++) {
        if (ids[i] >= 0)
            continue;
        if (!list->mask)
            TRY(mem_alloc(env, MEM_LOADER, "label mask", (size_t)(list->tokens.count + 7) / 8,
                          &list->mask));
        list->mask[i / 8] |= (uint8_t)(1u << (i % 8));
        ids[i] = ~ids[i];
    }
    return STATUS_OK;
}

static enum status pack_files(struct packing *packing, const struct text_files *files)
{
    struct source *source = packing->source;
    for (int i = 0; i < files->count; i++) {
        const struct text_file *file = packing->file = &files->files[i];
        TRY(jsonl_parse(source->env, (const char *)file->map.data, file->map.bytes, file->path,
                        pack_document, packing));
    }
    for (int i = 0; i < 2; i++)
        TRY(extract_mask(source->env, &source->lists[i]));
    source_lists_finish(source);
    return STATUS_OK;
}

enum status source_load_jsonl(struct source *source, const struct source_spec *spec)
{
    struct env *env = source->env;
    struct packing packing = {.source = source, .spec = spec};
    struct text_files files;
    enum status st;
    TRY(text_files_open(env, spec->path, spec->split, true, &files));
    text_files_tell_binary(env, &files);
    TRY_OR(undo_files, encoder_create(env, spec->tokenizer, &packing.encoder));
    st = pack_files(&packing, &files);
    encoder_destroy(packing.encoder);
undo_files:
    text_files_close(env, &files);
    return st;
}
