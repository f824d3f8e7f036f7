/* test_ops_bf16_weights -- layers whose W or wte is in bf16 have the bits of the same values in
 * f32, in both orientations, by the model of AMX in plain C, which every machine has
 * (test_cpu_kernel compares the kernels with it). And where products do not round to bf16, ops do
 * not take it. */
#include "ops/op_rig.h"

enum { IN = 70, OUT = 101, MOST_ROWS = 40, COUNT = IN * OUT };

struct layer {
    float w[COUNT], x[MOST_ROWS * IN], y[MOST_ROWS * OUT], bias[OUT], pre[MOST_ROWS * IN];
    uint16_t narrow[COUNT];
};

static float number(int64_t i)
{
    return (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-24f - 0.5f;
}

static void fill(struct layer *l)
{
    for (int64_t i = 0; i < COUNT; i++)
        l->w[i] = number(i);
    dtype_convert(l->narrow, DTYPE_BF16, l->w, DTYPE_F32, COUNT);
    dtype_convert(l->w, DTYPE_F32, l->narrow, DTYPE_BF16, COUNT);
    for (int64_t i = 0; i < MOST_ROWS * IN; i++) {
        l->x[i] = number(i + 7777);
        l->pre[i] = number(i + 99);
    }
    for (int64_t i = 0; i < MOST_ROWS * OUT; i++)
        l->y[i] = number(i + 555);
    for (int64_t i = 0; i < OUT; i++)
        l->bias[i] = number(i + 31);
}

/* What all ops with a W compute */
struct outputs {
    float linear[MOST_ROWS * OUT], pre[MOST_ROWS * OUT], gelu[MOST_ROWS * OUT];
    float dx[MOST_ROWS * IN], dpre[MOST_ROWS * IN], dbias[IN], rows[MOST_ROWS * IN];
};

static struct outputs *compute(struct rig *rig, const struct layer *l, int64_t rows, bool out_in,
                               bool narrow)
{
    static const int32_t tokens[MOST_ROWS] = {5, 0, 100, 101, 99, 3};
    struct outputs *o = calloc(1, sizeof *o);
    assert_non_null(o);
    const void *w = narrow ? (const void *)l->narrow : l->w;
    struct linear layer = {.in = IN, .out = OUT, .out_in = out_in, .w_bf16 = narrow};
    ops_linear(rig->ops, rig->stream, layer, rows, l->x, w, l->bias, o->linear);
    ops_linear_gelu(
        rig->ops, rig->stream, layer, rows,
        &(struct linear_gelu){.x = l->x, .w = w, .bias = l->bias, .pre = o->pre, .y = o->gelu});
    ops_linear_dx(rig->ops, rig->stream, layer, rows, l->y, w, o->dx);
    ops_linear_dx_dgelu(rig->ops, rig->stream, layer, rows,
                        &(struct linear_dx_dgelu){
                            .dy = l->y, .w = w, .pre = l->pre, .dpre = o->dpre, .dbias = o->dbias});
    /* Of 102 tokens this rank has the first 101. */
    struct embedding e = {
        .batch = 1, .tokens = rows, .width = IN, .vocab = OUT, .id_count = OUT + 1};
    e.wte_bf16 = narrow;
    ops_embedding(rig->ops, rig->stream, e, tokens, w, NULL, (struct past){0}, o->rows);
    assert_ok(stream_sync(rig->stream));
    return o;
}

static void compare(void)
{
    struct rig rig;
    struct layer *l = malloc(sizeof *l);
    assert_non_null(l);
    fill(l);
    rig_open(&rig, "cpu", DTYPE_F32, 2);
    assert_false(ops_takes_bf16(rig.ops));
    ops_multiply_in(rig.ops, DTYPE_BF16);
    assert_true(ops_takes_bf16(rig.ops));
    for (int64_t rows = 2; rows <= MOST_ROWS; rows += 19)
        for (int out_in = 0; out_in < 2; out_in++) {
            struct outputs *wide = compute(&rig, l, rows, out_in, false);
            struct outputs *narrow = compute(&rig, l, rows, out_in, true);
            assert_memory_equal(wide, narrow, sizeof *wide);
            free(narrow);
            free(wide);
        }
    rig_close(&rig);
    free(l);
}

static void test_model(void **state)
{
    (void)state;
    compare();
}

static void test_without(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "ref", DTYPE_F32, 1);
    ops_multiply_in(rig.ops, DTYPE_BF16);
    assert_false(ops_takes_bf16(rig.ops));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model),
                                       cmocka_unit_test(test_without)};
    setenv("SIFR_CPU_KERNEL_BF16", "AMX model", 1); /* read when ops are first opened */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
