/* Golden numbers: tiny models against PyTorch in double (tools/golden_model.py), through the
 * store and the engine. Logits, loss, every gradient, and every parameter after ten steps of AdamW
 * with clipping and two parameter groups, each to ||a - b|| <= bound ||b||. On one rank, and on
 * three whose shards cut rows. SIFR_TEST_DEVICE=cuda does it on a GPU.
 *
 *     fp32        1e-5
 *     TF32        0.02     products with 11 bits: fp32 on a GPU; of the loss 0.001
 *     bf16        0.1      8 bits in every tensor; of the loss 0.01
 */
#include <math.h>
#include "engine/golden_run.h"

static const struct golden_target cpu_f32 = {"cpu", "cpu", DTYPE_F32, 1e-5, 1e-5};
static const struct golden_target ref_f32 = {"cpu", "ref", DTYPE_F32, 1e-5, 1e-5};
static const struct golden_target ref_bf16 = {"cpu", "ref", DTYPE_BF16, 0.1, 0.01};
static const struct golden_target gpu_f32 = {"cuda", "cuda", DTYPE_F32, 0.02, 1e-3};
static const struct golden_target gpu_bf16 = {"cuda", "cuda", DTYPE_BF16, 0.1, 0.01};

/* --- setting up from the file --------------------------------------------------------------- */
static enum model_arch arch_of(const json_t *m)
{
    int arch = 0;
    while (!golden_is(m, "arch", model_arch_word(arch)))
        arch++;
    return arch;
}

static bool is_true(const json_t *m, const char *key)
{
    return json_is_true(json_object_get(m, key));
}

static struct model_config model_of(const json_t *m)
{
    bool llama3 = golden_is(m, "rope_scaling", "llama3");
    return (struct model_config){
        .arch = arch_of(m),
        .layers = golden_int(m, "layers"),
        .heads = golden_int(m, "heads"),
        .kv_heads = golden_int(m, "kv_heads"),
        .width = golden_int(m, "width"),
        .head_width = golden_int(m, "head_width"),
        .ff = golden_int(m, "ff"),
        .context = golden_int(m, "context"),
        .vocab = golden_int(m, "vocab"),
        .gelu = is_true(m, "exact"),
        .attention_bias = is_true(m, "attention_bias"),
        .mlp_bias = is_true(m, "mlp_bias"),
        .window = golden_int(m, "window"),
        .full_every = golden_int(m, "full_every"),
        .nope_every = golden_int(m, "nope_every"),
        .query_scalar = golden_int(m, "query_scalar"),
        .score_cap = golden_real(m, "cap"),
        .logit_cap = golden_real(m, "final_cap"),
        .tied = is_true(m, "tied"),
        .norm_eps = golden_real(m, "norm_eps"),
        .init_std = 0.02,
        .rope_theta = golden_real(m, "rope_theta"),
        .rope.local = golden_real(m, "rope_local"),
        .rope_scaling = llama3 ? ROPE_LLAMA3 : ROPE_PLAIN,
        .rope_factor = golden_real(m, "rope_factor"),
        .rope_low = golden_real(m, "rope_low"),
        .rope_high = golden_real(m, "rope_high"),
        .rope_original = golden_int(m, "rope_original"),
        .path = "",
    };
}

static void open_run(struct golden_run *r, const char *name, struct golden_target target,
                     struct golden_ranks ranks)
{
    enum { GROUPS = 2 };
    struct zero_group groups[GROUPS];
    golden_run_read(r, name, NULL, target, ranks);
    const json_t *m = json_object_get(r->golden.root, "model");
    const json_t *list = json_object_get(m, "groups");
    struct model_config model = model_of(m);
    struct zero_config store = golden_run_store(r);
    assert_int_equal(json_array_size(list), GROUPS);
    for (int i = 0; i < GROUPS; i++) {
        const json_t *group = json_array_get(list, (size_t)i);
        groups[i] = (struct zero_group){
            json_string_value(json_object_get(group, "match")), golden_real(group, "lr_mul"),
            store.weight_decay * golden_real(group, "wd_mul"), store.optimizer};
    }
    store.groups = groups;
    store.group_count = GROUPS;
    golden_run_create(r, &model, &store);
}

/* --- comparing ------------------------------------------------------------------------------ */
struct norms {
    double difference, exact;
};

static struct norms norms_of(const float *a, const double *b, int64_t count)
{
    double difference = 0, exact = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        exact += b[i] * b[i];
    }
    return (struct norms){sqrt(difference), sqrt(exact)};
}

static void assert_near(const struct golden_run *r, const char *kind, const char *name,
                        struct norms n, double size)
{
    if (!(n.difference <= r->target.bound * size))
        fail_msg("%s%s: off by %.2e of %.3e", kind, name, n.difference, size);
}

static void compare(const struct golden_run *r, const char *kind, const char *name,
                    const float *found, const double *exact, int64_t count)
{
    struct norms n = norms_of(found, exact, count);
    assert_true(n.exact > 0);
    assert_near(r, kind, name, n, n.exact);
}

/* Compare every tensor that `read` returns with the file's `kind`. */
static void compare_tensors(struct golden_run *r, const char *kind, golden_read_fn *read)
{
    for (int t = 0; t < r->graph->tensor_count; t++)
        golden_run_compare(r, kind, t, read, compare);
}

