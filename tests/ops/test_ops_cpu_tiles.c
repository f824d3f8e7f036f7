/* test_ops_cpu_tiles -- shapes with several tiles or blocks in every direction on the cpu back end:
 * agreement with the reference, and equal bits for any number of threads. */
#include <math.h>
#include "ops/cpu/cpu_kernel.h"
#include "ops/op_rig.h"

#define LINEAR(op_name, r, i, o, w)                                     \
    {                                                                   \
        op_name, .rows = r, .linear = {i, o, .out_in = w}, .bias = true \
    }
#define ATTENTION(b, t, h, g, d)                                            \
    {"attention", .attention = OPS_HEADS(b, t, h, g, d)},                   \
        {"attention_backward_rope", .attention = OPS_HEADS(b, t, h, g, d)}, \
    {                                                                       \
        "attention_backward", .attention = OPS_HEADS(b, t, h, g, d)         \
    }

/* A window over several blocks of keys, and a cap that scores reach */
#define WINDOW(op_name, t, w, ...)          \
    {                                       \
        op_name,                            \
            .attention = {.batch = 1,       \
                          .tokens = t,      \
                          .heads = 2,       \
                          .kv_heads = 1,    \
                          .cap = 1.5,       \
                          .head_width = 32, \
                          .window = w},     \
            __VA_ARGS__                     \
    }

static const struct ops_case cases[] = {
    LINEAR("linear", 600, 130, 1701, false),
    LINEAR("linear", 600, 130, 1701, true),
    LINEAR("linear_gelu", 523, 70, 3203, false),
    LINEAR("linear", 260, 800, 3203, false),
    LINEAR("linear_dx", 601, 1601, 130, false),
    LINEAR("linear_dx", 130, 65, 3301, true),
    LINEAR("linear_dx_dgelu", 301, 3301, 70, false),
    LINEAR("linear_dw", 203, 301, 3203, false),
    LINEAR("linear_dw", 203, 3203, 301, true),
    LINEAR("linear", 1, 700, 3001, false),
    LINEAR("linear", 1, 700, 3001, true),
    ATTENTION(1, 257, 2, 1, 32),
    ATTENTION(2, 321, 2, 2, 40),
    ATTENTION(1, 600, 3, 1, 16),
    {"attention_cached", .attention = OPS_HEADS(2, 1, 4, 2, 32), .past = 600, .room = 700},
    {"attention_cached", .attention = OPS_HEADS(1, 70, 2, 1, 32), .past = 300, .room = 400},
    WINDOW("attention", 700, 290, .bias = false),
    WINDOW("attention_backward", 700, 290, .bias = true),
    WINDOW("attention_cached", 70, 290, .past = 600, .room = 700),
    WINDOW("attention_cached", 1, 290, .past = 600, .room = 700),
    {"cross_entropy_gradient", .rows = 5, .width = 5003, .cap = 2},
    {"norm_backward", .rows = 1500, .norm = {NORM_LAYER, 72, 1e-5, 0}, .bias = true,
     .branch = true},
    {"norm_backward", .rows = 1500, .norm = {NORM_LAYER, 72, 1e-5, 0}, .branch = true,
     .columns = true},
    {"cross_entropy", .rows = 5, .width = 5003},
    {"embedding_backward", .embedding = {3, 100, 65, 1000, 128, 0, 0, false}},
    {"cast", .count = 50001, .from = DTYPE_F32, .to = DTYPE_F16},
    {"adamw", .count = 50001, .to = DTYPE_BF16},
    {"find_nonfinite", .count = 50001, .bad = 40000},
    {"orthogonalize", .rows = 270, .width = 613},
    {"orthogonalize", .rows = 613, .width = 270},
    {"orthogonalize", .rows = 100, .width = 900},
};
#define CASE_COUNT (int)(sizeof cases / sizeof cases[0])

static double relative_error(const void *a, enum dtype a_type, const void *b, enum dtype b_type,
                             int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double x, y;
        dtype_convert(&x, DTYPE_F64, (const char *)a + (size_t)i * dtype_bytes(a_type), a_type, 1);
        dtype_convert(&y, DTYPE_F64, (const char *)b + (size_t)i * dtype_bytes(b_type), b_type, 1);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(norm > 0 ? difference / norm : difference);
}

static void compare(struct ops_trial *cpu, struct ops_trial *ref, const char *name)
{
    const struct ops_call *call = ops_trial_call(cpu), *other = ops_trial_call(ref);
    ops_trial_run(cpu);
    ops_trial_run(ref);
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        if ((t->role != OPS_OUT && t->role != OPS_IN_OUT) || t->type == DTYPE_I64)
            continue;
        double bound =
            t->type == DTYPE_BF16 || t->type == DTYPE_F16 ? 4e-3 : ops_trial_op(cpu)->bound;
        double error = relative_error(ops_trial_read(cpu, i), t->type, ops_trial_read(ref, i),
                                      other->tensors[i].type, t->count);
        if (!(error <= bound))
            fail_msg("%s: %s is off by %.2e, more than %.0e", name, t->name, error, bound);
    }
}

