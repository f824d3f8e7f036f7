/* The figures of a SARS step, from a statistic made by hand and from a short run. */
#include <math.h>
#include "run_rig.h"

enum { LAYERS = 2, WIDTH = 2, TOKENS = 10 };

static const struct model_config model = {
    .arch = MODEL_SARS, .layers = LAYERS, .width = WIDTH, .sars = {.meta_weight = 0.5}};

/* Two blocks: goodness (4, 2), active (4, 2), entropy (4). */
static const float statistic[LAYERS * 20] = {
    /* block 0 */
    1,
    -1,
    2,
    0,
    3,
    3,
    -4,
    4, /* sum 8; 3 of 8 are not above 0 */
    10,
    0,
    5,
    5,
    0,
    0,
    10,
    2, /* sum 32; 3 of 8 are dead */
    10,
    20,
    30,
    20, /* sum 80 */
    /* block 1 */
    -1,
    -1,
    -1,
    -1,
    -1,
    -1,
    -1,
    -1, /* all gated */
    1,
    1,
    1,
    1,
    1,
    1,
    1,
    1, /* none dead */
    5,
    5,
    5,
    5,
};

static void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) < 1e-12))
        fail_msg("%.17g is not %.17g", value, expected);
}

static struct routing_report *read_by_hand(struct env *env, int gate)
{
    struct routing_report *routing;
    struct model_config config = model;
    config.sars.gate = gate;
    assert_int_equal(sars_statistic_at(SARS_STATISTICS, WIDTH), 20);
    assert_ok(routing_create(env, &config, &routing));
    routing_read(routing, statistic, TOKENS);
    routing_read(routing, statistic, TOKENS); /* nothing is left of the step before */
    return routing;
}

static void test_figures(void **state)
{
    static const double expected[LAYERS + 1][ROUTING_FIGURES] = {
        {0.25, 0.1875, 1.25, 0, 0.6875}, /* the means */
        {0.4, 0.375, 2, 0.1, 0.375},
        {0.1, 0, 0.5, -0.1, 1},
    };
    struct env env = testing_env(1);
    struct routing_report *routing = read_by_hand(&env, SARS_GATE_GLOBAL);
    (void)state;
    assert_int_equal(routing_layers(routing), LAYERS);
    for (int layer = ROUTING_MEAN; layer < LAYERS; layer++)
        for (int f = 0; f < ROUTING_FIGURES; f++)
            assert_near(routing_figure(routing, layer, (enum routing_figure)f),
                        expected[layer + 1][f]);
    assert_near(routing_meta_loss(routing), 0.5 * 1.25);
    routing_destroy(routing);
    env_destroy(&env);
}

static void test_the_gate_says_what_is_gated(void **state)
{
    struct env env = testing_env(1);
    struct routing_report *off = read_by_hand(&env, SARS_GATE_OFF);
    struct routing_report *local = read_by_hand(&env, SARS_GATE_LOCAL), *none;
    (void)state;
    for (int layer = ROUTING_MEAN; layer < LAYERS; layer++) {
        assert_true(routing_figure(off, layer, ROUTING_GATED) == 0);
        assert_true(isnan(routing_figure(local, layer, ROUTING_GATED)));
    }
    assert_near(routing_figure(local, 0, ROUTING_ACTIVE), 0.4);
    routing_destroy(off);
    routing_destroy(local);
    assert_ok(routing_create(&env, &(struct model_config){.arch = MODEL_LLAMA}, &none));
    assert_null(none);
    routing_destroy(none);
    env_destroy(&env);
}

static void test_printed(void **state)
{
    struct env env = testing_env(1);
    struct routing_report *routing = read_by_hand(&env, SARS_GATE_LOCAL);
    struct text text;
    (void)state;
    text_init(&text, &env);
    routing_print(routing, 2.5, &text);
    assert_string_equal(
        text_string(&text),
        "{\"meta_loss\":0.625,\"meta_norm\":2.5,\"active\":0.25,\"dead\":0.1875,\"entropy\":1.25,"
        "\"goodness\":0,\"gated\":null,\"layers\":{\"active\":[0.4,0.1],\"dead\":[0.375,0],"
        "\"entropy\":[2,0.5],\"goodness\":[0.1,-0.1],\"gated\":[null,null]}}");
    assert_true(text.bytes <= routing_print_bytes(routing));

    /* The longest numbers fit, too. */
    float long_ones[LAYERS * 20];
    for (int i = 0; i < LAYERS * 20; i++)
        long_ones[i] = -1.1754944e-38f;
    routing_read(routing, long_ones, 3);
    text_clear(&text);
    routing_print(routing, -1.1111111111111111e-300, &text);
    assert_true(text.bytes <= routing_print_bytes(routing));
    text_free(&text);
    routing_destroy(routing);
    env_destroy(&env);
}

static enum status build(struct env *env, const char *with)
{
    struct routing_report *routing;
    (void)with;
    TRY(routing_create(env, &model, &routing));
    routing_destroy(routing);
    return STATUS_OK;
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    assert_int_equal(testing_fail_each(build, ""), 3);
}

/* --- in a run ------------------------------------------------------------------------------- */

struct seen {
    int steps;
    double meta_loss;
};

static void look(void *user, const struct trainer_step *step)
{
    struct seen *seen = user;
    const struct routing_report *routing = step->routing;
    assert_non_null(routing);
    assert_int_equal(routing_layers(routing), 2);
    for (int layer = ROUTING_MEAN; layer < 2; layer++) {
        double active = routing_figure(routing, layer, ROUTING_ACTIVE);
        double entropy = routing_figure(routing, layer, ROUTING_ENTROPY);
        double gated = routing_figure(routing, layer, ROUTING_GATED);
        assert_true(active > 0.05 && active < 0.95);
        assert_true(entropy > 0.1 && entropy <= log(32) + 1e-6); /* of 32 neurons */
        assert_true(gated > 0 && gated <= 1);
    }
    assert_true(isfinite(step->meta_norm) && step->meta_norm > 0);
    seen->steps++;
    seen->meta_loss = routing_meta_loss(routing);
}

static void test_a_run_reports_its_routing(void **state)
{
    struct run_rig rig;
    struct seen seen = {0};
    struct trainer_callbacks callbacks = {.user = &seen, .step = look};
    struct trainer_summary summary;
    char wanted[64], *text;
    size_t bytes;
    (void)state;
    rig_open(&rig);
    rig_config(&rig, "model.arch=sars model.kv_heads=0 model.ff=0 train.steps=3 "
                     "sars.meta_weight=0.25 train.eval_batches=1");
    assert_ok(rig_train(&rig, "run", true, &callbacks, &summary));
    assert_int_equal(seen.steps, 3);
    assert_true(seen.meta_loss > 0 && seen.meta_loss <= 0.25 * log(32));
    assert_ok(file_read(&rig.scratch.env, scratch_path(&rig.scratch, "run/metrics.jsonl"), 1 << 20,
                        &text, &bytes));
    snprintf(wanted, sizeof wanted, "\"sars\":{\"meta_loss\":%.6f", seen.meta_loss);
    assert_non_null(strstr(text, wanted)); /* the first digits of the last step */
    mem_free(&rig.scratch.env, text);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_the_gate_says_what_is_gated),
        cmocka_unit_test(test_printed),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_a_run_reports_its_routing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
