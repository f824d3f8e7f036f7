/* bench_step -- times the real engine on random tokens. Every step has new tokens: a model that has
 * memorized its batch has small gradients, and the power of a GPU, hence its clock, depends on the
 * data. All threads draw the tokens between the steps, so that a GPU is not idle for long. */
#include "cli/bench/bench.h"
#include <stdlib.h>
#include "base/clock.h"
#include "base/progress.h"
#include "base/rng.h"
#include "train/session.h"

/* Of a warm-up step. Two run all kernels of a step: the first sets the sums, the second adds. */
enum { WARMUP_MICRO_BATCHES = 2 };

static void fill_batches(struct env *env, struct engine *engine,
                         const struct bench_step_config *config, int64_t step,
                         int64_t micro_batches)
{
    struct rng rng = rng_stream(1, "bench");
    uint64_t vocab = (uint64_t)config->model.vocab;
    int64_t count = config->engine.micro_batch * config->engine.tokens;
    for (int64_t m = 0; m < micro_batches; m++) {
        int32_t *tokens, *labels;
        engine_batch(engine, m, &tokens, &labels);
        int64_t first = (step * config->engine.micro_batches + m) * count;
#pragma omp parallel for num_threads(env->threads) schedule(static)
        for (int64_t i = 0; i < count; i++) {
            uint64_t index = (uint64_t)(2 * (first + i));
            tokens[i] = (int32_t)rng_below(rng, index, vocab);
            labels[i] = (int32_t)rng_below(rng, index + 1, vocab);
        }
    }
}

static enum status one_step(struct env *env, struct engine *engine,
                            const struct bench_step_config *config, int64_t i,
                            struct engine_result *result, double *seconds)
{
    int64_t micro_batches = config->engine.micro_batches;
    if (i < config->warmup && micro_batches > WARMUP_MICRO_BATCHES)
        micro_batches = WARMUP_MICRO_BATCHES;
    TRY(engine_set_micro_batches(engine, micro_batches));
    fill_batches(env, engine, config, i, micro_batches);
    double begin = clock_seconds();
    TRY(engine_step(engine, i + 1, 1e-4, result));
    *seconds = clock_seconds() - begin;
    return STATUS_OK;
}

static int compare_reals(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static enum status time_steps(struct env *env, struct engine *engine,
                              const struct bench_step_config *config, double *seconds,
                              struct bench_step_result *result)
{
    struct engine_result step;
    struct progress_task task;
    enum status st = STATUS_OK;
    progress_begin(&task, "timing", "steps", (uint64_t)(config->warmup + config->steps));
    for (int64_t i = 0; st == STATUS_OK && i < config->warmup + config->steps; i++) {
        double taken = 0;
        st = one_step(env, engine, config, i, &step, &taken);
        if (i >= config->warmup)
            seconds[i - config->warmup] = taken;
        progress_advance(env, &task, 1);
    }
    progress_end(env, &task);
    TRY(st);
    qsort(seconds, (size_t)config->steps, sizeof *seconds, compare_reals);
    result->seconds = seconds[config->steps / 2];
    result->fastest = seconds[0];
    result->slowest = seconds[config->steps - 1];
    result->loss = step.loss;
    return STATUS_OK;
}

/* Steps after the first allocate nothing, so the memory in use now is the peak. */
static void look_at_gpu(struct device *device, struct bench_step_result *result)
{
    struct footprints found;
    footprints_start(&found, device_env(device)->mem, device);
    result->gpu = found.gpu;
    device_read_gauges(device, &result->gauges);
}

static enum status run(struct env *env, const struct bench_step_config *config,
                       struct session *session, double *seconds, struct bench_step_result *result)
{
    struct engine *engine;
    TRY(zero_init(session->zero, 1));
    TRY(engine_create(session->ops, session->stream, session->spread.graph, session->zero,
                      &config->engine, &engine));
    enum status st = time_steps(env, engine, config, seconds, result);
    look_at_gpu(session->device, result);
    result->held = mem_sums(env->mem, device_memory(session->device), true);
    engine_destroy(engine);
    return st;
}

/* `env` has a memory account of its own, so that the peak is that of the step. */
static enum status run_in(struct env *env, const struct bench_step_config *config,
                          struct bench_step_result *result)
{
    struct session session;
    double *seconds;
    enum status st;
    TRY(mem_alloc_array(env, MEM_OTHER, "times", (size_t)config->steps, sizeof *seconds, &seconds));
    TRY_OR(undo_seconds,
           session_create(env, config->place, &config->model, &config->store, &session));
    st = run(env, config, &session, seconds, result);
    result->parameters = unit_graph_count(model_graph(session.model));
    result->flops_per_token = model_flops_per_token(session.model, config->engine.tokens);
    session_destroy(&session);
undo_seconds:
    mem_free(env, seconds);
    return st;
}

enum status bench_step_run(struct env *env, const struct bench_step_config *config,
                           struct bench_step_result *result)
{
    struct env own = *env;
    *result = (struct bench_step_result){0};
    own.mem = mem_create();
    if (!own.mem)
        return FAIL(env, MEMORY, "out of memory");
    enum status st = run_in(&own, config, result);
    mem_destroy(own.mem);
    double sequences = (double)(config->engine.micro_batch * config->engine.micro_batches);
    result->tokens_per_second = sequences * (double)config->engine.tokens / result->seconds;
    result->gflops = result->tokens_per_second * result->flops_per_token / 1e9;
    return st;
}
