/* The matrices on which product algorithms are compared: another order of addition changes nearly
 * every sum that cancels, even after rounding to 16 bits, and few of the others. */
#include "base/dtype.h"
#include "ops/ops_noise.h"
#include "testing.h"

enum { M = 24, N = 24, K_MOST = 16384 };

static float rounded(float x, enum dtype type)
{
    uint32_t bits;
    float y;
    dtype_convert(&bits, type, &x, DTYPE_F32, 1);
    dtype_convert(&y, DTYPE_F32, &bits, type, 1);
    return y;
}

/* Row `row` of op(A), or column of op(B), as the matrix in memory has it. */
static void read_line(const struct noise *n, int64_t line, int64_t length, enum dtype type,
                      float *x)
{
    for (int64_t k = 0; k < length; k++)
        x[k] = rounded(noise_at(n, n->down ? line * n->stride + k : k * n->stride + line), type);
}

/* Models a GPU: adds `block` products exactly, then does one float addition. */
static float sum(const float *a, const float *b, int64_t from, int64_t to, int64_t block)
{
    volatile float total = 0;
    for (int64_t first = from; first < to; first += block) {
        double part = 0;
        for (int64_t k = first; k < to && k < first + block; k++)
            part += (double)a[k] * b[k];
        total = total + (float)part;
    }
    return total;
}

static float sum_split(const float *a, const float *b, int64_t count, int parts)
{
    volatile float total = 0;
    for (int i = 0; i < parts; i++)
        total = total + sum(a, b, i * count / parts, (i + 1) * count / parts, 16);
    return total;
}

enum { ORDERS = 4 };
static float in_order(int order, const float *a, const float *b, int64_t count)
{
    switch (order) {
    case 0: return sum(a, b, 0, count, 32);
    case 1: return sum(a, b, 0, count, 8);
    case 2: return sum_split(a, b, count, 2);
    default: return sum_split(a, b, count, 4);
    }
}

static void count_others(enum dtype type, int64_t k, bool down)
{
    enum { APART = 3 }; /* between columns */
    static float a[K_MOST], b[K_MOST];
    int others[ORDERS][2] = {{0}};
    double squares = 0;
    float scale = 4 / NOISE_DEVIATION / sqrtf((float)k);
    struct noise left = {NOISE_A, 1,     down ? k : M,          down ? M : k,
                         down,    scale, (down ? k : M) + APART};
    struct noise right = {
        NOISE_B, 2, down ? k : N, down ? N : k, down, 1 / NOISE_DEVIATION, (down ? k : N) + APART};
    for (int i = 0; i < M; i++) {
        read_line(&left, i, k, type, a);
        for (int j = 0; j < N; j++) {
            read_line(&right, j, k, type, b);
            float first = rounded(sum(a, b, 0, k, 16), type);
            squares += j % 2 ? first * first : 0;
            for (int order = 0; order < ORDERS; order++)
                others[order][j % 2] += rounded(in_order(order, a, b, k), type) != first;
        }
    }
    assert_float_equal(sqrt(squares / (M * N / 2)), 4, 0.5);
    for (int order = 0; order < ORDERS; order++) {
        assert_true(others[order][0] > 0.7 * (M * N / 2)); /* those that cancel */
        assert_true(others[order][1] < 0.1 * (M * N / 2));
    }
}

static void test_other_orders_show(void **state)
{
    (void)state;
    count_others(DTYPE_BF16, 768, true);
    count_others(DTYPE_BF16, 4096, false);
    count_others(DTYPE_F16, 1600, true);
}

/* Standard deviation and mean; every power of two occurs. */
static void test_numbers(void **state)
{
    (void)state;
    enum { COUNT = 1 << 18 };
    double sum_of = 0, squares = 0;
    int small = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = noise_number(5, i);
        sum_of += x;
        squares += x * x;
        small += fabs(x) < 0x1p-7;
    }
    assert_float_equal(sum_of / COUNT, 0, 2e-3);
    assert_float_equal(sqrt(squares / COUNT), NOISE_DEVIATION, 2e-3);
    assert_true(small > COUNT / 20);
}

/* Zero is added in even rows, other numbers in odd ones, and no two columns are equal. */
static void test_added(void **state)
{
    (void)state;
    struct noise n = {NOISE_ADDED, 3, 6, 4, false, 1, 6};
    for (int64_t i = 0; i < 24; i++)
        assert_int_equal(noise_at(&n, i) == 0, i % 6 % 2 == 0);
    assert_true(noise_at(&n, 1) != noise_at(&n, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_orders_show),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
