/* ops_tune -- choose the fastest of several ways to do the same work when timings fluctuate.
 *
 * A GPU at its power limit changes its clock all the time, by more than the ways differ. So the
 * ways are timed in turn, in several rounds of a minimum length, and compared by the medians of
 * their rounds. The first way, the library's own choice, stays unless another one is clearly
 * faster. Nothing here depends on GPUs: the caller measures.
 *
 * If results must not change, a way is a candidate only if the caller finds that its result equals
 * the first one's bit for bit. The choice then affects only the speed, so fluctuating timings do no
 * harm.
 */
#ifndef OPS_OPS_TUNE_H
#define OPS_OPS_TUNE_H
#include <stdbool.h>
#include <stdint.h>

enum { TUNE_WAYS = 24, TUNE_ROUNDS = 6 };
#define TUNE_SPAN     2e-3 /* minimum seconds that a way is timed in a round */
#define TUNE_HOPELESS 1.25 /* ways slower than this times the fastest estimate are excluded */
/* The part of the first way's time that another way must save. In a step there is less power and
 * the caches hold other data than when a way is timed in isolation, so small gains do not count. */
#ifndef TUNE_GAIN
#define TUNE_GAIN 0.03
#endif

/* Seconds of `calls` consecutive calls of a way; negative: it does not work. */
typedef double tune_time_fn(void *user, int way, int calls);
/* Whether the result of a way other than the first equals the first one's bit for bit. */
typedef bool tune_same_fn(void *user, int way);

struct tuned {
    int way;  /* the one to use; 0 also if none works */
    int same; /* number of candidates, the first included: they work and have the same result */
    double first, chosen; /* seconds of a call of the first and of `way`; negative: does not work */
};
/* Up to TUNE_WAYS ways. With `same` NULL every way that works is a candidate; otherwise only those
 * with the first one's result, and none if the first does not work. */
struct tuned ops_tune(int ways, tune_time_fn *time, tune_same_fn *same, void *user);

/* For an m x n product in tiles, each split in `parts` along k, on a number of processors: the
 * elements that the busiest processor computes, with the empty ones of tiles at the edges. With few
 * tiles this decides which tile size is fastest: 352 tiles on 132 processors take as long as
 * 396. */
double ops_tune_busiest(int64_t m, int64_t n, int64_t tile_m, int64_t tile_n, int parts,
                        int processors);

#endif
