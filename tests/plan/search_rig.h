/* search_rig -- a machine and a small model for tests of the planner's search. */
#ifndef TESTS_PLAN_SEARCH_RIG_H
#define TESTS_PLAN_SEARCH_RIG_H
#include "engine/rig.h"
#include "plan/search.h"

/* Bytes per second inside a node of four ranks, and between nodes. */
static inline struct machine_profile search_machine(double inside, double between)
{
    struct ops_rate rate = {1e-6, 2e12, 2e11};
    return (struct machine_profile){.name = "made by hand",
                                    .ops.rates = {rate, rate, rate, rate},
                                    .comm = {.inside = {2e-6, 1e-7, inside},
                                             .between = {5e-6, 2e-7, between},
                                             .node = 4,
                                             .exchange = 5e-6,
                                             .theft = 0.05,
                                             .sum_bytes_per_second = 2e11},
                                    .copy_bytes_per_second = 2e11,
                                    .has_ops = true,
                                    .has_comm = true};
}

/* A model of `width`, 32 for each head, with sequences of width / 2 tokens. */
static inline struct plan_request search_request_of(int ranks, int64_t layers, int64_t width,
                                                    int64_t micro_batch, int64_t micro_batches)
{
    struct model_config model = rig_llama();
    model.layers = layers;
    model.width = width;
    model.heads = model.kv_heads = width / 32;
    model.head_width = 32;
    model.ff = 3 * width;
    model.vocab = 4 * width;
    model.context = width / 2;
    return (struct plan_request){
        .model = model,
        .engine = {.micro_batch = micro_batch, .tokens = width / 2, .micro_batches = micro_batches},
        .zero = {.optimizer.beta1 = 0.9,
                 .optimizer.beta2 = 0.95,
                 .optimizer.eps = 1e-8,
                 .clip = 1.0,
                 .prefetch = 1},
        .parallel = {.tp = 1, .pp = 1, .schedule = TIMETABLE_1F1B},
        .ops = "cpu",
        .ranks = ranks,
        .threads = 1,
    };
}

#endif
