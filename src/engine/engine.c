/* engine -- the order of passes of a step.
 *
 *     for each micro-batch   forward of units 0 .. n-2, loss of the last, backward of n-2 .. 0
 *     then                   the store's verdict on the sum of all gradients, and the update
 *
 * The number of valid labels of the whole step is known before the first backward, and the loss
 * gradient enters divided by it: no average of averages. Losses are added in the order of the
 * micro-batches.
 */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

#include "engine/activations.h"

struct engine {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct zero *zero;              /* borrowed */
    struct env *env;                /* borrowed */
    struct engine_config config;
    struct activations *activations;
    int32_t *tokens, *labels;               /* host: (max(M, 1), B, T) */
    int32_t *device_tokens, *device_labels; /* (B, T) of the micro-batch that runs */
    double *losses, *losses_host;           /* (max(M, 1)) */
    void *gradient;                         /* (B, T, C) */
};

static const char *const recompute_words[] = {"none", "selective", "full", NULL};

static const struct option options[] = {
    {.key = "engine.recompute",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct engine_config, recompute),
     .fallback = "none",
     .choices = recompute_words,
     .help = "activations to make again in the backward pass instead of keeping them"},
};

const struct option_table engine_options = {"engine", options, sizeof options / sizeof *options};

/* --- construction --------------------------------------------------------------------------- */

static int64_t batch_places(const struct engine *engine)
{
    return engine->config.micro_batches > 0 ? engine->config.micro_batches : 1;
}

static int64_t batch_rows(const struct engine *engine)
{
    return engine->config.micro_batch * engine->config.tokens;
}

static enum keep own_below(const struct engine_config *config)
{
    if (config->micro_batches == 0)
        return KEEP_ALWAYS;
    switch (config->recompute) {
    case RECOMPUTE_SELECTIVE: return KEEP_UNLESS_SELECTIVE;
    case RECOMPUTE_FULL: return KEEP_UNLESS_FULL;
    default: return KEEP_NOT;
    }
}

static enum status alloc_batches(struct engine *engine)
{
    struct device *device = engine->ops->device;
    size_t places = (size_t)batch_places(engine), rows = (size_t)batch_rows(engine);
    size_t bytes = rows * sizeof(int32_t), losses = places * sizeof(double);
    TRY(mem_alloc(engine->env, MEM_LOADER, "tokens of a step", places * bytes, &engine->tokens));
    TRY(mem_alloc(engine->env, MEM_LOADER, "labels of a step", places * bytes, &engine->labels));
    TRY(mem_alloc(engine->env, MEM_LOADER, "losses of a step", losses, &engine->losses_host));
    TRY(device_alloc(device, MEM_LOADER, "tokens of a micro-batch", bytes, &engine->device_tokens));
    TRY(device_alloc(device, MEM_LOADER, "labels of a micro-batch", bytes, &engine->device_labels));
    return device_alloc(device, MEM_LOADER, "losses of micro-batches", losses, &engine->losses);
}

static enum status alloc_activations(struct engine *engine)
{
    const struct engine_config *c = &engine->config;
    struct unit_shape shape = {c->micro_batch, c->tokens};
    uint32_t passes = 1u << PASS_FORWARD | 1u << PASS_EVAL | 1u << PASS_LOGITS;
    if (c->micro_batches > 0) {
        size_t bytes = (size_t)(batch_rows(engine) * engine->graph->stream_width) *
                       dtype_bytes(engine->ops->type);
        passes |= 1u << PASS_REBUILD | 1u << PASS_BACKWARD | 1u << PASS_LOSS;
        TRY(device_alloc(engine->ops->device, MEM_ACTIVATIONS, "gradient of the stream", bytes,
                         &engine->gradient));
    }
    return activations_create(engine->ops, engine->graph, shape, own_below(c), passes,
                              &engine->activations);
}

enum status engine_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                          struct zero *zero, const struct engine_config *config,
                          struct engine **engine)
{
    struct env *env = device_env(ops->device);
    struct engine *e;
    enum status st;
    CHECK(config->micro_batch > 0 && config->tokens > 0 && config->tokens <= graph->context);
    TRY(mem_alloc(env, MEM_OTHER, "engine", sizeof *e, &e));
    *e = (struct engine){
        .ops = ops, .stream = stream, .graph = graph, .zero = zero, .env = env, .config = *config};
    TRY_OR(undo, alloc_batches(e));
    TRY_OR(undo, alloc_activations(e));
    *engine = e;
    return STATUS_OK;
undo:
    engine_destroy(e);
    return st;
}

void engine_destroy(struct engine *engine)
{
    if (!engine)
        return;
    struct device *device = engine->ops->device;
    activations_destroy(engine->activations);
    device_free(device, engine->gradient);
    device_free(device, engine->device_tokens);
    device_free(device, engine->device_labels);
    device_free(device, engine->losses);
    mem_free(engine->env, engine->losses_host);
    mem_free(engine->env, engine->labels);
    mem_free(engine->env, engine->tokens);
    mem_free(engine->env, engine);
}

void engine_batch(struct engine *engine, int64_t m, int32_t **tokens, int32_t **labels)
{
    CHECK(m >= 0 && m < batch_places(engine));
    *tokens = engine->tokens + m * batch_rows(engine);
    *labels = engine->labels + m * batch_rows(engine);
}

/* --- one micro-batch ------------------------------------------------------------------------ */

static int64_t count_labels(const int32_t *labels, int64_t count)
{
    int64_t valid = 0;
    for (int64_t i = 0; i < count; i++)
        valid += labels[i] >= 0;
    return valid;
}

