/* cpu_kernel_avx512_bf16 -- AVX-512's product of pairs of bf16 values: 12 rows by 32 columns as in
 * cpu_kernel_avx512.c, with two values of the depth in each step.
 */
#include <immintrin.h>
#define KERNEL_ROWS   12
#define KERNEL_COLS   32
#define KERNEL_STEP_A 2
#define KERNEL_STEP_B 2
#include "ops/cpu/cpu_kernel_pack16.h"

static void multiply(int64_t depth, const void *packed_a, const void *packed_b, float times,
                     bool add, float *c, int64_t stride)
{
    const int32_t *a = packed_a, *b = packed_b; /* pairs */
    __m512 sum[KERNEL_ROWS][2], all = _mm512_set1_ps(times);
#pragma GCC unroll 12
    for (int i = 0; i < KERNEL_ROWS; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < depth; k += 2, a += KERNEL_ROWS, b += KERNEL_COLS) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
        __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
        for (int i = 0; i < KERNEL_ROWS; i++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32(a[i]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pair, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pair, b1);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < KERNEL_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            float *to = c + i * stride + 16 * j;
            _mm512_storeu_ps(to, add ? _mm512_fmadd_ps(all, sum[i][j], _mm512_loadu_ps(to))
                                     : _mm512_mul_ps(all, sum[i][j]));
        }
}

const struct cpu_kernel cpu_kernel_avx512_bf16 = {.name = "AVX512-BF16",
                                                  .model = &cpu_kernel_avx512_bf16_model,
                                                  KERNEL_SHAPE,
                                                  .multiply = multiply,
                                                  KERNEL_PACK};
