/* cpu_kernel_avx512 -- 12 rows by 32 columns: 24 of the 32 registers hold sums. A step of the depth
 * loads two registers of b and twelve single values of a for 24 multiply-adds. FEW rows still have
 * eight independent sums, enough to hide the latency of a multiply-add, but load b more often.
 */
#include <immintrin.h>
#define KERNEL_ROWS 12
#define KERNEL_COLS 32
#include "ops/cpu/cpu_kernel_pack.h"

enum { FEW = 4 };

/* sum += *a b, the value spread by the instruction that multiplies. Two such loads of a value are
 * fewer instructions than one that spreads it and two that multiply, which counts where two threads
 * share a core. With an address made of two registers (rows in place) this would gain nothing.
 * Compilers do not do it to a value that is used twice. */
static inline __attribute__((always_inline)) void add_spread(__m512 *sum, const float *a, __m512 b)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(b), "m"(*a));
}

/* `a` is a packed panel, or rows that are `a_stride` apart. */
static inline __attribute__((always_inline)) void multiply_by(bool packed, int rows, int64_t depth,
                                                              const float *a, int64_t a_stride,
                                                              const float *b, float times, bool add,
                                                              float *c, int64_t stride)
{
    __m512 sum[KERNEL_ROWS][2], all = _mm512_set1_ps(times);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        __builtin_prefetch(c + i * stride, 1);
        __builtin_prefetch(c + i * stride + 16, 1);
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    }
    KERNEL_FORGET(c, stride);
    for (int64_t k = 0; k < depth; k++, a += packed ? KERNEL_ROWS : 1, b += KERNEL_COLS) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        __builtin_prefetch(b + 8 * KERNEL_COLS);
        __builtin_prefetch(b + 8 * KERNEL_COLS + 16);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            if (packed) {
                add_spread(&sum[i][0], a + i, b0);
                add_spread(&sum[i][1], a + i, b1);
                continue;
            }
            __m512 one = _mm512_set1_ps(a[i * a_stride]);
            sum[i][0] = _mm512_fmadd_ps(one, b0, sum[i][0]);
            sum[i][1] = _mm512_fmadd_ps(one, b1, sum[i][1]);
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
