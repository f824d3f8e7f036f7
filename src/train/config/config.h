/* config -- everything a run is told: model, data, training, optimizer groups, engine,
 * precision, machine.
 *
 * A command binds the tables it needs to one run_config, loads files, environment and flags, and
 * resolves: what is derived is filled in, what does not fit together is refused with the names
 * of the keys. The rest of the layer reads a resolved run_config and nothing else. It is
 * resolved once and then only read: threads may share it.
 */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H
#include "base/options.h"
#include "engine/spread.h"
#include "model/model.h"
#include "train/checkpoint/checkpoint.h"
#include "train/data/dataset.h"
#include "train/config/schedule.h"
#include "train/tokenizer/tokenizer.h"

struct train_config {
    int64_t steps;
    int64_t micro_batch;   /* sequences computed at once */
    int64_t global_batch;  /* sequences of a step; 0 = micro_batch */
    int64_t context;       /* tokens of a sequence; 0 = model.context */
    double lr, min_lr;     /* min_lr -1 = a tenth of lr */
    int64_t warmup, decay; /* steps; -1 = derived from train.steps */
    int schedule;          /* enum schedule_kind */
    double weight_decay, beta1, beta2, eps, clip;
    int64_t seed;
    int64_t eval_every, eval_batches;
    int64_t sample_every, sample_tokens;
    const char *sample_prompt;
    double sample_temperature, sample_top_p;
    int64_t sample_top_k;
    int64_t max_skips;
    const char *max_time; /* see train/config/deadline.h */
    int64_t stop_at;      /* a step; 0 = none */
    int64_t log_every;
};

enum run_device { RUN_DEVICE_AUTO, RUN_DEVICE_CPU, RUN_DEVICE_CUDA };
extern const char *const run_device_words[];
enum run_precision { RUN_PRECISION_FP32, RUN_PRECISION_BF16, RUN_PRECISION_FP16 };
enum run_rounding { RUN_ROUNDING_NEAREST, RUN_ROUNDING_STOCHASTIC };
enum run_accumulate { RUN_ACCUMULATE_EACH, RUN_ACCUMULATE_LOCAL };

struct machine_config {
    int device;          /* enum run_device */
    int64_t threads;     /* 0 = as many as the affinity mask has */
    bool deterministic;  /* the same bits for any number of threads and ranks, and in every run */
    double peak_tflops;  /* of this machine, for mfu; 0 = by the GPU's name */
    double stop_timeout; /* seconds without progress after a signal to stop; 0 = never too many */
};

/* How the model's state is cut among the ranks, and how they talk. */
struct ranks_config {
    int stage;
    int64_t prefetch, servers;
    int64_t shard_group; /* ranks that hold one copy of the state; 0 = all */
    int accumulate;      /* enum run_accumulate */
    int backend;         /* index into comm_backend_words */
    double timeout, delay;
};
extern const char *const comm_backend_words[];

struct run_config {
    struct model_config model;
    struct data_config data;
    struct train_config train;
    struct checkpoint_config checkpoint;
    struct engine_config engine;
    struct parallel_config parallel;
    struct option_list groups; /* optimizer.groups: of struct zero_group */
    int rounding;              /* enum run_rounding */
    int precision;             /* enum run_precision */
    int precision_sums;        /* the same, of the summed gradient: fp32 or bf16 */
    struct machine_config machine;
    struct ranks_config ranks;

    bool reading;  /* eval and sample: there is no optimizer; set by run_config_bind_reading */
    bool planning; /* plan: no data is needed; set by run_config_bind_planning */
    /* Set by run_config_resolve: */
    struct model_source *source; /* of model.path; NULL = none is named */
    struct tokenizer *tokenizer; /* NULL = token data and none named */
    struct device_info device;   /* this process's, of machine.device */
};

extern const struct option_table train_options;     /* train.* over struct train_config */
extern const struct option_table optimizer_options; /* optimizer.* over struct run_config */
extern const struct option_table precision_options; /* precision.* over struct run_config */
extern const struct option_table ranks_options;     /* zero.*, comm.* over struct ranks_config */
extern const struct option_table machine_options;   /* run.* over struct machine_config */
extern const struct option_table place_options;     /* of these run.device and run.threads */

/* Bind every table. The second is for commands that only read a model: model.path is then required,
 * and what belongs to training is accepted (so that a run's config.yaml may be given) and not
 * looked at. The third is for plans: data and tokenizer are looked at where the size of the
 * vocabulary must come from them; else they may be elsewhere, and a tokenizer that is here must
 * fit. */
enum status run_config_bind(struct options *options, struct run_config *config);
enum status run_config_bind_reading(struct options *options, struct run_config *config);
enum status run_config_bind_planning(struct options *options, struct run_config *config);

/* Fill in what is derived and refuse what does not fit together; sets env->threads. Finds what
 * model.path stands for, checks it (a plan needs no weights), reads its config.json, and makes the
 * tokenizer: data.tokenizer, else the one beside model.path, else plain bytes when the data is
 * text. Names of files become absolute. `progress` (NULL: none) is called while a vocabulary is
 * learnt. Messages name the keys. */
enum status run_config_resolve(struct env *env, struct options *options,
                               tokenizer_progress_fn *progress, void *user,
                               struct run_config *config);
void run_config_release(struct run_config *config); /* what it has set; fine when that is nothing */

/* What was derived, for people: one fact a line. */
void run_config_describe(const struct run_config *config, struct text *text);

int64_t run_micro_batches(const struct run_config *config); /* of a step */
struct schedule run_schedule(const struct run_config *config);
enum dtype run_type(const struct run_config *config); /* of parameters and gradients */
enum dtype run_sum_type(const struct run_config *config);
/* Whether equal bits are given up where that is faster: training on a GPU without
 * run.deterministic. */
bool run_is_fast(const struct run_config *config);
/* On what a rank computes, and how. */
struct compute_config {
    const char *backend; /* of device and ops: "cpu" */
    enum dtype type;     /* in which ops compute */
    bool fast;           /* what gives up equal bits may be chosen, by ops and between ranks */
};
struct compute_config run_compute(const struct run_config *config);
/* The floating-point operations a second that `ranks` ranks have at best; 0 = not known. */
double run_peak(const struct run_config *config, int ranks);

/* auto becomes cuda where there is a GPU, else cpu; cuda without one is refused unless it is for a
 * plan. `info` is of the one that this process computes on. */
enum status run_device_find(struct env *env, bool planning, int *device, struct device_info *info);
/* Where a device computes with parameters of a type: the CPU in fp32, a GPU in that type. */
struct compute_config run_device_compute(int device, enum dtype type);

#endif
