/* dry_impl -- shared by the files of the dry devices. */
#ifndef DEVICE_DRY_DRY_IMPL_H
#define DEVICE_DRY_DRY_IMPL_H
#include "device/device_impl.h"

struct dry_device {
    struct device base;
    uintptr_t next; /* address of the next block, a multiple of 64 */
    bool keeps_time;
    struct device_pace pace;
    double now; /* clock of the host */
    /* Seconds that workers have taken from plain streams and that these have not yet lost. */
    double owed;
};

struct dry_stream {
    struct stream base;
    void *stage;
    /* When everything enqueued is done; unused where the stream shares the host's clock. */
    double now;
    double worked; /* when its last work ended */
    double spent;
};

struct dry_event {
    struct event base;
    double at; /* when its stream reaches it */
};

/* dry_time.c: table entries of both back ends */
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
