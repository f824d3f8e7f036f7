/* trainer_impl -- the training loop's inside: trainer.c begins and ends a run, trainer_steps.c is the
 * steps between. */
#ifndef TRAIN_TRAINER_IMPL_H
#define TRAIN_TRAINER_IMPL_H
#include "train/config/deadline.h"
#include "train/run/gauges.h"
#include "train/run/metrics.h"
#include "train/run/pace.h"
#include "train/run/run_lock.h"
#include "train/run/run_saves.h"
#include "train/sampler.h"
#include "train/session.h"
#include "train/run/tracing.h"
#include "train/trainer.h"

struct trainer {
    struct env *env;                           /* borrowed */
    const struct run_config *config;           /* borrowed */
    const struct session_ranks *ranks;         /* borrowed; NULL: one rank */
    const struct trainer_target *place;        /* borrowed */
    const struct trainer_callbacks *callbacks; /* borrowed */
    struct trainer_summary *summary;           /* borrowed */

    struct schedule schedule;
    struct dataset *data;
    struct session session;
    struct engine *engine;
    struct sampler *sampler; /* NULL = no text samples */
    bool sample_stopped;     /* once one could not be made: that is said */
    struct metrics *metrics;
    struct lock_file *lock; /* of the folder; NULL on other ranks */
    struct pace *pace;
    struct tracing tracing;
    struct footprints footprints; /* of this rank */
    struct gauges gauges;         /* of the first rank's GPU */
    struct footprint_worst held;  /* before the first step: nothing is taken after it */

    char *checkpoints;  /* the folder */
    char *cache;        /* the folder of cached tokens */
    bool folder_is_new; /* it was not there before the data was opened */
    uint64_t data_print;
    struct data_print data_files;
    struct fingerprint print;
    struct run_saves saves;
    struct deadline deadline;
    double longest_step;     /* seconds */
    double fill_seconds;     /* to read the data of the step that follows */
    enum status data_status; /* not OK: this rank could not read it, and the run stops */

    int64_t step;       /* the step that runs, from 1; afterwards how many were begun */
    int64_t first_step; /* after which it goes on */
    struct resume_load load;
    struct checkpoint_progress done; /* up to the last step */
    double flops_per_token;
    struct traffic traffic; /* counted so far, whatever for */
    struct traffic carried; /* of a step, seen after its record: the new parameters */
};

/* Files and what a person sees are the first rank's. */
static inline bool trainer_speaks(const struct trainer *t)
{
    return !t->session.comm || comm_rank(t->session.comm) == 0;
}

/* At what is held now. */
static inline void trainer_look(struct trainer *t)
{
    footprints_look(&t->footprints, t->env->mem, t->session.device);
}

static inline int64_t trainer_step_tokens(const struct trainer *t)
{
    return t->config->train.global_batch * t->config->train.context;
}

/* --- trainer_steps.c ------------------------------------------------------------------------ */
/* All steps that are left; STATUS_STOPPED when somebody would not wait for their end. */
bool trainer_at_stop(const struct trainer *t); /* train.stop_at is reached */
enum status trainer_loop(struct trainer *t);
/* What the host turns to, for who waits for it: "step 12", "evaluation after step 12". */
void trainer_set_phase(struct trainer *t, const char *what);
/* Something else than a step follows: what the step has left under way comes in first; and the steps
 * go on. What is sent in between is not theirs. */
enum status trainer_suspend_steps(struct trainer *t);
void trainer_resume_steps(struct trainer *t);
enum status trainer_write_trace(struct trainer *t, bool over);

#endif
