/* sampling -- the next token, chosen by the logits: greedy, or by temperature, top-k and top-p. */
#ifndef TRAIN_SAMPLING_H
#define TRAIN_SAMPLING_H
#include <stdint.h>

/* temperature 0 is greedy; top_k 0 and top_p 1 are off. `random` in [0,
 * 1). Deterministic ties: the lowest id. `order` has room for `vocab` ids. -1: there is nothing to
 * choose by: a logit is no number, or the largest is not finite. */
struct sampling {
    double temperature, top_p;
    int64_t top_k;
};
int32_t sampling_pick(const struct sampling *sampling, const float *logits, int64_t vocab,
                      double random, int32_t *order);

#endif
