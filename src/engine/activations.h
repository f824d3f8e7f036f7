/* activations -- memory for the units' buffers, for one batch shape.
 *
 *     own      memory of its own for each unit: lives from forward to backward. Several copies
 *              where several micro-batches are in flight at once. With FAR_HOST it moves to host
 *              memory and back, through slots that units share (kept.h).
 *     split    memory of its own for each unit: lives from backward-input to backward-weight, where
 *              backward is split in two. Several copies, as above.
 *     shared   one region for all units: buffers that are rebuilt before they are needed
 *     scratch  one region for all passes: buffers that live inside one pass
 *
 * Buffers with keep < own_below are `own`. KEEP_NOT keeps everything (no recomputation),
 * KEEP_UNLESS_SELECTIVE and KEEP_UNLESS_FULL are the two modes of recomputation, KEEP_ALWAYS keeps
 * nothing (evaluation and decoding, which have no backward pass).
 *
 * A buffer that is not `own` and that backward-weight needs is `split`: scratch of backward-input,
 * and rebuilt buffers. These are rebuilt once, before backward-input, and then kept for
 * backward-weight, so recomputation saves memory only from forward to backward-input. Rebuilding
 * them a second time would cost another forward pass, and would need params, which backward-weight
 * does without.
 *
 * The micro-batches of a unit use its copies in the order of rounds, so round mod n finds one.
 */
#ifndef ENGINE_ACTIVATIONS_H
#define ENGINE_ACTIVATIONS_H
#include "device/far.h"
#include "unit/unit.h"

struct activations;

struct unit_copies { /* how many micro-batches a unit has memory for */
    int own;         /* between forward and backward */
    int split;       /* between backward-input and backward-weight */
};

/* `passes`: bit p = pass p will run. copies (units); NULL: one of each, which FAR_HOST needs;
 * `share` of the units then move. Allocates everything. */
enum status activations_create(struct ops *ops, const struct unit_graph *graph,
                               struct unit_shape shape, enum keep own_below, uint32_t passes,
                               const struct unit_copies *copies, enum far_kind kind, double share,
                               struct activations **activations);
void activations_destroy(struct activations *a);

/* Set run->buffers, run->room, run->carry and run->rebuild for unit u and the micro-batch of a
 * round. */
void activations_bind(const struct activations *a, int u, int64_t round, enum pass pass,
                      struct unit_run *run);
/* Make the output of unit u the input of unit u + 1. Its carry stays that of unit u + 1 until the
 * next forward pass; so at most one micro-batch of a model with a carry is in flight. */
void activations_advance(const struct activations *a, int u, struct unit_run *run);
bool activations_needs_rebuild(const struct activations *a, int u);

/* Before and after every pass of a unit: the stream waits for what the pass needs; and after a pass
 * of a step, copies begin that need not wait any longer. `a` may be NULL in the last two. */
void activations_begin(struct activations *a, int u, struct stream *stream);
void activations_end(struct activations *a, int u, enum pass pass, struct stream *stream);
enum status activations_check(const struct activations *a); /* the first failed copy, if any */
/* What moves, for its counters; NULL: nothing. */
const struct far *activations_far(const struct activations *a);

#endif
