/* Steps of fewer micro-batches than the engine and the store were made for: the same bits in every
 * layout, and the same as where the smaller number is the largest. */
#include "engine/ranks.h"

enum { RAMPS = 3 };
/* One round and several, full last rounds and idle workers, up and down. */
static const int64_t RAMP[RAMPS][STEPS] = {{1, 3, 5}, {2, 4, 5}, {5, 2, 3}};

static struct rig_config ramp_config(int llama, int ramp)
{
    struct rig_config config = base_config(llama);
    config.ramp = RAMP[ramp];
    return config;
}

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < RAMPS; i++) {
        struct trace plain = run(ramp_config(i % 2, i), 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 2; ranks <= 6; ranks++) {
                struct rig_config config = ramp_config(i % 2, i);
                config.stage = stage;
                config.prefetch = ranks % 3;
                config.recompute = (stage + ranks) % 3;
                config.delays = ranks == 3 ? 1e-4 : 0;
                compare(&plain, config, ranks);
            }
        free(plain.params);
    }
}

static void test_servers_and_shard_groups(void **state)
{
    (void)state;
    static const int sizes[][3] = {{3, 1, 0}, {4, 2, 0}, {5, 1, 0},
                                   {4, 0, 2}, {6, 0, 3}, {4, 0, 1}};
    for (int i = 0; i < RAMPS; i++) {
        struct trace plain = run(ramp_config(0, i), 1);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (int stage = 1; stage <= 3; stage++) {
                struct rig_config config = ramp_config(0, i);
                config.stage = stage;
                config.servers = sizes[k][1], config.group = sizes[k][2];
                compare(&plain, config, sizes[k][0]);
            }
        free(plain.params);
    }
}

static void test_pipelines(void **state)
{
    (void)state;
    static const int shapes[][2] = {{TIMETABLE_GPIPE, 1},
                                    {TIMETABLE_1F1B, 1},
                                    {TIMETABLE_INTERLEAVED, 2},
                                    {TIMETABLE_ZERO_BUBBLE, 1}};
    for (int i = 0; i < RAMPS; i++) {
        struct rig_config config = ramp_config(i % 2, i);
        config.model.layers = 4;
        struct trace plain = run(config, 1);
        for (int k = 0; k < 4; k++)
            for (config.pp = 2; config.pp <= 3; config.pp++)
                for (int dp = 1; dp <= 2; dp++) {
                    config.kind = shapes[k][0], config.chunks = shapes[k][1];
                    config.stage = (k + config.pp + dp) % 4;
                    config.eager = k > 0 && dp == 1;
                    config.recompute = (k + dp) % 3;
                    compare(&plain, config, config.pp * dp);
                }
        free(plain.params);
    }
}

/* The statistics of a step and its number of rows follow from the step. */
static void test_sars(void **state)
{
    (void)state;
    for (int i = 0; i < RAMPS; i++) {
        struct rig_config config = ramp_config(0, i);
        config.model = rig_sars();
        struct trace plain = run(config, 1);
        for (config.stage = 0; config.stage <= 3; config.stage++)
            for (int ranks = 2; ranks <= 5; ranks++)
                compare(&plain, config, ranks);
        free(plain.params);
    }
}

/* A store that was made for more micro-batches may sum in other memory and in another type, but to
 * the same bits. */
static void test_a_smaller_step_equals_a_smaller_run(void **state)
{
    (void)state;
    static const int64_t always[][STEPS] = {{1, 1, 1}, {2, 2, 2}, {4, 4, 4}};
    static const enum dtype types[][2] = {
        {DTYPE_F32, DTYPE_F32}, {DTYPE_BF16, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16}};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            for (int ranks = 1; ranks <= 5; ranks++)
                for (int local = 0; local < 2; local++) {
                    struct rig_config config = base_config(ranks % 2);
                    config.model.tied = k % 2;
                    config.stage = (ranks + i + k) % 4;
                    config.type = types[k][0], config.sum_type = types[k][1];
                    config.local = local;
                    config.micro_batches = always[i][0];
                    struct trace small = run(config, ranks);
                    config.micro_batches = MICRO_BATCHES;
                    config.ramp = always[i];
                    compare(&small, config, ranks);
                    free(small.params);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_servers_and_shard_groups),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_sars),
        cmocka_unit_test(test_a_smaller_step_equals_a_smaller_run),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
