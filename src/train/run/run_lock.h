/* run_lock -- one run at a time in a folder: a lock (lock_file.h) on DIR/lock. */
#ifndef TRAIN_RUN_LOCK_H
#define TRAIN_RUN_LOCK_H
#include "base/lock_file.h"

/* STATUS_CONFIG if another run is writing to the folder, or if DIR/lock exists and no run wrote it.
 * Creates nothing. */
enum status run_lock_check(struct env *env, const char *folder);

/* Lock an existing folder. STATUS_CONFIG in the cases of run_lock_check. */
enum status run_lock_take(struct env *env, const char *folder, struct lock_file **lock);

#endif
