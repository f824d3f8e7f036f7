/* A back end may ask for rows of logits that start at multiples of some bytes, as a GPU does. The
 * loss, the evaluated loss and every gradient keep their bits, and only the chunk of logits grows:
 * on one rank, and on several that hold some columns each. The rig fills buffers with NaNs, so a
 * value between two rows that counts is noticed. */
#include "model/tensor_rig.h"
#include "ops/ops_impl.h"

enum { ROW_BYTES = 128 };

/* List the head's buffers again and allocate those that have grown. */
static void grow_buffers(struct rig *rig)
{
    const int head = rig->graph->unit_count - 1;
    const struct unit *unit = &rig->graph->units[head];
    struct unit_buffer before[UNIT_MAX_BUFFERS];
    memcpy(before, rig->list[head], sizeof before);
    int count = unit->type->buffers(unit, rig->ops, rig->shape, rig->list[head]), grown = 0;
    assert_int_equal(count, rig->list_count[head]);
    for (int b = 0; b < count; b++) {
        size_t bytes = rig->list[head][b].bytes;
        if (bytes == before[b].bytes)
            continue;
        assert_string_equal(before[b].name, "logits chunk");
        assert_true(bytes > before[b].bytes);
        assert_int_equal(bytes % ROW_BYTES, 0);
        device_free(rig->device, rig->buffers[head][b]);
        rig->buffers[head][b] = rig_block(rig, bytes);
        grown++;
    }
    assert_int_equal(grown, 1);
}

static void work_dense(struct rank *rank)
{
    rank->evaluated = rig_eval(&rank->rig);
    work_gradients(rank);
}

static void work_strided(struct rank *rank)
{
    struct ops *ops = rank->rig.ops;
    const struct ops_backend *real = ops->backend;
    struct ops_backend table = *real;
    table.row_bytes = ROW_BYTES;
    ops->backend = &table;
    grow_buffers(&rank->rig);
    work_dense(rank);
    ops->backend = real;
}

static void assert_same_rank(const struct rank *a, const struct rank *b)
{
    const struct unit_graph *g = a->rig.graph;
    assert_memory_equal(&a->loss, &b->loss, sizeof a->loss);
    assert_memory_equal(&a->evaluated, &b->evaluated, sizeof a->evaluated);
    for (int u = 0; u < g->unit_count; u++)
        for (int i = 0; i < g->units[u].use_count; i++)
            assert_memory_equal(a->rig.grads[u][i], b->rig.grads[u][i],
                                rig_param_bytes(&a->rig, g->units[u].uses[i]));
}

static void check(const struct setting *s)
{
    struct rank dense[MOST_RANKS], strided[MOST_RANKS];
    run_ranks(s, true, work_dense, dense);
    run_ranks(s, true, work_strided, strided);
    for (int r = 0; r < s->tp; r++)
        assert_same_rank(&dense[r], &strided[r]);
    close_ranks(strided, s->tp);
    close_ranks(dense, s->tp);
}

static void test_one_rank(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        struct setting s[] = {setting_of(model_at(i), "ref", DTYPE_F64),
                              setting_of(model_at(i), "ref", DTYPE_F32),
                              setting_of(model_at(i), "cpu", DTYPE_F32)};
        for (int k = 0; k < 3; k++)
            check(&s[k]);
    }
}

static void test_several_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct setting s = setting_of(model_at(i), i == 0 ? "ref" : "cpu", DTYPE_F32);
        for (s.tp = 2; s.tp <= MOST_RANKS; s.tp *= 2)
            for (s.mode = 0; s.mode < MODES; s.mode++)
                check(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_several_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
