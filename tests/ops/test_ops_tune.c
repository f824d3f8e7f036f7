/* The choice among ways with fluctuating timings, on a simulated clock. */
#include "base/rng.h"
#include "ops/ops_tune.h"
#include "testing.h"

struct clock {
    double seconds[TUNE_WAYS]; /* of a call at full speed; negative: does not work */
    int dies_after[TUNE_WAYS]; /* this many measurements; 0 = never */
    double noise;              /* a measurement is longer by up to this fraction */
    double spike;              /* ... or, one in five, by this fraction */
    double drift; /* every measurement is slower than the one before by this fraction */
    int measured;
    int count[TUNE_WAYS];    /* measurements of a way */
    double least[TUNE_WAYS]; /* the shortest of them, without the first two */
    int first_of[4 * TUNE_WAYS * TUNE_ROUNDS];
    unsigned others; /* ways with other bits than the first */
    unsigned asked;  /* ways that were compared with it */
};

static double measure(void *user, int way, int calls)
{
    struct clock *clock = user;
    struct rng rng = rng_stream(3, "tune");
    uint64_t at = (uint64_t)clock->measured;
    double slower = 1 + clock->noise * rng_uniform(rng, 2 * at) + clock->drift * clock->measured;
    clock->first_of[clock->measured++] = way;
    if (clock->seconds[way] < 0 ||
        (clock->dies_after[way] > 0 && clock->count[way] >= clock->dies_after[way]))
        return -1;
    if (clock->spike > 0 && rng_uniform(rng, 2 * at + 1) < 0.2)
        slower += clock->spike;
    double seconds = calls * clock->seconds[way] * slower;
    if (clock->count[way]++ >= 2 && (clock->least[way] == 0 || seconds < clock->least[way]))
        clock->least[way] = seconds;
    return seconds;
}

static bool compare_bits(void *user, int way)
{
    struct clock *clock = user;
    assert_int_not_equal(way, 0);
    assert_int_equal(clock->asked & 1u << way, 0);
    clock->asked |= 1u << way;
    return !(clock->others & 1u << way);
}

static struct clock even_clock(int ways, double seconds)
{
    struct clock clock = {0};
    for (int i = 0; i < ways; i++)
        clock.seconds[i] = seconds;
    return clock;
}

static void test_fastest(void **state)
{
    (void)state;
    struct clock clock = even_clock(8, 1e-4);
    clock.seconds[5] = 0.9e-4;
    clock.seconds[6] = 0.95e-4;
    struct tuned tuned = ops_tune(8, measure, NULL, &clock);
    assert_int_equal(tuned.way, 5);
    assert_float_equal(tuned.first, 1e-4, 1e-9);
    assert_float_equal(tuned.chosen, 0.9e-4, 1e-9);
}

/* A way that gains less than 3 % in isolation may lose in a step. */
static void test_first_stays(void **state)
{
    (void)state;
    struct clock clock = even_clock(4, 1e-3);
    clock.seconds[2] = 0.975e-3;
    assert_int_equal(ops_tune(4, measure, NULL, &clock).way, 0);
    clock = even_clock(4, 1e-3);
    clock.seconds[2] = 0.965e-3;
    assert_int_equal(ops_tune(4, measure, NULL, &clock).way, 2);
    clock = even_clock(1, 1e-3);
    assert_int_equal(ops_tune(1, measure, NULL, &clock).way, 0);
}

/* Every way is timed in every round, for 2 ms at least. */
static void test_long_enough(void **state)
{
    (void)state;
    static const double seconds[] = {3e-6, 50e-6, 1.9e-3, 5e-3};
    for (int k = 0; k < 4; k++) {
        struct clock clock = even_clock(3, seconds[k]);
        ops_tune(3, measure, NULL, &clock);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(clock.count[i], 2 + TUNE_ROUNDS);
            assert_true(clock.least[i] >= TUNE_SPAN * 0.999);
        }
    }
}

