/* 16-bit parameters and gradients with fp32 masters: the same bits in every layout, close to fp32,
 * and the memory that the ZeRO paper states. */
#include <math.h>

#include "engine/ranks.h"
#include "zero/partition.h"

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

/* One rank with one micro-batch has no sum in addition to its 16-bit gradient, where a piece has
 * one use: the bits of the fp32 sums of several ranks, and 2 bytes per element. */
static void test_one_gradient_is_the_sum(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (enum dtype type = DTYPE_BF16; type <= DTYPE_F16; type++) {
            struct rig_config config = narrow_config(llama, type);
            config.micro_batches = 1;
            struct trace alone = run(config, 1);
            for (config.stage = 1; config.stage <= 3; config.stage++)
                compare(&alone, config, 2);
            if (llama) /* nothing is tied */
                assert_int_equal(alone.state, 16 * (size_t)padded_count(1));
            free(alone.params);
        }
}

/* 16-bit sums are rounded once per round: the same bits for the same number of workers. */
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

/* Rounding changes a loss of about 4 by less than this in a few steps, but it does change it. */
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

/* Reads return the master: it has bits that bf16 lacks. */
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

/* 16 Psi, 4 Psi + 12 Psi/N, 2 Psi + 14 Psi/N, 16 Psi/N. */
static void test_memory_matches_the_paper(void **state)
{
    (void)state;
    static const int whole[4] = {16, 4, 2, 0};
    for (int ranks = 1; ranks <= 5; ranks++)
        for (int stage = 0; stage <= 3; stage++) {
            struct rig_config config = narrow_config(1, DTYPE_BF16);
            config.stage = stage;
            config.micro_batches = ranks;
            config.sum_type = DTYPE_BF16;
            config.noise = false;
            struct trace trace = run(config, ranks);
            size_t psi = (size_t)padded_count(ranks);
            size_t cut = (size_t)(16 - whole[stage]) * psi / (size_t)ranks;
            assert_int_equal(trace.state, (size_t)whole[stage] * psi + cut);
            free(trace.params);
        }
}

/* 4-byte sums are separate: 4 Psi / N in addition to whole gradients, 2 Psi / N where they replace
 * the 2-byte sums. A shard group holds as much as that many ranks would. */
static void test_memory_of_wide_sums_and_groups(void **state)
{
    (void)state;
    size_t psi = (size_t)padded_count(4);
    struct rig_config config = narrow_config(1, DTYPE_BF16);
    config.micro_batches = 4;
    config.stage = 1;
    config.noise = false;
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

/* One micro-batch per rank and 2-byte sums: a rank sends (N-1)/N of its gradient, and in stage 0
 * receives as much of the sum; in stage 3 at most twice the parameters, less those that stay
 * gathered. */
static void test_traffic_matches_the_paper(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int stage = 0; stage <= 3; stage++) {
            struct rig_config config = narrow_config(1, DTYPE_BF16);
            config.stage = stage;
            config.micro_batches = ranks;
            config.sum_type = DTYPE_BF16;
            struct trace trace = run(config, ranks);
            int64_t once = STEPS * 2 * padded_count(ranks) / ranks * (ranks - 1);
            assert_int_equal(trace.traffic.sent[TRAFFIC_REDUCE], once);
            if (stage == 0)
                assert_int_equal(trace.traffic.sent[TRAFFIC_GATHER], once);
            if (stage == 3)
                assert_true(trace.traffic.sent[TRAFFIC_GATHER] > once &&
                            trace.traffic.sent[TRAFFIC_GATHER] < 2 * once);
            free(trace.params);
        }
}

