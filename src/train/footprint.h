/* footprint -- what the process of a rank holds, beside what the account says it took.
 *
 *     runtime    what libraries hold once they have started: MPI with its shared segments, BLAS, the
 *                C library, the program itself. Read when the ranks have met and before the model
 *                is built: resident (base/resident.h) less what is accounted by then.
 *     resident   the most that was seen since. The system keeps no high-water mark of it, so it is
 *                looked at when most is held: after every step, evaluation, sample and file.
 *
 * A run takes nothing after its first step, so resident should be accounted + runtime; what is
 * more, nobody has planned. Ranks that are threads share one process: nothing is known of each.
 */
#ifndef TRAIN_FOOTPRINT_H
#define TRAIN_FOOTPRINT_H
#include <stdbool.h>
#include "base/env.h"
#include "comm/comm.h"

struct footprint { /* open; all zero: nothing is known */
    size_t runtime_bytes;
    size_t resident_bytes;  /* the most */
    size_t accounted_bytes; /* by the account at that moment */
};

void footprint_start(struct footprint *footprint, const struct mem *mem);
/* Allocates nothing. */
void footprint_look(struct footprint *footprint, const struct mem *mem);
/* How much more than planned the process held, as a share; NAN: not known. */
double footprint_excess(const struct footprint *footprint);

/* What the ranks hold, as the worst of them does. */
struct footprint_worst {
    size_t bytes[MEM_CATEGORY_COUNT]; /* accounted, each the largest of any rank */
    size_t total_bytes;               /* of the rank with the largest account */
    size_t state_bytes;               /* the same for params, grads and optimizer, */
    int state_rank;                   /* and which rank that is */
    struct footprint process;         /* of the rank whose process holds the most */
};
/* The account as it is now, or the most so far. `comm` NULL: one rank. Collective. */
enum status footprint_compare(const struct footprint *own, bool most, struct env *env,
                              struct comm *comm, struct footprint_worst *worst);

#endif
