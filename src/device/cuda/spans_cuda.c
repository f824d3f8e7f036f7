/* spans_cuda -- spans of the trace on the GPU's clock.
 *
 * A span is a pair of timed CUDA events, recorded on the CUDA stream around its work. All pairs are
 * created with the trace, so a step creates none. Two anchors, events whose host time is known,
 * map the GPU's clock to the host's: one from the opening of the window, one from its end.
 *
 *     host    a.seconds ---------- ? --------------- ? --- b.seconds
 *     GPU     a.event ----- pair.at[0] ----- pair.at[1] --- b.event
 *
 * Both are measured near the window, since CUDA returns differences as floats, in milliseconds.
 */
#include <math.h>
#include "base/clock.h"
#include "device/cuda/cuda.h"

enum { MOST_PAIRS = 1 << 14, TRIES = 8 };

struct pair {
    cudaEvent_t at[2]; /* start and end */
    int64_t claim;     /* in the trace */
};

struct anchor {
    cudaEvent_t event;
    double seconds; /* clock_seconds at that event */
};

struct cuda_spans {
    cudaStream_t stream; /* of the anchors */
    struct anchor open, close;
    cudaEvent_t trial; /* of an anchor that is being measured */
    _Atomic bool opened;
    int64_t room;
    _Atomic int64_t taken;
    struct pair pairs[];
};

/* --- creating ------------------------------------------------------------------------------- */

static enum status create_event(struct device *device, cudaEvent_t *event)
{
    return cuda_status(device->env, cudaEventCreateWithFlags(event, cudaEventDefault),
                       "an event of the trace");
}

static enum status fill(struct device *device, struct cuda_spans *spans)
{
    TRY(cuda_status(device->env, cudaStreamCreateWithFlags(&spans->stream, cudaStreamNonBlocking),
                    "a stream of the trace"));
    TRY(create_event(device, &spans->open.event));
    TRY(create_event(device, &spans->close.event));
    TRY(create_event(device, &spans->trial));
    for (int64_t i = 0; i < 2 * spans->room; i++)
        TRY(create_event(device, &spans->pairs[i / 2].at[i % 2]));
    return STATUS_OK;
}

enum status cuda_spans_create(struct device *device, int64_t count)
{
    struct cuda_device *cuda = cuda_device_of(device);
    int64_t room = count < MOST_PAIRS ? count : MOST_PAIRS;
    CHECK(cuda->spans == NULL);
    cudaSetDevice(cuda->index);
    TRY(mem_alloc(device->env, MEM_OTHER, "trace",
                  sizeof *cuda->spans + (size_t)room * sizeof *cuda->spans->pairs, &cuda->spans));
    cuda->spans->room = room;
    atomic_init(&cuda->spans->taken, 0);
    enum status st = fill(device, cuda->spans);
    if (st != STATUS_OK)
        cuda_spans_destroy(device);
    return st;
}

static void destroy_event(cudaEvent_t event)
{
    if (event != NULL)
        cudaEventDestroy(event);
}

void cuda_spans_destroy(struct device *device)
{
    struct cuda_spans *spans = cuda_device_of(device)->spans;
    if (spans == NULL)
        return;
    cudaSetDevice(cuda_device_of(device)->index);
    for (int64_t i = 0; i < 2 * spans->room; i++)
        destroy_event(spans->pairs[i / 2].at[i % 2]);
    destroy_event(spans->open.event);
    destroy_event(spans->close.event);
    destroy_event(spans->trial);
    if (spans->stream != NULL)
        cudaStreamDestroy(spans->stream);
    mem_free(device->env, spans);
    cuda_device_of(device)->spans = NULL;
}

/* --- recording ------------------------------------------------------------------------------ */

