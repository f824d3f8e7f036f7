/* checkpoint_own -- decides whether sifr created a checkpoint and may therefore rename or remove
 * it.
 *
 * The name alone proves nothing: a checkpoint may have been replaced by a link to an archive, and a
 * folder may contain the user's files. A checkpoint is ours if it is a real folder with a COMPLETE
 * file that sifr wrote. A file in it is ours if its name is one that checkpoints use. COMPLETE is
 * removed last, so the remains of an interrupted removal are still recognized.
 */
#ifndef TRAIN_CHECKPOINT_OWN_H
#define TRAIN_CHECKPOINT_OWN_H
#include <stdbool.h>
#include "base/file.h"

/* Is the folder a checkpoint that sifr wrote? */
bool checkpoint_own_is(const char *path);
/* Find the first foreign entry in a checkpoint, as tree_find_stranger; "" = none. */
enum status checkpoint_own_stranger(struct env *env, const char *path,
                                    char stranger[TREE_PATH_BYTES]);

/* STATUS_CONFIG if the folder is not ours or contains a foreign entry; the message names it. */
enum status checkpoint_own_check(struct env *env, const char *path);

/* Remove the files and the folder of a checkpoint that is ours. */
enum status checkpoint_own_remove(struct env *env, const char *path);

#endif
