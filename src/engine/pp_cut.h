/* pp_cut -- cuts the units of a model into the stages of a pipeline.
 *
 * A stage is one or more consecutive units; the slowest stage sets the pace of all. Among all cuts
 * that fit the memory, pp_cut takes the one whose slowest stage is fastest; among these the most
 * even one (the least sum of squares); among these the one with the fewest units in the first
 * stages, which have the most rounds in flight. Costs are integers (operations, nanoseconds), so
 * every rank and every machine finds the same cut.
 */
#ifndef ENGINE_PP_CUT_H
#define ENGINE_PP_CUT_H
#include <stdint.h>
#include "base/env.h"

struct pp_cut_task {
    int units, pp_stages;
    const int64_t *cost; /* (units) of one round, including the embedding and the head */

    /* Memory. most_bytes 0: no limit, and the other fields are not read. */
    size_t most_bytes;         /* of a stage */
    const size_t *bytes;       /* (units) independent of the rounds in flight */
    const size_t *round_bytes; /* (units) for each round in flight */
    const int *in_flight;      /* (stages) see timetable_in_flight */
};

/* first (stages + 1): stage s has units first[s] .. first[s + 1] - 1. STATUS_CONFIG if there are
 * fewer units than stages; STATUS_FIT if no cut fits, with the memory that the best one needs. */
enum status pp_cut(struct env *env, const struct pp_cut_task *task, int *first);

#endif
