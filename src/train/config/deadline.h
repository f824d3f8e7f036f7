/* deadline -- when a run has to stop by itself: train.max_time, and the end of a Slurm job. */
#ifndef TRAIN_DEADLINE_H
#define TRAIN_DEADLINE_H
#include <stdbool.h>

struct deadline { /* open; by clock_seconds, INFINITY = none */
    double limit; /* train.max_time is over */
    double end;   /* the process will be ended: what is left to do must be done before */
};

/* "90", "90s", "2h30m", "1d"; "" is 0: none. False: it is no time. */
bool deadline_parse(const char *text, double *seconds);

/* `max_time` has been parsed before; SLURM_JOB_END_TIME is looked at. */
struct deadline deadline_start(const char *max_time);
/* Is it time to stop, when a step and a save take `seconds` more? */
bool deadline_over(const struct deadline *deadline, double seconds);

#endif
