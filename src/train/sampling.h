/* sampling -- choose the next token from logits: greedy, or by temperature, top-k and top-p. */
#ifndef TRAIN_SAMPLING_H
#define TRAIN_SAMPLING_H
#include <stdint.h>

/* temperature 0 is greedy; top_k 0 and top_p 1 are off. `random` is in [0, 1). Ties go to the
 * lowest id. `order` has room for `vocab` ids. Returns -1 if a logit is NaN or the largest is not
 * finite. */
struct sampling {
    double temperature, top_p;
    int64_t top_k;
};
int32_t sampling_pick(const struct sampling *sampling, const float *logits, int64_t vocab,
                      double random, int32_t *order);

#endif
