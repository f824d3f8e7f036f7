/* run_folder -- the folder of one run: made, gone on with, or an earlier run in it moved aside. */
#ifndef TRAIN_RUN_FOLDER_H
#define TRAIN_RUN_FOLDER_H
#include <stdbool.h>
#include "train/run/run_lock.h"

/* Refuse (STATUS_CONFIG) a folder that another run is writing to, or that has files which a run
 * would write over and no run wrote, or a model; and say whether it holds a run: metrics.jsonl or
 * checkpoints. With `fresh` a run that cannot be moved because the folder is named "." or ".." is
 * refused too. Changes nothing: for a word before the long part of starting up. */
enum status run_folder_check(struct env *env, const char *path, bool fresh, bool *holds);

/* Make the folder with its parents and see that it can be written to; one that was made now and
 * cannot is removed again. With `fresh` a run that is in it is renamed to DIR.1, DIR.2, ... first.
 * The caller releases the lock when nothing more is written there; until then every other run is
 * refused. */
enum status run_folder_prepare(struct env *env, const char *path, bool fresh,
                               struct lock_file **lock);

#endif
