/* cpu_adamw8 -- AdamW with moments of one byte per element. A block is decoded, updated as floats
 * by cpu_adamw, and encoded again with new scales. */
#include <math.h>
#include "ops/cpu/cpu_code8.h"

struct moments { /* of one block */
    float m[OPS_BLOCK], v[OPS_BLOCK];
    uint32_t size_m[OPS_BLOCK], root[OPS_BLOCK]; /* magnitudes of m and of the root of v */
};

static void decode(int64_t n, const uint8_t *restrict m_codes, const uint8_t *restrict v_codes,
                   float unit_m, float unit_v, struct moments *restrict b)
{
    for (int64_t k = 0; k < n; k++) {
        uint32_t code = m_codes[k];
        float size = cpu_code8_decode(code & 0x7fu, unit_m, CODE8_TOP_M);
        float root = cpu_code8_decode(v_codes[k], unit_v, CODE8_TOP_V);
        b->m[k] = of_bits(bits_of(size) | (code & 0x80u) << 24);
        b->v[k] = root * root;
    }
}

/* Fills size_m and root and finds the new scales. */
static void measure(int64_t n, struct moments *restrict b, uint8_t *m_scale, uint8_t *v_scale)
{
    uint32_t most_m = 0, most_root = 0;
    for (int64_t k = 0; k < n; k++) {
        b->size_m[k] = code8_magnitude(bits_of(b->m[k]));
        b->root[k] = code8_magnitude(bits_of(sqrtf(b->v[k])));
        most_m = b->size_m[k] > most_m ? b->size_m[k] : most_m;
        most_root = b->root[k] > most_root ? b->root[k] : most_root;
    }
    *m_scale = code8_scale(most_m);
    *v_scale = code8_scale(most_root);
}

static void encode_m(int64_t n, const struct moments *restrict b, uint8_t scale,
                     uint8_t *restrict codes)
{
    uint32_t mask = scale > 0 ? 0x7fu : 0u;
    float inverse = cpu_code8_inverse(scale);
    for (int64_t k = 0; k < n; k++) {
        uint32_t code = cpu_code8_nearest(b->size_m[k], inverse, CODE8_TOP_M) & mask;
        codes[k] = (uint8_t)code8_signed(code, bits_of(b->m[k]) >> 24);
    }
}

/* element: the index in its tensor of the block's first element */
static void encode_v(int64_t n, const struct moments *restrict b, uint8_t scale, uint32_t key,
                     uint64_t element, uint64_t number, uint8_t *restrict codes)
{
    float inverse = cpu_code8_inverse(scale);
    for (int64_t k = 0; k < n; k++) {
        uint32_t random = (uint32_t)code8_random(key, element + (uint64_t)k, number);
        codes[k] = (uint8_t)cpu_code8_root(b->root[k], inverse, random);
    }
}

void cpu_adamw8(const struct cpu_factors *f, const struct update_segment *s, int64_t number,
                int64_t first, int64_t end)
{
    struct moments moments;
    float room[OPS_BLOCK];
    uint8_t *m_codes = s->m, *v_codes = s->v;
    for (int64_t i = first, n; i < end; i += n) {
        int64_t block = (i + s->skip) / OPS_BLOCK;
        uint8_t *m_scale = &s->m_scale[block], *v_scale = &s->v_scale[block];
        n = min64((block + 1) * OPS_BLOCK - s->skip, end) - i;
        decode(n, m_codes + i, v_codes + i, cpu_code8_unit(*m_scale), cpu_code8_unit(*v_scale),
               &moments);
        cpu_adamw(f, n, cpu_as_f32(s->grad, s->grad_type, i, n, room), moments.m, moments.v,
                  s->param + i);
        measure(n, &moments, m_scale, v_scale);
        encode_m(n, &moments, *m_scale, m_codes + i);
        encode_v(n, &moments, *v_scale, s->key, (uint64_t)(s->first + i), (uint64_t)number,
                 v_codes + i);
    }
}
