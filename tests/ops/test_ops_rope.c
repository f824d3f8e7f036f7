/* On the host, attention's backward pass with a rope table has the bits of two separate calls: the
 * backward pass without it and the inverse ops_rope. (A GPU may rotate before it rounds.) */
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

/* The address of a tensor. */
static void *at(const struct ops_trial *trial, const char *name)
{
    return ops_find_tensor(ops_trial_call(trial), name)->data;
}

/* The two calls, on the tensors of a trial of the combined one. */
static void run_separately(struct rig *rig, const struct ops_case *c, const struct ops_trial *trial)
{
    ops_attention_backward(rig->ops, rig->stream, c->attention,
                           &(struct attention_backward){.qkv = at(trial, "qkv"),
                                                        .out = at(trial, "out"),
                                                        .lse = at(trial, "lse"),
                                                        .dout = at(trial, "dout"),
                                                        .dqkv = at(trial, "dqkv"),
                                                        .scratch = at(trial, "scratch")});
    ops_rope(rig->ops, rig->stream, c->attention, at(trial, "table"), (struct past){0}, true,
             at(trial, "dqkv"));
}

static void compare(struct rig *rig, const struct ops_case *c)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *one = rig_trial(rig, c), *two = rig_trial(rig, c);
    const struct ops_call *call = ops_trial_call(one);
    const struct ops_tensor *dqkv = ops_find_tensor(call, "dqkv");
    int tensor = (int)(dqkv - call->tensors);
    ops_trial_run(one);
    run_separately(rig, c, two);
    if (memcmp(ops_trial_read(one, tensor), ops_trial_read(two, tensor),
               (size_t)dqkv->count * dtype_bytes(dqkv->type)) != 0)
        fail_msg("%s: other bits than by two calls", ops_case_name(c, name));
    ops_trial_destroy(one);
    ops_trial_destroy(two);
}

static void compare_all(const char *backend, enum dtype type)
{
    int compared = 0;
    struct rig rig;
    rig_open(&rig, backend, type, 2);
    for (int i = 0; i < OP_SHAPE_COUNT; i++) {
        if (strcmp(op_shapes[i].op, "attention_backward_rope") != 0)
            continue;
        compare(&rig, &op_shapes[i]);
        compared++;
    }
    rig_close(&rig);
    assert_true(compared > 5);
}

static void test_bits_of_two_calls(void **state)
{
    (void)state;
    compare_all("ref", DTYPE_F32);
    compare_all("ref", DTYPE_BF16);
    compare_all("cpu", DTYPE_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits_of_two_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
