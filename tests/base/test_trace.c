/* A trace records spans that begin while it is open, in the order of its lanes, and writes valid
 * JSON. */
#include <jansson.h>
#include <pthread.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/trace.h"
#include "testing.h"

enum { THREADS = 4, SPANS = 500 };

static const struct trace_span judge = {.lane = &trace_lane_compute, .name = "judge"};

static json_t *written(struct trace *trace)
{
    char folder[] = "/tmp/sifr-trace-XXXXXX", path[64];
    json_error_t error;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/trace.json", folder);
    assert_ok(trace_write(trace, 3, "rank 3 (\"here\")", path));
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fail_msg("line %d: %s", error.line, error.text);
    unlink(path);
    rmdir(folder);
    return root;
}

/* Counts spans, not the events that name lanes. */
static int span_count(json_t *root)
{
    int count = 0;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        count += strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0;
    }
    return count;
}

static json_t *find(json_t *root, const char *name)
{
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "name")), name) == 0)
            return event;
    }
    fail_msg("no event '%s'", name);
    return NULL;
}

static void test_without_a_trace(void **state)
{
    (void)state;
    assert_true(trace_begin(NULL) < 0);
    trace_end(NULL, -1.0, &judge);
}

static void test_only_the_window_is_kept(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct trace *trace;
    assert_ok(trace_create(&env, 8, &trace));
    trace_end(trace, trace_begin(trace), &judge); /* while the trace is closed */
    trace_open(trace, true);
    double start = trace_begin(trace);
    trace_open(trace, false);
    trace_end(trace, start, &judge); /* begun while the trace was open */
    json_t *root = written(trace);
    assert_int_equal(span_count(root), 1);
    json_decref(root);
    trace_destroy(trace);
    env_destroy(&env);
}

static void test_event_fields(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct trace *trace;
    assert_ok(trace_create(&env, 8, &trace));
    trace_open(trace, true);
    double start = trace_begin(trace);
    trace_set_origin(trace, start - 1.5);
    trace_end(trace, start,
              &(struct trace_span){.lane = &trace_lane_gather,
                                   .category = "comm",
                                   .name = "gather",
                                   .object = "block 3",
                                   .number = 41,
                                   .bytes = 1024});
    trace_end(
        trace, start,
        &(struct trace_span){.lane = &trace_lane_compute, .name = "block 3", .object = "backward"});
    json_t *root = written(trace), *gather = find(root, "gather block 3"),
           *pass = find(root, "block 3 backward");
    assert_string_equal(json_string_value(json_object_get(gather, "cat")), "comm");
    assert_int_equal(json_integer_value(json_object_get(gather, "pid")), 3);
    assert_int_equal(json_integer_value(json_object_get(gather, "tid")), trace_lane_gather.row);
    assert_true(json_number_value(json_object_get(gather, "ts")) == 1500000.0);
    assert_true(json_number_value(json_object_get(gather, "dur")) >= 0);
    json_t *args = json_object_get(gather, "args");
    assert_int_equal(json_integer_value(json_object_get(args, "bytes")), 1024);
    assert_int_equal(json_integer_value(json_object_get(args, "seq")), 41);
    assert_string_equal(json_string_value(json_object_get(pass, "cat")), "compute");
    assert_null(json_object_get(pass, "args"));
    json_t *process = json_object_get(find(root, "process_name"), "args");
    assert_string_equal(json_string_value(json_object_get(process, "name")), "rank 3 (\"here\")");
    json_decref(root);
    trace_destroy(trace);
    env_destroy(&env);
}

static bool has_lane(json_t *root, const char *name)
{
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const char *what = json_string_value(json_object_get(event, "name"));
        const char *lane =
            json_string_value(json_object_get(json_object_get(event, "args"), "name"));
        if (strcmp(what, "thread_name") == 0 && strcmp(lane, name) == 0)
            return true;
    }
    return false;
}

/* Lanes of other layers are named only if they, or a lane of their group, have a span. */
static void test_unused_lanes_are_not_named(void **state)
{
    static const struct trace_lane lane_tensor = {.row = 9, .word = "tensor"};
    static const struct trace_lane lanes[2] = {
        {.row = 4, .word = "stage", .group = lanes, .group_count = 2},
        {.row = 8, .word = "grads out", .group = lanes, .group_count = 2}};
    static const struct trace_span tensor = {.lane = &lane_tensor, .name = "tensor"};
    static const struct trace_span stage = {.lane = &lanes[0], .name = "F0"};
    (void)state;
    for (int used = 0; used < 4; used++) {
        struct env env = testing_env(1);
        struct trace *trace;
        assert_ok(trace_create(&env, 8, &trace));
        trace_open(trace, true);
        if (used & 1)
            trace_end(trace, trace_begin(trace), &tensor);
        if (used & 2)
            trace_end(trace, trace_begin(trace), &stage);
        json_t *root = written(trace);
        assert_true(has_lane(root, "host"));
        assert_int_equal(has_lane(root, "tensor"), used & 1);
        assert_int_equal(has_lane(root, "stage"), used >> 1);
        assert_int_equal(has_lane(root, "grads out"), used >> 1);
        json_decref(root);
        trace_destroy(trace);
        env_destroy(&env);
    }
}

