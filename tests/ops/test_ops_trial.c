/* A trial draws the same values for every type, restores its images, and detects invalid writes. */
#include <math.h>
#include "ops/op_rig.h"

static const struct ops_case shape = {"linear", .rows = 3, .linear = {5, 4, .out_in = false}};

static float *data_of(struct ops_trial *trial, const char *name)
{
    return ops_find_tensor(ops_trial_call(trial), name)->data;
}

static void test_draws(void **state)
{
    (void)state;
    struct rig narrow, wide;
    rig_open(&narrow, "ref", DTYPE_F32, 1);
    rig_open(&wide, "ref", DTYPE_F64, 1);
    struct ops_trial *a = rig_trial(&narrow, &shape), *b = rig_trial(&wide, &shape);
    const float *x = data_of(a, "x"), *y = data_of(a, "y");
    const double *x64 = ops_find_tensor(ops_trial_call(b), "x")->data;
    for (int i = 0; i < 15; i++)
        assert_true((double)x[i] == x64[i] && x[i] != 0);
    for (int i = 0; i < 12; i++)
        assert_true(isnan(y[i]));
    ops_trial_destroy(a);
    ops_trial_destroy(b);
    rig_close(&narrow);
    rig_close(&wide);
}

static void test_labels(void **state)
{
    (void)state;
    struct rig rig;
    struct ops_case loss = {"cross_entropy", .rows = 100, .width = 9};
    int ignored = 0;
    rig_open(&rig, "ref", DTYPE_F32, 1);
    struct ops_trial *trial = rig_trial(&rig, &loss);
    const int32_t *labels = ops_find_tensor(ops_trial_call(trial), "labels")->data;
    for (int i = 0; i < 100; i++) {
        assert_true(labels[i] >= -1 && labels[i] < 9);
        ignored += labels[i] == -1;
    }
    assert_int_equal(ignored, 20);
    assert_true(labels[0] != -1);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

static void assert_unsound(struct ops_trial *trial, const char *word)
{
    char why[OPS_CASE_NAME] = "";
    assert_false(ops_trial_is_sound(trial, why));
    assert_non_null(strstr(why, word));
}

static void test_soundness(void **state)
{
    (void)state;
    struct rig rig;
    char why[OPS_CASE_NAME];
    rig_open(&rig, "ref", DTYPE_F32, 1);
    struct ops_trial *trial = rig_trial(&rig, &shape);
    assert_unsound(trial, "y[0] was not written");
    ops_trial_run(trial);
    assert_true(ops_trial_is_sound(trial, why));
    data_of(trial, "w")[19] += 1;
    assert_unsound(trial, "input w was changed");
    ops_trial_reset(trial);
    ops_trial_run(trial);
    data_of(trial, "y")[12] = 0; /* one element past the end */
    assert_unsound(trial, "beyond the end of y");
    ops_trial_destroy(trial);
    rig_close(&rig);
}

/* What lies between rows is NaN, and writing there is detected; the rows have the dense values. */
static void test_stride(void **state)
{
    (void)state;
    struct rig rig;
    struct ops_case dense = {"linear_dx", .rows = 3, .linear = {5, 4, .out_in = true}};
    struct ops_case strided = dense, forward = dense;
    char why[OPS_CASE_NAME], name[OPS_CASE_NAME];
    strided.linear.y_stride = 6;
    forward.op = "linear";
    forward.linear.y_stride = 6;
    rig_open(&rig, "ref", DTYPE_F32, 1);
    struct ops_trial *a = rig_trial(&rig, &dense), *b = rig_trial(&rig, &strided);
    struct ops_trial *c = rig_trial(&rig, &forward);
    const float *x = data_of(a, "dy"), *y = data_of(b, "dy");
    for (int i = 0; i < 18; i++)
        assert_true(i % 6 < 4 ? y[i] == x[i / 6 * 4 + i % 6] : isnan(y[i]));
    assert_true(ops_call_bytes(ops_trial_call(a)) == ops_call_bytes(ops_trial_call(b)));
    assert_string_equal(ops_case_name(&strided, name), "linear_dx R3 5x4 [out][in] stride 6");
    ops_trial_run(c);
    assert_true(ops_trial_is_sound(c, why));
    data_of(c, "y")[11] = 0;
    assert_unsound(c, "between the rows of y");
    ops_trial_destroy(a);
    ops_trial_destroy(b);
    ops_trial_destroy(c);
    rig_close(&rig);
}

/* Inputs that the forward op computes are used as it computed them. */
static void test_forward(void **state)
{
    (void)state;
    struct rig rig;
    struct ops_case backward = {"attention_backward", .attention = OPS_HEADS(1, 5, 2, 1, 4)};
    struct ops_case forward = {"attention", .attention = OPS_HEADS(1, 5, 2, 1, 4)};
    rig_open(&rig, "ref", DTYPE_F32, 1);
    struct ops_trial *a = rig_trial(&rig, &backward), *b = rig_trial(&rig, &forward);
    ops_trial_run(b);
    assert_memory_equal(data_of(a, "out"), data_of(b, "out"), 40 * sizeof(float));
    assert_memory_equal(data_of(a, "lse"), data_of(b, "lse"), 10 * sizeof(float));
    assert_memory_equal(data_of(a, "qkv"), data_of(b, "qkv"), 80 * sizeof(float));
    ops_trial_destroy(a);
    ops_trial_destroy(b);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws),     cmocka_unit_test(test_labels),
        cmocka_unit_test(test_soundness), cmocka_unit_test(test_stride),
        cmocka_unit_test(test_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
