/* stream -- the public functions of streams and events: sticky errors, waits, argument checks.
 *
 * A back end sees only work that must be done: once a stream has failed, copies, sums and waits are
 * dropped here. A worker may fail after work was put in its ring, so back ends check again when
 * they reach the work.
 */
#include "device/device.h"
#include "device/device_impl.h"

/* --- streams -------------------------------------------------------------------------------- */

static enum status create(struct device *device, const char *name, bool worker,
                          struct stream **stream)
{
    enum status st;
    struct stream *s;
    TRY(mem_alloc(device->env, MEM_OTHER, name, device->backend->stream_bytes, &s));
    s->device = device;
    s->worker = worker;
    atomic_init(&s->error, STATUS_OK);
    atomic_init(&s->waited_ns, 0);
    atomic_init(&s->waiting, false);
    atomic_init(&s->syncs, 0);
    if (device->backend->stream_open != NULL)
        TRY_OR(undo_self, device->backend->stream_open(s, name));
    device->stream_count++;
    *stream = s;
    return STATUS_OK;
undo_self:
    mem_free(device->env, s);
    return st;
}

enum status stream_create(struct device *device, const char *name, struct stream **stream)
{
    return create(device, name, false, stream);
}

enum status stream_create_worker(struct device *device, const char *name, struct stream **stream)
{
    return create(device, name, true, stream);
}

void stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    struct device *device = stream->device;
    stream_sync(stream);
    if (device->backend->stream_close != NULL)
        device->backend->stream_close(stream);
    device->stream_count--;
    mem_free(device->env, stream);
}

struct device *stream_device(const struct stream *stream)
{
    return stream->device;
}

bool stream_is_worker(const struct stream *stream)
{
    return stream->worker;
}

enum status stream_sync(struct stream *stream)
{
    const struct device_backend *backend = stream->device->backend;
    if (backend->stream_sync != NULL) {
        stream_await_begin(stream);
        stream_fail(stream, backend->stream_sync(stream));
        stream_await_end(stream);
    }
    return (enum status)atomic_load(&stream->error);
}

void stream_fail(struct stream *stream, enum status st)
{
    int none = STATUS_OK;
    atomic_compare_exchange_strong(&stream->error, &none, (int)st);
}

bool stream_failed(const struct stream *stream)
{
    return atomic_load_explicit(&stream->error, memory_order_relaxed) != STATUS_OK;
}

double stream_waited(const struct stream *stream)
{
    return 1e-9 * (double)atomic_load_explicit(&stream->waited_ns, memory_order_relaxed);
}

bool stream_is_waiting(const struct stream *stream)
{
    return atomic_load_explicit(&stream->waiting, memory_order_relaxed);
}

bool stream_is_awaited(const struct stream *stream)
{
    return atomic_load_explicit(&stream->syncs, memory_order_relaxed) > 0;
}

void stream_await_begin(struct stream *stream)
{
    atomic_fetch_add_explicit(&stream->syncs, 1, memory_order_relaxed);
}

void stream_await_end(struct stream *stream)
{
    atomic_fetch_sub_explicit(&stream->syncs, 1, memory_order_relaxed);
}

/* --- events --------------------------------------------------------------------------------- */

enum status event_create(struct device *device, struct event **event)
{
    enum status st;
    struct event *e;
    TRY(mem_alloc(device->env, MEM_OTHER, "events", device->backend->event_bytes, &e));
    e->device = device;
    if (device->backend->event_open != NULL)
        TRY_OR(undo_self, device->backend->event_open(e));
    device->event_count++;
    *event = e;
    return STATUS_OK;
undo_self:
    mem_free(device->env, e);
    return st;
}

void event_destroy(struct event *event)
{
    if (event == NULL)
        return;
    struct device *device = event->device;
    if (device->backend->event_close != NULL)
        device->backend->event_close(event);
    device->event_count--;
    mem_free(device->env, event);
}

void event_record(struct event *event, struct stream *stream)
{
    CHECK(event->device->backend == stream->device->backend);
    stream->device->backend->record(event, stream);
}

