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
#include "gpu.h"
#include "engine/engine.h"
#include "engine/golden_file.h"
#include "model/model.h"
#include "threads.h"
#include "zero/partition.h"

struct target {
    const char *device, *ops;
    enum dtype type; /* of params, gradients and ops */
    double bound;    /* of tensors and the gradient's norm */
    double loss_bound;
};

static const struct target cpu_f32 = {"cpu", "cpu", DTYPE_F32, 1e-5, 1e-5};
static const struct target ref_f32 = {"cpu", "ref", DTYPE_F32, 1e-5, 1e-5};
static const struct target ref_bf16 = {"cpu", "ref", DTYPE_BF16, 0.1, 0.01};
static const struct target gpu_f32 = {"cuda", "cuda", DTYPE_F32, 0.02, 1e-3};
static const struct target gpu_bf16 = {"cuda", "cuda", DTYPE_BF16, 0.1, 0.01};

struct ranks {
    struct comm_hub *hub; /* NULL: one rank */
    int rank, stage, group;
};

struct run {
    struct env env;
    struct target target;
    struct ranks ranks;
    struct comm *comm;
    struct golden golden;
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    const struct unit_graph *graph;
    struct zero *zero;
    struct engine *engine;
    struct zero_group groups[4];
    int64_t micro_batches, rows; /* rows = B T */
};

/* --- setting up from the file --------------------------------------------------------------- */
static struct model_config model_of(const json_t *m)
{
    bool llama3 = golden_is(m, "rope_scaling", "llama3");
    return (struct model_config){
        .arch = golden_is(m, "arch", "gpt2") ? MODEL_GPT2 : MODEL_LLAMA,
        .layers = golden_int(m, "layers"),
        .heads = golden_int(m, "heads"),
        .kv_heads = golden_int(m, "kv_heads"),
        .width = golden_int(m, "width"),
        .head_width = golden_int(m, "head_width"),
        .ff = golden_int(m, "ff"),
        .context = golden_int(m, "context"),
        .vocab = golden_int(m, "vocab"),
        .tied = json_is_true(json_object_get(m, "tied")),
        .norm_eps = golden_real(m, "norm_eps"),
        .init_std = 0.02,
        .rope_theta = golden_real(m, "rope_theta"),
        .rope_scaling = llama3 ? ROPE_LLAMA3 : ROPE_PLAIN,
        .rope_factor = golden_real(m, "rope_factor"),
        .rope_low = golden_real(m, "rope_low"),
        .rope_high = golden_real(m, "rope_high"),
        .rope_original = golden_int(m, "rope_original"),
        .path = "",
    };
}

