/* cpu_kernel_bfmmla -- Arm's bf16 matrix instruction: 8 rows by 12 columns in 24 registers of 2 x 2
 * sums. A step of four values of the depth loads four registers of a and six of b for 24
 * instructions of 16 multiply-adds each.
 */
#include <arm_neon.h>
#define KERNEL_ROWS   8
#define KERNEL_COLS   12
#define KERNEL_STEP_A 4
#define KERNEL_STEP_B 4
#include "ops/cpu/cpu_kernel_pack16.h"

enum { PAIRS_A = KERNEL_ROWS / 2, PAIRS_B = KERNEL_COLS / 2 };

static inline bfloat16x8_t load(const uint16_t *from)
{
    return vreinterpretq_bf16_u16(vld1q_u16(from));
}

static inline void put(float *to, float32x4_t sums, float times, bool add)
{
    vst1q_f32(to, add ? vfmaq_n_f32(vld1q_f32(to), sums, times) : vmulq_n_f32(sums, times));
}

static void multiply(int64_t depth, const void *packed_a, const void *packed_b, float times,
                     bool add, float *c, int64_t stride)
{
    const uint16_t *a = packed_a, *b = packed_b;
    float32x4_t sum[PAIRS_A][PAIRS_B];
#pragma GCC unroll 4
    for (int i = 0; i < PAIRS_A; i++)
#pragma GCC unroll 6
        for (int j = 0; j < PAIRS_B; j++)
            sum[i][j] = vdupq_n_f32(0);
    for (int64_t k = 0; k < depth; k += 4, a += 4 * KERNEL_ROWS, b += 4 * KERNEL_COLS) {
        bfloat16x8_t rows[PAIRS_A];
#pragma GCC unroll 4
        for (int i = 0; i < PAIRS_A; i++)
            rows[i] = load(a + 8 * i);
#pragma GCC unroll 6
        for (int j = 0; j < PAIRS_B; j++) {
            bfloat16x8_t cols = load(b + 8 * j);
#pragma GCC unroll 4
            for (int i = 0; i < PAIRS_A; i++)
                sum[i][j] = vbfmmlaq_f32(sum[i][j], rows[i], cols);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < PAIRS_A; i++)
#pragma GCC unroll 3
        for (int j = 0; j < PAIRS_B; j += 2) {
            float64x2_t left = vreinterpretq_f64_f32(sum[i][j]);
            float64x2_t right = vreinterpretq_f64_f32(sum[i][j + 1]);
            float *to = c + 2 * i * stride + 2 * j;
            put(to, vreinterpretq_f32_f64(vzip1q_f64(left, right)), times, add);
            put(to + stride, vreinterpretq_f32_f64(vzip2q_f64(left, right)), times, add);
        }
}

const struct cpu_kernel cpu_kernel_bfmmla = {.name = "bfmmla",
                                             .model = &cpu_kernel_bfmmla_model,
                                             KERNEL_SHAPE,
                                             .multiply = multiply,
                                             KERNEL_PACK};
