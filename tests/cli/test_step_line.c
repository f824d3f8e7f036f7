/* step_line -- the documented line, with and without figures that may be unknown. */
#include <math.h>
#include "testing.h"
#include "cli/train/train_view.h"

static void the_whole_line(void **state)
{
    (void)state;
    char line[STEP_LINE_BYTES];
    struct trainer_step step = {
        .step = 120,
        .steps = 2000,
        .loss = 3.28411,
        .grad_norm = 0.831,
        .lr = 3e-4,
        .seconds = 0.4123,
        .tokens_per_second = 79512,
        .mfu = 0.4121,
        .eta_seconds = 774,
        .held = &(struct footprint_worst){.total_bytes = (size_t)(23.1 * 1073741824)}};
    assert_string_equal(
        step_line(line, &step),
        "step   120/2000   6.0% | loss 3.2841 | gnorm 0.83 | lr 3.00e-04 | 412 ms | 79.5k tok/s | "
        "mfu 41.2% | mem 23.1 GiB | eta 12m54s");
    step.gauges = (struct device_gauges){1755, 640.4, 61};
    assert_non_null(strstr(step_line(line, &step), "| mfu 41.2% | 1755 MHz, 640 W | mem 23.1"));
}

static void unknown_figures_are_omitted(void **state)
{
    (void)state;
    char line[STEP_LINE_BYTES];
    struct trainer_step step = {.step = 2,
                                .steps = 4,
                                .loss = NAN,
                                .grad_norm = INFINITY,
                                .seconds = 0.00123,
                                .tokens_per_second = 5,
                                .mfu = NAN,
                                .eta_seconds = NAN,
                                .skipped = true,
                                .held = &(struct footprint_worst){.total_bytes = 1024}};
    assert_string_equal(step_line(line, &step), "step     2/4  50.0% | loss nan | gnorm inf | lr "
                                                "0.00e+00 | 1.2 ms | 5 tok/s | mem 1.0 KiB | "
                                                "skipped");
}

/* A SARS model: what its routing does follows the learning rate. */
static void routing_has_its_part(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    char line[STEP_LINE_BYTES];
    struct model_config model = {
        .arch = MODEL_SARS, .layers = 1, .width = 1, .sars = {.meta_weight = 2}};
    const float statistic[] = {1, -1, -1, -1, 10, 0, 1, 1.4f, 30, 30, 30, 14.2f};
    struct trainer_step step = {.step = 1,
                                .steps = 4,
                                .lr = 1e-3,
                                .meta_norm = 0.114,
                                .mfu = NAN,
                                .eta_seconds = NAN,
                                .held = &(struct footprint_worst){.total_bytes = 1024}};
    struct routing_report *routing;
    assert_ok(routing_create(&env, &model, &routing));
    routing_read(routing, statistic, 10);
    step.routing = routing;
    assert_non_null(strstr(step_line(line, &step), "| lr 1.00e-03 | active 31%, gated 75% | meta "
                                                   "5.21 (norm 0.11) | 0.0 ms |"));
    step.meta_norm = 5e6;
    assert_non_null(strstr(step_line(line, &step), "| meta 5.21 (norm 5.0e+06) | "));
    routing_destroy(routing);

    model.sars.gate = SARS_GATE_LOCAL;
    assert_ok(routing_create(&env, &model, &routing));
    routing_read(routing, statistic, 10);
    step.routing = routing;
    step.meta_norm = NAN;
    assert_non_null(strstr(step_line(line, &step), "| active 31% | meta 5.21 | "));
    routing_destroy(routing);
    env_destroy(&env);
}

static void extreme_values_fit_the_buffer(void **state)
{
    (void)state;
    char line[STEP_LINE_BYTES];
    struct trainer_step step = {.step = INT64_MAX / 4,
                                .steps = INT64_MAX / 2,
                                .loss = -1e300,
                                .grad_norm = 1e300,
                                .seconds = 1e300,
                                .tokens_per_second = 1e300,
                                .mfu = 1e300,
                                .eta_seconds = 1e300,
                                .held = &(struct footprint_worst){.total_bytes = SIZE_MAX}};
    assert_true(strlen(step_line(line, &step)) < STEP_LINE_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_whole_line),
        cmocka_unit_test(unknown_figures_are_omitted),
        cmocka_unit_test(routing_has_its_part),
        cmocka_unit_test(extreme_values_fit_the_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
