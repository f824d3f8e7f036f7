/* On the host, the column sums of dqkv from attention's backward pass have the bits of the bias
 * gradient from ops_linear_dw, and requesting them does not change dqkv. (A GPU may sum before it
 * rounds.) */
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

/* The tensor of a trial after its run. */
static const void *read_back(struct ops_trial *trial, const char *name)
{
    const struct ops_call *call = ops_trial_call(trial);
    return ops_trial_read(trial, (int)(ops_find_tensor(call, name) - call->tensors));
}

static bool same_tensor(struct ops_trial *a, struct ops_trial *b, const char *name)
{
    const struct ops_tensor *t = ops_find_tensor(ops_trial_call(a), name);
    return memcmp(read_back(a, name), read_back(b, name),
                  (size_t)t->count * dtype_bytes(t->type)) == 0;
}

/* dbias of a product with dqkv as dy, on the same call's tensors: dw overwrites qkv. */
static void sum_by_product(struct rig *rig, const struct ops_case *c, struct ops_trial *trial,
                           bool out_in)
{
    struct attention a = c->attention;
    struct linear l = {1, (a.heads + 2 * a.kv_heads) * a.head_width, out_in};
    const struct ops_call *call = ops_trial_call(trial);
    ops_linear_dw(rig->ops, rig->stream, l, a.batch * a.tokens,
                  &(struct linear_dw){.x = ops_find_tensor(call, "out")->data,
                                      .dy = ops_find_tensor(call, "dqkv")->data,
                                      .dw = ops_find_tensor(call, "qkv")->data,
                                      .dbias = ops_find_tensor(call, "dbias")->data});
}

static void compare(struct rig *rig, const struct ops_case *c, bool out_in)
{
    char name[OPS_CASE_NAME];
    struct ops_case without = *c;
    without.bias = false;
    struct ops_trial *one = rig_trial(rig, c), *two = rig_trial(rig, c);
    struct ops_trial *three = rig_trial(rig, &without);
    ops_trial_run(one);
    ops_trial_run(two);
    ops_trial_run(three);
    sum_by_product(rig, c, two, out_in);
    if (!same_tensor(one, two, "dbias"))
        fail_msg("%s: other bits than of ops_linear_dw", ops_case_name(c, name));
    if (!same_tensor(one, three, "dqkv"))
        fail_msg("%s: dqkv has other bits than without", ops_case_name(c, name));
    ops_trial_destroy(one);
    ops_trial_destroy(two);
    ops_trial_destroy(three);
}

static void compare_all(const char *backend, enum dtype type)
{
    int compared = 0;
    struct rig rig;
    rig_open(&rig, backend, type, 2);
    for (int i = 0; i < OP_SHAPE_COUNT; i++) {
        if (strncmp(op_shapes[i].op, "attention_backward", 18) != 0 || !op_shapes[i].bias)
            continue;
        compare(&rig, &op_shapes[i], compared % 2);
        compared++;
    }
    rig_close(&rig);
    assert_true(compared > 8);
}

static void test_bits_of_a_bias_gradient(void **state)
{
    (void)state;
    compare_all("ref", DTYPE_F32);
    compare_all("ref", DTYPE_BF16);
    compare_all("cpu", DTYPE_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits_of_a_bias_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
