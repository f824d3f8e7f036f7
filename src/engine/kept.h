/* kept -- what units keep from forward to backward, in host memory (offload.activations: host).
 *
 * Units that keep something are numbered in forward order. Unit k computes with its buffers in slot
 * k mod S of device memory. After its forward pass they are copied to host memory, behind the
 * forward passes of the next units, and before its backward pass they come back to the same slot,
 * behind the backward passes of the units before it in that order. The last S units stay, since
 * they are needed at once. With S = 2 and 4 units:
 *
 *     compute  | forward 0 | forward 1 | forward 2 | forward 3 | backward 3 | backward 2 | backward 1
 *     out                  | save 0    | save 1    |
 *     in                                                                    | fetch 1    | fetch 0
 *
 * A pass waits only for its own slot. A unit has the same addresses in all passes. One micro-batch
 * at a time: a step has forward passes of all units, then backward passes of all units.
 */
#ifndef ENGINE_KEPT_H
#define ENGINE_KEPT_H
#include "device/far.h"

struct kept;

/* bytes (units): what each unit keeps; 0 = nothing. Allocates slots and host memory. *kept is NULL
 * if all units that keep something fit in the slots, so that nothing would move. */
enum status kept_create(struct device *device, const size_t *bytes, int unit_count,
                        struct kept **kept);
void kept_destroy(struct kept *kept); /* NULL is fine */

char *kept_at(const struct kept *kept, int u); /* device memory of unit u; NULL: it keeps nothing */

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
