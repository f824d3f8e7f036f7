/* Golden numbers of SARS: tiny models against formulas in PyTorch in double
 * (tools/golden_sars.py), through the store and the engine. Logits, both losses and both norms, the
 * gradients of both phases before and after gate and clamp, the sums of goodness and the gate's
 * bits, and every parameter after ten steps; then other gates and signs for a few steps. Each to
 * 1e-5 of a tensor's largest element. On one rank, and on three whose shards cut rows.
 *
 * A mask is a comparison with zero: where products have fewer bits (bf16; SIFR_TEST_DEVICE=cuda
 * computes fp32 with TF32), masks flip, and only the losses are compared.
 */
#include <math.h>
#include "engine/golden_run.h"

static const struct golden_target cpu_f32 = {"cpu", "cpu", DTYPE_F32, 1e-5, 1e-5};
static const struct golden_target ref_f32 = {"cpu", "ref", DTYPE_F32, 1e-5, 1e-5};
static const struct golden_target ref_bf16 = {"cpu", "ref", DTYPE_BF16, 0, 0.03};
static const struct golden_target gpu_f32 = {"cuda", "cuda", DTYPE_F32, 0, 0.01};
static const struct golden_target gpu_bf16 = {"cuda", "cuda", DTYPE_BF16, 0, 0.03};

static bool masks_flip(const struct golden_run *r)
{
    return r->target.bound == 0;
}

/* --- setting up from the file --------------------------------------------------------------- */
static struct sars_config rule_of(const struct golden_run *r)
{
    const json_t *root = r->golden.root, *rule = json_object_get(r->batches, "rule");
    return (struct sars_config){
        .gate = golden_is(rule, "gate", "global")  ? SARS_GATE_GLOBAL
                : golden_is(rule, "gate", "local") ? SARS_GATE_LOCAL
                                                   : SARS_GATE_OFF,
        .sign = golden_int(rule, "sign") < 0,
        .standardise = json_is_true(json_object_get(rule, "standardise")),
        .meta_weight = golden_real(json_object_get(root, "model"), "meta_weight"),
        .clamp = golden_real(json_object_get(root, "hyper"), "clamp"),
    };
}

static void create_run(struct golden_run *r, struct sars_config rule)
{
    const json_t *m = json_object_get(r->golden.root, "model");
    int64_t heads = golden_int(m, "heads"), width = golden_int(m, "width");
    const struct model_config model = {.arch = MODEL_SARS,
                                       .layers = golden_int(m, "layers"),
                                       .heads = heads,
                                       .kv_heads = heads,
                                       .width = width,
                                       .head_width = width / heads,
                                       .context = golden_int(m, "context"),
                                       .vocab = golden_int(m, "vocab"),
                                       .norm_eps = golden_real(m, "norm_eps"),
                                       .init_std = 0.02,
                                       .path = "",
                                       .sars = rule};
    const struct zero_config store = golden_run_store(r);
    golden_run_create(r, &model, &store);
}

static void open_run(struct golden_run *r, const char *name, const char *variant,
                     struct golden_target target, struct golden_ranks ranks)
{
    golden_run_read(r, name, variant, target, ranks);
    create_run(r, rule_of(r));
}

/* --- comparing ------------------------------------------------------------------------------ */
static void compare(const struct golden_run *r, const char *kind, const char *name,
                    const float *found, const double *exact, int64_t count)
{
    double most = 0, off = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(found[i] - exact[i]);
        most = fabs(exact[i]) > most ? fabs(exact[i]) : most;
        if (!(error <= off)) /* also if it is not a number */
            off = error;
    }
    if (!(off <= r->target.bound * most))
        fail_msg("%s%s: off by %.2e of %.3e", kind, name, off, most);
}

/* The gradients of a phase. Frozen tensors have none. */
static void compare_gradients(struct golden_run *r, const char *kind, enum unit_phase phase)
{
    int compared = 0;
    for (int t = 0; t < r->graph->tensor_count && !masks_flip(r); t++)
        if (r->graph->tensors[t].phase == phase && !zero_tensor_is_frozen(r->zero, t)) {
            golden_run_compare(r, kind, t, zero_read_gradient, compare);
            compared++;
        }
    assert_true(compared > 0 || masks_flip(r));
}

static void compare_exactly(const struct golden_run *r, const char *kind, const char *name,
                            const float *found, const double *exact, int64_t count)
{
    (void)r;
    for (int64_t i = 0; i < count; i++)
        if ((double)found[i] != exact[i])
            fail_msg("%s%s[%d]: %.9g, exact %.9g", kind, name, (int)i, found[i], exact[i]);
}

