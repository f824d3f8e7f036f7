/* tfevents -- TensorBoard event files: the curves of a run, readable while it runs.
 *
 * One file per start of a process (TensorBoard joins the files of a folder). Each record is
 * written immediately, so a crash loses nothing.
 */
#ifndef TRAIN_TFEVENTS_H
#define TRAIN_TFEVENTS_H
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct tfevents;

struct tfevents_scalar {
    const char *tag; /* "train/loss" */
    float value;
};

/* Create a file events.out.tfevents.SECONDS.HOST.PID.N in `folder`. */
enum status tfevents_create(struct env *env, const char *folder, struct tfevents **events);
/* The same with a given path and start time. */
enum status tfevents_create_file(struct env *env, const char *path, double wall_time,
                                 struct tfevents **events);
void tfevents_destroy(struct tfevents *events); /* NULL is fine */

/* Write all scalars of a step in one record. Allocates only if the record is larger than any before
 * it. STATUS_IO is not logged: errno has the reason, and the file is unchanged. */
enum status tfevents_scalars(struct tfevents *events, double wall_time, int64_t step,
                             const struct tfevents_scalar *scalars, int count);
enum status tfevents_text(struct tfevents *events, double wall_time, int64_t step, const char *tag,
                          const char *text, size_t bytes);

uint32_t tfevents_crc32c(const void *data, size_t bytes); /* Castagnoli; public for the test */

#endif
