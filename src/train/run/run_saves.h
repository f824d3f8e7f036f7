/* run_saves -- starts the checkpoints of a run between steps and reports their results. A failed
 * save during the run is a warning. A failed last save is an error, after everything in last_save.c
 * was tried. */
#ifndef TRAIN_RUN_SAVES_H
#define TRAIN_RUN_SAVES_H
#include "train/checkpoint/checkpoint.h"
#include "train/run/run_events.h"

struct run_saves {                             /* open; zeroed = no checkpoints */
    struct env *env;                           /* borrowed */
    const struct trainer_callbacks *callbacks; /* borrowed */
    struct trainer_summary *summary; /* borrowed; receives the path of the newest checkpoint */
    const struct checkpoint_config *config; /* borrowed */
    struct comm *comm;                      /* borrowed; NULL = one rank */
    const char *run, *folder;               /* borrowed; run folder, and RUN/checkpoints */
    struct checkpoint_saver *saver;
    bool is_first;     /* rank 0, which alone logs and reports */
    int64_t last_step; /* of the newest checkpoint known to be saved; -1 = none */
    bool in_fallback;  /* that checkpoint is in the fallback folder (fallback.h) */
    bool lost;         /* the last save failed, and all ranks know it */
    double seconds;    /* duration of the longest save */
    char noted[320];   /* the last note reported, which is not repeated */
};

/* Collective, as are begin, finish and close. */
enum status run_saves_open(struct env *env, const struct checkpoint_setup *setup,
                           const struct trainer_callbacks *callbacks,
                           struct trainer_summary *summary, struct run_saves *saves);
void run_saves_close(struct run_saves *saves);

/* Wait for the previous save, then start one. */
enum status run_saves_begin(struct run_saves *saves, const struct checkpoint_progress *progress);
/* Report a background save that has ended since the last call. Not collective. */
void run_saves_look(struct run_saves *saves);
/* Wait for the previous save; then save the last checkpoint, unless the run folder already has it,
 * and wait. `progress` NULL: only wait. */
enum status run_saves_finish(struct run_saves *saves, const struct checkpoint_progress *progress);

/* --- last_save.c: for run_saves_finish ------------------------------------------------------ */
/* Collective. *result tells whether it was saved and, if not, why the run folder failed. The
 * returned status is that of the device or the communicator. */
enum status last_save(struct run_saves *saves, const struct checkpoint_progress *progress,
                      struct checkpoint_result *result);

#endif
