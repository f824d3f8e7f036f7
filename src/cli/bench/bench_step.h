/* bench_step -- the time of one training step of a model on random tokens. */
#ifndef CLI_BENCH_STEP_H
#define CLI_BENCH_STEP_H
#include "engine/engine.h"
#include "train/run/footprint.h"
#include "train/session.h"

struct bench_step_config {
    struct model_config model; /* resolved, with a vocabulary */
    struct engine_config engine;
    struct compute_config place;
    enum dtype type, sum_type; /* of parameters and gradients; of summed gradients */
    int64_t warmup, steps;     /* untimed and timed steps */
};

struct bench_step_result {
    int64_t parameters;
    double flops_per_token;
    double seconds; /* median of the steps */
    double tokens_per_second, gflops;
    struct mem_sums held;        /* peak of the accounted memory of the device */
    struct footprint gpu;        /* after the last step; all zero = no GPU */
    struct device_gauges gauges; /* of the GPU, after the last step */
    double fastest, slowest;     /* seconds */
    double loss;                 /* of the last step */
};

enum status bench_step_run(struct env *env, const struct bench_step_config *config,
                           struct bench_step_result *result);

#endif
