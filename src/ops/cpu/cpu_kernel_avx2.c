/* cpu_kernel_avx2 -- 6 rows by 16 columns: 12 of the 16 registers hold sums. A step of the depth
 * loads two registers of b and six single values of a for 12 multiply-adds.
 */
#include <immintrin.h>
#define KERNEL_ROWS 6
#define KERNEL_COLS 16
#include "ops/cpu/cpu_kernel_pack.h"

static void multiply(int64_t depth, const void *packed_a, const void *packed_b, float times,
                     bool add, float *c, int64_t stride)
{
    const float *a = packed_a, *b = packed_b;
    __m256 sum[KERNEL_ROWS][2], all = _mm256_set1_ps(times);
#pragma GCC unroll 6
    for (int i = 0; i < KERNEL_ROWS; i++) {
        __builtin_prefetch(c + i * stride, 1);
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    }
    KERNEL_FORGET(c, stride);
    for (int64_t k = 0; k < depth; k++, a += KERNEL_ROWS, b += KERNEL_COLS) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
        for (int i = 0; i < KERNEL_ROWS; i++) {
            __m256 one = _mm256_broadcast_ss(a + i);
            sum[i][0] = _mm256_fmadd_ps(one, b0, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(one, b1, sum[i][1]);
        }
    }
    KERNEL_FORGET(c, stride);
#pragma GCC unroll 6
    for (int i = 0; i < KERNEL_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            float *to = c + i * stride + 8 * j;
            _mm256_storeu_ps(to, add ? _mm256_fmadd_ps(all, sum[i][j], _mm256_loadu_ps(to))
                                     : _mm256_mul_ps(all, sum[i][j]));
        }
}

const struct cpu_kernel cpu_kernel_avx2 = {
    .name = "AVX2", .model = &cpu_kernel_plain, KERNEL_SHAPE, .multiply = multiply, KERNEL_PACK};
