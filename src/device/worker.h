/* worker -- a thread that runs tasks one after the other from a bounded ring.
 *
 * Nothing is allocated after worker_create: arguments are copied into the ring. Any thread may add
 * tasks; tasks of one thread run in order.
 */
#ifndef DEVICE_WORKER_H
#define DEVICE_WORKER_H
#include <stdbool.h>
#include "device/device.h"

struct worker;

enum {
    WORKER_RING = 128,                         /* capacity in tasks */
    WORKER_ARGS_BYTES = STREAM_ARGS_BYTES + 16 /* arguments of a task, and a back end's own */
};

/* Tasks are called with `stream`, which outlives the worker. The thread blocks signals. */
enum status worker_create(struct env *env, const char *name, struct stream *stream,
                          struct worker **worker);
void worker_destroy(struct worker *worker); /* after running all tasks in the ring */
/* Blocks while the ring is full. The worker's own thread must not call it. */
void worker_add(struct worker *worker, stream_task_fn *task, const void *args, size_t bytes);
void worker_drain(struct worker *worker); /* waits for all tasks added so far */
bool worker_is_me(const struct worker *worker);

#endif
