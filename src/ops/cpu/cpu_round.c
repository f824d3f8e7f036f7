/* cpu_round -- 16-bit copies of parameters with stochastic rounding: the bits of base/dtype with
 * the random words of base/rng, many at a time.
 *
 * Consecutive elements of the whole tensor use the words of consecutive blocks, which are computed
 * a strip at a time: one block is one lane of the compiler's vectors. All operations are
 * branch-free and exact, so the bits do not depend on the order or the grouping.
 */
#include "ops/cpu/cpu_impl.h"

enum { LANES = 8, STRIP = 512 };

/* One round of every lane's block. The halves of the products are computed separately and for few
 * lanes at a time: other forms compile to shifts and sums or spill registers, and are three times
 * slower. */
static void mix_lanes(uint32_t *restrict x0, uint32_t *restrict x1, uint32_t *restrict x2,
                      uint32_t *restrict x3, uint32_t k0, uint32_t k1)
{
    for (int l = 0; l < LANES; l++) {
        uint32_t high0 = (uint32_t)((uint64_t)0xd2511f53u * x0[l] >> 32),
                 low0 = 0xd2511f53u * x0[l];
        uint32_t high2 = (uint32_t)((uint64_t)0xcd9e8d57u * x2[l] >> 32),
                 low2 = 0xcd9e8d57u * x2[l];
        x0[l] = high2 ^ x1[l] ^ k0;
        x1[l] = low2;
        x2[l] = high0 ^ x3[l] ^ k1;
        x3[l] = low0;
    }
}

/* rng_block of (block + l, turn): words 4 l .. 4 l + 3 */
static void fill_lanes(uint64_t key, uint64_t turn, uint64_t block, uint32_t *restrict words)
{
    uint32_t x0[LANES], x1[LANES], x2[LANES], x3[LANES];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int l = 0; l < LANES; l++) {
        x0[l] = (uint32_t)(block + (uint64_t)l);
        x1[l] = (uint32_t)((block + (uint64_t)l) >> 32);
        x2[l] = (uint32_t)turn;
        x3[l] = (uint32_t)(turn >> 32);
    }
    for (int round = 0; round < 10; round++) {
        mix_lanes(x0, x1, x2, x3, k0, k1);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int l = 0; l < LANES; l++) {
        words[4 * l] = x0[l];
        words[4 * l + 1] = x1[l];
        words[4 * l + 2] = x2[l];
        words[4 * l + 3] = x3[l];
    }
}

/* From the largest finite number on, rounds to nearest even. */
static uint16_t to_bf16(float f, uint32_t random)
{
    uint32_t bits = bits_of(f), a = bits & 0x7fffffffu;
    uint32_t added = a >= 0x7f7f0000u ? 0x7fffu + (bits >> 16 & 1u) : random >> 16;
    return (uint16_t)(a > 0x7f800000u ? bits >> 16 | 0x0040u : (bits + added) >> 16);
}

static uint16_t to_f16(float f, uint32_t random)
{
    uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    float below = of_bits(a < 0x38800000u ? a : 0u); /* so that it fits an integer */
    uint32_t small = ((uint32_t)(int32_t)(below * 0x1p44f) + (random >> 12)) >> 20;
    uint32_t added = a >= 0x477fe000u ? 0xfffu + (a >> 13 & 1u) : random >> 19;
    uint32_t normal = (a - 0x38000000u + added) >> 13;
    uint32_t nan = 0x7e00u | (a >> 13 & 0x3ffu);
    uint32_t h = a < 0x38800000u ? small : normal;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? nan : h;
    return (uint16_t)(sign | h);
}

/* n <= STRIP consecutive elements of the whole tensor, starting at `element` */
static void round_strip(uint64_t key, uint64_t turn, uint64_t element, int n,
                        const float *restrict param, enum dtype type, uint16_t *restrict copy)
{
    uint32_t room[STRIP + 4 * LANES];
    int skip = (int)(element % 4);
    const uint32_t *words = room + skip;
    for (int at = 0; at < skip + n; at += 4 * LANES)
        fill_lanes(key, turn, element / 4 + (uint64_t)at / 4, room + at);
    if (type == DTYPE_BF16)
        for (int i = 0; i < n; i++)
            copy[i] = to_bf16(param[i], words[i]);
    else
        for (int i = 0; i < n; i++)
            copy[i] = to_f16(param[i], words[i]);
}

void cpu_round(const struct update_location *location, int64_t update, int64_t first, int64_t n,
               const float *param, enum dtype type, uint16_t *copy)
{
    for (int64_t done = 0, part; done < n; done += part) {
        int64_t left = location->run - (location->first + first + done) % location->run;
        part = min64(min64(STRIP, left), n - done);
        round_strip(location->key, (uint64_t)update,
                    (uint64_t)ops_whole_element(location, first + done), (int)part, param + done,
                    type, copy + done);
    }
}
