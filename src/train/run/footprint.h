/* footprint -- the memory that a rank really uses, compared with its account.
 *
 *     of its process   RssAnon + RssShmem (base/resident.h)
 *     of its GPU       bytes in use (device_in_use)
 *
 * For each there are three figures:
 *
 *     runtime    memory of libraries. On the host (MPI with its shared segments, BLAS, C's library,
 *                the program itself) it is measured after the ranks have joined and before the model
 *                is built: held minus accounted. GPU libraries allocate at first use, so there it is
 *                the plan's estimate (formula_gpu_runtime).
 *     held       the largest value seen. No system keeps a high-water mark, so it is sampled when
 *                memory is largest: the process after every step, evaluation, sample and file; the
 *                GPU, which is slower to query, after the first step only.
 *     accounted  the account at that moment.
 *
 * A run allocates nothing after its first step, so held should be accounted + runtime; anything
 * above is unplanned. Ranks that are threads share one process, so their own footprints are not
 * known. Ranks that share a GPU are counted as one: the sum of their accounts against all bytes in
 * use.
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

/* The fraction by which held exceeds the plan; NAN = not known. */
double footprint_excess(const struct footprint *footprint);

/* Of one rank. */
struct footprints { /* open; all zero: nothing is known */
    struct footprint process, gpu;
};

void footprints_start(struct footprints *own, const struct mem *mem, struct device *device);
/* Allocates nothing. Without `device` the GPU is not queried. */
void footprints_look(struct footprints *own, const struct mem *mem, struct device *device);

/* The memory of the worst rank. */
struct footprint_worst {
    int rank; /* with the largest account where it computes; the first of equals */
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes; /* its account: all of one rank */
    size_t state_bytes;       /* the most of any rank for params, grads and optimizer, */
    int state_rank;           /* and which rank that is */
    size_t host_bytes;        /* the most of any rank on the host beside a GPU; 0 = no GPU */
    struct footprint process; /* of the rank whose process holds the most */
    struct footprint gpu;     /* of the GPU of which most is in use */
};
/* Compare the current accounts, or with `most` their maxima. `comm` is NULL for one rank.
 * Collective. */
enum status footprint_compare(const struct footprints *own, bool most, struct device *device,
                              struct comm *comm, struct footprint_worst *worst);

#endif