/* The sum of a worker's micro-batches is sent once per step, whatever their number. */
static void test_traffic_of_local_sums(void **state)
{
    (void)state;
    struct rig_config config = base_config(1);
    config.stage = 2;
    config.noise = false;
    struct trace each = run(config, 2);
    config.local = true;
    struct trace local = run(config, 2);
    int64_t once = STEPS * 4 * padded_count(2) / 2;
    assert_int_equal(local.traffic.sent[TRAFFIC_REDUCE], once);
    assert_int_equal(each.traffic.sent[TRAFFIC_REDUCE],
                     3 * once); /* rank 0 has three of five micro-batches */
    free(local.params);
    free(each.params);
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

static void test_every_allocation_of_a_rank_may_fail(void **state)
{
    (void)state;
    struct rig_config config = narrow_config(1, DTYPE_BF16);
    config.sum_type = DTYPE_BF16;
    config.stage = 3;
    config.group = 1;
    config.local = true;
    assert_true(fail_each(config, 2, 0) > 60);
}

static void test_refused_settings(void **state)
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

/* --- fp16 ----------------------------------------------------------------------------------- */

static void test_fp16_over_ranks(void **state)
{
    (void)state;
    struct trace plain = run(narrow_config(1, DTYPE_F16), 1);
    for (int stage = 0; stage <= 3; stage++) {
        struct rig_config config = narrow_config(1, DTYPE_F16);
        config.stage = stage;
        compare(&plain, config, 3);
    }
    struct trace fp32 = run(base_config(1), 1);
    for (int step = 0; step < STEPS; step++)
        assert_true(fabs(fp32.loss[step] - plain.loss[step]) < 0.01 &&
                    fabs(fp32.norm[step] - plain.norm[step]) < 0.01 * fp32.norm[step]);
    free(fp32.params);
    free(plain.params);
}

/* The scale is divided out: with a large epsilon AdamW's updates are proportional to the gradient.
 */
static void test_fp16_updates_have_the_right_size(void **state)
{
    (void)state;
    float *params[3];
    int64_t count;
    for (int i = 0; i < 3; i++) {
        struct env env = testing_env(1);
        struct rig rig;
        struct rig_config config = narrow_config(1, i == 2 ? DTYPE_F16 : DTYPE_F32);
        config.eps = 1.0;
        config.clip = 0.0;
        assert_ok(rig_create(&env, config, &rig));
        for (int step = 0; i > 0 && step < STEPS; step++)
            assert_false(rig_step(&rig, step).skipped);
        params[i] = rig_params(&rig, &count);
        rig_destroy(&rig);
        env_destroy(&env);
    }
    double moved = 0.0, difference = 0.0;
    for (int64_t i = 0; i < count; i++) {
        moved += pow(params[1][i] - params[0][i], 2);
        difference += pow(params[2][i] - params[1][i], 2);
    }
    assert_true(moved > 0.0 && difference < 1e-4 * moved);
    for (int i = 0; i < 3; i++)
        free(params[i]);
}

/* A head this large makes gradients of the block below overflow until the scale is small enough:
 * skipped steps change nothing, and from the second on each halves the scale. */
static void test_fp16_overflow_lowers_the_scale(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig rig;
    int64_t count;
    assert_ok(rig_create(&env, narrow_config(1, DTYPE_F16), &rig));
    const struct unit_graph *graph = model_graph(rig.model);
    int head = graph->tensor_count - 1;
    int64_t head_count = unit_tensor_count(&graph->tensors[head]);
    float *values = malloc((size_t)head_count * sizeof *values);
    for (int64_t i = 0; i < head_count; i++)
        values[i] = 40.0f * sinf((float)i);
    assert_ok(zero_write(rig.zero, head, 0, head_count, values));
    assert_ok(zero_publish(rig.zero, 0));
    free(values);
    float *before = rig_params(&rig, &count);
    double scale = 65536.0;
    struct engine_result result;
    for (int step = 0;; step++) {
        result = rig_step(&rig, step);
        assert_true(result.loss_scale == scale);
        if (!result.skipped)
            break;
        assert_true(result.overflow && result.bad_tensor >= 0 && isfinite(result.loss));
        scale = step == 0 ? scale : scale / 2;
        assert_true(result.next_loss_scale == scale && scale > 1.0);
        float *after = rig_params(&rig, &count);
        assert_memory_equal(before, after, (size_t)count * sizeof *before);
        free(after);
    }
    assert_true(scale < 65536.0 && isfinite(result.grad_norm) && !result.overflow);
    free(before);
    rig_destroy(&rig);
    env_destroy(&env);
}

/* A NaN in the parameters is not an overflow: the loss shows it. At the floor nothing is an
 * overflow. */
static void test_fp16_faults_are_not_overflows(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig rig;
    float nan = NAN;
    assert_ok(rig_create(&env, narrow_config(1, DTYPE_F16), &rig));
    assert_ok(zero_write(rig.zero, model_graph(rig.model)->tensor_count - 1, 0, 1, &nan));
    assert_ok(zero_publish(rig.zero, 0));
    for (int step = 0; step < 20; step++) {
        struct engine_result result = rig_step(&rig, step);
        assert_true(result.skipped && !result.overflow);
        assert_true(result.next_loss_scale >= 1.0);
    }
    rig_destroy(&rig);
    env_destroy(&env);
}

/* --- sums of a worker's own micro-batches --------------------------------------------------- */

static const struct {
    enum dtype type, sums;
} local_types[] = {{DTYPE_F32, DTYPE_F32},
                   {DTYPE_BF16, DTYPE_F32},
                   {DTYPE_BF16, DTYPE_BF16},
                   {DTYPE_F16, DTYPE_BF16}};

/* The same bits in every layout of as many workers, close to sending every micro-batch, and other
 * bits for another number of workers. */
static void test_local_sums(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof local_types / sizeof *local_types; i++) {
        double norms[2] = {0};
        for (int workers = 1; workers <= 4; workers += workers) {
            struct rig_config config = narrow_config(workers == 2, local_types[i].type);
            config.sum_type = local_types[i].sums;
            struct trace each = run(config, workers), local = compare_local(config, workers);
            bool narrow = config.type != DTYPE_F32;
            for (int step = 0; step < STEPS; step++)
                assert_true(fabs(local.loss[step] - each.loss[step]) < (narrow ? 0.03 : 1e-4));
            if (workers != 2)
                norms[workers / 4] = local.norm[STEPS - 1];
            free(local.params);
            free(each.params);
        }
        assert_true(norms[0] != norms[1]);
    }
}

