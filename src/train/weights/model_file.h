/* model_file -- a model as a Hugging Face directory: config.json, model.safetensors, the
 * tokenizer.
 *
 * Weights go between the file and the store a few megabytes at a time: there is never a second
 * copy of the model in memory. A directory appears whole or not at all.
 */
#ifndef TRAIN_MODEL_FILE_H
#define TRAIN_MODEL_FILE_H
#include "model/model.h"
#include "train/tokenizer/tokenizer.h"
#include "zero/zero.h"

/* Write the model in fp32 as directory `path`, which must not exist. `tokenizer` may be NULL. */
enum status model_file_save(struct env *env, const char *path, const struct model *model,
                            struct zero *zero, const struct tokenizer *tokenizer, int64_t step);

/* What of such a directory is not weights: config.json, which says that weights are of `type`, and
 * the files of the tokenizer. */
enum status model_file_describe(struct env *env, const char *folder, const struct model *model,
                                enum dtype type, const struct tokenizer *tokenizer);

/* The sizes that config.json in `folder` tells. `path` and `preset` of *config are left as they
 * are. */
enum status model_file_config(struct env *env, const char *folder, struct model_config *config);

#endif
