/* stream_cpu -- streams and events of the CPU device, for its table. */
#ifndef DEVICE_CPU_STREAM_CPU_H
#define DEVICE_CPU_STREAM_CPU_H
#include "device/tickets.h"

struct worker;

struct cpu_stream {
    struct stream base;
    struct worker *worker; /* NULL on an inline stream */
};

struct cpu_event {
    struct event base;
    struct tickets tickets;
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
