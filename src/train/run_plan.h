/* run_plan -- the plan of a run as its configuration has it. */
#ifndef TRAIN_RUN_PLAN_H
#define TRAIN_RUN_PLAN_H
#include "plan/plan.h"
#include "train/config.h"

/* `config` is resolved and outlives the request. */
struct plan_request run_plan_request(const struct run_config *config, int ranks);

/* Refuse with STATUS_FIT, before a byte is taken, a run whose ranks on this machine need more than
 * `available` bytes (0: not known). `rank` of `ranks` is built on the dry device and stands for each
 * of the `local` ones; the text and tokens of the data are not counted. For a config that was bound
 * for reading it is an evaluation. */
struct run_ranks {
    int size, rank, local;
};
enum status run_fit_check(struct env *env, const struct run_config *config,
                          const struct run_ranks *ranks, size_t available);

/* The same for the parameters alone of the model under `path`. */
enum status run_fit_model(struct env *env, const char *path, size_t available);

#endif
