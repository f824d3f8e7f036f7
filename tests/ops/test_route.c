/* test_route -- routed layers beyond what the case tests see: the second phase's gradient by finite
 * differences with G held fixed, what G promises, ties and zeros in MAS, and the gate's ends. */
#include <math.h>
#include "ops/op_rig.h"

#define EPS 1e-9

/* --- the second phase against differences ----------------------------------------------------- */

enum { ROWS = 6, IN = 5, GROUPS = 2, WIDTH = 9, COUNT = ROWS * GROUPS * WIDTH };
#define STEP 1e-4

static double largest(const double *v)
{
    double max = 0;
    for (int c = 0; c < WIDTH; c++)
        max = fmax(max, fabs(v[c]));
    return max;
}

/* G of one group, written from the formulas of the method and not from those of ops.h */
static void goodness_of(const double *dout, const double *logits, const double *x, double *g)
{
    double norm = 0, products[WIDTH];
    for (int i = 0; i < IN; i++)
        norm = hypot(norm, x[i]);
    for (int c = 0; c < WIDTH; c++)
        products[c] = dout[c] * norm;
    for (int c = 0; c < WIDTH; c++)
        g[c] =
            fabs(dout[c]) / (largest(dout) + EPS) *
            (logits[c] / (largest(logits) + EPS) - fabs(products[c]) / (largest(products) + EPS));
}

static void standardise(double *g)
{
    double sum = 0, squares = 0;
    for (int c = 0; c < WIDTH; c++) {
        sum += g[c];
        squares += g[c] * g[c];
    }
    double mean = sum / WIDTH, variance = fmax(squares / WIDTH - mean * mean, 0);
    for (int c = 0; c < WIDTH; c++)
        g[c] = (g[c] - mean) / sqrt(variance + 1e-5);
}

/* The entropy of softmax(logits + g), with `step` added to logit `at` */
static double entropy_of(const double *logits, const double *g, int at, double step)
{
    double sum = 0, entropy = 0, e[WIDTH];
    for (int c = 0; c < WIDTH; c++)
        sum += e[c] = exp(logits[c] + g[c] + (c == at ? step : 0));
    for (int c = 0; c < WIDTH; c++)
        entropy -= e[c] / sum * log(e[c] / sum + EPS);
    return entropy;
}

/* Fourth order: the error of the step is far below that of the float outputs. */
static double slope_of(const double *logits, const double *g, int at)
{
    double near = entropy_of(logits, g, at, STEP) - entropy_of(logits, g, at, -STEP);
    double far = entropy_of(logits, g, at, 2 * STEP) - entropy_of(logits, g, at, -2 * STEP);
    return (8 * near - far) / (12 * STEP);
}

static int tensor_of(struct ops_trial *trial, const char *name)
{
    const struct ops_tensor *t = ops_find_tensor(ops_trial_call(trial), name);
    assert_non_null(t);
    return (int)(t - ops_trial_call(trial)->tensors);
}

struct expected {
    double dmatch[COUNT], goodness[GROUPS * WIDTH], active[GROUPS * WIDTH], dcost[GROUPS * WIDTH],
        entropy[GROUPS];
};

static void expect_group(struct ops_trial *trial, struct routing n, int r, int k,
                         struct expected *e)
{
    int at = (r * GROUPS + k) * WIDTH, columns = k * WIDTH;
    const double *x = (double *)ops_trial_image(trial, tensor_of(trial, "x")) + r * IN;
    const double *dout = (double *)ops_trial_image(trial, tensor_of(trial, "dout")) + at;
    const double *logits = (double *)ops_trial_image(trial, tensor_of(trial, "logits")) + at;
    double g[WIDTH];
    goodness_of(dout, logits, x, g);
    for (int c = 0; c < WIDTH; c++)
        e->goodness[columns + c] += g[c];
    if (n.standardise)
        standardise(g);
    for (int c = 0; c < WIDTH; c++)
        g[c] = n.minus ? -g[c] : g[c];
    e->entropy[k] += entropy_of(logits, g, -1, 0);
    for (int c = 0; c < WIDTH; c++) {
        double slope = (double)OPS_ROUTE_WEIGHT(WIDTH) * slope_of(logits, g, c);
        e->dmatch[at + c] = slope / sqrt(IN);
        e->dcost[columns + c] -= slope;
        e->active[columns + c] += logits[c] > 0;
    }
}

