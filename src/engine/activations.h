/* activations -- the places of the units' buffers for one batch shape.
 *
 *     own      each unit has its own place: lives from forward to backward; or several, where so
 *              many micro-batches are between the two at once
 *     split    each unit has its own: lives from one part of backward to the other, where backward is
 *              in two parts; or several, as above
 *     shared   one place for all units: what is made again before it is needed
 *     scratch  one place for all passes: lives inside a pass
 *
 * Which buffers are `own` is one number: those with keep < own_below. KEEP_NOT keeps everything (no
 * recomputation), KEEP_UNLESS_SELECTIVE and KEEP_UNLESS_FULL are the two modes of recomputation,
 * KEEP_ALWAYS keeps nothing (evaluation and decoding, where no backward follows).
 *
 * What is not `own` and is needed by the second part of a backward pass is `split`: scratch of the
 * first, and buffers that are made again. So these are made again once, before the first part, and
 * then kept for the second: recomputation saves memory from forward to the first part only. To make
 * them again before the second would cost another forward pass, and params, which that does
 * without.
 *
 * Micro-batches of a unit are in places in the order of rounds, so round mod n finds one.
 */
#ifndef ENGINE_ACTIVATIONS_H
#define ENGINE_ACTIVATIONS_H
#include "unit/unit.h"

struct activations;

struct unit_copies { /* micro-batches that a unit has places for */
    int own;         /* between forward and backward */
    int split;       /* between the parts of backward */
};

/* `passes`: bit p = pass p will be run. copies (units), NULL: one each. Memory is taken here, by
 * category and name. */
enum status activations_create(struct ops *ops, const struct unit_graph *graph,
                               struct unit_shape shape, enum keep own_below, uint32_t passes,
                               const struct unit_copies *copies, struct activations **activations);
void activations_destroy(struct activations *a);

/* Point run->buffers, run->room and run->rebuild at this unit's places for the micro-batch of a
 * round. */
void activations_bind(const struct activations *a, int u, int64_t round, enum pass pass,
                      struct unit_run *run);
/* Take over what unit u has put out as the input of unit u + 1. */
void activations_advance(const struct activations *a, int u, struct unit_run *run);
bool activations_needs_rebuild(const struct activations *a, int u);

#endif
