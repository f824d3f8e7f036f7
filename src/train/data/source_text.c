/* source_text.c -- encodes text files.
 *
 * A stream begins with end-of-text, and end-of-text follows every document that ends in the stream.
 * The document that the cut divides does not end in the training stream.
 */
#include "train/data/source_impl.h"

static enum status encode_part(struct source_encoding *e, int part, const void *text, size_t bytes,
                               bool ends)
{
    if (bytes == 0)
        return STATUS_OK;
    TRY(source_encode_begin(e, part));
    TRY(source_encode_tokens(e, text, bytes, false));
    return ends ? source_encode_end(e) : STATUS_OK;
}

enum status source_encode_text(struct source_encoding *e, const struct text_files *files)
{
    for (int i = 0; i < files->count; i++) {
        const struct text_file *file = &files->files[i];
        size_t rest = file->map.bytes - file->cut;
        if (file->map.bytes == 0)
            continue;
        TRY(encode_part(e, 0, file->map.data, file->cut, rest == 0));
        TRY(encode_part(e, 1, file->map.data + file->cut, rest, true));
        TRY(file_map_check(e->env, file->path, file->map.data));
    }
    return STATUS_OK;
}
