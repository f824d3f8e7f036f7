/* test_ops_vmath -- the vector exp, log, sigmoid and GELU against libm in double, and at their limits,
 * within the bounds of cpu_vector.h; roots, and quotients by products, to the bit. Values are every
 * 101st float, so every exponent and both signs. */
#include <float.h>
#include <math.h>
#include "testing.h"
#include "ops/cpu/cpu_vector.h"

static float lane(vf v)
{
    return v[0];
}

/* |got - right| in ulps of right; below the smallest normal number, an error smaller than it counts
 * as 0 */
static double ulps(float got, double right)
{
    if (fabs(right) < FLT_MIN)
        return fabs((double)got - right) <= FLT_MIN ? 0 : 1e9;
    int exponent;
    frexp(right, &exponent);
    return fabs((double)got - right) / ldexp(1.0, exponent - 24);
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 101) {
        float x = float_of((uint32_t)bits);
        if (!isfinite(x) || x > 88.37f)
            continue;
        double error = ulps(lane(v_exp(v_set(x))), exp((double)x));
        worst = error > worst ? error : worst;
    }
    for (float x = -90; x < 88.37f; x += 0x1p-12f) {
        double error = ulps(lane(v_exp(v_set(x))), exp((double)x));
        worst = error > worst ? error : worst;
    }
    print_message("exp: %.3f ulp at most\n", worst);
    assert_true(worst <= 2);
}

static void test_exp_ends(void **state)
{
    (void)state;
    assert_true(lane(v_exp(v_set(0.0f))) == 1.0f);
    assert_true(lane(v_exp(v_set(-0.0f))) == 1.0f);
    assert_true(lane(v_exp(v_set(-INFINITY))) == 0.0f);
    assert_true(lane(v_exp(v_set(-1e30f))) == 0.0f);
    assert_true(lane(v_exp(v_set(-88.0f))) == 0.0f);
    assert_true(lane(v_exp(v_set(INFINITY))) == INFINITY);
    assert_true(lane(v_exp(v_set(89.0f))) == INFINITY);
    assert_true(isfinite(lane(v_exp(v_set(88.37f)))));
    for (uint32_t payload = 1; payload < 0x800000u; payload = payload * 3 + 1) {
        assert_true(isnan(lane(v_exp(v_set(float_of(0x7f800000u | payload))))));
        assert_true(isnan(lane(v_exp(v_set(float_of(0xff800000u | payload))))));
    }
}

static void test_tanh(void **state)
{
    (void)state;
    double worst = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 101) {
        float x = float_of((uint32_t)bits);
        if (!isfinite(x) || fabsf(x) < 1e-30f)
            continue;
        double error = ulps(lane(v_tanh(v_set(x))), tanh((double)x));
        worst = error > worst ? error : worst;
    }
    for (float x = -10; x < 10; x += 0x1p-14f) {
        double error = x == 0 ? 0 : ulps(lane(v_tanh(v_set(x))), tanh((double)x));
        worst = error > worst ? error : worst;
    }
    print_message("tanh: %.3f ulp at most\n", worst);
    assert_true(worst <= 3);
    assert_true(lane(v_tanh(v_set(0.0f))) == 0.0f);
    assert_true(lane(v_tanh(v_set(INFINITY))) == 1.0f);
    assert_true(lane(v_tanh(v_set(-INFINITY))) == -1.0f);
    assert_true(isnan(lane(v_tanh(v_set(NAN)))));
}

static void test_log(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 101) {
        double error = ulps(lane(v_log(v_set(float_of(bits)))), log((double)float_of(bits)));
        worst = error > worst ? error : worst;
    }
    for (float x = 0.7f; x < 1.42f; x += 0x1p-20f) {
        double error = ulps(lane(v_log(v_set(x))), log((double)x));
        worst = error > worst ? error : worst;
    }
    print_message("log: %.3f ulp at most\n", worst);
    assert_true(worst <= 2);
    assert_true(lane(v_log(v_set(1.0f))) == 0.0f);
}

static void test_sigmoid(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = -87.0f; x < 120.0f; x += 0x1p-11f) {
        double error = ulps(lane(v_sigmoid(v_set(x))), 1 / (1 + exp(-(double)x)));
        worst = error > worst ? error : worst;
    }
    print_message("sigmoid: %.3f ulp at most\n", worst);
    assert_true(worst <= 3);
    assert_true(lane(v_sigmoid(v_set(-INFINITY))) == 0.0f);
    assert_true(lane(v_sigmoid(v_set(INFINITY))) == 1.0f);
    assert_true(isnan(lane(v_sigmoid(v_set(NAN)))));
}

/* Against 0.5 x (1 + tanh u) with the tanh that does not cancel: 1 + tanh u = 2 / (1 + exp(-2u)) */
static void test_gelu(void **state)
{
    (void)state;
    const double c = sqrt(2 / M_PI);
    double worst = 0, worst_slope = 0;
    for (float x = -12.0f; x < 12.0f; x += 0x1p-12f) {
        double u = c * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-2 * u));
        double slope = s + x * s * (1 - s) * 2 * c * (1 + 3 * 0.044715 * x * x);
        double error = fabs((double)lane(v_gelu(v_set(x))) - x * s) / (fabs(x * s) + 1e-6);
        double slope_error = fabs((double)lane(v_gelu_slope(v_set(x))) - slope);
        worst = error > worst ? error : worst;
        worst_slope = slope_error > worst_slope ? slope_error : worst_slope;
    }
    print_message("gelu: %.1e of its value, its slope %.1e at most\n", worst, worst_slope);
    assert_true(worst <= 2e-6);
    assert_true(worst_slope <= 5e-7);
}

