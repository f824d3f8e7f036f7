/* A plan equals the run: bytes by category and bytes sent of ranks that are threads equal the dry
 * ones exactly. Traffic matches the paper. A trillion parameters take no time to plan, and
 * thousands of layers take time in proportion. */
#include <math.h>
#include <time.h>

#include "plan/planned.h"
#include "zero/partition.h"

static void test_a_run_matches_its_plan(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++)
            for (int several = 0; several < 2; several++) {
                struct rig_config config = base_config(stage % 2, several ? 5 : ranks);
                config.stage = stage;
                config.recompute = several * 2;
                config.prefetch = ranks - 1;
                run_and_compare(config, ranks);
            }
}

static void test_servers_match_their_plan(void **state)
{
    (void)state;
    for (int stage = 1; stage < PLAN_ZERO_STAGES; stage++)
        for (int several = 0; several < 2; several++) {
            struct rig_config config = base_config(several, several ? 5 : 2);
            config.stage = stage;
            config.servers = 1;
            run_and_compare(config, 3);
            config.servers = 2;
            run_and_compare(config, 4);
        }
}

static void test_types_and_groups_match_their_plan(void **state)
{
    (void)state;
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++)
        for (int several = 0; several < 2; several++) {
            struct rig_config config = base_config(stage % 2, several ? 9 : 4);
            config.stage = stage;
            config.type = several ? DTYPE_F16 : DTYPE_BF16;
            config.sum_type = several ? DTYPE_F32 : DTYPE_BF16;
            run_and_compare(config, 4);
            config.local = true;
            run_and_compare(config, 3);
            config.local = false;
            config.group = sharding_of(stage).optim ? 2 : 0;
            run_and_compare(config, 4);
        }
}

/* Every PP stage, and each of its copies; traffic between stages follows the formula. */
/* Optimizers with other moments, also several in one piece: then ranks have different amounts, and
 * the plan shows the largest. */
static void test_optimizers_match_their_plan(void **state)
{
    (void)state;
    static const struct zero_group groups[] = {
        {"*q_proj*", 1, 0.1, {OPTIMIZER_ADAMW8BIT, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}},
        {"*mlp*", 1, 0.1, {.kind = OPTIMIZER_SGD}},
        {"*down_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9}},
    };
    for (int kind = 0; kind < 4; kind++)
        for (int stage = 0; stage < 4; stage++) {
            struct rig_config config = base_config(true, 5);
            config.stage = stage;
            config.snapshot = stage % 2;
            config.type = stage < 2 ? DTYPE_F32 : DTYPE_BF16;
            config.optimizer = kind == 0   ? OPTIMIZER_ADAMW8BIT
                               : kind == 1 ? OPTIMIZER_ADAMW
                                           : OPTIMIZER_SGD;
            config.no_momentum = kind == 2;
            if (kind == 1)
                config.groups = groups, config.group_count = 3;
            run_and_compare(config, 5);
            struct plan_request request = request_of(&config, 5);
            struct plan_zero_stage worst;
            struct plan_rank rank;
            struct env env = testing_env(1);
            size_t most = 0;
            assert_ok(plan_worst_memory(&env, &request, &worst));
            for (int r = 0; r < 5; r++) {
                assert_ok(plan_rank(&env, &request, r, &rank));
                most = rank.total_bytes > most ? rank.total_bytes : most;
            }
            assert_int_equal(worst.worker.total_bytes, most);
            env_destroy(&env);
        }
}

static void test_pipelines_match_their_plan(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct rig_config config = base_config(i % 2, 5);
        int dp = 1 + i % 3;
        config.model.layers = 4;
        config.pp = dp == 3 ? 2 : 2 + i % 2;
        config.kind = i % 3 == 2 ? TIMETABLE_INTERLEAVED : i % 3;
        config.chunks = i % 3 == 2 ? 2 : 1;
        config.stage = i % 4;
        config.recompute = i % 3;
        config.type = i < 6 ? DTYPE_F32 : DTYPE_BF16;
        config.model.tied = i / 2 % 2;
        run_and_compare(config, config.pp * dp);
    }
}

