/* dry_impl -- what the files of the dry devices share. */
#ifndef DEVICE_DRY_DRY_IMPL_H
#define DEVICE_DRY_DRY_IMPL_H
#include "device/device_impl.h"

struct dry_device {
    struct device base;
    uintptr_t next; /* the address of the next block, a multiple of 64 */
    bool keeps_time;
    struct device_pace pace;
    double now; /* the host's clock */
    double
        owed; /* seconds that workers have taken from plain streams, and these have not lost yet */
};

struct dry_stream {
    struct stream base;
    void *stage;
    double
        now; /* the end of all that is enqueued; not used where the host's clock is the stream's */
    double worked; /* the end of its last work */
    double spent;
};

struct dry_event {
    struct event base;
    double at; /* when its stream passes it */
};

/* dry_time.c: slots of both back ends */
enum status dry_stream_sync(struct stream *stream);
void dry_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes);
void dry_record(struct event *event, struct stream *stream);
void dry_wait(struct stream *stream, struct event *event);
void dry_copy(struct stream *stream, void *dst, const void *src, size_t bytes);
void dry_zero(struct stream *stream, void *dst, size_t bytes);
void dry_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                    enum dtype src_type, int64_t count);
void dry_accumulate_parts(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                          enum dtype src_type, int64_t count, int64_t stride, int parts);

#endif
