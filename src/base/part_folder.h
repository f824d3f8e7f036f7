/* part_folder -- a folder that appears complete or not at all: filled under a temporary name, then
 * renamed.
 *
 *     STEM, STEM-2, ...   being filled: the first name that was free (mkdir)
 *         .sifr-lock      the marker, created first: the lock file (lock_file.h) of its writer
 *
 * The marker proves that a folder with a temporary name is ours. A folder that a killed process
 * left behind is removed when it is empty, or when it is a real folder whose marker is unlocked.
 * Anything else stays, with a warning: a link, a folder of the user, or one from a version of sifr
 * that wrote no marker.
 */
#ifndef BASE_PART_FOLDER_H
#define BASE_PART_FOLDER_H
#include <stdbool.h>
#include "base/env.h"

#define PART_FOLDER_MARKER ".sifr-lock"

struct part_folder;

enum status part_folder_create(struct env *env, const char *stem, struct part_folder **folder);
/* NULL is fine; removes an uncommitted folder. */
void part_folder_destroy(struct part_folder *folder);

/* Which of the names the folder has; 1 = STEM itself. part_folder_name returns the path for a
 * number, for other processes that write into the folder; mem_free it. */
int part_folder_number(const struct part_folder *folder);
enum status part_folder_name(struct env *env, const char *stem, int number, char **path);

/* The temporary path; NULL after the rename, even if the commit failed later. */
const char *part_folder_path(const struct part_folder *folder);
/* Sync the folder, rename it to `goal` (which is missing or an empty folder), remove the marker,
 * sync the parent. Only destroy may follow. */
enum status part_folder_commit(struct part_folder *folder, const char *goal);

/* Move the named files, where they exist, into the folder `goal` and sync it: all of them, or none
 * and an error. STATUS_CONFIG when `goal` has a file of such a name already. Only destroy may
 * follow. */
enum status part_folder_hand_over(struct part_folder *folder, const char *goal,
                                  const char *const *names, int count);

/* --- leftovers ------------------------------------------------------------------------------ */

bool part_folder_is_name(const char *name, const char *stem); /* STEM or STEM-N */
/* Remove one leftover by the rules above. */
enum status part_folder_clear(struct env *env, const char *path);
/* Remove all leftovers of this stem. The caller holds the lock of the output. */
enum status part_folder_clear_all(struct env *env, const char *stem);
/* Warn about a leftover that stays. */
void part_folder_tell_left(struct env *env, const char *path);

#endif
