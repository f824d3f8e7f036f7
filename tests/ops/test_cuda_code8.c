/* test_cuda_code8 -- the short forms of the 8-bit code that kernels use against ops_code8.h: every
 * code with every scale, every largest magnitude, and magnitudes around every place where a
 * rounding changes. */
#include "ops/cuda/cuda_code8.h"
#include "testing.h"

static uint32_t decode(uint32_t code, uint32_t scale, int top)
{
    float x = code8_float(code << CODE8_STEP) * code8_factor(scale, top);
    return code8_bits(code8_is_large(scale, top) ? x * code8_second_factor(scale, top) : x);
}

static void every_code_is_decoded(void **state)
{
    (void)state;
    for (uint32_t scale = 0; scale <= 254; scale++)
        for (uint32_t code = 0; code < 256; code++) {
            assert_int_equal(decode(code, scale, CODE8_TOP_V),
                             code8_decode(code, (uint8_t)scale, CODE8_TOP_V));
            if (code < 128)
                assert_int_equal(decode(code, scale, CODE8_TOP_M),
                                 code8_decode(code, (uint8_t)scale, CODE8_TOP_M));
        }
}

/* Steps of 997 meet every mantissa near enough to a change; all bits are tried around it. */
static void every_largest_magnitude_has_its_scale(void **state)
{
    (void)state;
    for (uint32_t most = 0; most <= 0x7fffffffu;
         most += most % CODE8_HALF < 64 || most % CODE8_HALF > CODE8_HALF - 1100 ? 1 : 997)
        if (code8_scale_of(most) != code8_scale(code8_magnitude(most)))
            fail_msg("largest magnitude %08x", most);
}

/* Fails if a magnitude that may be in a block with this scale has another code. */
static void compare(uint32_t a, uint32_t scale)
{
    static const uint32_t random[] = {0, 1, 0x800000, 0x7fffff, 0xffffff, 0x123456, 0xedcba9};
    uint32_t of_zero = scale > 0 ? scale : CODE8_TOP_M + 1u;
    if (a > 0x7f7fffff || code8_scale(a) > scale)
        return;
    if (code8_is_usual(of_zero, CODE8_TOP_M) &&
        code8_nearest(code8_float(a | 0x80000000u), of_zero, code8_least(of_zero, CODE8_TOP_M),
                      CODE8_TOP_M) != code8_encode(a, (uint8_t)scale, CODE8_TOP_M, -1))
        fail_msg("m %08x in a block with scale %u", a, scale);
    for (size_t i = 0; scale > 0 && i < sizeof random / sizeof *random; i++)
        if (a >= code8_least(scale, CODE8_TOP_V) &&
            code8_at_random(a, scale, CODE8_TOP_V, random[i] << 8) !=
                code8_encode(a, (uint8_t)scale, CODE8_TOP_V, (int32_t)random[i]))
            fail_msg("root of v %08x in a block with scale %u, random bits %06x", a, scale,
                     random[i]);
}

/* The places are halves of steps, of codes with and without a leading one. */
static void magnitudes_have_their_codes(void **state)
{
    (void)state;
    for (uint32_t scale = 0; scale <= 254; scale++)
        for (uint32_t back = 0; back <= 34; back++)
            for (uint32_t half = 0; half < 64; half++)
                for (int near = -2; near <= 2; near++) {
                    uint32_t field = scale > back ? scale - back : 0;
                    compare((field << 23) + half * (CODE8_HALF / 2) + (uint32_t)near, scale);
                    compare((field << 23) + (half << 17 | half << 11 | half << 5) + (uint32_t)near,
                            scale);
                }
}

/* Infinities and NaNs have the largest code, as the largest float has. */
static void what_is_not_finite_has_the_largest_code(void **state)
{
    (void)state;
    for (uint32_t bits = 0x7f800000u; bits < 0x7fffff00u; bits += 0xfff) {
        assert_int_equal(code8_at_random(bits, 254, CODE8_TOP_V, bits * 77), 255);
        assert_int_equal(
            code8_encode(code8_magnitude(bits), 254, CODE8_TOP_V, (int32_t)(bits * 77 >> 8)), 255);
    }
}

/* All but zero have the sign of their float. */
static void zero_has_no_sign(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 128; code++)
        for (uint32_t next = 0; next < 128; next += 127)
            for (uint32_t bits = 0; bits < 256; bits++) {
                uint32_t sign = code > 0 ? bits & 0x80u : 0, other = next > 0 ? bits & 0x80u : 0;
                assert_int_equal(code8_signed(code, bits), code | sign);
                assert_int_equal(
                    code8_signed(code | next << 8 | code << 16 | next << 24, bits * 0x01010101u),
                    (code | sign) * 0x00010001u | (next | other) * 0x01000100u);
            }
}

static void random_bits_are_the_same(void **state)
{
    (void)state;
    for (uint64_t from = 0xfffffff0u; from < 0x100000010u; from++)
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t word = code8_mix(code8_seed(99, from, 7) + k * CODE8_NEXT);
            if ((from + k) >> 32 == from >> 32)
                assert_int_equal(word >> 8, code8_random(99, from + k, 7));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_decoded),
        cmocka_unit_test(every_largest_magnitude_has_its_scale),
        cmocka_unit_test(magnitudes_have_their_codes),
        cmocka_unit_test(what_is_not_finite_has_the_largest_code),
        cmocka_unit_test(zero_has_no_sign),
        cmocka_unit_test(random_bits_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
