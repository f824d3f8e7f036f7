/* rng_normals -- normal numbers by Box and Muller: sqrt(-2 log u) cos(2 pi t) of the two halves of a
 * block.
 *
 * Models begin with billions of them, so blocks, logarithm and cosine are plain loops over LANES
 * numbers, which compilers vectorize; libm's functions take one number at a time, and their bits
 * differ between CPUs. Errors are a few units of the 53rd bit, far below those of the floats that
 * the numbers become. Every operation is rounded to nearest, so one number has the same bits as
 * many.
 *
 *     log x     x = m 2^e with m near 1; log m = 2 atanh s, s = (m - 1) / (m + 1), |s| < 0.172
 *     cos 2 pi t    t = q / 4 + x with |x| <= 1/8; the sine or cosine of 2 pi x, by quadrant q
 */
#include <math.h>
#include <string.h>
#include "base/rng.h"

enum { LANES = 64 };

static inline double log_of(double x)
{
    const uint64_t root = 0x3fe6a09e667f3bcdull; /* sqrt(1/2) */
    const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
    uint64_t bits, one;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (int64_t)(bits - root) >> 52;
    one = bits - ((uint64_t)e << 52);
    double m;
    memcpy(&m, &one, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s, sum = 1.0 / 23;
    sum = sum * z + 1.0 / 21;
    sum = sum * z + 1.0 / 19;
    sum = sum * z + 1.0 / 17;
    sum = sum * z + 1.0 / 15;
    sum = sum * z + 1.0 / 13;
    sum = sum * z + 1.0 / 11;
    sum = sum * z + 1.0 / 9;
    sum = sum * z + 1.0 / 7;
    sum = sum * z + 1.0 / 5;
    sum = sum * z + 1.0 / 3;
    return (double)e * ln2_high + (2 * s + (2 * s * (z * sum) + (double)e * ln2_low));
}

/* t in [0, 1). */
static inline double cos_of_turn(double t)
{
    double q = floor(4 * t + 0.5), y = 6.283185307179586 * (t - 0.25 * q), z = y * y;
    double c = 1.0 / 20922789888000;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 0.5;
    c = c * z + 1;
    double s = 1.0 / 355687428096000;
    s = s * z - 1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = y + y * (z * s);
    double value = q == 1 || q == 3 ? s : c;
    return q == 1 || q == 2 ? -value : value;
}

/* u: 53 random bits; + 1, so that the logarithm is finite. */
static inline double normal_of(uint64_t u, uint64_t t)
{
    return sqrt(-2 * log_of(((double)(int64_t)u + 1) * 0x1p-53)) *
           cos_of_turn((double)(int64_t)t * 0x1p-53);
}

/* The 53 highest bits of both halves of blocks first .. first + LANES - 1. */
static void draw(uint64_t key, uint64_t first, uint64_t u[LANES], uint64_t t[LANES])
{
    uint32_t x0[LANES], x1[LANES], x2[LANES], x3[LANES];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < LANES; i++) {
        x0[i] = (uint32_t)(first + (uint64_t)i);
        x1[i] = (uint32_t)((first + (uint64_t)i) >> 32);
        x2[i] = x3[i] = 0;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u)
        for (int i = 0; i < LANES; i++) { /* as rng_block */
            uint64_t p0 = (uint64_t)0xd2511f53u * x0[i], p1 = (uint64_t)0xcd9e8d57u * x2[i];
            x0[i] = (uint32_t)(p1 >> 32) ^ x1[i] ^ k0;
            x1[i] = (uint32_t)p1;
            x2[i] = (uint32_t)(p0 >> 32) ^ x3[i] ^ k1;
            x3[i] = (uint32_t)p0;
        }
    for (int i = 0; i < LANES; i++) {
        u[i] = (x0[i] | (uint64_t)x1[i] << 32) >> 11;
        t[i] = (x2[i] | (uint64_t)x3[i] << 32) >> 11;
    }
}

double rng_normal(struct rng rng, uint64_t index)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
    uint32_t x[4];
    rng_block(rng.key, counter, x);
    return normal_of((x[0] | (uint64_t)x[1] << 32) >> 11, (x[2] | (uint64_t)x[3] << 32) >> 11);
}

void rng_normals(struct rng rng, uint64_t first, int64_t count, double scale, float *out)
{
    uint64_t u[LANES], t[LANES];
    float values[LANES];
    for (int64_t done = 0; done < count; done += LANES) {
        int64_t n = count - done < LANES ? count - done : LANES;
        draw(rng.key, first + (uint64_t)done, u, t);
        for (int i = 0; i < LANES; i++)
            values[i] = (float)(scale * normal_of(u[i], t[i]));
        memcpy(out + done, values, (size_t)n * sizeof *out);
    }
}
