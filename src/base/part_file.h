/* part_file -- a file written piece by piece that appears whole or not at all.
 *
 * The bytes go to a temporary file in the same folder, at any place and in any order; commit makes
 * them durable and renames. A file that was there before, and may be mapped by another process, is
 * never cut short. If the goal is a symbolic link, the rename replaces the link; what it leads to
 * is not touched.
 *
 * The temporary file `.NAME.PID-N.tmp` is always new (O_EXCL), so two writers never share one, and
 * locked (flock) for as long as its writer lives. One that nobody has locked was left by a process
 * that was killed; the next writer of the same goal removes it. Where the file system has no locks
 * it stays.
 */
#ifndef BASE_PART_FILE_H
#define BASE_PART_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct part_file;

enum status part_file_create(struct env *env, const char *path, struct part_file **file);
void part_file_destroy(struct part_file *file); /* NULL is fine; removes what was not committed */

/* Set the length and reserve the blocks, so that a full disk is known before the work. Optional. */
enum status part_file_reserve(struct part_file *file, uint64_t bytes);
enum status part_file_write(struct part_file *file, uint64_t at, const void *data, size_t bytes);
enum status part_file_sync(struct part_file *file); /* what was written is on the disk */
/* Sync, rename, sync the folder; then only destroy. */
enum status part_file_commit(struct part_file *file);

#endif