/* In turn: no way twice in a row within a round, and each round has all. */
static void test_in_turn(void **state)
{
    (void)state;
    struct clock clock = even_clock(4, 1e-3);
    ops_tune(4, measure, NULL, &clock);
    for (int round = 0; round < TUNE_ROUNDS; round++) {
        int seen = 0;
        for (int k = 0; k < 4; k++)
            seen |= 1 << clock.first_of[8 + 4 * round + k];
        assert_int_equal(seen, 15);
    }
}

/* With spikes of 50 %, noise and a clock that drifts by 20 % in either direction: among equal ways
 * the first stays, and a gain of 5 % is found. */
static void test_wavering(void **state)
{
    (void)state;
    struct clock clock = even_clock(6, 1e-3);
    clock.drift = 0.2 / (6 * (2 + TUNE_ROUNDS));
    assert_int_equal(ops_tune(6, measure, NULL, &clock).way, 0);
    clock = even_clock(6, 1e-3);
    clock.drift = -0.2 / (6 * (2 + TUNE_ROUNDS));
    assert_int_equal(ops_tune(6, measure, NULL, &clock).way, 0);
    clock = even_clock(6, 1e-3);
    clock.spike = 0.5;
    assert_int_equal(ops_tune(6, measure, NULL, &clock).way, 0);
    clock = even_clock(6, 1e-3);
    clock.seconds[4] = 0.95e-3;
    clock.drift = 0.1 / (6 * (2 + TUNE_ROUNDS));
    clock.spike = 0.2;
    clock.noise = 0.005;
    assert_int_equal(ops_tune(6, measure, NULL, &clock).way, 4);
}

/* A way that is far behind is estimated and not timed; the first is always timed. */
static void test_hopeless(void **state)
{
    (void)state;
    struct clock clock = even_clock(4, 1e-3);
    clock.seconds[0] = 4e-3;
    clock.seconds[2] = 2e-3;
    struct tuned tuned = ops_tune(4, measure, NULL, &clock);
    assert_int_equal(tuned.way, 1);
    assert_float_equal(tuned.first, 4e-3, 1e-9);
    assert_int_equal(clock.count[2], 2);
    assert_int_equal(clock.count[0], 2 + TUNE_ROUNDS);
}

static void test_failures(void **state)
{
    (void)state;
    struct clock clock = even_clock(3, 1e-3);
    clock.seconds[0] = -1; /* the first: any other is better */
    clock.seconds[2] = 0.999e-3;
    struct tuned tuned = ops_tune(3, measure, NULL, &clock);
    assert_int_equal(tuned.way, 2);
    assert_true(tuned.first < 0);
    clock = even_clock(3, 1e-3);
    clock.seconds[1] = 0.5e-3; /* the fastest, until it fails */
    clock.dies_after[1] = 4;
    assert_int_equal(ops_tune(3, measure, NULL, &clock).way, 0);
    clock = even_clock(3, -1); /* all of them */
    tuned = ops_tune(3, measure, NULL, &clock);
    assert_int_equal(tuned.way, 0);
    assert_true(tuned.chosen < 0);
}

/* If the fastest has other bits, it is neither chosen nor timed; the next one is. */
static void test_other_bits(void **state)
{
    (void)state;
    struct clock clock = even_clock(4, 1e-3);
    clock.seconds[1] = 0.5e-3;
    clock.seconds[2] = 0.8e-3;
    clock.seconds[3] = 0.9e-3;
    clock.others = 1u << 1;
    struct tuned tuned = ops_tune(4, measure, compare_bits, &clock);
    assert_int_equal(tuned.way, 2);
    assert_int_equal(tuned.same, 3);
    assert_float_equal(tuned.chosen, 0.8e-3, 1e-9);
    assert_int_equal(clock.count[1], 2);
    assert_int_equal(clock.asked, 14);
    clock = even_clock(4, 1e-3); /* if bits do not matter, it is chosen */
    clock.seconds[1] = 0.5e-3;
    clock.others = 1u << 1;
    tuned = ops_tune(4, measure, NULL, &clock);
    assert_int_equal(tuned.way, 1);
    assert_int_equal(tuned.same, 4);
    assert_int_equal(clock.asked, 0);
}

