/* The store with sums formed by the communication library (fast mode): comm_library_sums and
 * comm_reduce_scatter are linked to the two functions below, which stand for such a library between
 * threads. This one adds in rank order, so a step of one round has the usual bits; with more rounds
 * the sum of each round is added, and results are only close. */
#include <math.h>
#include <stdatomic.h>
#include "engine/ranks.h"

bool __wrap_comm_library_sums(const struct comm *comm, enum dtype type);
void __real_comm_reduce_scatter(struct comm *comm, const void *full, void *shard, int64_t count,
                                enum dtype type, void *scratch, struct stream *stream);
void __wrap_comm_reduce_scatter(struct comm *comm, const void *full, void *shard, int64_t count,
                                enum dtype type, void *scratch, struct stream *stream);

static bool adds;
static _Atomic int64_t calls;

bool __wrap_comm_library_sums(const struct comm *comm, enum dtype type)
{
    (void)comm;
    return adds && type == DTYPE_F32;
}

void __wrap_comm_reduce_scatter(struct comm *comm, const void *full, void *shard, int64_t count,
                                enum dtype type, void *scratch, struct stream *stream)
{
    assert_null(scratch);
    assert_int_equal(type, DTYPE_F32);
    calls++;
    scratch = malloc((size_t)(comm_size(comm) * count) * sizeof(float));
    __real_comm_reduce_scatter(comm, full, shard, count, type, scratch, stream);
    stream_sync(stream);
    free(scratch);
}

static struct rig_config config_of(int stage, int64_t micro_batches)
{
    struct rig_config config = base_config(stage % 2);
    config.stage = stage;
    config.prefetch = 1;
    config.micro_batches = micro_batches;
    config.noise = false; /* needs each gradient */
    return config;
}

/* Returns whether a run with fast sums used them. Its bits, or its losses, must be those of a plain
 * run. */
static bool run_both(struct rig_config config, int ranks, bool same_bits)
{
    adds = false;
    struct trace plain = run(config, ranks);
    adds = true;
    calls = 0;
    if (same_bits) {
        compare(&plain, config, ranks);
    } else {
        struct trace fast = run(config, ranks);
        for (int i = 0; i < STEPS; i++)
            assert_true(fabs(fast.loss[i] - plain.loss[i]) < 1e-5 * fabs(plain.loss[i]));
        for (int64_t i = 0; i < fast.count; i++)
            assert_true(fabsf(fast.params[i] - plain.params[i]) < 1e-3f);
        assert_int_equal(fast.traffic.sent[TRAFFIC_REDUCE],
                         plain.traffic.sent[TRAFFIC_REDUCE]); /* bytes are the same */
        free(fast.params);
    }
    free(plain.params);
    return calls > 0;
}

static void test_one_round(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 2; ranks <= 5; ranks++)
            assert_true(run_both(config_of(stage, ranks), ranks, true));
}

/* 5 micro-batches on 3 ranks: one rank is idle in the second round, which uses plain messages. */
static void test_more_rounds(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        assert_true(run_both(config_of(stage, 6), 3, false));
        assert_true(run_both(config_of(stage, 5), 3, false));
    }
}

static void test_local(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct rig_config config = config_of(stage, 6);
        config.local = true;
        config.noise = true;                    /* workers square their own */
        assert_true(run_both(config, 3, true)); /* one sum over the ranks */
    }
}

/* The library moves whole reduce shards: gradients are not split into messages, only merged. */
static void test_buckets(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct rig_config config = config_of(stage, 3);
        config.bucket = 3000;
        config.unit_layers = 2;
        assert_true(run_both(config, 3, true));
        config.micro_batches = 5; /* a rank is idle in the second round */
        assert_true(run_both(config, 3, false));
    }
}

static void *expect_refusal(void *argument)
{
    struct env env = testing_env(1);
    struct rig rig;
    assert_int_equal(rig_create(&env, *(struct rig_config *)argument, &rig), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "train.noise_scale"));
    env_destroy(&env);
    return NULL;
}

/* The gradients of single micro-batches are never seen. */
static void test_noise_is_refused(void **state)
{
    struct rig_config configs[2] = {config_of(2, 4), config_of(2, 4)};
    (void)state;
    adds = true;
    configs[0].noise = configs[1].noise = true;
    rig_run_ranks(expect_refusal, configs, 2, sizeof *configs);
}

/* Not used where reduce shards are not in rank order, where a rank is idle, or with 16-bit
 * gradients. */
static void test_not_used(void **state)
{
    (void)state;
    struct rig_config servers = config_of(2, 2), groups = config_of(2, 4), narrow = config_of(2, 3);
    servers.servers = 1;
    groups.group = 2;
    narrow.type = DTYPE_BF16;
    narrow.sum_type = DTYPE_F32;
    assert_false(run_both(servers, 3, true));
    assert_false(run_both(groups, 4, true));
    assert_false(run_both(narrow, 3, true));
    assert_false(run_both(config_of(2, 2), 3, true)); /* one rank is idle */
}

int main(void)
{
    unsetenv("SIFR_TEST_SAMPLE"); /* every run counts its calls */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_round),
        cmocka_unit_test(test_more_rounds),
        cmocka_unit_test(test_local),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_noise_is_refused),
        cmocka_unit_test(test_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
