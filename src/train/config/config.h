/* config -- the configuration of a run: model, data, training, optimizer groups, engine, precision,
 * machine.
 *
 * A command binds the option tables it needs to one run_config, loads files, environment and flags,
 * and resolves the result. Resolving fills in derived values and rejects keys that conflict, with
 * their names. The rest of the layer reads only the resolved run_config. It never changes after
 * that, so threads may share it.
 */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H
#include "base/options.h"
#include "engine/spread.h"
#include "model/model.h"
#include "train/checkpoint/checkpoint.h"
#include "train/data/dataset.h"
#include "train/config/batch_ramp.h"
#include "train/config/schedule.h"
#include "train/tokenizer/tokenizer.h"

struct train_config {
    int64_t steps;
    int64_t micro_batch;    /* sequences per micro-batch */
    int64_t global_batch;   /* sequences per step; 0 = micro_batch */
    const char *batch_ramp; /* for batch_ramp_parse; "" = none */
    int64_t context;        /* tokens per sequence; 0 = model.context */
    double lr, min_lr;      /* min_lr: -1 = lr / 10 */
    int64_t warmup, decay;  /* steps; -1 = derived from train.steps */
    int schedule;           /* enum schedule_kind */
    double weight_decay, beta1, beta2, eps, clip;
    const char *freeze; /* globs of tensors that are not trained (unit_freeze.h); "" = none */
    bool noise_scale;   /* measure it */
    int64_t seed;
    int64_t eval_every, eval_batches;
    int64_t sample_every, sample_tokens;
    const char *sample_prompt;
    double sample_temperature, sample_top_p;
    int64_t sample_top_k;
    int64_t max_skips;
    const char *max_time; /* a duration for deadline_parse; "" = none */
    int64_t stop_at;      /* save and stop after this step; 0 = none */
    const char *branch;   /* checkpoint that a new run starts from; "" = none */
    int64_t log_every;
};

enum run_device { RUN_DEVICE_AUTO, RUN_DEVICE_CPU, RUN_DEVICE_CUDA };
extern const char *const run_device_words[];
enum run_bind { RUN_BIND_AUTO, RUN_BIND_NONE };
extern const char *const run_bind_words[];
enum run_precision { RUN_PRECISION_FP32, RUN_PRECISION_BF16, RUN_PRECISION_FP16 };
enum run_rounding { RUN_ROUNDING_NEAREST, RUN_ROUNDING_STOCHASTIC };
enum run_accumulate { RUN_ACCUMULATE_EACH, RUN_ACCUMULATE_LOCAL };

struct machine_config {
    int device;            /* enum run_device */
    int64_t threads;       /* 0 = by base/threads.h */
    int bind;              /* enum run_bind */
    const char *kernels;   /* set of CPU kernels, or "auto" */
    bool deterministic;    /* equal bits in every run, for any number of threads and ranks */
    int64_t device_memory; /* limit of a rank's account of its device, bytes; 0 = none */
    double peak_tflops;    /* of this machine, for MFU; 0 = by the GPU's name */
    double stop_timeout;   /* seconds without progress after a stop signal before the process
                            is ended; 0 = no limit */
};

/* How the model's state is sharded, and how ranks communicate. */
struct ranks_config {
    int stage; /* ZeRO stage */
    int64_t prefetch, servers;
    int64_t bucket;      /* bytes of a message; 0 = a piece of the model */
    int64_t unit_layers; /* layers of a piece */
    int64_t shard_group; /* ranks that hold one copy of the state; 0 = all */
    int accumulate;      /* enum run_accumulate */
    int backend;         /* index into comm_backend_words */
    double timeout, delay;
};
extern const char *const comm_backend_words[];

/* State and activations in slower memory than the device's. */
struct offload_config {
    int optimizer, grads, params, activations; /* enum far_kind */
    double share, activations_share;
    int64_t window;
    int update; /* enum run_update */
    const char *folder;
};
enum run_update { RUN_UPDATE_AUTO, RUN_UPDATE_DEVICE, RUN_UPDATE_HOST };
/* Where files of offload go: `chosen` (offload.folder), or if it is "" or NULL the default. */
const char *run_offload_folder(const char *chosen);
struct zero_offload run_offload(const struct offload_config *config);
/* Refuse a folder that does not exist, except for a plan. `device` is an enum run_device. */
enum status run_offload_check(struct env *env, const struct offload_config *config, int device,
                              bool planning);

/* How a model that is only read is spread over ranks, and where its params are. Fields that are not
 * in layout_options are zero. */
struct layout_config {
    struct parallel_config parallel;
    struct ranks_config ranks;
    struct offload_config offload;
};

/* An item of optimizer.groups. Unset, which takes the value of the run: NaN, or -1. */
struct optimizer_group {
    const char *match; /* glob */
    double lr_mul, wd_mul;
    int kind;  /* enum optimizer_kind */
    double lr; /* with lr_mul on top */
    double beta1, beta2, eps;
    double weight_decay; /* with wd_mul on top */
    double momentum;
    int nesterov;
};

