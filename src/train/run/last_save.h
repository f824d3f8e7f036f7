/* last_save -- saves the last checkpoint of a run. Without it all steps since the previous one are
 * lost, so a failure is followed by these attempts, in order:
 *
 *     run folder                as every other checkpoint; after a transient failure, once more
 *     checkpoint.fallback       if it is set, after any I/O failure
 *     checkpoint.make_room      if it is set and the disk is full: remove the oldest checkpoint
 *                               that may be removed (checkpoint.h) and retry, repeatedly
 *     checkpoint.wait_for_space if the disk is full: wait until there is room and retry. A stop
 *                               request ends the wait
 *
 * Rank 0 decides, and all ranks do the same.
 */
#ifndef TRAIN_LAST_SAVE_H
#define TRAIN_LAST_SAVE_H
#include "train/run/run_saves.h"

/* Collective. *result tells whether it was saved and, if not, why the run folder failed. The
 * returned status is that of the device or the communicator. */
enum status last_save(struct run_saves *saves, const struct checkpoint_progress *progress,
                      struct checkpoint_result *result);

#endif
