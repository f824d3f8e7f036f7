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
        cmocka_unit_test(extreme_values_fit_the_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
