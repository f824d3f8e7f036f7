/* fallback -- where the last checkpoint of a run is when its own folder could not take it:
 *
 *     checkpoint.fallback/NAME-ID/step-N        NAME: of the run's folder
 *
 * ID is a hash of the first line of the run's metrics.jsonl, which has the time that its first step
 * took: another run in a folder of the same name, or one begun again there, has another. So several
 * runs may share a fallback, and a run that was moved finds its own.
 */
#ifndef TRAIN_FALLBACK_H
#define TRAIN_FALLBACK_H
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"

/* Of the run in this folder; 0 = it has no record yet. */
uint64_t fallback_id(struct env *env, const char *run);
/* *folder: mem_free it. */
enum status fallback_folder(struct env *env, const char *fallback, const char *run, uint64_t id,
                            char **folder);

/* Is this the path of a checkpoint in a fallback? As a run's summary.json has it: its own ones are in
 * a folder called checkpoints. */
bool fallback_holds(const char *checkpoint);
/* *checkpoint = where the run in this folder left its last checkpoint, if that is in a fallback, is
 * there, and is of a later step than the checkpoint `than`; else NULL. mem_free it. */
enum status fallback_newer(struct env *env, const char *run, const char *than, char **checkpoint);

#endif
