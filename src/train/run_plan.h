/* run_plan -- the plan of a run as its configuration has it. */
#ifndef TRAIN_RUN_PLAN_H
#define TRAIN_RUN_PLAN_H
#include "plan/plan.h"
#include "train/config.h"

/* `config` is resolved and outlives the request. */
struct plan_request run_plan_request(const struct run_config *config, int ranks);

#endif
