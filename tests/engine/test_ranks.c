/* Stages, ranks, prefetch, servers and delays do not change a bit: ranks as threads of one process. */
#include <pthread.h>

#include "engine/rig.h"

enum { STEPS = 3, MICRO_BATCHES = 5, MOST_RANKS = 8 };

struct trace {
    double loss[STEPS], norm[STEPS];
    float *params;
    int64_t count;
    size_t state; /* bytes of params, grads and optimizer of rank 0 after start-up */
};

struct rank_job {
    struct rig_config config;
    struct trace trace;
};

static void *run_rank(void *argument)
{
    struct rank_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, job->config, &rig));
    job->trace.state = mem_bytes(env.mem, MEM_PARAMS) + mem_bytes(env.mem, MEM_GRADS) +
                       mem_bytes(env.mem, MEM_OPTIMIZER);
    int64_t allocations = 0;
    for (int step = 0; step < STEPS; step++) {
        struct engine_result result = rig_step(&rig, step);
        job->trace.loss[step] = result.loss;
        job->trace.norm[step] = result.grad_norm;
        if (step == 0)
            allocations = mem_allocation_count(env.mem);
    }
    assert_int_equal(mem_allocation_count(env.mem), allocations);
    job->trace.params = rig_params(&rig, &job->trace.count);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

/* All ranks must see the same; the first one's trace comes back. */
static struct trace run(struct rig_config config, int ranks)
{
    struct env env = testing_env(1);
    struct comm_hub *hub = NULL;
    struct rank_job jobs[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    if (ranks > 1)
        assert_ok(comm_hub_create(&env, ranks, &hub));
    for (int r = 0; r < ranks; r++) {
        jobs[r] = (struct rank_job){.config = config};
        jobs[r].config.hub = hub;
        jobs[r].config.rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 1; r < ranks; r++) {
        assert_memory_equal(jobs[0].trace.loss, jobs[r].trace.loss, sizeof jobs[r].trace.loss);
        assert_memory_equal(jobs[0].trace.params, jobs[r].trace.params,
                            (size_t)jobs[0].trace.count * sizeof(float));
        free(jobs[r].trace.params);
    }
    comm_hub_destroy(hub);
    env_destroy(&env);
    return jobs[0].trace;
}

static struct rig_config base_config(int llama)
{
    return (struct rig_config){.model = llama ? rig_llama() : rig_gpt2(),
                               .batch = 1,
                               .tokens = 11,
                               .micro_batches = MICRO_BATCHES,
                               .clip = 1.0};
}

static void compare(const struct trace *plain, struct rig_config config, int ranks)
{
    struct trace other = run(config, ranks);
    if (memcmp(plain->loss, other.loss, sizeof other.loss) != 0 ||
        memcmp(plain->norm, other.norm, sizeof other.norm) != 0 ||
        memcmp(plain->params, other.params, (size_t)other.count * sizeof(float)) != 0)
        fail_msg("other bits: stage %d, %d ranks, %d servers, prefetch %d, recompute %d",
                 config.stage, ranks, config.servers, config.prefetch, config.recompute);
    free(other.params);
}

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run(base_config(llama), 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 2; ranks <= MOST_RANKS; ranks += ranks < 4 ? 1 : 2) {
                struct rig_config config = base_config(llama);
                config.stage = stage;
                config.prefetch = ranks % 3;
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
            config.prefetch = 1;
            compare(&plain, config, 2 + servers);
        }
    free(plain.params);
}

/* 4 Psi (params) + 4 Psi (gradients) + 8 Psi (momentum, variance) in fp32, and what is cut by N. */
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
        cmocka_unit_test(test_state_shrinks_with_the_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
