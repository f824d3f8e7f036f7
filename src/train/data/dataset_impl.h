/* dataset_impl -- the sources that all data.* keys together describe. For data_*.c and dataset.c
 * only. */
#ifndef TRAIN_DATASET_IMPL_H
#define TRAIN_DATASET_IMPL_H
#include "train/data/dataset.h"

struct data_plan {
    int count;       /* training sources */
    double split;    /* fraction of each source that is held out */
    const char *val; /* path of held-out data; NULL = none */
};

enum status data_plan_make(struct env *env, const struct data_config *config,
                           struct data_plan *plan);
struct data_mix_item data_plan_item(const struct data_config *config, int i);

#endif
