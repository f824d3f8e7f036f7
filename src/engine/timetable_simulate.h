/* timetable_simulate -- how long the lists of a pipeline take, given what each pass and each
 * transfer takes.
 *
 * For plans: it follows the lists that the engine follows, whatever their kind, so that uneven
 * stages, transfers and rounds that do not divide are in the figures, and not a formula's.
 */
#ifndef ENGINE_TIMETABLE_SIMULATE_H
#define ENGINE_TIMETABLE_SIMULATE_H
#include "engine/timetable.h"

/* What a rank does while a message is on its way. */
enum timetable_transfers {
    TIMETABLE_BLOCKING, /* waits, also for the other end: the worst case, lists are not made for it */
    TIMETABLE_LANE, /* computes; messages of a rank go one after the other, as they are listed */
    TIMETABLE_LINKS /* computes; each rank to each neighbour is a wire of its own, with buffers */
};

struct timetable_costs {
    const double *forward, *input, *weight; /* (stages) seconds; backward is input + weight */
    const double *each;       /* (actions) seconds of each pass instead; NULL: those of its stage */
    double latency, transfer; /* seconds of a message; the second keeps the wire busy */
    enum timetable_transfers transfers;
};

struct timetable_span {
    double begin, end; /* seconds from the begin of the step */
};

struct timetable_rank_time {
    double busy;     /* seconds in passes */
    double idle;     /* the rest of the step */
    double transfer; /* seconds in which it sends or receives; several at once count each */
};

struct timetable_times {
    double end;                        /* of the step: the last pass and message of the last rank */
    double bubble;                     /* idle / busy seconds of all ranks: (pp - 1) / rounds */
    struct timetable_rank_time *ranks; /* (pp) */
    struct timetable_span *spans;      /* one for each of t->actions */
};

/* The lists must have passed timetable_check. The caller frees *times. */
enum status timetable_simulate(struct env *env, const struct timetable *t,
                               const struct timetable_costs *costs, struct timetable_times *times);
void timetable_times_free(struct env *env, struct timetable_times *times);

/* The seconds from `begin` to `end` as a row of `width` characters a rank: 0-9 a forward of round
 * n mod 10, a-j its backward, w weight gradients, - a transfer that is waited for, . nothing. */
void timetable_print_times(const struct timetable *t, const struct timetable_times *times,
                           double begin, double end, int width, struct text *text);

#endif
