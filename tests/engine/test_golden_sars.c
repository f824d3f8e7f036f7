/* Golden numbers of SARS: tiny models against formulas in PyTorch in double
 * (tools/golden_sars.py), through the store and the engine. Logits, both losses, the gradients of
 * both phases before and after gate and clamp, the sums of goodness and the gate's bits, and every
 * parameter after ten steps; then other signs and gates for a few steps. Each to 1e-5 of a tensor's
 * largest element.
 */
#include <math.h>
#include "engine/engine.h"
#include "engine/golden_file.h"
#include "gpu.h"
#include "model/model.h"

#define BOUND 1e-5

struct run {
    struct env env;
    struct golden golden;
    const json_t *batches; /* the object with "tokens" and "labels" */
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    const struct unit_graph *graph;
    struct zero *zero;
    struct engine *engine;
    struct model_config config;
    int64_t micro_batches, rows; /* rows = B T */
};

static struct sars_config rule_of(const json_t *rule, const json_t *root)
{
    const json_t *model = json_object_get(root, "model"), *hyper = json_object_get(root, "hyper");
    return (struct sars_config){
        .gate = golden_is(rule, "gate", "global")  ? SARS_GATE_GLOBAL
                : golden_is(rule, "gate", "local") ? SARS_GATE_LOCAL
                                                   : SARS_GATE_OFF,
        .sign = golden_int(rule, "sign") < 0,
        .standardise = json_is_true(json_object_get(rule, "standardise")),
        .meta_weight = golden_real(model, "meta_weight"),
        .clamp = golden_real(hyper, "clamp"),
    };
}

static struct model_config model_of(const json_t *m, struct sars_config sars)
{
    int64_t heads = golden_int(m, "heads"), width = golden_int(m, "width");
    return (struct model_config){.arch = MODEL_SARS,
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
                                 .sars = sars};
}

static void write_initial_params(struct run *r)
{
    for (int t = 0; t < r->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &r->graph->tensors[t];
        int64_t count = unit_tensor_count(tensor);
        double *values = golden_tensor(&r->golden, "init/", tensor->name, count);
        float *narrow = malloc((size_t)count * sizeof *narrow);
        dtype_convert(narrow, DTYPE_F32, values, DTYPE_F64, count);
        assert_ok(zero_write(r->zero, t, 0, count, narrow));
        free(narrow);
        free(values);
    }
    assert_ok(zero_publish(r->zero, 0));
}

static void open_run(struct run *r, const char *name, const char *ops, const char *variant)
{
    *r = (struct run){.env = testing_env(2)};
    golden_open(&r->env, "tests/engine/golden", name, &r->golden);
    const json_t *root = r->golden.root, *hyper = json_object_get(root, "hyper");
    r->batches = variant ? json_object_get(json_object_get(root, "variants"), variant) : root;
    assert_non_null(r->batches);
    r->config = model_of(json_object_get(root, "model"),
                         rule_of(json_object_get(r->batches, "rule"), root));
    struct engine_config engine = {.micro_batch = golden_int(root, "batch"),
                                   .tokens = golden_int(root, "tokens_per_sequence")};
    r->micro_batches = engine.micro_batches =
        (int64_t)json_array_size(json_array_get(json_object_get(r->batches, "tokens"), 0));
    r->rows = engine.micro_batch * engine.tokens;
    const struct zero_config store = {.optimizer.beta1 = golden_real(hyper, "beta1"),
                                      .optimizer.beta2 = golden_real(hyper, "beta2"),
                                      .optimizer.eps = golden_real(hyper, "eps"),
                                      .weight_decay = golden_real(hyper, "weight_decay"),
                                      .micro_batches = r->micro_batches,
                                      .prefetch = 1};
    assert_ok(device_create(&r->env, "cpu", 0, &r->device));
    assert_ok(ops_create(r->device, ops, DTYPE_F32, &r->ops));
    assert_ok(stream_create(r->device, "golden", &r->stream));
    assert_ok(model_create(r->device, &r->config, &r->model));
    r->graph = model_graph(r->model);
    assert_ok(zero_create(r->ops, r->stream, NULL, r->graph, &store, &r->zero));
    assert_ok(engine_create(r->ops, r->stream, r->graph, r->zero, &engine, &r->engine));
    write_initial_params(r);
}

static void close_run(struct run *r)
{
    engine_destroy(r->engine);
    zero_destroy(r->zero);
    model_destroy(r->model);
    stream_destroy(r->stream);
    ops_destroy(r->ops);
    device_destroy(r->device);
    golden_close(&r->golden);
    env_destroy(&r->env);
}

static void fill_step(struct run *r, int step)
{
    const json_t *tokens = json_array_get(json_object_get(r->batches, "tokens"), (size_t)step);
    const json_t *labels = json_array_get(json_object_get(r->batches, "labels"), (size_t)step);
    for (int64_t round = 0; round < engine_rounds(r->engine); round++) {
        int32_t *to_tokens, *to_labels;
        engine_batch(r->engine, round, &to_tokens, &to_labels);
        for (int64_t i = 0; i < r->rows; i++) {
            const json_t *token = json_array_get(json_array_get(tokens, (size_t)round), (size_t)i);
            const json_t *label = json_array_get(json_array_get(labels, (size_t)round), (size_t)i);
            to_tokens[i] = (int32_t)json_integer_value(token);
            to_labels[i] = (int32_t)json_integer_value(label);
        }
    }
}

