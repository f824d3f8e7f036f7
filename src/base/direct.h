/* direct -- files written and read past the system's cache, in ranges of any place and length.
 *
 * Through the cache a file of many gigabytes is copied once more, pushes out what others keep there,
 * and is taken from one writer at a time. Past it (O_DIRECT) the system takes whole blocks from
 * aligned memory only. So ranges that follow each other are gathered in a room, and go out as
 *
 *     |...edge|  whole blocks, past the cache  |edge...|        each | a multiple of DIRECT_BLOCK
 *
 * with the edges through the cache. Writers may share a file as long as no byte has two of them: a
 * block in which two have a part is an edge to both, so no block is written both ways. Where a file
 * system does not know O_DIRECT everything goes through the cache.
 *
 * What is read is the whole blocks around a range.
 *
 * Calls that write return false with errno set, as those of output.h do, which they are made of.
 */
#ifndef BASE_DIRECT_H
#define BASE_DIRECT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/env.h"

enum { DIRECT_BLOCK = 64 << 10 }; /* no page and no sector is larger */
/* Memory at a multiple of DIRECT_BLOCK inside of `memory`, which has that many bytes to spare. */
void *direct_align(void *memory);

/* --- writing -------------------------------------------------------------------------------- */

struct direct { /* its fields are direct.c's */
    struct env *env;
    int cached, whole; /* the file, opened for both ways; -1 = not */
    char *room;        /* borrowed: the file's bytes from the block of `begin` on */
    size_t room_bytes;
    uint64_t begin, end; /* of what is in the room, in the file */
};

/* An existing file. `past_cache` false: all through the cache. `room` is aligned, has a multiple of
 * DIRECT_BLOCK bytes, and is in use until the file is closed. */
bool direct_open(struct env *env, const char *path, bool past_cache, void *room, size_t room_bytes,
                 struct direct *file);
bool direct_write(struct direct *file, uint64_t at, const void *data, size_t bytes);
bool direct_sync(struct direct *file);  /* what was written is on the disk */
bool direct_close(struct direct *file); /* closes in any case; what was not synced may be lost */

/* --- reading -------------------------------------------------------------------------------- */

/* Read past the cache from here on, unless most of the file is there already. */
void direct_past_cache(int fd);
/* Bytes at .. at + bytes to `room`, which is aligned and has 2 * DIRECT_BLOCK bytes more; *data = the
 * first of them. How many there are, fewer at the end of the file; -1 with errno set. */
ssize_t direct_read(struct env *env, int fd, uint64_t at, size_t bytes, void *room, void **data);

#endif
