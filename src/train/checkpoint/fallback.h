/* fallback -- where the last checkpoint of a run is saved when its own folder is full:
 *
 *     checkpoint.fallback/NAME-ID/step-N        NAME: the name of the run folder
 *
 * ID is a hash of the first line of the run's metrics.jsonl up to its evaluation, which contains the
 * duration of the first step. Another run in a folder of the same name, or one restarted there, has another ID. So
 * several runs may share a fallback folder, and a run that was moved still finds its own
 * checkpoint.
 */
#ifndef TRAIN_FALLBACK_H
#define TRAIN_FALLBACK_H
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"

/* The ID of the run in this folder; 0 = metrics.jsonl has no line yet. */
uint64_t fallback_id(struct env *env, const char *run);
/* The caller frees *folder with mem_free. */
enum status fallback_folder(struct env *env, const char *fallback, const char *run, uint64_t id,
                            char **folder);

/* Is this path, as found in summary.json, a checkpoint in a fallback folder? A run's own
 * checkpoints are in a folder called "checkpoints". */
bool fallback_holds(const char *checkpoint);
/* *checkpoint = the last checkpoint of the run, if it exists in a fallback folder and has a later
 * step than the checkpoint `than`; otherwise NULL. The caller frees it with mem_free. */
enum status fallback_newer(struct env *env, const char *run, const char *than, char **checkpoint);

#endif
