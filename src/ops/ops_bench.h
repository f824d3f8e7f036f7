/* ops_bench -- timed cases of the ops, for `sifr bench`: the shapes of training steps, with their
 * cost. */
#ifndef OPS_OPS_BENCH_H
#define OPS_OPS_BENCH_H
#include "ops/ops_cases.h"

struct ops_bench_case {
    const char *name; /* "matmul 2048" */
    struct ops_case shape;
};

extern const struct ops_bench_case ops_bench_cases[];
extern const int ops_bench_case_count;

struct ops_bench_result {
    double seconds; /* of one call: the median */
    double gflops;
    double gbytes_per_second; /* inputs read and outputs written once */
    int64_t calls;            /* timed */
};

/* Time a case for about `min_seconds` after one call that is not counted. Calls are made in up to
 * `places` places of memory in turn, fewer where these are large: with 1 what a call reads is in the
 * caches as far as it fits, with several about as in a step, where other calls are between. */
enum { OPS_BENCH_LOCATIONS = 8 };
enum status ops_bench_run(struct ops *ops, const struct ops_case *c, int places, double min_seconds,
                          struct ops_bench_result *result);

#endif
