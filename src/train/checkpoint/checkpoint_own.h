/* checkpoint_own -- what of a folder of checkpoints sifr made, and may therefore rename or remove.
 *
 * A name is no proof: a checkpoint may have been replaced by a link to an archive, and a folder may
 * hold files of the user's. A checkpoint is ours if it is a real folder with a COMPLETE that sifr
 * wrote, and a file in it is ours if a checkpoint has a file of that name. COMPLETE goes last, so
 * what is left of a removal that was cut short is still known.
 */
#ifndef TRAIN_CHECKPOINT_OWN_H
#define TRAIN_CHECKPOINT_OWN_H
#include <stdbool.h>
#include "base/tree.h"

bool checkpoint_own_is(const char *path);
/* The first entry that is not of a checkpoint; see tree_find_stranger. */
enum status checkpoint_own_stranger(struct env *env, const char *path,
                                    char stranger[TREE_PATH_BYTES]);

/* Fails, naming it, if there is anything in the checkpoint that is not of it, or if the folder
 * itself is not ours. */
enum status checkpoint_own_check(struct env *env, const char *path);

/* Remove the files of a checkpoint that is ours, and its folder. */
enum status checkpoint_own_remove(struct env *env, const char *path);

#endif