/* A mark is the index of a pair. */
int64_t cuda_span_claim(struct stream *stream, const struct trace_span *span)
{
    struct cuda_spans *spans = cuda_device_of(stream->device)->spans;
    struct trace *trace = stream->device->env->trace;
    if (spans == NULL || !spans->opened)
        return -1;
    int64_t claim = trace_claim(trace, span);
    if (claim < 0)
        return -1;
    int64_t mark = atomic_fetch_add_explicit(&spans->taken, 1, memory_order_relaxed);
    if (mark >= spans->room) {
        trace_leave_out(trace);
        return -1;
    }
    spans->pairs[mark].claim = claim;
    return mark;
}

void cuda_note_span(struct stream *stream, int64_t mark, bool end)
{
    if (mark >= 0)
        cuda_enqueued(stream,
                      cudaEventRecord(cuda_device_of(stream->device)->spans->pairs[mark].at[end],
                                      cuda_handle(stream)),
                      "a mark of the trace");
}

struct mark_args {
    int64_t mark;
    bool end;
};

static void mark_work(struct stream *stream, const void *args)
{
    const struct mark_args *a = args;
    if (!stream_failed(stream))
        cuda_note_span(stream, a->mark, a->end);
}

void cuda_span_mark(struct stream *stream, int64_t mark, bool end)
{
    struct mark_args args = {mark, end};
    cuda_issue(stream, mark_work, &args, sizeof args);
}

/* --- clocks --------------------------------------------------------------------------------- */

/* The best of several tries: the GPU reaches the event between two readings of the host's clock. */
static bool measure(struct device *device, struct anchor *anchor)
{
    struct cuda_spans *spans = cuda_device_of(device)->spans;
    double least = INFINITY;
    cudaSetDevice(cuda_device_of(device)->index);
    for (int i = 0; i < TRIES; i++) {
        double before = clock_seconds();
        if (cudaEventRecord(spans->trial, spans->stream) != cudaSuccess ||
            cudaEventSynchronize(spans->trial) != cudaSuccess) {
            (void)cudaGetLastError();
            return false;
        }
        double apart = clock_seconds() - before;
        if (apart >= least)
            continue;
        cudaEvent_t event = spans->trial;
        spans->trial = anchor->event;
        *anchor = (struct anchor){event, before + apart / 2};
        least = apart;
    }
    return true;
}

/* Milliseconds from one event to another; false while the second was not recorded or reached. */
static bool elapsed(cudaEvent_t from, cudaEvent_t to, double *milliseconds)
{
    float value;
    bool known = cudaEventElapsedTime(&value, from, to) == cudaSuccess;
    if (known)
        *milliseconds = (double)value;
    else
        (void)cudaGetLastError();
    return known;
}

void cuda_spans_open(struct device *device)
{
    struct cuda_spans *spans = cuda_device_of(device)->spans;
    spans->opened = spans->opened || measure(device, &spans->open);
}

static void warn_of_drift(struct device *device, double host, double gpu)
{
    double drift = fabs(host - gpu);
    if (drift > 1e-3 + 1e-3 * host)
        log_warn(device->env,
                 "the clocks of GPU %d and the host went apart by %.1f ms in the %.1f s of the "
                 "trace: times of the GPU are as uncertain; trace fewer steps",
                 cuda_device_of(device)->index, 1e3 * drift, host);
}

/* The host's time is linear between the anchors. */
void cuda_spans_close(struct device *device)
{
    struct cuda_spans *spans = cuda_device_of(device)->spans;
    double gpu, start, end;
    if (!spans->opened || !measure(device, &spans->close) ||
        !elapsed(spans->open.event, spans->close.event, &gpu) || gpu <= 0)
        return;
    double host = spans->close.seconds - spans->open.seconds, scale = host / gpu;
    warn_of_drift(device, host, 1e-3 * gpu);
    int64_t taken = atomic_load(&spans->taken);
    for (int64_t i = 0; i < taken && i < spans->room; i++) {
        const struct pair *pair = &spans->pairs[i];
        if (!elapsed(spans->open.event, pair->at[0], &start) ||
            !elapsed(spans->open.event, pair->at[1], &end))
            continue;
        trace_set_start(device->env->trace, pair->claim, spans->open.seconds + scale * start);
        trace_set_end(device->env->trace, pair->claim, spans->open.seconds + scale * end);
    }
}