/* A fast way with other bits does not exclude slower ways with the same bits. */
static void test_other_bits_far_ahead(void **state)
{
    (void)state;
    struct clock clock = even_clock(3, 1e-3);
    clock.seconds[1] = 0.1e-3;
    clock.seconds[2] = 0.9e-3;
    clock.others = 1u << 1;
    assert_int_equal(ops_tune(3, measure, compare_bits, &clock).way, 2);
}

static void test_none_the_same(void **state)
{
    (void)state;
    struct clock clock = even_clock(TUNE_WAYS, 0.5e-3);
    clock.seconds[0] = 1e-3;
    clock.others = ~1u;
    struct tuned tuned = ops_tune(TUNE_WAYS, measure, compare_bits, &clock);
    assert_int_equal(tuned.way, 0);
    assert_int_equal(tuned.same, 1);
    assert_float_equal(tuned.chosen, 1e-3, 1e-9);
    assert_int_equal(clock.count[0], 2); /* nothing to compare it with */
}

/* The bits of a way that does not work are not compared; a way that fails while it is timed is
 * dropped for the next; if the first does not work, no way can be the same. */
static void test_failures_and_bits(void **state)
{
    (void)state;
    struct clock clock = even_clock(4, 1e-3);
    clock.seconds[1] = -1;
    clock.seconds[2] = 0.7e-3;
    clock.dies_after[2] = 4;
    clock.seconds[3] = 0.8e-3;
    struct tuned tuned = ops_tune(4, measure, compare_bits, &clock);
    assert_int_equal(tuned.way, 3);
    assert_int_equal(tuned.same, 3);
    assert_int_equal(clock.asked, 12);
    clock = even_clock(3, 1e-3);
    clock.seconds[0] = -1;
    tuned = ops_tune(3, measure, compare_bits, &clock);
    assert_int_equal(tuned.way, 0);
    assert_int_equal(tuned.same, 0);
    assert_true(tuned.chosen < 0);
    assert_int_equal(clock.asked, 0);
}

/* The busiest processor: a started wave counts as a whole one, and so do tiles at the edges; parts
 * of k divide the work. */
static void test_busiest(void **state)
{
    (void)state;
    assert_true(ops_tune_busiest(5632, 2048, 128, 256, 1, 132) == 3 * 128 * 256);
    assert_true(ops_tune_busiest(5632, 2048, 128, 176, 1, 132) == 4 * 128 * 176);
    assert_true(ops_tune_busiest(5632, 2048, 128, 128, 1, 132) == 6 * 128 * 128);
    assert_true(ops_tune_busiest(129, 128, 128, 128, 1, 2) == 128 * 128);
    assert_true(ops_tune_busiest(129, 128, 128, 128, 1, 1) == 2 * 128 * 128);
    assert_true(ops_tune_busiest(128, 128, 128, 128, 4, 4) == 128 * 128 / 4);
    assert_true(ops_tune_busiest(128, 128, 128, 128, 4, 3) == 2 * 128 * 128 / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fastest),
        cmocka_unit_test(test_first_stays),
        cmocka_unit_test(test_long_enough),
        cmocka_unit_test(test_in_turn),
        cmocka_unit_test(test_wavering),
        cmocka_unit_test(test_hopeless),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_other_bits),
        cmocka_unit_test(test_other_bits_far_ahead),
        cmocka_unit_test(test_none_the_same),
        cmocka_unit_test(test_failures_and_bits),
        cmocka_unit_test(test_busiest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
