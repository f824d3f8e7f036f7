/* ops_code8 -- the 8-bit code of AdamW's moments (rule adamw8).
 *
 * A block is one of the 64-element blocks of a piece, cut where a tensor begins or ends. It has one
 * scale for m and one for v, powers of two, each a byte: 2^(scale - 127), 0 for a block of zeros.
 * An element is a small float relative to the scale:
 *
 *     m          sign, 3 bits of exponent, 4 of mantissa     1.9375 .. 2^-6, then steps of 2^-10
 *     sqrt(v)    4 bits of exponent, 4 of mantissa           1.9375 .. 2^-14, then steps of 2^-18
 *
 * The root halves the range of v, so one byte holds 2^-36 .. 3.75 of it. Everything is done in
 * integers on the bits of floats, so the result does not depend on the machine.
 *
 * m is rounded to nearest. v must not be: with beta2 = 0.999 a step changes the root by 0.05 %,
 * less than half a step of the code, and v would stand still. It is rounded up or down at random,
 * with bits that follow from the tensor, the element and the number of the update. A v above 0
 * never becomes 0, so that a step is never divided by eps alone. What is decoded is encoded again
 * without loss (to nearest), so states can be saved as floats, too. A zero has no sign: otherwise
 * that of a later gradient of zero, which depends on who sums it, would be in the code.
 *
 * C and CUDA C++ both include this header, so it includes nothing of sifr.
 */
#ifndef OPS_OPS_CODE8_H
#define OPS_OPS_CODE8_H
#include <stdint.h>

#ifdef __CUDACC__
#define CODE8_INLINE __host__ __device__ static inline
#else
#define CODE8_INLINE static inline
#endif

enum {
    CODE8_TOP_M = 7, /* largest exponent field */
    CODE8_TOP_V = 15,
    CODE8_STEP = 19,                    /* bits of a float's mantissa that the code drops */
    CODE8_HALF = (1 << CODE8_STEP) / 2, /* half a step */
    CODE8_LARGEST = 0x7f7fffff          /* bits of the largest float */
};

/* The bits of |x|, at most those of the largest float. `bits`: those of x. */
CODE8_INLINE uint32_t code8_magnitude(uint32_t bits)
{
    uint32_t a = bits & 0x7fffffffu;
    return a < CODE8_LARGEST ? a : CODE8_LARGEST;
}

/* The scale of a block whose largest magnitude is `most`: the exponent of `most` rounded to the
 * code's mantissa. */
CODE8_INLINE uint8_t code8_scale(uint32_t most)
{
    uint32_t rounded = most + (CODE8_HALF - 1) + (most >> CODE8_STEP & 1u);
    uint32_t scale = rounded >> 23;
    if (most == 0)
        return 0;
    return (uint8_t)(scale < 1 ? 1 : scale > 254 ? 254 : scale);
}

/* mantissa >> shift, rounded: to nearest even, or, if `random` is not negative, up when the dropped
 * bits plus the first `shift` of 24 random bits carry. */
CODE8_INLINE uint32_t code8_round(uint32_t mantissa, int shift, int32_t random)
{
    if (shift > 30)
        return 0;
    uint32_t added = random < 0    ? (1u << (shift - 1)) - 1 + (mantissa >> shift & 1u)
                     : shift <= 24 ? (uint32_t)random >> (24 - shift)
                                   : (uint32_t)random << (shift - 24);
    return (mantissa + added) >> shift;
}

/* The code of a magnitude in a block with `scale`, without the sign. top: CODE8_TOP_M or
 * CODE8_TOP_V. random: 24 bits, or -1 to round to nearest. */
CODE8_INLINE uint32_t code8_encode(uint32_t magnitude, uint8_t scale, int top, int32_t random)
{
    uint32_t field = magnitude >> 23, limit = (uint32_t)(top << 4 | 15), code;
    int exponent = (int)(field > 0 ? field : 1) - (int)scale + top; /* in the code */
    uint32_t mantissa = (magnitude & 0x7fffffu) | (field > 0 ? 0x800000u : 0u);
    if (scale == 0)
        return 0;
    while (mantissa < 0x800000u && exponent > 1) { /* a subnormal float in a block of tiny ones */
        mantissa <<= 1;
        exponent--;
    }
    if (exponent >= 1) /* the leading bit of the mantissa adds 1 to the exponent field */
        code = ((uint32_t)(exponent - 1) << 4) + code8_round(mantissa, CODE8_STEP, random);
    else
        code = code8_round(mantissa, CODE8_STEP + 1 - exponent, random);
    return code < limit ? code : limit;
}

/* One to four codes of m, a byte each, with the signs in the first bits of the bytes of `signs`. */
CODE8_INLINE uint32_t code8_signed(uint32_t codes, uint32_t signs)
{
    return codes | (signs & (codes + 0x7f7f7f7fu) & 0x80808080u);
}

/* The bits of the float that a code without sign stands for. */
CODE8_INLINE uint32_t code8_decode(uint32_t code, uint8_t scale, int top)
{
    uint32_t field = code >> 4, mantissa = code & 15u;
    int exponent = (int)(field > 0 ? field : 1) - top + (int)scale;    /* of a float, or below 1 */
    uint32_t bits = (mantissa | (field > 0 ? 16u : 0u)) << CODE8_STEP; /* 24 bits with leading 1 */
    if (scale == 0 || bits == 0)
        return 0;
    while (bits < 0x800000u && exponent > 1) { /* a subnormal of the code is a normal float */
        bits <<= 1;
        exponent--;
    }
    if (exponent < 1) /* a subnormal float */
        return 1 - exponent < 24 ? bits >> (1 - exponent) : 0;
    return bits < 0x800000u ? bits : ((uint32_t)exponent << 23) + (bits - 0x800000u);
}

/* 24 random bits for the root of v of one element. `key` names the tensor and its elements' state,
 * `number` is that of the update. */
CODE8_INLINE int32_t code8_random(uint32_t key, uint64_t element, uint64_t number)
{
    uint32_t x = key + (uint32_t)number * 0x9e3779b9u + (uint32_t)element * 0x85ebca6bu +
                 (uint32_t)(element >> 32) * 0xc2b2ae35u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (int32_t)((x ^ x >> 16) >> 8);
}

#endif