static struct zero_config store_of(struct run *r)
{
    const json_t *hyper = json_object_get(r->golden.root, "hyper");
    const json_t *groups = json_object_get(json_object_get(r->golden.root, "model"), "groups");
    struct zero_config c = {
        .optimizer.beta1 = golden_real(hyper, "beta1"),
        .optimizer.beta2 = golden_real(hyper, "beta2"),
        .optimizer.eps = golden_real(hyper, "eps"),
        .weight_decay = golden_real(hyper, "weight_decay"),
        .clip = golden_real(hyper, "clip"),
        .groups = r->groups,
        .group_count = (int)json_array_size(groups),
        .micro_batches = r->micro_batches,
        .stage = r->ranks.stage,
        .shard_group = r->ranks.group,
        .prefetch = 1,
        .type = r->target.type,
    };
    assert_int_equal(c.group_count, 2);
    for (int i = 0; i < c.group_count; i++) {
        const json_t *group = json_array_get(groups, (size_t)i);
        r->groups[i] = (struct zero_group){
            json_string_value(json_object_get(group, "match")), golden_real(group, "lr_mul"),
            c.weight_decay * golden_real(group, "wd_mul"), c.optimizer};
    }
    return c;
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

static void open_run(struct run *r, const char *name, struct target target, struct ranks ranks)
{
    const struct comm_config comm = {.backend = "threads", .timeout = 60};
    *r = (struct run){.env = testing_env(ranks.hub ? 1 : 2), .target = target, .ranks = ranks};
    golden_open(&r->env, "tests/engine/golden", name, &r->golden);
    const json_t *root = r->golden.root;
    struct model_config model = model_of(json_object_get(root, "model"));
    struct engine_config engine = {.micro_batch = golden_int(root, "batch"),
                                   .tokens = golden_int(root, "tokens_per_sequence")};
    r->micro_batches = engine.micro_batches =
        (int64_t)json_array_size(json_array_get(json_object_get(root, "tokens"), 0));
    r->rows = engine.micro_batch * engine.tokens;
    assert_ok(device_create(&r->env, target.device, 0, &r->device));
    if (ranks.hub)
        assert_ok(comm_join(ranks.hub, ranks.rank, &comm, r->device, &r->comm));
    assert_ok(ops_create(r->device, target.ops, target.type, &r->ops));
    assert_ok(stream_create(r->device, "golden", &r->stream));
    assert_ok(model_create(r->device, &model, &r->model));
    r->graph = model_graph(r->model);
    struct zero_config store = store_of(r);
    assert_ok(zero_create(r->ops, r->stream, r->comm, r->graph, &store, &r->zero));
    assert_ok(engine_create(r->ops, r->stream, r->graph, r->zero, &engine, &r->engine));
    write_initial_params(r);
}

static void close_run(struct run *r)
{
    engine_destroy(r->engine);
    zero_destroy(r->zero);
    model_destroy(r->model);
    stream_destroy(r->stream);
    comm_destroy(r->comm);
    ops_destroy(r->ops);
    device_destroy(r->device);
    golden_close(&r->golden);
    env_destroy(&r->env);
}

static void fill_step(struct run *r, int step)
{
    const json_t *tokens = json_array_get(json_object_get(r->golden.root, "tokens"), (size_t)step);
    const json_t *labels = json_array_get(json_object_get(r->golden.root, "labels"), (size_t)step);
    for (int64_t round = 0; round < engine_rounds(r->engine); round++) {
        int32_t *to_tokens, *to_labels;
        int64_t m = engine_micro_batch(r->engine, round);
        if (m < 0)
            continue;
        engine_batch(r->engine, round, &to_tokens, &to_labels);
        for (int64_t i = 0; i < r->rows; i++) {
            const json_t *token = json_array_get(json_array_get(tokens, (size_t)m), (size_t)i);
            const json_t *label = json_array_get(json_array_get(labels, (size_t)m), (size_t)i);
            to_tokens[i] = (int32_t)json_integer_value(token);
            to_labels[i] = (int32_t)json_integer_value(label);
        }
    }
}

/* --- comparing ------------------------------------------------------------------------------ */
struct norms {
    double difference, exact;
};

static struct norms compare(const float *a, const double *b, int64_t count)
{
    double difference = 0, exact = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        exact += b[i] * b[i];
    }
    return (struct norms){sqrt(difference), sqrt(exact)};
}

static void assert_near(const struct run *r, const char *kind, const char *name, struct norms n,
                        double size)
{
    if (!(n.difference <= r->target.bound * size))
        fail_msg("%s%s: off by %.2e of %.3e", kind, name, n.difference, size);
}

typedef enum status read_fn(struct zero *, int, int64_t, int64_t, float *);

/* Compare every tensor that `read` returns with the file's `kind`. */
static void compare_tensors(struct run *r, const char *kind, read_fn *read)
{
    for (int t = 0; t < r->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &r->graph->tensors[t];
        int64_t count = unit_tensor_count(tensor);
        double *exact = golden_tensor(&r->golden, kind, tensor->name, count);
        float *found = malloc((size_t)count * sizeof *found);
        assert_ok(read(r->zero, t, 0, count, found));
        struct norms n = compare(found, exact, count);
        assert_true(n.exact > 0);
        assert_near(r, kind, tensor->name, n, n.exact);
        free(found);
        free(exact);
    }
}

/* The bias of a key shifts all scores of a query equally: its exact gradient is zero, and what is
 * computed is rounding, small compared with the whole gradient. */
static void check_key_bias(struct run *r, double grad_norm)
{
    for (int t = 0; t < r->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &r->graph->tensors[t];
        if (!strstr(tensor->name, "c_attn.bias"))
            continue;
        int64_t third = tensor->shape[0] / 3;
        float *found = malloc((size_t)third * sizeof *found);
        double *zero = calloc((size_t)third, sizeof *zero);
        assert_ok(zero_read_gradient(r->zero, t, third, third, found));
        assert_near(r, "key part of ", tensor->name, compare(found, zero, third), grad_norm);
        free(zero);
        free(found);
    }
}

