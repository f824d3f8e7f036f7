/* Spans of the trace are timed when their stream reaches them, not when they are enqueued: on the
 * CPU, or on the device that SIFR_TEST_DEVICE names. A recording contains none, a full table counts
 * what it leaves out, and nothing is allocated. */
#include "base/clock.h"
#include "gpu.h"
#include "spans.h"
#include "threads.h"

enum { SPANS = 64 };
static const double nap = 0.05, tolerance = 0.02; /* of two clocks that are compared */

struct rig {
    struct env env;
    struct device *device;
    struct stream *compute, *copies; /* plain */
    struct stream *worker;
};

static void rig_open(struct rig *rig, int64_t pairs)
{
    *rig = (struct rig){.env = testing_env(1)};
    assert_ok(device_create(&rig->env, test_device(), 0, &rig->device));
    assert_ok(trace_create(&rig->env, SPANS, &rig->env.trace));
    assert_ok(device_spans_create(rig->device, pairs));
    assert_ok(stream_create(rig->device, "compute", &rig->compute));
    assert_ok(stream_create(rig->device, "copies", &rig->copies));
    assert_ok(stream_create_worker(rig->device, "worker", &rig->worker));
}

static void rig_trace(struct rig *rig)
{
    device_spans_open(rig->device);
    trace_open(rig->env.trace, true);
}

static json_t *rig_written(struct rig *rig)
{
    assert_ok(stream_sync(rig->worker));
    assert_ok(stream_sync(rig->copies));
    assert_ok(stream_sync(rig->compute));
    device_spans_close(rig->device);
    return spans_written(rig->env.trace);
}

static void rig_close(struct rig *rig)
{
    stream_destroy(rig->worker);
    stream_destroy(rig->copies);
    stream_destroy(rig->compute);
    device_destroy(rig->device);
    trace_destroy(rig->env.trace);
    env_destroy(&rig->env);
}

static int64_t begin(struct stream *stream, const char *name)
{
    return stream_span_begin(stream,
                             &(struct trace_span){.lane = &trace_lane_compute, .name = name});
}

static void point(struct stream *stream, const char *name)
{
    stream_span_end(stream, begin(stream, name));
}

static void sleep_task(struct stream *stream, const void *args)
{
    (void)stream;
    (void)args;
    threads_nap(nap);
}

/* --- times ---------------------------------------------------------------------------------- */

/* A worker sleeps before the first span and inside the second. The caller enqueues at once. */
static void test_when_a_worker_reaches_it(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig, SPANS);
    int64_t allocations = mem_allocation_count(rig.env.mem);
    rig_trace(&rig);
    double before = clock_seconds();
    stream_enqueue(rig.worker, sleep_task, NULL, 0);
    point(rig.worker, "first");
    int64_t mark = begin(rig.worker, "second");
    stream_enqueue(rig.worker, sleep_task, NULL, 0);
    stream_span_end(rig.worker, mark);
    assert_ok(stream_sync(rig.worker));
    double after = clock_seconds();
    assert_int_equal(mem_allocation_count(rig.env.mem), allocations);
    json_t *events = rig_written(&rig);
    struct span_times first = spans_find(events, "compute", "first"),
                      second = spans_find(events, "compute", "second");
    assert_true(first.start > before + nap - tolerance);
    assert_true(first.end <= second.start + 1e-6);
    assert_true(second.end - second.start > nap - tolerance);
    assert_true(second.end < after + tolerance);
    json_decref(events);
    rig_close(&rig);
}

/* The fake GPU sleeps before each item of work, for 0.1 ms on average, while the host enqueues. So
 * a span around many items is long, whatever the load of the machine. On any device, what follows a
 * wait begins after what it waits for. */
static void test_order_between_plain_streams(void **state)
{
    enum { COPIES = 400, BYTES = 1 << 20 };
    struct rig rig;
    struct event *event;
    struct device_info info;
    char *a, *b;
    (void)state;
    rig_open(&rig, SPANS);
    device_look(test_device(), 0, &info);
    assert_ok(event_create(rig.device, &event));
    assert_ok(device_alloc(rig.device, MEM_SCRATCH, "a", BYTES, &a));
    assert_ok(device_alloc(rig.device, MEM_SCRATCH, "b", BYTES, &b));
    rig_trace(&rig);
    int64_t mark = begin(rig.copies, "copies");
    for (int i = 0; i < COPIES; i++)
        device_copy(rig.copies, i % 2 ? a : b, i % 2 ? b : a, BYTES);
    stream_span_end(rig.copies, mark);
    event_record(event, rig.copies);
    stream_wait(rig.compute, event);
    point(rig.compute, "after the wait");
    json_t *events = rig_written(&rig);
    struct span_times copies = spans_find(events, "compute", "copies");
    struct span_times next = spans_find(events, "compute", "after the wait");
    assert_true(copies.end <= next.start + 1e-6);
    assert_true(copies.start < copies.end);
    if (strcmp(info.name, "a GPU made of threads") == 0)
        assert_true(copies.end - copies.start > 0.02);
    json_decref(events);
    device_free(rig.device, a);
    device_free(rig.device, b);
    event_destroy(event);
    rig_close(&rig);
}

