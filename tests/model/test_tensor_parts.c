/* What each of several ranks has of a layer that they compute together: its part of every tensor,
 * what is repeated, what it keeps for the backward pass; and sizes that cannot be shared. */
#include "model/tensor_rig.h"

/* Every element of the whole is on as many ranks as its tensor says, once on each. */
static void check_parts(const struct model_config *config, int tp)
{
    struct lone lone[MOST_RANKS] = {0};
    for (int r = 0; r < tp; r++)
        open_lone(&lone[r], config, &(struct model_part){.tp = tp, .t = r, .sequence = true});
    for (int t = 0; t < lone[0].graph->tensor_count; t++) {
        const struct unit_tensor *first = &lone[0].graph->tensors[t];
        int64_t whole = unit_tensor_whole(first), answered = 0;
        int *held = calloc((size_t)whole, sizeof *held);
        assert_non_null(held);
        for (int r = 0; r < tp; r++) {
            const struct unit_tensor *tensor = &lone[r].graph->tensors[t];
            int64_t count = unit_tensor_count(tensor), run = 0, index = 0;
            assert_string_equal(tensor->name, first->name);
            assert_memory_equal(tensor->shape, first->shape, sizeof first->shape);
            for (int64_t i = 0; i < count; i += run) {
                index = unit_tensor_index(tensor, i, &run);
                assert_true(run >= 1 && i + run <= count);
                assert_int_equal(unit_tensor_index(tensor, i + run - 1, NULL), index + run - 1);
                assert_int_equal(unit_tensor_before(tensor, index), i);
                assert_int_equal(unit_tensor_before(tensor, index + run), i + run);
                for (int64_t k = 0; k < run; k++)
                    held[index + k]++;
            }
            answered += unit_tensor_answers(tensor) ? count : 0;
        }
        int replicas = first->split.replicas > 0 ? first->split.replicas : 1;
        for (int64_t i = 0; i < whole; i++)
            assert_int_equal(held[i], replicas);
        assert_int_equal(answered, whole);
        free(held);
    }
    assert_int_equal(unit_graph_count(lone[tp - 1].graph), unit_graph_count(lone[0].graph));
    for (int r = 0; r < tp; r++)
        close_lone(&lone[r]);
}

static void test_parts(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int tp = 1; tp <= MOST_RANKS; tp *= 2) {
            struct model_config c = model_at(m);
            check_parts(&c, tp);
            c.vocab = 4; /* a row each */
            check_parts(&c, tp);
        }
    struct model_config c = gpt2();
    c.vocab = 50257; /* in blocks of 64 rows */
    struct tp_group tp_group = {.size = 4};
    check_parts(&c, 4);
    for (int r = 0; r < 4; r++)
        assert_int_equal(part_of_vocab(&tp_group, c.vocab, r).first % 64, 0);
}

static const struct unit_split *split_of(const struct lone *l, const char *name)
{
    for (int t = 0; t < l->graph->tensor_count; t++)
        if (strcmp(l->graph->tensors[t].name, name) == 0)
            return &l->graph->tensors[t].split;
    fail_msg("there is no %s", name);
    return NULL;
}

/* Replicated tensors, and those for which each rank has a partial sum of the gradient. */
static void test_replicas(void **state)
{
    (void)state;
    struct lone l;
    struct model_config c = llama(2), g = gpt2();
    open_lone(&l, &c, &(struct model_part){.tp = 4, .t = 3});
    const struct unit_split *key = split_of(&l, "model.layers.1.self_attn.k_proj.weight");
    const struct unit_split *norm = split_of(&l, "model.layers.0.input_layernorm.weight");
    assert_int_equal(key->first, 1);
    assert_int_equal(key->count, 1);
    assert_int_equal(key->replicas, 2);
    assert_int_equal(key->replica, 1);
    assert_true(key->partial && !norm->partial);
    assert_int_equal(norm->replicas, 4);
    assert_int_equal(l.graph->sequence, 0);
    close_lone(&l);
    open_lone(&l, &g, &(struct model_part){.tp = 2, .t = 1, .sequence = true});
    assert_true(split_of(&l, "transformer.ln_f.bias")->partial);
    assert_false(split_of(&l, "transformer.h.0.mlp.c_proj.bias")->partial);
    assert_int_equal(split_of(&l, "transformer.h.0.attn.c_attn.weight")->sections, 3);
    assert_int_equal(l.graph->sequence, 2);
    close_lone(&l);
}
/* --- what is kept ---------------------------------------------------------------------------- */