/* All tensors; frozen ones are as they were at first. */
static void compare_final(struct golden_run *r)
{
    for (int t = 0; t < r->graph->tensor_count; t++) {
        if (!masks_flip(r))
            golden_run_compare(r, "final/", t, zero_read, compare);
        if (zero_tensor_is_frozen(r->zero, t) && r->target.type == DTYPE_F32)
            golden_run_compare(r, "init/", t, zero_read, compare_exactly);
    }
}

static void near(const struct golden_run *r, const char *what, int step, double found, double bound)
{
    double exact = golden_step_real(r->batches, what, step);
    if (!(fabs(found - exact) <= bound * fabs(exact)))
        fail_msg("step %d: %s %.9g, exact %.9g", step, what, found, exact);
}

/* The statistic of a layer, from `part` on. */
static const float *statistic_of(const struct golden_run *r, int64_t layer,
                                 enum sars_statistic part)
{
    int64_t width = r->graph->stream_width;
    return engine_statistics(r->engine) + layer * sars_statistic_at(SARS_STATISTICS, width) +
           sars_statistic_at(part, width);
}

static double meta_loss(const struct golden_run *r)
{
    int64_t layers = model_config(r->model)->layers;
    double sum = 0;
    for (int64_t layer = 0; layer < layers; layer++)
        for (int kind = 0; kind < SARS_KINDS; kind++)
            sum += statistic_of(r, layer, SARS_ENTROPY)[kind];
    return sum / (double)(SARS_KINDS * layers * r->micro_batches * r->rows);
}

static void check_result(struct golden_run *r, int step, const struct engine_result *result)
{
    assert_false(result->skipped);
    near(r, "loss", step, result->loss, r->target.loss_bound);
    near(r, "meta_loss", step, meta_loss(r), r->target.loss_bound);
    if (masks_flip(r))
        return;
    near(r, "grad_norm_theta", step, result->grad_norm, r->target.bound);
    near(r, "grad_norm_phi", step, result->meta_norm, r->target.bound);
}

/* The sums of goodness and of active tokens, and the bits of the gate. */
static void check_sums(struct golden_run *r, int step, int steps)
{
    int64_t layers = model_config(r->model)->layers, width = r->graph->stream_width;
    int64_t neurons = SARS_KINDS * width, each = layers * neurons;
    if (masks_flip(r))
        return;
    double *goodness = golden_tensor(&r->golden, "goodness", "", steps * each);
    double *active = golden_tensor(&r->golden, "active", "", steps * each);
    double *keep = golden_tensor(&r->golden, "keep", "", steps * each);
    for (int64_t layer = 0; layer < layers; layer++) {
        const float *found = statistic_of(r, layer, SARS_GOODNESS);
        const float *counts = statistic_of(r, layer, SARS_ACTIVE);
        int64_t at = step * each + layer * neurons;
        compare(r, "goodness", "", found, goodness + at, neurons);
        for (int64_t i = 0; i < neurons; i++) {
            assert_int_equal(found[i] > 0, keep[at + i] > 0);
            assert_int_equal((int)counts[i], (int)lround(active[at + i]));
        }
    }
    free(keep);
    free(active);
    free(goodness);
}

/* --- the tests ------------------------------------------------------------------------------ */
static void check_model(const char *name, struct golden_target target, struct golden_ranks ranks)
{
    struct golden_run r;
    struct engine_result result;
    open_run(&r, name, NULL, target, ranks);
    int steps = (int)json_array_size(json_object_get(r.batches, "loss"));
    golden_run_fill(&r, 0);
    if (!ranks.hub && !masks_flip(&r))
        golden_run_compare_logits(&r, compare);
    assert_ok(engine_gradients(r.engine, &result));
    check_result(&r, 0, &result);
    check_sums(&r, 0, steps);
    compare_gradients(&r, "grad/", PHASE_MAIN);
    compare_gradients(&r, "grad/", PHASE_META);
    assert_int_equal(steps, 10);
    for (int step = 0; step < steps; step++) {
        result = golden_run_step(&r, step);
        check_result(&r, step, &result);
        check_sums(&r, step, steps);
    }
    compare_final(&r);
    golden_run_close(&r);
}