/* --- what is traced ------------------------------------------------------------------------- */

static void test_only_the_window_is_kept(void **state)
{
    struct rig rig;
    (void)state;
    rig_open(&rig, SPANS);
    point(rig.compute, "early");
    rig_trace(&rig);
    int64_t mark = begin(rig.compute, "begun");
    trace_open(rig.env.trace, false);
    stream_span_end(rig.compute, mark);
    point(rig.compute, "late");
    begin(rig.compute, "never ended");
    json_t *events = rig_written(&rig);
    assert_int_equal(spans_find(events, "compute", "begun").count, 1);
    assert_int_equal(spans_find(events, "compute", "early").count +
                         spans_find(events, "compute", "late").count,
                     0);
    assert_int_equal(spans_find(events, "compute", "never ended").count, 0);
    json_decref(events);
    rig_close(&rig);
}

/* A GPU has as many pairs of events as it was asked for; the CPU needs none. */
static void test_full_table(void **state)
{
    enum { PAIRS = 4, ASKED = 10 };
    struct rig rig;
    (void)state;
    rig_open(&rig, PAIRS);
    rig_trace(&rig);
    for (int i = 0; i < ASKED; i++)
        point(i % 2 ? rig.worker : rig.compute, "point");
    json_t *events = rig_written(&rig);
    assert_int_equal(spans_find(events, "compute", "point").count, test_on_cpu() ? ASKED : PAIRS);
    assert_int_equal(trace_left_out(rig.env.trace), test_on_cpu() ? 0 : ASKED - PAIRS);
    json_decref(events);
    rig_close(&rig);
}

/* A recording cannot contain timed events. Spans go around its replays. */
static void test_recordings_contain_none(void **state)
{
    struct rig rig;
    char *block;
    (void)state;
    rig_open(&rig, SPANS);
    assert_ok(device_alloc(rig.device, MEM_SCRATCH, "block", 64, &block));
    rig_trace(&rig);
    if (stream_record_begin(rig.compute)) {
        assert_int_equal(begin(rig.compute, "inside"), -1);
        device_zero(rig.compute, block, 64);
        struct recording *recording = stream_record_end(rig.compute);
        assert_non_null(recording);
        int64_t mark = begin(rig.compute, "replay");
        stream_replay(rig.compute, recording);
        stream_span_end(rig.compute, mark);
        json_t *events = rig_written(&rig);
        assert_int_equal(spans_find(events, "compute", "replay").count, 1);
        assert_int_equal(spans_find(events, "compute", "inside").count, 0);
        json_decref(events);
        recording_destroy(rig.device, recording);
    } else {
        assert_true(test_on_cpu());
    }
    device_free(rig.device, block);
    rig_close(&rig);
}

/* Waits of the caller are on the lane of the one that computes. */
static void test_lane_of_waits(void **state)
{
    struct rig rig;
    struct event *event;
    (void)state;
    rig_open(&rig, SPANS);
    assert_ok(event_create(rig.device, &event));
    rig_trace(&rig);
    stream_enqueue(rig.worker, sleep_task, NULL, 0);
    event_record(event, rig.worker);
    stream_wait(rig.compute, event);
    json_t *events = rig_written(&rig);
    assert_int_equal(spans_find(events, test_on_cpu() ? "compute" : "host", "wait").count, 1);
    json_decref(events);
    event_destroy(event);
    rig_close(&rig);
}

static void test_dry_devices_have_none(void **state)
{
    struct env env = testing_env(1);
    struct device *device;
    struct stream *stream;
    (void)state;
    assert_ok(device_create(&env, "dry-gpu", 0, &device));
    assert_ok(stream_create(device, "compute", &stream));
    assert_ok(trace_create(&env, SPANS, &env.trace));
    assert_ok(device_spans_create(device, SPANS));
    device_spans_open(device);
    trace_open(env.trace, true);
    assert_int_equal(begin(stream, "pass"), -1);
    stream_span_end(stream, -1);
    device_spans_close(device);
    stream_destroy(stream);
    device_destroy(device);
    trace_destroy(env.trace);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when_a_worker_reaches_it),
        cmocka_unit_test(test_order_between_plain_streams),
        cmocka_unit_test(test_only_the_window_is_kept),
        cmocka_unit_test(test_full_table),
        cmocka_unit_test(test_recordings_contain_none),
        cmocka_unit_test(test_lane_of_waits),
        cmocka_unit_test(test_dry_devices_have_none),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
