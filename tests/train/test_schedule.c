/* The learning rate: exact at both ends, right in the middle, monotonic, and sane for runs of one
 * or two steps. Durations as people write them, and when a run has to stop. */
#include <math.h>
#include "scratch.h"
#include "base/clock.h"
#include "train/config/schedule.h"

static struct schedule make(int kind, int64_t steps, int64_t warmup)
{
    return (struct schedule){.kind = kind,
                             .steps = steps,
                             .warmup = warmup,
                             .decay = steps / 5,
                             .lr = 3e-4,
                             .min_lr = 1.7e-5};
}

static void test_ends_are_exact(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_LINEAR; kind <= SCHEDULE_WSD; kind++)
        for (int64_t steps = 2; steps < 300; steps += 7)
            for (int64_t warmup = 0; warmup < steps; warmup += 1 + steps / 3) {
                struct schedule s = make(kind, steps, warmup);
                assert_true(schedule_lr(&s, warmup > 0 ? warmup : 1) == s.lr);
                assert_true(schedule_lr(&s, steps) == s.min_lr ||
                            (kind == SCHEDULE_WSD && s.decay == 0));
                assert_true(schedule_lr(&s, steps + 10) == schedule_lr(&s, steps));
            }
}

static void test_warmup_is_linear(void **state)
{
    (void)state;
    struct schedule s = make(SCHEDULE_COSINE, 100, 10);
    assert_float_equal(schedule_lr(&s, 1), 3e-5, 1e-18);
    assert_float_equal(schedule_lr(&s, 5), 1.5e-4, 1e-18);
}

static void test_the_middle_is_right(void **state)
{
    (void)state;
    struct schedule s = make(SCHEDULE_COSINE, 110, 10);
    double middle = 0.5 * (s.lr + s.min_lr);
    assert_float_equal(schedule_lr(&s, 60), middle, 1e-15);
    assert_float_equal(schedule_lr(&s, 35),
                       s.lr + (s.min_lr - s.lr) * 0.5 * (1 - cos(3.14159265358979323846 / 4)),
                       1e-15);
    s.kind = SCHEDULE_LINEAR;
    assert_float_equal(schedule_lr(&s, 60), middle, 1e-15);
    s.kind = SCHEDULE_CONSTANT;
    assert_true(schedule_lr(&s, 60) == s.lr && schedule_lr(&s, 110) == s.lr);
    s.kind = SCHEDULE_WSD;
    s.decay = 20;
    assert_true(schedule_lr(&s, 90) == s.lr && schedule_lr(&s, 89) == s.lr);
    assert_float_equal(schedule_lr(&s, 100), middle, 1e-15);
}

static void test_the_rate_falls_after_warmup(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_WSD; kind++) {
        struct schedule s = make(kind, 200, 20);
        for (int64_t t = 1; t < 200; t++) {
            double now = schedule_lr(&s, t), next = schedule_lr(&s, t + 1);
            assert_true(now > 0);
            assert_true(t < 20 ? next > now : next <= now);
        }
    }
}

static void test_short_runs_have_a_sane_rate(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_WSD; kind++) {
        struct schedule s = make(kind, 1, 0);
        assert_true(schedule_lr(&s, 1) == s.lr); /* one step: the configured rate */
        s = make(kind, 4, 4);                    /* warm-up until the end */
        assert_true(schedule_lr(&s, 4) == s.lr);
    }
}

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
        cmocka_unit_test(test_ends_are_exact),
        cmocka_unit_test(test_warmup_is_linear),
        cmocka_unit_test(test_the_middle_is_right),
        cmocka_unit_test(test_the_rate_falls_after_warmup),
        cmocka_unit_test(test_short_runs_have_a_sane_rate),
        cmocka_unit_test(test_durations_are_parsed),
        cmocka_unit_test(test_a_run_stops_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
