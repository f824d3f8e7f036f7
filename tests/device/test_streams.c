/* Streams keep their order, workers overlap with the caller, a full ring blocks the caller, events
 * make one stream wait for another, a failed stream stops working and blocks no other stream. */
#include <stdatomic.h>
#include "device/device.h"
#include "testing.h"
#include "threads.h"

struct rig {
    struct env env;
    struct device *device;
    struct stream *direct, *worker, *other; /* an inline stream and two workers */
    struct event *event;
};

static void rig_open(struct rig *rig, const char *backend)
{
    rig->env = testing_env(2);
    assert_ok(device_create(&rig->env, backend, 0, &rig->device));
    assert_ok(stream_create(rig->device, "direct", &rig->direct));
    assert_ok(stream_create_worker(rig->device, "worker", &rig->worker));
    assert_ok(stream_create_worker(rig->device, "other worker", &rig->other));
    assert_ok(event_create(rig->device, &rig->event));
}

static void rig_close(struct rig *rig)
{
    event_destroy(rig->event);
    stream_destroy(rig->other);
    stream_destroy(rig->worker);
    stream_destroy(rig->direct);
    device_destroy(rig->device);
    env_destroy(&rig->env);
}

/* --- tasks ---------------------------------------------------------------------------------- */

struct step {
    int *log; /* (count) */
    int *used;
    int value;
};

static void write_step(struct stream *stream, const void *args)
{
    const struct step *step = args;
    (void)stream;
    step->log[(*step->used)++] = step->value;
}

static void sleep_ms(struct stream *stream, const void *args)
{
    (void)stream;
    threads_nap(1e-3 * *(const int *)args);
}

/* A gate holds a worker until the test opens it. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
};
#define GATE                                                       \
    {                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false \
    }

static void pass_gate(struct stream *stream, const void *args)
{
    struct gate *gate = *(struct gate *const *)args;
    (void)stream;
    pthread_mutex_lock(&gate->lock);
    while (!gate->open)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static void open_gate(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static void enqueue_gate(struct stream *stream, struct gate *gate)
{
    stream_enqueue(stream, pass_gate, &gate, sizeof gate);
}

/* --- order ---------------------------------------------------------------------------------- */

enum { STEPS = 1000 };

static void test_order(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu");
    struct stream *streams[] = {rig.direct, rig.worker};
    for (int s = 0; s < 2; s++) {
        int log[STEPS], used = 0;
        for (int i = 0; i < STEPS; i++) {
            struct step step = {log, &used, i};
            stream_enqueue(streams[s], write_step, &step, sizeof step);
            if (s == 0)
                assert_int_equal(used, i + 1);
        }
        assert_ok(stream_sync(streams[s]));
        assert_int_equal(used, STEPS);
        for (int i = 0; i < STEPS; i++)
            assert_int_equal(log[i], i);
    }
    rig_close(&rig);
}

/* Arguments arrive complete, up to the maximum size; a task may have no arguments. */
static void sum_args(struct stream *stream, const void *args)
{
    const unsigned char *bytes = args;
    int *sum;
    (void)stream;
    memcpy(&sum, bytes, sizeof sum);
    for (size_t i = sizeof sum; i < STREAM_ARGS_BYTES; i++)
        *sum += bytes[i];
}

static void do_nothing(struct stream *stream, const void *args)
{
    (void)stream, (void)args;
}

static void test_arguments(void **state)
{
    (void)state;
    struct rig rig;
    unsigned char bytes[STREAM_ARGS_BYTES];
    int sum = 0, *pointer = &sum;
    rig_open(&rig, "cpu");
    memset(bytes, 1, sizeof bytes);
    memcpy(bytes, &pointer, sizeof pointer);
    stream_enqueue(rig.worker, sum_args, bytes, sizeof bytes);
    memset(bytes, 9, sizeof bytes); /* the arguments were copied */
    stream_enqueue(rig.worker, do_nothing, NULL, 0);
    assert_ok(stream_sync(rig.worker));
    assert_int_equal(sum, STREAM_ARGS_BYTES - sizeof pointer);
    rig_close(&rig);
}

/* Copies, zeros and sums keep their order among tasks; a task may use its own stream. */
static void add_in_task(struct stream *stream, const void *args)
{
    float *const *pair = args;
    device_accumulate(stream, pair[0], DTYPE_F32, pair[1], DTYPE_F32, 1);
}

