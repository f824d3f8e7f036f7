/* schedule -- the learning rate of each step: warm-up, then constant, linear, cosine or WSD.
 *
 * Steps are counted t = 1 .. steps, as the optimizer counts them. The rate rises linearly to `lr`
 * at t = warmup and ends at exactly `min_lr` at t = steps (`constant` stays at `lr`).
 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H
#include <stdint.h>

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD };

extern const char *const schedule_words[]; /* in the order of the enum, NULL-terminated */

struct schedule {
    int kind;              /* enum schedule_kind */
    int64_t steps, warmup; /* 0 <= warmup <= steps */
    int64_t decay;         /* SCHEDULE_WSD: number of steps at the end in which the rate falls */
    double lr, min_lr;
};

double schedule_lr(const struct schedule *schedule, int64_t t);

#endif
