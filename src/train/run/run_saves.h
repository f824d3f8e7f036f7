/* run_saves -- the checkpoints of a run as its loop sees them: begun between steps, and what came
 * of each told to the user. A save that fails in the middle is a loud line, the last one an error,
 * when nothing has helped (last_save.h). */
#ifndef TRAIN_RUN_SAVES_H
#define TRAIN_RUN_SAVES_H
#include "train/checkpoint/checkpoint.h"
#include "train/run/run_events.h"

struct run_saves {                             /* open; zeroed: there are none */
    struct env *env;                           /* borrowed */
    const struct trainer_callbacks *callbacks; /* borrowed */
    struct trainer_summary *summary;           /* borrowed: the newest checkpoint's path */
    const struct checkpoint_config *config;    /* borrowed */
    struct comm *comm;                         /* borrowed; NULL: one rank */
    const char *run, *folder;                  /* borrowed: the run's, and of its checkpoints */
    struct checkpoint_saver *saver;
    bool speaks;       /* the first rank tells */
    int64_t last_step; /* of the newest checkpoint, as far as it is known here; -1 = none */
    bool apart;        /* it is in the fallback (fallback.h) */
    bool lost;         /* the last one, and all ranks know it */
    double seconds;    /* that the longest took */
    char noted[320];   /* the last note that was told: it is not told twice in a row */
};

/* Collective, as are begin, finish and close. */
enum status run_saves_open(struct env *env, const struct checkpoint_setup *setup, bool speaks,
                           const struct trainer_callbacks *callbacks,
                           struct trainer_summary *summary, struct run_saves *saves);
void run_saves_close(struct run_saves *saves);

enum status run_saves_begin(struct run_saves *saves, const struct checkpoint_progress *progress);
/* Tell of a save that has ended since. Not collective. */
void run_saves_look(struct run_saves *saves);
/* The last: wait for the one before, save unless that was of this step, and wait. `progress` NULL:
 * nothing more is saved. */
enum status run_saves_finish(struct run_saves *saves, const struct checkpoint_progress *progress);

#endif
