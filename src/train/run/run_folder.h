/* run_folder -- prepares the folder of a run: creates it, reuses it to resume, or moves an earlier
 * run out of it. DIR/lock (base/lock_file.h) keeps a second run out while one writes. */
#ifndef TRAIN_RUN_FOLDER_H
#define TRAIN_RUN_FOLDER_H
#include <stdbool.h>
#include "base/lock_file.h"

/* STATUS_CONFIG if another run is writing to the folder, or if it contains a model or files that a
 * run would overwrite and that no run wrote. With `fresh`, also if it contains a run that cannot be
 * moved because the path ends in "." or "..". *holds tells whether it contains a run: metrics.jsonl
 * or checkpoints. Changes nothing; meant to report errors before the slow part of starting up. */
enum status run_folder_check(struct env *env, const char *path, bool fresh, bool *holds);

/* Create the folder with its parents, check that it is writable, and lock it. After a failure,
 * newly created folders are removed again. With `fresh`, an existing run is first renamed to DIR.1,
 * DIR.2, ... The caller releases the lock after the last write; until then no other run can use the
 * folder. */
enum status run_folder_prepare(struct env *env, const char *path, bool fresh,
                               struct lock_file **lock);

#endif
