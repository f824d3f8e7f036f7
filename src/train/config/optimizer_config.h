/* optimizer_config -- the part of a run's configuration that chooses optimizers. */
#ifndef TRAIN_OPTIMIZER_CONFIG_H
#define TRAIN_OPTIMIZER_CONFIG_H
#include "train/config/config.h"

/* Set config->groups and refuse or warn about what does not go together. Needs train.*, precision
 * and device. */
enum status optimizer_resolve(struct env *env, struct options *options, struct run_config *config);
/* "muon, Nesterov momentum 0.95; ..." */
void optimizer_describe(const struct run_config *config, struct text *text);

#endif
