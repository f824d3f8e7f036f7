/* stream_cpu -- streams and events of the CPU device, for its table. */
#ifndef DEVICE_CPU_STREAM_CPU_H
#define DEVICE_CPU_STREAM_CPU_H
#include <pthread.h>
#include "device/device_impl.h"

struct worker;

struct cpu_stream {
    struct stream base;
    struct worker *worker; /* NULL on an inline stream */
};

/* A record takes the next ticket and, when its stream comes to it, passes it; a wait is for the
 * ticket that was newest when it was asked for. */
struct cpu_event {
    struct event base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t recorded, passed; /* newest ticket taken, newest ticket passed */
    int users;                /* records and waits that streams have not come to */
};

enum status cpu_stream_open(struct stream *stream, const char *name);
void cpu_stream_close(struct stream *stream);
enum status cpu_stream_sync(struct stream *stream);
void cpu_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes);
enum status cpu_event_open(struct event *event);
void cpu_event_close(struct event *event);
void cpu_record(struct event *event, struct stream *stream);
void cpu_wait(struct stream *stream, struct event *event);

#endif
