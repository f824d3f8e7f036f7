/* dtype -- element types and their conversions. A type is a runtime value, never a build flag. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_COUNT
};

size_t dtype_bytes(enum dtype type);
const char *dtype_name(enum dtype type);              /* "f32", "bf16", ... */
bool dtype_parse(const char *name, enum dtype *type); /* false when unknown */

/* dst[i] = src[i], rounded once to nearest even, between any two of f32, bf16, f16 and f64.
 * Single-threaded; for files and tests. */
void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                   int64_t count);

static inline uint32_t f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float f) /* to nearest even; NaN stays NaN */
{
    uint32_t bits = f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

/* Stochastic rounding: one of the two neighbours of f, each with a probability proportional to its
 * nearness to f, so that the mean over all `random` is f (below 2^-14 an f16 is off by less than
 * 2^-44). Representable values stay unchanged. From the largest finite value up, rounding is to
 * nearest, so no other value becomes infinite. */
uint16_t f32_to_bf16_random(float f, uint32_t random);
uint16_t f32_to_f16_random(float f, uint32_t random);

#endif
