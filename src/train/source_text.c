/* source_text.c -- text files, encoded when the run starts.
 *
 * Good for data that is small beside the model's work; what is larger is encoded once with `sifr
 * tokenize` and read as shards. A list begins with end-of-text, and every document that ends in it
 * is followed by end-of-text; the training part of the file that holds the cut does not end there.
 */
#include "train/source_impl.h"
#include "train/text_files.h"

static enum status encode_part(struct source *source, const struct source_spec *spec,
                               struct encoder *encoder, const void *text, size_t bytes, bool ends,
                               struct source_list *list)
{
    if (bytes == 0)
        return STATUS_OK;
    if (list->tokens.count == 0)
        TRY(source_list_add_end(source->env, spec->tokenizer, list));
    TRY(tokenizer_encode(encoder, text, bytes, spec->special, &list->tokens));
    return ends ? source_list_add_end(source->env, spec->tokenizer, list) : STATUS_OK;
}

static enum status encode_files(struct source *source, const struct source_spec *spec,
                                struct encoder *encoder, const struct text_files *files)
{
    for (int i = 0; i < files->count; i++) {
        const struct text_file *file = &files->files[i];
        size_t rest = file->map.bytes - file->cut;
        if (file->map.bytes == 0)
            continue;
        TRY(encode_part(source, spec, encoder, file->map.data, file->cut, rest == 0,
                        &source->lists[0]));
        TRY(encode_part(source, spec, encoder, file->map.data + file->cut, rest, true,
                        &source->lists[1]));
        TRY(file_map_check(source->env, file->path, file->map.data));
    }
    source_lists_finish(source);
    return STATUS_OK;
}

enum status source_load_text(struct source *source, const struct source_spec *spec)
{
    struct env *env = source->env;
    struct text_files files;
    struct encoder *encoder;
    enum status st;
    TRY(text_files_open(env, spec->path, spec->split, false, &files));
    text_files_tell_binary(env, &files);
    TRY_OR(undo_files, encoder_create(env, spec->tokenizer, &encoder));
    st = encode_files(source, spec, encoder, &files);
    encoder_destroy(encoder);
undo_files:
    text_files_close(env, &files);
    return st;
}
