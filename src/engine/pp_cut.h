/* pp_cut -- where to cut the units of a model into the stages of a pipeline.
 *
 * A stage is one or more units that follow each other; the slowest one sets the pace of all. Of all
 * cuts that fit the memory, the one whose slowest stage is fastest; of these the most even one (the
 * least sum of squares); of these the one that gives the first stages the fewest units, since these
 * have the most rounds in flight. Costs are whole numbers (operations, nanoseconds), so that every
 * rank and machine finds the same cut.
 */
#ifndef ENGINE_PP_CUT_H
#define ENGINE_PP_CUT_H
#include <stdint.h>
#include "base/env.h"

struct pp_cut_task {
    int units, pp_stages;
    const int64_t *cost; /* (units) of one round: the embedding's and the head's as well */

    /* Memory; most_bytes 0: there is no limit, and the rest is not looked at. */
    size_t most_bytes;         /* of a stage */
    const size_t *bytes;       /* (units) whatever is in flight */
    const size_t *round_bytes; /* (units) for each round in flight */
    const int *in_flight;      /* (stages) as timetable_in_flight says */
};

/* first (stages + 1): stage s has units first[s] .. first[s + 1] - 1. STATUS_CONFIG when there are
 * fewer units than stages, STATUS_FIT when no cut fits, with what would. */
enum status pp_cut(struct env *env, const struct pp_cut_task *task, int *first);

#endif
