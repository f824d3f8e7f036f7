/* data_paths -- the files that data.* names: there before anything long begins, and kept by names
 * that mean the same from every folder. */
#ifndef TRAIN_DATA_PATHS_H
#define TRAIN_DATA_PATHS_H
#include "train/data/dataset.h"

/* Refuse (STATUS_CONFIG, with the key) a data.path, data.val, data.mix or data.tokenizer that
 * matches no file. */
enum status data_paths_check(struct env *env, const struct data_config *config);
/* The tokenizer alone: the data may be elsewhere. */
enum status data_paths_check_tokenizer(struct env *env, const struct data_config *config);

/* Who only evaluates needs no training data where there are held-out files: leave data.path and
 * data.mix out then. */
enum status data_paths_held_out(struct env *env, struct data_config *config);

/* Put the current folder before every relative one; the strings live as long as `options`. */
enum status data_paths_make_absolute(struct env *env, struct options *options,
                                     struct data_config *config);
/* The same for one path; "" stays. */
enum status path_make_absolute(struct env *env, struct options *options, const char **path);

#endif