/* Whatever the ZeRO stage, a worker has all gradients once, in the type of sums: 2 bytes with bf16
 * sums, which the owner's sum is a part of; with fp32 sums 4, and 4 / N for the owner's. */
static void test_memory_of_local_sums(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    size_t psi = (size_t)padded_count(RANKS);
    for (int stage = 0; stage <= 3; stage++)
        for (int narrow = 0; narrow < 2; narrow++) {
            struct sharding cut = sharding_of(stage);
            struct rig_config config = narrow_config(1, DTYPE_BF16);
            config.stage = stage;
            config.local = true;
            config.noise = false;
            config.sum_type = narrow ? DTYPE_BF16 : DTYPE_F32;
            struct trace trace = run(config, RANKS);
            size_t params = 2 * psi / (cut.params ? RANKS : 1);
            size_t optimizer = 12 * psi / (cut.optim ? RANKS : 1);
            size_t sums = narrow ? 0 : 4 * psi / (cut.optim ? RANKS : 1);
            assert_int_equal(trace.state, params + (narrow ? 2 : 4) * psi + sums + optimizer);
            free(trace.params);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_one_gradient_is_the_sum),
        cmocka_unit_test(test_narrow_sums),
        cmocka_unit_test(test_follows_fp32),
        cmocka_unit_test(test_masters_are_read),
        cmocka_unit_test(test_memory_matches_the_paper),
        cmocka_unit_test(test_memory_of_wide_sums_and_groups),
        cmocka_unit_test(test_fp16_over_ranks),
        cmocka_unit_test(test_fp16_updates_have_the_right_size),
        cmocka_unit_test(test_fp16_overflow_lowers_the_scale),
        cmocka_unit_test(test_fp16_faults_are_not_overflows),
        cmocka_unit_test(test_local_sums),
        cmocka_unit_test(test_memory_of_local_sums),
        cmocka_unit_test(test_traffic_matches_the_paper),
        cmocka_unit_test(test_traffic_of_local_sums),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_every_allocation_of_a_rank_may_fail),
        cmocka_unit_test(test_refused_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