struct optimizer_config {
    int kind;                  /* enum optimizer_kind */
    double momentum;           /* NaN = by kind */
    int nesterov;              /* -1 = by kind */
    int rounding;              /* enum run_rounding */
    struct option_list groups; /* of struct optimizer_group */
};

struct run_config {
    struct model_config model;
    struct data_config data;
    struct train_config train;
    struct checkpoint_config checkpoint;
    struct engine_config engine;
    struct parallel_config parallel;
    struct optimizer_config optimizer;
    int precision;      /* enum run_precision */
    int precision_sums; /* enum run_precision of the summed gradient: fp32 or bf16 */
    struct machine_config machine;
    struct ranks_config ranks;
    struct offload_config offload;

    bool reading;  /* eval and sample: no optimizer; set by run_config_bind_reading */
    bool planning; /* plan: no data is needed; set by run_config_bind_planning */
    /* The folder of a run that is resumed if it has a checkpoint: then the model is read from there if
     * model.path is gone. NULL = none */
    const char *resumes;
    /* Set by run_config_resolve: */
    struct model_source *source;     /* opened from model.path; NULL = not set */
    struct tokenizer *tokenizer;     /* NULL = the data is tokens and no tokenizer is set */
    struct device_info device;       /* the device of this process */
    struct batch_ramp ramp;          /* the batch of each step */
    const struct zero_group *groups; /* of optimizer.groups, in order; owned by the options */
};

extern const struct option_table train_options;     /* train.* over struct train_config */
extern const struct option_table optimizer_options; /* optimizer.* over struct optimizer_config */
extern const struct option_table precision_options; /* precision.* over struct run_config */
extern const struct option_table ranks_options;     /* zero.*, comm.* over struct ranks_config */
extern const struct option_table offload_options;   /* offload.* over struct offload_config */
extern const struct option_table layout_options;    /* of these, what matters where a model is only
                                                    read; over struct layout_config */
extern const struct option_table machine_options;   /* run.* over struct machine_config */
extern const struct option_table place_options;     /* device to kernels */

/* Bind all tables. _reading is for commands that only read a model: model.path is required, and
 * training keys are accepted but ignored, so that a run's config.yaml can be used; the command
 * replaces the layout of the run (parallel, ranks) by its own. _planning is for
 * plans: data and tokenizer are read only if the vocabulary size must come from them. Otherwise the
 * files may be missing; a tokenizer that exists must match the vocabulary. */
enum status run_config_bind(struct options *options, struct run_config *config);
enum status run_config_bind_reading(struct options *options, struct run_config *config);
enum status run_config_bind_planning(struct options *options, struct run_config *config);

/* Fill in derived values and reject conflicting ones; sets env->threads. Opens and checks
 * model.path (a plan needs no weights), reads its config.json, and creates the tokenizer:
 * data.tokenizer, else the one in the folder of model.path, else plain bytes if the data is text.
 * File names become absolute. `progress` (may be NULL) is called while a vocabulary is learned.
 * Error messages name the keys. */
enum status run_config_resolve(struct env *env, struct options *options,
                               tokenizer_progress_fn *progress, void *user,
                               struct run_config *config);
/* With config->model resolved: refuse what its architecture cannot do, and fill in the defaults
 * that depend on it. Part of run_config_resolve. */
enum status run_config_suit_model(struct env *env, struct options *options,
                                  struct run_config *config);
/* Free what run_config_resolve created; safe if it was not called or failed. */
void run_config_release(struct run_config *config);

/* A summary for people, one fact per line: model, batch, schedule, machine. */
void run_config_describe(const struct run_config *config, struct text *text);

struct optimizer run_optimizer(const struct run_config *config); /* of tensors in no group */
int64_t run_micro_batches(const struct run_config *config);      /* of the largest step */
struct schedule run_schedule(const struct run_config *config);
enum dtype run_type(const struct run_config *config); /* of parameters and gradients */
enum dtype run_sum_type(const struct run_config *config);
/* Where and how a rank computes. */
struct compute_config {
    const char *backend; /* of device and ops: "cpu" */
    enum dtype type;     /* that ops compute in */
    enum dtype products; /* that operands of products are rounded to (ops_multiply_in) */
    bool fast;           /* ops and collectives may give up equal bits for speed */
    size_t memory_limit; /* of the account of the device, bytes; 0 = none */
};
struct compute_config run_compute(const struct run_config *config);
/* Peak floating-point operations per second of `ranks` ranks; 0 = not known. */
double run_peak(const struct run_config *config, int ranks);

/* Resolve RUN_DEVICE_AUTO: cuda if there is a GPU, else cpu. cuda without a GPU is an error, except
 * for a plan. *info describes the device that this process computes on. */
enum status run_device_find(struct env *env, bool planning, int *device, struct device_info *info);
/* How a device computes with parameters of `type`: the CPU in fp32, a GPU in that type. A training
 * run in bf16 (run_compute) also has its products in bf16 on a CPU. */
struct compute_config run_device_compute(int device, enum dtype type);

#endif
