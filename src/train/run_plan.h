/* run_plan -- the memory plan of a run, from its configuration. */
#ifndef TRAIN_RUN_PLAN_H
#define TRAIN_RUN_PLAN_H
#include "plan/plan.h"
#include "train/config/config.h"

/* `config` is resolved and outlives the request. If run.device is cuda and its back end is not
 * loaded (config->device.loaded), another back end (.ops) stands for it: its scratch memory is
 * planned, and calls have no tiles or kernels of the GPU, so their times are approximate. */
struct plan_request run_plan_request(const struct run_config *config, int ranks);

/* Bytes for each of `local` ranks on this machine: of its GPU, or of `host_bytes` of free host
 * memory; at most what run.device_memory allows; 0 = not known. */
size_t run_memory(const struct run_config *config, size_t host_bytes, int local);

/* For a run on the CPU: the name of a GPU of this machine on which it would fit; "" = none. */
enum status run_gpu_that_fits(struct env *env, const struct run_config *config, int ranks,
                              int local, char *name, size_t bytes);

/* Refuse with STATUS_FIT, before anything is allocated, a run whose ranks on this machine need more
 * than their GPU has, or more than `available` bytes of host memory (0 = not known): all memory of
 * ranks on the CPU, and what ranks with a GPU offload to the host. One rank is built on the dry
 * device and stands for each of the `local` ones; mapped tokens are not counted. A config that was
 * bound for reading is checked as an evaluation. */
struct run_ranks {
    int size, rank, local;
};
enum status run_fit_check(struct env *env, const struct run_config *config,
                          const struct run_ranks *ranks, size_t available);

/* The same for generating text with the model in `folder` (config.json). */
struct run_text {
    const char *folder;
    struct compute_config compute;
    struct device_info device; /* of this process */
    const struct layout_config *layout;
    int rows; /* texts at once; 0 = 1 */
};
enum status run_fit_text(struct env *env, const struct run_text *text,
                         const struct run_ranks *ranks, size_t available);

#endif
