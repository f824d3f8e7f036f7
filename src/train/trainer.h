/* trainer -- the training loop and its run folder.
 *
 *     DIR/config.yaml             the resolved configuration
 *     DIR/metrics.jsonl           one object a step
 *     DIR/events.out.tfevents.*   the same for TensorBoard
 *     DIR/samples.jsonl           text samples
 *     DIR/cache/                  tokens of text, to be mapped again; may be deleted at any time
 *     DIR/checkpoints/step-N/     all that is needed to go on, and a Hugging Face directory
 *     DIR/summary.json            how it ended
 *
 * A trainer prints nothing: what a person should see goes to callbacks and the log. After its
 * first step it allocates nothing until the loop ends.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H
#include "train/config.h"
#include "train/evaluate.h"
#include "train/footprint.h"
#include "train/resume.h"
#include "train/session.h"

struct trainer_facts { /* known when everything is in place, before the first step */
    const struct run_config *config;
    const char *folder;
    int64_t parameters;
    int64_t train_tokens, val_tokens; /* of the data; 0 = none */
    uint64_t data_bytes;              /* of files that are mapped for it: no rank's own memory */
    int64_t step_tokens;              /* global_batch * context */
    double flops_per_token;
    double epochs;                  /* steps * step_tokens / train_tokens */
    int64_t first_step;             /* after which the run goes on; 0 = it begins */
    const struct resume_load *load; /* how its state was read */
    const struct footprint_worst *held;
    int ranks;
    const char *comm;   /* how they talk: "mpi"; "" for one */
    const char *device; /* "cpu", "cuda" */
    const char *card;   /* "NVIDIA H200"; "" = the processors */
};

struct trainer_step {
    int64_t step, steps; /* step counts from 1 */
    int64_t tokens;      /* so far */
    double loss, grad_norm, lr;
    double seconds, tokens_per_second;
    double mfu;         /* 0 .. 1; NAN = not known */
    double eta_seconds; /* NAN = not known yet */
    bool skipped;
    double loss_scale;                  /* of this step; NAN = there is none: not fp16 */
    const struct footprint_worst *held; /* accounted, of the worst rank */
    size_t resident_bytes;              /* of this rank's process so far; 0 = not known */
    size_t card_bytes;                  /* in use of its card so far; 0 = no card, or not known */
    struct device_gauges gauges;        /* of its card, of this step or one not long ago */
    int ranks;
    struct engine_traffic traffic; /* of this step */
};

struct trainer_sample {
    int64_t step;
    const char *prompt, *text; /* text without the prompt; bytes, not always UTF-8 */
    size_t text_bytes;
};

struct trainer_callbacks { /* any may be NULL; `user` goes to each */
    void *user;
    void (*ready)(void *user, const struct trainer_facts *facts);
    void (*step)(void *user, const struct trainer_step *step);
    void (*eval)(void *user, int64_t step, const struct evaluation *evaluation);
    void (*sample)(void *user, const struct trainer_sample *sample);
    void (*saved)(void *user, const struct checkpoint_result *result); /* in the middle of a run */
    bool (*should_stop)(void *user); /* asked before each step and in evaluations */
    void (*all_saved)(void *user);   /* at the end: who is ended from here on loses nothing */
};

struct trainer_save { /* of a checkpoint, as in its result */
    uint64_t bytes;
    double seconds, written, stood;
};

struct trainer_place {
    const char *folder;      /* the run folder */
    bool fresh;              /* a run that is already there is moved aside, not gone on with */
    const char *config_yaml; /* text of the resolved configuration, for config.yaml */
    const char *trace;       /* steps to trace, "5:8"; NULL or "" = none. See train/tracing.h */
};

struct trainer_summary {
    const char *end;              /* "done", "stopped", "diverged" or "failed" */
    char error[512];              /* the first error; "" = none */
    int64_t steps, planned_steps; /* done, and train.steps */
    int64_t first_step;           /* of them, done by runs before this one */
    int64_t skipped, tokens, parameters;
    double loss;                 /* of the last step that was not skipped; NAN = none */
    struct evaluation val;       /* the last; tokens 0 = none */
    double seconds;              /* in the loop */
    double tokens_per_second;    /* median over the steps but the first two; NAN = too few */
    struct footprint_worst held; /* of the worst rank, up to the end of the run */
    size_t built_bytes;          /* the same account when all was built, as a plan has it */
    struct device_gauges gauges; /* of the first rank's card: on average; the highest temperature */
    char checkpoint[4096];       /* the newest; "" = there is none */
    struct trainer_save save;    /* the last; bytes 0 = none */
    int ranks;
    size_t state_bytes;            /* params, grads and optimizer of the rank that holds most */
    size_t whole_bytes;            /* the same on one rank that holds everything */
    int state_rank;                /* which rank that is */
    struct spread_counts part;     /* of the model, at this rank */
    struct engine_traffic traffic; /* of this rank in the steps: not evaluations, not checkpoints */
};

void trainer_summary_print(const struct trainer_summary *summary, struct text *text); /* JSON */
enum status trainer_summary_write(struct env *env, const char *folder,
                                  const struct trainer_summary *summary); /* summary.json */

/* The store of such a run. */
struct zero_config trainer_store_config(const struct run_config *config);

/* Train as the resolved `config` says, from the newest checkpoint in the folder on. STATUS_SAVED when
 * should_stop, train.max_time or train.stop_at said so and there is a checkpoint of the last step, or
 * no step was done; STATUS_DIVERGED after train.max_skips skipped steps in a row. *summary is filled
 * in every case. */
enum status trainer_run(struct env *env, const struct run_config *config,
                        const struct session_ranks *ranks, const struct trainer_place *place,
                        const struct trainer_callbacks *callbacks, struct trainer_summary *summary);

#endif
