/* unit_cut -- one PP stage's part of a model: some of its units, with tables for these alone.
 *
 *     whole    pieces   e  b0  b1  b2  h         blocks of 64 elements are numbered
 *              blocks   0 ...                    through the whole model
 *     stage 0  pieces   e  b0                    e is lent to stage 1, where it is the head
 *     stage 1  pieces   e  b1  b2  h             e is borrowed: stage 1 has only its params
 *
 * A piece that units of two stages use is owned by the stage of its first unit: there its gradient
 * is summed and its params are updated. A cut with all units is the whole model and owns every
 * piece.
 */
#ifndef UNIT_UNIT_CUT_H
#define UNIT_UNIT_CUT_H
#include "unit/unit.h"

enum { UNIT_NO_STAGE = -1 }; /* in lent_to and borrowed_from: no other stage */

struct unit_cut {
    struct unit_graph graph;        /* with indices into the tables of the cut */
    const struct unit_graph *whole; /* borrowed */
    int pp_stage;
    int *whole_tensor;    /* (tensors) indices in the whole model */
    int *own_tensor;      /* (tensors of the whole model) index in the cut; -1: the cut does not
                             have it */
    int *owner;           /* (tensors of the whole model) the stage that updates it */
    int64_t *first_block; /* (pieces) number of its first block in the whole model */
    int *lent_to;         /* (pieces) the other stage that uses it */
    int *borrowed_from;   /* (pieces) the stage that owns it, if not this one */
    struct unit *units;   /* the tables that graph points to */
    struct unit_piece *pieces;
    struct unit_param *params;
    struct unit_tensor *tensors;
};

/* Take the units u with pp_stage_of[u] == pp_stage. At most two stages may use a piece. */
enum status unit_cut_create(struct env *env, const struct unit_graph *whole, const int *pp_stage_of,
                            int pp_stage, struct unit_cut *cut);
void unit_cut_free(struct env *env, struct unit_cut *cut);

#endif
