/* ops_tune -- the fastest of several ways to do the same, by times that waver.
 *
 * A card at its power limit changes its clock from one moment to the next, by more than the ways
 * differ. So they are timed in turn, in several rounds, each for long enough, and compared by the
 * medians of their rounds; and the first way, which the library itself would take, stays unless
 * another is faster by more than chance. Nothing here knows of cards: who measures is the caller.
 */
#ifndef OPS_OPS_TUNE_H
#define OPS_OPS_TUNE_H

enum { TUNE_WAYS = 16, TUNE_ROUNDS = 6 };
#define TUNE_SPAN     2e-3 /* seconds that a way is timed for in a round, at least */
#define TUNE_GAIN     0.01 /* of the first way's time that another must save */
#define TUNE_HOPELESS 1.25 /* times the fastest at first sight: not timed any further */

/* Seconds that so many calls of a way take, one after the other; negative: it does not work. */
typedef double tune_time_fn(void *user, int way, int calls);

struct tuned {
    int way; /* the one to take; 0 also where none works */
    double first,
        chosen; /* seconds of a call of the first and of the one to take; negative: it does
                             not work */
};
/* `ways` up to TUNE_WAYS. */
struct tuned ops_tune(int ways, tune_time_fn *time, void *user);

#endif
