/* Stochastic rounding of 16-bit parameters from their masters: the values follow the definition on
 * every holder, so a run has the same bits in every layout. It changes nothing in fp32 and needs no
 * memory. Ranks are threads of one process. */
#include <math.h>

#include "engine/ranks.h"

static struct rig_config random_config(int llama, enum dtype type)
{
    struct rig_config config = base_config(llama);
    config.type = type;
    config.stochastic = true;
    config.tokens = 12;
    config.chunks = 1;
    config.kind = TIMETABLE_1F1B;
    if (!llama) { /* two TP ranks can split it */
        config.model.heads = config.model.kv_heads = 4;
        config.model.width = 40;
        config.model.head_width = 10;
    }
    return config;
}

/* --- the same bits -------------------------------------------------------------------------- */

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        enum dtype type = llama ? DTYPE_F16 : DTYPE_BF16;
        struct trace plain = run(random_config(llama, type), 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 2; ranks <= 7; ranks += 2 + ranks / 3) {
                struct rig_config config = random_config(llama, type);
                config.stage = stage;
                config.threads = ranks % 2 + 1;
                config.recompute = ranks % 2 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
                compare(&plain, config, ranks);
            }
        free(plain.params);
    }
}

static void test_servers_groups_and_pipelines(void **state)
{
    (void)state;
    struct trace plain = run(random_config(0, DTYPE_BF16), 1);
    struct rig_config config = random_config(0, DTYPE_BF16);
    config.stage = 2;
    config.servers = 1;
    compare(&plain, config, 3);
    config.servers = 0;
    config.stage = 3;
    config.group = 2;
    compare(&plain, config, 4);
    config.group = 0;
    config.pp = 2; /* the tied embedding is lent */
    compare(&plain, config, 2);
    compare(&plain, config, 4);
    free(plain.params);
}

static void test_tp_groups(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config config = random_config(llama, DTYPE_BF16);
        config.tp = 2;
        struct trace plain = run(config, 2);
        for (config.stage = 1; config.stage <= 3; config.stage++)
            compare(&plain, config, config.stage == 3 ? 6 : 4);
        free(plain.params);
    }
}

/* --- the definition ------------------------------------------------------------------------- */

/* A tensor of the whole model, as it must be after `updates` updates. */
static float *expected_values(struct rig *rig, int tensor, int64_t updates)
{
    const struct unit_tensor *t = &model_graph(rig->model)->tensors[tensor];
    int64_t count = unit_tensor_whole(t);
    float *values = malloc((size_t)count * sizeof *values);
    char name[UNIT_NAME + 16];
    assert_non_null(values);
    assert_ok(zero_read(rig->zero, tensor, 0, count, values));
    snprintf(name, sizeof name, "rounding of %s", t->name);
    struct rng rng = rng_stream(RIG_SEED, name);
    for (int64_t i = 0; i < count; i++) {
        uint32_t random = rng_word(rng, (uint64_t)i, (uint64_t)updates);
        values[i] = rig->config.type == DTYPE_BF16
                        ? bf16_to_f32(f32_to_bf16_random(values[i], random))
                        : f16_to_f32(f32_to_f16_random(values[i], random));
    }
    return values;
}

/* The params that a pass receives; returns how many elements differ from rounding to nearest. */
static int64_t check_param(struct rig *rig, int param, const void *given, int64_t updates,
                           float *const *expected)
{
    const struct unit_graph *graph = model_graph(rig->model);
    const struct unit_param *p = &graph->params[param];
    enum dtype type = rig->ops->type;
    int64_t count = unit_param_count(graph, param), wrong = 0;
    void *copy = malloc((size_t)count * dtype_bytes(type));
    float *values = malloc((size_t)count * sizeof *values), *at = values;
    device_copy(rig->stream, copy, given, (size_t)count * dtype_bytes(type));
    assert_ok(stream_sync(rig->stream));
    dtype_convert(values, DTYPE_F32, copy, type, count);
    for (int t = p->first_tensor; t < p->first_tensor + p->tensor_count; t++) {
        const struct unit_tensor *tensor = &graph->tensors[t];
        for (int64_t i = 0; i < unit_tensor_count(tensor); i++, at++)
            wrong += *at != expected[t][unit_tensor_index(tensor, i, NULL)];
    }
    if (wrong > 0)
        print_error("rank %d, tp %d, stage %d, after %lld updates: %lld of %lld of param %d\n",
                    rig->config.rank, rig->config.tp, rig->config.stage, (long long)updates,
                    (long long)wrong, (long long)count, param);
    free(copy);
    free(values);
    return wrong;
}

