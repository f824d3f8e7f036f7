/* part_folder -- a folder that appears whole or not at all: filled under a temporary name, then
 * renamed.
 *
 *     STEM, STEM-2, ...   being filled: the first name that was free (mkdir)
 *         .sifr-lock      the marker, made first: the lock file (lock_file.h) of its writer
 *
 * The marker is what makes a folder of that name ours. One that a killed process left is removed
 * if it is a real folder with a marker that nobody holds, or empty; any other stays, with a
 * warning: a link, a folder of the user's, or one from a version of sifr that wrote no marker.
 */
#ifndef BASE_PART_FOLDER_H
#define BASE_PART_FOLDER_H
#include <stdbool.h>
#include "base/env.h"

#define PART_FOLDER_MARKER ".sifr-lock"

struct part_folder;

enum status part_folder_create(struct env *env, const char *stem, struct part_folder **folder);
void part_folder_destroy(
    struct part_folder *folder); /* NULL is fine; removes what is not committed */

/* Which of the names it has, 1 for the stem itself; and such a name, for other processes that write
 * into it; mem_free it. */
int part_folder_number(const struct part_folder *folder);
enum status part_folder_name(struct env *env, const char *stem, int number, char **path);

/* NULL once it has its name, even if the commit failed after that. */
const char *part_folder_path(const struct part_folder *folder);
/* Sync it, rename it to `goal`, which is free or an empty folder, remove the marker, sync the
 * folder around it; then only destroy. */
enum status part_folder_commit(struct part_folder *folder, const char *goal);

/* Move the files of these names that are in it to the folder `goal`, and sync that: all of them, or none
 * and an error. No such name may be there (STATUS_CONFIG). Then only destroy. */
enum status part_folder_hand_over(struct part_folder *folder, const char *goal,
                                  const char *const *names, int count);

/* --- leftovers ------------------------------------------------------------------------------ */

bool part_folder_is_name(const char *name, const char *stem); /* STEM or STEM-N */
/* Remove one, as above. */
enum status part_folder_clear(struct env *env, const char *path);
/* Remove all of this stem. The caller holds the lock of the output. */
enum status part_folder_clear_all(struct env *env, const char *stem);
/* What is said of one that stays. */
void part_folder_tell_left(struct env *env, const char *path);

#endif
