/* evaluate -- loss sums and label counts are added window by window, in order, so the result does
 * not depend on the number of threads; the size of a micro-batch only groups windows. Bits per byte
 * divide by the bytes of text that the labels stand for, which makes models with different
 * vocabularies comparable. */
#include "train/evaluate.h"
#include <math.h>
#include "base/clock.h"
#include "train/models/model_weights.h"
#include "train/run_plan.h"
#include "train/session.h"

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

enum status evaluate_dataset(struct engine *engine, const struct dataset *set, int64_t micro_batch,
                             int64_t context, int64_t batches, evaluate_progress_fn *progress,
                             void *user, struct evaluation *result)
{
    int64_t all = (dataset_eval_count(set) + micro_batch - 1) / micro_batch;
    int64_t total = batches > 0 && batches < all ? batches : all;
    double start = clock_seconds(), loss_sum = 0;
    double labels = 0;
    int64_t bytes = 0;
    const struct roster *roster = engine_roster(engine);
    int64_t rounds = engine_eval_rounds(engine), together = rounds * roster->workers;
    for (int64_t b = 0; b < total; b += together) {
        int64_t count = total - b < together ? total - b : together;
        enum status read = STATUS_OK; /* other ranks do not know it yet: the batch is computed */
        for (int64_t round = 0; round < rounds; round++) {
            int64_t m = roster_micro_batch(roster, count, round);
            if (m >= 0 && read == STATUS_OK)
                read =
                    fill(engine, round, set, (b + m) * micro_batch, micro_batch, context, &bytes);
        }
        TRY(engine_eval(engine, count, &loss_sum, &labels));
        bool continues = progress == NULL || progress(user, b + count, total, read);
        TRY(read);
        if (!continues)
            return STATUS_STOPPED;
    }
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

enum status evaluate_model(struct env *env, const struct run_config *given, size_t memory,
                           evaluate_progress_fn *progress, void *user, struct evaluation *result)
{
    enum status st;
    struct run_config config = *given;
    struct dataset *set;
    struct session session;
    struct engine *engine;
    struct zero_config reads_only = {0};
    TRY(open_data(env, &config, config.train.context, &set));
    if (dataset_eval_count(set) == 0) {
        st = FAIL(env, CONFIG, "no held-out data; set data.val to a file, or set data.split");
        goto undo_set;
    }
    TRY_OR(undo_set, fit_to_data(env, &config, &set));
    TRY_OR(undo_set, run_fit_check(env, &config, &(struct run_ranks){1, 0, 1}, memory));
    TRY_OR(undo_set,
           session_create(env, run_compute(&config), &config.model, &reads_only, &session));
    config.engine.micro_batches = 0;
    TRY_OR(undo_session, model_weights_load(env, config.source, session.model, session.zero));
    TRY_OR(undo_session, engine_create(session.ops, session.stream, session.spread.graph,
                                       session.zero, &config.engine, &engine));
    st = evaluate_dataset(engine, set, config.engine.micro_batch, config.engine.tokens,
                          config.train.eval_batches, progress, user, result);
    if (st == STATUS_OK && result->tokens == 0)
        st = FAIL(env, FORMAT,
                  "the held-out data has no labels: all are masked, or it is too short");
    engine_destroy(engine);
undo_session:
    session_destroy(&session);
undo_set:
    dataset_destroy(set);
    return st;
}