static void test_traffic_of_pp_stages_matches_the_formula(void **state)
{
    (void)state;
    for (int pp = 2; pp <= 4; pp++)
        for (int chunks = 1; chunks <= 2; chunks++) {
            struct env env = testing_env(1);
            struct rig_config config = base_config(pp % 2, 7);
            config.model.layers = 8;
            config.batch = 3;
            config.pp = pp, config.chunks = chunks;
            config.kind = chunks > 1 ? TIMETABLE_INTERLEAVED : TIMETABLE_1F1B;
            struct plan_request request = request_of(&config, 2 * pp);
            struct plan plan;
            assert_ok(plan_make(&env, &request, &plan));
            assert_int_equal(plan.rounds, 4); /* of the first copy */
            int64_t stream = 3 * 11 * config.model.width * (int64_t)sizeof(float), parameters = 0;
            for (int p = 0; p < pp; p++) {
                const struct plan_rank *worker = &plan.pipe.workers[p];
                int boundaries = chunks * 2 - (p == 0) - (p == pp - 1); /* forward, and back */
                assert_int_equal(worker->sent[TRAFFIC_PIPE], 4 * boundaries * stream);
                parameters += worker->part.parameters - worker->part.borrowed;
            }
            assert_int_equal(parameters, plan.parameters);
            assert_true(plan.pipe.bubble > 0 && plan.pipe.bubble < 2);
            plan_free(&env, &plan);
            assert_int_equal(mem_total(env.mem), 0);
            env_destroy(&env);
        }
}

/* --- volumes -------------------------------------------------------------------------------- */

/* Elements of the pieces of the untied model with their padding: all of them, and those that are
 * gathered once per micro-batch although params are sharded (the embedding, which backward does not
 * read; the last block and the head, which stay gathered). */
static void padded_counts(const struct rig_config *config, int owners, int64_t *all, int64_t *once)
{
    struct env env = testing_env(1);
    struct device *device;
    struct model *model;
    struct partition p;
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_ok(model_create(device, &config->model, &model));
    assert_ok(partition_create(&env, model_graph(model), owners, &p));
    int pieces = p.graph->piece_count;
    assert_int_equal(pieces, config->model.layers + 2);
    *all = 0;
    for (int i = 0; i < pieces; i++)
        *all += p.piece_count[i];
    *once = p.piece_count[0] + p.piece_count[pieces - 2] + p.piece_count[pieces - 1];
    partition_free(&env, &p);
    model_destroy(model);
    device_destroy(device);
    env_destroy(&env);
}

static void test_traffic_matches_the_paper(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 64; ranks = ranks * 2 + 1) {
        struct env env = testing_env(1);
        struct rig_config config = base_config(true, ranks);
        struct plan_request request = request_of(&config, ranks);
        struct plan plan;
        int64_t all, once;
        assert_ok(plan_make(&env, &request, &plan));
        padded_counts(&config, ranks, &all, &once);
        int64_t part = (int64_t)sizeof(float) * (ranks - 1);
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
            const int64_t *sent = plan.stages[stage].worker.sent;
            int64_t gathered = sharding_of(stage).params ? 2 * all - once : all;
            assert_int_equal(sent[TRAFFIC_REDUCE], all / ranks * part);
            assert_int_equal(sent[TRAFFIC_GATHER], gathered / ranks * part);
        }
        env_destroy(&env);
    }
}

/* 16 Psi, 4 Psi + 12 Psi / N, 2 Psi + 14 Psi / N, 16 Psi / N, to the padded byte. */
static void test_model_state_matches_the_paper(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 64; ranks = ranks * 2 + 1) {
        struct env env = testing_env(1);
        struct rig_config config = base_config(true, ranks);
        config.type = config.sum_type = DTYPE_BF16;
        struct plan_request request = request_of(&config, ranks);
        struct plan plan;
        int64_t all, once;
        assert_ok(plan_make(&env, &request, &plan));
        padded_counts(&config, ranks, &all, &once);
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
            const struct plan_rank *rank = &plan.stages[stage].worker;
            double formula =
                formula_state(&rank->roster, sharding_of(stage), (double)all, state_mixed);
            assert_int_equal(plan_state_bytes(rank), llround(formula));
        }
        env_destroy(&env);
    }
}

