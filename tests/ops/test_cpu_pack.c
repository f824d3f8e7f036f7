/* test_cpu_pack -- panels in bf16 have each value at the place that cpu_kernel.h defines, with
 * zeros for what is missing: the steps of AMX, which few machines can run, and of bfmmla. */
#include <stdlib.h>
#define KERNEL_ROWS   32
#define KERNEL_COLS   24
#define KERNEL_STEP_A 32
#define KERNEL_STEP_B 2
#include "ops/cpu/cpu_kernel_pack16.h"
#include "base/dtype.h"
#include "testing.h"

enum { DEPTH = 160, UNIT = 32, STRIDE = DEPTH + 7 };

/* Values with every kind of rounding; some are not numbers. */
static float number(int64_t i)
{
    uint32_t bits = (uint32_t)i * 2654435761u;
    bits ^= i % 7 == 0 ? 0 : bits >> 13;
    bits = i % 5 == 0 ? (bits & 0xffff0000) | 0x8000 : bits; /* half way */
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t rounded(float x)
{
    uint16_t y;
    dtype_convert(&y, DTYPE_BF16, &x, DTYPE_F32, 1);
    return y;
}

typedef void pack_fn(const struct cpu_panel *p, void *to);

static void check(pack_fn *pack, bool along, int64_t width, int64_t step, int64_t depth,
                  int64_t valid, const float *source)
{
    uint16_t *to = malloc((size_t)(width * DEPTH) * sizeof *to);
    assert_non_null(to);
    memset(to, 0xa5, (size_t)(width * DEPTH) * sizeof *to);
    pack(&(struct cpu_panel){.depth = depth, .valid = valid, .from = source, .stride = STRIDE}, to);
    int64_t end = (depth + UNIT - 1) / UNIT * UNIT;
    for (int64_t k = 0; k < end; k++)
        for (int64_t i = 0; i < width; i++) {
            float x = along ? source[k * STRIDE + i] : source[i * STRIDE + k];
            uint16_t wanted = k < depth && i < valid ? rounded(x) : 0;
            uint16_t got = to[k / step * width * step + i * step + k % step];
            if (got != wanted)
                fail_msg("%s, width %d, step %d, depth %d, %d valid: value %d of row %d is %04x, "
                         "not %04x",
                         along ? "along" : "across", (int)width, (int)step, (int)depth, (int)valid,
                         (int)k, (int)i, got, wanted);
        }
    for (int64_t i = end * width; i < width * DEPTH; i++)
        assert_int_equal(to[i], 0xa5a5); /* not a value more */
    free(to);
}

static void test_places(void **state)
{
    (void)state;
    static const int64_t depths[] = {1, 2, 31, 32, 33, 64, 95, 128, 160};
    float *source = malloc(sizeof(float) * STRIDE * STRIDE);
    assert_non_null(source);
    for (int64_t i = 0; i < STRIDE * STRIDE; i++)
        source[i] = number(i);
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
        for (int less = 0; less <= 5; less += 5) {
            check(pack_a_along, true, KERNEL_ROWS, KERNEL_STEP_A, depths[d], KERNEL_ROWS - less,
                  source);
            check(pack_a_across, false, KERNEL_ROWS, KERNEL_STEP_A, depths[d], KERNEL_ROWS - less,
                  source);
            check(pack_b_along, true, KERNEL_COLS, KERNEL_STEP_B, depths[d], KERNEL_COLS - less,
                  source);
            check(pack_b_across, false, KERNEL_COLS, KERNEL_STEP_B, depths[d], KERNEL_COLS - less,
                  source);
        }
    free(source);
}

/* A step of four values is neither a whole line nor a pair. */
static void pack_four_across(const struct cpu_panel *p, void *to)
{
    pack_across(p, KERNEL_COLS, 4, to);
}

static void pack_four_along(const struct cpu_panel *p, void *to)
{
    pack_along(p, KERNEL_COLS, 4, to);
}

static void test_four(void **state)
{
    (void)state;
    float *source = malloc(sizeof(float) * STRIDE * STRIDE);
    assert_non_null(source);
    for (int64_t i = 0; i < STRIDE * STRIDE; i++)
        source[i] = number(i);
    for (int64_t depth = 32; depth <= DEPTH; depth += 31)
        for (int less = 0; less <= 5; less += 5) {
            check(pack_four_along, true, KERNEL_COLS, 4, depth, KERNEL_COLS - less, source);
            check(pack_four_across, false, KERNEL_COLS, 4, depth, KERNEL_COLS - less, source);
        }
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_four)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
