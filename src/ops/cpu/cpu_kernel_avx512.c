/* cpu_kernel_avx512 -- 12 rows by 32 columns: 24 of the 32 registers hold sums. A step of the depth
 * loads two registers of b and twelve single values of a for 24 multiply-adds. FEW rows still have
 * eight independent sums, enough to hide the latency of a multiply-add, but load b more often.
 *
 * Loads are scarce: cores do two of them, or of prefetches, in the time of two multiply-adds. A
 * multiply-add that reads its value of a from memory would save instructions, but load each value
 * twice: a fifth slower on Cascade Lake.
 */
#include <immintrin.h>
#define KERNEL_ROWS 12
#define KERNEL_COLS 32
#include "ops/cpu/cpu_kernel_pack.h"

enum {
    FEW = 4,
    STEPS_A = 16, /* of the depth, from a value's prefetch to its use */
    STEPS_B = 8,
    STEPS_C = 32, /* between the prefetches of two rows of c; at once, they would delay a and b.
                     Rows that a short depth leaves out gain nothing from a prefetch. */
};

/* `a` is a packed panel, or rows that are `a_stride` apart. */
static inline __attribute__((always_inline)) void multiply_by(bool packed, int rows, int64_t depth,
                                                              const float *a, int64_t a_stride,
                                                              const float *b, float times, bool add,
                                                              float *c, int64_t stride)
{
    __m512 sum[KERNEL_ROWS][2], all = _mm512_set1_ps(times);
    const float *next = c;
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t at = 0; at < depth; at += STEPS_C) {
        if (at < rows * STEPS_C) {
            __builtin_prefetch(next, 1);
            __builtin_prefetch(next + 16, 1);
            next += stride;
        }
        int64_t steps = depth - at < STEPS_C ? depth - at : STEPS_C;
        for (int64_t k = 0; k < steps; k++, a += packed ? KERNEL_ROWS : 1, b += KERNEL_COLS) {
            __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
            __builtin_prefetch(b + STEPS_B * KERNEL_COLS);
            __builtin_prefetch(b + STEPS_B * KERNEL_COLS + 16);
            if (packed)
                __builtin_prefetch(a + STEPS_A * KERNEL_ROWS);
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) {
                __m512 one = _mm512_set1_ps(a[packed ? i : i * a_stride]);
                sum[i][0] = _mm512_fmadd_ps(one, b0, sum[i][0]);
                sum[i][1] = _mm512_fmadd_ps(one, b1, sum[i][1]);
            }
        }
    }
    KERNEL_FORGET(c, stride);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            float *to = c + i * stride + 16 * j;
            _mm512_storeu_ps(to, add ? _mm512_fmadd_ps(all, sum[i][j], _mm512_loadu_ps(to))
                                     : _mm512_mul_ps(all, sum[i][j]));
        }
}

static void multiply(int64_t depth, const void *packed_a, const void *packed_b, float times,
                     bool add, float *c, int64_t stride)
{
    multiply_by(true, KERNEL_ROWS, depth, packed_a, 0, packed_b, times, add, c, stride);
}

static void multiply_few(int64_t depth, const void *packed_a, const void *packed_b, float times,
                         bool add, float *c, int64_t stride)
{
    multiply_by(true, FEW, depth, packed_a, 0, packed_b, times, add, c, stride);
}

static void multiply_rows(int64_t depth, const float *a, int64_t a_stride, const void *packed_b,
                          float times, bool add, float *c, int64_t stride)
{
    multiply_by(false, KERNEL_ROWS, depth, a, a_stride, packed_b, times, add, c, stride);
}

const struct cpu_kernel cpu_kernel_avx512 = {.name = "AVX-512",
                                             .model = &cpu_kernel_plain,
                                             KERNEL_SHAPE,
                                             .multiply = multiply,
                                             .multiply_rows = multiply_rows,
                                             .few = FEW,
                                             .multiply_few = multiply_few,
                                             KERNEL_PACK};
