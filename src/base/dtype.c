/* dtype -- names, sizes and rounding of the element types.
 *
 * Every conversion rounds once, to nearest even. f64 to a 16-bit type goes through f32 rounded to
 * odd: an inexact f32 has its last bit set, so the second rounding sees on which side of a tie the
 * value was.
 */
#include "base/dtype.h"
#include <math.h>
#include "base/status.h"

static const struct {
    const char *name;
    size_t bytes;
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", 4}, [DTYPE_BF16] = {"bf16", 2}, [DTYPE_F16] = {"f16", 2},
    [DTYPE_F64] = {"f64", 8}, [DTYPE_I32] = {"i32", 4},   [DTYPE_I64] = {"i64", 8},
    [DTYPE_U8] = {"u8", 1},
};

size_t dtype_bytes(enum dtype type)
{
    CHECK_LT((unsigned)type, DTYPE_COUNT);
    return types[type].bytes;
}

const char *dtype_name(enum dtype type)
{
    CHECK_LT((unsigned)type, DTYPE_COUNT);
    return types[type].name;
}

bool dtype_parse(const char *name, enum dtype *type)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0) {
            *type = (enum dtype)i;
            return true;
        }
    }
    return false;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu,
             mantissa = h & 0x3ffu;
    if (exponent == 0) { /* zero and subnormal: a multiple of 2^-24 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 31)
        return f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    return f32_from_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float f)
{
    uint32_t bits = f32_bits(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN stays NaN, and quiet */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* from 65520 up: infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: count units of 2^-24 */
        float units = rintf(f32_from_bits(magnitude) * 0x1p24f);
        return (uint16_t)(sign | (uint32_t)units);
    }
    uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    return (uint16_t)(sign | (rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13);
}

/* Add random bits to those that are dropped: the carry out of them has the right probability. */
uint16_t f32_to_bf16_random(float f, uint32_t random)
{
    uint32_t bits = f32_bits(f);
    if ((bits & 0x7fffffffu) >= 0x7f7f0000u)
        return f32_to_bf16(f);
    return (uint16_t)((bits + (random >> 16)) >> 16);
}

uint16_t f32_to_f16_random(float f, uint32_t random)
{
    uint32_t bits = f32_bits(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x477fe000u) /* 65504 */
        return f32_to_f16(f);
    if (magnitude < 0x38800000u) { /* below 2^-14: units of 2^-24, with 20 bits after the point */
        uint32_t units = (uint32_t)(f32_from_bits(magnitude) * 0x1p44f);
        return (uint16_t)(sign | (units + (random >> 12)) >> 20);
    }
    uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    return (uint16_t)(sign | (rebiased + (random >> 19)) >> 13);
}

/* To f32, rounded to odd. */
static float f64_to_f32_odd(double d)
{
    float f = (float)d;
    if (isnan(d) || (double)f == d)
        return f;
    uint32_t bits = f32_bits(f);
    if (fabs((double)f) > fabs(d))
        bits--; /* back towards zero; infinity becomes the largest */
    return f32_from_bits(bits | 1u);
}

static double load(const void *src, enum dtype type, int64_t i)
{
    switch (type) {
    case DTYPE_F32: return ((const float *)src)[i];
    case DTYPE_BF16: return bf16_to_f32(((const uint16_t *)src)[i]);
    case DTYPE_F16: return f16_to_f32(((const uint16_t *)src)[i]);
    case DTYPE_F64: return ((const double *)src)[i];
    default: CHECK(!"dtype_convert: integers convert to nothing"); return 0;
    }
}

static void store(void *dst, enum dtype type, int64_t i, double value)
{
    switch (type) {
    case DTYPE_F32: ((float *)dst)[i] = (float)value; break;
    case DTYPE_BF16: ((uint16_t *)dst)[i] = f32_to_bf16(f64_to_f32_odd(value)); break;
    case DTYPE_F16: ((uint16_t *)dst)[i] = f32_to_f16(f64_to_f32_odd(value)); break;
    case DTYPE_F64: ((double *)dst)[i] = value; break;
    default: CHECK(!"dtype_convert: nothing converts to integers");
    }
}

void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                   int64_t count)
{
    if (dst_type == src_type) {
        if (count > 0)
            memmove(dst, src, (size_t)count * dtype_bytes(src_type));
        return;
    }
    for (int64_t i = 0; i < count; i++)
        store(dst, dst_type, i, load(src, src_type, i));
}
