/* Table 1 of the ZeRO paper, to the last digit, and the traffic by role. */
#include "testing.h"
#include "plan/formula.h"

enum { TP_WAYS = 3 }; /* plain TP, with sequence parallelism, with regather */

/* In 10^9 bytes: P_os, P_os+g, P_os+g+p. The printed table truncates some of these. */
static const struct {
    double parameters;
    int ranks;
    double state[3];
} table1[] = {
    {7.5e9, 1, {120, 120, 120}},
    {7.5e9, 4, {52.5, 41.25, 30}},
    {7.5e9, 16, {35.625, 21.5625, 7.5}},
    {7.5e9, 64, {31.40625, 16.640625, 1.875}},
    {7.5e9, 256, {30.3515625, 15.41015625, 0.46875}},
    {7.5e9, 1024, {30.087890625, 15.1025390625, 0.1171875}},
    {128e9, 1, {2048, 2048, 2048}},
    {128e9, 4, {896, 704, 512}},
    {128e9, 16, {608, 368, 128}},
    {128e9, 64, {536, 284, 32}},
    {128e9, 256, {518, 263, 8}},
    {128e9, 1024, {513.5, 257.75, 2}},
    {1e12, 1, {16000, 16000, 16000}},
    {1e12, 4, {7000, 5500, 4000}},
    {1e12, 16, {4750, 2875, 1000}},
    {1e12, 64, {4187.5, 2218.75, 250}},
    {1e12, 256, {4046.875, 2054.6875, 62.5}},
    {1e12, 1024, {4011.71875, 2013.671875, 15.625}},
};

static void test_table1(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table1 / sizeof *table1; i++) {
        struct roster roster = roster_of(table1[i].ranks - 1, table1[i].ranks, 0);
        assert_true(formula_state(&roster, sharding_of(0), table1[i].parameters, state_mixed) ==
                    16 * table1[i].parameters);
        for (int stage = 1; stage <= 3; stage++)
            assert_true(formula_state(&roster, sharding_of(stage), table1[i].parameters,
                                      state_mixed) == table1[i].state[stage - 1] * 1e9);
    }
}

static double sent(const struct roster *roster, int stage, double parameters, int64_t rounds,
                   enum traffic_purpose purpose)
{
    struct volume volume = {
        .parameters = parameters, .rounds = rounds, .reductions = rounds, .value = 1, .total = 1};
    return formula_sent(roster, sharding_of(stage), &volume, purpose);
}

static void test_volume(void **state)
{
    (void)state;
    struct roster roster = roster_of(2, 4, 0), replicas = roster;
    replicas.copies = 4;
    for (int stage = 0; stage <= 3; stage++) {
        const struct roster *r = stage == 0 ? &replicas : &roster;
        assert_true(sent(r, stage, 400, 1, TRAFFIC_REDUCE) == 300);
        assert_true(sent(r, stage, 400, 5, TRAFFIC_REDUCE) == 1500);
        assert_true(sent(r, stage, 400, 5, TRAFFIC_GATHER) == (stage < 3 ? 300 : 3000));
        assert_true(sent(r, stage, 400, 5, TRAFFIC_CONTROL) == 0);
    }
}

/* Between PP stages: a shard of lent params, a reduce shard of borrowed gradients, and messages. */
static void test_stages(void **state)
{
    (void)state;
    struct roster roster = roster_of(0, 4, 0), server = roster_of(3, 4, 1);
    struct volume volume = {.rounds = 3,
                            .value = 2,
                            .total = 4,
                            .lent = 40,
                            .borrowed = 80,
                            .messages = 2,
                            .message_bytes = 100};
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_GATHER) == 10 * 2);
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_REDUCE) == 20 * 4);
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_PIPE) == 3 * 2 * 100);
    assert_true(formula_sent(&server, sharding_of(2), &volume, TRAFFIC_PIPE) == 0);
}

/* Each width is used where it belongs, and gradients that are added locally are sent once. */
static void test_widths(void **state)
{
    (void)state;
    struct roster roster = roster_of(0, 4, 0), replicas = roster;
    struct volume volume = {
        .parameters = 400, .rounds = 5, .reductions = 1, .value = 2, .total = 4};
    replicas.copies = 4;
    assert_true(formula_sent(&replicas, sharding_of(0), &volume, TRAFFIC_REDUCE) == 2 * 300);
    assert_true(formula_sent(&replicas, sharding_of(0), &volume, TRAFFIC_GATHER) == 4 * 300);
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_GATHER) == 2 * 300);
}

