/* timetable_simulate -- how long the lists of a pipeline take, given the time of each pass and
 * transfer.
 *
 * For plans. It follows the same lists as the engine, whatever their kind, so uneven stages,
 * transfers and rounds that do not divide are accounted for, which a formula would not do.
 */
#ifndef ENGINE_TIMETABLE_SIMULATE_H
#define ENGINE_TIMETABLE_SIMULATE_H
#include "engine/timetable.h"

/* What a rank does while a message is in flight. */
enum timetable_transfers {
    TIMETABLE_BLOCKING, /* waits, also for its peer: worst case, not what lists are made for */
    TIMETABLE_LANE,     /* computes; a rank has one message in flight at a time, in list order */
    TIMETABLE_LINKS /* computes; each direction to each neighbour is a buffered wire of its own */
};

struct timetable_costs {
    const double *forward, *input, *weight; /* (stages) seconds; backward is input + weight */
    const double *each;       /* (actions) seconds of each pass instead; NULL: those of its stage */
    double latency, transfer; /* seconds of a message; only `transfer` occupies the wire */
    enum timetable_transfers transfers;
};

struct timetable_span {
    double begin, end; /* seconds since the begin of the step */
};

struct timetable_rank_time {
    double busy;     /* seconds in passes */
    double idle;     /* the rest of the step */
    double transfer; /* seconds of sending and receiving; concurrent messages count separately */
};

struct timetable_times {
    double end;                        /* of the step: when the last pass or message of any rank
                                          ends */
    double bubble;                     /* idle / busy seconds of all ranks; ideally (pp - 1) /
                                          rounds */
    struct timetable_rank_time *ranks; /* (pp) */
    struct timetable_span *spans;      /* one for each action of t */
};

/* The lists must have passed timetable_check. The caller frees *times. */
enum status timetable_simulate(struct env *env, const struct timetable *t,
                               const struct timetable_costs *costs, struct timetable_times *times);
void timetable_times_free(struct env *env, struct timetable_times *times);

/* Print the seconds from `begin` to `end` as a row of `width` characters per rank: 0-9 a forward of
 * round n mod 10, a-j its backward, w backward-weight, - a transfer that nothing overlaps, . idle.
 */
void timetable_print_times(const struct timetable *t, const struct timetable_times *times,
                           double begin, double end, int width, struct text *text);

#endif
