/* device_dry -- devices that count memory without allocating: `sifr plan` builds the real engine on
 * them.
 *
 * Addresses come from a counter that starts where no process has memory on any known machine (above
 * 52 address bits, below the bits that arm64 ignores). So address arithmetic works, and touching
 * memory faults immediately. Bytes are counted in the same location, under the same category and
 * name, as on the planned device: the CPU, or a GPU, whose plain streams have pinned staging
 * buffers.
 *
 * Simulated time: how long work would take, and who would wait for whom.
 *
 *     host      has a clock. On "dry" the host computes, so plain streams share its clock
 *     stream    clock = when everything enqueued is done. Work starts then, or when it is enqueued,
 *               whichever is later
 *     event     clock of the stream when it was recorded; a waiter continues at that time or later
 *
 * Time advances in the order of the calls, so the simulation never has to revisit an earlier time.
 *
 * What all streams share, the link between GPU and host and the disk, has a calendar for each way.
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
#include "device/device_impl.h"
#include "device/dry/calendar.h"

#define FIRST_ADDRESS ((uintptr_t)1 << 54)
#define ALIGNMENT     64

struct dry_device {
    struct device base;
    uintptr_t next; /* address of the next block, a multiple of 64 */
    bool keeps_time;
    struct device_pace pace;
    double now; /* clock of the host */
    /* Seconds that workers have taken from plain streams and that these have not yet lost. */
    double owed;
    struct calendar link[2], disk[2]; /* in and out: what streams share */
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

/* --- memory --------------------------------------------------------------------------------- */

static enum status dry_open(struct device *device, int index)
{
    (void)index;
    ((struct dry_device *)device)->next = FIRST_ADDRESS;
    return STATUS_OK;
}

static enum status dry_alloc(struct device *device, struct device_block *block)
{
    struct dry_device *dry = (struct dry_device *)device;
    TRY(device_count_block(device, block));
    block->address = (void *)dry->next;
    dry->next += (block->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return STATUS_OK;
}

static enum status gpu_stream_open(struct stream *stream, const char *name)
{
    (void)name;
    if (stream->worker)
        return STATUS_OK;
    return device_alloc_host(stream->device, MEM_OTHER, "stream stage", DEVICE_STREAM_STAGE,
                             &((struct dry_stream *)stream)->stage);
}

static void gpu_stream_close(struct stream *stream)
{
    device_free(stream->device, ((struct dry_stream *)stream)->stage);
}

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
    CHECK(pace->link_bytes_per_second >= 0 && pace->disk_read_bytes_per_second >= 0 &&
          pace->disk_write_bytes_per_second >= 0 && pace->host_update_bytes_per_second >= 0);
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

/* `on_cores`: on the cores that workers and plain streams share. */
static void spend(struct stream *stream, double seconds, bool on_cores)
{
    struct dry_device *dry = own(stream->device);
    struct dry_stream *s = (struct dry_stream *)stream;
    CHECK(seconds >= 0);
    if (!dry->keeps_time || seconds == 0)
        return;
    double begin = stream_clock(stream);
    if (on_cores && stream->worker)
        dry->owed += dry->pace.theft * seconds;
    else if (on_cores && dry->owed > 0)
        seconds += pay(dry, begin - s->worked, seconds);
    s->worked = begin + seconds;
    s->spent += seconds;
    set_clock(stream, s->worked);
}

void stream_spend(struct stream *stream, double seconds)
{
    spend(stream, seconds, true);
}

static enum status dry_stream_sync(struct stream *stream)
{
    device_wait_until(stream->device, ((const struct dry_stream *)stream)->now);
    return STATUS_OK;
}

static void dry_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes)
{
    (void)stream, (void)task, (void)args, (void)bytes; /* it would touch memory */
}

/* --- events --------------------------------------------------------------------------------- */

static void dry_record(struct event *event, struct stream *stream)
{
    ((struct dry_event *)event)->at = stream_clock(stream);
}

static void dry_wait(struct stream *stream, struct event *event)
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

static void dry_copy(struct stream *stream, void *dst, const void *src, size_t bytes, int64_t mark)
{
    (void)dst, (void)src, (void)mark;
    move(stream, 1, 2.0 * (double)bytes);
}

