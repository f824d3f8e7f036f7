/* 16-bit parameters and gradients beside fp32 masters: the same bits however they are cut, close to
 * fp32, and the memory that the ZeRO paper promises. */
#include <math.h>

#include "engine/ranks.h"

static struct rig_config narrow_config(int llama, enum dtype type)
{
    struct rig_config config = base_config(llama);
    config.type = type;
    return config;
}

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run(narrow_config(llama, DTYPE_BF16), 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 2; ranks <= MOST_RANKS; ranks += ranks < 4 ? 1 : 2) {
                struct rig_config config = narrow_config(llama, DTYPE_BF16);
                config.stage = stage;
                config.prefetch = ranks % 3;
                config.recompute = ranks % 2 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
                config.delays = ranks == 3 ? 1e-4 : 0;
                compare(&plain, config, ranks);
            }
        free(plain.params);
    }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    struct trace plain = run(narrow_config(0, DTYPE_BF16), 1);
    for (int stage = 1; stage <= 3; stage++) {
        struct rig_config config = narrow_config(0, DTYPE_BF16);
        config.stage = stage;
        for (config.servers = 1; config.servers <= 2; config.servers++)
            compare(&plain, config, 2 + config.servers);
        config.servers = 0;
        for (config.group = 1; config.group <= 3; config.group++)
            compare(&plain, config, 6);
    }
    free(plain.params);
}

/* Sums of 16 bits are rounded once a round: the same bits for the same number of workers. */
static void test_narrow_sums(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 5; ranks++) {
        struct rig_config config = narrow_config(0, DTYPE_BF16);
        config.sum_type = DTYPE_BF16;
        struct trace first = run(config, ranks);
        for (config.stage = 1; config.stage <= 3; config.stage++)
            compare(&first, config, ranks);
        config.servers = 2;
        config.stage = 2;
        compare(&first, config, ranks + 2);
        config.servers = 0;
        config.group = 2;
        config.stage = 3;
        if (ranks == 4)
            compare(&first, config, ranks);
        free(first.params);
    }
}

/* Rounding moves a loss of about 4 by less than this in a few steps, but it does move it. */
static void test_follows_fp32(void **state)
{
    (void)state;
    struct trace plain = run(base_config(1), 1);
    for (int narrow_sums = 0; narrow_sums < 2; narrow_sums++) {
        struct rig_config config = narrow_config(1, DTYPE_BF16);
        config.sum_type = narrow_sums ? DTYPE_BF16 : DTYPE_F32;
        struct trace bf16 = run(config, 1);
        for (int step = 0; step < STEPS; step++)
            assert_true(fabs(bf16.loss[step] - plain.loss[step]) < 0.02);
        assert_true(bf16.loss[STEPS - 1] != plain.loss[STEPS - 1]);
        free(bf16.params);
    }
    free(plain.params);
}

/* What is read is the master: it has bits that bf16 has not. */
static void test_masters_are_read(void **state)
{
    (void)state;
    struct trace trace = run(narrow_config(1, DTYPE_BF16), 2);
    int finer = 0;
    for (int64_t i = 0; i < trace.count; i++)
        finer += bf16_to_f32(f32_to_bf16(trace.params[i])) != trace.params[i];
    assert_true(finer > trace.count / 2);
    free(trace.params);
}

/* Elements of an untied model, each piece padded to 64 x ranks. */
static int64_t padded_count(int ranks)
{
    struct env env = testing_env(1);
    struct rig rig;
    int64_t total = 0, unit = (int64_t)OPS_BLOCK * ranks;
    assert_ok(rig_create(&env, base_config(1), &rig));
    const struct unit_graph *graph = model_graph(rig.model);
    for (int i = 0; i < graph->piece_count; i++) {
        int64_t count = 0;
        for (int q = 0; q < graph->pieces[i].param_count; q++)
            count += (unit_param_count(graph, graph->pieces[i].first_param + q) + OPS_BLOCK - 1) /
                     OPS_BLOCK * OPS_BLOCK;
        total += (count + unit - 1) / unit * unit;
    }
    rig_destroy(&rig);
    env_destroy(&env);
    return total;
}

/* 16 Psi, 4 Psi + 12 Psi/N, 2 Psi + 14 Psi/N, 16 Psi/N. */
static void test_memory_of_the_paper(void **state)
{
    (void)state;
    static const int whole[4] = {16, 4, 2, 0};
    for (int ranks = 1; ranks <= 5; ranks++)
        for (int stage = 0; stage <= 3; stage++) {
            struct rig_config config = narrow_config(1, DTYPE_BF16);
            config.stage = stage;
            config.micro_batches = ranks;
            config.sum_type = DTYPE_BF16;
            struct trace trace = run(config, ranks);
            size_t psi = (size_t)padded_count(ranks);
            size_t cut = (size_t)(16 - whole[stage]) * psi / (size_t)ranks;
            assert_int_equal(trace.state, (size_t)whole[stage] * psi + cut);
            free(trace.params);
        }
}

/* Sums of 4 bytes are apart: 4 Psi / N more beside whole gradients, 2 Psi / N where they replace the
 * 2-byte sums; and a group holds what so many ranks would. */
static void test_memory_of_wide_sums_and_groups(void **state)
{
    (void)state;
    size_t psi = (size_t)padded_count(4);
    struct rig_config config = narrow_config(1, DTYPE_BF16);
    config.micro_batches = 4;
    config.stage = 1;
    struct trace trace = run(config, 4);
    assert_int_equal(trace.state, 4 * psi + 16 * psi / 4);
    free(trace.params);
    config.stage = 3;
    trace = run(config, 4);
    assert_int_equal(trace.state, 18 * psi / 4);
    free(trace.params);
    config.group = 2;
    trace = run(config, 4);
    assert_int_equal(trace.state, 18 * psi / 2);
    free(trace.params);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig_config config = narrow_config(0, DTYPE_BF16);
    struct rig rig;
    config.sum_type = DTYPE_BF16;
    int64_t n = 1;
    for (;; n++) {
        mem_fail_at(env.mem, n);
        if (rig_create(&env, config, &rig) == STATUS_OK)
            break;
        assert_int_equal(mem_total(env.mem), 0);
    }
    mem_fail_at(env.mem, 0);
    assert_true(n > 20);
    rig_destroy(&rig);
    env_destroy(&env);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig rig;
    struct rig_config config = base_config(0);
    config.sum_type = DTYPE_BF16;
    assert_int_equal(rig_create(&env, config, &rig), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "precision.accumulate"));
    env_destroy(&env);
    env = testing_env(1);
    config = base_config(0);
    config.stage = 1;
    config.group = 2;
    assert_int_equal(rig_create(&env, config, &rig), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "zero.shard_group"));
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_narrow_sums),
        cmocka_unit_test(test_follows_fp32),
        cmocka_unit_test(test_masters_are_read),
        cmocka_unit_test(test_memory_of_the_paper),
        cmocka_unit_test(test_memory_of_wide_sums_and_groups),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