static void test_work_on_worker(void **state)
{
    (void)state;
    enum { COUNT = 300001 };
    struct rig rig;
    struct gate gate = GATE;
    rig_open(&rig, "cpu");
    float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b);
    double *c = calloc(COUNT, sizeof *c);
    assert_true(a != NULL && b != NULL && c != NULL);
    for (int i = 0; i < COUNT; i++)
        a[i] = b[i] = (float)i;
    float *pair[2] = {b, a};
    enqueue_gate(rig.worker, &gate);
    device_zero(rig.worker, b, COUNT * sizeof *b);
    device_accumulate(rig.worker, b, DTYPE_F32, a, DTYPE_F32, COUNT); /* b = a */
    device_accumulate(rig.worker, b, DTYPE_F32, a, DTYPE_F32, COUNT); /* b = 2a */
    stream_enqueue(rig.worker, add_in_task, pair, sizeof pair);
    device_accumulate(rig.worker, c, DTYPE_F64, b, DTYPE_F32, COUNT);
    device_copy(rig.worker, a, b, COUNT * sizeof *a);
    assert_true(b[5] == 5); /* nothing has run yet */
    b[0] = 7;               /* must be overwritten by the zeroing */
    a[0] = 1;
    open_gate(&gate);
    assert_ok(stream_sync(rig.worker));
    assert_true(a[0] == 3 && c[0] == 3);
    for (int i = 1; i < COUNT; i++)
        assert_true(a[i] == 2 * (float)i && c[i] == 2 * (double)i);
    free(a);
    free(b);
    free(c);
    rig_close(&rig);
}

static void test_f64_sum(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu");
    double a[] = {1, 1e300}, b[] = {0x1p-52, 1e284};
    device_accumulate(rig.direct, a, DTYPE_F64, b, DTYPE_F64, 2);
    assert_true(a[0] == 1 + 0x1p-52 && a[1] == 1e300 + 1e284);
    rig_close(&rig);
}

/* --- overlap with the caller ---------------------------------------------------------------- */

static void meet(struct stream *stream, const void *args)
{
    (void)stream;
    pthread_barrier_wait(*(pthread_barrier_t *const *)args);
}

/* Two workers and the caller wait for each other, which would deadlock without overlap. */
static void test_overlap(void **state)
{
    (void)state;
    struct rig rig;
    pthread_barrier_t barrier, *all = &barrier;
    rig_open(&rig, "cpu");
    assert_int_equal(pthread_barrier_init(&barrier, NULL, 3), 0);
    for (int i = 0; i < 10; i++) {
        stream_enqueue(rig.worker, meet, &all, sizeof all);
        stream_enqueue(rig.other, meet, &all, sizeof all);
        pthread_barrier_wait(&barrier);
        assert_ok(stream_sync(rig.worker));
        assert_ok(stream_sync(rig.other));
    }
    pthread_barrier_destroy(&barrier);
    rig_close(&rig);
}

struct flood {
    struct stream *stream;
    int *log, *used;
    atomic_int enqueued, id;
};

static void *flood_main(void *arg)
{
    struct flood *flood = arg;
    atomic_store(&flood->id, threads_own_id());
    for (int i = 0; i < STEPS; i++) {
        struct step step = {flood->log, flood->used, i};
        stream_enqueue(flood->stream, write_step, &step, sizeof step);
        atomic_fetch_add(&flood->enqueued, 1);
    }
    return NULL;
}

static void test_ring_full(void **state)
{
    (void)state;
    struct rig rig;
    struct gate gate = GATE;
    int log[STEPS], used = 0;
    rig_open(&rig, "cpu");
    int64_t allocations = mem_allocation_count(rig.env.mem);
    struct flood flood = {.stream = rig.worker, .log = log, .used = &used};
    pthread_t thread;
    enqueue_gate(rig.worker, &gate);
    assert_int_equal(pthread_create(&thread, NULL, flood_main, &flood), 0);
    while (atomic_load(&flood.id) == 0)
        threads_nap(0.001);
    int before, now = -1;
    do { /* until the thread blocks in a call */
        before = now;
        threads_wait_until_asleep(atomic_load(&flood.id));
        now = atomic_load(&flood.enqueued);
    } while (now != before || now <= 10);
    assert_true(now < STEPS);
    open_gate(&gate);
    pthread_join(thread, NULL);
    assert_ok(stream_sync(rig.worker));
    assert_int_equal(used, STEPS);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(log[i], i);
    assert_int_equal(mem_allocation_count(rig.env.mem), allocations);
    rig_close(&rig);
}

