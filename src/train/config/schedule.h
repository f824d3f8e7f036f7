/* schedule -- the learning rate of each step: warm-up, then constant, linear, cosine or WSD; and the
 * time at which a run must save and stop.
 *
 * Steps are counted t = 1 .. steps, as the optimizer counts them. The rate rises linearly to `lr`
 * at t = warmup and ends at exactly `min_lr` at t = steps (`constant` stays at `lr`).
 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H
#include <stdbool.h>
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

/* --- deadline: train.max_time, or the end of a Slurm job ------------------------------------- */

struct deadline { /* open; times of clock_seconds, INFINITY = none */
    double limit; /* end of train.max_time: no step starts after it */
    double end;   /* end of the Slurm job: the last step and save must be finished by then */
};

/* Parse "90", "90s", "2h30m" or "1d"; "" gives 0. False if `text` is not a duration. */
bool deadline_parse(const char *text, double *seconds);

/* Start the clock. `max_time` was already checked with deadline_parse. The end of the job comes
 * from SLURM_JOB_END_TIME. */
struct deadline deadline_start(const char *max_time);
/* Must the run stop now, if another step and a save take `seconds`? */
bool deadline_over(const struct deadline *deadline, double seconds);

#endif
