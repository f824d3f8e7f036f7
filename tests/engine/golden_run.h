/* golden_run -- a tiny model of a golden file (golden_file.h) on a device with its store and
 * engine, on one rank or several, and the batches of its steps. What a file says about a model, and
 * how results are compared, is up to each test. */
#ifndef TESTS_ENGINE_GOLDEN_RUN_H
#define TESTS_ENGINE_GOLDEN_RUN_H
#include "engine/engine.h"
#include "engine/golden_file.h"
#include "gpu.h"
#include "model/model.h"
#include "threads.h"
#include "zero/partition.h"

struct golden_target {
    const char *device, *ops;
    enum dtype type;          /* of params, gradients and ops */
    double bound, loss_bound; /* of tensors and norms, and of losses */
};

struct golden_ranks {
    struct comm_hub *hub; /* NULL: one rank */
    int rank, stage, group;
};

struct golden_run {
    struct env env;
    struct golden_target target;
    struct golden_ranks ranks;
    struct golden golden;
    const json_t *batches; /* the object with "tokens" and "labels", in the file's JSON */
    struct comm *comm;
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    const struct unit_graph *graph;
    struct zero *zero;
    struct engine *engine;
    int64_t batch, tokens, micro_batches, rows; /* rows = B T */
};

/* --- creating ------------------------------------------------------------------------------- */

/* Read the file. `variant`: the batches are those of a variant; NULL: the file's own. */
static inline void golden_run_read(struct golden_run *r, const char *name, const char *variant,
                                   struct golden_target target, struct golden_ranks ranks)
{
    *r = (struct golden_run){
        .env = testing_env(ranks.hub ? 1 : 2), .target = target, .ranks = ranks};
    golden_open(&r->env, "tests/engine/golden", name, &r->golden);
    const json_t *root = r->golden.root;
    r->batches = variant ? json_object_get(json_object_get(root, "variants"), variant) : root;
    assert_non_null(r->batches);
    r->batch = golden_int(root, "batch");
    r->tokens = golden_int(root, "tokens_per_sequence");
    r->rows = r->batch * r->tokens;
    r->micro_batches =
        (int64_t)json_array_size(json_array_get(json_object_get(r->batches, "tokens"), 0));
}

/* The file's AdamW, and the layout of the ranks. */
static inline struct zero_config golden_run_store(const struct golden_run *r)
{
    const json_t *hyper = json_object_get(r->golden.root, "hyper");
    return (struct zero_config){
        .optimizer.beta1 = golden_real(hyper, "beta1"),
        .optimizer.beta2 = golden_real(hyper, "beta2"),
        .optimizer.eps = golden_real(hyper, "eps"),
        .weight_decay = golden_real(hyper, "weight_decay"),
        .clip = golden_real(hyper, "clip"), /* 0 where the file has none */
        .micro_batches = r->micro_batches,
        .stage = r->ranks.stage,
        .shard_group = r->ranks.group,
        .prefetch = 1,
        .type = r->target.type,
    };
}

static inline void golden_run_write_params(struct golden_run *r)
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

/* After golden_run_read: create everything, with the file's initial params. */
static inline void golden_run_create(struct golden_run *r, const struct model_config *model,
                                     const struct zero_config *store)
{
    const struct comm_config comm = {.backend = "threads", .timeout = 60};
    const struct engine_config engine = {
        .micro_batch = r->batch, .tokens = r->tokens, .micro_batches = r->micro_batches};
    assert_ok(device_create(&r->env, r->target.device, 0, &r->device));
    if (r->ranks.hub)
        assert_ok(comm_join(r->ranks.hub, r->ranks.rank, &comm, r->device, &r->comm));
    assert_ok(ops_create(r->device, r->target.ops, r->target.type, &r->ops));
    assert_ok(stream_create(r->device, "golden", &r->stream));
    assert_ok(model_create(r->device, model, &r->model));
    r->graph = model_graph(r->model);
    assert_ok(zero_create(r->ops, r->stream, r->comm, r->graph, store, &r->zero));
    assert_ok(engine_create(r->ops, r->stream, r->graph, r->zero, &engine, &r->engine));
    golden_run_write_params(r);
}

static inline void golden_run_close(struct golden_run *r)
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

/* --- running -------------------------------------------------------------------------------- */

