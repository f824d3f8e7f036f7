/* Every number that the message of a refused layout suggests passes the same check, and the
 * model's. */
#include <stdlib.h>
#include "plan/plan.h"
#include "testing.h"

static const struct model_config small = {
    .layers = 4, .width = 64, .heads = 8, .kv_heads = 8, .ff = 256, .vocab = 300, .context = 32};

static enum status check(struct env *env, int ranks, int tp, int pp)
{
    const struct parallel_config parallel = {.tp = tp, .pp = pp};
    log_error_clear(env->log);
    return plan_check_parallel(env, &small, ranks, &parallel);
}

/* The numbers after "try". */
static int suggested(const char *message, int numbers[2])
{
    const char *words = strstr(message, "try ");
    assert_non_null(words);
    return sscanf(words, "try %d or %d", &numbers[0], &numbers[1]);
}

static void test_suggestions_pass(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    int refused = 0;
    for (int ranks = 1; ranks <= 32; ranks++) {
        for (int tp = 1; tp <= 33; tp++) {
            int numbers[2] = {0}, count;
            if (check(&env, ranks, tp, 1) == STATUS_OK) {
                assert_true(ranks % tp == 0 && model_can_split(&small, tp));
                continue;
            }
            count = suggested(log_first_error(env.log), numbers);
            refused++;
            for (int i = 0; i < count; i++)
                assert_int_equal(check(&env, ranks, numbers[i], 1), STATUS_OK);
        }
        for (int pp = 1; pp <= 33; pp++) {
            int numbers[2] = {0}, count;
            if (check(&env, ranks, 1, pp) == STATUS_OK)
                continue;
            count = suggested(log_first_error(env.log), numbers);
            for (int i = 0; i < count; i++)
                assert_int_equal(check(&env, ranks, 1, numbers[i]), STATUS_OK);
        }
    }
    assert_true(refused > 100);
    env_destroy(&env);
}

static void assert_refused(int ranks, int tp, int pp, const char *message)
{
    struct env env = testing_env(1);
    assert_int_equal(check(&env, ranks, tp, pp), STATUS_CONFIG);
    assert_string_equal(log_first_error(env.log), message);
    env_destroy(&env);
}

static void test_messages(void **state)
{
    (void)state;
    assert_refused(14, 4, 1, "parallel.tp=4 does not divide 14 ranks; try 2");
    assert_refused(14, 7, 1, "parallel.tp=7 cannot split model.heads=8; with 14 ranks try 2");
    assert_refused(24, 3, 1, "parallel.tp=3 cannot split model.heads=8; with 24 ranks try 2 or 4");
    assert_refused(1, 2, 1,
                   "parallel.tp=2 needs 2 ranks, but there is 1; start more (-n) or try 1");
    assert_refused(14, 1, 4, "parallel.pp=4 does not divide 14 ranks; try 2");
    assert_refused(7, 1, 7, "parallel.pp=7 exceeds the 6 units of the model; try 1");
}

/* A model that cannot be split: one copy per rank is the only layout, and the reason is given. */
static void test_limits_of_the_architecture(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct model_config sars = small;
    sars.arch = MODEL_SARS;
    sars.ff = 0;
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int tp = 1; tp <= 4; tp++)
            for (int pp = 1; pp <= 4; pp++) {
                const struct parallel_config parallel = {.tp = tp, .pp = pp};
                log_error_clear(env.log);
                bool allowed = plan_check_parallel(&env, &sars, ranks, &parallel) == STATUS_OK;
                assert_int_equal(allowed, tp == 1 && pp == 1);
                if (!allowed)
                    assert_non_null(strstr(log_first_error(env.log),
                                           tp > 1 ? "cannot be split: the routing of a layer"
                                                  : "cannot be a pipeline: every block passes"));
            }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suggestions_pass),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_limits_of_the_architecture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