static void test_agree(void **state)
{
    (void)state;
    struct rig cpu, ref;
    rig_open(&cpu, "cpu", DTYPE_F32, 2);
    rig_open(&ref, "ref", DTYPE_F64, 2);
    for (int i = 0; i < CASE_COUNT; i++) {
        if (!testing_sampled()) /* the reference is slow; test_threads runs all cases */
            continue;
        char name[OPS_CASE_NAME], why[OPS_CASE_NAME];
        struct ops_trial *a = rig_trial(&cpu, &cases[i]), *b = rig_trial(&ref, &cases[i]);
        compare(a, b, ops_case_name(&cases[i], name));
        if (!ops_trial_is_sound(a, why))
            fail_msg("%s: %s", name, why);
        ops_trial_destroy(a);
        ops_trial_destroy(b);
    }
    rig_close(&cpu);
    rig_close(&ref);
}

static void test_threads(void **state)
{
    (void)state;
    enum { CLUSTERS = 3 };
    struct rig rigs[CLUSTERS]; /* of 1, 2 and 3 threads */
    for (int r = 0; r < CLUSTERS; r++)
        rig_open(&rigs[r], "cpu", DTYPE_F32, r + 1);
    for (int i = 0; i < CASE_COUNT; i++) {
        char name[OPS_CASE_NAME];
        struct ops_trial *trials[CLUSTERS];
        ops_case_name(&cases[i], name);
        for (int r = 0; r < CLUSTERS; r++) {
            trials[r] = rig_trial(&rigs[r], &cases[i]);
            ops_trial_run(trials[r]);
        }
        const struct ops_call *call = ops_trial_call(trials[0]);
        for (int t = 0; t < call->count; t++)
            for (int r = 1; r < CLUSTERS && call->tensors[t].role != OPS_SCRATCH; r++) {
                size_t bytes = (size_t)call->tensors[t].count * dtype_bytes(call->tensors[t].type);
                if (memcmp(ops_trial_read(trials[0], t), ops_trial_read(trials[r], t), bytes) != 0)
                    fail_msg("%s: %s has other bits with %d threads", name, call->tensors[t].name,
                             r + 1);
            }
        for (int r = 0; r < CLUSTERS; r++)
            ops_trial_destroy(trials[r]);
    }
    for (int r = 0; r < CLUSTERS; r++)
        rig_close(&rigs[r]);
}

/* Linear layers with operands rounded to bf16: close to the reference, further from it than f32,
 * and the same bits for any number of threads */
static void test_bf16_products(void **state)
{
    (void)state;
    if (cpu_kernel_bf16() == NULL)
        skip();
    struct rig rigs[2], ref;
    rig_open(&ref, "ref", DTYPE_F64, 2);
    for (int r = 0; r < 2; r++) {
        rig_open(&rigs[r], "cpu", DTYPE_F32, 1 + 2 * r);
        ops_multiply_in(rigs[r].ops, DTYPE_BF16);
    }
    for (int i = 0; i < CASE_COUNT && cases[i].linear.in; i++) {
        struct ops_trial *a = rig_trial(&rigs[0], &cases[i]), *b = rig_trial(&rigs[1], &cases[i]);
        struct ops_trial *right = rig_trial(&ref, &cases[i]);
        const struct ops_call *call = ops_trial_call(a), *other = ops_trial_call(right);
        ops_trial_run(a);
        ops_trial_run(b);
        ops_trial_run(right);
        for (int t = 0; t < call->count; t++) {
            const struct ops_tensor *x = &call->tensors[t];
            if (x->role != OPS_OUT && x->role != OPS_IN_OUT)
                continue;
            assert_memory_equal(ops_trial_read(a, t), ops_trial_read(b, t),
                                (size_t)x->count * dtype_bytes(x->type));
            double error = relative_error(ops_trial_read(a, t), x->type, ops_trial_read(right, t),
                                          other->tensors[t].type, x->count);
            assert_true(error < 6e-3);
            if (cases[i].rows > 1 && strcmp(x->name, "dbias") != 0)
                assert_true(error > 5e-4);
        }
        ops_trial_destroy(a);
        ops_trial_destroy(b);
        ops_trial_destroy(right);
    }
    rig_close(&rigs[0]);
    rig_close(&rigs[1]);
    rig_close(&ref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agree),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_bf16_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