void stream_wait(struct stream *stream, struct event *event)
{
    CHECK(event->device->backend == stream->device->backend);
    if (!stream_failed(stream))
        stream->device->backend->wait(stream, event);
}

/* --- spans ---------------------------------------------------------------------------------- */

int64_t stream_span_claim(struct stream *stream, const struct trace_span *span)
{
    const struct device_backend *backend = stream->device->backend;
    bool traced = stream->device->env->trace != NULL && backend->span_claim != NULL;
    return traced && !stream->records ? backend->span_claim(stream, span) : -1;
}

void stream_span_mark(struct stream *stream, int64_t mark, bool end)
{
    if (mark >= 0 && !stream_failed(stream))
        stream->device->backend->span_mark(stream, mark, end);
}

int64_t stream_span_begin(struct stream *stream, const struct trace_span *span)
{
    int64_t mark = stream_span_claim(stream, span);
    stream_span_mark(stream, mark, false);
    return mark;
}

void stream_span_end(struct stream *stream, int64_t mark)
{
    stream_span_mark(stream, mark, true);
}

void stream_trace_wait(const struct stream *stream, double start)
{
    bool computes = device_memory(stream->device) == MEM_HOST;
    trace_end(stream->device->env->trace, start,
              &(struct trace_span){.lane = computes ? &trace_lane_compute : &trace_lane_host,
                                   .category = "wait",
                                   .name = "wait"});
}

enum status device_spans_create(struct device *device, int64_t spans)
{
    const struct device_backend *backend = device->backend;
    return backend->spans_create != NULL ? backend->spans_create(device, spans) : STATUS_OK;
}

void device_spans_open(struct device *device)
{
    if (device->backend->spans_open != NULL)
        device->backend->spans_open(device);
}

void device_spans_close(struct device *device)
{
    if (device->backend->spans_close != NULL)
        device->backend->spans_close(device);
}

/* --- enqueued work -------------------------------------------------------------------------- */

static bool is_disjoint(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return first + a_bytes <= second || second + b_bytes <= first;
}

void stream_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes)
{
    CHECK_LE(bytes, STREAM_ARGS_BYTES);
    stream->device->backend->enqueue(stream, task, args, bytes);
}

static void copy(struct stream *stream, void *dst, const void *src, size_t bytes,
                 const struct trace_span *span)
{
    if (bytes == 0)
        return;
    CHECK(dst != NULL && src != NULL);
    CHECK(is_disjoint(dst, bytes, src, bytes));
    if (!stream_failed(stream))
        stream->device->backend->copy(stream, dst, src, bytes,
                                      span ? stream_span_claim(stream, span) : -1);
}

void device_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    copy(stream, dst, src, bytes, NULL);
}

void device_copy_traced(struct stream *stream, void *dst, const void *src, size_t bytes,
                        const struct trace_span *span)
{
    copy(stream, dst, src, bytes, span);
}

void device_copy_rows(struct stream *stream, void *dst, size_t dst_apart, const void *src,
                      size_t src_apart, size_t bytes, int64_t rows)
{
    const struct device_backend *backend = stream->device->backend;
    CHECK(bytes <= dst_apart && bytes <= src_apart);
    if (bytes == 0 || rows <= 0)
        return;
    size_t last = (size_t)(rows - 1);
    CHECK(is_disjoint(dst, last * dst_apart + bytes, src, last * src_apart + bytes));
    if (backend->copy_rows && !stream_failed(stream)) {
        backend->copy_rows(stream, dst, dst_apart, src, src_apart, bytes, rows);
        return;
    }
    for (size_t row = 0; row <= last; row++)
        device_copy(stream, (char *)dst + row * dst_apart, (const char *)src + row * src_apart,
                    bytes);
}

void device_zero(struct stream *stream, void *dst, size_t bytes)
{
    if (bytes == 0)
        return;
    CHECK(dst != NULL);
    if (!stream_failed(stream))
        stream->device->backend->zero(stream, dst, bytes);
}

