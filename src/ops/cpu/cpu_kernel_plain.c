/* cpu_kernel_plain -- products by the definition in cpu_kernel.h, for tests: slow, the same bits on
 * every machine.
 */
#include <math.h>
#define KERNEL_ROWS 3
#define KERNEL_COLS 5
#include "ops/cpu/cpu_kernel_pack.h"

static void multiply(int64_t depth, const void *packed_a, const void *packed_b, float times,
                     bool add, float *c, int64_t stride)
{
    const float *a = packed_a, *b = packed_b;
    for (int64_t i = 0; i < KERNEL_ROWS; i++)
        for (int64_t j = 0; j < KERNEL_COLS; j++) {
            float sum = 0, *to = c + i * stride + j;
            for (int64_t k = 0; k < depth; k++)
                sum = fmaf(a[k * KERNEL_ROWS + i], b[k * KERNEL_COLS + j], sum);
            *to = add ? fmaf(times, sum, *to) : times * sum;
        }
}

const struct cpu_kernel cpu_kernel_plain = {
    .name = "plain", KERNEL_SHAPE, .multiply = multiply, KERNEL_PACK};
