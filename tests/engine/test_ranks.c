/* ZeRO stages, ranks, prefetch, servers and delays do not change any bit. Ranks are threads of one
 * process; on a GPU (SIFR_TEST_DEVICE) all share it. */
#include "engine/ranks.h"

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run(base_config(llama), 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 2; ranks <= 8; ranks += ranks < 4 ? 1 : 2) {
                struct rig_config config = base_config(llama);
                config.stage = stage;
                config.prefetch = ranks % 3;
                config.noise = (stage + ranks) % 2 == 0;
                compare(&plain, config, ranks);
            }
        free(plain.params);
    }
}

static void test_prefetch_recompute_and_delays(void **state)
{
    (void)state;
    struct trace plain = run(base_config(0), 1);
    for (int prefetch = 0; prefetch <= 4; prefetch++)
        for (int recompute = 0; recompute <= 2; recompute++) {
            struct rig_config config = base_config(0);
            config.stage = 2 + prefetch % 2;
            config.prefetch = prefetch;
            config.recompute = recompute;
            config.delays = prefetch % 2 ? 2e-4 : 0;
            config.noise = recompute == 1;
            compare(&plain, config, 3);
        }
    free(plain.params);
}

static void test_servers(void **state)
{
    (void)state;
    struct trace plain = run(base_config(1), 1);
    for (int stage = 1; stage <= 3; stage++)
        for (int servers = 1; servers <= 2; servers++) {
            struct rig_config config = base_config(1);
            config.stage = stage;
            config.servers = servers;
            config.noise = (stage + servers) % 2 == 0;
            config.prefetch = 1;
            compare(&plain, config, 2 + servers);
        }
    free(plain.params);
}

/* Every division of the ranks into shard groups. */
static void test_shard_groups(void **state)
{
    (void)state;
    static const int sizes[][2] = {{2, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 4}, {4, 4}, {4, 1}};
    struct trace plain = run(base_config(0), 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int stage = 1; stage <= 3; stage++) {
            struct rig_config config = base_config(0);
            config.stage = stage;
            config.group = sizes[i][1];
            config.prefetch = 1;
            config.delays = i % 2 ? 1e-4 : 0;
            config.noise = (stage + (int)i) % 3 == 0;
            compare(&plain, config, sizes[i][0]);
        }
    free(plain.params);
}

/* 4 Psi (params) + 4 Psi (gradients) + 8 Psi (momentum, variance) in fp32; what is sharded is
 * divided by N. */
static void test_state_shrinks_with_the_stage(void **state)
{
    (void)state;
    size_t bytes[4];
    for (int stage = 0; stage <= 3; stage++) {
        struct rig_config config = base_config(1);
        config.stage = stage;
        config.micro_batches = 4;
        struct trace trace = run(config, 4);
        bytes[stage] = trace.state;
        free(trace.params);
    }
    size_t psi = bytes[0] / 16;
    assert_true(bytes[1] < bytes[0] - psi * 8 * 3 / 4 + psi);
    assert_true(bytes[2] < bytes[1] - psi * 4 * 3 / 4 + psi);
    assert_true(bytes[3] < bytes[2] - psi * 4 * 3 / 4 + psi);
    assert_true(bytes[3] >= bytes[0] / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_prefetch_recompute_and_delays),
        cmocka_unit_test(test_servers),
        cmocka_unit_test(test_shard_groups),
        cmocka_unit_test(test_state_shrinks_with_the_stage),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