void device_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                       enum dtype src_type, int64_t count)
{
    CHECK_LE(0, count);
    if (count == 0)
        return;
    CHECK(dst != NULL && src != NULL);
    CHECK(dst_type == DTYPE_F32 || dst_type == DTYPE_F64 || dst_type == DTYPE_BF16 ||
          dst_type == DTYPE_F16);
    CHECK(src_type == DTYPE_F32 || src_type == DTYPE_BF16 || src_type == DTYPE_F16 ||
          (src_type == DTYPE_F64 && dst_type == DTYPE_F64));
    CHECK(is_disjoint(dst, (size_t)count * dtype_bytes(dst_type), src,
                      (size_t)count * dtype_bytes(src_type)));
    if (!stream_failed(stream))
        stream->device->backend->accumulate(stream, dst, dst_type, src, src_type, count);
}

void device_accumulate_parts(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                             enum dtype src_type, int64_t count, int64_t stride, int parts)
{
    const struct device_backend *backend = stream->device->backend;
    CHECK_LE(0, count);
    CHECK_LE(count, stride);
    if (backend->accumulate_parts && count > 0 && parts > 0 && !stream_failed(stream)) {
        backend->accumulate_parts(stream, dst, dst_type, src, src_type, count, stride, parts);
        return;
    }
    for (int p = 0; p < parts; p++)
        device_accumulate(stream, dst, dst_type,
                          (const char *)src + (size_t)(p * stride) * dtype_bytes(src_type),
                          src_type, count);
}

/* dst NULL: squares only. */
static void add_with_squares(struct stream *stream, float *dst, const void *src,
                             enum dtype src_type, int64_t count, bool first, double *sums,
                             double weight)
{
    CHECK(sums != NULL && src != NULL);
    CHECK(src_type == DTYPE_F32 || src_type == DTYPE_BF16 || src_type == DTYPE_F16);
    if (!stream_failed(stream))
        stream->device->backend->accumulate_squares(stream, dst, src, src_type, count, first, sums,
                                                    weight);
}

void device_add_squares(struct stream *stream, double *sums, const void *src, enum dtype src_type,
                        int64_t count, double weight)
{
    CHECK_LE(0, count);
    if (count > 0)
        add_with_squares(stream, NULL, src, src_type, count, false, sums, weight);
}

void device_accumulate_squares(struct stream *stream, float *dst, const void *src,
                               enum dtype src_type, int64_t count, bool first, double *sums,
                               double weight)
{
    CHECK_LE(0, count);
    if (count == 0)
        return;
    CHECK(dst != NULL);
    CHECK(
        is_disjoint(dst, (size_t)count * sizeof *dst, src, (size_t)count * dtype_bytes(src_type)));
    add_with_squares(stream, dst, src, src_type, count, first, sums, weight);
}

/* --- recordings ----------------------------------------------------------------------------- */

bool stream_record_begin(struct stream *stream)
{
    const struct device_backend *backend = stream->device->backend;
    stream->records = backend->record_begin != NULL && !stream->worker && !stream_failed(stream) &&
                      backend->record_begin(stream);
    return stream->records;
}

/* The failed work was not executed, so the stream's error is cleared. */
struct recording *stream_record_end(struct stream *stream)
{
    const struct device_backend *backend = stream->device->backend;
    struct recording *recording = backend->record_end(stream);
    stream->records = false;
    if (recording != NULL && !stream_failed(stream))
        return recording;
    recording_destroy(stream->device, recording);
    atomic_store(&stream->error, STATUS_OK);
    log_warn(stream->device->env,
             "cannot record the work of a step; every call is enqueued separately instead");
    return NULL;
}

void stream_replay(struct stream *stream, struct recording *recording)
{
    CHECK(recording != NULL);
    if (!stream_failed(stream))
        stream->device->backend->replay(stream, recording);
}

void recording_destroy(struct device *device, struct recording *recording)
{
    if (recording != NULL)
        device->backend->forget(device, recording);
}
