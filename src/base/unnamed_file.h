/* unnamed_file -- a file without a name, for bytes that a process keeps on disk instead of in
 * memory.
 *
 * No other process can open it, and its space is free again when this process ends, however it
 * ends. The space is reserved when the file is created, so a full disk is found then. Reads and
 * writes bypass the page cache (O_DIRECT) where the file system allows it. Any thread may call
 * them; calls that overlap in the file are the callers' affair. Errors of writes are injected as
 * for base/output.h, those of reads as for base/input.h.
 */
#ifndef BASE_UNNAMED_FILE_H
#define BASE_UNNAMED_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

/* Offsets, lengths and addresses in memory are multiples of it. */
enum { UNNAMED_FILE_BLOCK = 4096 };

struct unnamed_file { /* fields are private to unnamed_file.c */
    struct env *env;  /* borrowed */
    int fd;           /* -1 = not open */
};

/* Create a file of `bytes` zeros in a folder that exists. `what` says in messages what it is for:
 * "optimizer 'moments'". On failure there is nothing to close. */
enum status unnamed_file_open(struct env *env, const char *folder, const char *what, uint64_t bytes,
                              struct unnamed_file *file);
void unnamed_file_close(struct unnamed_file *file); /* fine when it is not open */

/* The whole range, or false with errno set. */
bool unnamed_file_read(const struct unnamed_file *file, uint64_t at, void *room, size_t bytes);
bool unnamed_file_write(const struct unnamed_file *file, uint64_t at, const void *data,
                        size_t bytes);

#endif
