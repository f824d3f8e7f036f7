/* plan_walk -- one rank walks a step on a device that keeps time: how long each of its passes takes,
 * and what it sends and waits for meanwhile. For src/plan only.
 *
 * It walks two steps, and the second counts: it begins with what the first has left under way. Rounds
 * in the middle of a step are alike, so of many only some are walked, and the one in the middle stands
 * for those that are not.
 *
 *     rounds of the step     0 1 2 . . . . . . . . 61 62 63
 *     those that are walked  0 1 2 (3 3 3 3 3 3)    4  5  6
 */
#ifndef PLAN_PLAN_WALK_H
#define PLAN_PLAN_WALK_H
#include "plan/plan_impl.h"

enum { PLAN_VERBS = TIMETABLE_WEIGHT + 1 }; /* of passes */

/* What happens from one point to another, on one rank. */
struct plan_account {
    double clock, spent;    /* seconds that passed, and those in which the rank computed */
    struct traffic traffic; /* without what a pipeline stalls: waited is less `stalled` */
};

struct plan_pass {
    double seconds;            /* of the pass itself */
    struct plan_account share; /* from its begin to that of the next */
};

struct plan_walk {
    int walked, rounds, chunks;                /* rounds: of the whole step */
    struct plan_pass *passes;                  /* (PLAN_VERBS, chunks, walked) */
    struct plan_account before, judge, update; /* the first pass; after the last one, until all know
                                                  the norm; after that */
};

/* Rank `rank`, which has `chunks` chunks, of a step of `rounds` rounds of so many workers. The caller
 * frees *walk, whatever comes of it. */
enum status plan_walk(struct env *env, const struct plan_request *request,
                      const struct plan_clock *clock, int rank, int chunks, int rounds, int workers,
                      struct plan_walk *walk);
void plan_walk_free(struct env *env, struct plan_walk *walk);
/* A pass of any round of the step. */
const struct plan_pass *plan_walk_pass(const struct plan_walk *walk, int verb, int chunk,
                                       int round);
/* All of the step. */
struct plan_account plan_walk_sum(const struct plan_walk *walk);

#endif
