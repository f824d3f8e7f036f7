/* Selective recomputation of GPT-2 on a back end that applies GELU to sums before they are rounded,
 * as a GPU does. The saved, rounded sums do not reproduce its bits, so the product with GELU runs
 * again (ops_gelu_remakes). Every gradient has the same bits as when everything is kept: on one
 * rank and in a TP group, with backward in one pass and in two halves.
 *
 * The test imitates such a back end on the host: its linear_gelu rounds the sums after GELU. */
#include "model/tensor_rig.h"
#include "ops/ops_impl.h"

struct rough {
    struct ops_backend table; /* first: it is found by ops->backend */
    const struct ops_backend *real;
    struct rank *rank;
};

static const struct rough *rough_of(const struct ops *ops)
{
    return (const struct rough *)ops->backend;
}

static void rough_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                              const struct linear_gelu *a)
{
    const struct rough *rough = rough_of(ops);
    rough->rank->products++;
    rough->real->linear_gelu(ops, stream, l, rows, a);
    for (int64_t i = 0; i < rows * l.out; i++) {
        char *at = (char *)a->pre + (size_t)i * dtype_bytes(ops->type);
        uint16_t rounded;
        dtype_convert(&rounded, DTYPE_BF16, at, ops->type, 1);
        dtype_convert(at, ops->type, &rounded, DTYPE_BF16, 1);
    }
}

static void counted_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *x,
                         void *y)
{
    const struct rough *rough = rough_of(ops);
    rough->rank->gelus++;
    rough->real->gelu(ops, stream, count, x, y);
}

static bool rough_gelu_of_sums(const struct ops *ops)
{
    (void)ops;
    return true;
}

/* Gradients with such a back end; `admits`: it sets gelu_of_sums. */
static void gradients_by_rough(struct rank *rank, bool admits)
{
    struct ops *ops = rank->rig.ops;
    struct rough rough = {.table = *ops->backend, .real = ops->backend, .rank = rank};
    rough.table.gelu_of_sums = admits ? rough_gelu_of_sums : NULL;
    rough.table.linear_gelu = rough_linear_gelu;
    rough.table.gelu = counted_gelu;
    ops->backend = &rough.table;
    work_gradients(rank);
    ops->backend = rough.real;
}

static void work_rough(struct rank *rank)
{
    gradients_by_rough(rank, true);
}

static void work_mistaken(struct rank *rank)
{
    gradients_by_rough(rank, false);
}

/* --- comparisons ---------------------------------------------------------------------------- */

/* The first use of a unit whose gradient differs. */
struct difference {
    const char *unit; /* NULL: there is none */
    int use;
};

static struct difference difference_of(const struct rig *a, const struct rig *b)
{
    for (int u = 0; u < a->graph->unit_count; u++)
        for (int i = 0; i < a->graph->units[u].use_count; i++)
            if (memcmp(a->grads[u][i], b->grads[u][i],
                       rig_param_bytes(a, a->graph->units[u].uses[i])) != 0)
                return (struct difference){a->graph->units[u].name, i};
    return (struct difference){NULL, 0};
}

/* Compare keeping everything with what the setting keeps. */
static void check_same_bits(const struct setting *s)
{
    struct rank kept[MOST_RANKS], remade[MOST_RANKS];
    struct setting all = *s;
    all.rebuild = KEEP_NOT;
    all.parts = false;
    run_ranks(&all, true, work_rough, kept);
    run_ranks(s, true, work_rough, remade);
    for (int r = 0; r < s->tp; r++) {
        const struct rig *a = &kept[r].rig, *b = &remade[r].rig;
        struct difference d = difference_of(a, b);
        if (d.unit)
            fail_msg("%s %s, tp %d %s, rank %d: in %s the gradient of use %d differs", s->backend,
                     dtype_name(s->type), s->tp, modes[s->mode].name, r, d.unit, d.use);
        assert_int_equal(kept[r].products, s->config.layers);
        assert_int_equal(remade[r].products, 2 * s->config.layers);
        assert_int_equal(kept[r].gelus + remade[r].gelus, 0);
        assert_memory_equal(&kept[r].loss, &remade[r].loss, sizeof kept[r].loss);
        assert_memory_equal(a->gradient, b->gradient,
                            (size_t)(unit_stream_rows(a->shape) * a->graph->stream_width) *
                                dtype_bytes(s->type));
    }
    close_ranks(remade, s->tp);
    close_ranks(kept, s->tp);
}

static void check_parts(struct setting s)
{
    for (s.rebuild = KEEP_UNLESS_FULL; s.rebuild <= KEEP_UNLESS_SELECTIVE; s.rebuild++)
        for (int parts = 0; parts < 2; parts++) {
            s.parts = parts;
            check_same_bits(&s);
        }
}

static void test_one_rank(void **state)
{
    (void)state;
    struct model_config configs[] = {rig_gpt2(), untied(gpt2())};
    for (int i = 0; i < 2; i++) {
        check_parts(setting_of(configs[i], "ref", DTYPE_F64));
        check_parts(setting_of(configs[i], "ref", DTYPE_F32));
        check_parts(setting_of(configs[i], "cpu", DTYPE_F32));
    }
}

/* Sequence parallel: the input of the product is gathered first. */
static void test_several_ranks(void **state)
{
    (void)state;
    struct setting s = setting_of(untied(gpt2()), "cpu", DTYPE_F32);
    s.delay = 1e-4;
    for (s.tp = 2; s.tp <= MOST_RANKS; s.tp *= 2)
        for (s.mode = 0; s.mode < MODES; s.mode++)
            check_parts(s);
}

/* The rounding is coarse enough to be detected: if only GELU is recomputed, the gradient of the
 * next matrix differs. */
static void test_gelu_alone_differs(void **state)
{
    (void)state;
    struct setting all = setting_of(rig_gpt2(), "cpu", DTYPE_F32), s = all;
    struct rank kept[1], remade[1];
    s.rebuild = KEEP_UNLESS_SELECTIVE;
    run_ranks(&all, true, work_mistaken, kept);
    run_ranks(&s, true, work_mistaken, remade);
    assert_int_equal(remade[0].products, s.config.layers);
    assert_int_equal(remade[0].gelus, s.config.layers);
    assert_non_null(difference_of(&kept[0].rig, &remade[0].rig).unit);
    close_ranks(remade, 1);
    close_ranks(kept, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_several_ranks),
        cmocka_unit_test(test_gelu_alone_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