static void check_result(struct run *r, int step, const struct engine_result *result)
{
    const json_t *root = r->golden.root;
    double loss = json_number_value(json_array_get(json_object_get(root, "loss"), (size_t)step));
    double norm =
        json_number_value(json_array_get(json_object_get(root, "grad_norm"), (size_t)step));
    assert_false(result->skipped);
    if (!(fabs(result->loss - loss) <= r->target.loss_bound * loss))
        fail_msg("step %d: loss %.9g, exact %.9g", step, result->loss, loss);
    if (!(fabs(result->grad_norm - norm) <= r->target.bound * norm))
        fail_msg("step %d: gradient norm %.9g, exact %.9g", step, result->grad_norm, norm);
}

/* --- the tests ------------------------------------------------------------------------------ */
static void check_logits(struct run *r)
{
    int64_t tokens = golden_int(r->golden.root, "tokens_per_sequence");
    int64_t count = r->rows * r->graph->vocab;
    double *exact = golden_tensor(&r->golden, "logits", "", count);
    float *found = malloc((size_t)count * sizeof *found);
    assert_ok(engine_logits(r->engine, tokens, found));
    struct norms n = compare(found, exact, count);
    assert_near(r, "logits", "", n, n.exact);
    free(found);
    free(exact);
}

static void check_model(const char *name, struct target target, struct ranks ranks)
{
    struct run r;
    struct engine_result result;
    open_run(&r, name, target, ranks);
    fill_step(&r, 0);
    if (!ranks.hub)
        check_logits(&r);
    assert_ok(engine_gradients(r.engine, &result));
    check_result(&r, 0, &result);
    compare_tensors(&r, "grad/", zero_read_gradient);
    check_key_bias(&r, result.grad_norm);

    const json_t *rates = json_object_get(json_object_get(r.golden.root, "hyper"), "lr");
    int steps = (int)json_array_size(rates);
    assert_int_equal(steps, 10);
    for (int step = 0; step < steps; step++) {
        fill_step(&r, step);
        double lr = json_number_value(json_array_get(rates, (size_t)step));
        assert_ok(engine_step(r.engine, step + 1, lr, &result));
        check_result(&r, step, &result);
    }
    compare_tensors(&r, "final/", zero_read);
    close_run(&r);
}

static void check_targets(const char *name)
{
    if (!test_on_cpu()) {
        check_model(name, gpu_f32, (struct ranks){0});
        check_model(name, gpu_bf16, (struct ranks){0});
        return;
    }
    check_model(name, ref_f32, (struct ranks){0});
    check_model(name, cpu_f32, (struct ranks){0});
    check_model(name, ref_bf16, (struct ranks){0});
}

struct rank_job {
    const char *name;
    struct ranks ranks;
};

static void *run_rank(void *argument)
{
    struct rank_job *job = argument;
    check_model(job->name, test_on_cpu() ? cpu_f32 : gpu_f32, job->ranks);
    return NULL;
}

static void check_ranks(const char *name, int size, int stage, int group)
{
    enum { MOST = 4 };
    struct env env = testing_env(1);
    struct comm_hub *hub;
    struct rank_job jobs[MOST];
    assert_ok(comm_hub_create(&env, size, &hub));
    for (int rank = 0; rank < size; rank++)
        jobs[rank] = (struct rank_job){name, {hub, rank, stage, group}};
    threads_run(run_rank, jobs, size, sizeof *jobs);
    comm_hub_destroy(hub);
    env_destroy(&env);
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

/* Whether some shard ends inside a row of a matrix with this many owners. */
static bool cuts_rows(const struct unit_graph *graph, struct env *env, int owners)
{
    struct partition partition;
    bool cuts = false;
    assert_ok(partition_create(env, graph, owners, &partition));
    for (int t = 0; t < graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &graph->tensors[t];
        struct piece_range whole = partition_tensor(&partition, t);
        for (int owner = 0; tensor->dims == 2 && owner < owners; owner++) {
            struct piece_range part = partition_clip(&partition, whole, owner);
            int64_t end = part.first + part.count - whole.first;
            cuts |= part.count > 0 && end < whole.count && end % tensor->shape[1] != 0;
        }
    }
    partition_free(env, &partition);
    return cuts;
}

static void check_that_rows_are_cut(const char *name, int owners)
{
    struct run r;
    open_run(&r, name, cpu_f32, (struct ranks){0});
    assert_true(cuts_rows(r.graph, &r.env, owners));
    close_run(&r);
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
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_untied),
        cmocka_unit_test(test_shards_that_cut_rows),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
