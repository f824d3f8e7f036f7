/* Durations as people write them, and when a run has to stop. */
#include "base/clock.h"
#include "scratch.h"
#include "train/config/schedule.h"

static void test_durations_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double seconds; /* -1 = not a duration */
    } cases[] = {
        {"", 0},        {"90", 90},      {"90s", 90},   {"2h30m", 9000}, {"1d", 86400},
        {"1.5h", 5400}, {"1h5", -1},     {"30m2h", -1}, {"2h2h", -1},    {"h", -1},
        {"-5", -1},     {"2 hours", -1}, {"1y", -1},    {"nan", -1},     {"1d12h30m15s", 131415},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double seconds;
        bool good = deadline_parse(cases[i].text, &seconds);
        if (good != (cases[i].seconds >= 0) || (good && seconds != cases[i].seconds))
            fail_msg("'%s': %d, %g", cases[i].text, good, seconds);
    }
}

static void test_a_run_stops_in_time(void **state)
{
    (void)state;
    char end[32];
    unsetenv("SLURM_JOB_END_TIME");
    struct deadline none = deadline_start(""), soon = deadline_start("1000");
    assert_false(deadline_over(&none, 1e9));
    /* A save may exceed train.max_time: nobody ends the process. */
    assert_false(deadline_over(&soon, 1e9));
    soon.limit = clock_seconds() - 1;
    assert_true(deadline_over(&soon, 0));

    snprintf(end, sizeof end, "%.0f", clock_wall() + 1000);
    setenv("SLURM_JOB_END_TIME", end, 1);
    struct deadline job = deadline_start("");
    assert_false(deadline_over(&job, 100));
    assert_true(deadline_over(&job, 990)); /* a save would not finish before the end */
    setenv("SLURM_JOB_END_TIME", "1000", 1);
    job = deadline_start("");
    assert_false(deadline_over(&job, 1e9)); /* the end time of the job is long past */
    unsetenv("SLURM_JOB_END_TIME");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_durations_are_parsed),
        cmocka_unit_test(test_a_run_stops_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
