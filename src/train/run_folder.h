/* run_folder -- the folder of one run: made, or refused because it holds a run, or that run
 * moved aside. */
#ifndef TRAIN_RUN_FOLDER_H
#define TRAIN_RUN_FOLDER_H
#include <stdbool.h>
#include "train/run_lock.h"

/* Refuse a folder that a run is writing to, or that holds one unless `fresh`; changes nothing. For a word before the long
 * part of starting up. */
enum status run_folder_check(struct env *env, const char *path, bool fresh);

/* Make the folder with its parents and see that it can be written to. One that holds a run
 * (config.yaml, metrics.jsonl, summary.json or checkpoints) is refused with STATUS_CONFIG, or
 * with `fresh` renamed to DIR.1, DIR.2, ... first. The caller releases the lock when nothing more is
 * written there; until then every other run is refused. */
enum status run_folder_prepare(struct env *env, const char *path, bool fresh,
                               struct run_lock **lock);

#endif
