/* evaluate -- loss sums and label counts are added window by window, in order, so the result does
 * not depend on the number of threads; the size of a micro-batch only groups windows. Bits per byte
 * divide by the bytes of text that the labels stand for, which makes models with different
 * vocabularies comparable. */
#include "train/evaluate.h"
#include <math.h>
#include "base/clock.h"
#include "base/progress.h"
#include "train/run_plan.h"

/* Fill the batch of a round with windows first .. first + micro_batch - 1. All labels of a row are
 * masked if it has no window or its window cannot be read. Adds the bytes of their text to *bytes.
 */
static enum status fill(struct engine *engine, int64_t round, const struct dataset *set,
                        int64_t first, int64_t micro_batch, int64_t context, int64_t *bytes)
{
    int32_t *tokens, *labels;
    engine_batch(engine, round, &tokens, &labels);
    enum status st = STATUS_OK;
    for (int64_t row = 0; row < micro_batch; row++, tokens += context, labels += context) {
        int64_t window_bytes = 0;
        if (st == STATUS_OK && first + row < dataset_eval_count(set)) {
            st = dataset_eval_window(set, first + row, tokens, labels, &window_bytes);
            *bytes += window_bytes;
            if (st == STATUS_OK)
                continue;
        }
        for (int64_t i = 0; i < context; i++) {
            tokens[i] = 0;
            labels[i] = -1;
        }
    }
    return st;
}

enum status evaluate_dataset(struct env *env, struct engine *engine, const struct dataset *set,
                             int64_t micro_batch, int64_t context, int64_t batches,
                             evaluate_progress_fn *progress, void *user, struct evaluation *result)
{
    int64_t all = (dataset_eval_count(set) + micro_batch - 1) / micro_batch;
    int64_t total = batches > 0 && batches < all ? batches : all;
    double start = clock_seconds(), loss_sum = 0;
    double labels = 0;
    int64_t bytes = 0;
    const struct roster *roster = engine_roster(engine);
    int64_t rounds = engine_eval_rounds(engine), together = rounds * roster->workers;
    enum status st = STATUS_OK;
    struct progress_task task;
    progress_begin(&task, "evaluating", "batches", (uint64_t)total);
    for (int64_t b = 0; st == STATUS_OK && b < total; b += together) {
        int64_t count = total - b < together ? total - b : together;
        enum status read = STATUS_OK; /* other ranks do not know it yet: the batch is computed */
        for (int64_t round = 0; round < rounds; round++) {
            int64_t m = roster_micro_batch(roster, count, round);
            if (m >= 0 && read == STATUS_OK)
                read =
                    fill(engine, round, set, (b + m) * micro_batch, micro_batch, context, &bytes);
        }
        st = engine_eval(engine, count, &loss_sum, &labels);
        if (st != STATUS_OK)
            break;
        progress_advance(env, &task, (uint64_t)count);
        bool continues = progress == NULL || progress(user, b + count, total, read);
        st = read != STATUS_OK ? read : continues ? STATUS_OK : STATUS_STOPPED;
    }
    progress_end(env, &task);
    TRY(st);
    TRY(engine_sum(engine, bytes, &bytes));
    double loss = labels > 0 ? loss_sum / labels : (double)NAN;
    *result =
        (struct evaluation){.loss = loss,
                            .perplexity = exp(loss),
                            .bits_per_byte = bytes > 0 ? loss_sum / log(2) / (double)bytes : NAN,
                            .tokens = (int64_t)labels,
                            .bytes = bytes,
                            .batches = total,
                            .seconds = clock_seconds() - start};
    return STATUS_OK;
}

static enum status open_data(struct env *env, const struct run_config *config, int64_t context,
                             struct dataset **set)
{
    return dataset_create(env, &config->data, config->tokenizer, config->model.vocab, context,
                          (uint64_t)config->train.seed, set);
}

