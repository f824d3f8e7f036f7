/* Muon: a plan has the memory and the traffic of every rank, and the ranks together send what the
 * formula says. */
#include "plan/planned.h"

#include <math.h>

static struct rig_config muon_config(bool llama, int stage)
{
    struct rig_config config = base_config(llama, 5);
    config.optimizer = OPTIMIZER_MUON;
    config.stage = stage;
    return config;
}

static void test_ranks_match_their_plan(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        int stage = i % 4;
        struct rig_config config = muon_config(i / 4, stage);
        config.type = i < 4 ? DTYPE_F32 : DTYPE_BF16;
        for (int ranks = 1; ranks <= 5; ranks += ranks == 1 ? 1 : 3)
            run_and_compare(config, ranks);
        if (stage == 0)
            continue;
        config.servers = 2;
        run_and_compare(config, 4);
        config.servers = 0;
        config.group = 2;
        run_and_compare(config, 6);
    }
}

static void test_pipelines_match_their_plan(void **state)
{
    (void)state;
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
        struct rig_config config = muon_config(stage % 2, stage);
        config.pp = 2, config.chunks = 1, config.kind = TIMETABLE_1F1B;
        run_and_compare(config, 4);
    }
}

/* Every rank sends what the formula says. Returns bytes of all ranks, divided by those of all
 * matrices. */
static double sum_of_ranks(const struct rig_config *config, int ranks)
{
    struct env env = testing_env(1);
    struct plan_request request = request_of(config, ranks);
    double sent = 0, matrices = 0;
    for (int r = 0; r < ranks; r++) {
        struct plan_rank rank;
        assert_ok(plan_rank(&env, &request, r, &rank));
        assert_true(plan_sent_formula(&request, 1, &rank, config->stage, TRAFFIC_MUON) ==
                    (double)rank.sent[TRAFFIC_MUON]);
        sent += (double)rank.sent[TRAFFIC_MUON];
        matrices += (double)rank.part.muon.given * sizeof(float);
    }
    env_destroy(&env);
    return sent / matrices;
}

/* C + 1 - 2/G of the matrices with C copies of G shards: in ZeRO stage 0 exactly. With shards, what
 * an owner keeps of its own tensors varies. */
static void test_traffic_matches_the_formula(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 12; ranks += 5) {
        struct rig_config config = muon_config(false, 0);
        config.model.layers = 12;
        assert_true(sum_of_ranks(&config, ranks) == ranks - 1);
        config.stage = 2;
        double sent = sum_of_ranks(&config, ranks), expected = 2 - 2.0 / ranks;
        if (fabs(sent / expected - 1) > 0.25)
            fail_msg("%d ranks send %.3f of the matrices, not %.3f", ranks, sent, expected);
        if (ranks % 2 != 0)
            continue;
        config.group = ranks / 2;
        sent = sum_of_ranks(&config, ranks), expected = 3 - 4.0 / ranks;
        if (fabs(sent / expected - 1) > 0.25)
            fail_msg("%d ranks in two copies send %.3f of the matrices, not %.3f", ranks, sent,
                     expected);
        config.group = 0;
        config.servers = 1 + ranks / 4;
        expected = 2 - 2.0 / config.servers;
        sent = sum_of_ranks(&config, ranks);
        if (fabs(sent - expected) > 0.25)
            fail_msg("%d servers send %.3f of the matrices, not %.3f", config.servers, sent,
                     expected);
    }
}

/* Without matrices of Muon nothing is sent or allocated for it. */
static void test_nothing_without_muon(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig_config config = base_config(false, 5);
    config.stage = 2;
    struct plan_request request = request_of(&config, 4);
    struct plan_rank adamw, muon;
    assert_ok(plan_rank(&env, &request, 0, &adamw));
    request.zero.optimizer.kind = OPTIMIZER_MUON;
    assert_ok(plan_rank(&env, &request, 0, &muon));
    assert_int_equal(adamw.sent[TRAFFIC_MUON], 0);
    assert_int_equal(adamw.part.muon.given, 0);
    assert_true(muon.sent[TRAFFIC_MUON] > 0);
    assert_true(muon.bytes[MEM_COMM] > adamw.bytes[MEM_COMM]);
    assert_true(muon.bytes[MEM_SCRATCH] > adamw.bytes[MEM_SCRATCH]);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_match_their_plan),
        cmocka_unit_test(test_pipelines_match_their_plan),
        cmocka_unit_test(test_traffic_matches_the_formula),
        cmocka_unit_test(test_nothing_without_muon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
