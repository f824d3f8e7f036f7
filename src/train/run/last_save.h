/* last_save -- the last checkpoint of a run, which is not given up easily: without it the steps
 * since the one before are lost.
 *
 *     the run's folder          as every other
 *     checkpoint.fallback       if it is given, whatever the reason
 *     checkpoint.make_room      if it is set and the disk is full: the oldest one that may go is removed
 *                               (checkpoint_room.h), and again
 *     checkpoint.wait_for_space if the disk is full: wait until there is room, and again. A run that is
 *                               asked to stop meanwhile waits no longer
 *
 * All ranks do the same: the first decides.
 */
#ifndef TRAIN_LAST_SAVE_H
#define TRAIN_LAST_SAVE_H
#include "train/run/run_saves.h"

/* Collective. What came of it is in the result, with the reason of the first failure; the status is
 * that of the device or communicator. */
enum status last_save(struct run_saves *saves, const struct checkpoint_progress *progress,
                      struct checkpoint_result *result);

#endif
