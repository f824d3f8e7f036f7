/* data_paths -- the files that data.* names: checks at startup that they exist, and makes their
 * paths absolute. */
#ifndef TRAIN_DATA_PATHS_H
#define TRAIN_DATA_PATHS_H
#include "train/data/dataset.h"

/* Fail with STATUS_CONFIG, naming the key, if data.path, data.val, data.mix or data.tokenizer
 * matches no file. */
enum status data_paths_check(struct env *env, const struct data_config *config);
/* Check data.tokenizer only, for commands that do not read the data. */
enum status data_paths_check_tokenizer(struct env *env, const struct data_config *config);

/* Evaluation needs no training data if data.val names held-out files: clear data.path and data.mix
 * in that case. */
enum status data_paths_held_out(struct env *env, struct data_config *config);

/* Make every relative path absolute, from the current folder. `options` owns the new strings. */
enum status data_paths_make_absolute(struct env *env, struct options *options,
                                     struct data_config *config);
/* The same for one path; "" stays "". */
enum status path_make_absolute(struct env *env, struct options *options, const char **path);

#endif
