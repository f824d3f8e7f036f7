/* deadline -- when a run must save and stop: train.max_time, or the end of a Slurm job. */
#ifndef TRAIN_DEADLINE_H
#define TRAIN_DEADLINE_H
#include <stdbool.h>

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
