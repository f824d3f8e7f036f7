/* ops_bench -- timed cases of the ops for `sifr bench`, with the shapes of training steps. */
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
    double gbytes_per_second; /* inputs read once and outputs written once */
    int64_t calls;            /* number of timed calls */
};

/* Time a case for about `min_seconds` after one call that is not counted. The calls cycle through
 * up to `copies` copies of the tensors, fewer if these are large. With one copy a call finds its
 * inputs in the caches as far as they fit; with several, about as in a step, where other calls come
 * between. */
enum { OPS_BENCH_LOCATIONS = 8 };
enum status ops_bench_run(struct ops *ops, const struct ops_case *c, int copies, double min_seconds,
                          struct ops_bench_result *result);

#endif