static void dry_copy_rows(struct stream *stream, void *dst, size_t dst_apart, const void *src,
                          size_t src_apart, size_t bytes, int64_t rows)
{
    (void)dst, (void)dst_apart, (void)src, (void)src_apart;
    move(stream, 1, 2.0 * (double)bytes * (double)rows);
}

static void dry_zero(struct stream *stream, void *dst, size_t bytes)
{
    (void)dst;
    move(stream, 1, (double)bytes);
}

/* One call for all parts: a plan for a hundred thousand ranks adds that many. */
static void dry_accumulate_parts(struct stream *stream, void *dst, enum dtype dst_type,
                                 const void *src, enum dtype src_type, int64_t count,
                                 int64_t stride, int parts)
{
    (void)dst, (void)src, (void)stride;
    move(stream, parts,
         (double)count * (double)(2 * dtype_bytes(dst_type) + dtype_bytes(src_type)));
}

static void dry_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                           enum dtype src_type, int64_t count)
{
    dry_accumulate_parts(stream, dst, dst_type, src, src_type, count, count, 1);
}

static void dry_accumulate_squares(struct stream *stream, float *dst, const void *src,
                                   enum dtype src_type, int64_t count, bool first, double *sums,
                                   double weight)
{
    int64_t blocks = (count + DEVICE_SQUARES - 1) / DEVICE_SQUARES;
    double changed =
        (double)blocks * sizeof *sums + (dst != NULL ? (double)count * sizeof *dst : 0);
    (void)src, (void)weight;
    move(stream, 1, (double)count * (double)dtype_bytes(src_type) + (first ? 1 : 2) * changed);
}

static double seconds_of(size_t bytes, double bytes_per_second)
{
    return bytes_per_second > 0 ? (double)bytes / bytes_per_second : 0.0;
}

/* The time at which `bytes` have passed, if they may start now. */
static double pass(struct stream *stream, struct calendar *way, size_t bytes, double rate)
{
    return calendar_book(way, stream_clock(stream), seconds_of(bytes, rate));
}

/* On the CPU, far memory on the host is copied by a core. Otherwise a copy engine or the disk moves
 * the bytes. From disk to GPU both work at the same time, so the slower one counts. */
void dry_copy_far(struct stream *stream, enum far_kind kind, bool write, size_t bytes)
{
    struct dry_device *dry = own(stream->device);
    const struct device_pace *pace = &dry->pace;
    bool gpu = stream->device->backend->location == MEM_GPU;
    double done = stream_clock(stream), begin = done;
    if (!dry->keeps_time)
        return;
    if (kind == FAR_HOST && !gpu) {
        move(stream, 1, 2.0 * (double)bytes);
        return;
    }
    if (gpu)
        done = pass(stream, &dry->link[write], bytes, pace->link_bytes_per_second);
    if (kind == FAR_DISK)
        done = fmax(done, pass(stream, &dry->disk[write], bytes,
                               write ? pace->disk_write_bytes_per_second
                                     : pace->disk_read_bytes_per_second));
    if (done > begin)
        spend(stream, pace->call + done - begin, false);
}

/* Next to a GPU, the cores that do this have nothing else to do. */
void stream_spend_on_host(struct stream *stream, double bytes)
{
    double rate = own(stream->device)->pace.host_update_bytes_per_second;
    if (rate > 0)
        spend(stream, bytes / rate, stream->device->backend->location == MEM_HOST);
}

/* --- the back ends -------------------------------------------------------------------------- */

#define DRY                                                                             \
    .dry = true, .device_bytes = sizeof(struct dry_device),                             \
    .stream_bytes = sizeof(struct dry_stream), .event_bytes = sizeof(struct dry_event), \
    .open = dry_open, .alloc = dry_alloc, .free = device_uncount_block,                 \
    .stream_sync = dry_stream_sync, .enqueue = dry_enqueue, .record = dry_record,       \
    .wait = dry_wait, .copy = dry_copy, .zero = dry_zero, .accumulate = dry_accumulate, \
    .accumulate_parts = dry_accumulate_parts, .copy_rows = dry_copy_rows,               \
    .accumulate_squares = dry_accumulate_squares

const struct device_backend device_dry = {.name = "dry", .location = MEM_HOST, DRY};

const struct device_backend device_dry_gpu = {
    .name = "dry-gpu",
    .location = MEM_GPU,
    DRY,
    .stream_open = gpu_stream_open,
    .stream_close = gpu_stream_close,
};
