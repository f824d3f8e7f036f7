/* On the host, attention's backward pass has the bits of separate calls: with a rope table, those
 * of the backward pass without it and the inverse ops_rope; with column sums of dqkv, those of the
 * bias gradient from ops_linear_dw, and requesting the sums does not change dqkv. (A GPU may rotate
 * or sum before it rounds.) */
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

/* The address of a tensor. */
static void *at(const struct ops_trial *trial, const char *name)
{
    return ops_find_tensor(ops_trial_call(trial), name)->data;
}

/* Compare a tensor of two trials after their runs. */
static bool same_tensor(struct ops_trial *a, struct ops_trial *b, const char *name)
{
    const struct ops_call *call = ops_trial_call(a);
    const struct ops_tensor *t = ops_find_tensor(call, name);
    int tensor = (int)(t - call->tensors);
    int other = (int)(ops_find_tensor(ops_trial_call(b), name) - ops_trial_call(b)->tensors);
    return memcmp(ops_trial_read(a, tensor), ops_trial_read(b, other),
                  (size_t)t->count * dtype_bytes(t->type)) == 0;
}

static void compare_rope(struct rig *rig, const struct ops_case *c, int number)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *one = rig_trial(rig, c), *two = rig_trial(rig, c);
    (void)number;
    ops_trial_run(one);
    ops_attention_backward(rig->ops, rig->stream, c->attention,
                           &(struct attention_backward){.qkv = at(two, "qkv"),
                                                        .out = at(two, "out"),
                                                        .lse = at(two, "lse"),
                                                        .dout = at(two, "dout"),
                                                        .dqkv = at(two, "dqkv"),
                                                        .scratch = at(two, "scratch")});
    ops_rope(rig->ops, rig->stream, c->attention, at(two, "table"), (struct past){0}, true,
             at(two, "dqkv"));
    if (!same_tensor(one, two, "dqkv"))
        fail_msg("%s: other bits than by two calls", ops_case_name(c, name));
    ops_trial_destroy(one);
    ops_trial_destroy(two);
}

/* The product has dqkv as dy, on the same call's tensors: dw overwrites qkv. */
static void compare_bias(struct rig *rig, const struct ops_case *c, int number)
{
    char name[OPS_CASE_NAME];
    struct ops_case without = *c;
    without.bias = false;
    struct attention a = c->attention;
    struct linear l = {1, (a.heads + 2 * a.kv_heads) * a.head_width, .out_in = number % 2};
    struct ops_trial *one = rig_trial(rig, c), *two = rig_trial(rig, c);
    struct ops_trial *three = rig_trial(rig, &without);
    ops_trial_run(one);
    ops_trial_run(two);
    ops_trial_run(three);
    ops_linear_dw(rig->ops, rig->stream, l, a.batch * a.tokens,
                  &(struct linear_dw){.x = at(two, "out"),
                                      .dy = at(two, "dqkv"),
                                      .dw = at(two, "qkv"),
                                      .dbias = at(two, "dbias")});
    if (!same_tensor(one, two, "dbias"))
        fail_msg("%s: other bits than of ops_linear_dw", ops_case_name(c, name));
    if (!same_tensor(one, three, "dqkv"))
        fail_msg("%s: dqkv has other bits than without", ops_case_name(c, name));
    ops_trial_destroy(one);
    ops_trial_destroy(two);
    ops_trial_destroy(three);
}

/* All shapes of ops whose name starts with `op`, on the host's back ends. */
static void compare_all(const char *op, bool bias, int least,
                        void (*compare)(struct rig *, const struct ops_case *, int))
{
    static const struct {
        const char *backend;
        enum dtype type;
    } hosts[] = {{"ref", DTYPE_F32}, {"ref", DTYPE_BF16}, {"cpu", DTYPE_F32}};
    for (int h = 0; h < 3; h++) {
        int compared = 0;
        struct rig rig;
        rig_open(&rig, hosts[h].backend, hosts[h].type, 2);
        for (int i = 0; i < OP_SHAPE_COUNT; i++)
            if (strncmp(op_shapes[i].op, op, strlen(op)) == 0 && (op_shapes[i].bias || !bias))
                compare(&rig, &op_shapes[i], compared++);
        rig_close(&rig);
        assert_true(compared > least);
    }
}

static void test_rope(void **state)
{
    (void)state;
    compare_all("attention_backward_rope", false, 5, compare_rope);
}

static void test_bias_gradient(void **state)
{
    (void)state;
    compare_all("attention_backward", true, 8, compare_bias);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rope),
                                       cmocka_unit_test(test_bias_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