static void check_params(struct rig *rig, int64_t updates)
{
    const struct unit_graph *graph = model_graph(rig->model);
    float *expected[64];
    int64_t wrong = 0;
    assert_true(graph->tensor_count <= 64);
    for (int t = 0; t < graph->tensor_count; t++)
        expected[t] = expected_values(rig, t, updates);
    zero_walk(rig->zero, 0, graph->unit_count, WALK_BOTH);
    for (int u = 0; u < graph->unit_count; u++) {
        const struct unit *unit = &graph->units[u];
        enum pass pass = u + 1 < graph->unit_count ? PASS_FORWARD : PASS_EVAL;
        struct unit_run pass_run = {.ops = rig->ops, .stream = rig->stream};
        zero_acquire(rig->zero, u, pass, &pass_run);
        for (int k = 0; k < unit->use_count; k++)
            if (unit_reads(unit, pass, k))
                wrong += check_param(rig, unit->uses[k], pass_run.params[k], updates, expected);
        zero_release(rig->zero, u, pass);
    }
    for (int t = 0; t < graph->tensor_count; t++)
        free(expected[t]);
    assert_int_equal(wrong, 0);
}

/* Initial values; after AdamW; rounded again from the masters. */
static void *check_rank(void *argument)
{
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, *(const struct rig_config *)argument, &rig));
    check_params(&rig, 0);
    for (int step = 0; step < 2; step++)
        assert_false(rig_step(&rig, step).skipped);
    check_params(&rig, 2);
    assert_ok(zero_settle(rig.zero));
    assert_ok(zero_publish(rig.zero, 7));
    check_params(&rig, 7);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

static void check_definition(struct rig_config config, int ranks)
{
    struct env env = testing_env(1);
    struct rig_config configs[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    if (ranks > 1)
        assert_ok(comm_hub_create(&env, ranks, &config.hub));
    for (int r = 0; r < ranks; r++) {
        configs[r] = config;
        configs[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, check_rank, &configs[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(config.hub);
    env_destroy(&env);
}

static void test_the_definition(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (enum dtype type = DTYPE_BF16; type <= DTYPE_F16; type++) {
            struct rig_config config = random_config(llama, type);
            check_definition(config, 1);
            config.stage = 3;
            check_definition(config, 3);
            config.tp = 2;
            check_definition(config, 4);
        }
}

/* --- compared with rounding to nearest ------------------------------------------------------- */

static void test_against_nearest(void **state)
{
    (void)state;
    struct rig_config config = random_config(1, DTYPE_BF16);
    struct trace random = run(config, 2);
    config.stochastic = false;
    struct trace nearest = run(config, 2);
    assert_int_equal(random.state, nearest.state);
    for (int step = 0; step < STEPS; step++) {
        assert_true(random.loss[step] != nearest.loss[step]);
        assert_true(fabs(random.loss[step] - nearest.loss[step]) < 0.05);
    }
    free(random.params);
    free(nearest.params);
}

static void test_nothing_in_fp32(void **state)
{
    (void)state;
    struct rig_config config = random_config(0, DTYPE_F32);
    config.stochastic = false;
    struct trace plain = run(config, 1);
    config.stochastic = true;
    compare(&plain, config, 2);
    free(plain.params);
}

static void test_every_allocation_of_a_rank_may_fail(void **state)
{
    (void)state;
    struct rig_config config = random_config(1, DTYPE_BF16);
    config.stage = 2;
    assert_true(fail_each(config, 2, 0) > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_servers_groups_and_pipelines),
        cmocka_unit_test(test_tp_groups),
        cmocka_unit_test(test_the_definition),
        cmocka_unit_test(test_against_nearest),
        cmocka_unit_test(test_nothing_in_fp32),
        cmocka_unit_test(test_every_allocation_of_a_rank_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
