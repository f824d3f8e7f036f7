/* source_jsonl.c -- packs JSONL documents into one stream, with the prompts masked. */
#include "train/data/jsonl.h"
#include "train/data/source_impl.h"

static enum status pack_document(void *user, const struct jsonl_document *document)
{
    struct source_encoding *e = user;
    if (document->prompt_bytes + document->text_bytes == 0)
        return STATUS_OK; /* skipped like an empty file, as `sifr tokenize` does */
    TRY(source_encode_begin(e, document->offset >= e->file->cut));
    if (document->prompt)
        TRY(source_encode_tokens(e, document->prompt, document->prompt_bytes, true));
    TRY(source_encode_tokens(e, document->text, document->text_bytes, false));
    return source_encode_end(e);
}

enum status source_encode_jsonl(struct source_encoding *e, const struct text_files *files)
{
    for (int i = 0; i < files->count; i++) {
        const struct text_file *file = e->file = &files->files[i];
        TRY(jsonl_parse(e->env, (const char *)file->map.data, file->map.bytes, file->path,
                        pack_document, e));
    }
    return STATUS_OK;
}
