/* text_files -- the mapped files of one pattern, each cut into a training part and a validation
 * part.
 *
 * The validation part is the end of all the files taken together, cut after a line so that no line
 * (and no JSONL document) is in both. The cut depends on the files and the fraction alone: a
 * tokenizer can be trained on the training part before anything is encoded.
 */
#ifndef TRAIN_TEXT_FILES_H
#define TRAIN_TEXT_FILES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "base/file.h"

struct text_file {
    const char *path;
    struct file_map map;
    size_t cut; /* bytes [0, cut) are for training, [cut, map.bytes) for validation */
};

struct text_files {
    struct path_list paths;
    struct text_file *files;
    int count;
    size_t bytes;       /* of all files */
    const char *binary; /* the first file with NUL bytes in its first 64 KiB; NULL = none */
    int binary_count;   /* of such files */
    const char *latin;  /* the first other file whose beginning is not UTF-8; NULL = none */
    size_t latin_at;    /* where in it, and which byte */
    uint8_t latin_byte;
    int latin_count; /* of such files */
};

/* `split` of the bytes, 0 to 1, go to validation. With `whole_lines` text without a line's end
 * is not cut at all; else it is cut between characters. All files empty is an error, and
 * so is one that is known as compressed, an archive, a token shard or otherwise no text. */
enum status text_files_open(struct env *env, const char *pattern, double split, bool whole_lines,
                            struct text_files *files);
/* An error for a file that is known as compressed, an archive or otherwise no text. */
enum status text_file_check(struct env *env, const char *path, const struct file_map *map);
/* A warning where files have NUL bytes, and one where they are not UTF-8: plain bytes are tokens of what is no text,
 * too. */
void text_files_tell_binary(struct env *env, const struct text_files *files);
void text_files_close(struct env *env, struct text_files *files);

#endif