static void test_destroy_waits(void **state)
{
    (void)state;
    struct rig rig;
    struct stream *stream;
    int ms = 30, log[4], used = 0;
    rig_open(&rig, "cpu");
    assert_ok(stream_create_worker(rig.device, "brief", &stream));
    stream_enqueue(stream, sleep_ms, &ms, sizeof ms);
    for (int i = 0; i < 4; i++) {
        struct step step = {log, &used, i};
        stream_enqueue(stream, write_step, &step, sizeof step);
    }
    stream_destroy(stream);
    assert_int_equal(used, 4);
    rig_close(&rig);
}

/* --- events --------------------------------------------------------------------------------- */

static const double held = 0.02; /* seconds, counted from when the waiting thread sleeps */

static void write_id(struct stream *stream, const void *args)
{
    (void)stream;
    atomic_store(*(atomic_int *const *)args, threads_own_id());
}

static void test_event_between_workers(void **state)
{
    (void)state;
    struct rig rig;
    struct gate gate = GATE;
    atomic_int id = 0, *id_place = &id;
    int log[2], used = 0;
    struct step first = {log, &used, 1}, second = {log, &used, 2};
    rig_open(&rig, "cpu");
    enqueue_gate(rig.worker, &gate);
    stream_enqueue(rig.worker, write_step, &first, sizeof first);
    event_record(rig.event, rig.worker);
    stream_enqueue(rig.other, write_id, &id_place, sizeof id_place);
    stream_wait(rig.other, rig.event);
    stream_enqueue(rig.other, write_step, &second, sizeof second);
    while (atomic_load(&id) == 0)
        threads_nap(0.001);
    threads_wait_until_asleep(atomic_load(&id)); /* it waits for nothing else */
    threads_nap(held);
    open_gate(&gate);
    assert_ok(stream_sync(rig.other));
    assert_ok(stream_sync(rig.worker));
    assert_int_equal(used, 2);
    assert_int_equal(log[0], 1);
    assert_true(stream_waited(rig.other) >= held);
    assert_true(stream_waited(rig.worker) == 0);
    rig_close(&rig);
}

struct caller {
    int id;
    atomic_bool waits; /* its next call is the wait */
};

static void block_caller(struct stream *stream, const void *args)
{
    struct caller *caller = *(struct caller *const *)args;
    (void)stream;
    while (!atomic_load(&caller->waits))
        threads_nap(0.001);
    threads_wait_until_asleep(caller->id);
    threads_nap(held);
}

static void test_event_blocks_caller(void **state)
{
    (void)state;
    struct rig rig;
    struct caller caller = {.id = threads_own_id()}, *pointer = &caller;
    int log[1], used = 0;
    struct step step = {log, &used, 1};
    rig_open(&rig, "cpu");
    stream_wait(rig.direct, rig.event); /* never recorded */
    assert_true(stream_waited(rig.direct) == 0);
    stream_enqueue(rig.worker, block_caller, &pointer, sizeof pointer);
    stream_enqueue(rig.worker, write_step, &step, sizeof step);
    event_record(rig.event, rig.worker);
    atomic_store(&caller.waits, true);
    stream_wait(rig.direct, rig.event);
    assert_int_equal(used, 1);
    assert_true(stream_waited(rig.direct) >= held);
    double waited = stream_waited(rig.direct);
    stream_wait(rig.direct, rig.event); /* already passed */
    assert_true(stream_waited(rig.direct) == waited);
    rig_close(&rig);
}

/* A wait is for the latest record at the time of the wait; recording again resets the event. */
static void test_event_recorded_again(void **state)
{
    (void)state;
    struct rig rig;
    int log[STEPS], used = 0;
    rig_open(&rig, "cpu");
    for (int i = 0; i < STEPS; i++) {
        struct step step = {log, &used, i};
        stream_enqueue(rig.worker, write_step, &step, sizeof step);
        event_record(rig.event, rig.worker);
        if (i % 2 == 0) {
            stream_wait(rig.direct, rig.event);
            assert_int_equal(used, i + 1);
        }
    }
    rig_close(&rig);
}