/* A worker that sums its own micro-batches has all gradients in every ZeRO stage, in the type of
 * sums. Servers and single ranks have what they would have without. */
static void test_local_sums(void **state)
{
    (void)state;
    struct roster rank = roster_of(0, 4, 0), worker = roster_of(0, 5, 1),
                  alone = roster_of(0, 1, 0);
    struct roster server = roster_of(4, 5, 1);
    struct state_widths wide = {2, 2, 12, 4}, narrow = {2, 2, 12, 2};
    for (int stage = 1; stage <= 3; stage++) {
        double params = stage < 3 ? 2 * 400 : 2 * 100;
        assert_true(formula_state(&rank, sharding_of(stage), 400, wide) ==
                    params + 4 * 400 + 12 * 100);
        assert_true(formula_state(&rank, sharding_of(stage), 400, narrow) ==
                    params + 2 * 400 + 12 * 100);
        assert_true(formula_state(&worker, sharding_of(stage), 400, wide) ==
                    (stage < 3) * 800 + 4 * 400);
        assert_true(formula_state(&server, sharding_of(stage), 400, wide) == 16 * 400);
        assert_true(formula_state(&alone, sharding_of(stage), 400, wide) == 16 * 400);
    }
}

/* Frozen params have no gradients, and are gathered only where they are sharded. */
static void test_frozen(void **state)
{
    (void)state;
    struct roster roster = roster_of(0, 4, 0), replicas = roster;
    struct volume volume = {
        .parameters = 600, .frozen = 200, .rounds = 5, .reductions = 5, .value = 2, .total = 4};
    replicas.copies = 4;
    assert_true(formula_sent(&replicas, sharding_of(0), &volume, TRAFFIC_GATHER) == 4 * 300);
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_GATHER) == 2 * 300);
    assert_true(formula_sent(&roster, sharding_of(3), &volume, TRAFFIC_GATHER) == 2 * 5 * 2 * 450);
    assert_true(formula_sent(&roster, sharding_of(3), &volume, TRAFFIC_REDUCE) == 5 * 2 * 300);
}

/* Directions to one owner of a copy, results to all owners. */
static void test_muon(void **state)
{
    (void)state;
    struct roster roster = roster_of(2, 4, 0);
    struct volume volume = {.muon = {.given = 400, .held = 300, .kept = 100}, .direction = 2};
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_MUON) == 2 * (200 + 300));
    roster.copies = 2;
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_MUON) == 2 * (200 + 700));
    roster.copies = 4; /* of everything: directions do not travel */
    volume.muon = (struct muon_counts){.given = 400, .held = 400, .kept = 400};
    assert_true(formula_sent(&roster, sharding_of(0), &volume, TRAFFIC_MUON) == 2 * 3 * 400);
    volume.muon = (struct muon_counts){0}; /* a worker that owns nothing */
    assert_true(formula_sent(&roster, sharding_of(2), &volume, TRAFFIC_MUON) == 0);
}

/* Two copies on four ranks: a shard is half of everything, and gathers stay inside a pair. */
static void test_copies(void **state)
{
    (void)state;
    struct roster roster = roster_of(3, 4, 0);
    roster.copies = 2;
    assert_true(formula_state(&roster, sharding_of(3), 400, state_fp32) == 16 * 200);
    assert_true(sent(&roster, 3, 400, 1, TRAFFIC_GATHER) == 2 * 200 + 100);
    assert_true(sent(&roster, 2, 400, 1, TRAFFIC_GATHER) == 200 + 100);
    assert_true(sent(&roster, 3, 400, 1, TRAFFIC_REDUCE) == 300);
}

