/* Known answers of Philox, moments of the distributions, independence of streams, permutations. */
#include <math.h>
#include "base/fixture.h"
#include "base/rng.h"

static void test_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t key;
        uint32_t counter[4], answer[4];
    } known[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {0xffffffffffffffff,
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        rng_block(known[i].key, known[i].counter, out);
        assert_memory_equal(out, known[i].answer, sizeof out);
    }
}

static void test_streams(void **state)
{
    (void)state;
    struct rng a = rng_stream(1, "init"), b = rng_stream(1, "init");
    assert_true(a.key == b.key);
    assert_true(rng_bits(a, 7) == rng_bits(b, 7));
    assert_true(a.key != rng_stream(2, "init").key);
    assert_true(a.key != rng_stream(1, "order").key);
    assert_true(rng_bits(a, 0) != rng_bits(a, 1));
    assert_true(rng_bits(a, 1) != rng_bits(a, (uint64_t)1 << 32));
    /* Half of the bits differ between consecutive numbers. */
    int differ = 0;
    for (uint64_t i = 0; i < 1000; i++)
        differ += __builtin_popcountll(rng_bits(a, i) ^ rng_bits(a, i + 1));
    assert_true(differ > 31000 && differ < 33000);
}

/* Four consecutive words share a block; another turn uses another block. */
static void test_words(void **state)
{
    (void)state;
    struct rng rng = rng_stream(3, "words");
    for (uint64_t index = 0x3fffffffcu; index < 0x400000004u; index++) {
        const uint32_t counter[4] = {(uint32_t)(index / 4), (uint32_t)(index / 4 >> 32), 9, 2};
        uint32_t block[4];
        rng_block(rng.key, counter, block);
        assert_int_equal(rng_word(rng, index, 0x200000009u), block[index % 4]);
    }
    int differ = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        differ += __builtin_popcount(rng_word(rng, i, 1) ^ rng_word(rng, i, 2));
        differ += __builtin_popcount(rng_word(rng, i, 1) ^ rng_word(rng, i + 1, 1));
    }
    assert_true(differ > 31000 && differ < 33000);
}

static void test_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    struct rng rng = rng_stream(42, "moments");
    double sum = 0, square = 0, normal = 0, normal2 = 0, normal4 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(rng, i), z = rng_normal(rng, i);
        assert_true(u >= 0 && u < 1);
        assert_true(isfinite(z));
        sum += u, square += u * u;
        normal += z, normal2 += z * z, normal4 += z * z * z * z;
    }
    /* Five standard errors. */
    assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
    assert_true(fabs(square / N - 1.0 / 3) < 5 * 0.2981 / sqrt(N));
    assert_true(fabs(normal / N) < 5 / sqrt(N));
    assert_true(fabs(normal2 / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(normal4 / N - 3) < 5 * sqrt(96.0 / N));
}

static void test_below(void **state)
{
    (void)state;
    struct rng rng = rng_stream(3, "below");
    int counts[7] = {0};
    for (uint64_t i = 0; i < 70000; i++) {
        uint64_t value = rng_below(rng, i, 7);
        assert_true(value < 7);
        counts[value]++;
        assert_int_equal(rng_below(rng, i, 1), 0);
    }
    for (int i = 0; i < 7; i++)
        assert_true(abs(counts[i] - 10000) < 500);
    /* With this bound, a naive modulo would draw the lowest third of the values twice as often. */
    uint64_t bound = ((uint64_t)1 << 63) + ((uint64_t)1 << 62);
    int low = 0;
    for (uint64_t i = 0; i < 9000; i++)
        low += rng_below(rng, i, bound) < bound / 3;
    assert_true(abs(low - 3000) < 250);
}

static void test_permutation_small(void **state)
{
    (void)state;
    for (uint64_t count = 1; count <= 300; count++) {
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct rng rng = rng_stream(seed, "order");
            char seen[300] = {0};
            for (uint64_t i = 0; i < count; i++) {
                uint64_t to = rng_permute(rng, i, count);
                assert_true(to < count);
                assert_false(seen[to]);
                seen[to] = 1;
            }
        }
    }
}

static void test_permutation_large(void **state)
{
    (void)state;
    enum { COUNT = 100003 };
    struct rng rng = rng_stream(9, "order");
    char *seen = calloc(COUNT, 1);
    double products = 0, middle = (COUNT - 1) / 2.0;
    int fixed = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t to = rng_permute(rng, i, COUNT);
        if (to >= COUNT || seen[to])
            fail_msg("%d goes to %d", (int)i, (int)to);
        else
            seen[to] = 1;
        fixed += to == i;
        products += ((double)i - middle) * ((double)to - middle);
    }
    free(seen);
    assert_true(fixed < 12);
    /* Positions before and after are uncorrelated. */
    assert_true(fabs(products / COUNT / (COUNT * (double)COUNT / 12)) < 5 / sqrt(COUNT));
    assert_true(rng_permute(rng, 5, COUNT) != rng_permute(rng_stream(10, "order"), 5, COUNT));

    for (int shift = 40; shift < 64; shift++) {
        uint64_t count = ((uint64_t)1 << shift) + 1;
        assert_true(rng_permute(rng, count - 1, count) < count);
    }
    assert_true(rng_permute(rng, 0, UINT64_MAX) < UINT64_MAX);
}

/* Many at a time have the bits of one at a time, and both are those of the formula in libm, to a
 * few units of the last bit; from any start, in any number, up to the ends of the ranges. */
static void test_normals(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 63, 64, 65, 1000};
    static const uint64_t firsts[] = {0, 7, (uint64_t)1 << 32, ((uint64_t)1 << 32) - 30};
    struct rng rng = rng_stream(5, "normals");
    float values[1001];
    for (int c = 0; c < 6; c++)
        for (int f = 0; f < 4; f++) {
            values[counts[c]] = 42;
            rng_normals(rng, firsts[f], counts[c], 0.3, values);
            assert_true(values[counts[c]] == 42);
            for (int64_t i = 0; i < counts[c]; i++)
                assert_true(values[i] == (float)(0.3 * rng_normal(rng, firsts[f] + (uint64_t)i)));
        }
    for (uint64_t i = 0; i < 200000; i++) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t x[4];
        rng_block(rng.key, counter, x);
        double u = (double)((x[0] | (uint64_t)x[1] << 32) >> 11);
        double t = (double)((x[2] | (uint64_t)x[3] << 32) >> 11) * 0x1p-53;
        double expected = sqrt(-2 * log((u + 1) * 0x1p-53)) * cos(6.283185307179586 * t);
        assert_true(fabs(rng_normal(rng, i) - expected) < 1e-14);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normals),           cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_streams),           cmocka_unit_test(test_words),
        cmocka_unit_test(test_moments),           cmocka_unit_test(test_below),
        cmocka_unit_test(test_permutation_small), cmocka_unit_test(test_permutation_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
