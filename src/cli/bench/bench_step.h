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
    enum dtype type, sum_type; /* of parameters and gradients, and of their sums */
    int64_t warmup, steps;     /* steps are timed after some that are not */
};

struct bench_step_result {
    int64_t parameters;
    double flops_per_token;
    double seconds; /* of a step: the median */
    double tokens_per_second, gflops;
    struct mem_sums held;        /* accounted where it computes, at most */
    struct footprint gpu;        /* at the end of the steps; all zero: no GPU */
    struct device_gauges gauges; /* of the GPU, then */
    double fastest, slowest;     /* seconds */
    double loss;                 /* of the last step: that it learnt from something */
};

enum status bench_step_run(struct env *env, const struct bench_step_config *config,
                           struct bench_step_result *result);

#endif
