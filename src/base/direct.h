/* direct -- writes and reads that bypass the page cache, for ranges at any offset and of any
 * length.
 *
 * Writing a file of many gigabytes through the page cache costs an extra copy, evicts the pages of
 * others, and serializes its writers. O_DIRECT accepts only whole blocks from aligned memory. So
 * consecutive ranges are collected in a buffer, which is written as
 *
 *     |...edge|  whole blocks, with O_DIRECT   |edge...|        each | a multiple of DIRECT_BLOCK
 *
 * with the edges through the cache. Several writers may share a file as long as each byte has only
 * one writer: a block with parts of two writers is an edge for both, so no block is written both
 * ways. Where the file system lacks O_DIRECT, everything goes through the cache.
 *
 * Reads cover the whole blocks around a range.
 *
 * Calls that write return false with errno set, like those of output.h.
 */
#ifndef BASE_DIRECT_H
#define BASE_DIRECT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/env.h"

enum { DIRECT_BLOCK = 64 << 10 }; /* at least a page and a sector */
/* The first multiple of DIRECT_BLOCK in `memory`, which must have DIRECT_BLOCK extra bytes. */
void *direct_align(void *memory);

/* --- writing -------------------------------------------------------------------------------- */

struct direct { /* fields are private to direct.c */
    struct env *env;
    int cached, whole; /* descriptors without and with O_DIRECT; -1 = not open */
    char *room;        /* borrowed: the file's bytes from the start of the block of `begin` */
    size_t room_bytes;
    uint64_t begin, end; /* the range of the file that is in the buffer */
};

/* Open an existing file. past_cache = false: never use O_DIRECT. `room` is aligned, has a
 * multiple of DIRECT_BLOCK bytes, and is in use until the file is closed. */
bool direct_open(struct env *env, const char *path, bool past_cache, void *room, size_t room_bytes,
                 struct direct *file);
bool direct_write(struct direct *file, uint64_t at, const void *data, size_t bytes);
bool direct_sync(struct direct *file);  /* flushes the buffer and fsyncs */
bool direct_close(struct direct *file); /* always closes; unsynced data may be lost */

/* --- reading -------------------------------------------------------------------------------- */

/* Use O_DIRECT for reads from now on, unless most of the file is already cached. */
void direct_past_cache(int fd);
/* Read bytes at .. at + bytes into `room`, which is aligned and has 2 * DIRECT_BLOCK extra bytes;
 * *data points to the byte at offset `at`. Returns the bytes read, fewer at the end of the file; -1
 * with errno. */
ssize_t direct_read(struct env *env, int fd, uint64_t at, size_t bytes, void *room, void **data);

/* --- reading ahead -------------------------------------------------------------------------- */

enum { AHEAD_RANGES = 3 }; /* in memory at once */

struct ahead;

/* Reads ranges in a background thread while the caller uses earlier ones, so that the disk and the
 * processor work at the same time, with a few ranges in memory.
 *
 *     requested      | 4 | 3 |           the thread reads them in order
 *     taken                  | 2 |       in use until the next call
 *
 * Requests and takes come from one thread. `most_bytes` is the largest range. */
enum status ahead_create(struct env *env, size_t most_bytes, struct ahead **ahead);
void ahead_destroy(struct ahead *ahead); /* NULL is fine; waits for a read in progress */

/* Request a range. At most AHEAD_RANGES requests may be outstanding. `fd` must stay open until the
 * range is taken. */
void ahead_ask(struct ahead *ahead, int fd, uint64_t at, size_t bytes);
/* Wait for the oldest request; the result is that of direct_read. Memory from
 * *data, and before it down to a multiple of DIRECT_BLOCK, belongs to the caller until the next
 * call. */
ssize_t ahead_take(struct ahead *ahead, void **data);

#endif
