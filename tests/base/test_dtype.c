/* Conversions match their exact definitions: every 16-bit pattern, every tie and its neighbours. */
#include <float.h>
#include <math.h>
#include "base/dtype.h"
#include "base/fixture.h"

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t bytes;
    } known[DTYPE_COUNT] = {{"f32", 4}, {"bf16", 2}, {"f16", 2}, {"f64", 8},
                            {"i32", 4}, {"i64", 8},  {"u8", 1}};
    enum dtype type;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        assert_string_equal(dtype_name((enum dtype)i), known[i].name);
        assert_int_equal(dtype_bytes((enum dtype)i), known[i].bytes);
        assert_true(dtype_parse(known[i].name, &type));
        assert_int_equal(type, i);
    }
    assert_false(dtype_parse("f8", &type));
    assert_false(dtype_parse("", &type));
}

/* The value of a 16-bit pattern by definition, with `digits` fraction bits. */
static double value_of(uint16_t h, int exponent_bits, int digits)
{
    int exponent = h >> digits & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double fraction = h & ((1 << digits) - 1);
    double magnitude = exponent == 0 ? ldexp(fraction, 1 - bias - digits)
                                     : ldexp(fraction + (1 << digits), exponent - bias - digits);
    return h & 0x8000 ? -magnitude : magnitude;
}

static bool finite_f16(uint16_t h)
{
    return (h & 0x7c00) != 0x7c00;
}

static bool finite_bf16(uint16_t h)
{
    return (h & 0x7f80) != 0x7f80;
}

static void test_every_pattern(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        if (finite_f16(h)) {
            assert_true((double)f16_to_f32(h) == value_of(h, 5, 10));
            assert_int_equal(signbit(f16_to_f32(h)) != 0, h >> 15);
            assert_int_equal(f32_to_f16(f16_to_f32(h)), h);
        } else {
            assert_int_equal(isnan(f16_to_f32(h)) != 0, (h & 0x3ff) != 0);
            assert_int_equal(isinf(f16_to_f32(h)) != 0, (h & 0x3ff) == 0);
        }
        if (finite_bf16(h)) {
            assert_true((double)bf16_to_f32(h) == value_of(h, 8, 7));
            assert_int_equal(f32_to_bf16(bf16_to_f32(h)), h);
        }
    }
}

/* Between neighbours low < high, a tie rounds to the even one, anything else to the nearer. From
 * f64, the smallest step off the tie must count, which shows that no conversion rounds twice. */
static void check_between(enum dtype type, uint16_t low, double low_value, double high_value)
{
    double tie = (low_value + high_value) / 2;
    uint16_t high = (uint16_t)(low + 1), even = low & 1 ? high : low;
    double values[] = {low_value, nextafter(tie, low_value), tie, nextafter(tie, high_value)};
    uint16_t wanted[] = {low, low, even, high}, got[4];
    dtype_convert(got, type, values, DTYPE_F64, 4);
    assert_memory_equal(got, wanted, sizeof got);
    for (int i = 0; i < 4; i++) {
        float single = (float)values[i];
        if ((double)single == values[i]) {
            dtype_convert(&got[i], type, &single, DTYPE_F32, 1);
            assert_int_equal(got[i], wanted[i]);
        }
    }
}

static void test_rounding(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7bff; i++)
        check_between(DTYPE_F16, (uint16_t)i, value_of((uint16_t)i, 5, 10),
                      value_of((uint16_t)(i + 1), 5, 10));
    for (uint32_t i = 0; i < 0x7f7f; i++)
        check_between(DTYPE_BF16, (uint16_t)i, value_of((uint16_t)i, 8, 7),
                      value_of((uint16_t)(i + 1), 8, 7));
}

