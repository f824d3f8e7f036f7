/* kept -- what units keep from forward to backward, in host memory (offload.activations: host).
 *
 * Of the units that keep something a share moves, every second one, say, so that a copy has the time
 * of several passes; the others have memory of their own. Those that move are numbered in forward order. Unit k computes with its buffers in slot
 * k mod S of device memory. After its forward pass they are copied to host memory, while the next
 * units compute. After the backward pass of unit k + S they come back to the slot, while units
 * k + S - 1 .. k + 1 compute their backward passes. The last S units stay, since they are needed at
 * once. With S = 2 and 4 units:
 *
 *     compute  | forw. 0 | forw. 1 | forw. 2 | forw. 3 | backw. 3 | backw. 2 | backw. 1 | backw. 0
 *     out                | save 0  | save 1
 *     in                                                          | fetch 1  | fetch 0
 *
 * A pass waits only for its own slot. A unit has the same addresses in all passes. One micro-batch
 * at a time: a step has forward passes of all units, then backward passes of all units.
 */
#ifndef ENGINE_KEPT_H
#define ENGINE_KEPT_H
#include "device/far.h"

struct kept;

/* bytes (units): what each unit keeps; 0 = nothing. share: of these units, that moves. Allocates
 * slots and host memory. *kept is NULL if all that would move fit in the slots. */
enum status kept_create(struct device *device, const size_t *bytes, int unit_count, double share,
                        struct kept **kept);
void kept_destroy(struct kept *kept); /* NULL is fine */

/* Device memory of unit u; NULL: it keeps nothing, or does not move. */
char *kept_at(const struct kept *kept, int u);

/* The stream waits until unit u may use its memory: what lay there before is saved, or what the
 * unit keeps is back. */
void kept_await(struct kept *kept, int u, struct stream *stream);
/* The stream has computed the forward pass of unit u in a step: save what it keeps. */
void kept_save(struct kept *kept, int u, struct stream *stream);
/* The stream has computed the backward pass of unit u: fetch what comes next to its slot. */
void kept_release(struct kept *kept, int u, struct stream *stream);

enum status kept_check(struct kept *kept); /* the first failed copy, if any; NULL is fine */
const struct far *kept_far(const struct kept *kept); /* for its counters; NULL: NULL */

#endif
