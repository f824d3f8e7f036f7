/* unit_cut -- one pipeline stage's part of a model: some of its units, with tables of just these.
 *
 *     whole    pieces   e  b0  b1  b2  h         blocks of 64 elements of what is learned
 *              blocks   0 ...                    are numbered through the whole model
 *     stage 0  pieces   e  b0                    e is lent to stage 1, whose head it is too
 *     stage 1  pieces   e  b1  b2  h             e is borrowed from stage 0: only its params are here
 *
 * A piece that units of two stages use is at owner where its first unit is: there its gradient is
 * summed up and its params are updated. A cut of everything is the whole, at owner.
 */
#ifndef UNIT_UNIT_CUT_H
#define UNIT_UNIT_CUT_H
#include "unit/unit.h"

enum { UNIT_NO_STAGE = -1 }; /* in lent_to and borrowed_from */

struct unit_cut {
    struct unit_graph graph;        /* its indices are its own */
    const struct unit_graph *whole; /* borrowed */
    int pp_stage;
    int *whole_unit;      /* (units) indices in the whole */
    int *whole_tensor;    /* (tensors) */
    int *own_tensor;      /* (tensors of the whole) index here, -1: it is not here */
    int *owner;           /* (tensors of the whole) the stage that updates it */
    int64_t *first_block; /* (pieces) of the whole */
    int *lent_to;         /* (pieces) the stage that uses it, too */
    int *borrowed_from;   /* (pieces) its owner, where that is another stage */
    struct unit *units;   /* what graph points to */
    struct unit_piece *pieces;
    struct unit_param *params;
    struct unit_tensor *tensors;
};

/* The units u with pp_stage_of[u] = stage. A piece may be used by at most two stages. */
enum status unit_cut_create(struct env *env, const struct unit_graph *whole, const int *pp_stage_of,
                            int pp_stage, struct unit_cut *cut);
void unit_cut_free(struct env *env, struct unit_cut *cut);

#endif
