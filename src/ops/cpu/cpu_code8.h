/* cpu_code8 -- the codes of ops_code8.h without branches and with fixed shifts, so that the
 * compiler vectorizes loops over them. The results are the same for every input
 * (tests/ops/test_ops_optimizer_bits.c).
 *
 * A value is first divided by its block's scale. That is exact: the scale is a power of two, and
 * what underflows is too small for any code. Relative to 2^-1 of the scale (so that both the scale
 * and its inverse are normal floats), a code of exponent e is a float with exponent field
 * 128 - top + e. So above the code's subnormals rounding a float's bits gives the code, and below,
 * codes are multiples of 2^-(top + 2).
 */
#ifndef OPS_CPU_CPU_CODE8_H
#define OPS_CPU_CPU_CODE8_H
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_code8.h"

/* 2^(scale - 127), 0 for 0; and half of its inverse. scale: at most 254. */
static inline float cpu_code8_unit(uint8_t scale)
{
    return of_bits((uint32_t)scale << 23);
}

static inline float cpu_code8_inverse(uint8_t scale)
{
    return of_bits((255u - scale) << 23);
}

/* The float that a code without sign stands for. unit: of the block's scale. */
static inline float cpu_code8_decode(uint32_t code, float unit, int top)
{
    uint32_t field = code >> 4, exponent = field > 0 ? field : 1;
    uint32_t mantissa = (code & 15u) | (field > 0 ? 16u : 0u);
    float power = of_bits((exponent + 123u - (uint32_t)top) << 23);
    return (float)(int32_t)mantissa * power * unit;
}

/* The code of a magnitude, rounded to nearest. inverse: of the block's scale, which is not 0. */
static inline uint32_t cpu_code8_nearest(uint32_t magnitude, float inverse, int top)
{
    const uint32_t normal = 129u - (uint32_t)top, limit = (uint32_t)(top << 4 | 15);
    const float shift =
        of_bits((148u - (uint32_t)top) << 23); /* a unit of it is a subnormal step */
    float x = of_bits(magnitude) * inverse;
    uint32_t bits = bits_of(x);
    uint32_t low = bits_of(x + shift) - bits_of(shift);
    uint32_t high =
        ((bits + (CODE8_HALF - 1) + (bits >> CODE8_STEP & 1u)) >> CODE8_STEP) - ((normal - 1) << 4);
    uint32_t code = bits >> 23 < normal ? low : high;
    return code < limit ? code : limit;
}

/* The code of the root of v, rounded at random, and not 0 above 0. */
static inline uint32_t cpu_code8_root(uint32_t magnitude, float inverse, uint32_t random)
{
    const uint32_t normal = 129 - CODE8_TOP_V, limit = CODE8_TOP_V << 4 | 15;
    float x = of_bits(magnitude) * inverse;
    uint32_t bits = bits_of(x);
    float below = of_bits(bits >> 23 < normal ? bits : 0u); /* so that it fits an integer */
    uint32_t low = ((uint32_t)(int32_t)(below * 0x1p41f) + random) >> 24;
    uint32_t high = ((bits + (random >> 5)) >> CODE8_STEP) - ((normal - 1) << 4);
    uint32_t code = bits >> 23 < normal ? low : high;
    code = code > 0 ? code : 1u;
    code = code < limit ? code : limit;
    return magnitude > 0 ? code : 0u;
}

#endif
