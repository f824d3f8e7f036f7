/* The graph: names, shapes, pieces and counts as the files have them; the rotary table; memory. */
#include "model/model_rig.h"

struct setup {
    struct fixture f;
    struct device *device;
};

static void open_setup(struct setup *p, const char *backend)
{
    fixture_open(&p->f);
    assert_int_equal(device_create(&p->f.env, backend, 0, &p->device), STATUS_OK);
}

static void close_setup(struct setup *p)
{
    device_destroy(p->device);
    fixture_close(&p->f);
}

static const struct unit_tensor *tensor_named(const struct unit_graph *g, const char *name)
{
    for (int t = 0; t < g->tensor_count; t++)
        if (strcmp(g->tensors[t].name, name) == 0)
            return &g->tensors[t];
    return NULL;
}

static void check_tensor(const struct unit_graph *g, const char *name, int64_t rows,
                         int64_t columns, enum unit_init init, double scale)
{
    const struct unit_tensor *t = tensor_named(g, name);
    if (!t)
        fail_msg("there is no tensor %s", name);
    assert_int_equal(t->dims, columns ? 2 : 1);
    assert_int_equal(t->shape[0], rows);
    assert_int_equal(t->shape[1], columns);
    assert_int_equal(t->init, init);
    assert_true(fabs(t->init_scale - scale) < 1e-12);
    assert_int_equal(t->decay, columns != 0);
}

static void test_gpt2_graph(void **state)
{
    (void)state;
    struct setup p;
    struct model *model;
    struct model_config c = rig_gpt2();
    open_setup(&p, "cpu");
    assert_int_equal(model_create(p.device, &c, &model), STATUS_OK);
    const struct unit_graph *g = model_graph(model);
    check_tensor(g, "transformer.wte.weight", 13, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "transformer.wpe.weight", 9, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "transformer.h.1.ln_1.weight", 12, 0, INIT_ONE, 0);
    check_tensor(g, "transformer.h.1.attn.c_attn.weight", 12, 36, INIT_NORMAL, 0.02);
    check_tensor(g, "transformer.h.0.attn.c_attn.bias", 36, 0, INIT_ZERO, 0);
    check_tensor(g, "transformer.h.1.attn.c_proj.weight", 12, 12, INIT_NORMAL, 0.01);
    check_tensor(g, "transformer.h.1.mlp.c_fc.weight", 12, 19, INIT_NORMAL, 0.02);
    check_tensor(g, "transformer.h.1.mlp.c_proj.weight", 19, 12, INIT_NORMAL, 0.01);
    check_tensor(g, "transformer.ln_f.bias", 12, 0, INIT_ZERO, 0);
    assert_null(tensor_named(g, "lm_head.weight"));
    assert_int_equal(g->tensor_count, 2 + 2 * 12 + 2);
    assert_int_equal(g->unit_count, 4);
    assert_int_equal(g->piece_count, 5); /* wte, wpe, two blocks, head */
    assert_int_equal(g->units[3].uses[2], g->units[0].uses[0]);
    assert_int_equal(g->stream_width, 12);
    assert_int_equal(g->vocab, 13);
    assert_int_equal(g->context, 9);
    double flops = 6.0 * (double)unit_graph_count(g) + 12.0 * 2 * 12 * 7;
    assert_true(model_flops_per_token(model, 7) == flops);
    assert_int_equal(model_config(model)->ff, 19);
    model_destroy(model);

    c.tied = 0;
    assert_int_equal(model_create(p.device, &c, &model), STATUS_OK);
    check_tensor(model_graph(model), "lm_head.weight", 13, 12, INIT_NORMAL, 0.02);
    model_destroy(model);
    close_setup(&p);
}

static void test_llama_graph(void **state)
{
    (void)state;
    struct setup p;
    struct model *model;
    struct model_config c = rig_llama();
    c.tied = 0;
    open_setup(&p, "cpu");
    assert_int_equal(model_create(p.device, &c, &model), STATUS_OK);
    const struct unit_graph *g = model_graph(model);
    check_tensor(g, "model.embed_tokens.weight", 13, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "model.layers.0.input_layernorm.weight", 12, 0, INIT_ONE, 0);
    check_tensor(g, "model.layers.1.self_attn.q_proj.weight", 12, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "model.layers.1.self_attn.k_proj.weight", 4, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "model.layers.1.self_attn.v_proj.weight", 4, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "model.layers.1.self_attn.o_proj.weight", 12, 12, INIT_NORMAL, 0.01);
    check_tensor(g, "model.layers.1.post_attention_layernorm.weight", 12, 0, INIT_ONE, 0);
    check_tensor(g, "model.layers.1.mlp.gate_proj.weight", 7, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "model.layers.1.mlp.up_proj.weight", 7, 12, INIT_NORMAL, 0.02);
    check_tensor(g, "model.layers.1.mlp.down_proj.weight", 12, 7, INIT_NORMAL, 0.01);
    check_tensor(g, "model.norm.weight", 12, 0, INIT_ONE, 0);
    check_tensor(g, "lm_head.weight", 13, 12, INIT_NORMAL, 0.02);
    assert_int_equal(g->tensor_count, 1 + 2 * 9 + 2);
    assert_int_equal(g->piece_count, 4); /* wte, two blocks, head with its own matrix */
    assert_int_equal(unit_param_count(g, g->units[1].uses[1]), (12 + 4 + 4) * 12);
    model_destroy(model);
    close_setup(&p);
}

