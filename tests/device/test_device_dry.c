/* Time on a dry device: when streams work and wait, and how overlapping calls slow compute down. */
#include <math.h>
#include "testing.h"
#include "device/device.h"

struct fixture {
    struct env env;
    struct device *device;
    struct stream *compute, *worker;
    struct event *event;
};

static void open_fixture(struct fixture *f, const char *backend, struct device_pace pace)
{
    f->env = testing_env(1);
    assert_ok(device_create(&f->env, backend, 0, &f->device));
    assert_ok(stream_create(f->device, "compute", &f->compute));
    assert_ok(stream_create_worker(f->device, "moves", &f->worker));
    assert_ok(event_create(f->device, &f->event));
    device_keep_time(f->device, &pace);
}

static void close_fixture(struct fixture *f)
{
    event_destroy(f->event);
    stream_destroy(f->worker);
    stream_destroy(f->compute);
    device_destroy(f->device);
    env_destroy(&f->env);
}

#define assert_near(a, b) assert_true(fabs((a) - (b)) < 1e-6)

static void test_no_time_without_a_pace(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct stream *stream;
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_ok(stream_create(device, "compute", &stream));
    stream_spend(stream, 5.0);
    assert_true(stream_clock(stream) == 0.0 && device_clock(device) == 0.0);
    stream_destroy(stream);
    device_destroy(device);
    env_destroy(&env);
}

/* A plain stream of the CPU is the host itself. A worker starts no earlier than its work was
 * enqueued. */
static void test_cpu_compute_blocks_the_host(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "dry", (struct device_pace){0});
    stream_spend(f.compute, 3.0);
    assert_near(device_clock(f.device), 3.0);
    stream_spend(f.worker, 2.0); /* 3 .. 5 */
    assert_near(stream_clock(f.worker), 5.0);
    assert_near(stream_clock(f.compute), 3.0);
    event_record(f.event, f.worker);
    stream_spend(f.compute, 1.0); /* 3 .. 4 */
    stream_wait(f.compute, f.event);
    assert_near(stream_clock(f.compute), 5.0);
    assert_near(stream_waited(f.compute), 1.0);
    stream_wait(f.compute, f.event);
    assert_near(stream_waited(f.compute), 1.0);
    stream_spend(f.worker, 4.0); /* 5 .. 9 */
    assert_ok(stream_sync(f.compute));
    assert_near(device_clock(f.device), 5.0);
    assert_ok(stream_sync(f.worker));
    assert_near(device_clock(f.device), 9.0);
    assert_near(stream_spent(f.compute), 4.0);
    close_fixture(&f);
}

/* A worker waits for compute: its work starts when the event has passed. */
static void test_worker_waits(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "dry", (struct device_pace){0});
    stream_wait(f.worker, f.event); /* never recorded: no effect */
    stream_spend(f.compute, 2.0);
    event_record(f.event, f.compute);
    stream_spend(f.compute, 2.0);
    stream_wait(f.worker, f.event); /* enqueued at 4; the event passed at 2 */
    assert_near(stream_waited(f.worker), 0.0);
    stream_spend(f.worker, 1.0);
    assert_near(stream_clock(f.worker), 5.0);
    close_fixture(&f);
}

/* All streams of a GPU overlap with the host, which blocks only when it synchronizes. */
static void test_gpu_overlaps_with_the_host(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "dry-gpu", (struct device_pace){0});
    stream_spend(f.compute, 3.0);
    assert_near(device_clock(f.device), 0.0);
    stream_spend(f.worker, 2.0); /* 0 .. 2: overlaps with compute */
    event_record(f.event, f.worker);
    stream_wait(f.compute, f.event);
    assert_near(stream_waited(f.compute), 0.0);
    event_record(f.event, f.compute);
    stream_wait(f.worker, f.event);
    stream_spend(f.worker, 1.0); /* 3 .. 4 */
    assert_near(stream_clock(f.worker), 4.0);
    assert_near(stream_waited(f.worker), 1.0);
    device_spend(f.device, 0.5); /* the host works while the GPU computes */
    stream_spend(f.compute, 1.0);
    assert_near(stream_clock(f.compute), 4.0);
    assert_ok(stream_sync(f.compute));
    assert_near(device_clock(f.device), 4.0);
    close_fixture(&f);
}

static void test_device_work_takes_time(void **state)
{
    (void)state;
    struct fixture f;
    float *a, *b;
    open_fixture(&f, "dry", (struct device_pace){.call = 1.0, .copy_bytes_per_second = 100.0});
    assert_ok(device_alloc(f.device, MEM_OTHER, "a", 400, &a));
    assert_ok(device_alloc(f.device, MEM_OTHER, "b", 400, &b));
    device_copy(f.compute, a, b, 400); /* 400 read, 400 written */
    assert_near(stream_clock(f.compute), 9.0);
    device_zero(f.compute, a, 400);
    assert_near(stream_clock(f.compute), 14.0);
    device_accumulate(f.compute, a, DTYPE_F32, b, DTYPE_BF16, 50); /* 200 + 200 + 100 */
    assert_near(stream_clock(f.compute), 20.0);
    double *sums;
    assert_ok(device_alloc(f.device, MEM_OTHER, "sums", 16, &sums));
    device_add_squares(f.compute, sums, b, DTYPE_BF16, 100, 1); /* 200 + 2 * 16 */
    assert_near(stream_clock(f.compute), 23.32);
    device_accumulate_squares(f.compute, a, b, DTYPE_BF16, 100, false, sums, 1); /* + 2 * 400 */
    assert_near(stream_clock(f.compute), 34.64);
    device_accumulate_squares(f.compute, a, b, DTYPE_BF16, 100, true, sums, 1); /* 200 + 16 + 400 */
    assert_near(stream_clock(f.compute), 41.8);
    device_free(f.device, sums);
    device_free(f.device, a);
    device_free(f.device, b);
    close_fixture(&f);
}

/* Both streams use the same cores: together they take as long as one after the other. */
static void test_full_theft(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "dry", (struct device_pace){.theft = 1.0});
    stream_spend(f.worker, 2.0);
    event_record(f.event, f.worker);
    stream_spend(f.compute, 3.0);
    stream_wait(f.compute, f.event);
    assert_near(stream_clock(f.compute), 5.0);
    assert_near(stream_waited(f.compute), 0.0);
    stream_spend(f.compute, 1.0);
    assert_near(stream_clock(f.compute), 6.0);
    close_fixture(&f);
}

/* Work that overlaps with a wait of compute does not slow it down, and compute cannot lose more
 * time than it overlaps. */
static void test_partial_theft(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "dry", (struct device_pace){.theft = 0.5});
    stream_spend(f.worker, 10.0);
    event_record(f.event, f.worker);
    stream_spend(f.compute, 1.0); /* at half speed, overlapping with the worker */
    assert_near(stream_clock(f.compute), 2.0);
    stream_wait(f.compute, f.event); /* 2 .. 10 */
    assert_near(stream_waited(f.compute), 8.0);
    stream_spend(f.compute, 1.0);
    assert_near(stream_clock(f.compute), 11.0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_time_without_a_pace),
        cmocka_unit_test(test_cpu_compute_blocks_the_host),
        cmocka_unit_test(test_worker_waits),
        cmocka_unit_test(test_gpu_overlaps_with_the_host),
        cmocka_unit_test(test_device_work_takes_time),
        cmocka_unit_test(test_full_theft),
        cmocka_unit_test(test_partial_theft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
