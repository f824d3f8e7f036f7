/* part_file -- a file that is written in parts and appears complete or not at all.
 *
 * Bytes go to a temporary file in the same folder, at any offset and in any order; commit syncs and
 * renames it. An existing file, which another process may have mapped, is never truncated. If the
 * target path is a symbolic link, the rename replaces the link and does not touch its target.
 *
 * The temporary file `.NAME.PID-N.tmp` is always new (O_EXCL), so two writers never share one, and
 * it is locked (flock) while its writer lives. An unlocked one was left by a killed process; the
 * next writer of the same path removes it. On a file system without locks it stays.
 */
#ifndef BASE_PART_FILE_H
#define BASE_PART_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct part_file;

enum status part_file_create(struct env *env, const char *path, struct part_file **file);
void part_file_destroy(struct part_file *file); /* NULL is fine; removes an uncommitted file */

/* Set the length and reserve the blocks, so that a full disk is found before the work starts.
 * Optional. */
enum status part_file_reserve(struct part_file *file, uint64_t bytes);
enum status part_file_write(struct part_file *file, uint64_t at, const void *data, size_t bytes);
enum status part_file_sync(struct part_file *file); /* fsync */
/* Sync, rename, sync the folder. Only destroy may follow. */
enum status part_file_commit(struct part_file *file);

#endif
