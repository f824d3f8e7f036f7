/* dry_time -- the clocks of a dry device: how long work would take, and who would wait for whom.
 *
 *     host      has a clock. On "dry" the host computes, so plain streams share its clock
 *     stream    clock = when everything enqueued is done. Work starts then, or when it is enqueued,
 *               whichever is later
 *     event     clock of the stream when it was recorded; a waiter continues at that time or later
 *
 * Time advances in the order of the calls, so the simulation never has to revisit an earlier time.
 *
 * Where workers use the cores that compute (pace.theft), the time they take is a debt. Each second
 * on a worker adds `theft` seconds to it, and plain streams pay when they next work, at most what
 * they would lose if workers were busy during all of that work. While plain streams are idle they
 * lose nothing, so idle time reduces the debt. The order within a step is therefore approximate,
 * but the total is right.
 *
 * On a GPU the host also sleeps while it waits for a worker's event (stream_cuda.c). This is not
 * simulated: it would only delay enqueueing work that waits for that event anyway.
 */
#include <math.h>
#include "base/clock.h"
#include "device/dry/dry_impl.h"

static struct dry_device *own(const struct device *device)
{
    CHECK(device->backend->dry);
    return (struct dry_device *)device;
}

/* The stream runs on the host and shares its clock. */
static bool is_inline(const struct stream *stream)
{
    return !stream->worker && stream->device->backend->location == MEM_HOST;
}

/* --- the host ------------------------------------------------------------------------------- */

void device_keep_time(struct device *device, const struct device_pace *pace)
{
    struct dry_device *dry = own(device);
    CHECK(!dry->keeps_time);
    CHECK(pace->call >= 0 && pace->copy_bytes_per_second >= 0 && pace->theft >= 0);
    dry->keeps_time = true;
    dry->pace = *pace;
}

double device_clock(const struct device *device)
{
    return own(device)->now;
}

void device_spend(struct device *device, double seconds)
{
    struct dry_device *dry = own(device);
    if (dry->keeps_time)
        dry->now += seconds;
}

void device_wait_until(struct device *device, double clock)
{
    struct dry_device *dry = own(device);
    if (dry->keeps_time && clock > dry->now)
        dry->now = clock;
}

/* --- streams -------------------------------------------------------------------------------- */

double stream_clock(const struct stream *stream)
{
    if (!stream->device->backend->dry)
        return clock_seconds();
    double host = own(stream->device)->now, end = ((const struct dry_stream *)stream)->now;
    return is_inline(stream) || host > end ? host : end;
}

double stream_spent(const struct stream *stream)
{
    return stream->device->backend->dry ? ((const struct dry_stream *)stream)->spent : 0.0;
}

static void set_clock(struct stream *stream, double clock)
{
    if (is_inline(stream))
        own(stream->device)->now = clock;
    else
        ((struct dry_stream *)stream)->now = clock;
}

/* Seconds that a plain stream, idle before, loses to workers during `seconds` of work. */
static double pay(struct dry_device *dry, double idle, double seconds)
{
    double theft = dry->pace.theft;
    double most = theft < 1 ? seconds * theft / (1 - theft) : INFINITY;
    dry->owed = fmax(0.0, dry->owed - theft * idle);
    double paid = fmin(dry->owed, most);
    dry->owed -= paid;
    return paid;
}

void stream_spend(struct stream *stream, double seconds)
{
    struct dry_device *dry = own(stream->device);
    struct dry_stream *s = (struct dry_stream *)stream;
    CHECK(seconds >= 0);
    if (!dry->keeps_time || seconds == 0)
        return;
    double begin = stream_clock(stream);
    if (stream->worker)
        dry->owed += dry->pace.theft * seconds;
    else if (dry->owed > 0)
        seconds += pay(dry, begin - s->worked, seconds);
    s->worked = begin + seconds;
    s->spent += seconds;
    set_clock(stream, s->worked);
}

enum status dry_stream_sync(struct stream *stream)
{
    device_wait_until(stream->device, ((const struct dry_stream *)stream)->now);
    return STATUS_OK;
}

void dry_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes)
{
    (void)stream, (void)task, (void)args, (void)bytes; /* it would touch memory */
}

/* --- events --------------------------------------------------------------------------------- */

void dry_record(struct event *event, struct stream *stream)
{
    ((struct dry_event *)event)->at = stream_clock(stream);
}

void dry_wait(struct stream *stream, struct event *event)
{
    double now = stream_clock(stream), at = ((const struct dry_event *)event)->at;
    if (at <= now)
        return;
    atomic_fetch_add_explicit(&stream->waited_ns, (int64_t)(1e9 * (at - now)),
                              memory_order_relaxed);
    set_clock(stream, at);
}

/* --- the device's own work ------------------------------------------------------------------ */

static void move(struct stream *stream, int calls, double bytes)
{
    const struct device_pace *pace = &own(stream->device)->pace;
    if (pace->copy_bytes_per_second > 0)
        stream_spend(stream, calls * (pace->call + bytes / pace->copy_bytes_per_second));
}

void dry_copy(struct stream *stream, void *dst, const void *src, size_t bytes)
{
    (void)dst, (void)src;
    move(stream, 1, 2.0 * (double)bytes);
}

void dry_zero(struct stream *stream, void *dst, size_t bytes)
{
    (void)dst;
    move(stream, 1, (double)bytes);
}

void dry_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                    enum dtype src_type, int64_t count)
{
    dry_accumulate_parts(stream, dst, dst_type, src, src_type, count, count, 1);
}

/* One call for all parts: a plan for a hundred thousand ranks adds that many. */
void dry_accumulate_parts(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                          enum dtype src_type, int64_t count, int64_t stride, int parts)
{
    (void)dst, (void)src, (void)stride;
    move(stream, parts,
         (double)count * (double)(2 * dtype_bytes(dst_type) + dtype_bytes(src_type)));
}
