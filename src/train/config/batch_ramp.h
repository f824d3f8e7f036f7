/* batch_ramp -- train.batch_ramp: the batch of a step grows with the tokens trained on.
 *
 * The batch follows from the tokens that earlier steps have taken and from nothing else. So a run
 * that resumes needs no state for it, and samples are taken one after the other: a step takes the
 * next `batch` sequences.
 */
#ifndef TRAIN_BATCH_RAMP_H
#define TRAIN_BATCH_RAMP_H
#include "base/options.h"

/* `batch` sequences per step until `tokens` tokens have been trained on. */
struct batch_ramp_item {
    int64_t batch, tokens;
};

struct batch_ramp {
    const struct batch_ramp_item *items; /* batches and tokens ascend; owned by the options */
    int count;                           /* 0 = every step has the same batch */
    int64_t batch;                       /* after the last item: the largest */
    int64_t context;                     /* tokens per sequence */
};

/* Parse "16@2M,32@8M" into ramp->items; "" = none. ramp->batch is set. Sizes must be multiples of
 * micro_batch. */
enum status batch_ramp_parse(struct options *options, struct env *env, const char *text,
                             int64_t micro_batch, struct batch_ramp *ramp);

/* Sequences of the step that begins after `tokens` tokens. */
int64_t batch_ramp_at(const struct batch_ramp *ramp, int64_t tokens);
/* Tokens after `steps` more steps, the first of which begins after `tokens` tokens. */
int64_t batch_ramp_after(const struct batch_ramp *ramp, int64_t tokens, int64_t steps);
/* The largest number that divides the batches of all items; 0 = no ramp. */
int64_t batch_ramp_divisor(const struct batch_ramp *ramp);
/* "16 sequences per step until 2M tokens, 32 until 8M, then 64" */
void batch_ramp_describe(const struct batch_ramp *ramp, struct text *text);

#endif
