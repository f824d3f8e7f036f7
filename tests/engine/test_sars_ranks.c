/* SARS has the same bits in every layout: its gate comes from the sums of all micro-batches, the
 * chain of prototypes passes through gathered params, and shards cut the rows that are gated. */
#include "engine/ranks.h"

static struct rig_config sars_run(void)
{
    struct rig_config config = base_config(0);
    config.model = rig_sars();
    return config;
}

static bool same_params(const struct trace *a, const struct trace *b)
{
    return memcmp(a->params, b->params, (size_t)a->count * sizeof(float)) == 0;
}

/* The gate, its kind and the clamp change the result: so equal bits say something about them. */
static void test_gates_matter(void **state)
{
    (void)state;
    enum { KINDS = 4 };
    struct trace traces[KINDS];
    for (int i = 0; i < KINDS; i++) {
        struct rig_config config = sars_run();
        config.model.sars.gate = i < KINDS - 1 ? i : SARS_GATE_OFF;
        config.model.sars.clamp = i < KINDS - 1 ? config.model.sars.clamp : 0;
        traces[i] = run(config, 1);
        assert_true(traces[i].meta_norm[0] > 0 && traces[i].norm[0] > 0);
        for (int k = 0; k < i; k++)
            assert_false(same_params(&traces[i], &traces[k]));
    }
    for (int i = 0; i < KINDS; i++)
        free(traces[i].params);
}

static void check_stages_and_ranks(struct rig_config plain_config)
{
    struct trace plain = run(plain_config, 1);
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 1; ranks <= 5; ranks++) {
            struct rig_config config = plain_config;
            config.stage = stage;
            config.prefetch = ranks % 3;
            config.recompute = (stage + ranks) % 3;
            config.delays = ranks % 2 ? 1e-4 : 0;
            compare(&plain, config, ranks);
        }
    free(plain.params);
}

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int gate = SARS_GATE_GLOBAL; gate <= SARS_GATE_LOCAL; gate++) {
        struct rig_config config = sars_run();
        config.model.sars.gate = gate;
        check_stages_and_ranks(config);
    }
}

static void test_bf16(void **state)
{
    (void)state;
    struct rig_config config = sars_run();
    config.type = DTYPE_BF16;
    check_stages_and_ranks(config);
    config.stochastic = true;
    check_stages_and_ranks(config);
}

/* A clip for each norm, and two heads with positions. */
static void test_clips(void **state)
{
    (void)state;
    struct rig_config config = sars_run();
    config.meta_clip = 1e-3;
    config.clip = 1e-3;
    config.model.width = 20;
    config.model.heads = config.model.kv_heads = 2;
    config.model.head_width = 10;
    config.model.sars.rope = true;
    config.model.rope_theta = 100;
    check_stages_and_ranks(config);
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    struct trace plain = run(sars_run(), 1);
    for (int stage = 1; stage <= 3; stage++) {
        struct rig_config config = sars_run();
        config.stage = stage;
        config.prefetch = 1;
        for (config.servers = 1; config.servers <= 2; config.servers++)
            compare(&plain, config, 2 + config.servers);
        config.servers = 0;
        for (config.group = 1; config.group <= 3; config.group++)
            compare(&plain, config, 2 * config.group);
    }
    free(plain.params);
}

static void test_optimizers(void **state)
{
    (void)state;
    static const enum optimizer_kind kinds[] = {OPTIMIZER_ADAMW8BIT, OPTIMIZER_SGD, OPTIMIZER_MUON};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct rig_config config = sars_run();
        config.optimizer = kinds[i];
        struct trace plain = run(config, 1);
        for (config.stage = 0; config.stage <= 3; config.stage++)
            compare(&plain, config, 3 + config.stage % 2);
        free(plain.params);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gates_matter),
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_clips),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_optimizers),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
