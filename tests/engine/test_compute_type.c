/* Units that compute in 16 bits: params are read in place and gradients are written to where they
 * are sent from, so nothing is converted, and the bits do not depend on the layout. On the CPU with
 * the reference ops in bf16 and f16; on a GPU (SIFR_TEST_DEVICE) with its own ops.
 */
#include <math.h>

#include "engine/ranks.h"

static struct rig_config native_config(int llama, enum dtype type)
{
    struct rig_config config = base_config(llama);
    config.type = config.compute = type;
    config.ops = test_on_cpu() ? "ref" : NULL;
    return config;
}

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        enum dtype type = llama ? DTYPE_F16 : DTYPE_BF16;
        struct trace plain = run(native_config(llama, type), 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 2; ranks <= 6; ranks += ranks < 4 ? 1 : 2) {
                struct rig_config config = native_config(llama, type);
                config.stage = stage;
                config.prefetch = ranks % 3;
                config.recompute = ranks % 2 ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE;
                compare(&plain, config, ranks);
            }
        free(plain.params);
    }
}

static void test_recomputation(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config config = native_config(llama, DTYPE_BF16);
        struct trace plain = run(config, 1);
        for (config.recompute = RECOMPUTE_SELECTIVE; config.recompute <= RECOMPUTE_FULL;
             config.recompute++)
            compare(&plain, config, 1);
        free(plain.params);
    }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    struct trace plain = run(native_config(0, DTYPE_BF16), 1);
    for (int stage = 1; stage <= 3; stage++) {
        struct rig_config config = native_config(0, DTYPE_BF16);
        config.stage = stage;
        config.servers = 1;
        compare(&plain, config, 3);
        config.servers = 0;
        config.group = 2;
        compare(&plain, config, 4);
    }
    free(plain.params);
}

/* 16-bit sums are rounded once per round: the same bits for the same number of workers. One rank
 * writes its first micro-batch directly into them. */
static void test_narrow_sums(void **state)
{
    (void)state;
    struct rig_config config = native_config(0, DTYPE_BF16);
    config.sum_type = DTYPE_BF16;
    struct trace first = run(config, 3);
    for (config.stage = 1; config.stage <= 3; config.stage++)
        compare(&first, config, 3);
    free(first.params);
    config = native_config(1, DTYPE_BF16);
    config.sum_type = DTYPE_BF16;
    config.micro_batches = 1;
    first = run(config, 1);
    config.sum_type = DTYPE_F32; /* the sum of a single gradient is that gradient */
    compare(&first, config, 1);
    free(first.params);
}

/* One rank with one micro-batch sums nothing: its 16-bit gradients are the sums, with the bits of
 * the fp32 sums of several ranks. */
static void test_one_gradient_is_the_sum(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config config = native_config(llama, llama ? DTYPE_F16 : DTYPE_BF16);
        config.micro_batches = 1;
        struct trace alone = run(config, 1);
        for (config.stage = 1; config.stage <= 3; config.stage++)
            compare(&alone, config, 2);
        free(alone.params);
    }
}

/* Each worker adds its own micro-batches in the type of sums: the same bits in every layout of as
 * many workers, and different bits than rounding each micro-batch. */
static void test_local_sums(void **state)
{
    (void)state;
    static const struct {
        enum dtype type, sums;
    } types[] = {{DTYPE_BF16, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16}, {DTYPE_F16, DTYPE_BF16}};
    for (int i = 0; i < 3; i++)
        for (int workers = 1; workers <= 2; workers++) {
            struct rig_config config = native_config(workers == 2, types[i].type);
            config.sum_type = types[i].sums;
            struct trace each = run(config, workers), local = compare_local(config, workers);
            if (i == 1 && workers == 1) /* rounded after every micro-batch, either way */
                assert_memory_equal(local.norm, each.norm, sizeof each.norm);
            else if (i < 2 || workers > 1)
                assert_memory_not_equal(local.norm, each.norm, sizeof each.norm);
            for (int step = 0; step < STEPS; step++)
                assert_true(fabs(local.loss[step] - each.loss[step]) < 0.05);
            free(each.params);
            free(local.params);
        }
}

/* bf16 has 8 bits: a loss of about 4 moves by less than this in a few steps; f16 has 11. */
static void test_follows_fp32(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run(base_config(llama), 1);
        struct trace bf16 = run(native_config(llama, DTYPE_BF16), 1);
        struct trace f16 = run(native_config(llama, DTYPE_F16), 1);
        for (int step = 0; step < STEPS; step++) {
            assert_true(fabs(bf16.loss[step] - plain.loss[step]) < 0.05);
            assert_true(fabs(f16.loss[step] - plain.loss[step]) < 0.01);
            assert_true(fabs(bf16.norm[step] - plain.norm[step]) < 0.05 * plain.norm[step]);
        }
        assert_true(bf16.loss[STEPS - 1] != plain.loss[STEPS - 1]);
        free(f16.params);
        free(bf16.params);
        free(plain.params);
    }
}

/* --- memory --------------------------------------------------------------------------------- */

struct found {
    const char *name;
    size_t bytes;
};

