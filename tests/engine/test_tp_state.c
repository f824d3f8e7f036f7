/* Reading, loading and saving the state of TP ranks: whatever the mesh and the ZeRO stage, every
 * element is saved by exactly one rank, the copy has the values that were loaded, and reads return
 * whole tensors. Ranks are threads of one process. */
#include "engine/ranks.h"

struct state_job {
    struct rig_config config;
    int ranks;
};

/* Exact in fp32, and different for adjacent elements. */
static float value_of(int state, int tensor, int64_t element)
{
    return (float)((element * 7 + tensor * 131 + state * 29 + 1) % 1048573);
}

static void load_tensor(struct rig *rig, int tensor)
{
    struct zero_range held = zero_state_held(rig->zero, ZERO_MASTER, tensor);
    float *values = malloc((size_t)(held.count + 1) * sizeof *values);
    assert_non_null(values);
    for (int state = 0; state <= ZERO_VARIANCE; state++) {
        for (int64_t i = 0; i < held.count; i++)
            values[i] = value_of(state, tensor, held.first + i);
        int64_t half = held.count / 3; /* in two parts, like the chunks of a file */
        if (held.count == 0)
            continue;
        assert_ok(zero_state_write(rig->zero, (enum zero_state)state, tensor, held.first, half,
                                   DTYPE_F32, values));
        assert_ok(zero_state_write(rig->zero, (enum zero_state)state, tensor, held.first + half,
                                   held.count - half, DTYPE_F32, values + half));
    }
    free(values);
}

/* Every element is saved by one rank, in ascending ranges. */
static void check_cover(struct rig *rig, int tensor, int64_t count, int ranks)
{
    char *saved = calloc((size_t)count, 1);
    int64_t sum = 0;
    assert_non_null(saved);
    for (int r = 0; r < ranks; r++) {
        struct zero_ranges share = zero_state_to_save(rig->zero, ZERO_MASTER, tensor, r);
        int64_t end = 0;
        for (int i = 0; i < share.count; i++) {
            assert_true(share.at[i].first >= end && share.at[i].count > 0);
            end = share.at[i].first + share.at[i].count;
            assert_true(end <= count);
            for (int64_t e = share.at[i].first; e < end; e++)
                assert_int_equal(saved[e]++, 0);
            sum += share.at[i].count;
        }
    }
    assert_int_equal(sum, count);
    free(saved);
}

static void check_copy(struct rig *rig, int tensor)
{
    struct zero_ranges share = zero_state_to_save(rig->zero, ZERO_MASTER, tensor, rig->config.rank);
    for (int i = 0; i < share.count; i++)
        for (int state = 0; state <= ZERO_VARIANCE; state++) {
            const float *at =
                zero_snapshot_at(rig->zero, (enum zero_state)state, tensor, share.at[i].first);
            for (int64_t e = 0; e < share.at[i].count; e++)
                if (at[e] != value_of(state, tensor, share.at[i].first + e))
                    fail_msg("rank %d, tensor %d, state %d, element %lld: %g", rig->config.rank,
                             tensor, state, (long long)(share.at[i].first + e), (double)at[e]);
        }
}

static void check_read(struct rig *rig, int tensor, int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values);
    int64_t first = count / 5;
    assert_non_null(values);
    assert_ok(zero_read(rig->zero, tensor, first, count - first, values));
    for (int64_t i = 0; i < count - first; i++)
        assert_true(values[i] == value_of(ZERO_MASTER, tensor, first + i));
    free(values);
}

static void *state_rank(void *argument)
{
    struct state_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, job->config, &rig));
    assert_ok(zero_settle(rig.zero)); /* initial params are being sent */
    const struct unit_graph *graph = model_graph(rig.model);
    for (int t = 0; t < graph->tensor_count; t++)
        load_tensor(&rig, t);
    assert_ok(zero_publish(rig.zero, 0));
    assert_ok(zero_snapshot(rig.zero));
    for (int t = 0; t < graph->tensor_count; t++) {
        int64_t count = unit_tensor_whole(&graph->tensors[t]);
        check_cover(&rig, t, count, job->ranks);
        check_copy(&rig, t);
        check_read(&rig, t, count);
    }
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

static void check(struct rig_config config, int ranks)
{
    struct state_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = (struct state_job){.config = config, .ranks = ranks};
    rig_run_ranks(state_rank, jobs, ranks, sizeof *jobs);
}

static struct rig_config state_config(int llama)
{
    struct rig_config config = shared_config(llama);
    config.snapshot = true;
    return config;
}

static void test_meshes(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int tp = 1; tp <= 4; tp *= 2)
            for (int pp = 1; pp <= 2; pp++)
                for (int dp = 1; dp <= 3 && dp * pp * tp <= MOST_RANKS; dp++) {
                    struct rig_config config = state_config(llama);
                    config.model.tied = (pp + dp) % 2;
                    config.tp = tp, config.pp = pp;
                    config.stage = (llama + tp + pp + dp) % 4;
                    config.type = dp == 2 ? DTYPE_BF16 : DTYPE_F32;
                    check(config, tp * pp * dp);
                }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    struct rig_config config = state_config(0);
    config.tp = 2, config.stage = 2, config.servers = 2;
    check(config, 8);
    config.servers = 0, config.group = 2;
    check(config, 8);
}

/* Matrices that are exchanged in many chunks, with rows longer and shorter than a chunk. */
static void test_chunks(void **state)
{
    (void)state;
    struct rig_config config = state_config(0);
    config.model.layers = 1;
    config.model.ff = 16384;
    config.tp = 4;
    check(config, 4);
    config.model.ff = 600000;
    config.model.width = 8;
    config.model.head_width = 2;
    config.tp = 2;
    config.stage = 3;
    check(config, 4);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct rig_config config = state_config(1);
    config.model.layers = 1;
    config.tokens = 12;
    config.tp = 4;
    config.sequence = true;
    assert_true(fail_each(config, 4, 1) > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