/* Element `step` of a list in `object`. */
static inline double golden_step_real(const json_t *object, const char *key, int step)
{
    return json_number_value(json_array_get(json_object_get(object, key), (size_t)step));
}

static inline void golden_run_fill(struct golden_run *r, int step)
{
    const json_t *tokens = json_array_get(json_object_get(r->batches, "tokens"), (size_t)step);
    const json_t *labels = json_array_get(json_object_get(r->batches, "labels"), (size_t)step);
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

/* One step with the file's learning rate. */
static inline struct engine_result golden_run_step(struct golden_run *r, int step)
{
    struct engine_result result;
    double lr = golden_step_real(json_object_get(r->golden.root, "hyper"), "lr", step);
    golden_run_fill(r, step);
    assert_ok(engine_step(r->engine, step + 1, lr, &result));
    return result;
}

/* --- comparing ------------------------------------------------------------------------------ */

/* `found` against the `count` values "<kind><name>" of the file. */
typedef void golden_compare_fn(const struct golden_run *r, const char *kind, const char *name,
                               const float *found, const double *exact, int64_t count);
typedef enum status golden_read_fn(struct zero *, int, int64_t, int64_t, float *);

/* Compare tensor t, as `read` returns it, with the file's `kind`. Collective. */
static inline void golden_run_compare(struct golden_run *r, const char *kind, int t,
                                      golden_read_fn *read, golden_compare_fn *compare)
{
    const struct unit_tensor *tensor = &r->graph->tensors[t];
    int64_t count = unit_tensor_count(tensor);
    double *exact = golden_tensor(&r->golden, kind, tensor->name, count);
    float *found = malloc((size_t)count * sizeof *found);
    assert_ok(read(r->zero, t, 0, count, found));
    compare(r, kind, tensor->name, found, exact, count);
    free(found);
    free(exact);
}

/* Logits of the batch that is filled in. Only on one rank. */
static inline void golden_run_compare_logits(struct golden_run *r, golden_compare_fn *compare)
{
    int64_t count = r->rows * r->graph->vocab;
    double *exact = golden_tensor(&r->golden, "logits", "", count);
    float *found = malloc((size_t)count * sizeof *found);
    assert_ok(engine_logits(r->engine, r->tokens, found));
    compare(r, "logits", "", found, exact, count);
    free(found);
    free(exact);
}

/* --- ranks ---------------------------------------------------------------------------------- */

typedef void golden_check_fn(const char *name, struct golden_target target,
                             struct golden_ranks ranks);

struct golden_job {
    golden_check_fn *check;
    const char *name;
    struct golden_target target;
    struct golden_ranks ranks;
};

static inline void *golden_run_rank(void *argument)
{
    struct golden_job *job = argument;
    job->check(job->name, job->target, job->ranks);
    return NULL;
}

/* check() on each of several ranks, as threads. */
static inline void golden_run_ranks(golden_check_fn *check, const char *name,
                                    struct golden_target target, int size, int stage, int group)
{
    enum { MOST = 4 };
    struct env env = testing_env(1);
    struct comm_hub *hub;
    struct golden_job jobs[MOST];
    assert_in_range(size, 1, MOST);
    assert_ok(comm_hub_create(&env, size, &hub));
    for (int rank = 0; rank < size; rank++)
        jobs[rank] = (struct golden_job){check, name, target, {hub, rank, stage, group}};
    threads_run(golden_run_rank, jobs, size, sizeof *jobs);
    comm_hub_destroy(hub);
    env_destroy(&env);
}

/* Whether, with this many owners, some shard ends inside a row of a matrix; `gated`: of one whose
 * gradient is gated by rows. */
static inline bool golden_run_cuts_rows(struct golden_run *r, int owners, bool gated)
{
    struct partition partition;
    bool cuts = false;
    assert_ok(partition_create(&r->env, r->graph, owners, &partition));
    for (int t = 0; t < r->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &r->graph->tensors[t];
        struct piece_range whole = partition_tensor(&partition, t);
        for (int owner = 0; tensor->dims == 2 && owner < owners; owner++) {
            struct piece_range part = partition_clip(&partition, whole, owner);
            int64_t end = part.first + part.count - whole.first;
            cuts |= (tensor->gated || !gated) && part.count > 0 && end < whole.count &&
                    end % tensor->shape[1] != 0;
        }
    }
    partition_free(&r->env, &partition);
    return cuts;
}

#endif
