/* Choosing a token by classes of logits gives the same token as sorting: for all temperatures, k,
 * p, random numbers, and for logits that are equal, extreme or -inf. Other values that are not
 * finite give no token. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "testing.h"
#include "train/generate.h"

/* --- the reference: pops ids off a heap, one by one, and adds masses in that order ------------ */

static bool before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, int32_t *heap, int64_t count, int64_t i)
{
    int32_t id = heap[i];
    for (int64_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && before(logits, heap[child + 1], heap[child]))
            child++;
        if (!before(logits, heap[child], id))
            break;
        heap[i] = heap[child];
    }
    heap[i] = id;
}

static int32_t greedy(const float *logits, int64_t vocab)
{
    int32_t best = 0;
    for (int32_t id = 1; id < vocab; id++)
        if (logits[id] > logits[best])
            best = id;
    return best;
}

/* Mass of all ids that may be chosen, relative to exp(top). */
static double total_mass(const float *logits, int64_t vocab, double top, double temperature)
{
    double mass = 0.0;
    for (int64_t id = 0; id < vocab; id++)
        mass += exp((logits[id] - top) / temperature);
    return mass;
}

static int32_t by_heap(const struct sampling *s, const float *logits, int64_t vocab, double random,
                       int32_t *order)
{
    int32_t best = greedy(logits, vocab);
    if (s->temperature <= 0.0)
        return best;
    int64_t left = vocab;
    for (int64_t id = 0; id < vocab; id++)
        order[id] = (int32_t)id;
    for (int64_t i = vocab / 2 - 1; i >= 0; i--)
        sift_down(logits, order, vocab, i);

    /* Pop ids off the heap, at least one, until k of them or the share p is reached; they are
     * stored at the end of `order`, the best one last. */
    int64_t most = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double limit = s->top_p < 1.0
                       ? s->top_p * total_mass(logits, vocab, logits[best], s->temperature)
                       : INFINITY;
    double mass = 0.0;
    while (left == vocab || (vocab - left < most && mass < limit)) {
        int32_t id = order[0];
        order[0] = order[--left];
        sift_down(logits, order, left, 0);
        order[left] = id;
        mass += exp((logits[id] - logits[best]) / s->temperature);
    }
    double target = random * mass, passed = 0.0;
    for (int64_t i = vocab - 1; i >= left; i--) {
        passed += exp((logits[order[i]] - logits[best]) / s->temperature);
        if (passed > target)
            return order[i];
    }
    return order[left];
}

/* --- logits ----------------------------------------------------------------------------------- */

enum { VOCAB = 3001, ROUNDS = 24 };
static const struct sampling ways[] = {
    {.temperature = 0.0, .top_p = 1.0},
    {.temperature = 1.0, .top_p = 1.0},
    {.temperature = 0.8, .top_p = 0.95},
    {.temperature = 1e-3, .top_p = 0.5},
    {.temperature = 50.0, .top_p = 0.999999},
    {.temperature = 1.0, .top_p = 1e-6},
    {.temperature = 1.0, .top_p = 1.0, .top_k = 1},
    {.temperature = 0.7, .top_p = 1.0, .top_k = 40},
    {.temperature = 0.7, .top_p = 0.9, .top_k = 40},
    {.temperature = 1.3, .top_p = 0.9, .top_k = VOCAB - 1},
    {.temperature = 1e-9, .top_p = 1.0},
    {.temperature = 1e-36, .top_p = 0.9},
    {.temperature = 1e9, .top_p = 0.5},
};

static float uniform(uint64_t at)
{
    return (float)rng_uniform(rng_stream(7, "logits"), at);
}

static void compare(const float *logits, int64_t vocab)
{
    static int32_t order[VOCAB], heap[VOCAB];
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (int i = 0; i <= ROUNDS; i++) {
            double random = i < ROUNDS ? i / (double)ROUNDS : 0.99999999999999989;
            assert_int_equal(sampling_pick(&ways[w], logits, vocab, random, order),
                             by_heap(&ways[w], logits, vocab, random, heap));
        }
}

static float logits[VOCAB];

static void expect_no_choice(void)
{
    static int32_t order[VOCAB];
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        assert_int_equal(sampling_pick(&ways[w], logits, VOCAB, 0.5, order), -1);
}

static void fill(double spread, double step)
{
    for (int i = 0; i < VOCAB; i++) {
        double x = spread * (uniform(3u * (unsigned)i) + uniform(3u * (unsigned)i + 1) - 1);
        logits[i] = (float)(step > 0 ? step * floor(x / step) : x);
    }
}