/* Bring micro-batch m to the device and set up the run for its passes. */
static struct unit_run start_micro_batch(struct engine *engine, int64_t m)
{
    int64_t rows = batch_rows(engine);
    size_t bytes = (size_t)rows * sizeof(int32_t);
    device_copy(engine->stream, engine->device_tokens, engine->tokens + m * rows, bytes);
    device_copy(engine->stream, engine->device_labels, engine->labels + m * rows, bytes);
    return (struct unit_run){
        .ops = engine->ops,
        .stream = engine->stream,
        .shape = {engine->config.micro_batch, engine->config.tokens},
        .tokens = engine->device_tokens,
        .labels = engine->device_labels,
        .scalars = zero_scalars(engine->zero),
        .gradient = engine->gradient,
        .loss = engine->losses + m,
    };
}

static void run_pass(struct engine *engine, int u, enum pass pass, struct unit_run *run)
{
    zero_acquire(engine->zero, u, pass, run);
    activations_bind(engine->activations, u, pass, run);
    unit_run_pass(&engine->graph->units[u], pass, run);
    zero_release(engine->zero, u, pass);
}

static void run_pass_with_gradients(struct engine *engine, int u, enum pass pass, int64_t m,
                                    struct unit_run *run)
{
    zero_grads(engine->zero, u, pass, m, run);
    run_pass(engine, u, pass, run);
    zero_reduce(engine->zero, u, pass, m);
}

static void forward(struct engine *engine, struct unit_run *run)
{
    for (int u = 0; u < engine->graph->unit_count - 1; u++) {
        run_pass(engine, u, PASS_FORWARD, run);
        activations_advance(engine->activations, u, run);
    }
}

static void forward_and_backward(struct engine *engine, int64_t m)
{
    struct unit_run run = start_micro_batch(engine, m);
    int last = engine->graph->unit_count - 1;
    forward(engine, &run);
    run_pass_with_gradients(engine, last, PASS_LOSS, m, &run);
    for (int u = last - 1; u >= 0; u--) {
        if (activations_needs_rebuild(engine->activations, u))
            run_pass(engine, u, PASS_REBUILD, &run);
        run_pass_with_gradients(engine, u, PASS_BACKWARD, m, &run);
    }
}

/* --- a step --------------------------------------------------------------------------------- */

static enum status sum_losses(struct engine *engine, double *sum)
{
    size_t bytes = (size_t)batch_places(engine) * sizeof(double);
    device_copy(engine->stream, engine->losses_host, engine->losses, bytes);
    TRY(stream_sync(engine->stream));
    *sum = 0.0;
    for (int64_t m = 0; m < batch_places(engine); m++)
        *sum += engine->losses_host[m];
    return STATUS_OK;
}

static enum status gradients(struct engine *engine, struct engine_result *result,
                             struct zero_verdict *verdict)
{
    int64_t count = count_labels(engine->labels, engine->config.micro_batches * batch_rows(engine));
    double loss_sum;
    if (count == 0)
        return FAIL(engine->env, FORMAT,
                    "no label of this step counts: every one is masked; check the data");
    zero_loss_scale(engine->zero, 1.0, count);
    for (int64_t m = 0; m < engine->config.micro_batches; m++)
        forward_and_backward(engine, m);
    TRY(sum_losses(engine, &loss_sum));
    TRY(zero_judge(engine->zero, 1.0, verdict));
    *result = (struct engine_result){
        .loss = loss_sum / (double)count,
        .grad_norm = verdict->grad_norm,
        .label_count = count,
        .bad_tensor = verdict->bad_tensor,
        .bad_index = verdict->bad_index,
    };
    result->skipped = !isfinite(result->loss) || !isfinite(result->grad_norm);
    return STATUS_OK;
}

enum status engine_gradients(struct engine *engine, struct engine_result *result)
{
    struct zero_verdict verdict;
    return gradients(engine, result, &verdict);
}

enum status engine_step(struct engine *engine, int64_t t, double lr, struct engine_result *result)
{
    struct zero_verdict verdict;
    TRY(gradients(engine, result, &verdict));
    return result->skipped ? STATUS_OK : zero_update(engine->zero, t, lr, 1.0, &verdict);
}

/* --- without gradients ---------------------------------------------------------------------- */

enum status engine_eval(struct engine *engine, double *loss_sum, int64_t *label_count)
{
    struct unit_run run = start_micro_batch(engine, 0);
    *label_count = count_labels(engine->labels, batch_rows(engine));
    forward(engine, &run);
    run_pass(engine, engine->graph->unit_count - 1, PASS_EVAL, &run);
    device_copy(engine->stream, engine->losses_host, engine->losses, sizeof(double));
    TRY(stream_sync(engine->stream));
    *loss_sum = engine->losses_host[0];
    return STATUS_OK;
}

enum status engine_logits(struct engine *engine, int64_t count, float *logits)
{
    size_t bytes =
        (size_t)(engine->config.micro_batch * count * engine->graph->vocab) * sizeof(float);
    struct device *device = engine->ops->device;
    struct unit_run run = start_micro_batch(engine, 0);
    CHECK_EQ(engine->ops->type, DTYPE_F32);
    TRY(device_alloc(device, MEM_OTHER, "logits", bytes, &run.logits));
    run.logit_tokens = count;
    forward(engine, &run);
    run_pass(engine, engine->graph->unit_count - 1, PASS_LOGITS, &run);
    device_copy(engine->stream, logits, run.logits, bytes);
    enum status st = stream_sync(engine->stream);
    device_free(device, run.logits);
    return st;
}
