/* Descriptions are complete: the tensors they name exist, costs add up, and case names are
 * unique. */
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

static void check_names(struct rig *rig, const struct ops_case *c)
{
    struct ops_call call = {.count = 0}, forward = {.count = 0};
    const struct ops_op *op = ops_find_op(c->op);
    op->describe(rig->ops, c, &call);
    if (op->forward != NULL)
        ops_find_op(op->forward)->describe(rig->ops, c, &forward);
    for (int i = 0; i < call.count; i++) {
        const struct ops_tensor *t = &call.tensors[i];
        assert_ptr_equal(ops_find_tensor(&call, t->name), t); /* names are unique */
        assert_true(t->count > 0);
        if (t->cogradient_of != NULL)
            assert_int_equal(ops_find_tensor(&forward, t->cogradient_of)->count, t->count);
        if (t->gradient_of != NULL)
            assert_int_equal(ops_find_tensor(&forward, t->gradient_of)->count, t->count);
        for (int j = 0; j < 2; j++)
            if (t->may_be[j] != NULL)
                assert_int_equal(ops_find_tensor(&call, t->may_be[j])->count, t->count);
    }
}

static void test_names(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "ref", DTYPE_F64, 1);
    for (int i = 0; i < OP_SHAPE_COUNT; i++)
        check_names(&rig, &op_shapes[i]);
    rig_close(&rig);
}

static void test_case_name(void **state)
{
    (void)state;
    struct ops_case linear = {"linear_dw", .rows = 7, .linear = {13, 5, .out_in = true},
                              .add = true};
    struct ops_case cast = {"cast", .count = 64, .from = DTYPE_F32, .to = DTYPE_BF16};
    char name[OPS_CASE_NAME];
    assert_string_equal(ops_case_name(&linear, name), "linear_dw R7 13x5 [out][in] add");
    assert_string_equal(ops_case_name(&cast, name), "cast n 64 f32 to bf16");
}

static void test_cost(void **state)
{
    (void)state;
    struct rig rig;
    struct ops_case linear = {"linear_dw", .rows = 7, .linear = {13, 5, .out_in = true},
                              .add = true};
    struct ops_call call = {.count = 0};
    rig_open(&rig, "ref", DTYPE_F64, 1);
    ops_find_op("linear_dw")->describe(rig.ops, &linear, &call);
    assert_true(call.flops == 2.0 * 7 * 13 * 5);
    assert_true(ops_call_bytes(&call) == 8.0 * (7 * 13 + 7 * 5 + 2 * 13 * 5));
    assert_null(ops_find_tensor(&call, "dbias"));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_case_name),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
