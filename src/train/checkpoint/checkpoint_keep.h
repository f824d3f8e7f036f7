/* checkpoint_keep -- manages the folder of a run's checkpoints: lists them, removes old ones, and
 * cleans up after interrupted runs.
 *
 *     checkpoints/step-N             complete; a folder gets this name only when it is complete
 *     checkpoints/.step-N.tmp        being written (part_folder.h)
 *     checkpoints/.old-step-N        being removed
 *     checkpoints/step-N.damaged     skipped when a run resumed from an earlier checkpoint; kept
 *                                    for the user to inspect
 *
 * A folder is renamed before the first file in it is removed, so a folder step-N is either complete
 * or absent. Only what sifr created is renamed or removed. The name alone proves nothing: a
 * checkpoint may have been replaced by a link to an archive, and a folder may contain the user's
 * files. A checkpoint is ours if it is a real folder with a COMPLETE file that sifr wrote. A file in
 * it is ours if its name is one that checkpoints use. COMPLETE is removed last, so the remains of an
 * interrupted removal are still recognized.
 */
#ifndef TRAIN_CHECKPOINT_KEEP_H
#define TRAIN_CHECKPOINT_KEEP_H
#include <stdbool.h>
#include <stdint.h>
#include "base/text.h"

/* *step = the largest N below `below` with a folder step-N; -1 = none, also if `folder` does not
 * exist. */
enum status checkpoint_keep_newest(struct env *env, const char *folder, int64_t below,
                                   int64_t *step);
/* The same in two folders (second: NULL = none). `below` is INT64_MAX, then the previous *step.
 * *apart = it is in `second`; false before the first call. If both have step N, the one in `folder`
 * comes first. */
enum status checkpoint_keep_newest_of(struct env *env, const char *folder, const char *second,
                                      int64_t below, int64_t *step, bool *apart);
/* As checkpoint_keep_newest for the newest one that sifr provably wrote. */
enum status checkpoint_keep_newest_own(struct env *env, const char *folder, int64_t *step);
/* Remove partly written and partly removed checkpoints of earlier runs if they provably belong to
 * sifr; warn about others. The caller holds the run's lock. */
enum status checkpoint_keep_clear(struct env *env, const char *folder);
/* Remove all checkpoints but the newest `keep` and those whose N is a multiple of `major` (0 =
 * none). A checkpoint that contains foreign files is kept. This does not stop the removal of
 * others; the first such failure is returned at the end. Symbolic links and foreign folders called
 * step-N are kept too and do not count towards `keep`. */
enum status checkpoint_keep_prune(struct env *env, const char *folder, int64_t keep, int64_t major);
/* Rename all checkpoints above `step` to step-N.damaged: the run resumes from `step` and will write
 * them again. If one of them is not a real folder, fails with STATUS_CONFIG before anything is
 * renamed. */
enum status checkpoint_keep_set_aside(struct env *env, const char *folder, int64_t step);

/* *path = FOLDER/{PREFIX}step-N{SUFFIX}; the caller frees it with mem_free. */
enum status checkpoint_keep_path(struct env *env, const char *folder, const char *prefix,
                                 int64_t step, const char *suffix, char **path);

#endif
