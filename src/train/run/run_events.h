/* run_events -- what a trainer tells while it runs, and its summary: for the log files, the console
 * and other callers. */
#ifndef TRAIN_RUN_EVENTS_H
#define TRAIN_RUN_EVENTS_H
#include "train/config/config.h"
#include "train/run/footprint.h"
#include "train/checkpoint/resume.h"

struct evaluation {
    double loss;          /* mean over the labels, nats */
    double perplexity;    /* exp(loss) */
    double bits_per_byte; /* NAN when the bytes behind the tokens are not known */
    int64_t tokens;       /* labels that counted */
    int64_t bytes;        /* of text behind them; 0 = not known */
    int64_t batches;
    double seconds;
};

/* {"loss":...,"perplexity":...,"bits_per_byte":...,"tokens":...,"seconds":...}; null for what is
 * not known. */
void evaluation_print(const struct evaluation *evaluation, struct text *text);

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
    const char *gpu;    /* "NVIDIA H200"; "" = the processors */
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
    size_t gpu_bytes;                   /* in use of its GPU so far; 0 = no GPU, or not known */
    struct device_gauges gauges;        /* of its GPU, of this step or one not long ago */
    int ranks;
    struct traffic traffic; /* of this step */
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
    struct device_gauges gauges; /* of the first rank's GPU: on average; the highest temperature */
    char checkpoint[4096];       /* the newest; "" = there is none */
    struct trainer_save save;    /* the last; bytes 0 = none */
    int ranks;
    size_t state_bytes;        /* params, grads and optimizer of the rank that holds most */
    size_t whole_bytes;        /* the same on one rank that holds everything */
    int state_rank;            /* which rank that is */
    struct spread_counts part; /* of the model, at this rank */
    struct traffic traffic;    /* of this rank in the steps: not evaluations, not checkpoints */
};

void trainer_summary_print(const struct trainer_summary *summary, struct text *text); /* JSON */
enum status trainer_summary_write(struct env *env, const char *folder,
                                  const struct trainer_summary *summary); /* summary.json */

#endif
