/* Models with frozen params: the other gradients and the loss keep their bits, whichever params are
 * frozen, and no pass writes the gradient of a frozen param. */
#include "model/model_rig.h"

static const struct unit_shape SHAPE = {2, 7, 0};
static const struct model_part WHOLE = {.tp = 1};

/* A byte that no gradient consists of: rig_pass fills gradients with 0xff. */
enum { UNTOUCHED = 0x5a };

static void compare(const struct rig *all, const struct rig *some)
{
    for (int u = 0; u < all->graph->unit_count; u++)
        for (int i = 0; i < all->graph->units[u].use_count; i++) {
            const struct unit *unit = &some->graph->units[u];
            size_t bytes = rig_param_bytes(all, unit->uses[i]);
            const char *name =
                all->graph->tensors[all->graph->params[unit->uses[i]].first_tensor].name;
            const unsigned char *got = some->grads[u][i];
            if (!(unit->frozen >> i & 1) && memcmp(all->grads[u][i], got, bytes) != 0)
                fail_msg("the gradient of %s has other bits", name);
            for (size_t k = 0; unit->frozen >> i & 1 && k < bytes; k++)
                if (got[k] != UNTOUCHED)
                    fail_msg("the gradient of %s, which is frozen, was written", name);
        }
}

static void try_globs(const struct model_config *config, const char *globs, const char *backend,
                      enum dtype type, enum keep rebuild, bool parts)
{
    struct model_config frozen = *config;
    struct rig all, some;
    frozen.freeze = globs;
    rig_open_part(&all, config, backend, type, SHAPE, rebuild, parts, &WHOLE);
    rig_open_part(&some, &frozen, backend, type, SHAPE, rebuild, parts, &WHOLE);
    rig_fill_params(&all, 0.3);
    rig_fill_params(&some, 0.3);
    int masked = 0;
    for (int u = 0; u < some.graph->unit_count; u++)
        for (int i = 0; i < some.graph->units[u].use_count; i++) {
            memset(some.grads[u][i], UNTOUCHED,
                   rig_param_bytes(&some, some.graph->units[u].uses[i]));
            masked += some.graph->units[u].frozen >> i & 1;
        }
    assert_true(masked > 0);
    double loss = rig_gradients(&all);
    assert_true(loss == rig_gradients(&some));
    compare(&all, &some);
    rig_close(&some);
    rig_close(&all);
}

static void try_everywhere(const struct model_config *config, const char *globs)
{
    for (int parts = 0; parts < 2; parts++) {
        try_globs(config, globs, "ref", DTYPE_F64, KEEP_NOT, parts);
        try_globs(config, globs, "cpu", DTYPE_F32, KEEP_NOT, parts);
        try_globs(config, globs, "cpu", DTYPE_F32, KEEP_UNLESS_FULL, parts);
    }
}

/* Every param alone, then all but this one. */
static void try_each_param(const struct model_config *config)
{
    struct rig r;
    rig_open(&r, config, "cpu", DTYPE_F32, SHAPE, KEEP_NOT);
    for (int p = 0; p < r.graph->param_count; p++) {
        char alone[1024] = "", others[8192] = "";
        for (int t = 0; t < r.graph->tensor_count; t++) {
            char *to = unit_param_of(r.graph, t) == p ? alone : others;
            size_t used = strlen(to), room = to == alone ? sizeof alone : sizeof others;
            snprintf(to + used, room - used, "%s%s", used ? "," : "", r.graph->tensors[t].name);
        }
        try_everywhere(config, alone);
        try_everywhere(config, others);
    }
    rig_close(&r);
}

static void test_gpt2(void **state)
{
    (void)state;
    struct model_config c = rig_gpt2();
    try_each_param(&c);
    try_everywhere(&c, "*.bias");
    try_everywhere(&c, "*wte*,*wpe*");
    try_everywhere(&c, "*.mlp.*,*.attn.*");
}

static void test_llama(void **state)
{
    (void)state;
    struct model_config c = rig_llama();
    c.tied = 0;
    try_each_param(&c);
    try_everywhere(&c, "*norm*");
    try_everywhere(&c, "*proj*");
}

static void test_work(void **state)
{
    (void)state;
    struct model_config c = rig_llama();
    struct rig all, some;
    c.tied = 0;
    rig_open(&all, &c, "cpu", DTYPE_F32, SHAPE, KEEP_NOT);
    c.freeze = "lm_head.weight";
    rig_open(&some, &c, "cpu", DTYPE_F32, SHAPE, KEEP_NOT);
    double saved = model_flops_per_token(all.model, 7) - model_flops_per_token(some.model, 7);
    assert_true(fabs(saved - 2.0 * (double)(c.vocab * c.width)) < 1e-6);
    rig_close(&some);
    c.freeze = "*embed*,*.layers.0.*"; /* the first block has no backward pass */
    rig_open(&some, &c, "cpu", DTYPE_F32, SHAPE, KEEP_NOT);
    double block = 0;
    for (int i = 0; i < some.graph->units[1].use_count; i++)
        block += (double)unit_param_whole(some.graph, some.graph->units[1].uses[i]);
    saved = model_flops_per_token(all.model, 7) - model_flops_per_token(some.model, 7);
    assert_true(fabs(saved - 4.0 * block - 8.0 * (double)(c.heads * c.head_width) * 7) < 1e-6);
    rig_close(&some);
    rig_close(&all);
}

static void test_sars_is_refused(void **state)
{
    (void)state;
    struct fixture fixture;
    struct env *env = fixture_open(&fixture);
    struct device *device;
    struct model *model;
    struct model_config c = rig_sars();
    c.freeze = "*embed_tokens*";
    assert_int_equal(device_create(env, "dry", 0, &device), STATUS_OK);
    assert_int_equal(model_create(device, &c, &model), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env->log), "sars cannot freeze"));
    device_destroy(device);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_work),
        cmocka_unit_test(test_sars_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
