/* batch_ladder -- the rungs of a ladder, their steps and rates, and which of them is critical. */
#include <math.h>
#include "testing.h"
#include "cli/batch/batch.h"

static struct env env;

static int open_env(void **state)
{
    (void)state;
    env = testing_env(1);
    return 0;
}

static int close_env(void **state)
{
    (void)state;
    env_destroy(&env);
    return 0;
}

static struct batch batch_of(int64_t run_batch, int64_t micro_batch)
{
    return (struct batch){.run_batch = run_batch,
                          .micro_batch = micro_batch,
                          .context = 10,
                          .rate = 1e-3,
                          .rule = BATCH_RULE_SQRT};
}

static void expect_batches(const struct batch *batch, int count, const int64_t *sizes)
{
    assert_int_equal(batch->count, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(batch->rungs[i].batch, sizes[i]);
}

static void the_default_ladder_is_half_to_sixteen_times_the_run(void **state)
{
    (void)state;
    struct batch batch = batch_of(8, 4);
    assert_int_equal(batch_ladder_make(&env, "", &batch), STATUS_OK);
    expect_batches(&batch, 6, (int64_t[]){4, 8, 16, 32, 64, 128});
    batch = batch_of(12, 4); /* half of it is no whole number of micro-batches */
    assert_int_equal(batch_ladder_make(&env, "", &batch), STATUS_OK);
    expect_batches(&batch, 5, (int64_t[]){12, 24, 48, 96, 192});
}

static void a_list_is_sorted_and_has_the_batch_of_the_run(void **state)
{
    (void)state;
    struct batch batch = batch_of(8, 4);
    assert_int_equal(batch_ladder_make(&env, "64,4,64,16", &batch), STATUS_OK);
    expect_batches(&batch, 4, (int64_t[]){4, 8, 16, 64});
}

static void bad_lists_are_refused(void **state)
{
    (void)state;
    static const char *const lists[] = {"8",  "6",  "16,x", "16,",   ",16", "0",
                                        "-8", " 8", "16 ",  "16;32", "1e3", "99999999999999999999"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct batch batch = batch_of(8, 4);
        assert_int_equal(batch_ladder_make(&env, lists[i], &batch), STATUS_USAGE);
    }
}

static void all_rungs_train_on_the_same_tokens(void **state)
{
    (void)state;
    struct batch batch = batch_of(8, 4);
    assert_int_equal(batch_ladder_make(&env, "", &batch), STATUS_OK);
    assert_int_equal(batch_plan(&env, 0, &batch), STATUS_OK);
    assert_int_equal(batch.rungs[5].steps, 20); /* the largest */
    for (int i = 0; i < batch.count; i++)
        assert_int_equal(batch.rungs[i].steps * batch.rungs[i].batch, 20 * 128);
    /* a short ladder: the smallest has 50 steps, rounded up to whole steps of the largest */
    batch = batch_of(8, 4);
    assert_int_equal(batch_ladder_make(&env, "16", &batch), STATUS_OK);
    assert_int_equal(batch_plan(&env, 0, &batch), STATUS_OK);
    assert_int_equal(batch.rungs[0].steps, 50);
    assert_int_equal(batch.rungs[1].steps, 25);
    /* 1001 tokens are 101 sequences of 10: 7 steps of 16 */
    assert_int_equal(batch_plan(&env, 1001, &batch), STATUS_OK);
    assert_int_equal(batch.sequences, 112);
    assert_int_equal(batch.rungs[0].steps, 14);
    assert_int_equal(batch_window(&batch), 2 * 16); /* a fifth of 7 steps, rounded up */
}

static void the_rate_follows_the_rule(void **state)
{
    (void)state;
    static const double factors[] = {
        [BATCH_RULE_SQRT] = 2, [BATCH_RULE_LINEAR] = 4, [BATCH_RULE_NONE] = 1};
    for (int rule = BATCH_RULE_SQRT; rule <= BATCH_RULE_NONE; rule++) {
        struct batch batch = batch_of(8, 4);
        batch.rule = (enum batch_rule)rule;
        assert_int_equal(batch_ladder_make(&env, "32", &batch), STATUS_OK);
        assert_int_equal(batch_plan(&env, 0, &batch), STATUS_OK);
        assert_true(batch.rungs[0].lr == 1e-3);
        assert_true(batch.rungs[1].lr == 1e-3 * factors[rule]);
    }
    assert_int_equal(batch_rule_of(OPTIMIZER_SGD), BATCH_RULE_LINEAR);
    assert_int_equal(batch_rule_of(OPTIMIZER_ADAMW), BATCH_RULE_SQRT);
    assert_int_equal(batch_rule_of(OPTIMIZER_MUON), BATCH_RULE_SQRT);
    struct batch batch = batch_of(8, 4);
    batch.rate = 0;
    assert_int_equal(batch_ladder_make(&env, "32", &batch), STATUS_OK);
    assert_int_equal(batch_plan(&env, 0, &batch), STATUS_CONFIG);
}

/* Judge held-out losses; NAN = the rung diverged. Returns the index of the critical rung. */
static int judge(struct batch *batch, int count, const double *losses)
{
    *batch = batch_of(8, 4);
    batch->tolerance = 0.01;
    batch->count = count;
    for (int i = 0; i < count; i++)
        batch->rungs[i] = (struct batch_rung){
            .batch = 8 << i, .diverged = isnan(losses[i]), .val_loss = losses[i], .mean_loss = 7};
    batch_judge(batch);
    return batch->critical;
}

static void the_critical_batch_is_the_largest_without_loss(void **state)
{
    (void)state;
    struct batch batch;
    assert_int_equal(judge(&batch, 4, (double[]){3, 3.005, 3.02, 3.1}), 1);
    assert_true(batch.held_out && batch.rungs[1].passes && !batch.rungs[2].passes);
    assert_true(fabs(batch.rungs[3].excess - 0.1) < 1e-12);
    /* compared with the best of the smaller ones, not with the smallest */
    assert_int_equal(judge(&batch, 4, (double[]){3, 2.9, 2.95, 3}), 1);
    assert_int_equal(judge(&batch, 4, (double[]){3, 2.9, 2.8, 2.7}), 3);
    assert_int_equal(judge(&batch, 4, (double[]){3, 3.1, 3.2, 3.3}), 0);
    /* a rung that fails below one that passes */
    assert_int_equal(judge(&batch, 4, (double[]){3, 3.02, 3.005, 3.1}), 2);
    assert_false(batch.rungs[1].passes);
}

static void a_rung_that_diverges_does_not_pass(void **state)
{
    (void)state;
    struct batch batch;
    assert_int_equal(judge(&batch, 3, (double[]){3, 3, NAN}), 1);
    assert_true(batch.held_out && isinf(batch.rungs[2].excess));
    assert_int_equal(judge(&batch, 3, (double[]){NAN, 3, 3}), 2);
    assert_false(batch.rungs[0].passes);
    assert_int_equal(judge(&batch, 2, (double[]){NAN, NAN}), -1);
}

static void without_held_out_data_the_training_loss_is_compared(void **state)
{
    (void)state;
    struct batch batch = batch_of(8, 4);
    batch.tolerance = 0.01;
    batch.count = 2;
    batch.rungs[0] = (struct batch_rung){.batch = 8, .val_loss = NAN, .mean_loss = 2};
    batch.rungs[1] = (struct batch_rung){.batch = 16, .val_loss = NAN, .mean_loss = 2.5};
    batch_judge(&batch);
    assert_false(batch.held_out);
    assert_int_equal(batch.critical, 0);
    assert_true(batch.rungs[1].loss == 2.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_ladder_is_half_to_sixteen_times_the_run),
        cmocka_unit_test(a_list_is_sorted_and_has_the_batch_of_the_run),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(all_rungs_train_on_the_same_tokens),
        cmocka_unit_test(the_rate_follows_the_rule),
        cmocka_unit_test(the_critical_batch_is_the_largest_without_loss),
        cmocka_unit_test(a_rung_that_diverges_does_not_pass),
        cmocka_unit_test(without_held_out_data_the_training_loss_is_compared),
    };
    return cmocka_run_group_tests(tests, open_env, close_env);
}