static void check_targets(golden_check_fn *check, const char *name)
{
    if (!test_on_cpu()) {
        check(name, gpu_f32, (struct golden_ranks){0});
        check(name, gpu_bf16, (struct golden_ranks){0});
        return;
    }
    check(name, ref_f32, (struct golden_ranks){0});
    check(name, cpu_f32, (struct golden_ranks){0});
    check(name, ref_bf16, (struct golden_ranks){0});
}

static void test_sars(void **state)
{
    (void)state;
    check_targets(check_model, "sars");
}

static void test_heads(void **state)
{
    (void)state;
    check_targets(check_model, "sars_heads");
}

/* Without a gate and a clamp, the gradient of the first step is that of the loss. */
static void check_raw(const char *name, struct golden_target target, struct golden_ranks ranks)
{
    struct golden_run r;
    struct engine_result result;
    golden_run_read(&r, name, NULL, target, ranks);
    struct sars_config rule = rule_of(&r);
    rule.gate = SARS_GATE_OFF;
    rule.clamp = 0;
    create_run(&r, rule);
    golden_run_fill(&r, 0);
    assert_ok(engine_gradients(r.engine, &result));
    assert_false(result.skipped);
    compare_gradients(&r, "raw/", PHASE_MAIN);
    compare_gradients(&r, "grad/", PHASE_META); /* neither concerns them */
    golden_run_close(&r);
}

static void test_raw_gradients(void **state)
{
    (void)state;
    check_targets(check_raw, "sars");
    check_targets(check_raw, "sars_heads");
}

/* Sum and sum of absolute values of every trained tensor. */
static void check_final_sums(struct golden_run *r)
{
    const json_t *sums = json_object_get(r->batches, "final_sums");
    size_t compared = 0;
    for (int t = 0; t < r->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &r->graph->tensors[t];
        int64_t count = unit_tensor_count(tensor);
        double sum = 0, size = 0;
        if (zero_tensor_is_frozen(r->zero, t))
            continue;
        float *found = malloc((size_t)count * sizeof *found);
        assert_ok(zero_read(r->zero, t, 0, count, found));
        for (int64_t i = 0; i < count; i++) {
            sum += found[i];
            size += fabs((double)found[i]);
        }
        free(found);
        double exact = golden_step_real(sums, tensor->name, 0);
        double exact_size = golden_step_real(sums, tensor->name, 1), bound = r->target.bound;
        if (!(fabs(sum - exact) <= bound * exact_size && fabs(size - exact_size) <= bound * size))
            fail_msg("%s: sum %.9g, exact %.9g; of absolute values %.9g, exact %.9g", tensor->name,
                     sum, exact, size, exact_size);
        compared++;
    }
    assert_int_equal(compared, json_object_size(sums));
}

/* `name` is a variant of the file "sars". */
static void check_variant(const char *name, struct golden_target target, struct golden_ranks ranks)
{
    struct golden_run r;
    open_run(&r, "sars", name, target, ranks);
    int steps = (int)json_array_size(json_object_get(r.batches, "loss"));
    assert_int_equal(steps, 4);
    for (int step = 0; step < steps; step++) {
        struct engine_result result = golden_run_step(&r, step);
        check_result(&r, step, &result);
    }
    if (!masks_flip(&r))
        check_final_sums(&r);
    golden_run_close(&r);
}

static const char *const variants[] = {"local", "off", "minus", "standardise"};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void test_variants(void **state)
{
    (void)state;
    for (int i = 0; i < VARIANTS; i++)
        check_targets(check_variant, variants[i]);
}

static void test_shards_that_cut_rows(void **state)
{
    (void)state;
    struct golden_run r;
    struct golden_target target = test_on_cpu() ? cpu_f32 : gpu_f32;
    static const char *const names[] = {"sars", "sars_heads"};
    for (int i = 0; i < 2; i++) {
        open_run(&r, names[i], NULL, target, (struct golden_ranks){0});
        assert_true(golden_run_cuts_rows(&r, 3, true));
        golden_run_close(&r);
        for (int stage = 0; stage <= 3; stage++)
            golden_run_ranks(check_model, names[i], target, 3, stage, 0);
        golden_run_ranks(check_raw, names[i], target, 3, 3, 0);
    }
    golden_run_ranks(check_model, "sars", target, 4, 3, 2);
    for (int i = 0; i < VARIANTS; i++)
        golden_run_ranks(check_variant, variants[i], target, 3, 1 + i % 3, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sars),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_raw_gradients),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_shards_that_cut_rows),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
