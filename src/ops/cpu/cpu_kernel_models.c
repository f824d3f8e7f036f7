/* cpu_kernel_models -- the bf16 instructions in plain C: the order of their sums and how each sum
 * is rounded. Slow; they give a kernel's bits on machines that cannot run it, and tests compare
 * them with the kernels on machines that can.
 *
 * All instructions take denormal operands for 0 and write 0 for denormal results. Below, `a` and
 * `b` are rows of values of the depth.
 */
#include <math.h>
#define KERNEL_ROWS   4
#define KERNEL_COLS   4
#define KERNEL_STEP_A 32
#define KERNEL_STEP_B 32
#include "ops/cpu/cpu_kernel_pack16.h"

static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static float value_of(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return flushed(x);
}

/* The sum that one call of a kernel adds to an element of c */
typedef float sum_fn(int64_t depth, const uint16_t *a, const uint16_t *b);

/* vdpbf16ps: the odd value of each pair first; fused multiply-adds */
static float sum_pairs(int64_t depth, const uint16_t *a, const uint16_t *b)
{
    float sum = 0;
    for (int64_t k = 0; k < depth; k += 2) {
        sum = flushed(fmaf(value_of(a[k + 1]), value_of(b[k + 1]), sum));
        sum = flushed(fmaf(value_of(a[k]), value_of(b[k]), sum));
    }
    return sum;
}

/* tdpbf16ps: over 32 values, the even ones and the odd ones are summed apart by fused multiply-adds;
 * then the two are added, and the result to the sum so far. */
static float sum_tiles(int64_t depth, const uint16_t *a, const uint16_t *b)
{
    float sum = 0;
    for (int64_t k0 = 0; k0 < depth; k0 += 32) {
        float even = 0, odd = 0;
        for (int64_t k = k0; k < k0 + 32; k += 2) {
            even = flushed(fmaf(value_of(a[k]), value_of(b[k]), even));
            odd = flushed(fmaf(value_of(a[k + 1]), value_of(b[k + 1]), odd));
        }
        sum = flushed(sum + flushed(even + odd));
    }
    return sum;
}

/* x + y rounded to odd: if the sum is not a float, the one of its two neighbours whose last bit is
 * 1. The double is exact, or its error, found exactly, says on which side of it the sum is. */
static float add_to_odd(float x, float y)
{
    double a = (double)x, b = (double)y, sum = a + b, part = sum - a;
    double error = (a - (sum - part)) + (b - part);
    float near = (float)sum;
    if (isnan(near) || isinf(x) || isinf(y) || ((double)near == sum && error == 0))
        return flushed(near);
    if (isinf(near)) /* also if the largest float is nearer */
        return near;
    uint32_t bits;
    double over = (sum - (double)near) + error; /* the sum minus `near` */
    if (over != 0 && (over < 0) == (near > 0) && near != 0)
        near = nextafterf(near, 0); /* the neighbour towards 0 */
    memcpy(&bits, &near, sizeof bits);
    bits |= 1; /* one of the two neighbours, away from 0 if `near` is even */
    memcpy(&near, &bits, sizeof bits);
    return flushed(near);
}

/* bfmmla: two products are added, then the result to the sum, each rounded to odd. Products of two
 * bf16 values are floats. */
static float sum_odd(int64_t depth, const uint16_t *a, const uint16_t *b)
{
    float sum = 0;
    for (int64_t k = 0; k < depth; k += 2) {
        float first = flushed(value_of(a[k]) * value_of(b[k]));
        float second = flushed(value_of(a[k + 1]) * value_of(b[k + 1]));
        sum = add_to_odd(sum, add_to_odd(first, second));
    }
    return sum;
}

/* A panel holds row i's values in steps of 32. */
static void row_of(int64_t depth, const uint16_t *panel, int64_t width, int64_t i, uint16_t *row)
{
    for (int64_t k = 0; k < depth; k++)
        row[k] = panel[k / 32 * width * 32 + i * 32 + k % 32];
}

static void multiply(sum_fn *sum_of, int64_t depth, const uint16_t *a, const uint16_t *b,
                     float times, bool add, float *c, int64_t stride)
{
    uint16_t row[1024], col[1024];
    for (int64_t i = 0; i < KERNEL_ROWS; i++)
        for (int64_t j = 0; j < KERNEL_COLS; j++) {
            float *to = c + i * stride + j;
            row_of(depth, a, KERNEL_ROWS, i, row);
            row_of(depth, b, KERNEL_COLS, j, col);
            float sum = sum_of(depth, row, col);
            *to = add ? fmaf(times, sum, *to) : times * sum;
        }
}

static void multiply_pairs(int64_t depth, const void *a, const void *b, float times, bool add,
                           float *c, int64_t stride)
{
    multiply(sum_pairs, depth, a, b, times, add, c, stride);
}

static void multiply_tiles(int64_t depth, const void *a, const void *b, float times, bool add,
                           float *c, int64_t stride)
{
    multiply(sum_tiles, depth, a, b, times, add, c, stride);
}

static void multiply_odd(int64_t depth, const void *a, const void *b, float times, bool add,
                         float *c, int64_t stride)
{
    multiply(sum_odd, depth, a, b, times, add, c, stride);
}

const struct cpu_kernel cpu_kernel_avx512_bf16_model = {
    .name = "AVX512-BF16 model", KERNEL_SHAPE, .multiply = multiply_pairs, KERNEL_PACK};
const struct cpu_kernel cpu_kernel_amx_model = {
    .name = "AMX model", KERNEL_SHAPE, .multiply = multiply_tiles, KERNEL_PACK};
const struct cpu_kernel cpu_kernel_bfmmla_model = {
    .name = "bfmmla model", KERNEL_SHAPE, .multiply = multiply_odd, KERNEL_PACK};
