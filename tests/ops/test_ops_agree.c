/* test_ops_agree -- every back end against the reference in double, on every shape: values,
 * memory, aliases, and the same bits whatever the number of threads. */
#include <math.h>
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

/* 16-bit outputs may round to either side of a value that differs in the last place of f32. */
#define BOUND_16_BIT 4e-3

static size_t tensor_bytes(const struct ops_tensor *t)
{
    return (size_t)t->count * dtype_bytes(t->type);
}

static bool is_output(const struct ops_tensor *t)
{
    return t->role == OPS_OUT || t->role == OPS_IN_OUT;
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    assert_non_null(copy);
    return memcpy(copy, data, bytes);
}

static double as_double(const void *data, enum dtype type, int64_t i)
{
    double value;
    if (type == DTYPE_I64)
        return (double)((const int64_t *)data)[i];
    dtype_convert(&value, DTYPE_F64, (const char *)data + (size_t)i * dtype_bytes(type), type, 1);
    return value;
}

/* ||a - b|| / ||b||; ||a|| when b is zero. */
static double relative_error(const void *a, enum dtype a_type, const void *b, enum dtype b_type,
                             int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = as_double(a, a_type, i), y = as_double(b, b_type, i);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(norm > 0 ? difference / norm : difference);
}

static void run(struct ops_trial *trial, const char *name)
{
    char why[OPS_CASE_NAME];
    ops_trial_reset(trial);
    ops_trial_run(trial);
    if (!ops_trial_is_sound(trial, why))
        fail_msg("%s: %s", name, why);
}

static double bound_of(const struct ops_op *op, const struct ops_tensor *t)
{
    bool is_16_bit = t->type == DTYPE_BF16 || t->type == DTYPE_F16;
    return is_16_bit && op->bound > 0 ? BOUND_16_BIT : op->bound;
}

static void agree_on(struct rig *tested, struct rig *reference, const struct ops_case *c)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *a = rig_trial(tested, c), *b = rig_trial(reference, c);
    const struct ops_call *call = ops_trial_call(a), *other = ops_trial_call(b);
    run(a, ops_case_name(c, name));
    run(b, name);
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        double bound = bound_of(ops_trial_op(a), t);
        if (!is_output(t))
            continue;
        double error = relative_error(ops_trial_read(a, i), t->type, ops_trial_read(b, i),
                                      other->tensors[i].type, t->count);
        if (!(error <= bound))
            fail_msg("%s: %s is off by %.2e, more than %.0e", name, t->name, error, bound);
    }
    ops_trial_destroy(a);
    ops_trial_destroy(b);
}

static void test_agree(void **state)
{
    const char *backend = *state;
    struct rig tested, reference;
    rig_open(&tested, backend, DTYPE_F32, 2);
    rig_open(&reference, "ref", DTYPE_F64, 1);
    for (int i = 0; i < OP_SHAPE_COUNT; i++)
        agree_on(&tested, &reference, &op_shapes[i]);
    rig_close(&tested);
    rig_close(&reference);
}

/* An output that may take the place of an input gives the same bits there. */
static void test_in_place(void **state)
{
    struct rig rig;
    rig_open(&rig, *state, DTYPE_F32, 2);
    for (int i = 0; i < OP_SHAPE_COUNT; i++) {
        char name[OPS_CASE_NAME];
        struct ops_trial *trial = rig_trial(&rig, &op_shapes[i]);
        const struct ops_call *call = ops_trial_call(trial);
        ops_case_name(&op_shapes[i], name);
        for (int j = 0; j < call->count * 2; j++) {
            const struct ops_tensor *t = &call->tensors[j / 2];
            const char *place = t->may_be[j % 2];
            if (place == NULL)
                continue;
            run(trial, name);
            void *expected = copy_of(ops_trial_read(trial, j / 2), tensor_bytes(t));
            ops_trial_reset(trial);
            ops_trial_run_in_place(trial, j / 2, place);
            int at = (int)(ops_find_tensor(call, place) - call->tensors);
            if (memcmp(ops_trial_read(trial, at), expected, tensor_bytes(t)) != 0)
                fail_msg("%s: %s has other bits in the place of %s", name, t->name, place);
            free(expected);
        }
        ops_trial_destroy(trial);
    }
    rig_close(&rig);
}

static void equal_bits_on(struct rig *rigs, int rig_count, const struct ops_case *c)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *first = rig_trial(&rigs[0], c);
    const struct ops_call *call = ops_trial_call(first);
    run(first, ops_case_name(c, name));
    for (int r = 1; r < rig_count; r++) {
        struct ops_trial *other = rig_trial(&rigs[r], c);
        run(other, name);
        for (int i = 0; i < call->count; i++) {
            const struct ops_tensor *t = &call->tensors[i];
            if (t->role == OPS_SCRATCH)
                continue;
            const void *data = ops_trial_read(first, i);
            if (memcmp(data, ops_trial_read(other, i), tensor_bytes(t)) != 0)
                fail_msg("%s: %s has other bits with %d threads", name, t->name,
                         rigs[r].env.threads);
        }
        ops_trial_destroy(other);
    }
    ops_trial_destroy(first);
}

static void test_threads(void **state)
{
    enum { RIGS = 3 };
    struct rig rigs[RIGS];
    for (int r = 0; r < RIGS; r++)
        rig_open(&rigs[r], *state, DTYPE_F32, r + 1);
    for (int i = 0; i < OP_SHAPE_COUNT; i++)
        equal_bits_on(rigs, RIGS, &op_shapes[i]);
    for (int r = 0; r < RIGS; r++)
        rig_close(&rigs[r]);
}

/* Making y again from the kept sum and statistics gives the bits of the forward pass. */
static void test_norm_apply_bits(void **state)
{
    struct rig rig;
    rig_open(&rig, *state, DTYPE_F32, 2);
    for (int i = 0; i < OP_SHAPE_COUNT; i++) {
        struct ops_case shape = op_shapes[i];
        if (strcmp(shape.op, "norm_apply") != 0)
            continue;
        struct ops_trial *again = rig_trial(&rig, &shape);
        shape.op = "add_norm";
        struct ops_trial *forward = rig_trial(&rig, &shape);
        const struct ops_tensor *y = ops_find_tensor(ops_trial_call(again), "y");
        const struct ops_tensor *y0 = ops_find_tensor(ops_trial_call(forward), "y");
        ops_trial_run(again);
        ops_trial_run(forward);
        assert_memory_equal(y->data, y0->data, tensor_bytes(y));
        ops_trial_destroy(again);
        ops_trial_destroy(forward);
    }
    rig_close(&rig);
}

/* Every op that is described has a shape here. */
static void test_all_covered(void **state)
{
    (void)state;
    for (int op = 0; op < ops_op_count; op++) {
        int i = 0;
        while (i < OP_SHAPE_COUNT && strcmp(op_shapes[i].op, ops_ops[op].name) != 0)
            i++;
        if (i == OP_SHAPE_COUNT)
            fail_msg("no shape for %s", ops_ops[op].name);
    }
}

int main(void)
{
#define FOR_BACKENDS(test)                    \
    {#test " ref", test, NULL, NULL, "ref"},  \
    {                                         \
#test " cpu", test, NULL, NULL, "cpu" \
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_covered), FOR_BACKENDS(test_agree),
        FOR_BACKENDS(test_in_place),        FOR_BACKENDS(test_threads),
        FOR_BACKENDS(test_norm_apply_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
