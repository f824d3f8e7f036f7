/* run_plan -- the plan of a run as its configuration has it. */
#ifndef TRAIN_RUN_PLAN_H
#define TRAIN_RUN_PLAN_H
#include "plan/plan.h"
#include "train/config/config.h"

/* `config` is resolved and outlives the request. Where run.device is cuda and its back end is not
 * here (config->device.loaded), scratch is that of the reference. */
struct plan_request run_plan_request(const struct run_config *config, int ranks);

/* Bytes that each of `local` ranks on this machine can have: of its GPU, or of the `host_bytes`
 * that are free here; 0 = not known. */
size_t run_memory(const struct run_config *config, size_t host_bytes, int local);

/* Into `name` that of a GPU on this machine on which the run would fit, when it is to be on the
 * CPU; "" = there is none. */
enum status run_gpu_that_fits(struct env *env, const struct run_config *config, int ranks,
                              int local, char *name, size_t bytes);

/* Refuse with STATUS_FIT, before a byte is taken, a run whose ranks on this machine need more
 * than its GPU has, or on the CPU than `available` bytes (0: not known). `rank` of `ranks` is built on the dry device and stands
 * for each of the `local` ones; tokens are mapped and not counted. For a config
 * that was bound for reading it is an evaluation. */
struct run_ranks {
    int size, rank, local;
};
enum status run_fit_check(struct env *env, const struct run_config *config,
                          const struct run_ranks *ranks, size_t available);

/* The same for the parameters alone of the model in `folder` (config.json), in `type`. */
enum status run_fit_model(struct env *env, const char *folder, enum dtype type, size_t available);

#endif
