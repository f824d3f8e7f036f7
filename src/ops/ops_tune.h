/* ops_tune -- the fastest of several ways to do the same, by times that waver.
 *
 * A GPU at its power limit changes its clock from one moment to the next, by more than the ways
 * differ. So they are timed in turn, in several rounds, each for long enough, and compared by the
 * medians of their rounds; and the first way, which the library itself would take, stays unless
 * another is faster by more than chance. Nothing here knows of GPUs: who measures is the caller.
 *
 * Where results must not change, a way is only timed when the caller finds that it gives what the
 * first gives, bit for bit: then it does not matter which is taken, and times may waver as they
 * like.
 */
#ifndef OPS_OPS_TUNE_H
#define OPS_OPS_TUNE_H
#include <stdbool.h>
#include <stdint.h>

enum { TUNE_WAYS = 24, TUNE_ROUNDS = 6 };
#define TUNE_SPAN     2e-3 /* seconds that a way is timed for in a round, at least */
#define TUNE_HOPELESS 1.25 /* times the fastest at first sight: not timed any further */
/* Of the first way's time that another must save. A step has less power and other things in its
 * caches than a way that is timed by itself, so only what is clear there counts here. */
#ifndef TUNE_GAIN
#define TUNE_GAIN 0.03
#endif

/* Seconds that so many calls of a way take, one after the other; negative: it does not work. */
typedef double tune_time_fn(void *user, int way, int calls);
/* Whether a way, not the first, gives bit for bit what the first does. */
typedef bool tune_same_fn(void *user, int way);

struct tuned {
    int way;  /* the one to take; 0 also where none works */
    int same; /* how many could have been: they work, and were found the same; the first is one */
    double first,
        chosen; /* seconds of a call of the first and of the one to take; negative: it does
                             not work */
};
/* `ways` up to TUNE_WAYS. `same` NULL: any will do. Otherwise those that are not the same as the
 * first are left out, and so are all where the first does not work. */
struct tuned ops_tune(int ways, tune_time_fn *time, tune_same_fn *same, void *user);

/* A product of m x n in tiles, each of them in `parts` along k, over so many processors: the elements
 * that the busiest of them forms, the empty ones of tiles at the edges counted. With few tiles it is
 * this that one tile is faster for than another: 352 on 132 processors take as long as 396. */
double ops_tune_busiest(int64_t m, int64_t n, int64_t tile_m, int64_t tile_n, int parts,
                        int processors);

#endif
