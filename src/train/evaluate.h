/* evaluate -- loss, perplexity and bits per byte of a model on held-out data. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H
#include "train/run/run_events.h"

/* Called after each batch; false stops the evaluation with STATUS_STOPPED. Where the batch could not be
 * read, with that status `read` on this rank: such a batch counts nothing, and the evaluation ends. */
typedef bool evaluate_progress_fn(void *user, int64_t done, int64_t total, enum status read);

/* Held-out windows of `set` through the engine, in order: the first `batches` micro-batches, 0 =
 * all. The engine has micro-batches of `micro_batch` sequences of `context` tokens. */
enum status evaluate_dataset(struct env *env, struct engine *engine, const struct dataset *set,
                             int64_t micro_batch, int64_t context, int64_t batches,
                             evaluate_progress_fn *progress, void *user, struct evaluation *result);

/* For `sifr eval`: the model under model.path on data.val (else what data.split holds out of
 * data.path), whole unless train.eval_batches was given. `config` is resolved. Refused when it takes
 * more than `memory` bytes. `progress` may be NULL. */
enum status evaluate_model(struct env *env, const struct run_config *config, size_t memory,
                           evaluate_progress_fn *progress, void *user, struct evaluation *result);

#endif
