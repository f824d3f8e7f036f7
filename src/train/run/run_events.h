/* run_events -- the events that a trainer reports while it runs, and its summary: for the log
 * files, the console and other callers. */
#ifndef TRAIN_RUN_EVENTS_H
#define TRAIN_RUN_EVENTS_H
#include "train/config/config.h"
#include "train/run/cores.h"
#include "train/run/footprint.h"
#include "train/run/routing.h"
#include "train/checkpoint/resume.h"

struct evaluation {
    double loss;          /* mean over the labels, nats */
    double perplexity;    /* exp(loss) */
    double bits_per_byte; /* NAN if the number of text bytes is not known */
    int64_t tokens;       /* labels that were not masked */
    int64_t bytes;        /* of text that the tokens stand for; 0 = not known */
    int64_t batches;
    double seconds;
};

/* {"loss":...,"perplexity":...,"bits_per_byte":...,"tokens":...,"seconds":...}; null for unknown
 * values. */
void evaluation_print(const struct evaluation *evaluation, struct text *text);

struct trainer_facts { /* known when everything is built, before the first step */
    const struct run_config *config;
    const char *folder;
    int64_t parameters;
    int64_t train_tokens, val_tokens; /* of the data; 0 = none */
    uint64_t data_bytes;              /* of mapped data files; not in any rank's account */
    int64_t step_tokens;              /* of the largest step: global_batch * context */
    double flops_per_token;
    double epochs;                  /* tokens of the whole run / train_tokens */
    int64_t first_step;             /* the step after which the run resumes; 0 = a new run */
    const struct resume_load *load; /* cost of reading the state */
    const struct footprint_worst *held;
    const struct cores *cores;
    int ranks;
    const char *comm;   /* communication back end, as "mpi"; "" for one rank */
    const char *device; /* "cpu", "cuda" */
    const char *gpu;    /* "NVIDIA H200"; "" = CPU */
};

struct trainer_step {
    int64_t step, steps; /* step counts from 1 */
    int64_t tokens;      /* so far */
    int64_t batch;       /* sequences of this step; 0 = always train.global_batch */
    double loss, grad_norm, lr;
    double seconds, tokens_per_second;
    double mfu;         /* 0 .. 1; NAN = not known */
    double eta_seconds; /* NAN = not known yet */
    bool skipped;
    struct noise_scale noise;           /* steps 0: not known */
    double loss_scale;                  /* of this step; NAN = not fp16 */
    const struct footprint_worst *held; /* the account of the worst rank */
    size_t resident_bytes;              /* maximum of this rank's process so far; 0 = not known */
    size_t gpu_bytes;            /* maximum in use on its GPU so far; 0 = none, or not known */
    struct device_gauges gauges; /* of its GPU, read after this step or shortly before */
    int ranks;
    struct traffic traffic;               /* of this step */
    const struct routing_report *routing; /* of a SARS model; NULL = another model */
    double meta_norm; /* of a second loss's gradient; NAN = none, or not known */
};

struct trainer_sample {
    int64_t step;
    const char *prompt, *text; /* text excludes the prompt and may be invalid UTF-8 */
    size_t text_bytes;
};

struct trainer_callbacks { /* any may be NULL; `user` is passed to each */
    void *user;
    void (*ready)(void *user, const struct trainer_facts *facts);
    void (*step)(void *user, const struct trainer_step *step);
    void (*eval)(void *user, int64_t step, const struct evaluation *evaluation);
    void (*sample)(void *user, const struct trainer_sample *sample);
    /* Not called for the last checkpoint. */
    void (*saved)(void *user, const struct checkpoint_result *result);
    bool (*should_stop)(void *user); /* called before each step and in evaluations */
    /* At the end: nothing is lost if the process is killed from now on. */
    void (*all_saved)(void *user);
};

struct trainer_save { /* of the last checkpoint, as in checkpoint_result */
    uint64_t bytes;
    double seconds, written, stood;
};

struct trainer_summary {
    const char *end;              /* "done", "stopped", "diverged" or "failed" */
    char error[512];              /* the first error; "" = none */
    int64_t steps, planned_steps; /* steps done, and train.steps */
    int64_t first_step;           /* of these, done before this run resumed */
    int64_t skipped, tokens, parameters;
    double loss;                 /* of the last step that was not skipped; NAN = none */
    struct noise_scale noise;    /* steps 0: not known */
    struct evaluation val;       /* the last evaluation; tokens 0 = none */
    double seconds;              /* in the training loop */
    double tokens_per_second;    /* median over all steps but the first two; NAN = too few */
    struct footprint_worst held; /* of the worst rank, maxima over the run */
    size_t built_bytes;          /* the same account when everything was built, as in a plan */
    struct device_gauges gauges; /* of rank 0's GPU: means; celsius: the maximum */
    char checkpoint[4096];       /* path of the newest; "" = none */
    struct trainer_save save;    /* the last save; bytes 0 = none */
    int ranks;
    size_t state_bytes;        /* params, grads and optimizer: maximum over ranks */
    size_t whole_bytes;        /* the same if one rank held everything */
    int state_rank;            /* the rank with state_bytes */
    struct spread_counts part; /* the part of the model on this rank */
    struct traffic traffic;    /* of this rank in steps, without evaluations and checkpoints */
};

enum status trainer_summary_write(struct env *env, const char *folder,
                                  const struct trainer_summary *summary); /* summary.json */

#endif