/* A value has the same bits in the body and in the tail of a row of any length. */
static void test_tails(void **state)
{
    (void)state;
    enum { N = 4 * LANES + 2 * LANES + 3 };
    float x[N], whole[N], part[N], d[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i * 37 % 101) / 10 - 5;
    v_row_gelu(whole, x, N);
    for (int n = 1; n <= N; n++) {
        v_row_gelu(part, x, n);
        assert_memory_equal(part, whole, (size_t)n * sizeof(float));
        v_row_gelu_slope(d, x, x, n);
        for (int i = 0; i < n; i++)
            assert_true(d[i] == x[i] * lane(v_gelu_slope(v_set(x[i]))));
        float sum = v_row_exp(part, x, 5.0f, n), again = v_row_exp(NULL, x, 5.0f, n);
        double right = 0;
        for (int i = 0; i < n; i++) {
            assert_true(part[i] == lane(v_exp(v_set(x[i] - 5.0f))));
            right += exp((double)x[i] - 5);
        }
        assert_true(sum == again);
        assert_true(fabs(sum - right) <= 1e-6 * right);
    }
}

static void test_row_sums(void **state)
{
    (void)state;
    enum { N = 4 * LANES + 2 * LANES + 3 };
    float x[N], y[N];
    for (int n = 1; n <= N; n++) {
        double sum = 0, squares = 0, dot = 0, max = -INFINITY, max_abs = 0;
        for (int i = 0; i < n; i++) {
            x[i] = (float)(i * 37 % 101) - 50; /* small integers: sums are exact */
            y[i] = (float)(i * 11 % 17) - 8;
            sum += x[i];
            squares += (x[i] - 3.0) * (x[i] - 3.0);
            dot += (double)x[i] * y[i];
            max = fmax(max, x[i]);
            max_abs = fmax(max_abs, fabs(x[i]));
        }
        assert_true(v_row_sum(x, n) == sum);
        assert_true(v_row_squares(x, 3.0f, n) == squares);
        assert_true(v_row_dot(x, y, n) == dot);
        assert_true(v_row_max(x, n) == max);
        assert_true(v_row_max_abs(x, n) == max_abs);
    }
}

/* All x whose bits are first .. first + count - 1, divided by c, which is above 0 and at most 1. */
static void check_quotients(float c, uint32_t first, uint32_t count)
{
    double inverse = 1 / (double)c;
    for (uint32_t bits = first; bits < first + count; bits += LANES) {
        float x[LANES];
        for (uint32_t i = 0; i < LANES; i++)
            x[i] = float_of(bits + i);
        vf found = v_mul_double(v_load(x), inverse);
        for (int i = 0; i < LANES; i++) {
            float got = found[i], right = x[i] / c;
            if (memcmp(&got, &right, sizeof got) != 0)
                fail_msg("%a / %a is %a, not %a", (double)x[i], (double)c, (double)right,
                         (double)got);
        }
    }
}

/* A product with 1 / c in double has the bits of a division by c: corrections of early and late
 * steps, and mantissas at both ends; x are all mantissas, all subnormal numbers, the largest
 * numbers, both zeros and both infinities. */
static void test_quotients(void **state)
{
    (void)state;
    const float divisors[] = {0.1f,           0.19f,          0.271f,         0x1.999998p-1f,
                              0.9999999f,     0.001f,         1e-6f,          0.05f,
                              0.0975f,        0.632304575f,   0x1p-13f,       0x1.8p-20f,
                              0x1.000002p-1f, 0x1.fffffep-2f, 0x1.fffffcp-11f};
    const uint32_t mantissas = 1u << 23, sign = 1u << 31;
    for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
        check_quotients(divisors[i], 0x3f800000u, mantissas);
        check_quotients(divisors[i], 0, mantissas);
        check_quotients(divisors[i], 0x7f7ff000u, 0x1000u);
        check_quotients(divisors[i], sign, 0x1000u);
        for (int minus = 0; minus < 2; minus++) {
            vf found = v_mul_double(v_set(minus ? -INFINITY : INFINITY), 1 / (double)divisors[i]);
            assert_true(lane(found) == (minus ? -INFINITY : INFINITY));
        }
        assert_true(isnan(lane(v_mul_double(v_set(NAN), 1 / (double)divisors[i]))));
    }
}

static void test_sqrt(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 101) {
        float x = float_of((uint32_t)bits), got = lane(v_sqrt(v_set(x))), right = sqrtf(x);
        assert_true(isnan(right) ? isnan(got) : got == right && signbit(got) == signbit(right));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),       cmocka_unit_test(test_exp_ends),
        cmocka_unit_test(test_tanh),      cmocka_unit_test(test_log),
        cmocka_unit_test(test_sigmoid),   cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_tails),     cmocka_unit_test(test_row_sums),
        cmocka_unit_test(test_quotients), cmocka_unit_test(test_sqrt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