/* A worker sends Psi per micro-batch; the servers together hold everything and send it to all. */
static void test_servers(void **state)
{
    (void)state;
    struct roster worker = roster_of(0, 5, 2), server = roster_of(4, 5, 2);
    assert_true(sent(&worker, 2, 100, 3, TRAFFIC_REDUCE) == 300);
    assert_true(sent(&worker, 2, 100, 3, TRAFFIC_GATHER) == 0);
    assert_true(sent(&server, 2, 100, 3, TRAFFIC_REDUCE) == 0);
    assert_true(sent(&server, 2, 100, 3, TRAFFIC_GATHER) == 150);
    assert_true(sent(&server, 3, 100, 3, TRAFFIC_GATHER) == 900);
    assert_true(formula_state(&worker, sharding_of(1), 100, state_fp32) == 800);
    assert_true(formula_state(&worker, sharding_of(2), 100, state_fp32) == 400);
    assert_true(formula_state(&worker, sharding_of(3), 100, state_fp32) == 0);
    for (int stage = 1; stage <= 3; stage++)
        assert_true(formula_state(&server, sharding_of(stage), 100, state_fp32) == 800);
}

/* Activations of a layer of GPT-3's width, as in the paper for 2-byte values, and in fp32. */
static void test_activations(void **state)
{
    (void)state;
    const double s = 2048, b = 2, h = 12288, a = 96;
    struct activation_shape shape = {.tokens = s, .batch = b, .width = h, .heads = a, .value = 2};
    for (int t = 1; t <= 8; t *= 2) {
        double inside = 5 * a * s / (h * t);
        shape.tp = t;
        shape.sequence = false;
        assert_true(formula_activations(&shape, RECOMPUTE_NONE) ==
                    s * b * h * (10 + 24.0 / t + inside));
        assert_true(formula_activations(&shape, RECOMPUTE_SELECTIVE) ==
                    s * b * h * (10 + 24.0 / t));
        shape.sequence = true;
        assert_true(formula_activations(&shape, RECOMPUTE_NONE) == s * b * h * (34.0 / t + inside));
        assert_true(formula_activations(&shape, RECOMPUTE_SELECTIVE) == s * b * h * 34 / t);
        assert_true(formula_activations(&shape, RECOMPUTE_FULL) == s * b * h * 2);
    }
    shape.tp = 1;
    shape.value = 4;
    assert_true(formula_activations(&shape, RECOMPUTE_NONE) == s * b * h * (66 + 9 * a * s / h));
}

/* A layer makes eight calls; repeated gathers and recomputation add to them. */
static void test_meetings(void **state)
{
    static const double block[3][TP_WAYS] = {{8, 8, 10}, {8, 10, 10}, {10, 11, 13}};
    (void)state;
    for (int recompute = 0; recompute < 3; recompute++)
        for (int way = 0; way < TP_WAYS; way++) {
            struct layers layers = {.blocks = 3,
                                    .embedding = true,
                                    .head = way == 1,
                                    .recompute = recompute,
                                    .sequence = way > 0,
                                    .regather = way > 1};
            assert_true(formula_meetings(&layers) ==
                        3 * block[recompute][way] + (way == 1 ? 4 : 2));
        }
}

static void test_tp_groups(void **state)
{
    (void)state;
    struct roster roster = roster_of(0, 2, 0), server = roster_of(1, 2, 1);
    struct volume volume = {.rounds = 5,
                            .total = 4,
                            .tp = 4,
                            .meetings = 20,
                            .stream_bytes = 400,
                            .loss_rows = 7,
                            .partial = 100,
                            .norms = true};
    assert_true(formula_sent(&roster, sharding_of(1), &volume, TRAFFIC_TENSOR) ==
                5 * (20 * 300 + 3 * 7 * 24) + 200 + 24);
    volume.norms = false;
    assert_true(formula_sent(&server, sharding_of(1), &volume, TRAFFIC_TENSOR) == 400);
    volume.tp = 1;
    assert_true(formula_sent(&roster, sharding_of(1), &volume, TRAFFIC_TENSOR) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table1),     cmocka_unit_test(test_volume),
        cmocka_unit_test(test_local_sums), cmocka_unit_test(test_widths),
        cmocka_unit_test(test_stages),     cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_muon),       cmocka_unit_test(test_copies),
        cmocka_unit_test(test_servers),    cmocka_unit_test(test_activations),
        cmocka_unit_test(test_meetings),   cmocka_unit_test(test_tp_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