static void test_edges(void **state)
{
    (void)state;
    assert_int_equal(f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(f32_to_f16(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(0x1p-25f), 0);
    assert_int_equal(f32_to_f16(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(f32_to_f16(-0.0f), 0x8000);
    assert_true(isnan(f16_to_f32(f32_to_f16(NAN))));
    assert_int_equal(f32_to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(f32_to_bf16(INFINITY), 0x7f80);
    uint32_t low_nan = 0x7f800001;
    float nan;
    memcpy(&nan, &low_nan, sizeof nan);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(nan))));

    double wide[] = {1e300, -1e300, NAN, 1e-300, INFINITY};
    uint16_t half[5];
    dtype_convert(half, DTYPE_BF16, wide, DTYPE_F64, 5);
    assert_int_equal(half[0], 0x7f80);
    assert_int_equal(half[1], 0xff80);
    assert_true(isnan(bf16_to_f32(half[2])));
    assert_int_equal(half[3], 0);
    assert_int_equal(half[4], 0x7f80);
    dtype_convert(half, DTYPE_F16, wide, DTYPE_F64, 5);
    assert_int_equal(half[0], 0x7c00);
    assert_true(isnan(f16_to_f32(half[2])));
    dtype_convert(half, DTYPE_F16, wide, DTYPE_F64, 0);
}

/* --- stochastic rounding -------------------------------------------------------------------- */

typedef uint16_t random_fn(float f, uint32_t random);

/* Over all values of the `used` high random bits, f rounds up exactly `ups` times and otherwise
 * down, and -f does the same. The low random bits have no effect. */
static void check_chance(random_fn *round, float f, int used, uint16_t down, uint32_t ups)
{
    uint32_t count = 0, low = ~0u >> used;
    for (uint32_t r = 0; r >> used == 0; r++) {
        uint32_t random = r << (32 - used);
        uint16_t h = round(f, random);
        assert_true(h == down || h == down + 1);
        assert_int_equal(round(f, random | low), h);
        assert_int_equal(round(-f, random), h | 0x8000);
        count += h != down;
    }
    assert_int_equal(count, ups);
}

static float of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void test_random_chances(void **state)
{
    (void)state;
    for (uint32_t exponent = 0; exponent < 255; exponent = exponent * 3 + 1) /* 0: subnormal */
        for (uint32_t part = 0; part < 65536; part = part * 5 + 2) {
            uint32_t bits = exponent << 23 | 5 << 16 | part;
            check_chance(f32_to_bf16_random, of_bits(bits), 16, (uint16_t)(bits >> 16), part);
        }
    for (uint32_t exponent = 1; exponent < 31; exponent = exponent * 2 + 1)
        for (uint32_t part = 0; part < 8192; part = part * 3 + 1) {
            uint32_t bits = (exponent + 127 - 15) << 23 | 9 << 13 | part;
            check_chance(f32_to_f16_random, of_bits(bits), 13, (uint16_t)(exponent << 10 | 9),
                         part);
        }
    static const struct {
        double units; /* in units of 2^-24 */
        uint16_t down;
        uint32_t ups; /* out of 2^20 */
    } small[] = {{0.25, 0, 1 << 18}, {1023.75, 1023, 3 << 18}, {0x1p-20, 0, 1}, {0x1.8p-21, 0, 0}};
    for (int i = 0; i < 4; i++)
        check_chance(f32_to_f16_random, (float)(small[i].units * 0x1p-24), 20, small[i].down,
                     small[i].ups);
}

/* Values that are exact in 16 bits do not change. Overflow to infinity happens for the same values
 * as with round-to-nearest. */
static void test_random_edges(void **state)
{
    (void)state;
    for (uint32_t random = 0;; random = ~0u) {
        for (uint32_t i = 0; i < 65536; i++) {
            uint16_t h = (uint16_t)i;
            assert_int_equal(f32_to_f16_random(f16_to_f32(h), random), f32_to_f16(f16_to_f32(h)));
            assert_int_equal(f32_to_bf16_random(bf16_to_f32(h), random),
                             f32_to_bf16(bf16_to_f32(h)));
        }
        assert_int_equal(f32_to_f16_random(nextafterf(65520, 0), random), 0x7bff);
        assert_int_equal(f32_to_f16_random(-nextafterf(65520, 0), random), 0xfbff);
        assert_int_equal(f32_to_f16_random(65520, random), 0x7c00);
        assert_int_equal(f32_to_f16_random(FLT_MAX, random), 0x7c00);
        float tie = ldexpf(511, 119); /* between bf16's largest finite number and infinity */
        assert_int_equal(f32_to_bf16_random(nextafterf(tie, 0), random), 0x7f7f);
        assert_int_equal(f32_to_bf16_random(tie, random), 0x7f80);
        assert_int_equal(f32_to_bf16_random(-FLT_MAX, random), 0xff80);
        assert_int_equal(f32_to_bf16_random(-0.0f, random), 0x8000);
        if (random != 0)
            break;
    }
}

static void test_pairs(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    const double values[] = {0, 1, -2.5, 0.0078125, 240}; /* exact in all types */
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++) {
            char first[40], second[40];
            double back[5];
            dtype_convert(first, types[a], values, DTYPE_F64, 5);
            dtype_convert(second, types[b], first, types[a], 5);
            dtype_convert(back, DTYPE_F64, second, types[b], 5);
            assert_memory_equal(back, values, sizeof values);
        }
    }
    const int64_t integers[] = {1, -5};
    int64_t copy[2];
    dtype_convert(copy, DTYPE_I64, integers, DTYPE_I64, 2);
    assert_memory_equal(copy, integers, sizeof copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),        cmocka_unit_test(test_every_pattern),
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_pairs),        cmocka_unit_test(test_random_chances),
        cmocka_unit_test(test_random_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