/* Parameter counts match the names of the presets. */
static void test_preset_counts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t vocab;
        int64_t count;
    } known[] = {
        {"gpt2-124m", 0, 124439808},  {"gpt2-350m", 0, 354823168},      {"gpt2-774m", 0, 774030080},
        {"gpt2-1.5b", 0, 1557611200}, {"llama-3b", 128256, 3212749824}, {"llama-8b", 0, 8030261248},
    };
    struct setup p;
    open_setup(&p, "dry");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model_config c = {.tied = 2};
        struct options *options;
        struct model *model;
        assert_int_equal(options_create(&p.f.env, &options), STATUS_OK);
        assert_int_equal(options_bind(options, &model_options, &c), STATUS_OK);
        assert_int_equal(options_set(options, "model.preset", known[i].name, "test"), STATUS_OK);
        assert_int_equal(model_resolve(&p.f.env, options, &c), STATUS_OK);
        if (known[i].vocab)
            c.vocab = known[i].vocab;
        assert_int_equal(model_create(p.device, &c, &model), STATUS_OK);
        assert_int_equal(unit_graph_count(model_graph(model)), known[i].count);
        model_destroy(model);
        options_destroy(options);
    }
    close_setup(&p);
}

/* --- rotary table --------------------------------------------------------------------------- */
static double angle_of(const float *pair)
{
    return atan2(pair[1], pair[0]);
}

static void test_rope_table(void **state)
{
    (void)state;
    struct model_config c = {.head_width = 8, .context = 3, .rope_theta = 10000};
    float table[3 * 4 * 2];
    const double plain[4] = {1, 0.1, 0.01, 0.001};
    rope_table_fill(&c, ROPE_USUAL, table);
    for (int i = 0; i < 4; i++) {
        assert_true(table[2 * i] == 1 && table[2 * i + 1] == 0);
        assert_true(fabs(angle_of(table + 2 * (4 + i)) - plain[i]) < 1e-7);
        assert_true(fabs(angle_of(table + 2 * (8 + i)) - 2 * plain[i]) < 1e-7);
    }
    c.rope_scaling = ROPE_LINEAR;
    c.rope_factor = 4;
    rope_table_fill(&c, ROPE_USUAL, table);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(angle_of(table + 2 * (4 + i)) - plain[i] / 4) < 1e-7);

    /* Wavelengths 6.28, 62.8, 628, 6283 against 512 / 4 = 128 and 512 / 0.5 = 1024: the first two
     * stay, the last is divided, the third is a blend. */
    c.rope_scaling = ROPE_LLAMA3;
    c.rope_factor = 8;
    c.rope_low = 0.5;
    c.rope_high = 4;
    c.rope_original = 512;
    rope_table_fill(&c, ROPE_USUAL, table);
    double s = (512 / (2 * 3.14159265358979323846 / 0.01) - 0.5) / (4 - 0.5);
    const double expected[4] = {1, 0.1, (1 - s) * 0.01 / 8 + s * 0.01, 0.001 / 8};
    for (int i = 0; i < 4; i++)
        assert_true(fabs(angle_of(table + 2 * (4 + i)) - expected[i]) < 1e-7);
}

/* --- memory --------------------------------------------------------------------------------- */
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct setup p;
    struct model_config c = rig_llama();
    open_setup(&p, "cpu");
    size_t before = mem_total(p.f.env.mem);
    int64_t n = 1;
    for (;; n++) {
        struct model *model = NULL;
        mem_fail_at(p.f.env.mem, n);
        enum status st = model_create(p.device, &c, &model);
        mem_fail_at(p.f.env.mem, 0);
        if (st == STATUS_OK) {
            model_destroy(model);
            break;
        }
        assert_int_equal(st, STATUS_MEMORY);
        assert_null(model);
        assert_int_equal(mem_total(p.f.env.mem), before);
    }
    assert_true(n > 6);
    assert_int_equal(mem_total(p.f.env.mem), before);
    close_setup(&p);
}

/* The blocks' buffers in units of R C, on which memory plans rely. */
static void test_activation_bytes(void **state)
{
    (void)state;
    struct rig r;
    struct model_config c = rig_gpt2();
    c.ff = 4 * c.width;
    rig_open(&r, &c, "cpu", DTYPE_F32, (struct unit_shape){2, 8, 0}, KEEP_NOT);
    size_t stream = 2 * 8 * 12 * sizeof(float), kept[4] = {0};
    for (int b = 0; b < r.list_count[1]; b++)
        if (r.list[1][b].bytes >= stream)
            kept[r.list[1][b].keep] += r.list[1][b].bytes;
    assert_int_equal(kept[KEEP_ALWAYS], stream);
    assert_int_equal(kept[KEEP_UNLESS_FULL], (3 + 1 + 1 + 4) * stream);
    assert_int_equal(kept[KEEP_UNLESS_SELECTIVE], (1 + 1 + 4) * stream);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_graph),
        cmocka_unit_test(test_llama_graph),
        cmocka_unit_test(test_preset_counts),
        cmocka_unit_test(test_rope_table),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_activation_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
