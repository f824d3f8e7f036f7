/* checkpoint_keep -- the folder of a run's checkpoints: which there are, which stay, and what is
 * left over.
 *
 *     checkpoints/step-N             complete, always: a folder gets this name when it is
 *     checkpoints/.step-N.tmp        being written (part_folder.h)
 *     checkpoints/.old-step-N        being removed
 *     checkpoints/step-N.damaged     passed over when a run went on from an earlier one; kept for a
 *                                    person to look at
 *
 * A folder is renamed before the first file in it is removed, so a checkpoint under its own name is
 * whole or is not there. Only what sifr made is renamed or removed (checkpoint_own.h).
 */
#ifndef TRAIN_CHECKPOINT_KEEP_H
#define TRAIN_CHECKPOINT_KEEP_H
#include <stdint.h>
#include "base/text.h"

/* *step = the largest N below `below` with a folder step-N; -1 = none, also when there is no
 * folder at all. */
enum status checkpoint_keep_newest(struct env *env, const char *folder, int64_t below,
                                   int64_t *step);
/* Remove what earlier runs left half written or half removed, where it is proven to be ours; warn
 * of the rest. The caller holds the run's lock. */
enum status checkpoint_keep_clear(struct env *env, const char *folder);
/* Remove all but the newest `keep` and those whose N is a multiple of `major` (0 = none). One that
 * holds anything but a checkpoint's files stays: the others are removed all the same, and the
 * first such is the failure that comes back. Links and other folders of that name stay too, and
 * are not counted. */
enum status checkpoint_keep_prune(struct env *env, const char *folder, int64_t keep, int64_t major);
/* Those above `step` get other names: the run resumes from there and will write them again. Refused
 * (STATUS_CONFIG) before anything is renamed if one of them is not a real folder. */
enum status checkpoint_keep_set_aside(struct env *env, const char *folder, int64_t step);

/* folder/PREFIX step-N SUFFIX; mem_free it. */
enum status checkpoint_keep_path(struct env *env, const char *folder, const char *prefix,
                                 int64_t step, const char *suffix, char **path);

#endif
