/* The timed cases have unique names and a cost; the figures of a timing are consistent. */
#include <math.h>
#include "ops/op_rig.h"

static void test_cases(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu", DTYPE_F32, 1);
    for (int i = 0; i < ops_bench_case_count; i++) {
        const struct ops_bench_case *c = &ops_bench_cases[i];
        struct ops_call call = {.count = 0};
        for (int j = 0; j < i; j++)
            assert_string_not_equal(c->name, ops_bench_cases[j].name);
        ops_find_op(c->shape.op)->describe(rig.ops, &c->shape, &call);
        assert_true(call.count > 1 && ops_call_bytes(&call) > 0);
        assert_true(call.flops > 0 || strcmp(c->shape.op, "cast") == 0);
    }
    rig_close(&rig);
}

static void test_run(void **state)
{
    (void)state;
    struct rig rig;
    struct ops_case shape = {"linear", .rows = 64, .linear = {32, 16, .out_in = false}};
    struct ops_bench_result result;
    rig_open(&rig, "cpu", DTYPE_F32, 1);
    assert_ok(ops_bench_run(rig.ops, &shape, OPS_BENCH_LOCATIONS, 0.01, &result));
    double flops = 2.0 * 64 * 32 * 16, bytes = 4.0 * (64 * 32 + 32 * 16 + 64 * 16);
    assert_true(result.seconds > 0 && result.calls >= 3);
    assert_true(fabs(result.gflops * result.seconds * 1e9 / flops - 1) < 1e-9);
    assert_true(fabs(result.gbytes_per_second * result.seconds * 1e9 / bytes - 1) < 1e-9);
    mem_fail_at(rig.env.mem, 3);
    assert_int_equal(ops_bench_run(rig.ops, &shape, 2, 0.01, &result), STATUS_MEMORY);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