/* The same with local sums in 2 bytes, which the owner's are a part of. */
static void test_local_sums_match_the_formula(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 16; ranks = ranks * 2 + 1) {
        struct env env = testing_env(1);
        struct rig_config config = base_config(true, 3 * ranks);
        config.type = config.sum_type = DTYPE_BF16;
        config.local = true;
        struct plan_request request = request_of(&config, ranks);
        struct plan plan;
        int64_t all, once;
        assert_ok(plan_make(&env, &request, &plan));
        padded_counts(&config, ranks, &all, &once);
        assert_true(plan.widths.local == 2);
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
            const struct plan_rank *rank = &plan.stages[stage].worker;
            double formula =
                formula_state(&rank->roster, sharding_of(stage), (double)all, plan.widths);
            assert_int_equal(plan_state_bytes(rank), llround(formula));
            assert_int_equal(rank->sent[TRAFFIC_REDUCE], 2 * all / ranks * (ranks - 1));
        }
        env_destroy(&env);
    }
}

/* --- size ----------------------------------------------------------------------------------- */

static struct plan_request trillion(int ranks)
{
    struct rig_config config = base_config(true, ranks);
    struct model_config *model = &config.model;
    model->layers = 128;
    model->heads = model->kv_heads = 200;
    model->width = 25600;
    model->head_width = 128;
    model->ff = 69632;
    model->context = 2048;
    model->vocab = 50304;
    config.tokens = 2048;
    config.stage = 3;
    return request_of(&config, ranks);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds of a plan, and of a search for advice that finds none: the least of a few, since the
 * machine may be busy. */
static double seconds_of_plan(struct env *env, const struct plan_request *request,
                              struct plan *plan)
{
    struct plan_advice advice;
    double best = 1e9;
    for (int attempt = 0; attempt < 3; attempt++) {
        double start = cpu_seconds();
        assert_ok(plan_make(env, request, plan));
        assert_ok(plan_advise(env, request, plan, &(struct plan_room){1000, 0, 0}, &advice));
        best = fmin(best, cpu_seconds() - start);
        assert_false(advice.found);
    }
    return best;
}

/* A model with hardly more than a thousandth of the parameters on a 64th of the ranks: the layers
 * take the time, and there are as many of them. */
static void test_a_trillion_parameters_take_no_time(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request request = trillion(1024), other = trillion(16);
    struct plan plan;
    other.model.width /= 100;
    other.model.ff /= 100;
    other.model.heads = other.model.kv_heads = 2;
    double small = seconds_of_plan(&env, &other, &plan);
    assert_true(plan.parameters < 1000000000);
    double large = seconds_of_plan(&env, &request, &plan);
    if (!TESTING_SANITIZED && large > 8 * small)
        fail_msg("%.3f s for a small model, %.3f s for a trillion parameters", small, large);
    assert_true(plan.parameters > 1000000000000);
    double share =
        (double)plan_state_bytes(&plan.stages[3].worker) * 1024 / (double)plan.unsharded_bytes;
    assert_true(share > 0.999 && share < 1.001);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
}

/* Seconds of a rank with `layers` layers, and of its step. */
static double seconds_of_layers(struct env *env, struct plan_request request, int64_t layers)
{
    double best = 1e9;
    request.model.layers = layers;
    for (int attempt = 0; attempt < 3; attempt++) {
        struct plan_rank rank;
        double start = cpu_seconds();
        assert_ok(plan_rank(env, &request, 0, &rank));
        best = fmin(best, cpu_seconds() - start);
    }
    return best;
}

/* Four times the layers would take sixteen times as long if each looked at all others. */
static void test_time_is_linear_in_layers(void **state)
{
    (void)state;
    const struct {
        int stage, pp;
        enum dtype type;
    } cases[] = {{0, 1, DTYPE_F32}, {1, 1, DTYPE_F32},  {2, 1, DTYPE_F32}, {3, 1, DTYPE_F32},
                 {2, 4, DTYPE_F32}, {3, 1, DTYPE_BF16}, {3, 4, DTYPE_F32}};
    int64_t few = TESTING_SANITIZED ? 50 : 1000;
    struct env env = testing_env(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_config config = base_config(i % 2, 8);
        config.stage = cases[i].stage;
        config.pp = cases[i].pp;
        config.type = cases[i].type;
        struct plan_request request = request_of(&config, 8);
        double small = seconds_of_layers(&env, request, few);
        double large = seconds_of_layers(&env, request, 4 * few);
        if (!TESTING_SANITIZED && large > 8 * small)
            fail_msg("stage %d, pp %d, %s: %.3f s for %d layers, %.3f s for four times as many",
                     cases[i].stage, cases[i].pp, dtype_name(cases[i].type), small, (int)few,
                     large);
    }
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
}

/* --- advice --------------------------------------------------------------------------------- */

static struct plan_advice advise(const struct plan_request *request, size_t memory)
{
    struct env env = testing_env(1);
    struct plan plan;
    struct plan_advice advice;
    assert_ok(plan_make(&env, request, &plan));
    assert_ok(plan_advise(&env, request, &plan, &(struct plan_room){memory, 0, 0}, &advice));
    env_destroy(&env);
    return advice;
}

static void assert_advice(struct plan_advice advice, int stage, int recompute, int64_t micro_batch,
                          int ranks)
{
    assert_true(advice.found);
    assert_int_equal(advice.stage, stage);
    assert_int_equal(advice.recompute, recompute);
    assert_int_equal(advice.micro_batch, micro_batch);
    assert_int_equal(advice.ranks, ranks);
}

static void test_advice_is_the_least_change(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig_config config = base_config(true, 4);
    config.batch = 6;
    config.prefetch = 0;
    struct plan_request request = request_of(&config, 4), other = request;
    struct plan plan;
    struct plan_rank rank;
    assert_ok(plan_make(&env, &request, &plan));
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) { /* just enough memory for this stage */
        size_t memory = plan.stages[stage].worker.total_bytes;
        int least = 0;
        while (!plan_fits(&plan.stages[least], &(struct plan_room){memory, 0, 0}))
            least++;
        assert_advice(advise(&request, memory), least, RECOMPUTE_NONE, 6, 4);
    }
    other.zero.stage = 3;
    other.engine.recompute = RECOMPUTE_FULL;
    assert_ok(plan_rank_memory(&env, &other, 0, NULL, NULL, &rank));
    assert_advice(advise(&request, rank.total_bytes), 3, RECOMPUTE_FULL, 6, 4);
    other.engine.micro_batch = 2;
    other.engine.micro_batches = 12;
    assert_ok(plan_rank_memory(&env, &other, 0, NULL, NULL, &rank));
    assert_advice(advise(&request, rank.total_bytes), 3, RECOMPUTE_FULL, 2, 4);
    assert_false(advise(&request, 1000).found);

