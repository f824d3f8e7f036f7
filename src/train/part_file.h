/* part_file -- a file written piece by piece that appears whole or not at all.
 *
 * The bytes go to `<path>.partial` beside it, at any place and in any order; commit makes them
 * durable and renames. A file that was there before (and may be mapped by somebody) is never cut
 * short. A leftover of a killed run is overwritten.
 */
#ifndef TRAIN_PART_FILE_H
#define TRAIN_PART_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct part_file;

enum status part_file_create(struct env *env, const char *path, struct part_file **file);
void part_file_destroy(struct part_file *file); /* NULL is fine; removes what was not committed */

/* Set the length and reserve the blocks, so that a full disk is known before the work. Optional. */
enum status part_file_reserve(struct part_file *file, uint64_t bytes);
enum status part_file_write(struct part_file *file, uint64_t at, const void *data, size_t bytes);
enum status
part_file_commit(struct part_file *file); /* fsync, rename, fsync the folder; then only destroy */

#endif
