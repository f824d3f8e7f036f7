/* worker -- a thread that runs tasks one after the other from a bounded ring.
 *
 * Nothing is allocated after worker_create: a task's arguments are copied into its place in the
 * ring. Any thread may add tasks; the order of one thread's tasks is kept.
 */
#ifndef DEVICE_WORKER_H
#define DEVICE_WORKER_H
#include <stdbool.h>
#include "device/device.h"

struct worker;

enum {
    WORKER_RING = 128,                         /* tasks that may wait at a time */
    WORKER_ARGS_BYTES = STREAM_ARGS_BYTES + 16 /* of arguments, with room for a back end's own */
};

/* Tasks are called with `stream`, which outlives the worker. The thread takes no signals. */
enum status worker_create(struct env *env, const char *name, struct stream *stream,
                          struct worker **worker);
void worker_destroy(struct worker *worker); /* runs what is in the ring first */
/* Waits while the ring is full. Not from the worker's own thread. */
void worker_add(struct worker *worker, stream_task_fn *task, const void *args, size_t bytes);
void worker_drain(struct worker *worker); /* until what has been added by now is done */
bool worker_is_me(const struct worker *worker);

#endif
