/* ahead -- ranges of a file read by a thread of its own, while what was read before is used.
 *
 *     asked for      | 4 | 3 |           the thread reads them in their order
 *     taken                  | 2 |       in use until the next call
 *
 * Whatever a disk and a processor can do at the same time they do, with a few ranges in memory. One
 * thread asks and takes.
 */
#ifndef BASE_AHEAD_H
#define BASE_AHEAD_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/env.h"

enum { AHEAD_RANGES = 3 }; /* that are in memory at once */

struct ahead;

/* For ranges of at most `most_bytes`. */
enum status ahead_create(struct env *env, size_t most_bytes, struct ahead **ahead);
void ahead_destroy(struct ahead *ahead); /* NULL is fine; waits for what is being read */

/* Ask for a range; at most AHEAD_RANGES are not taken yet. The descriptor is used until it is. */
void ahead_ask(struct ahead *ahead, int fd, uint64_t at, size_t bytes);
/* The oldest that was asked for, as direct_read gives it (base/direct.h): memory at *data and before
 * it, back to a multiple of DIRECT_BLOCK, is the caller's until the next call. */
ssize_t ahead_take(struct ahead *ahead, void **data);

#endif
