/* A traced run on two ranks writes one file per rank with the passes, collectives and waits of the
 * requested steps and no others. Wrong ranges are refused. */
#include <jansson.h>
#include "ranks_rig.h"
#include "train/run/tracing.h"

enum { RANKS = 2 };

static json_t *read_events(struct scratch *s, const char *folder, int rank)
{
    char path[160];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s/trace-rank-%d.json", s->folder, folder, rank);
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    json_t *events = json_incref(json_object_get(root, "traceEvents"));
    json_decref(root);
    return events;
}

static double number_of(json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static int count_named(json_t *events, const struct trace_lane *lane, const char *name)
{
    size_t i;
    json_t *event;
    int count = 0;
    json_array_foreach(events, i, event)
    {
        count += strcmp(json_string_value(json_object_get(event, "name")), name) == 0 &&
                 (int)number_of(event, "tid") % TRACE_ROWS == lane->row;
    }
    return count;
}

/* Perfetto does not draw spans that overlap on one lane; nested spans are fine. */
static void check_lanes(json_t *events)
{
    size_t i, j;
    json_t *a, *b;
    json_array_foreach(events, i, a) json_array_foreach(events, j, b)
    {
        double a_start = number_of(a, "ts"), a_end = a_start + number_of(a, "dur");
        double b_start = number_of(b, "ts"), b_end = b_start + number_of(b, "dur");
        if (i == j || !json_object_get(a, "ts") || !json_object_get(b, "ts") ||
            number_of(a, "tid") != number_of(b, "tid"))
            continue;
        if (a_start < b_start && b_start < a_end - 0.01 && a_end < b_end - 0.01)
            fail_msg("'%s' and '%s' overlap", json_string_value(json_object_get(a, "name")),
                     json_string_value(json_object_get(b, "name")));
    }
}

static void run_traced(struct run_rig *rig, const char *folder, const char *trace,
                       struct rank_run *runs)
{
    rank_runs_fill(rig, folder, runs, RANKS);
    for (int r = 0; r < RANKS; r++)
        runs[r].place.trace = trace;
    rank_runs(&rig->scratch.env, runs, RANKS);
}

static void test_stage_3_is_traced(void **state)
{
    struct run_rig rig;
    struct rank_run runs[RANKS];
    (void)state;
    rig_open(&rig);
    rig_config(&rig, "train.steps=5 zero.stage=3 train.eval_every=3 train.eval_batches=2");
    run_traced(&rig, "run", "2:3", runs);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(runs[r].status, STATUS_OK);
        json_t *events = read_events(&rig.scratch, "run", r);
        assert_int_equal(count_named(events, &trace_lane_host, "step"), 2);
        assert_int_equal(count_named(events, &trace_lane_host, "evaluation"), 1);
        assert_int_equal(count_named(events, &trace_lane_compute, "block 1 backward"), 2);
        assert_int_equal(count_named(events, &trace_lane_compute, "block 0 forward"),
                         3); /* and evaluation */
        assert_int_equal(count_named(events, &trace_lane_compute, "head loss"), 2);
        assert_int_equal(count_named(events, &trace_lane_compute, "judge"), 2);
        assert_int_equal(count_named(events, &trace_lane_compute, "optimizer"), 2);
        assert_int_equal(count_named(events, &trace_lane_reduce, "reduce block 1"), 2);
        assert_int_equal(count_named(events, &trace_lane_gather, "gather block 0"), 5);
        check_lanes(events);
        json_decref(events);
    }
    rig_close(&rig);
}

/* The trace includes what the last traced step leaves in flight: in stage 1, the gathers of the new
 * parameters. */
static void test_stage_1_is_traced_to_the_last_gather(void **state)
{
    struct run_rig rig;
    struct rank_run runs[RANKS];
    (void)state;
    rig_open(&rig);
    rig_config(&rig, "train.steps=3 zero.stage=1 train.eval_batches=1");
    run_traced(&rig, "run", "3:9", runs);
    json_t *events = read_events(&rig.scratch, "run", 1);
    assert_int_equal(count_named(events, &trace_lane_host, "step"), 1);
    int gathers = count_named(events, &trace_lane_gather, "gather block 1");
    assert_true(gathers == 1 || gathers == 2); /* step 2's may begin inside the window */
    json_decref(events);
    rig_close(&rig);
}

static void test_wrong_ranges_are_refused(void **state)
{
    static const char *const bad[] = {"x", "5:", ":8", "8:5", "0:3", "-1:3", "1:2:3", "1: 2", "21"};
    struct run_rig rig;
    struct tracing tracing;
    struct device *device;
    (void)state;
    rig_open(&rig);
    assert_ok(device_create(&rig.scratch.env, "cpu", 0, &device));
    rig_config(&rig, "train.steps=20");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tracing_start(&rig.scratch.env, bad[i], &rig.config, device, &tracing),
                         STATUS_CONFIG);
        scratch_expect(&rig.scratch, "--trace");
    }
    assert_int_equal(tracing_start(&rig.scratch.env, "", &rig.config, device, &tracing), STATUS_OK);
    assert_null(rig.scratch.env.trace);
    assert_int_equal(tracing_start(&rig.scratch.env, "7:7", &rig.config, device, &tracing),
                     STATUS_OK);
    assert_non_null(rig.scratch.env.trace);
    tracing_stop(&tracing);
    assert_null(rig.scratch.env.trace);
    device_destroy(device);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stage_3_is_traced),
        cmocka_unit_test(test_stage_1_is_traced_to_the_last_gather),
        cmocka_unit_test(test_wrong_ranges_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
