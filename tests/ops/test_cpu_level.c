/* test_cpu_level -- every set of kernels that runs on this machine, with the vector code of its
 * level, against the reference in double. tests/x86-64/run runs it on CPUs of several ages.
 *
 * Arguments: the names of sets that must run here.
 */
#include <math.h>
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

static const char *const names[] = {"amx",    "avx512-bf16", "avx512",   "avx2",
                                    "bfmmla", "neon",        "openblas", "plain"};
enum { NAMES = sizeof names / sizeof names[0] };

static char **wanted;
static int wanted_count;

static double value(const struct ops_tensor *t, const void *data, int64_t i)
{
    return t->type == DTYPE_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* ||a - b|| / ||b|| over the outputs that are floats */
static double distance(struct ops_trial *a, struct ops_trial *b)
{
    const struct ops_call *ours = ops_trial_call(a), *theirs = ops_trial_call(b);
    double worst = 0;
    for (int t = 0; t < ours->count; t++) {
        const struct ops_tensor *x = &ours->tensors[t], *y = &theirs->tensors[t];
        if ((x->role != OPS_OUT && x->role != OPS_IN_OUT) || x->type != DTYPE_F32 ||
            (y->type != DTYPE_F32 && y->type != DTYPE_F64))
            continue;
        const void *here = ops_trial_read(a, t), *there = ops_trial_read(b, t);
        double apart = 0, size = 0;
        for (int64_t i = 0; i < x->count; i++) {
            if (ops_is_between(x, i))
                continue;
            double p = value(x, here, i), q = value(y, there, i);
            apart += (p - q) * (p - q);
            size += q * q;
        }
        worst = fmax(worst, size > 0 ? sqrt(apart / size) : sqrt(apart));
    }
    return worst;
}

/* The ops whose code depends on the level */
static const char *const level_ops[] = {
    "linear",        "linear_gelu", "linear_dw", "add_norm",      "norm_backward", "gelu",
    "gelu_backward", "swiglu",      "attention", "cross_entropy", "adamw"};
enum { LEVEL_OPS = sizeof level_ops / sizeof *level_ops };

/* With SIFR_TEST_SAMPLE=N, one of N shapes of each op: qemu is slow. */
static bool is_meant(const struct ops_case *c, int seen[LEVEL_OPS])
{
    const char *every = getenv("SIFR_TEST_SAMPLE");
    int n = every ? atoi(every) : 1;
    for (int i = 0; i < LEVEL_OPS; i++)
        if (strcmp(c->op, level_ops[i]) == 0)
            return seen[i]++ % (n > 1 ? n : 1) == 0;
    return false;
}

static void compare_ops(const char *set)
{
    struct rig cpu, ref;
    int seen[LEVEL_OPS] = {0}, compared = 0;
    rig_open(&cpu, "cpu", DTYPE_F32, 2);
    rig_open(&ref, "ref", DTYPE_F64, 1);
    for (int i = 0; i < OP_SHAPE_COUNT; i++) {
        char name[OPS_CASE_NAME], why[OPS_CASE_NAME] = "";
        if (!is_meant(&op_shapes[i], seen))
            continue;
        struct ops_trial *ours = rig_trial(&cpu, &op_shapes[i]);
        struct ops_trial *theirs = rig_trial(&ref, &op_shapes[i]);
        ops_trial_take(theirs, ours);
        ops_trial_run(ours);
        ops_trial_run(theirs);
        if (!ops_trial_is_sound(ours, why))
            fail_msg("%s: %s: %s", set, ops_case_name(&op_shapes[i], name), why);
        double apart = distance(ours, theirs);
        if (!(apart <= ops_trial_op(ours)->bound))
            fail_msg("%s: %s: %g apart, more than %g", set, ops_case_name(&op_shapes[i], name),
                     apart, ops_trial_op(ours)->bound);
        ops_trial_destroy(ours);
        ops_trial_destroy(theirs);
        compared++;
    }
    rig_close(&ref);
    rig_close(&cpu);
    for (int i = 0; i < LEVEL_OPS; i++)
        assert_true(seen[i] > 0);
    assert_true(compared >= LEVEL_OPS);
}

static void test_sets(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    for (int i = 0; i < NAMES; i++) {
        bool must = false;
        for (int w = 0; w < wanted_count; w++)
            must = must || strcmp(wanted[w], names[i]) == 0;
        if (ops_cpu_use(&env, names[i]) != STATUS_OK) {
            if (must)
                fail_msg("the kernels %s do not run here", names[i]);
            continue;
        }
        struct ops_info info;
        ops_cpu_info(&info);
        assert_string_equal(info.kernels, names[i]);
        printf("%s: %s, products %s\n", info.kernels, info.vectors, info.products);
        compare_ops(names[i]);
    }
    env_destroy(&env);
}

/* One set for the process while ops are open */
static void test_one_set(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(ops_cpu_use(&env, "plain"));
    rig_open(&rig, "cpu", DTYPE_F32, 1);
    assert_ok(ops_cpu_use(&env, "plain"));
    assert_int_equal(ops_cpu_use(&env, "openblas"), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "run.kernels=openblas"));
    rig_close(&rig);
    assert_ok(ops_cpu_use(&env, "openblas"));
    assert_int_equal(ops_cpu_use(&env, "mmx"), STATUS_CONFIG);
    assert_ok(ops_cpu_use(&env, "auto"));
    env_destroy(&env);
}

int main(int count, char **words)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets), cmocka_unit_test(test_one_set)};
    wanted = words + 1;
    wanted_count = count - 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
