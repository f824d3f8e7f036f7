/* ranks_table -- the formulas of the table at the end of a run, and the share of hidden
 * communication. */
#include <math.h>
#include "cli/train/train_view.h"
#include "testing.h"

static struct ranks_volume formula(int stage, int ranks, int servers, int64_t micro_batches)
{
    struct run_config config = {.ranks = {.stage = stage, .servers = servers},
                                .engine = {.micro_batches = micro_batches},
                                .offload = {.folder = ""},
                                .train = {.sample_prompt = ""}};
    struct trainer_summary summary = {.ranks = ranks, .parameters = 1000};
    return ranks_formula(&config, &summary);
}

static void expect(struct ranks_volume volume, double gather, double reduce)
{
    assert_true(fabs(volume.gather - gather) < 1e-6);
    assert_true(fabs(volume.reduce - reduce) < 1e-6);
}

static void test_volume(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 2; stage++) /* 2 Psi of 4 bytes, minus the own quarter */
        expect(formula(stage, 4, 0, 4), 3000, 3000);
    expect(formula(3, 4, 0, 4), 6000, 3000);  /* 3 Psi */
    expect(formula(1, 4, 0, 8), 3000, 6000);  /* two rounds send gradients twice */
    expect(formula(3, 4, 0, 5), 12000, 6000); /* the second round has only rank 0 */
    expect(formula(2, 4, 1, 3), 0, 4000);     /* a worker sends all gradients to the server */
}

static void test_volume_of_copies_and_16_bit(void **state)
{
    struct run_config config = {.ranks = {.stage = 3, .shard_group = 2},
                                .engine = {.micro_batches = 4},
                                .precision = RUN_PRECISION_BF16,
                                .offload = {.folder = ""},
                                .train = {.sample_prompt = ""}};
    struct trainer_summary summary = {.ranks = 4, .parameters = 1000};
    (void)state;
    /* half of the params twice in 2 bytes, and sums of a quarter in 4 bytes to the other copy */
    expect(ranks_formula(&config, &summary), 2000 + 1000, 1500);
    config.engine.micro_batches = 8;
    config.ranks.accumulate = RUN_ACCUMULATE_LOCAL;
    expect(ranks_formula(&config, &summary), 4000 + 1000, 1500);
}

/* Two copies of a TP group of two ranks: the formulas are those of a part. */
static void test_volume_of_a_tp_group(void **state)
{
    struct run_config config = {.ranks = {.stage = 1},
                                .parallel = {.tp = 2, .sequence = true},
                                .model = {.width = 10},
                                .engine = {.micro_batches = 6, .micro_batch = 2, .tokens = 5},
                                .offload = {.folder = ""},
                                .train = {.sample_prompt = ""}};
    struct trainer_summary summary = {
        .ranks = 4,
        .parameters = 1000,
        .part = {.parameters = 520, .inner_units = 3, .first = true, .last = true, .partial = 40}};
    (void)state;
    struct ranks_volume volume = ranks_formula(&config, &summary);
    expect(volume, 4 * 260, 4 * 260 * 3);
    /* half of the residual stream 8 times per layer and 4 times at the ends, three numbers per row,
     * half of the partial gradients in 4 bytes, and a norm */
    double stream = 2 * 5 * 10 * 4;
    assert_true(volume.tensor == 3 * (28 * stream / 2 + 10 * 24) + 20 * 4 + 8);
}

/* Directions of matrices in the compute type, to one of four owners and back. */
static void test_volume_of_muon(void **state)
{
    struct run_config config = {.ranks = {.stage = 2},
                                .parallel = {.pp = 1},
                                .model = {.width = 10},
                                .engine = {.micro_batches = 4, .micro_batch = 2, .tokens = 5},
                                .offload = {.folder = ""},
                                .train = {.sample_prompt = ""}};
    struct trainer_summary summary = {
        .ranks = 4, .parameters = 1000, .part = {.muon = {.given = 200, .held = 200, .kept = 50}}};
    (void)state;
    assert_true(ranks_formula(&config, &summary).muon == 4 * 2 * 150);
}

/* Two copies of a pipeline of two PP stages: the formulas are those of PP stage 0. */
static void test_volume_of_a_pp_stage(void **state)
{
    struct run_config config = {.ranks = {.stage = 1},
                                .parallel = {.pp = 2, .schedule = TIMETABLE_1F1B},
                                .model = {.width = 10},
                                .engine = {.micro_batches = 6, .micro_batch = 2, .tokens = 5},
                                .offload = {.folder = ""},
                                .train = {.sample_prompt = ""}};
    struct trainer_summary summary = {
        .ranks = 4, .parameters = 1000, .part = {.parameters = 600, .lent = 100}};
    (void)state;
    /* half of 600, and half of the 100 that the other PP stage uses */
    struct ranks_volume volume = ranks_formula(&config, &summary);
    expect(volume, 4 * (300 + 50), 4 * 300 * 3);
    assert_true(volume.pipe == 3 * 2 * 5 * 10 * 4); /* three micro-batches to the next PP stage */
    summary.part = (struct spread_counts){.parameters = 500, .borrowed = 100};
    expect(ranks_formula(&config, &summary), 4 * 250, 4 * (250 * 3 + 50));
}

static void test_hidden_share(void **state)
{
    (void)state;
    assert_true(isnan(ranks_hidden(&(struct traffic){0})));
    assert_true(fabs(ranks_hidden(&(struct traffic){.in_flight = 4, .waited = 1}) - 0.75) < 1e-12);
    assert_true(ranks_hidden(&(struct traffic){.in_flight = 1, .waited = 2}) == 0);
    struct traffic tp_group = {
        .in_flight = 4, .waited = 1, .tensor_in_flight = 2, .tensor_waited = 0.5};
    assert_true(fabs(ranks_tensor_hidden(&tp_group) - 0.75) < 1e-12);
    tp_group.tensor_in_flight = 0;
    assert_true(isnan(ranks_tensor_hidden(&tp_group)));
}

static void test_description(void **state)
{
    struct run_config config = {.ranks = {.stage = 3, .prefetch = 2}};
    struct trainer_facts facts = {.config = &config, .ranks = 4, .comm = "mpi"};
    char line[128];
    (void)state;
    ranks_describe(&facts, line, sizeof line);
    assert_string_equal(line, "4 (mpi), stage 3, prefetch 2");
    config.ranks = (struct ranks_config){.stage = 1, .servers = 1};
    ranks_describe(&facts, line, sizeof line);
    assert_string_equal(line, "4 (mpi), stage 1, of them 1 server");
    config.parallel = (struct parallel_config){.pp = 2, .schedule = TIMETABLE_1F1B};
    ranks_describe(&facts, line, sizeof line);
    assert_string_equal(line,
                        "4 (mpi), pipelines of 2 stages (1f1b), ZeRO stage 1, of them 2 servers");
    config.parallel.tp = 2;
    config.parallel.sequence = true;
    config.ranks.servers = 0;
    ranks_describe(&facts, line, sizeof line);
    assert_string_equal(line, "4 (mpi), tensor parallel in groups of 2 with sequence, "
                              "pipeline of 2 stages (1f1b), ZeRO stage 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_volume),
        cmocka_unit_test(test_volume_of_copies_and_16_bit),
        cmocka_unit_test(test_volume_of_a_tp_group),
        cmocka_unit_test(test_volume_of_muon),
        cmocka_unit_test(test_volume_of_a_pp_stage),
        cmocka_unit_test(test_hidden_share),
        cmocka_unit_test(test_description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
