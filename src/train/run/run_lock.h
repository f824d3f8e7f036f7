/* run_lock -- one run at a time in a folder: a lock (lock_file.h) on DIR/lock. */
#ifndef TRAIN_RUN_LOCK_H
#define TRAIN_RUN_LOCK_H
#include "base/lock_file.h"

/* Refuse (STATUS_CONFIG) a folder that another run is writing to, or that has a DIR/lock which no
 * run wrote; makes nothing. */
enum status run_lock_check(struct env *env, const char *folder);

/* Lock the folder, which exists. STATUS_CONFIG where run_lock_check says so. */
enum status run_lock_take(struct env *env, const char *folder, struct lock_file **lock);

#endif
