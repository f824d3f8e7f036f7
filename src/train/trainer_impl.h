/* trainer_impl -- shared by trainer.c, which begins and ends a run, and trainer_steps.c, which runs
 * its steps. */
#ifndef TRAIN_TRAINER_IMPL_H
#define TRAIN_TRAINER_IMPL_H
#include "train/run/metrics.h"
#include "train/run/pace.h"
#include "base/lock_file.h"
#include "train/run/run_saves.h"
#include "train/generate.h"
#include "train/session.h"
#include "train/run/tracing.h"
#include "train/trainer.h"

struct trainer {
    struct env *env;                           /* borrowed */
    const struct run_config *config;           /* borrowed */
    const struct session_ranks *ranks;         /* borrowed; NULL if there is one rank */
    const struct trainer_target *target;       /* borrowed */
    const struct trainer_callbacks *callbacks; /* borrowed */
    struct trainer_summary *summary;           /* borrowed */

    struct schedule schedule;
    struct dataset *data;
    struct session session;
    struct engine *engine;
    struct text_sampler *sampler; /* NULL = no text samples */
    bool eval_empty;              /* held-out data without labels, and a warning was logged */
    bool step_empty;              /* a step without labels, and a warning was logged */
    bool sample_stopped;          /* a sample has failed, and a warning was logged */
    struct metrics *metrics;
    struct lock_file *lock; /* of the folder; NULL on ranks other than 0 */
    struct pace *pace;
    struct routing_report *routing; /* NULL = the model does not route */
    struct tracing tracing;
    struct footprints footprints; /* of this rank */
    struct gauges gauges;         /* of the first rank's GPU */
    struct cores cores;           /* of all ranks */
    struct footprint_worst held;  /* before the first step; nothing is allocated later */

    char *checkpoints;  /* the folder */
    char *cache;        /* the folder of cached tokens */
    bool folder_is_new; /* it did not exist before the data was opened */
    uint64_t data_hash;
    struct data_digest data_files;
    struct fingerprint print;
    struct run_saves saves;
    struct deadline deadline;
    double longest_step;     /* seconds */
    double fill_seconds;     /* spent on reading the data of the next step */
    enum status data_status; /* not OK if this rank could not read it; the run stops then */

    int64_t step;       /* the current step, from 1; between steps the last one */
    int64_t batch;      /* sequences of the step whose data was read last */
    int64_t first_step; /* the step after which the run resumed; 0 = a new run */
    struct resume_load load;
    struct checkpoint_progress done; /* up to the last step */
    bool evaluated_late;             /* trainer_evaluate_due has evaluated */
    double flops_per_token;
    struct traffic traffic; /* of the engine, at the last count */
    struct traffic carried; /* of a step, counted after its record: the new parameters */
};

/* Only rank 0 writes files and calls back. */
static inline bool trainer_is_first(const struct trainer *t)
{
    return !t->session.comm || comm_rank(t->session.comm) == 0;
}

/* Update the footprint of this rank. */
static inline void trainer_look(struct trainer *t)
{
    footprints_look(&t->footprints, t->env->mem, t->session.device);
}

/* The run was stopped in the evaluation after its last step. */
static inline bool trainer_owes_evaluation(const struct trainer *t)
{
    return t->done.evaluation_due && dataset_eval_count(t->data) > 0;
}

/* Of the current step. */
static inline int64_t trainer_step_tokens(const struct trainer *t)
{
    return t->batch * t->config->train.context;
}

/* Tokens of the steps that are left. */
static inline int64_t trainer_tokens_left(const struct trainer *t)
{
    int64_t done = t->done.tokens, steps = t->config->train.steps - t->step;
    return batch_ramp_after(&t->config->ramp, done, steps) - done;
}

/* --- trainer_steps.c ------------------------------------------------------------------------ */
bool trainer_at_stop(const struct trainer *t); /* train.stop_at is reached */
/* Run all steps that are left; STATUS_STOPPED if the run was asked to stop before. */
enum status trainer_loop(struct trainer *t);
/* The run that resumes was stopped in an evaluation: repeat it. */
enum status trainer_evaluate_due(struct trainer *t);
/* Begin a phase of the run (engine/scope.h). `words`, followed by the step, tell other ranks what
 * this one does: "evaluation after step 12". `span` is its name in the trace; NULL: it is not
 * drawn, and need not be ended. */
struct scope trainer_begin_phase(struct trainer *t, const char *words, const char *span);
/* Before and after anything but a step: wait for what the step has left in flight. Traffic in
 * between is not counted for steps. */
enum status trainer_suspend_steps(struct trainer *t);
void trainer_resume_steps(struct trainer *t);
enum status trainer_write_trace(struct trainer *t, bool over);

#endif