static void test_spread_and_peaked_logits_match_the_reference(void **state)
{
    (void)state;
    for (double spread = 1e-6; spread < 1e4; spread *= 100) {
        fill(spread, 0);
        compare(logits, VOCAB);
    }
    compare(logits, 1);
    compare(logits, 2);
}

static void test_equal_logits_match_the_reference(void **state)
{
    (void)state;
    fill(5, 0.25); /* as in bf16: many of each value */
    compare(logits, VOCAB);
    fill(0, 0); /* all equal: masses are whole numbers, so a mass may equal its target */
    compare(logits, VOCAB);
    fill(3, 6); /* two values */
    compare(logits, VOCAB);
}

static void test_infinite_logits(void **state)
{
    (void)state;
    fill(4, 0);
    for (int i = 0; i < VOCAB; i += 2)
        logits[i] = -INFINITY;
    compare(logits, VOCAB);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    logits[77] = 1;
    compare(logits, VOCAB);
    logits[99] = INFINITY;
    expect_no_choice();
    logits[77] = logits[99] = -INFINITY;
    expect_no_choice();
}

static void test_nan_gives_no_token(void **state)
{
    (void)state;
    fill(4, 0);
    logits[1234] = NAN;
    expect_no_choice();
    logits[0] = -NAN;
    expect_no_choice();
    logits[1234] = 0;
    expect_no_choice();
}

static void test_zeros_of_both_signs_are_equal(void **state)
{
    (void)state;
    fill(4, 0);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = i % 3 == 0 ? -0.0f : i % 3 == 1 ? 0.0f : -fabsf(logits[i]);
    compare(logits, VOCAB);
}

/* Each id has a quarter of the random number's range, so targets fall exactly on the end of a
 * mass. */
static void test_targets_on_the_border_match_the_reference(void **state)
{
    (void)state;
    const float equal[] = {1, 1, 1, 1};
    compare(equal, 4);
}

static void test_greedy_picks_the_largest_and_then_the_lowest_id(void **state)
{
    (void)state;
    const float some[] = {0.0f, 3.0f, 1.0f, 3.0f};
    int32_t order[4];
    struct sampling largest = {.temperature = 0.0, .top_p = 1.0};
    assert_int_equal(sampling_pick(&largest, some, 4, 0.99, order), 1);
}

static void test_top_k_and_top_p_cut_the_tail(void **state)
{
    (void)state;
    const float some[] = {logf(0.1f), logf(0.5f), logf(0.3f), logf(0.1f)};
    int32_t order[4];
    struct sampling top_k = {.temperature = 1.0, .top_p = 1.0, .top_k = 2};
    struct sampling top_p = {.temperature = 1.0, .top_p = 0.7};
    for (int i = 0; i < 100; i++) {
        int32_t a = sampling_pick(&top_k, some, 4, i / 100.0, order);
        int32_t b = sampling_pick(&top_p, some, 4, i / 100.0, order);
        assert_int_equal(a, i < 62 ? 1 : a == 1 && i == 62 ? 1 : 2); /* 0.5 / 0.8 = 0.625 */
        assert_int_equal(a, b);
    }
}

static void test_frequencies_follow_the_probabilities(void **state)
{
    (void)state;
    const double share[] = {0.1, 0.5, 0.3, 0.1};
    float some[4];
    int32_t order[4];
    int hits[4] = {0};
    struct sampling plain = {.temperature = 1.0, .top_p = 1.0};
    for (int i = 0; i < 4; i++)
        some[i] = (float)log(share[i]) + 5.0f;
    for (int i = 0; i < 10000; i++)
        hits[sampling_pick(&plain, some, 4, rng_uniform(rng_stream(1, "s"), (uint64_t)i), order)]++;
    for (int i = 0; i < 4; i++)
        assert_true(fabs(hits[i] / 1e4 - share[i]) < 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_picks_the_largest_and_then_the_lowest_id),
        cmocka_unit_test(test_top_k_and_top_p_cut_the_tail),
        cmocka_unit_test(test_frequencies_follow_the_probabilities),
        cmocka_unit_test(test_spread_and_peaked_logits_match_the_reference),
        cmocka_unit_test(test_equal_logits_match_the_reference),
        cmocka_unit_test(test_infinite_logits),
        cmocka_unit_test(test_nan_gives_no_token),
        cmocka_unit_test(test_zeros_of_both_signs_are_equal),
        cmocka_unit_test(test_targets_on_the_border_match_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
