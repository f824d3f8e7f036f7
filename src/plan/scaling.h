/* scaling -- how soon a cluster reaches the same loss, by its number of ranks.
 *
 * More ranks make a step faster, or its batch larger. Both save less and less: small parts of a
 * batch keep ranks waiting for each other, and a batch above the noise scale saves few steps
 * (batch_law.h). For each number of ranks, the search (search.h) finds the fastest layout of a
 * batch, and the law the batch with the shortest time.
 */
#ifndef PLAN_SCALING_H
#define PLAN_SCALING_H
#include "plan/batch_law.h"
#include "plan/search.h"

enum { SCALING_ROWS = 32, SCALING_RANKS = 1024 };

struct scaling_point {
    int64_t batch;               /* 0: nothing fits */
    double seconds;              /* to the same loss; 0: not timed */
    struct search_layout layout; /* the fastest one; only set if timed */
};

struct scaling_row {
    int ranks;
    struct scaling_point given; /* with the batch of the run; only set if timed */
    struct scaling_point best;
};

struct scaling {
    struct scaling_row rows[SCALING_ROWS]; /* ranks ascend */
    int count;
    struct search_result searched; /* the sums of all searches, without layouts */
    bool fits;                     /* in at least one row */
};

/* Rows of 1, 2, 4, ... ranks, and of all ranks of the space. Of these, the batch is the best of
 * that of the space and of powers of two, times the odd part of the ranks, times train.micro_batch
 * where it is fixed. */
enum status scaling_make(struct env *env, const struct search_space *space,
                         const struct batch_law *law, struct scaling *scaling);

/* Without a machine: each rank keeps the part of the batch that it has in the request, and nothing
 * is timed. The ranks of the request are halved and doubled, up to SCALING_RANKS or its own. */
void scaling_grow(const struct plan_request *request, struct scaling *scaling);

/* The ranks after which doubling the ranks saves less than `share` of the time, or without times of
 * the steps; 0: none of the rows. */
int scaling_enough(const struct scaling *scaling, const struct batch_law *law, double share);

#endif