/* Errors are relative to the largest value. */
static void assert_close(struct ops_trial *trial, const char *name, const double *right, int count,
                         double bound)
{
    int tensor = tensor_of(trial, name);
    const void *found = ops_trial_read(trial, tensor);
    bool wide = ops_trial_call(trial)->tensors[tensor].type == DTYPE_F64;
    double most = 0;
    for (int i = 0; i < count; i++)
        most = fmax(most, fabs(right[i]));
    for (int i = 0; i < count; i++) {
        double value = wide ? ((const double *)found)[i] : (double)((const float *)found)[i];
        if (!(fabs(value - right[i]) <= bound * most))
            fail_msg("%s[%d] is %.9g, not %.9g", name, i, value, right[i]);
    }
}

static void check_second_phase(bool minus, bool standardised, bool zeros)
{
    struct rig rig;
    struct ops_case c = {"route_backward", .rows = ROWS, .zeros = zeros};
    c.routing = (struct routing){IN, GROUPS, WIDTH, minus, standardised};
    rig_open(&rig, "ref", DTYPE_F64, 1);
    struct ops_trial *trial = rig_trial(&rig, &c);
    struct expected e = {.entropy = {0}};
    for (int i = 0; i < ROWS * GROUPS; i++)
        expect_group(trial, c.routing, i / GROUPS, i % GROUPS, &e);
    ops_trial_run(trial);
    assert_close(trial, "dmatch", e.dmatch, COUNT, 1e-7); /* the factor 1 / sqrt(I) is a float */
    assert_close(trial, "goodness", e.goodness, GROUPS * WIDTH, 1e-7);
    assert_close(trial, "active", e.active, GROUPS * WIDTH, 0);
    assert_close(trial, "dcost", e.dcost, GROUPS * WIDTH, 1e-7);
    assert_close(trial, "entropy", e.entropy, GROUPS, 1e-7);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

static void test_second_phase(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        check_second_phase(i & 1, i & 2, i & 4);
}

/* --- what G promises -------------------------------------------------------------------------- */

/* With one row, its sums are G itself. */
static void check_bounds(struct rig *rig, uint64_t seed, double dout_scale)
{
    enum { C = 67 };
    struct ops_case c = {"route_backward", .rows = 1,
                         .routing = {.in = 8, .groups = 1, .width = C}};
    struct ops_trial *trial;
    assert_ok(ops_trial_create(rig->ops, rig->stream, &c, seed, &trial));
    float *dout = ops_trial_image(trial, tensor_of(trial, "dout"));
    const float *logits = ops_trial_image(trial, tensor_of(trial, "logits"));
    for (int i = 0; i < C; i++)
        dout[i] *= (float)dout_scale;
    ops_trial_reset(trial);
    ops_trial_run(trial);
    const float *g = ops_trial_read(trial, tensor_of(trial, "goodness"));
    for (int i = 0; i < C; i++) {
        assert_true(g[i] >= -2.000001f && g[i] <= 0.250001f);
        assert_true(logits[i] > 0 || g[i] <= 0);
        assert_true(dout_scale > 0 || g[i] == 0);
    }
    ops_trial_destroy(trial);
}

static void test_bounds(void **state)
{
    static const double scales[] = {0, 1e-12, 1e-9, 1, 1e6};
    struct rig rig;
    rig_open(&rig, *state, DTYPE_F32, 1);
    for (int i = 0; i < 5; i++)
        for (uint64_t seed = 1; seed <= 20; seed++)
            check_bounds(&rig, seed, scales[i]);
    rig_close(&rig);
}

/* |dout| = 1e-9 is as large as the 1e-9 of MAS, |dout| |x| is a thousand times as large. */
static void test_tiny_gradients(void **state)
{
    struct rig rig;
    struct routing n = {.in = 1, .groups = 1, .width = 2};
    float x[] = {1000}, dout[] = {1e-9f, -1e-9f}, pre[] = {1, 1}, logits[] = {2, -1};
    float dpre[2], dmatch[2], goodness[2], active[2], dcost[2], entropy[1];
    double scratch[256];
    rig_open(&rig, *state, DTYPE_F32, 1);
    assert_true(ops_route_scratch(rig.ops, n, 1) <= sizeof scratch);
    ops_route_backward(rig.ops, rig.stream, n, 1,
                       &(struct route_backward){x, dout, pre, logits, 1, dpre, dmatch, goodness,
                                                active, dcost, entropy, scratch});
    double effort = 1e-6 / (1e-6 + EPS);
    assert_true(fabs((double)goodness[0] - 0.5 * (1 - effort)) <= 1e-7);
    assert_true(fabs((double)goodness[1] - 0.5 * (-0.5 - effort)) <= 1e-7);
    assert_true(active[0] == 1 && active[1] == 0 && dpre[1] == 0);
    rig_close(&rig);
}

/* --- MAS -------------------------------------------------------------------------------------- */

/* The slope of the largest goes to the first of equals, with its sign; at 0 there is none. */
static void test_ties(void **state)
{
    struct rig rig;
    const float gate[] = {-2, 2, 2, 0, 0, 0}, dcost[] = {1, 1, 1, 1, -2, 0};
    float cost[6], dgate[6];
    const double right[] = {1, 0.5, 0.5, 1e9, -2e9, 0}, right_cost[] = {-1, 1, 1, 0, 0, 0};
    rig_open(&rig, *state, DTYPE_F32, 1);
    ops_mas(rig.ops, rig.stream, 2, 3, gate, cost);
    ops_mas_backward(rig.ops, rig.stream, 2, 3, gate, dcost, dgate);
    for (int i = 0; i < 6; i++) {
        assert_true(fabs((double)cost[i] - right_cost[i]) <= 1e-6);
        assert_true(fabs((double)dgate[i] - right[i]) <= 1e-6 * fabs(right[i]));
    }
    rig_close(&rig);
}

/* --- the gate --------------------------------------------------------------------------------- */

static void test_gate_ends(void **state)
{
    struct rig rig;
    const float goodness[] = {0, 1, NAN, -1}; /* the range begins in row 0 and ends in row 3 */
    float x[] = {2, NAN, -3, 0.5f, 7, -INFINITY, -0.5f};
    rig_open(&rig, *state, DTYPE_F32, 1);
    ops_gate_rows(rig.ops, rig.stream, DTYPE_F32,
                  &(struct gate_rows){1, 7, 2, goodness, 1, x}); /* rows 0 1 1 2 2 3 3 */
    ops_gate_rows(rig.ops, rig.stream, DTYPE_F32, &(struct gate_rows){.limit = 1});
    assert_true(x[0] == 0 && isnan(x[1]) && x[2] == -1 && x[3] == 0 && x[4] == 0);
    assert_true(x[5] == -INFINITY && x[6] == 0);
    float y[] = {1e30f, -1e30f, INFINITY};
    ops_gate_rows(rig.ops, rig.stream, DTYPE_F32, &(struct gate_rows){0, 3, 0, NULL, INFINITY, y});
    assert_true(y[0] == 1e30f && y[1] == -1e30f && y[2] == INFINITY);
    rig_close(&rig);
}

/* Any cut of a tensor into ranges gives the bits of the whole. */
static void test_gate_in_parts(void **state)
{
    enum { COLUMNS = 7, LENGTH = 10 * COLUMNS };
    struct rig rig;
    float whole[LENGTH], part[LENGTH], goodness[10];
    rig_open(&rig, *state, DTYPE_F32, 1);
    for (int r = 0; r < 10; r++)
        goodness[r] = (float)(r % 3) - 1;
    for (int cut = 0; cut <= LENGTH; cut++) {
        for (int i = 0; i < LENGTH; i++)
            whole[i] = part[i] = (float)(i % 13) / 4 - 1.5f;
        ops_gate_rows(rig.ops, rig.stream, DTYPE_F32,
                      &(struct gate_rows){0, LENGTH, COLUMNS, goodness, 1, whole});
        ops_gate_rows(rig.ops, rig.stream, DTYPE_F32,
                      &(struct gate_rows){0, cut, COLUMNS, goodness, 1, part});
        ops_gate_rows(rig.ops, rig.stream, DTYPE_F32,
                      &(struct gate_rows){cut, LENGTH - cut, COLUMNS, goodness, 1, part + cut});
        assert_memory_equal(part, whole, sizeof whole);
    }
    for (int i = 0; i < LENGTH; i++) {
        float clamped = fmaxf(fminf((float)(i % 13) / 4 - 1.5f, 1), -1);
        assert_true(whole[i] == (i / COLUMNS % 3 == 2 ? clamped : 0));
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_second_phase)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        char *backend = i == 0 ? "ref" : "cpu";
        const struct CMUnitTest both[] = {
            cmocka_unit_test_prestate(test_bounds, backend),
            cmocka_unit_test_prestate(test_tiny_gradients, backend),
            cmocka_unit_test_prestate(test_ties, backend),
            cmocka_unit_test_prestate(test_gate_ends, backend),
            cmocka_unit_test_prestate(test_gate_in_parts, backend),
        };
        failed += cmocka_run_group_tests_name(backend, both, NULL, NULL);
    }
    return failed;
}
