/* text_files -- the mapped text files that a pattern matches, each cut into a training part and a
 * validation part.
 *
 * The validation part is the end of all files taken together. The cut is after a line, so that no
 * line (and no JSONL document) is in both parts. It depends on the files and the fraction only: a
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
    int binary_count;   /* number of such files */
    const char *latin;  /* the first other file whose first 16 MiB are not UTF-8; NULL = none */
    size_t latin_at;    /* offset of its first byte that is not UTF-8 */
    uint8_t latin_byte; /* that byte */
    int latin_count;    /* number of such files */
};

/* A fraction `split` of the bytes, 0 to 1, is for validation. Text without a line end is cut
 * between characters, or not at all with `whole_lines`. It is an error if all files are empty, or
 * if one is recognized as compressed, an archive, a token shard or something else that is not
 * text. */
enum status text_files_open(struct env *env, const char *pattern, double split, bool whole_lines,
                            struct text_files *files);
/* Fail if the file is recognized as compressed, an archive or something else that is not text. */
enum status text_file_check(struct env *env, const char *path, const struct file_map *map);
/* Warn if files have NUL bytes, and if files are not UTF-8. Neither is an error: a byte-level
 * tokenizer can encode any bytes. */
void text_files_tell_binary(struct env *env, const struct text_files *files);
void text_files_close(struct env *env, struct text_files *files);

#endif
