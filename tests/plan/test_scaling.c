/* Rows against the search of a single layout; ranks that have no layout; growing without a machine;
 * where more ranks stop to pay. */
#include <math.h>

#include "plan/scaling.h"
#include "plan/search_rig.h"

static struct plan_request request_of(int ranks)
{
    return search_request_of(ranks, 4, 128, 2, 8);
}

static struct search_space space_of(const struct plan_request *request)
{
    static struct machine_profile machine;
    machine = search_machine(1e10, 2e9);
    return (struct search_space){
        .request = request,
        .global_batch = 16,
        .machine = &machine,
        .node = 4,
        .fixed = {.pp = true, .recompute = true, .micro_batch = true, .regather = true},
        .most = 1};
}

/* Counts the drawings of the rows; those of a search within a row add nothing to `done`. */
static void count_rows(void *user, struct progress_task *task, double now)
{
    int *rows = user;
    assert_true(now >= task->begin && task->done < task->total);
    assert_string_equal(task->noun, "numbers of ranks");
    *rows = (int)task->done + 1;
}

static double step_of(struct env *env, struct search_space space, int ranks, int64_t batch)
{
    struct plan_request request = *space.request;
    struct search_result result;
    request.ranks = ranks;
    space.request = &request;
    space.global_batch = batch;
    assert_int_equal(search_layouts(env, &space, &result), STATUS_OK);
    assert_int_equal(result.count, 1);
    double step = result.layouts[0].time.step;
    search_result_free(env, &result);
    return step;
}

/* Micro-batches of 2 on 6 ranks: batches of 2 * 3 * 2^k, and the given one. */
static void test_rows_are_what_the_search_finds(void **state)
{
    static const int ranks[] = {1, 2, 4, 6};
    static const int64_t units[] = {2, 2, 2, 6};
    struct env env = testing_env(1);
    struct plan_request request = request_of(6);
    struct search_space space = space_of(&request);
    const struct batch_law law = batch_law_of(40, 16, 1000);
    struct scaling scaling;
    int told = 0;
    const struct progress_view view = {.show = count_rows, .user = &told};
    (void)state;
    env.view = &view;
    assert_int_equal(scaling_make(&env, &space, &law, &scaling), STATUS_OK);
    env.view = NULL;
    assert_int_equal(scaling.count, 4);
    assert_int_equal(told, 4);
    assert_true(scaling.fits && scaling.searched.timed > 0 && scaling.searched.parameters > 0);
    for (int i = 0; i < 4; i++) {
        const struct scaling_row *row = &scaling.rows[i];
        double least = 1000 * step_of(&env, space, ranks[i], 16);
        assert_int_equal(row->ranks, ranks[i]);
        assert_int_equal(row->given.batch, 16);
        assert_true(fabs(row->given.seconds - least) < 1e-9 * least);
        for (int64_t b = units[i]; b <= 400; b *= 2)
            least =
                fmin(least, batch_law_steps(&law, (double)b) * step_of(&env, space, ranks[i], b));
        assert_true(fabs(row->best.seconds - least) < 1e-9 * least);
        assert_true(row->best.batch == 16 || row->best.batch % units[i] == 0);
        assert_int_equal(row->best.layout.request.ranks, ranks[i]);
        assert_int_equal(row->best.layout.request.engine.micro_batches * 2, row->best.batch);
    }
    env_destroy(&env);
}

static void test_rows_without_a_layout(void **state)
{
    struct env env = testing_env(1);
    struct plan_request request = request_of(4);
    struct search_space space = space_of(&request);
    const struct batch_law law = batch_law_of(40, 16, 1000);
    struct scaling scaling;
    (void)state;
    space.fixed.tp = true;
    request.parallel.tp = 4;
    assert_int_equal(scaling_make(&env, &space, &law, &scaling), STATUS_OK);
    assert_int_equal(scaling.count, 3);
    assert_true(scaling.fits);
    assert_int_equal(scaling.rows[0].best.batch, 0);
    assert_int_equal(scaling.rows[1].given.batch, 0);
    assert_int_equal(scaling.rows[2].given.batch, 16);
    space.memory = 1000;
    assert_int_equal(scaling_make(&env, &space, &law, &scaling), STATUS_OK);
    assert_false(scaling.fits);
    assert_string_equal(log_first_error(env.log), "");
    env_destroy(&env);
}

static enum status build(struct env *env, const char *with)
{
    struct plan_request request = request_of(2);
    struct search_space space = space_of(&request);
    const struct batch_law law = batch_law_of(1, 16, 1000);
    struct scaling scaling;
    (void)with;
    space.fixed.tp = space.fixed.stage = true;
    return scaling_make(env, &space, &law, &scaling);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    assert_in_range(testing_fail_each(build, NULL), 10, 1000000);
}

/* 16 sequences on 8 ranks in copies of 2 ranks: 4 copies of 2 micro-batches. Fewer ranks down to
 * one copy, as long as the batch has whole micro-batches. */
static void test_growing(void **state)
{
    struct plan_request request = request_of(8);
    struct scaling scaling;
    (void)state;
    request.parallel.tp = 2;
    scaling_grow(&request, &scaling);
    assert_int_equal(scaling.count, 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(scaling.rows[i].ranks, 2 << i);
        assert_int_equal(scaling.rows[i].best.batch, 4 << i);
    }
    request.engine.micro_batches = 6;
    scaling_grow(&request, &scaling);
    assert_int_equal(scaling.rows[0].ranks, 4);
    assert_int_equal(scaling.rows[0].best.batch, 6);
    request.ranks = 3000;
    request.parallel.tp = 1;
    scaling_grow(&request, &scaling);
    assert_int_equal(scaling.rows[0].ranks, 1500);
    assert_int_equal(scaling.rows[scaling.count - 1].ranks, 3000);
}

/* Times of 8, 4, 3 and 2.9: the second doubling saves 25 %, the third, of half a doubling, 3 %. */
static void test_enough(void **state)
{
    static const struct scaling scaling = {.rows = {{.ranks = 1},
                                                    {.ranks = 2, .best = {16, 8, {.dp = 0}}},
                                                    {.ranks = 4, .best = {16, 4, {.dp = 0}}},
                                                    {.ranks = 8, .best = {16, 3, {.dp = 0}}},
                                                    {.ranks = 12, .best = {16, 2.9, {.dp = 0}}}},
                                           .count = 5};
    const struct batch_law law = batch_law_of(16, 16, 1000);
    (void)state;
    assert_int_equal(scaling_enough(&scaling, &law, 0.2), 8);
    assert_int_equal(scaling_enough(&scaling, &law, 0.3), 4);
    assert_int_equal(scaling_enough(&scaling, &law, 0.6), 2);
    assert_int_equal(scaling_enough(&scaling, &law, 0.05), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_what_the_search_finds),
        cmocka_unit_test(test_rows_without_a_layout),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_growing),
        cmocka_unit_test(test_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
