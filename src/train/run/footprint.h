/* footprint -- what a rank holds in a memory, whoever took it, beside what was accounted for.
 *
 *     of its process   RssAnon + RssShmem (base/resident.h)
 *     of its GPU      what is in use there (device_in_use)
 *
 * Of either, three figures:
 *
 *     runtime    what libraries hold. On the host (MPI with its shared segments, BLAS, C's library,
 *                the program itself) it is read when the ranks have met and before the model is
 *                built: held less what is accounted by then. A GPU's libraries take theirs when
 *                they are first used, so it is the plan's estimate (formula_gpu_runtime).
 *     held       the most that was seen. No system keeps a high-water mark, so it is looked at when
 *                most is held: the process after every step, evaluation, sample and file; the
 *                GPU, which takes longer to ask, not after steps but the first.
 *     accounted  at that moment.
 *
 * A run takes nothing after its first step, so held should be accounted + runtime; what is more,
 * nobody has planned. Ranks that are threads share one process: nothing is known of each. Ranks
 * that share a GPU are seen as one: all their accounts, and what is in use together.
 */
#ifndef TRAIN_FOOTPRINT_H
#define TRAIN_FOOTPRINT_H
#include <stdbool.h>
#include "base/env.h"
#include "comm/comm.h"

struct footprint { /* open; all zero: nothing is known */
    size_t runtime_bytes;
    size_t held_bytes;      /* the most */
    size_t accounted_bytes; /* by the account at that moment */
};

/* How much more than planned was held, as a share; NAN: not known. */
double footprint_excess(const struct footprint *footprint);

/* Of one rank. */
struct footprints { /* open; all zero: nothing is known */
    struct footprint process, gpu;
};

void footprints_start(struct footprints *own, const struct mem *mem, struct device *device);
/* Allocates nothing. `device` NULL: the GPU is left out. */
void footprints_look(struct footprints *own, const struct mem *mem, struct device *device);

/* What the ranks hold, as the worst of them does. */
struct footprint_worst {
    int rank; /* with the largest account where it computes; the first of equals */
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes; /* its account: all of one rank */
    size_t state_bytes;       /* the most of any rank for params, grads and optimizer, */
    int state_rank;           /* and which rank that is */
    size_t host_bytes;        /* the most of any rank on the host beside a GPU; 0 = no GPU */
    struct footprint process; /* of the rank whose process holds the most */
    struct footprint gpu;     /* of the GPU of which most is in use */
};
/* The account as it is now, or the most so far. `comm` NULL: one rank. Collective. */
enum status footprint_compare(const struct footprints *own, bool most, struct device *device,
                              struct comm *comm, struct footprint_worst *worst);

#endif
