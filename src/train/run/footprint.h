/* footprint -- the memory that a rank really uses, compared with its account.
 *
 *     process   RssAnon + RssShmem (base/host.h)
 *     GPU       bytes in use (device_in_use)
 *
 * For each there are three figures:
 *
 *     runtime    memory of libraries. On the host (MPI with its shared segments, BLAS, the C
 *                library, the program itself) it is measured after the ranks have joined and before
 *                the model is built: held minus accounted. GPU libraries allocate at first use, so
 *                there it is the plan's estimate (formula_gpu_runtime).
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
    size_t held_bytes;      /* the maximum */
    size_t accounted_bytes; /* the account at that moment */
};

/* The fraction by which held exceeds the plan; NAN = not known. */
double footprint_excess(const struct footprint *footprint);

/* The footprint of one rank. */
struct footprints { /* open; all zero: nothing is known */
    struct footprint process, gpu;
};

/* Begin: measure or estimate `runtime`. */
void footprints_start(struct footprints *own, const struct mem *mem, struct device *device);
/* Take a sample. Allocates nothing. If `device` is NULL, the GPU is not queried. */
void footprints_look(struct footprints *own, const struct mem *mem, struct device *device);

/* The memory of the worst rank. */
struct footprint_worst {
    int rank; /* with the largest account on its device; the first of equals */
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes; /* the account of that rank */
    size_t state_bytes; /* maximum over ranks of params, grads and optimizer in all locations, */
    int state_rank;     /* and which rank that is */
    size_t host_bytes;  /* maximum over ranks of host memory if they have GPUs; 0 = no GPU */
    size_t disk_bytes;  /* maximum over ranks of files that stand for memory */
    struct footprint process; /* of the rank with the largest process */
    struct footprint gpu;     /* of the GPU with the most bytes in use */
};
/* Compare the current accounts, or with `most` their maxima. `comm` is NULL for one rank.
 * Collective. */
enum status footprint_compare(const struct footprints *own, bool most, struct device *device,
                              struct comm *comm, struct footprint_worst *worst);

#endif