/* A later record does not delay a wait that was enqueued before it. */
static void test_event_earlier_record(void **state)
{
    (void)state;
    struct rig rig;
    struct gate gate = GATE;
    rig_open(&rig, "cpu");
    event_record(rig.event, rig.worker);
    stream_wait(rig.other, rig.event);
    enqueue_gate(rig.worker, &gate);
    event_record(rig.event, rig.worker);
    assert_ok(stream_sync(rig.other));
    open_gate(&gate);
    rig_close(&rig);
}

static void test_event_destroy_waits(void **state)
{
    (void)state;
    struct rig rig;
    struct event *event;
    int ms = 30;
    rig_open(&rig, "cpu");
    assert_ok(event_create(rig.device, &event));
    stream_enqueue(rig.worker, sleep_ms, &ms, sizeof ms);
    event_record(event, rig.worker);
    stream_wait(rig.other, event);
    event_destroy(event);
    event_destroy(NULL);
    rig_close(&rig);
}

/* --- failure -------------------------------------------------------------------------------- */

static void fail_task(struct stream *stream, const void *args)
{
    (void)args;
    stream_fail(stream, STATUS_DEVICE);
}

/* After a failure, work and waits are skipped, tasks and records are not, and nothing hangs. */
static void test_failed(void **state)
{
    (void)state;
    struct rig rig;
    struct gate gate = GATE;
    struct event *never;
    int log[2], used = 0, from = 5, to = 3;
    rig_open(&rig, "cpu");
    assert_ok(event_create(rig.device, &never));
    struct step step = {log, &used, 1};
    enqueue_gate(rig.other, &gate);
    event_record(never, rig.other); /* passes at the end of the test */
    stream_enqueue(rig.worker, fail_task, NULL, 0);
    device_copy(rig.worker, &to, &from, sizeof to);
    stream_wait(rig.worker, never);
    stream_enqueue(rig.worker, write_step, &step, sizeof step);
    event_record(rig.event, rig.worker);
    stream_wait(rig.direct, rig.event);
    assert_int_equal(used, 1);
    assert_int_equal(to, 3);
    assert_int_equal(stream_sync(rig.worker), STATUS_DEVICE);
    stream_fail(rig.direct, STATUS_IO);
    stream_wait(rig.direct, never);
    open_gate(&gate);
    event_destroy(never);
    assert_ok(stream_sync(rig.other));
    rig_close(&rig);
}

static void test_dry(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "dry");
    stream_enqueue(rig.worker, fail_task, NULL, 0);
    event_record(rig.event, rig.worker);
    stream_wait(rig.direct, rig.event);
    assert_ok(stream_sync(rig.worker));
    assert_true(stream_waited(rig.direct) == 0);
    rig_close(&rig);
}

static enum status build(struct env *env)
{
    enum status st;
    struct device *device;
    struct stream *stream;
    struct event *event;
    TRY(device_create(env, "cpu", 0, &device));
    TRY_OR(undo_device, stream_create_worker(device, "worker", &stream));
    TRY_OR(undo_stream, event_create(device, &event));
    event_destroy(event);
undo_stream:
    stream_destroy(stream);
undo_device:
    device_destroy(device);
    return st;
}

static void test_failing_allocations(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    int64_t n = 1;
    for (;; n++) {
        mem_fail_at(env.mem, n);
        enum status st = build(&env);
        assert_int_equal(mem_total(env.mem), 0);
        if (st == STATUS_OK)
            break;
        assert_int_equal(st, STATUS_MEMORY);
    }
    assert_int_equal(n, 5); /* device, stream, ring, event */
    env_destroy(&env);
}

/* A thread may wait in a way of its own; several may wait at once. */
static void test_awaited(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu");
    assert_false(stream_is_awaited(rig.worker));
    stream_await_begin(rig.worker);
    stream_await_begin(rig.worker);
    assert_ok(stream_sync(rig.worker));
    stream_await_end(rig.worker);
    assert_true(stream_is_awaited(rig.worker));
    assert_false(stream_is_awaited(rig.other));
    stream_await_end(rig.worker);
    assert_false(stream_is_awaited(rig.worker));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_work_on_worker),
        cmocka_unit_test(test_f64_sum),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_ring_full),
        cmocka_unit_test(test_destroy_waits),
        cmocka_unit_test(test_event_between_workers),
        cmocka_unit_test(test_event_blocks_caller),
        cmocka_unit_test(test_event_recorded_again),
        cmocka_unit_test(test_event_earlier_record),
        cmocka_unit_test(test_event_destroy_waits),
        cmocka_unit_test(test_failed),
        cmocka_unit_test(test_awaited),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