/* Shrink the micro-batch to the number of windows and the context to the longest window: a model
 * with a large context would compute mostly padding. A token depends only on those before it in its
 * row, so the bits of the loss stay. A GPU may use other algorithms for other shapes, so there
 * nothing changes. */
static enum status fit_to_data(struct env *env, struct run_config *config, struct dataset **set)
{
    struct engine_config *engine = &config->engine;
    int64_t windows = dataset_eval_count(*set), longest = dataset_eval_longest(*set);
    if (config->device.total_bytes > 0)
        return STATUS_OK;
    if (windows < engine->micro_batch)
        engine->micro_batch = windows;
    if (longest >= engine->tokens)
        return STATUS_OK;
    engine->tokens = longest;
    dataset_destroy(*set);
    *set = NULL;
    return open_data(env, config, longest, set);
}

/* With the data open: build this rank's part of the model, and evaluate. */
static enum status evaluate_here(struct env *env, const struct evaluate_task *task,
                                 const struct run_config *config, const struct dataset *set,
                                 struct session *session, struct evaluation *result,
                                 struct footprint_worst *held)
{
    const struct layout_config layout = {config->parallel, config->ranks, config->offload};
    struct engine_config engine_config = config->engine;
    const struct session_reading reading = {
        .model = config->model,
        .source = config->source,
        .layout = &layout,
        .shape = {.batch = engine_config.micro_batch, .tokens = engine_config.tokens}};
    struct engine *engine;
    TRY(session_read(env, &reading, session));
    spread_configure_engine(&session->spread, &engine_config);
    TRY(engine_create(session->ops, session->stream, session->spread.graph, session->zero,
                      &engine_config, &engine));
    enum status st =
        evaluate_dataset(env, engine, set, engine_config.micro_batch, engine_config.tokens,
                         config->train.eval_batches, task->progress, task->user, result);
    if (st == STATUS_OK && held)
        st =
            footprint_compare(&(struct footprints){0}, false, session->device, session->comm, held);
    engine_destroy(engine);
    return st;
}

/* Open the data, compare it with that of the other ranks, and evaluate. */
static enum status evaluate_joined(struct env *env, const struct evaluate_task *task,
                                   struct run_config *config, struct session *session,
                                   struct evaluation *result, struct footprint_worst *held)
{
    const struct run_ranks here = {.size = session->comm ? comm_size(session->comm) : 1,
                                   .rank = session->comm ? comm_rank(session->comm) : 0,
                                   .local = task->local};
    struct dataset *set;
    enum status st;
    TRY(open_data(env, config, config->train.context, &set));
    const struct agreement_facts facts = {.config_yaml = task->config_yaml,
                                          .gpu = config->device.name,
                                          .data = set,
                                          .context = config->train.context,
                                          .model = config->source};
    if (dataset_eval_count(set) == 0) {
        st = FAIL(env, CONFIG, "no held-out data; set data.val to a file, or set data.split");
        goto undo_set;
    }
    TRY_OR(undo_set, session_agree(env, &facts, session));
    TRY_OR(undo_set, fit_to_data(env, config, &set));
    TRY_OR(undo_set, run_fit_check(env, config, &here, task->memory));
    st = evaluate_here(env, task, config, set, session, result, held);
    if (st == STATUS_OK && result->tokens == 0)
        st = FAIL(env, FORMAT,
                  "the held-out data has no labels: all are masked, or it is too short");
undo_set:
    dataset_destroy(set);
    return st;
}

enum status evaluate_model(struct env *env, const struct evaluate_task *task,
                           struct evaluation *result, struct footprint_worst *held)
{
    struct run_config config = *task->config;
    struct session session;
    TRY(session_join(env, run_compute(&config), task->ranks, &session));
    enum status st = evaluate_joined(env, task, &config, &session, result, held);
    session_fail(env, task->ranks, st, &session);
    session_destroy(&session);
    return st;
}