    struct plan_request large = trillion(64);
    large.engine.tokens = 64;
    other = large;
    other.engine.recompute = RECOMPUTE_FULL;
    other.ranks = 256;
    other.engine.micro_batches = large.engine.micro_batches = 256;
    assert_ok(plan_rank_memory(&env, &other, 0, NULL, NULL, &rank));
    assert_advice(advise(&large, rank.total_bytes), 3, RECOMPUTE_FULL, 1, 256);
    large.engine.micro_batches = 255; /* one of 256 ranks would be idle */
    assert_false(advise(&large, rank.total_bytes).found);
    env_destroy(&env);
}

/* On one rank a ZeRO stage shards nothing: it is not mentioned until there are more ranks. */
static void test_advice_on_one_rank(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig_config config = base_config(true, 1);
    config.batch = 6;
    struct plan_request request = request_of(&config, 1), other = request;
    struct plan_rank rank;
    other.engine.recompute = RECOMPUTE_FULL;
    assert_ok(plan_rank_memory(&env, &other, 0, NULL, NULL, &rank));
    for (request.zero.stage = 0; request.zero.stage < PLAN_ZERO_STAGES; request.zero.stage++) {
        assert_advice(advise(&request, (size_t)1 << 40), request.zero.stage, RECOMPUTE_NONE, 6, 1);
        assert_advice(advise(&request, rank.total_bytes), request.zero.stage, RECOMPUTE_FULL, 6, 1);
    }
    struct plan_request large = trillion(1);
    large.engine.tokens = 64;
    large.engine.micro_batches = 2;
    other = large;
    large.zero.stage = 0;
    other.engine.recompute = RECOMPUTE_FULL;
    other.ranks = 2;
    assert_ok(plan_rank_memory(&env, &other, 0, NULL, NULL, &rank));
    assert_advice(advise(&large, rank.total_bytes), 3, RECOMPUTE_FULL, 1, 2);
    env_destroy(&env);
}