/* What a block keeps for its backward pass, in bytes. */
static size_t kept_bytes(const struct model_config *config, const struct model_part *part)
{
    struct lone l;
    struct ops *ops;
    struct unit_buffer list[UNIT_MAX_BUFFERS];
    struct unit_shape shape = {2, 8, part->sequence ? part->tp : 0};
    size_t bytes = 0;
    open_lone(&l, config, part);
    assert_int_equal(ops_create(l.device, "cpu", DTYPE_F32, &ops), STATUS_OK);
    const struct unit *unit = &l.graph->units[1];
    int count = unit->type->buffers(unit, ops, shape, list);
    for (int b = 0; b < count; b++)
        bytes += list[b].keep != KEEP_NOT ? list[b].bytes : 0;
    ops_destroy(ops);
    close_lone(&l);
    return bytes;
}

/* Gathered again, all that is kept divides by tp; kept gathered, all but two activations; without
 * sequence parallel, all but the stream, the norms and their statistics. */
static void test_kept(void **state)
{
    (void)state;
    struct model_config c = gpt2();
    size_t activation = 2 * 8 * 16 * 4, statistics = 2 * (2 * 2 * 8) * 4;
    size_t whole = kept_bytes(&c, &(struct model_part){.tp = 1});
    for (int tp = 2; tp <= 4; tp *= 2) {
        struct model_part part = {.tp = tp, .sequence = true, .regather = true};
        size_t split = (whole - 4 * activation - statistics) / (size_t)tp;
        assert_int_equal(kept_bytes(&c, &part), whole / (size_t)tp);
        part.regather = false;
        assert_int_equal(kept_bytes(&c, &part),
                         whole / (size_t)tp + 2 * activation - 2 * activation / (size_t)tp);
        part.sequence = false;
        /* act also holds the attention branch, of all rows */
        size_t act = (size_t)(c.ff / tp > 3 * c.width / tp ? c.ff : 3 * c.width) / (size_t)tp;
        size_t room = act < 16 ? (16 - act) * 2 * 8 * 4 : 0;
        assert_int_equal(kept_bytes(&c, &part), 4 * activation + statistics + split + room);
    }
}

/* --- refusals ------------------------------------------------------------------------------- */

static void refused(struct model_config c, int tp, const char *words)
{
    struct fixture f;
    struct device *device;
    struct model *model = NULL;
    fixture_open(&f);
    assert_int_equal(device_create(&f.env, "dry", 0, &device), STATUS_OK);
    assert_int_equal(model_create_part(device, &c, &(struct model_part){.tp = tp}, &model),
                     STATUS_CONFIG);
    assert_contains(f.heard.line, words);
    device_destroy(device);
    fixture_close(&f);
}

static void test_refusals(void **state)
{
    (void)state;
    struct model_config c = gpt2(), odd = gpt2(), few = gpt2();
    refused(c, 3, "parallel.tp=3 cannot split model.heads=4; try 2 or 4");
    refused(c, 8, "parallel.tp=8 cannot split model.heads=4; try 4");
    odd.ff = 26;
    refused(odd, 4, "parallel.tp=4 cannot split model.ff=26; try 2");
    few.vocab = 3;
    refused(few, 4, "cannot split model.vocab=3");
    struct model_config three = llama(1);
    three.heads = 12;
    three.kv_heads = 6;
    refused(three, 4, "parallel.tp=4 cannot split model.kv_heads=6; try 2");

    three.kv_heads = 2;
    three.arch = MODEL_PHI3;
    refused(three, 4,
            "model.kv_heads=2, which share one tensor with q and so cannot be on several "
            "ranks; try 2");
    three.arch = MODEL_OLMO2;
    refused(three, 4, "model.kv_heads=2, whose norm counts each of them once; try 2");

    struct fixture f;
    struct model_part part = {.tp = 4, .sequence = true};
    fixture_open(&f);
    assert_int_equal(model_part_check_rows(&f.env, &part, 2, 6), STATUS_OK);
    assert_int_equal(model_part_check_rows(&f.env, &part, 3, 6), STATUS_CONFIG);
    assert_contains(f.heard.line, "parallel.sequence: 4 ranks do not divide the 18 rows");
    assert_contains(f.heard.line, "use 2 sequences, a multiple of 4 tokens");
    part.sequence = false;
    assert_int_equal(model_part_check_rows(&f.env, &part, 3, 6), STATUS_OK);
    fixture_close(&f);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