/* A claimed span is written once it has an end, also after the window; copies show their bytes. */
static void test_claims(void **state)
{
    static const struct trace_lane lane_in = {.row = 11, .word = "in"};
    const struct trace_span copy = {.lane = &lane_in, .name = "moments", .bytes = 4096};
    (void)state;
    struct env env = testing_env(1);
    struct trace *trace;
    assert_int_equal(trace_claim(NULL, &copy), -1);
    assert_ok(trace_create(&env, 2, &trace));
    assert_int_equal(trace_claim(trace, &copy), -1); /* closed */
    trace_open(trace, true);
    int64_t claim = trace_claim(trace, &copy);
    assert_int_equal(trace_claim(trace, &judge), 1);  /* never ends */
    assert_int_equal(trace_claim(trace, &judge), -1); /* full */
    trace_leave_out(trace);
    assert_int_equal(trace_left_out(trace), 2);
    trace_open(trace, false);
    trace_set_start(trace, claim, 2.0);
    json_t *root = written(trace);
    assert_int_equal(span_count(root), 0);
    json_decref(root);
    trace_set_end(trace, claim, 3.5);
    root = written(trace);
    assert_int_equal(span_count(root), 1);
    json_t *span = find(root, "moments"), *args = json_object_get(span, "args");
    assert_true(json_number_value(json_object_get(span, "ts")) == 2e6);
    assert_true(json_number_value(json_object_get(span, "dur")) == 1.5e6);
    assert_int_equal(json_integer_value(json_object_get(args, "bytes")), 4096);
    assert_int_equal(json_object_size(args), 1);
    json_decref(root);
    trace_destroy(trace);
    env_destroy(&env);
}

/* Viewers draw spans of one thread only if they are nested or follow each other. */
static void test_overlapping_spans(void **state)
{
    static const struct trace_lane lane_in = {.row = 11, .word = "in"};
    static const struct {
        const char *name;
        double start, end;
        int layer;
    } spans[] = {{"child", 2, 3, 0}, {"whole", 1, 5, 0},   {"first", 1, 2, 0}, {"across", 4, 6, 1},
                 {"late", 5, 7, 0},  {"third", 5.5, 8, 2}, {"again", 8, 9, 0}};
    enum { COUNT = sizeof spans / sizeof *spans };
    (void)state;
    struct env env = testing_env(1);
    struct trace *trace;
    assert_ok(trace_create(&env, COUNT, &trace));
    trace_open(trace, true);
    for (int i = 0; i < COUNT; i++) {
        const struct trace_span span = {.lane = &lane_in, .name = spans[i].name};
        int64_t claim = trace_claim(trace, &span);
        trace_set_start(trace, claim, spans[i].start);
        trace_set_end(trace, claim, spans[i].end);
    }
    json_t *root = written(trace);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(json_integer_value(json_object_get(find(root, spans[i].name), "tid")),
                         lane_in.row + TRACE_ROWS * spans[i].layer);
    assert_true(has_lane(root, "in") && has_lane(root, "in 2") && has_lane(root, "in 3"));
    assert_false(has_lane(root, "in 4"));
    json_decref(root);
    trace_destroy(trace);
    env_destroy(&env);
}

static void *record(void *argument)
{
    struct trace *trace = argument;
    for (int i = 0; i < SPANS; i++)
        trace_end(trace, trace_begin(trace), &judge);
    return NULL;
}

static void test_many_threads_and_a_full_trace(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct trace *trace;
    pthread_t threads[THREADS];
    assert_ok(trace_create(&env, THREADS * SPANS - 100, &trace));
    int64_t allocations = mem_allocation_count(env.mem);
    trace_open(trace, true);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record, trace), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(mem_allocation_count(env.mem), allocations);
    assert_int_equal(trace_left_out(trace), 100);
    json_t *root = written(trace);
    assert_int_equal(span_count(root), THREADS * SPANS - 100);
    json_decref(root);
    trace_destroy(trace);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_trace),
        cmocka_unit_test(test_only_the_window_is_kept),
        cmocka_unit_test(test_event_fields),
        cmocka_unit_test(test_unused_lanes_are_not_named),
        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_overlapping_spans),
        cmocka_unit_test(test_many_threads_and_a_full_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
