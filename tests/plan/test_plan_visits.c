/* What a picture of a plan is drawn from: every layout that a search simulates, and every pass of a
 * pipeline. */
#include "engine/timetable.h"
#include "plan/search_rig.h"

struct visited {
    int64_t count, exact;
    double fastest;
    size_t memory; /* limit */
};

static void visit_layout(void *user, const struct search_layout *layout, bool exact)
{
    struct visited *v = user;
    assert_true(layout->time.step > 0 && layout->needed_bytes > 0);
    assert_true(layout->needed_bytes <= v->memory);
    v->exact += exact;
    if (v->count++ == 0 || layout->time.step < v->fastest)
        v->fastest = layout->time.step;
}

static void test_a_search_shows_what_it_simulates(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 2e9);
    struct plan_request request = search_request_of(4, 4, 64, 1, 16);
    struct visited v = {.memory = 64 << 20};
    struct search_space space = {.request = &request,
                                 .global_batch = 16,
                                 .machine = &machine,
                                 .node = machine.comm.node,
                                 .memory = v.memory,
                                 .most = 2,
                                 .visit = visit_layout,
                                 .user = &v};
    struct search_result result;
    assert_int_equal(search_layouts(&env, &space, &result), STATUS_OK);
    assert_int_equal(v.count, result.timed);
    assert_true(v.exact >= result.count && v.exact <= v.count);
    assert_true(v.fastest == result.layouts[0].time.step);
    search_result_free(&env, &result);
    env_destroy(&env);
}

struct passes {
    int count[4][TIMETABLE_VERB_COUNT]; /* by PP stage */
    int p;
    double end; /* of the last pass of this PP stage */
    double last;
};

static void visit_pass(void *user, int p, const struct timetable_action *action, double begin,
                       double end)
{
    struct passes *passes = user;
    assert_true(p >= passes->p && begin >= 0 && end >= begin && end <= 1 + 1e-12);
    passes->end = p > passes->p ? 0 : passes->end;
    passes->p = p;
    passes->count[p][action->verb]++;
    passes->last = end > passes->last ? end : passes->last;
    if (timetable_is_message(action->verb))
        return;
    assert_true(begin >= passes->end - 1e-12); /* a rank does one thing at a time */
    passes->end = end;
}

static void test_a_pipeline_shows_every_pass(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request request = search_request_of(4, 4, 64, 1, 16);
    struct passes passes = {0};
    request.parallel.pp = 4;
    request.parallel.schedule = TIMETABLE_1F1B;
    assert_int_equal(plan_pipe_visit(&env, &request, 5, visit_pass, &passes), STATUS_OK);
    for (int p = 0; p < 4; p++) {
        assert_int_equal(passes.count[p][TIMETABLE_FORWARD], 5);
        assert_int_equal(passes.count[p][TIMETABLE_BACKWARD], 5);
        assert_int_equal(passes.count[p][TIMETABLE_SEND_ACTIVATION], p < 3 ? 5 : 0);
    }
    assert_true(passes.last > 1 - 1e-12);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_search_shows_what_it_simulates),
        cmocka_unit_test(test_a_pipeline_shows_every_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