/* Advice names what makes the run fit and changes nothing else: no prefetch, larger shard groups.
 */
static void test_advice_on_slots_and_groups(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig_config config = base_config(true, 4);
    config.stage = 3;
    struct plan_request request = request_of(&config, 4), other;
    struct plan_rank rank, ahead;
    struct plan_advice advice;
    request.zero.prefetch = 4;
    other = request;
    other.zero.prefetch = 0;
    assert_ok(plan_rank_memory(&env, &request, 0, NULL, NULL, &ahead));
    assert_ok(plan_rank_memory(&env, &other, 0, NULL, NULL, &rank));
    assert_true(rank.total_bytes < ahead.total_bytes);
    advice = advise(&request, rank.total_bytes);
    assert_advice(advice, 3, RECOMPUTE_NONE, request.engine.micro_batch, 4);
    assert_int_equal(advice.prefetch, 0);
    advice = advise(&request, ahead.total_bytes);
    assert_int_equal(advice.prefetch, 4);

    request.zero.prefetch = 0;
    request.zero.shard_group = 1;
    other.zero.shard_group = 2;
    assert_ok(plan_rank_memory(&env, &other, 0, NULL, NULL, &rank));
    advice = advise(&request, rank.total_bytes);
    assert_advice(advice, 3, RECOMPUTE_NONE, request.engine.micro_batch, 4);
    assert_int_equal(advice.shard_group, 2);
    env_destroy(&env);
}

/* On a GPU host memory is listed separately, and GPU memory must also hold the runtime. */
static void test_a_gpu(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig_config config = base_config(true, 2);
    struct plan_request request = request_of(&config, 2), gpu = request;
    struct plan_rank on_cpu, on_gpu;
    struct plan_zero_stage stage = {.possible = true};
    size_t runtime = (size_t)formula_gpu_runtime();
    gpu.gpu = gpu.staged = true;
    assert_ok(plan_rank_memory(&env, &request, 0, NULL, NULL, &on_cpu));
    assert_ok(plan_rank_memory(&env, &gpu, 0, NULL, NULL, &on_gpu));
    assert_true(on_cpu.host_bytes == 0 && on_cpu.runtime_bytes == 0);
    assert_int_equal(on_gpu.runtime_bytes, runtime);
    assert_int_equal(plan_state_bytes(&on_gpu), plan_state_bytes(&on_cpu));
    assert_int_equal(on_gpu.bytes[MEM_ACTIVATIONS], on_cpu.bytes[MEM_ACTIVATIONS]);
    assert_true(on_gpu.host_bytes > 2 * (16 << 20)); /* bounce buffers of two communicators at least
                                                        */
    assert_true(on_gpu.total_bytes < on_cpu.total_bytes + (4 << 20)); /* they are not on the GPU */
    stage.worker = on_gpu;
    assert_true(plan_fits(&stage, &(struct plan_room){on_gpu.total_bytes + runtime, 0, 0}));
    assert_false(plan_fits(&stage, &(struct plan_room){on_gpu.total_bytes + runtime - 1, 0, 0}));
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_matches_its_plan),
        cmocka_unit_test(test_servers_match_their_plan),
        cmocka_unit_test(test_types_and_groups_match_their_plan),
        cmocka_unit_test(test_optimizers_match_their_plan),
        cmocka_unit_test(test_pipelines_match_their_plan),
        cmocka_unit_test(test_traffic_of_pp_stages_matches_the_formula),
        cmocka_unit_test(test_traffic_matches_the_paper),
        cmocka_unit_test(test_model_state_matches_the_paper),
        cmocka_unit_test(test_local_sums_match_the_formula),
        cmocka_unit_test(test_a_trillion_parameters_take_no_time),
        cmocka_unit_test(test_time_is_linear_in_layers),
        cmocka_unit_test(test_advice_is_the_least_change),
        cmocka_unit_test(test_advice_on_one_rank),
        cmocka_unit_test(test_advice_on_slots_and_groups),
        cmocka_unit_test(test_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
