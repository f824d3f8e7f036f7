/* The batch law at known points, and the best batch against trying every one. */
#include <math.h>

#include "testing.h"
#include "plan/batch_law.h"

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

/* 1000 steps of 100 with a noise scale of 300: 250 steps at least, 75,000 samples at least. */
static void test_known_points(void **state)
{
    (void)state;
    struct batch_law law = batch_law_of(300, 100, 1000);
    assert_true(is_near(law.least_steps, 250));
    assert_true(is_near(batch_law_steps(&law, 100), 1000));
    assert_true(is_near(batch_law_steps(&law, 50), 1750));
    assert_true(is_near(batch_law_steps(&law, 600), 375));
    assert_true(is_near(batch_law_steps(&law, 1e15), 250));
    assert_true(is_near(batch_law_samples(&law, 100), 4.0 / 3));
    assert_true(is_near(batch_law_samples(&law, 600), 3));
    /* at the critical batch, twice the minimum of both */
    assert_true(is_near(batch_law_steps(&law, 300), 500));
    assert_true(is_near(batch_law_samples(&law, 300), 2));
    for (double b = 1; b < 1e6; b *= 3) /* E(b) = b S(b) */
        assert_true(is_near(b * batch_law_steps(&law, b), 75000 * batch_law_samples(&law, b)));
}

/* --- the best batch ------------------------------------------------------------------------- */

/* A step: a fixed time, and a time for each round of `workers` sequences. */
struct made_up {
    double fixed, round;
    int64_t workers, most; /* most: the largest batch that is possible */
    int asked;
    int64_t seen[64];
};

static double seconds_of(const struct made_up *m, int64_t batch)
{
    return batch > m->most ? INFINITY
                           : m->fixed + m->round * (double)((batch + m->workers - 1) / m->workers);
}

static enum status ask(void *user, int64_t batch, double *seconds)
{
    struct made_up *m = user;
    for (int i = 0; i < m->asked; i++)
        assert_true(m->seen[i] != batch);
    m->seen[m->asked++] = batch;
    *seconds = seconds_of(m, batch);
    return STATUS_OK;
}

/* (1 + B/b) (a + c b) is least at b = sqrt(a B / c): here sqrt(4 * 256 / 1) = 32. */
static void test_best_is_the_square_root(void **state)
{
    (void)state;
    struct batch_law law = batch_law_of(256, 256, 1000);
    struct made_up m = {.fixed = 4, .round = 1, .workers = 1, .most = BATCH_LAW_MOST};
    struct batch_choice best;
    assert_int_equal(batch_law_best(&law, 256, 1, ask, &m, &best), STATUS_OK);
    assert_int_equal(best.batch, 32);
    assert_true(is_near(best.step, 36));
    assert_true(is_near(best.seconds, 500.0 * 9 * 36));
}

static void test_best_of_all(void **state)
{
    (void)state;
    static const int64_t givens[] = {1, 6, 24, 100, 512, 5000};
    static const double fixed[] = {0, 0.01, 1, 300};
    for (int64_t unit = 1; unit <= 3; unit += 2)
        for (int64_t workers = 1; workers <= 1024; workers *= 8)
            for (size_t i = 0; i < 6; i++)
                for (size_t f = 0; f < 4; f++) {
                    struct batch_law law = batch_law_of(165, givens[i], 1000);
                    struct made_up m = {fixed[f], 1, workers, 4096, 0, {0}};
                    struct batch_choice best;
                    assert_int_equal(batch_law_best(&law, givens[i], unit, ask, &m, &best),
                                     STATUS_OK);
                    assert_int_equal(m.seen[0], givens[i]);
                    double least =
                        batch_law_steps(&law, (double)givens[i]) * seconds_of(&m, givens[i]);
                    for (int64_t b = unit; b <= 4096; b *= 2)
                        least = fmin(least, batch_law_steps(&law, (double)b) * seconds_of(&m, b));
                    assert_true(is_near(best.seconds, least));
                    assert_true(is_near(best.step, seconds_of(&m, best.batch)));
                }
}

/* With 1024 workers small batches waste most of them: few are asked for. */
static void test_asks_for_few(void **state)
{
    (void)state;
    struct batch_law law = batch_law_of(4096, 2048, 1000);
    struct made_up m = {.fixed = 0.1, .round = 1, .workers = 1024, .most = BATCH_LAW_MOST};
    struct batch_choice best;
    assert_int_equal(batch_law_best(&law, 2048, 1, ask, &m, &best), STATUS_OK);
    assert_int_equal(best.batch, 1024);
    assert_in_range(m.asked, 3, 5);
}

static void test_none_is_possible(void **state)
{
    (void)state;
    struct batch_law law = batch_law_of(100, 8, 1000);
    struct made_up m = {.round = 1, .workers = 1};
    struct batch_choice best;
    assert_int_equal(batch_law_best(&law, 8, 1, ask, &m, &best), STATUS_OK);
    assert_int_equal(best.batch, 0);
    assert_int_equal(m.asked, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_points),     cmocka_unit_test(test_best_is_the_square_root),
        cmocka_unit_test(test_best_of_all),      cmocka_unit_test(test_asks_for_few),
        cmocka_unit_test(test_none_is_possible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
