/* cuda_round -- stochastic rounding to 16 bits, as base/dtype.c and base/rng.c define it: the
 * random words of four elements of a segment, and one element with its word.
 */
#ifndef OPS_CUDA_CUDA_ROUND_CUH
#define OPS_CUDA_CUDA_ROUND_CUH
#include "ops/cuda/common/vector.cuh"

/* One block of random words, as in base/rng.c. */
static __device__ inline uint4 random_block(uint64_t key, uint64_t block, uint64_t turn)
{
    uint4 x = {(unsigned)block, (unsigned)(block >> 32), (unsigned)turn, (unsigned)(turn >> 32)};
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * x.x, p1 = (uint64_t)0xcd9e8d57u * x.z;
        x = {(unsigned)(p1 >> 32) ^ x.y ^ k0, (unsigned)p1, (unsigned)(p0 >> 32) ^ x.w ^ k1,
             (unsigned)p0};
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return x;
}

/* The words of elements i .. i + 3 of a segment. They come from one block if the elements are
 * consecutive in the whole tensor and start at a multiple of four; otherwise blocks are generated
 * as needed. */
static __device__ inline void random_four(const kernel_location &place, int64_t number, int64_t i,
                                          unsigned (&words)[4])
{
    int64_t in_run = place.first + i, start = place.start, at[4];
    if (in_run >= place.run) {
        start += in_run / place.run * place.apart;
        in_run %= place.run;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        at[j] = start + in_run;
        if (++in_run == place.run) {
            start += place.apart;
            in_run = 0;
        }
    }
    int64_t block = at[0] / 4, next;
    do {
        uint4 x = random_block(place.key, (uint64_t)block, (uint64_t)number);
        next = -1;
#pragma unroll
        for (int j = 3; j >= 0; j--) {
            unsigned low = at[j] & 1 ? x.y : x.x, high = at[j] & 1 ? x.w : x.z;
            if (at[j] / 4 == block)
                words[j] = at[j] & 2 ? high : low;
            if (at[j] / 4 > block)
                next = at[j] / 4;
        }
        block = next;
    } while (next >= 0);
}

/* f32_to_bf16_random and f32_to_f16_random of base/dtype.c. */
static __device__ inline uint16_t round_bf16(float f, unsigned random)
{
    unsigned bits = __float_as_uint(f), a = bits & 0x7fffffffu;
    unsigned added = a >= 0x7f7f0000u ? 0x7fffu + (bits >> 16 & 1u) : random >> 16;
    return (uint16_t)(a > 0x7f800000u ? bits >> 16 | 0x0040u : (bits + added) >> 16);
}

static __device__ inline uint16_t round_f16(float f, unsigned random)
{
    unsigned bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    unsigned added = a >= 0x477fe000u ? 0xfffu + (a >> 13 & 1u) : random >> 19;
    unsigned h = (a - 0x38000000u + added) >> 13;
    if (a < 0x38800000u)
        h = ((unsigned)mul(__uint_as_float(a), 0x1p44f) + (random >> 12)) >> 20;
    if (a >= 0x477ff000u)
        h = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u;
    return (uint16_t)(sign | h);
}

#endif
