/* evaluate -- loss, perplexity and bits per byte of a model on held-out data. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H
#include "train/run/footprint.h"
#include "train/run/run_events.h"
#include "train/session.h"

/* Called after each round of batches; return false to stop the evaluation with STATUS_STOPPED.
 * `read` is the status of reading this rank's data; if it is not OK, the evaluation ends after the
 * call. */
typedef bool evaluate_progress_fn(void *user, int64_t done, int64_t total, enum status read);

/* Evaluate the held-out windows of `set` in order: the first `batches` micro-batches, 0 = all. The
 * engine has micro-batches of `micro_batch` sequences of `context` tokens. If all their labels are
 * masked, result->tokens is 0 and the loss NaN. Collective. */
enum status evaluate_dataset(struct env *env, struct engine *engine, const struct dataset *set,
                             int64_t micro_batch, int64_t context, int64_t batches,
                             evaluate_progress_fn *progress, void *user, struct evaluation *result);

/* For `sifr eval`: the model of model.path on data.val, or on what data.split holds out of
 * data.path; all of it unless train.eval_batches is set. */
struct evaluate_task {
    const struct run_config *config;   /* resolved; its layout is that of these ranks */
    const struct session_ranks *ranks; /* NULL = one rank */
    const char *config_yaml;           /* must be the same on all ranks */
    size_t memory;                     /* of this machine, for its ranks; 0 = not known */
    int local;                         /* ranks of this machine */
    evaluate_progress_fn *progress;    /* may be NULL */
    void *user;
};
/* *held (may be NULL) is the memory of the worst rank. STATUS_FIT if the ranks of this machine need
 * more than it has. Collective: if one rank fails, all ranks fail with its message. */
enum status evaluate_model(struct env *env, const struct evaluate_task *task,
                           struct evaluation *result, struct footprint_worst *held);

#endif