/* The bias of a key shifts all scores of a query equally: its exact gradient is zero, and what is
 * computed is rounding, small compared with the whole gradient. */
static void check_key_bias(struct golden_run *r, double grad_norm)
{
    for (int t = 0; t < r->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &r->graph->tensors[t];
        if (!strstr(tensor->name, "c_attn.bias"))
            continue;
        int64_t third = tensor->shape[0] / 3;
        float *found = malloc((size_t)third * sizeof *found);
        double *zero = calloc((size_t)third, sizeof *zero);
        assert_ok(zero_read_gradient(r->zero, t, third, third, found));
        assert_near(r, "key part of ", tensor->name, norms_of(found, zero, third), grad_norm);
        free(zero);
        free(found);
    }
}

static void check_result(struct golden_run *r, int step, const struct engine_result *result)
{
    double loss = golden_step_real(r->golden.root, "loss", step);
    double norm = golden_step_real(r->golden.root, "grad_norm", step);
    assert_false(result->skipped);
    if (!(fabs(result->loss - loss) <= r->target.loss_bound * loss))
        fail_msg("step %d: loss %.9g, exact %.9g", step, result->loss, loss);
    if (!(fabs(result->grad_norm - norm) <= r->target.bound * norm))
        fail_msg("step %d: gradient norm %.9g, exact %.9g", step, result->grad_norm, norm);
}

/* --- the tests ------------------------------------------------------------------------------ */
static void check_model(const char *name, struct golden_target target, struct golden_ranks ranks)
{
    struct golden_run r;
    struct engine_result result;
    open_run(&r, name, target, ranks);
    golden_run_fill(&r, 0);
    if (!ranks.hub)
        golden_run_compare_logits(&r, compare);
    assert_ok(engine_gradients(r.engine, &result));
    check_result(&r, 0, &result);
    compare_tensors(&r, "grad/", zero_read_gradient);
    check_key_bias(&r, result.grad_norm);

    int steps = (int)json_array_size(json_object_get(r.batches, "loss"));
    assert_int_equal(steps, 10);
    for (int step = 0; step < steps; step++) {
        result = golden_run_step(&r, step);
        check_result(&r, step, &result);
    }
    compare_tensors(&r, "final/", zero_read);
    golden_run_close(&r);
}

static void check_targets(const char *name)
{
    if (!test_on_cpu()) {
        check_model(name, gpu_f32, (struct golden_ranks){0});
        check_model(name, gpu_bf16, (struct golden_ranks){0});
        return;
    }
    check_model(name, ref_f32, (struct golden_ranks){0});
    check_model(name, cpu_f32, (struct golden_ranks){0});
    check_model(name, ref_bf16, (struct golden_ranks){0});
}

static void check_ranks(const char *name, int size, int stage, int group)
{
    golden_run_ranks(check_model, name, test_on_cpu() ? cpu_f32 : gpu_f32, size, stage, group);
}

static void test_gpt2(void **state)
{
    (void)state;
    check_targets("gpt2");
}

static void test_llama(void **state)
{
    (void)state;
    check_targets("llama");
}

static void test_llama_untied(void **state)
{
    (void)state;
    check_targets("llama_untied");
}

static void test_qwen2(void **state)
{
    (void)state;
    check_targets("qwen2");
}

static void test_llama_biases(void **state)
{
    (void)state;
    check_targets("llama_biases");
}

static void test_qwen3(void **state)
{
    (void)state;
    check_targets("qwen3");
}

static void test_smollm3(void **state)
{
    (void)state;
    check_targets("smollm3");
}

static void test_olmo2(void **state)
{
    (void)state;
    check_targets("olmo2");
}

static void test_mistral(void **state)
{
    (void)state;
    check_targets("mistral");
}

static void test_gemma2(void **state)
{
    (void)state;
    check_targets("gemma2");
}

static void test_phi3(void **state)
{
    (void)state;
    check_targets("phi3");
}

static void test_gemma3(void **state)
{
    (void)state;
    check_targets("gemma3");
}

static void test_gpt2_exact(void **state)
{
    (void)state;
    check_targets("gpt2_exact");
}

static void check_that_rows_are_cut(const char *name, int owners)
{
    struct golden_run r;
    open_run(&r, name, cpu_f32, (struct golden_ranks){0});
    assert_true(golden_run_cuts_rows(&r, owners, false));
    golden_run_close(&r);
}

static void test_shards_that_cut_rows(void **state)
{
    (void)state;
    check_that_rows_are_cut("gpt2", 3);
    check_that_rows_are_cut("llama_untied", 3);
    check_that_rows_are_cut("llama", 4);
    for (int stage = 0; stage <= 3; stage++) {
        check_ranks("gpt2", 3, stage, 0);
        check_ranks("llama_untied", 3, stage, 0);
    }
    check_ranks("llama", 4, 1, 2);
    check_ranks("llama", 4, 3, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),         cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_untied), cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_llama_biases), cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_smollm3),      cmocka_unit_test(test_olmo2),
        cmocka_unit_test(test_mistral),      cmocka_unit_test(test_gemma2),
        cmocka_unit_test(test_phi3),         cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_gpt2_exact),   cmocka_unit_test(test_shards_that_cut_rows),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
