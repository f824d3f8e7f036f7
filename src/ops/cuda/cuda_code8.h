/* cuda_code8 -- the code of ops_code8.h in fewer instructions, for what is usual.
 *
 * Integer instructions limit the rule adamw8 on a GPU, so floats do what they can do exactly:
 *
 *     decode        a code, shifted, is a float with a small exponent: one multiplication by a power
 *                   of two, which loses nothing, gives its value; two if the scale is large
 *     to nearest    x + 2^19 2^e, where 2^e is the power of two up to x, is x rounded to four bits
 *                   after the leading one, as an integer in the last bits of the sum. Elements so
 *                   small that the code has no leading one for them take the least e that it has
 *     at random     for codes with a leading one: random bits are added below the code's last bit,
 *                   and the rest is cut off
 *
 * All have the bits of ops_code8.h: tests/ops/test_cuda_code8.c compares them. C and CUDA C++ both
 * include this header.
 */
#ifndef OPS_CUDA_CUDA_CODE8_H
#define OPS_CUDA_CUDA_CODE8_H
#include <string.h>
#include "ops/ops_code8.h"

enum {
    CODE8_ONE = 1 << 23, /* adds 1 to the exponent of a float */
    CODE8_BIAS = 127     /* of a float's exponent */
};

CODE8_INLINE uint32_t code8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CODE8_INLINE float code8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* code8_scale of code8_magnitude(most), where `most` has no sign. */
CODE8_INLINE uint32_t code8_scale_of(uint32_t most)
{
    uint32_t scale = (most + CODE8_HALF) >> 23, least = most > 0;
    scale = scale > least ? scale : least;
    return scale < 254 ? scale : 254;
}

/* The value of a code is code8_float(code << CODE8_STEP), with the sign of m, times this, and times
 * code8_second_factor where code8_is_large. */
CODE8_INLINE float code8_factor(uint32_t scale, int top)
{
    uint32_t field = scale + (uint32_t)(CODE8_BIAS - top);
    return scale == 0 ? 0.0f : code8_float((field < 254 ? field : 254) * CODE8_ONE);
}

CODE8_INLINE int code8_is_large(uint32_t scale, int top)
{
    return scale > 127u + (uint32_t)top;
}

CODE8_INLINE float code8_second_factor(uint32_t scale, int top)
{
    return code8_is_large(scale, top) ? code8_float((scale - (uint32_t)top) * CODE8_ONE) : 1.0f;
}

/* The bits of the least float whose code in a block with `scale` has a leading one. */
CODE8_INLINE uint32_t code8_least(uint32_t scale, int top)
{
    int field = (int)scale - top + 1;
    return (uint32_t)(field > 1 ? field : 1) * CODE8_ONE;
}

/* Whether code8_nearest is right in a block with this scale: neither is the sum too large, nor has a
 * subnormal float a code with a leading one. */
CODE8_INLINE int code8_is_usual(uint32_t scale, int top)
{
    uint32_t first = (uint32_t)top + 1, last = 254 - CODE8_STEP;
    return scale - first <= last - first;
}

/* code8_encode to nearest, of |x|. `scale` is that of x's block; a block of zeros, whose scale is 0,
 * has `scale` top + 1, and the codes 0. `least`: code8_least(scale, top). */
CODE8_INLINE uint32_t code8_nearest(float x, uint32_t scale, uint32_t least, int top)
{
    uint32_t bits = code8_bits(x), power = bits & 0x7f800000u, limit = (uint32_t)(top << 4 | 15);
    power = power > least ? power : least;
    uint32_t large = power + CODE8_STEP * CODE8_ONE;
    uint32_t sum = code8_bits(code8_float(bits & 0x7fffffffu) + code8_float(large));
    uint32_t code = (power >> CODE8_STEP) + (sum - large) - ((scale - (uint32_t)top + 1) << 4);
    return code < limit ? code : limit;
}

/* code8_encode at random, of a float with these bits, which are at least code8_least. `random`: 32
 * bits, of which the first 24 are those of code8_random. */
CODE8_INLINE uint32_t code8_at_random(uint32_t bits, uint32_t scale, int top, uint32_t random)
{
    uint32_t code =
        ((bits + (random >> (32 - CODE8_STEP))) >> CODE8_STEP) - ((scale - (uint32_t)top) << 4);
    uint32_t limit = (uint32_t)(top << 4 | 15);
    return code < limit ? code : limit;
}

/* code8_random of element `from` + k is the first 24 bits of code8_mix(code8_seed(...) + k *
 * CODE8_NEXT), if from + k has the same high 32 bits as `from`. */
#define CODE8_NEXT 0x85ebca6bu
CODE8_INLINE uint32_t code8_seed(uint32_t key, uint64_t from, uint64_t number)
{
    return key + (uint32_t)number * 0x9e3779b9u + (uint32_t)from * CODE8_NEXT +
           (uint32_t)(from >> 32) * 0xc2b2ae35u;
}

CODE8_INLINE uint32_t code8_mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

#endif
