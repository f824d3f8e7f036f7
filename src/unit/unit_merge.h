/* unit_merge -- joins adjacent pieces of a graph, so that they are gathered and reduced together.
 *
 *     pieces   wte  b0  b1  b2  b3  b4  head        units = 2, or elements = 2 x those of a block
 *     merged   wte  b0 to b1  b2 to b3  b4  head    several units use one piece
 *
 * Pieces are joined if the same passes read them and the same passes write their gradients, so that
 * nobody gathers more than it reads, and if each is used by one unit: the same, or the next one.
 * Tensors, params and units stay as they are, and params keep their blocks of 64 elements, so no
 * bit depends on it. Only the padding at the end of pieces differs.
 */
#ifndef UNIT_UNIT_MERGE_H
#define UNIT_UNIT_MERGE_H
#include "unit/unit.h"

/* A piece is joined to the one before if either limit allows it. All zero: no piece is joined. */
struct unit_merge {
    int units;        /* a joined piece may belong to this many units; 0 or 1: to one */
    int64_t elements; /* a joined piece may have this many elements */
};

struct unit_merged {
    struct unit_graph graph; /* with the tensors and units of the original, and these tables: */
    struct unit_piece *pieces;
    struct unit_param *params;
};

/* part_of (units): pieces of units with different numbers stay apart; NULL: all have the same. The
 * tables of `graph` are borrowed. */
enum status unit_merge_pieces(struct env *env, const struct unit_graph *graph,
                              const struct unit_merge *merge, const int *part_of,
                              struct unit_merged *merged);
void unit_merged_free(struct env *env, struct unit_merged *merged); /* does nothing if all zero */

#endif
