/* cpu_kernel_neon -- 8 rows by 12 columns: 24 of the 32 registers hold sums. A step of the depth
 * loads two registers of a and three of b for 24 multiply-adds.
 */
#include <arm_neon.h>
#define KERNEL_ROWS 8
#define KERNEL_COLS 12
#include "ops/cpu/cpu_kernel_pack.h"

enum { VECTORS = KERNEL_COLS / 4 };

/* The sums of a row with lane `lane` of the register `a_` */
#define ADD_ROW(row, a_, lane)                                    \
    do {                                                          \
        sum[row][0] = vfmaq_laneq_f32(sum[row][0], b0, a_, lane); \
        sum[row][1] = vfmaq_laneq_f32(sum[row][1], b1, a_, lane); \
        sum[row][2] = vfmaq_laneq_f32(sum[row][2], b2, a_, lane); \
    } while (0)

static void multiply(int64_t depth, const void *packed_a, const void *packed_b, float times,
                     bool add, float *c, int64_t stride)
{
    const float *a = packed_a, *b = packed_b;
    float32x4_t sum[KERNEL_ROWS][VECTORS] = {{{0}}};
    for (int i = 0; i < KERNEL_ROWS; i++)
        __builtin_prefetch(c + i * stride, 1);
    KERNEL_FORGET(c, stride);
    for (int64_t k = 0; k < depth; k++, a += KERNEL_ROWS, b += KERNEL_COLS) {
        float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8);
        float32x4_t low = vld1q_f32(a), high = vld1q_f32(a + 4);
        ADD_ROW(0, low, 0);
        ADD_ROW(1, low, 1);
        ADD_ROW(2, low, 2);
        ADD_ROW(3, low, 3);
        ADD_ROW(4, high, 0);
        ADD_ROW(5, high, 1);
        ADD_ROW(6, high, 2);
        ADD_ROW(7, high, 3);
    }
    KERNEL_FORGET(c, stride);
#pragma GCC unroll 8
    for (int i = 0; i < KERNEL_ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < VECTORS; j++) {
            float *to = c + i * stride + 4 * j;
            vst1q_f32(to, add ? vfmaq_n_f32(vld1q_f32(to), sum[i][j], times)
                              : vmulq_n_f32(sum[i][j], times));
        }
}

const struct cpu_kernel cpu_kernel_neon = {
    .name = "NEON", .model = &cpu_kernel_plain, KERNEL_SHAPE, .multiply = multiply, KERNEL_PACK};
