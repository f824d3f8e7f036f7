/* test_bf16_weights -- where products round to bf16, passes take matrices and the table of the
 * embedding in bf16, with the bits of passes that take all params in fp32: in every layout.
 * Products are those of the model of AMX in plain C, which every machine has. */
#include <math.h>
#include "engine/ranks.h"

static struct rig_config narrow_config(struct rig_config config)
{
    config.ops = "cpu";
    config.type = DTYPE_BF16;
    config.rounds = true;
    return config;
}

/* What the params of all units were cast for */
static struct trace run_wide(struct rig_config config, int ranks)
{
    config.widens = true;
    return run(config, ranks);
}

static void test_stages(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config config = narrow_config(base_config(llama));
        struct trace wide = run_wide(config, 1);
        for (config.stage = 0; config.stage <= 3; config.stage++)
            for (int ranks = 1; ranks <= 3; ranks++) {
                config.recompute = (config.stage + ranks) % 3;
                config.prefetch = ranks % 2;
                compare(&wide, config, ranks);
            }
        free(wide.params);
    }
}

/* Both ways to run a backward pass; the table of a tied embedding is on two stages. */
static void test_pipelines(void **state)
{
    (void)state;
    static const int kinds[] = {TIMETABLE_1F1B, TIMETABLE_ZERO_BUBBLE};
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config config = narrow_config(base_config(llama));
        config.chunks = 1;
        struct trace wide = run_wide(config, 1);
        config.pp = 2;
        for (int k = 0; k < 2; k++)
            for (config.stage = 0; config.stage <= 3; config.stage++) {
                config.kind = kinds[k];
                config.recompute = (config.stage + k) % 3;
                compare(&wide, config, 4);
            }
        free(wide.params);
    }
}

static void test_tensor_parallelism(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int sequence = 0; sequence < 2; sequence++) {
            struct rig_config config = narrow_config(shared_config(llama));
            config.tokens = 12;
            config.tp = 2;
            config.sequence = config.regather = sequence;
            struct trace wide = run_wide(config, 2);
            for (config.stage = 0; config.stage <= 3; config.stage += 3)
                compare(&wide, config, 4);
            config.stage = 1, config.pp = 2, config.kind = TIMETABLE_ZERO_BUBBLE;
            compare(&wide, config, 4);
            free(wide.params);
        }
}

/* Rounding must matter: else this test could not fail. */
static void test_rounding_shows(void **state)
{
    (void)state;
    struct rig_config config = narrow_config(base_config(0));
    struct trace rounded = run(config, 1);
    config.rounds = false;
    struct trace exact = run(config, 1);
    assert_true(rounded.loss[STEPS - 1] != exact.loss[STEPS - 1]);
    assert_true(fabs(rounded.loss[STEPS - 1] - exact.loss[STEPS - 1]) < 0.05);
    free(exact.params);
    free(rounded.params);
}

int main(void)
{
    setenv("SIFR_CPU_KERNEL_BF16", "AMX model", 1); /* read when ops are first opened */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_tensor_parallelism),
        cmocka_unit_test(test_rounding_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