/* --- comparing ------------------------------------------------------------------------------ */

static void compare(const char *kind, const char *name, const float *found, const double *exact,
                    int64_t count)
{
    double most = 0, off = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(found[i] - exact[i]);
        most = fabs(exact[i]) > most ? fabs(exact[i]) : most;
        if (!(error <= off)) /* also if it is not a number */
            off = error;
    }
    if (!(off <= BOUND * most))
        fail_msg("%s%s: off by %.2e of %.3e", kind, name, off, most);
}

typedef enum status read_fn(struct zero *, int, int64_t, int64_t, float *);

/* Every tensor of a phase that the file has. */
static void compare_tensors(struct run *r, const char *kind, enum unit_phase phase, read_fn *read)
{
    for (int t = 0; t < r->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &r->graph->tensors[t];
        int64_t count = unit_tensor_count(tensor);
        if (tensor->phase != phase ||
            (read == zero_read_gradient && unit_tensor_is_frozen(r->graph, t)))
            continue;
        double *exact = golden_tensor(&r->golden, kind, tensor->name, count);
        float *found = malloc((size_t)count * sizeof *found);
        assert_ok(read(r->zero, t, 0, count, found));
        compare(kind, tensor->name, found, exact, count);
        free(found);
        free(exact);
    }
}

static void near(const char *what, int step, double found, const json_t *object, const char *key)
{
    double exact = json_number_value(json_array_get(json_object_get(object, key), (size_t)step));
    if (!(fabs(found - exact) <= BOUND * fabs(exact)))
        fail_msg("step %d: %s %.9g, exact %.9g", step, what, found, exact);
}

static double meta_loss(const struct run *r)
{
    const float *statistic = engine_statistics(r->engine);
    int64_t each = sars_statistic_at(SARS_STATISTICS, r->config.width);
    double sum = 0;
    for (int64_t layer = 0; layer < r->config.layers; layer++)
        for (int kind = 0; kind < SARS_KINDS; kind++)
            sum +=
                statistic[layer * each + sars_statistic_at(SARS_ENTROPY, r->config.width) + kind];
    return sum / (double)(SARS_KINDS * r->config.layers * r->micro_batches * r->rows);
}

static void check_result(struct run *r, int step, const struct engine_result *result)
{
    assert_false(result->skipped);
    near("loss", step, result->loss, r->batches, "loss");
    near("meta loss", step, meta_loss(r), r->batches, "meta_loss");
}

/* The sums of goodness and of active tokens, and the bits of the gate. */
static void check_sums(struct run *r, int step, int steps)
{
    int64_t neurons = SARS_KINDS * r->config.width, each = r->config.layers * neurons;
    double *goodness = golden_tensor(&r->golden, "goodness", "", steps * each);
    double *active = golden_tensor(&r->golden, "active", "", steps * each);
    double *keep = golden_tensor(&r->golden, "keep", "", steps * each);
    for (int64_t layer = 0; layer < r->config.layers; layer++) {
        const float *found = engine_statistics(r->engine) +
                             layer * sars_statistic_at(SARS_STATISTICS, r->config.width);
        int64_t at = step * each + layer * neurons;
        compare("goodness", "", found, goodness + at, neurons);
        for (int64_t i = 0; i < neurons; i++) {
            assert_int_equal(found[i] > 0, keep[at + i] > 0);
            assert_int_equal((int)found[neurons + i], (int)lround(active[at + i]));
        }
    }
    free(keep);
    free(active);
    free(goodness);
}

static void check_logits(struct run *r)
{
    int64_t tokens = golden_int(r->golden.root, "tokens_per_sequence");
    int64_t count = r->rows * r->graph->vocab;
    double *exact = golden_tensor(&r->golden, "logits", "", count);
    float *found = malloc((size_t)count * sizeof *found);
    assert_ok(engine_logits(r->engine, tokens, found));
    compare("logits", "", found, exact, count);
    free(found);
    free(exact);
}

static void check_model(const char *name, const char *ops)
{
    struct run r;
    struct engine_result result;
    open_run(&r, name, ops, NULL);
    int steps = (int)json_array_size(json_object_get(r.golden.root, "loss"));
    fill_step(&r, 0);
    check_logits(&r);
    assert_ok(engine_gradients(r.engine, &result));
    check_result(&r, 0, &result);
    check_sums(&r, 0, steps);
    compare_tensors(&r, "grad/", PHASE_META, zero_read_gradient);
    compare_tensors(&r, "grad/", PHASE_MAIN, zero_read_gradient);
    assert_int_equal(steps, 10);
    for (int step = 0; step < steps; step++) {
        fill_step(&r, step);
        assert_ok(engine_step(r.engine, step + 1, 1e-3, &result));
        check_result(&r, step, &result);
        check_sums(&r, step, steps);
    }
    compare_tensors(&r, "final/", PHASE_MAIN, zero_read);
    compare_tensors(&r, "final/", PHASE_META, zero_read);
    close_run(&r);
}

static void test_sars(void **state)
{
    (void)state;
    check_model("sars", "ref");
    check_model("sars", "cpu");
}

static void test_heads(void **state)
{
    (void)state;
    check_model("sars_heads", "ref");
    check_model("sars_heads", "cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sars),
        cmocka_unit_test(test_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
