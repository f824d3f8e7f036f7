/* ahead -- reads ranges of a file in a background thread while the caller uses earlier ones.
 *
 *     requested      | 4 | 3 |           the thread reads them in order
 *     taken                  | 2 |       in use until the next call
 *
 * The disk and the processor work at the same time, with a few ranges in memory. Requests and takes
 * come from one thread.
 */
#ifndef BASE_AHEAD_H
#define BASE_AHEAD_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/env.h"

enum { AHEAD_RANGES = 3 }; /* in memory at once */

struct ahead;

/* `most_bytes` is the largest range. */
enum status ahead_create(struct env *env, size_t most_bytes, struct ahead **ahead);
void ahead_destroy(struct ahead *ahead); /* NULL is fine; waits for a read in progress */

/* Request a range. At most AHEAD_RANGES requests may be outstanding. `fd` must stay open until the
 * range is taken. */
void ahead_ask(struct ahead *ahead, int fd, uint64_t at, size_t bytes);
/* Wait for the oldest request; the result is that of direct_read (base/direct.h). Memory from
 * *data, and before it down to a multiple of DIRECT_BLOCK, belongs to the caller until the next
 * call. */
ssize_t ahead_take(struct ahead *ahead, void **data);

#endif