static void look(void *user, const struct mem_line *line)
{
    struct found *found = user;
    if (line->category == MEM_SLOTS && strcmp(line->name, found->name) == 0)
        found->bytes = line->bytes;
}

static size_t slot_bytes(struct rig_config config, const char *name)
{
    struct env env = testing_env(1);
    struct rig rig;
    struct found found = {name, 0};
    assert_ok(rig_create(&env, config, &rig));
    mem_visit(env.mem, look, &found);
    rig_destroy(&rig);
    env_destroy(&env);
    return found.bytes;
}

static void test_nothing_is_converted(void **state)
{
    (void)state;
    struct rig_config native = native_config(1, DTYPE_BF16), wide = base_config(1);
    assert_int_equal(slot_bytes(native, "params of a unit"), 0);
    assert_int_equal(slot_bytes(native, "gradients of a unit"), 0);
    assert_true(slot_bytes(native, "gradients") > 0);
    native.sum_type = DTYPE_BF16;
    assert_true(slot_bytes(native, "gradients") > 0);
    native.micro_batches = 1; /* the gradient is the sum */
    assert_int_equal(slot_bytes(native, "gradients"), 0);
    if (!test_on_cpu())
        return;
    wide.type = DTYPE_BF16; /* the same with ops in fp32 */
    assert_true(slot_bytes(wide, "params of a unit") > 0);
    assert_true(slot_bytes(wide, "gradients of a unit") > 0);
}

/* --- without gradients ---------------------------------------------------------------------- */

/* A read-only store has its params in the compute type and nothing else: it yields the loss and the
 * logits of training. */
static void test_reading(void **state)
{
    (void)state;
    struct env env = testing_env(1), reading_env = testing_env(1);
    struct rig_config config = native_config(1, DTYPE_BF16);
    struct rig rig, reading;
    struct engine_result result;
    double sum = 0.0, labels = 0.0;
    int64_t count;
    config.micro_batches = 1;
    assert_ok(rig_create(&env, config, &rig));
    rig_fill(&rig, 0, 0);
    assert_ok(engine_gradients(rig.engine, &result));
    config.micro_batches = 0;
    assert_ok(rig_create(&reading_env, config, &reading));
    assert_true(mem_bytes(reading_env.mem, MEM_PARAMS) == mem_bytes(env.mem, MEM_PARAMS));
    assert_int_equal(mem_bytes(reading_env.mem, MEM_OPTIMIZER), 0);
    rig_fill(&reading, 0, 0);
    assert_ok(engine_eval(reading.engine, 1, &sum, &labels));
    double loss = sum / labels;
    assert_memory_equal(&loss, &result.loss, sizeof loss);

    float *masters = rig_params(&rig, &count), *rounded = rig_params(&reading, &count);
    for (int64_t i = 0; i < count; i++)
        assert_true(rounded[i] == bf16_to_f32(f32_to_bf16(masters[i])));
    free(masters);
    free(rounded);
    rig_destroy(&rig);
    rig_destroy(&reading);
    env_destroy(&env);
    env_destroy(&reading_env);
}

/* Decoding token by token in the compute type yields the logits of one whole forward pass, up to
 * rounding (a logit of about 1 in bf16). */
static void test_decoding(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct env env = testing_env(1);
        struct rig_config config = native_config(llama, DTYPE_BF16);
        struct rig rig;
        struct decoder *decoder;
        const float *found;
        int32_t *tokens, *labels;
        float exact[80];
        config.micro_batches = 0;
        assert_ok(rig_create(&env, config, &rig));
        rig_fill(&rig, 0, 0);
        engine_batch(rig.engine, 0, &tokens, &labels);
        assert_ok(engine_logits(rig.engine, 1, exact));
        assert_ok(decoder_create(rig.ops, rig.stream, model_graph(rig.model), rig.zero,
                                 &(struct decoder_config){.tokens = 24, .chunk = 4}, &decoder));
        assert_ok(decoder_feed(decoder, tokens, config.tokens - 2, &found));
        for (int64_t i = config.tokens - 2; i < config.tokens; i++)
            assert_ok(decoder_feed(decoder, tokens + i, 1, &found));
        for (int64_t v = 0; v < config.model.vocab; v++)
            assert_true(fabsf(found[v] - exact[v]) < 0.03f);
        decoder_destroy(decoder);
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    for (int reads = 0; reads < 2; reads++) {
        int64_t n = 1;
        for (enum status st = STATUS_MEMORY; st != STATUS_OK; n++) {
            struct env env = testing_env(1);
            struct rig rig;
            struct rig_config config = native_config(1, DTYPE_BF16);
            config.micro_batches = reads ? 0 : config.micro_batches;
            mem_fail_at(env.mem, n);
            st = rig_create(&env, config, &rig);
            mem_fail_at(env.mem, 0);
            if (st == STATUS_OK)
                rig_destroy(&rig);
            assert_int_equal(mem_total(env.mem), 0);
            env_destroy(&env);
        }
        assert_true(n > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_recomputation),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_one_gradient_is_the_sum),
        cmocka_unit_test(test_narrow_sums),
        cmocka_unit_test(test_local_sums),
        cmocka_unit_test(test_follows_fp32),
        cmocka_unit_test(test_nothing_is_converted),
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
