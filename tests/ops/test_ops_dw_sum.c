/* A weight gradient that is added to the step's in one call has the bits of separate calls: the
 * gradient, a cast and an addition. On every back end, with every type that it is rounded to.
 *
 * Without arguments on the CPU. `test_ops_dw_sum cuda` on a GPU, with our own kernels at all sizes,
 * and once as they are used by default; exit status 77 = no GPU. */
#include "gpu.h"
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

static const struct ops_case larger[] = {
    {"linear_dw_sum", .rows = 700, .linear = {264, 1160, .out_in = true}, .bias = true},
    {"linear_dw_sum", .rows = 1500, .linear = {.in = 776, .out = 520}, .add = true},
    {"linear_dw_sum", .rows = 9000, .linear = {72, 48, .out_in = true}, .add = true},
    {"linear_dw_sum", .rows = 60, .linear = {2056, 1032, .out_in = true}, .add = true},
};

static void *at(const struct ops_trial *trial, const char *name)
{
    const struct ops_tensor *t = ops_find_tensor(ops_trial_call(trial), name);
    return t ? t->data : NULL;
}

/* By separate calls, on the trial's own tensors */
static void run_apart(struct rig *rig, const struct ops_case *c, struct ops_trial *trial)
{
    int64_t count = c->linear.in * c->linear.out;
    enum dtype type = rig->ops->type;
    void *rounded;
    assert_ok(
        device_alloc(rig->device, MEM_OTHER, "rounded", (size_t)count * sizeof(float), &rounded));
    ops_linear_dw(rig->ops, rig->stream, c->linear, c->rows,
                  &(struct linear_dw){.x = at(trial, "x"),
                                      .dy = at(trial, "dy"),
                                      .several = true,
                                      .dw = at(trial, "dw"),
                                      .dbias = at(trial, "dbias")});
    ops_cast(rig->ops, rig->stream, rounded, c->to, at(trial, "dw"), type, count);
    if (c->add)
        device_accumulate(rig->stream, at(trial, "sum"), DTYPE_F32, rounded, c->to, count);
    else
        ops_cast(rig->ops, rig->stream, at(trial, "sum"), DTYPE_F32, rounded, c->to, count);
    assert_ok(stream_sync(rig->stream));
    device_free(rig->device, rounded);
}

static void compare(struct rig *rig, const struct ops_case *c)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *one = rig_trial(rig, c), *two = rig_trial(rig, c);
    const struct ops_call *call = ops_trial_call(one);
    ops_trial_run(one);
    run_apart(rig, c, two);
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        if (t->role != OPS_SCRATCH && memcmp(ops_trial_read(one, i), ops_trial_read(two, i),
                                             (size_t)t->count * dtype_bytes(t->type)) != 0)
            fail_msg("%s rounded to %s: %s has other bits than by separate calls",
                     ops_case_name(c, name), dtype_name(c->to), t->name);
    }
    ops_trial_destroy(one);
    ops_trial_destroy(two);
}

/* The types that the back end can round to */
static void compare_types(struct rig *rig, const struct ops_case *c)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int i = 0; i < 3; i++) {
        struct ops_case typed = *c;
        typed.to = types[i];
        if (types[i] == DTYPE_F32 || types[i] == rig->ops->type ||
            ops_sums_dw(rig->ops, c->linear, c->rows, types[i], true))
            compare(rig, &typed);
    }
}

static void compare_products(const char *backend, enum dtype type, enum dtype products)
{
    int compared = 0;
    struct rig rig;
    rig_open(&rig, backend, type, 3);
    rig_check_own(&rig);
    ops_multiply_in(rig.ops, products);
    for (int i = 0; i < OP_SHAPE_COUNT; i++)
        if (strcmp(op_shapes[i].op, "linear_dw_sum") == 0) {
            compare_types(&rig, &op_shapes[i]);
            compared++;
        }
    for (size_t i = 0; strcmp(backend, "ref") != 0 && i < sizeof larger / sizeof *larger; i++)
        compare_types(&rig, &larger[i]);
    rig_close(&rig);
    assert_true(compared > 8);
}

static void compare_all(const char *backend, enum dtype type)
{
    compare_products(backend, type, type);
}

static void test_host(void **state)
{
    (void)state;
    compare_products("cpu", DTYPE_F32, DTYPE_BF16); /* where the CPU has instructions for it */
    compare_all("ref", DTYPE_F32);
    compare_all("ref", DTYPE_BF16);
    compare_all("cpu", DTYPE_F32);
}

/* A CPU's sums are formed in the product itself. */
static void test_cpu_sums(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu", DTYPE_F32, 1);
    for (enum dtype type = DTYPE_F32; type <= DTYPE_F16; type++)
        assert_true(ops_sums_dw(rig.ops, (struct linear){.in = 8, .out = 8}, 8, type, false));
    rig_close(&rig);
}

static void test_gpu(void **state)
{
    (void)state;
    compare_all("cuda", DTYPE_BF16);
    compare_all("cuda", DTYPE_F16);
    compare_all("cuda", DTYPE_F32);
}

/* By default, our kernels on Hopper add large gradients, if the step has several micro-batches. */
static void test_gpu_default(void **state)
{
    (void)state;
    const struct ops_case c = {"linear_dw_sum", .rows = 600, .linear = {2896, 2904, .out_in = true},
                               .add = true};
    struct rig rig;
    unsetenv("SIFR_CUDA_DW");
    rig_open(&rig, "cuda", DTYPE_BF16, 3);
    bool hopper = device_capability(rig.device) == 90;
    assert_int_equal(ops_sums_dw(rig.ops, c.linear, c.rows, DTYPE_BF16, true), hopper);
    assert_false(ops_sums_dw(rig.ops, c.linear, c.rows, DTYPE_BF16, false));
    compare_types(&rig, &c);
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest host[] = {cmocka_unit_test(test_host), cmocka_unit_test(test_cpu_sums)};
    const struct CMUnitTest gpu[] = {cmocka_unit_test(test_gpu),
                                     cmocka_unit_test(test_gpu_default)};
    if (argc < 2)
        return cmocka_run_group_tests(host, NULL, NULL);
    setenv("SIFR_CUDA_DW", "own", 1);
    return test_missing(argv[1]) ? 77 : cmocka_run_group_tests(gpu, NULL, NULL);
}
