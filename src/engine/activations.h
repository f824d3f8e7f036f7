/* activations -- the places of the units' buffers for one batch shape.
 *
 *     own      each unit has its own place: lives from forward to backward; or several, where so
 *              many micro-batches are between the two at once
 *     shared   one place for all units: what is made again before it is needed
 *     scratch  one place for all passes: lives inside a pass
 *
 * Which buffers are `own` is one number: those with keep < own_below. KEEP_NOT keeps everything (no
 * recomputation), KEEP_UNLESS_SELECTIVE and KEEP_UNLESS_FULL are the two modes of recomputation,
 * KEEP_ALWAYS keeps nothing (evaluation and decoding, where no backward follows).
 */
#ifndef ENGINE_ACTIVATIONS_H
#define ENGINE_ACTIVATIONS_H
#include "unit/unit.h"

struct activations;

/* `passes`: bit p = pass p will be run. copies (units): micro-batches that a unit has places for,
 * NULL: one. Memory is taken here, by category and name. */
enum status activations_create(struct ops *ops, const struct unit_graph *graph,
                               struct unit_shape shape, enum keep own_below, uint32_t passes,
                               const int *copies, struct activations **activations);
void activations_destroy(struct activations *a);

/* Point run->buffers, run->room and run->rebuild at this unit's places for a micro-batch. */
void activations_bind(const struct activations *a, int u, int copy, enum pass pass,
                      struct unit_run *run);
/* Take over what unit u has put out as the input of unit u + 1. */
void activations_advance(const struct activations *a, int u, struct unit_run *run);
bool activations_needs_rebuild(const struct activations *a, int u);

#endif
